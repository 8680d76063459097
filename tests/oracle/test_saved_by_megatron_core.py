"""
Megatron-Core's own layer as the oracle of saved activations: its plain PyTorch specification, on a CPU.

Needs its wheel (``pip install --no-deps megatron-core==0.14.0``). Two tensor-parallel ranks are a fake process group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from costmodel.facts.framework import Kernels, MemoryModel
from costmodel.facts.model import Attention, Layer, Mlp
from costmodel.lowering import layer_operators
from costmodel.lowering.shape import Shape

REASON = "the oracle needs megatron-core: pip install -e .[oracle], then pip install --no-deps megatron-core==0.14.0"
torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("megatron.core", reason=REASON)
reference = pytest.importorskip("tests.oracle.reference_layers", reason=REASON)

TP, MBS, SEQUENCE, HIDDEN, HEADS, FFN = 2, 2, 32, 64, 4, 256
TOKENS = MBS * SEQUENCE

SIZES = {
    "num_layers": 1,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "ffn_hidden_size": FFN,
    "tensor_model_parallel_size": TP,
    "bf16": True,
    "params_dtype": torch.bfloat16,
    "add_bias_linear": False,
    "attention_softmax_in_fp32": False,
}

ON_A_CPU = {
    "use_cpu_initialization": True,
    "perform_initialization": False,
    "gradient_accumulation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rank 0 of two tensor-parallel ranks, without a GPU and its random states."""
    import torch.distributed as distributed
    from megatron.core import parallel_state, tensor_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(tensor_parallel, "get_cuda_rng_tracker", lambda: SimpleNamespace(fork=nullcontext))
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=TP)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TP, create_gloo_process_groups=False)
    yield
    parallel_state.destroy_model_parallel()
    distributed.destroy_process_group()


def build() -> Any:
    """Megatron-Core's layer, called with the mask that it wants."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    layer = build_module(get_gpt_layer_local_spec(), config=TransformerConfig(**SIZES, **ON_A_CPU), layer_number=1)
    return _Called(layer)


class _Called(torch.nn.Module):
    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        """Its output, without the context of cross-attention."""
        mask = torch.empty(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool)
        return self.layer(x, attention_mask=mask)[0]


@pytest.mark.usefixtures("two_ranks")
def test_a_layer_of_two_tensor_parallel_ranks():
    """Unfused attention without dropout keeps 2 bytes per score; mean and root per norm and token, and the mask."""
    layer = Layer(
        attention=Attention(num_heads=HEADS, num_kv_heads=HEADS, head_dim=HIDDEN // HEADS, rotary=False),
        feed_forward=Mlp(ffn_hidden_size=FFN, gated=False),
        norm="layer",
    )
    shape = Shape(
        hidden_size=HIDDEN,
        sequence_length=SEQUENCE,
        activation_bytes=2,
        causal=False,
        mbs=MBS,
        tp=TP,
        kernels=Kernels(fused_attention=False),
        memory=MemoryModel(attention_score_bytes=2),
    )

    kept = reference.saved_bytes(build, (SEQUENCE, MBS, HIDDEN))

    norms, mask = 2 * 2 * 2 * TOKENS, SEQUENCE**2
    assert kept - norms - mask == sum(float(one.saved_bytes) for one in layer_operators(layer, shape))
