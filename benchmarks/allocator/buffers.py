"""Memory that no tensor of a step has: communicators, token dispatchers and CUDA graphs, from their sizes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MIB = 2**20

CONTEXT_BYTES = 0.6e9
"""A CUDA context with the kernels of PyTorch and its libraries (assumption: 0.5 to 0.8 GB on Hopper)."""

PROTOCOL_BYTES = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
"""
Of one NCCL connection: Simple, ``NCCL_BUFFSIZE``; LL128, 120 elements of 8 bytes for 640 threads in 8 steps; LL, 8
lines of 16 bytes for 512 threads in 8 steps (NCCL, ``src/include/device.h``, ``src/init.cc``, recalled).
"""

CHANNELS = 24
"""Of a communicator between GPUs with NVLink 4 (recalled; 16 to 32)."""

CHUNK_TOKENS = 256
"""``num_max_nvl_chunked_recv_tokens`` of DeepEP's configurations (``deep_ep/buffer.py``, recalled); RDMA has half."""

DISPATCH_CHANNELS = 10
"""DeepEP: half of 20 processors."""

PEERS = 8
"""``NUM_MAX_NVL_PEERS`` of DeepEP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """
    What buffers depend on.

    Parameters
    ----------
    name
        What it stands for.
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
    """What each layout's buffers take, in GB, beside what devices of the catalog keep for all of them."""
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
