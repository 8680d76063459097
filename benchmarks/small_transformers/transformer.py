"""
A decoder-only transformer in plain PyTorch, operator by operator as the cost model counts them.

Weights are a mapping of tensors, blocks are functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from benchmarks.small_transformers.configurations import Configuration, weight_shapes

Tensor: TypeAlias = Any

Weights: TypeAlias = Mapping[str, Tensor]

DEVIATION = 0.02

"""Standard deviation of the weights at the start."""

ROTARY_BASE = 10_000.0


def random_weights(one: Configuration, *, device: str = "cpu", dtype: str = "float32", seed: int = 0) -> Weights:
    """Weights to be trained: norms of ones, all others normal; the same on every rank."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    found = {}
    for name, shape in weight_shapes(one).items():
        weight = torch.ones(shape, **kind)
        if not name.endswith("norm"):
            weight.normal_(std=DEVIATION, generator=generator)
        found[name] = weight.requires_grad_()
    return found


def rotations(one: Configuration, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each token of a micro-batch, for all heads; shape (rows, 1, head_dim)."""
    import torch

    exponents = torch.arange(0, one.head_dim, 2, device=like.device) / one.head_dim
    angles = torch.outer(torch.arange(one.sequence_length, device=like.device), ROTARY_BASE**-exponents)
    whole = torch.cat((angles, angles), dim=-1).repeat(one.mbs, 1)[:, None]
    return whole.cos().to(like.dtype), whole.sin().to(like.dtype)


def logits_of(
    weights: Weights,
    one: Configuration,
    tokens: Tensor,
    turned: tuple[Tensor, Tensor],
) -> Tensor:
    """
    Return the logits of each token's successor; shape (rows, vocab_size).

    Parameters
    ----------
    weights, one
        The model.
    tokens
        Tokens of all sequences behind one another; shape (rows,).
    turned
        Result of :func:`rotations`.
    """
    x = embedded(weights, tokens)
    for index in range(one.num_layers):
        x = layer_output(weights, one, index, x, turned)
    return head_logits(weights, x)


def embedded(weights: Weights, tokens: Tensor) -> Tensor:
    """Return the first layer's input; shape (rows, hidden_size)."""
    from torch.nn import functional

    return functional.embedding(tokens, weights["embedding"])


def layer_output(
    weights: Weights,
    one: Configuration,
    index: int,
    x: Tensor,
    turned: tuple[Tensor, Tensor],
) -> Tensor:
    """Return a layer's output; shape (rows, hidden_size), as its input."""
    from torch.utils.checkpoint import checkpoint

    start = f"layers.{index}."
    own = {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}
    if one.recompute == "full":
        return checkpoint(_layer, own, one, x, turned, use_reentrant=False, preserve_rng_state=False)
    return _layer(own, one, x, turned)


def head_logits(weights: Weights, x: Tensor) -> Tensor:
    """Apply the head to the last layer's output; shape (rows, vocab_size)."""
    from torch.nn import functional

    x = _normed(x, weights["final_norm"])
    return functional.linear(x, weights["head"])


def _layer(own: Weights, one: Configuration, x: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
    attended = _attention(own, one, _normed(x, own["attention_norm"]), turned)
    x = x + attended
    feed_forward = _experts if one.num_experts else _mlp
    fed = feed_forward(own, one, _normed(x, own["feed_forward_norm"]))
    return x + fed


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    from torch.nn import functional

    return functional.rms_norm(x, weight.shape, weight)


def _attention(own: Weights, one: Configuration, x: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
    from torch.nn import functional

    qkv = functional.linear(x, own["qkv"]).view(one.rows, -1, one.head_dim)
    rotated, values = qkv.split((one.num_heads + one.num_kv_heads, one.num_kv_heads), dim=1)
    rotated = _rotated(rotated, *turned)
    queries, keys = rotated.split((one.num_heads, one.num_kv_heads), dim=1)
    heads = (part.view(one.mbs, one.sequence_length, -1, one.head_dim) for part in (queries, keys, values))
    mixed = functional.scaled_dot_product_attention(
        *(part.transpose(1, 2) for part in heads), is_causal=True, enable_gqa=one.num_heads != one.num_kv_heads
    )
    mixed = mixed.transpose(1, 2).reshape(one.rows, -1)
    return functional.linear(mixed, own["output_projection"])


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    import torch

    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


def _mlp(own: Weights, one: Configuration, x: Tensor) -> Tensor:
    from torch.nn import functional

    both = functional.linear(x, own["up"])
    hidden = _gated(both)
    return functional.linear(hidden, own["down"])


def _gated(both: Tensor) -> Tensor:
    from torch.nn import functional

    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _experts(own: Weights, one: Configuration, x: Tensor) -> Tensor:
    """Tokens in the order of their experts, matmuls by expert, and the sum of each token's weighted results."""
    import torch
    from torch.nn import functional

    logits = functional.linear(x, own["router"])
    scores, chosen = logits.float().softmax(dim=-1).topk(one.top_k, dim=-1)
    order = chosen.flatten().argsort(stable=True)
    ends = torch.bincount(chosen.flatten(), minlength=one.num_experts).cumsum(0).to(torch.int32)
    sent = x.index_select(0, order // one.top_k)
    both = functional.grouped_mm(sent, own["up"].transpose(1, 2), offs=ends)
    hidden = _gated(both)
    done = functional.grouped_mm(hidden, own["down"].transpose(1, 2), offs=ends)
    weighted = done * scores.flatten().index_select(0, order)[:, None].to(done.dtype)
    return torch.zeros_like(x).index_add(0, order // one.top_k, weighted)


LEARNING_RATE = 1e-4


class Training:
    """
    A model with its optimizer and one batch, which every step trains on.

    Parameters
    ----------
    one
        The configuration.
    rank
        Rank among the data-parallel ones; more than one need a process group of torch.
    device, dtype
        Device and precision of the computation.
    """

    def __init__(
        self,
        one: Configuration,
        *,
        rank: int = 0,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        import torch

        self.one = one
        self.weights = random_weights(one, device=device, dtype=dtype)
        self.batch = random_batch(one, device=device)[rank * one.num_microbatches :][: one.num_microbatches]
        self._turned = rotations(one, self.weights["final_norm"])
        self._optimizer = torch.optim.AdamW(self.weights.values(), lr=LEARNING_RATE, fused=True)

    def step(self) -> None:
        """One step from old weights to new ones."""
        self.gradients()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> float:
        """Gradients of all ranks' micro-batches, averaged; the mean loss of this rank's."""
        parts = self.one.num_microbatches * self.one.dp
        total = 0.0
        for tokens, targets in self.batch:
            loss = self.loss(tokens, targets)
            (loss / parts).backward()
            total += float(loss.detach())
        if self.one.dp > 1:
            self._sum_over_ranks()
        return total / self.one.num_microbatches

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits of each token's successor; shape (rows, vocab_size)."""
        return logits_of(self.weights, self.one, tokens, self._turned)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of a micro-batch."""
        from torch.nn import functional

        return functional.cross_entropy(self.logits(tokens).float(), targets)

    def _sum_over_ranks(self) -> None:
        """One flat tensor of all gradients, which they are views of behind it."""
        import torch
        from torch import distributed

        weights = list(self.weights.values())
        flat = torch.cat([weight.grad.flatten() for weight in weights])
        distributed.all_reduce(flat)
        for weight, piece in zip(weights, flat.split([one.numel() for one in weights]), strict=True):
            weight.grad = piece.view_as(weight)


def random_batch(one: Configuration, *, device: str = "cpu", seed: int = 1) -> Sequence[tuple[Tensor, Tensor]]:
    """Tokens and targets of every micro-batch of all ranks, each of shape (rows,); the same on every rank."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def drawn() -> Any:
        return torch.randint(one.vocab_size, (one.rows,), generator=generator).to(device)

    return [(drawn(), drawn()) for _ in range(one.num_microbatches * one.dp)]
