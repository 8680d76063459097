"""The tensors of training steps in the order in which they come and go: what the allocator sees of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

from benchmarks.allocator.allocator import Allocator

MIB = 2**20

CONTEXT_BYTES = 0.6e9
"""A CUDA context with the kernels of PyTorch and its libraries (assumption: 0.5 to 0.8 GB on Hopper)."""

PROTOCOL_BYTES = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
"""
Buffers of one NCCL connection: Simple, ``NCCL_BUFFSIZE``; LL128, 120 elements of 8 bytes for 640 threads in 8 steps;
LL, 8 lines of 16 bytes for 512 threads in 8 steps (NCCL, ``src/include/device.h``, ``src/init.cc``, recalled).
"""

CHANNELS = 24
"""Channels of a communicator between GPUs with NVLink 4 (recalled; 16 to 32)."""

CHUNK_TOKENS = 256
"""``num_max_nvl_chunked_recv_tokens`` of DeepEP's configurations (``deep_ep/buffer.py``, recalled); RDMA has half."""

DISPATCH_CHANNELS = 10
"""DeepEP: half of 20 processors."""

PEERS = 8
"""``NUM_MAX_NVL_PEERS`` of DeepEP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """
    Facts on which buffers depend.

    Parameters
    ----------
    name
        Its meaning.
    groups
        Communicators of more than one rank.
    hidden, tokens, ep
        Width of the model, tokens of a micro-batch on a rank, expert-parallel ranks.
    """

    name: str
    groups: int
    hidden: int
    tokens: int
    ep: int


def nccl_bytes(groups: int, *, connections: int = 1) -> float:
    """
    Buffers of communicators: those of a ring with one connection per channel, of trees with up to three more.

    References
    ----------
    NCCL, ``src/transport/p2p.cc``: the receiver holds the buffers of all protocols of a connection (recalled).
    """
    return float(groups * CHANNELS * connections * PROTOCOL_BYTES)


def deepep_bytes(*, hidden: int, ep: int) -> float:
    """
    DeepEP's buffers: chunks of tokens from each peer and channel over NVLink, and of each node both ways over RDMA.

    References
    ----------
    DeepEP, ``csrc/config.hpp``, ``get_nvl_buffer_size_hint`` and ``get_rdma_buffer_size_hint`` (recalled);
    Megatron-Core 0.16.1, ``megatron/core/transformer/moe/fused_a2a.py:34``: the larger of dispatch and combine.
    """
    token = 2.0 * hidden
    within = DISPATCH_CHANNELS * min(ep, PEERS) * CHUNK_TOKENS * token
    across = 2 * DISPATCH_CHANNELS * (ep // PEERS) * CHUNK_TOKENS / 2 * token if ep > PEERS else 0.0
    return within + across


def hybridep_bytes(*, hidden: int, tokens: int, ep: int) -> float:
    """
    Hybrid-EP's buffers: all tokens of all ranks may come, and go back, in 16 bits.

    References
    ----------
    DeepEP, branch hybrid-ep, ``csrc/hybrid_ep``: ``max_num_of_tokens_per_rank`` times ranks and nodes (recalled);
    Megatron-Core 0.16.1, ``fused_a2a.py:313``, gives it the micro-batch's tokens and no FP8.
    """
    return 2 * 2.0 * hidden * tokens * ep


def graph_bytes(*, hidden: int, tokens: int) -> float:
    """
    Static gradients of graphed modules: one set, of a module's output and input in 16 bits.

    Activations take as much as without graphs: pools give and take them in the order of the schedule, and what was
    cached before is given back (Megatron-Core 0.16.1, ``cuda_graphs.py:394,2137,2190``: empty_cache,
    _reuse_graph_input_output_buffers). A graph of the whole iteration holds its batches' tokens besides
    (``full_cuda_graph.py:57``).
    """
    return 2 * 2.0 * hidden * tokens


LAYOUTS = (
    Layout(name="8B, FSDP on 128 GPUs", groups=1, hidden=4096, tokens=16384, ep=1),
    Layout(name="70B, tp 4, pp 4, dp 2", groups=6, hidden=8192, tokens=4096, ep=1),
    Layout(name="Nemotron 3 nano, ep 8", groups=4, hidden=2688, tokens=8192, ep=8),
    Layout(name="Qwen3-30B, ep 16", groups=4, hidden=2048, tokens=4096, ep=16),
    Layout(name="DeepSeek-V3, pp 4, ep 64", groups=6, hidden=7168, tokens=4096, ep=64),
)


def lines() -> Iterator[str]:
    """Buffers of each layout, in GB, beside what devices of the catalog keep for all of them."""
    yield f"{'GB of a device':<28} {'context':>8} {'NCCL':>12} {'DeepEP':>7} {'HybridEP':>9} {'graphs':>7}"
    for one in LAYOUTS:
        ring, trees = (nccl_bytes(one.groups, connections=count) / 1e9 for count in (1, 4))
        deep = deepep_bytes(hidden=one.hidden, ep=one.ep) / 1e9 if one.ep > 1 else 0.0
        hybrid = hybridep_bytes(hidden=one.hidden, tokens=one.tokens, ep=one.ep) / 1e9 if one.ep > 1 else 0.0
        graphs = graph_bytes(hidden=one.hidden, tokens=one.tokens) / 1e9
        communicators = f"{ring:.1f} to {trees:.1f}"
        buffers = f"{communicators:>12} {deep:>7.1f} {hybrid:>9.1f} {graphs:>7.2f}"
        yield f"{one.name:<28} {CONTEXT_BYTES / 1e9:>8.1f} {buffers}"
    yield "Devices keep 3 to 6 GB (runtime_bytes) for all of that, whatever the layout."


Recomputation: TypeAlias = Literal["none", "full"]

RECOMPUTES: tuple[Recomputation, ...] = ("none", "full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """
    One rank of a training job.

    Parameters
    ----------
    name
        Its meaning.
    hidden, intermediate, key_value, heads, vocabulary
        Widths of the model; ``intermediate`` of a feed-forward or of one token's experts together.
    layers, tokens
        Layers of the rank; tokens of a micro-batch on it.
    tp
        Tensor-parallel ranks, sequence-parallel too.
    in_flight, microbatches
        Micro-batches alive at once, and of a step.
    recompute
        ``none`` or ``full``.
    sharded
        Sharding of weights and gradients over ``ranks``: ``tensors`` (FSDP2) are copied out of the gathered buffer,
        ``flat`` ones (PyTorch's first FSDP) are views of it; ``none``: gradients lie in one buffer (Megatron-LM).
    ranks
        Ranks that share states.
    experts
        Routed rows per token, 0: dense.
    imbalance
        Standard deviation of a rank's rows over their mean, from layer to layer and micro-batch to micro-batch.
    """

    name: str
    hidden: int = 4096
    intermediate: int = 14336
    key_value: int = 1024
    heads: int = 32
    vocabulary: int = 128256
    layers: int = 32
    tokens: int = 8192
    tp: int = 1
    in_flight: int = 1
    microbatches: int = 4
    recompute: Recomputation = "none"
    sharded: Literal["none", "flat", "tensors"] = "none"
    ranks: int = 8
    experts: int = 0
    imbalance: float = 0.0

    @property
    def matrices(self) -> tuple[int, ...]:
        """Parameters of a layer's weights on this rank."""
        up = 2 * self.hidden * self.intermediate
        qkv = self.hidden * (self.hidden + 2 * self.key_value)
        return tuple(size // self.tp for size in (qkv, self.hidden * self.hidden, up, up // 2))


class Rank:
    """
    A rank at work: allocations and frees of its states and of its passes.

    Parameters
    ----------
    job, allocator
        Training job of the rank, and the allocator of its device.
    seed
        Seed of the imbalance of experts.
    """

    def __init__(self, job: Job, allocator: Allocator, *, seed: int = 0):
        self.job, self.allocator, self.random = job, allocator, Random(seed)
        self._numbers = 0
        self._saved: dict[tuple[int, int], list[int]] = {}

    def run(self, steps: int = 3) -> int:
        """Play steps, the optimizer's states with the first update; return the retries of the last step."""
        job = self.job
        edge = job.vocabulary * job.hidden // job.tp
        weights = [*job.matrices * job.layers, edge, edge]
        is_sharded = job.sharded != "none"
        shards = job.ranks if is_sharded else 1
        for size in weights:
            self._new((4 if is_sharded else 2) * size / shards)
        if not is_sharded:
            self._new(4 * sum(weights))
        before = 0
        for step in range(steps):
            before = self.allocator.retries
            self._run_passes()
            if step == 0:
                for size in weights:
                    for _ in range(2 if is_sharded else 3):
                        self._new(4 * size / job.ranks)
            self._update(weights)
        return self.allocator.retries - before

    def _update(self, weights: list[int]) -> None:
        """Norms and foreach temporaries of the update: a few tensors of the largest shards."""
        temporaries = [self._new(4 * size / self.job.ranks) for size in weights[-3:]]
        self._drop(*temporaries)

    def _run_passes(self) -> None:
        """1F1B of one rank: as many forward passes as micro-batches are in flight, then in turn."""
        job = self.job
        alive: list[tuple[int, int]] = []
        for microbatch in range(job.microbatches):
            alive.append((microbatch, self._run_forward(microbatch)))
            if len(alive) == job.in_flight:
                self._run_backward(*alive.pop(0))
        for one in alive:
            self._run_backward(*one)

    def _run_forward(self, microbatch: int) -> int:
        stream = self._activation()
        ahead = self._gather()
        for layer in range(self.job.layers):
            gathered, ahead = ahead, self._gather() if layer + 1 < self.job.layers else []
            saved, output = self._run_layer()
            if self.job.recompute == "full":
                self._drop(*saved)
                saved = []
            self._saved[microbatch, layer] = [stream, *saved]
            stream = output
            self._drop(*gathered)
        return stream

    def _run_backward(self, microbatch: int, output: int) -> None:
        self._run_loss(output)
        gradient, ahead = self._activation(), self._gather()
        for layer in reversed(range(self.job.layers)):
            gathered, ahead = ahead, self._gather() if layer else []
            saved = self._saved.pop((microbatch, layer))
            if self.job.recompute == "full":
                again, copy = self._run_layer()
                self._drop(copy)
                saved = [*saved, *again]
            gradient = self._run_layer_backward(saved, gradient)
            self._drop(*gathered)
            self._scatter()
        self._drop(gradient)

    def _run_layer(self) -> tuple[list[int], int]:
        """Saved tensors of one layer in their order, and its output; what is not saved goes at once."""
        job, n = self.job, self.job.tokens
        rows = self._rows()
        inner = job.intermediate / max(job.experts, 1)
        saved = [self._activation()]
        whole = self._gathered_input()
        raw = self._new(2 * n * (job.hidden + 2 * job.key_value) / job.tp)
        self._drop(*whole)
        saved += [self._new(2 * n * width / job.tp) for width in (job.hidden, job.key_value, job.key_value)]
        self._drop(raw)
        saved += [self._new(2 * n * job.hidden / job.tp), self._new(4 * n * job.heads / job.tp)]
        projected = self._activation()
        saved.append(self._activation())
        self._drop(projected)
        saved.append(self._activation())
        whole = self._gathered_input()
        if job.experts:
            saved += [self._new(4 * n * 128), self._new(2 * rows * job.hidden)]
        saved += [self._new(4 * rows * inner / job.tp), self._new(2 * rows * inner / job.tp)]
        out = [self._new(2 * rows * job.hidden)] if job.experts else [self._activation()]
        self._drop(*whole)
        output = self._activation()
        self._drop(*out)
        return saved, output

    def _run_layer_backward(self, saved: list[int], gradient: int) -> int:
        """Saved tensors go in reverse, each after the gradient that took its place."""
        for tensor in reversed(saved):
            size = self.allocator.size_of(tensor)
            next_gradient = self._new(size)
            self._drop(tensor, gradient)
            gradient = next_gradient
        last = self._activation()
        self._drop(gradient)
        return last

    def _run_loss(self, output: int) -> None:
        job = self.job
        logits = job.tokens * job.vocabulary / job.tp
        given = self._new(2 * logits)
        if job.sharded != "none":
            full = [self._new(4 * logits)]
            full.append(self._new(4 * logits))
            self._drop(full.pop(0))
            full += [self._new(4 * logits), self._new(4 * logits)]
            self._drop(*full)
        self._drop(given, output)

    def _rows(self) -> float:
        job = self.job
        rows = job.tokens * max(job.experts, 1)
        return rows * max(self.random.gauss(1, job.imbalance), 0.2) if job.experts else rows

    def _activation(self) -> int:
        return self._new(2 * self.job.tokens * self.job.hidden / self.job.tp)

    def _gathered_input(self) -> list[int]:
        """The whole sequence, gathered for a matmul of tensor-parallel ranks."""
        return [self._new(2 * self.job.tokens * self.job.hidden)] if self.job.tp > 1 else []

    def _gather(self) -> list[int]:
        """Gather weights into a buffer on a stream of its own; FSDP2 copies weights out of it."""
        if self.job.sharded == "none":
            return []
        buffer = self._new(2 * sum(self.job.matrices), stream="gather")
        if self.job.sharded == "flat":
            return [buffer]
        weights = [self._new(2 * one) for one in self.job.matrices]
        self._drop(buffer)
        return weights

    def _scatter(self) -> None:
        """Whole gradients, what is reduced of them in FP32, and the shard that stays for the optimizer."""
        if self.job.sharded == "none":
            return
        size = sum(self.job.matrices)
        whole = (
            [self._new(2 * size)] if self.job.sharded == "flat" else [self._new(2 * one) for one in self.job.matrices]
        )
        reduced = self._new(4 * size)
        shard = self._new(4 * size / self.job.ranks, stream="scatter")
        self._drop(*whole, reduced, shard)

    def _new(self, nbytes: float, *, stream: str = "compute") -> int:
        self._numbers += 1
        self.allocator.allocate(self._numbers, nbytes, stream=stream)
        return self._numbers

    def _drop(self, *tensors: int) -> None:
        for tensor in tensors:
            self.allocator.free(tensor)


LLAMA_70B = Job(name="70B", hidden=8192, intermediate=28672, heads=64, layers=10)

EXPERTS = Job(
    name="experts", hidden=4096, intermediate=8 * 1536, key_value=512, heads=64, experts=8, layers=8, in_flight=2
)

BASES = (
    Job(name="8B, tp 1", layers=16),
    Job(name="8B, tp 2, pp 4", layers=8, tp=2, in_flight=4, microbatches=8),
    replace(LLAMA_70B, name="70B, tp 4, pp 4", tp=4, in_flight=4, microbatches=8),
    replace(LLAMA_70B, name="70B, tp 8, pp 8", tp=8, in_flight=8, microbatches=12),
    Job(name="8B, FSDP2", sharded="tensors", ranks=64),
    Job(name="8B, FSDP", sharded="flat", ranks=64),
    replace(LLAMA_70B, name="70B, FSDP2, tp 8", layers=40, tp=8, sharded="tensors", ranks=32),
    replace(EXPERTS, name="experts, balanced"),
    replace(EXPERTS, name="experts, dropless", imbalance=0.1),
)
"""Dense models and experts, replicated and sharded."""


def jobs() -> Iterator[Job]:
    """Each with two sizes of micro-batches, with and without recomputation."""
    for tokens in (4096, 8192):
        for recompute in RECOMPUTES:
            for base in BASES:
                name = f"{base.name}, {tokens} tokens, recompute {recompute}"
                yield replace(base, name=name, tokens=tokens, recompute=recompute)
