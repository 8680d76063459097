"""
PyTorch's own memory trackers as the oracle of peaks: the loss, and a model under FSDP (ZeRO-3).

Fake tensors and a fake process group: seconds on a CPU, no memory. What the trackers see and the cost model does not
count is stated in each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from costmodel import catalog
from costmodel.facts.workload import Precision
from costmodel.memory import gathered_bytes, gradient_bytes, weight_bytes
from costmodel.strategy import Sharding

UNFUSED_LOSS = catalog.framework("torchtitan-0.1").behaviour.memory.eager_logit_bytes
"""Bytes per logit of PyTorch's cross-entropy that nothing compiled, in its backward pass."""

REASON = "the oracle needs torch: pip install -e .[oracle]"
torch = pytest.importorskip("torch", reason=REASON)
nn, F = torch.nn, torch.nn.functional
FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor", reason=REASON).FakeTensorMode
MemTracker = pytest.importorskip("torch.distributed._tools.mem_tracker", reason=REASON).MemTracker

TOKENS, VOCABULARY = 4096, 32_000

RANKS, LAYERS, HIDDEN, BATCH = 8, 6, 512, 8

FSDP2 = Precision(
    name="FSDP2", compute="bf16", weight_bytes=4, gradient_bytes=4, optimizer_bytes=8, parameter_gather_bytes=2
)


def peak_bytes(tracker: Any) -> dict[str, int]:
    """What the tracker saw on the fake device, by its own names."""
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {getattr(kind, "name", str(kind)): nbytes for kind, nbytes in snapshot.items()}


def test_eager_loss():
    """
    transformers' and torchtitan's loss on fp32 logits: 12 bytes per logit at its peak.

    In the backward pass log-probabilities, their gradient and that of the logits exist at once, while the 16-bit
    logits, here an input that the caller holds, have gone in a real model.
    """
    with FakeTensorMode():
        logits = torch.empty(TOKENS, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.empty(TOKENS, dtype=torch.int64)
        tracker = MemTracker()
        with tracker:
            F.cross_entropy(logits.float(), labels).backward()

    assert peak_bytes(tracker)["Total"] / (TOKENS * VOCABULARY) == pytest.approx(UNFUSED_LOSS, rel=0.01)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A device mesh of eight ranks, of which only this one exists."""
    distributed = pytest.importorskip("torch.distributed")
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore()
    distributed.init_process_group("fake", store=store, rank=0, world_size=RANKS)
    yield pytest.importorskip("torch.distributed.device_mesh").init_device_mesh("cpu", (RANKS,))
    distributed.destroy_process_group()


class FeedForward(nn.Module):
    """A layer whose activations are few beside its weights."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        """Same shape."""
        return x + self.down(F.gelu(self.up(x)))


def fsdp_peak(mesh: Any) -> dict[str, int]:
    """Peak of the second forward and backward pass, no update: every state but the optimizer's is there."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    tracker_type = pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker").FSDPMemTracker
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    with FakeTensorMode():
        model = nn.Sequential(*(FeedForward() for _ in range(LAYERS)))
        for layer in (*model, model):
            fsdp.fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        inputs = torch.empty(BATCH, HIDDEN, dtype=torch.bfloat16)
        tracker = tracker_type(model)
        tracker.track_inputs((inputs,))
        with tracker:
            for _ in range(2):
                model(inputs).sum().backward()
    return peak_bytes(tracker)


def test_fully_sharded_data_parallel(mesh):
    """
    Shards of weights and gradients in fp32; whole weights and whole gradients of two layers in 16 bits.

    The rest, 2 %, are activations and the shard that the reduce-scatter puts out.
    """
    seen = fsdp_peak(mesh)
    layer = 8 * HIDDEN**2
    of_all = {"parameters": LAYERS * layer, "group_ranks": RANKS, "sharding": Sharding.WEIGHTS}

    assert seen["SHARDED_PARAM"] == weight_bytes(FSDP2, **of_all)
    assert seen["SHARDED_GRAD"] == gradient_bytes(FSDP2, **of_all)
    whole = gathered_bytes(FSDP2, largest_layer_parameters=layer, sharding=Sharding.WEIGHTS)
    assert seen["Total"] - seen["SHARDED_PARAM"] - seen["SHARDED_GRAD"] == pytest.approx(float(whole), rel=0.03)
