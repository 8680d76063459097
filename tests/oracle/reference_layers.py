"""
Transformer layers in plain PyTorch, and what their backward pass really keeps: fake tensors, no memory, no GPU.

What is one kernel on a GPU is one autograd function here that saves what the kernel saves; ``eager`` layers consist of
PyTorch's own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the oracle needs torch: pip install -e .[oracle]")
nn, F = torch.nn, torch.nn.functional
FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
checkpointing = pytest.importorskip("torch.utils.checkpoint")


def saved_bytes(build: Callable[[], Any], *inputs: tuple[int, ...]) -> int:
    """
    Bytes that a module keeps for its backward pass, each storage once, its parameters not counted.

    Parameters
    ----------
    build
        Makes the module.
    inputs
        Shape of each of its inputs, in 16 bits.
    """
    with FakeTensorMode(), sixteen_bits():
        module = build()
        tensors = [torch.empty(shape, requires_grad=True) * 1 for shape in inputs]
        own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
        kept: dict[int, Any] = {}
        with torch.autograd.graph.saved_tensors_hooks(lambda one: _keep(one, own, kept), lambda one: one):
            output = module(*tensors)
        assert output.requires_grad
        return sum(one.untyped_storage().nbytes() for one in kept.values())


@contextmanager
def sixteen_bits() -> Iterator[None]:
    """New tensors and modules are in bf16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _keep(tensor: Any, own: set[int], kept: dict[int, Any]) -> Any:
    key = tensor.untyped_storage()._cdata
    if key not in own:
        kept[key] = tensor
    return tensor


# --- one kernel each -----------------------------------------------------------------------------------------------


class NormKernel(torch.autograd.Function):
    """RMSNorm of Transformer Engine and Apex: keeps its input and the reciprocal root per token, in fp32."""

    @staticmethod
    def forward(ctx, x, weight):
        """Same shape as the input."""
        ctx.save_for_backward(x, torch.empty(x.shape[:-1], dtype=torch.float32), weight)
        return torch.empty_like(x)


class SwigluKernel(torch.autograd.Function):
    """Megatron-LM's ``SwiGLUFunction``: keeps its input."""

    @staticmethod
    def forward(ctx, x):
        """Half as wide as the input."""
        ctx.save_for_backward(x)
        return torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype)


class AttentionKernel(torch.autograd.Function):
    """FlashAttention with grouped queries: keeps Q, K, V, its output and, in fp32, a log-sum-exp per query and head."""

    @staticmethod
    def forward(ctx, q, k, v):
        """(b, s, a, d) as wide as the values."""
        output = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
        ctx.save_for_backward(q, k, v, output, torch.empty(q.shape[:-1], dtype=torch.float32))
        return output


class GatheredLinear(torch.autograd.Function):
    """Column-parallel linear under sequence parallelism: keeps its part of the input and gathers it again."""

    @staticmethod
    def forward(ctx, x, weight, ranks):
        """All tokens of ``ranks`` parts."""
        ctx.save_for_backward(x, weight)
        return torch.empty(x.shape[0], x.shape[1] * ranks, weight.shape[0], dtype=x.dtype)


class ScatteredSum(torch.autograd.Function):
    """Reduce-scatter behind a row-parallel linear: keeps nothing."""

    @staticmethod
    def forward(ctx, x, ranks):
        """One of ``ranks`` parts of the tokens."""
        return torch.empty(x.shape[0], x.shape[1] // ranks, x.shape[2], dtype=x.dtype)


# --- layers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """
    Of one layer on one rank, and how it runs.

    Parameters
    ----------
    hidden, heads, kv_heads, head_dim, ffn
        Of the whole model.
    gated
        SwiGLU or GELU.
    tp, sequence_parallel
        Ranks of which this is one; whether they split norms and residuals.
    attention
        ``scores`` (softmax and dropout of their own), ``sdpa`` (PyTorch's), ``kernel``.
    eager
        Norms and gated activation from PyTorch's operations.
    dropout
        Whether there is any.
    again
        Modules under activation checkpointing: ``core``, ``mlp``, ``layer``.
    """

    hidden: int = 64
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 16
    ffn: int = 256
    gated: bool = False
    tp: int = 1
    sequence_parallel: bool = False
    attention: str = "kernel"
    eager: bool = False
    dropout: bool = False
    again: tuple[str, ...] = ()


class Norm(nn.Module):
    """RMSNorm in one kernel, or as in transformers' ``LlamaRMSNorm``."""

    def __init__(self, width, *, eager):
        super().__init__()
        self.weight, self.eager = nn.Parameter(torch.empty(width)), eager

    def forward(self, x):
        """Same shape."""
        if not self.eager:
            return NormKernel.apply(x, self.weight)
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Block(nn.Module):
    """What attention and feed-forward share: dropout, checkpointing, the linears that split over ranks."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def into(self, linear, x):
        """Column-parallel."""
        if not self.sizes.sequence_parallel:
            return linear(x)
        return GatheredLinear.apply(x, linear.weight, self.sizes.tp)

    def out_of(self, linear, x):
        """Row-parallel, with dropout behind it."""
        y = linear(x)
        y = ScatteredSum.apply(y, self.sizes.tp) if self.sizes.sequence_parallel else y
        return dropped(y) if self.sizes.dropout else y


def dropped(x):
    """Dropout as one kernel, as on GPUs: keeps a mask of one byte per element."""
    return torch.native_dropout(x, 0.1, True)[0]


def again(function, *inputs):
    """Activation checkpointing that shows its inputs to the hooks."""
    return checkpointing.checkpoint(function, *inputs, use_reentrant=True, preserve_rng_state=False)


class Attention(Block):
    """Grouped queries without positions."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.heads = sizes.heads // sizes.tp
        self.widths = [count * sizes.head_dim // sizes.tp for count in (sizes.heads, sizes.kv_heads, sizes.kv_heads)]
        self.qkv = nn.Linear(sizes.hidden, sum(self.widths), bias=False)
        self.out = nn.Linear(self.widths[0], sizes.hidden, bias=False)

    def forward(self, x):
        """Same shape."""
        parts = self.into(self.qkv, x).split(self.widths, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.sizes.head_dim)) for part in parts)
        core = {"scores": self.scores, "sdpa": self.sdpa, "kernel": AttentionKernel.apply}[self.sizes.attention]
        mixed = again(core, q, k, v) if "core" in self.sizes.again else core(q, k, v)
        return self.out_of(self.out, mixed.flatten(-2))

    def scores(self, q, k, v):
        """Korthikanti et al.'s attention: matmul, softmax, dropout, matmul, all in 16 bits."""
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        weights = torch.softmax(q @ k.transpose(-1, -2), dim=-1)
        return (dropped(weights) @ v).transpose(1, 2).contiguous()

    def sdpa(self, q, k, v):
        """PyTorch's fused attention."""
        return F.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v))).transpose(1, 2)


class Mlp(Block):
    """GELU or SwiGLU."""

    def __init__(self, sizes):
        super().__init__(sizes)
        width = sizes.ffn // sizes.tp
        self.up = nn.Linear(sizes.hidden, (2 if sizes.gated else 1) * width, bias=False)
        self.down = nn.Linear(width, sizes.hidden, bias=False)

    def forward(self, x):
        """Same shape."""
        wide = self.into(self.up, x)
        if not self.sizes.gated:
            return self.out_of(self.down, F.gelu(wide))
        if not self.sizes.eager:
            return self.out_of(self.down, SwigluKernel.apply(wide))
        gate, up = wide.chunk(2, dim=-1)
        return self.out_of(self.down, F.silu(gate) * up)


class Layer(nn.Module):
    """Norm, attention, norm, feed-forward, on the residual stream."""

    def __init__(self, sizes, attention=None, feed_forward=None):
        super().__init__()
        self.again = sizes.again
        self.norms = nn.ModuleList([Norm(sizes.hidden, eager=sizes.eager) for _ in range(2)])
        self.attention = attention or Attention(sizes)
        self.feed_forward = feed_forward or Mlp(sizes)

    def forward(self, x):
        """Same shape."""
        return again(self.both, x) if "layer" in self.again else self.both(x)

    def both(self, x):
        """The two blocks."""
        x = x + self.attention(self.norms[0](x))
        return x + (again(self.second, x) if "mlp" in self.again else self.second(x))

    def second(self, x):
        """Feed-forward with its norm."""
        return self.feed_forward(self.norms[1](x))


class LatentAttention(nn.Module):
    """
    MLA as in Megatron-LM's ``MLASelfAttention``, in one kernel.

    Parameters
    ----------
    sizes
        Its hidden size and heads.
    spec
        The widths, as :class:`costmodel.facts.model.LatentAttention`.
    """

    def __init__(self, sizes, spec):
        super().__init__()
        self.spec, heads = spec, spec.num_heads
        self.q_down = nn.Linear(sizes.hidden, spec.q_lora_rank, bias=False)
        self.kv_down = nn.Linear(sizes.hidden, spec.kv_lora_rank, bias=False)
        self.rope_down = nn.Linear(sizes.hidden, spec.qk_rope_head_dim, bias=False)
        self.q_norm, self.kv_norm = Norm(spec.q_lora_rank, eager=False), Norm(spec.kv_lora_rank, eager=False)
        self.q_up = nn.Linear(spec.q_lora_rank, heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim), bias=False)
        self.kv_up = nn.Linear(spec.kv_lora_rank, heads * (spec.qk_nope_head_dim + spec.v_head_dim), bias=False)
        self.out = nn.Linear(heads * spec.v_head_dim, sizes.hidden, bias=False)

    def forward(self, x):
        """Same shape."""
        spec, heads = self.spec, self.spec.num_heads
        q = self.q_up(self.q_norm(self.q_down(x))).unflatten(-1, (heads, -1))
        kv = self.kv_up(self.kv_norm(self.kv_down(x))).unflatten(-1, (heads, -1))
        k, v = kv.split([spec.qk_nope_head_dim, spec.v_head_dim], dim=-1)
        rope = self.rope_down(x).unsqueeze(-2).expand(*k.shape[:-1], spec.qk_rope_head_dim)
        mixed = AttentionKernel.apply(q, torch.cat([k, rope], dim=-1), v.contiguous())
        return self.out(mixed.flatten(-2))


class Experts(nn.Module):
    """
    Router, dispatch by index, experts as batched matmuls with balanced loads, combine; scores weight the activation.

    Parameters
    ----------
    sizes
        Its hidden size.
    spec
        As :class:`costmodel.facts.model.Experts`.
    """

    def __init__(self, sizes, spec):
        super().__init__()
        self.spec = spec
        self.router = nn.Linear(sizes.hidden, spec.num_experts, bias=False)
        self.up = nn.Parameter(torch.empty(spec.num_experts, sizes.hidden, 2 * spec.ffn_hidden_size))
        self.down = nn.Parameter(torch.empty(spec.num_experts, spec.ffn_hidden_size, sizes.hidden))

    def forward(self, x):
        """Same shape."""
        tokens = x.flatten(0, 1)
        torch.softmax(self.router(tokens), dim=-1).sum()
        index = torch.empty(tokens.shape[0] * self.spec.top_k, dtype=torch.int64)
        sent = tokens.index_select(0, index).unflatten(0, (self.spec.num_experts, -1))
        done = (SwigluKernel.apply(sent @ self.up) @ self.down).flatten(0, 1)
        return torch.zeros_like(tokens).scatter_add(0, index.unsqueeze(-1).expand_as(done), done).view_as(x)
