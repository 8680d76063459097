"""What PyTorch's two kinds of checkpoints really compute again as the oracle of full recomputation."""

from __future__ import annotations

import pytest

from costmodel.facts.model import Attention, Layer, Mlp
from costmodel.lowering import layer_operators
from costmodel.lowering.layer import BEHIND_THE_LAST_KEPT
from tests.builders import a_shape

reference = pytest.importorskip("tests.oracle.reference_layers", reason="the oracle needs torch")
torch = reference.torch

MBS, SEQUENCE = 2, 8
MATMULS = frozenset({"qkv", "core_attention", "output_projection", "up", "down"})


def matmul_flops(sizes, names):
    """Of the cost model's layer of the same sizes, one forward pass."""
    attention = Attention(num_heads=sizes.heads, num_kv_heads=sizes.kv_heads, head_dim=sizes.head_dim)
    layer = Layer(attention=attention, feed_forward=Mlp(ffn_hidden_size=sizes.ffn, gated=sizes.gated))
    shape = a_shape(hidden_size=sizes.hidden, sequence_length=SEQUENCE, mbs=MBS, causal=False)
    return sum(float(one.flops) for one in layer_operators(layer, shape) if one.name in names)


def backward_flops(sizes, **checkpoint):
    """Of the matmuls of a backward pass as PyTorch runs it, on tensors without data."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.checkpoint import checkpoint as again
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode():
        layer = reference.Layer(sizes)
        x = torch.empty(MBS, SEQUENCE, sizes.hidden, requires_grad=True)
        y = again(layer, x, preserve_rng_state=False, **checkpoint) if checkpoint else layer(x)
        with FlopCounterMode(display=False) as counted:
            y.sum().backward()
    return counted.get_total_flops()


@pytest.mark.parametrize("gated", [False, True])
def test_checkpoints_repeat_what_is_counted(gated):
    """
    The whole forward pass where they are reentrant, as Megatron-LM's and DeepSpeed's are.

    Others stop behind the last tensor that is needed since PyTorch 2.1: a feed-forward's last matmul is not repeated.
    """
    sizes = reference.Sizes(attention="scores", gated=gated, eager=True)
    kept = {True: MATMULS, False: MATMULS - BEHIND_THE_LAST_KEPT.keys()}

    again = {way: backward_flops(sizes, use_reentrant=way) - backward_flops(sizes) for way in kept}

    assert again == {way: matmul_flops(sizes, names) for way, names in kept.items()}
