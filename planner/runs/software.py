"""What each framework does where a row is silent: one table."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.strategy import Recompute, Sharding

NEVER = "never"
"""A date behind every other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """
    Defaults of one framework, for the empty cells of its rows.

    Parameters
    ----------
    starts
        How the names of the framework begin in the column ``framework``.
    why
        Where the defaults come from.
    sequence_parallel
        Whether tensor-parallel ranks split norms and residuals too.
    sharding
        What data-parallel ranks share.
    overlaps
        Which communication runs behind computation, in the words of the column ``overlaps``.
    recompute
        What is computed again.
    fused_since
        Date from which on the attention core of its rows is one kernel; ``NEVER``: of none.
    ring_overlaps
        Whether the context-parallel exchange runs behind the attention core.
    dtype
        Of rows that do not state theirs.
    gradient_bytes
        Of the accumulated and reduced gradients.
    weight_bytes, optimizer_bytes
        Where they differ from Megatron-LM's mixed precision; None: as the catalog's recipe has them.
    """

    starts: tuple[str, ...]
    why: str
    sequence_parallel: bool = False
    sharding: Sharding = Sharding.NONE
    overlaps: tuple[str, ...] = ()
    recompute: Recompute = Recompute.NONE
    fused_since: str = ""
    ring_overlaps: bool = True
    dtype: str = "bf16"
    gradient_bytes: float = 4.0
    weight_bytes: float | None = None
    optimizer_bytes: float | None = None


SOFTWARE: tuple[Software, ...] = (
    Software(
        starts=("NeMo (Megatron-Core)", "NeMo 1", "NeMo 2", "Megatron-Bridge", "Megatron-Core", "MCore"),
        why=(
            "performance recipes of NeMo and Megatron-Bridge: sequence_parallel with tp, distributed optimizer with "
            "overlap_grad_reduce and overlap_param_gather, tp_comm_overlap, overlap_p2p_comm when interleaved, "
            "grad_reduce_in_fp32 = False"
        ),
        sequence_parallel=True,
        sharding=Sharding.OPTIMIZER,
        overlaps=("tp", "dp_grad", "dp_param", "pp"),
        gradient_bytes=2.0,
    ),
    Software(
        starts=("NeMo AutoModel", "torchtitan"),
        why="FSDP2: FP32 shards of weights, gradients and two moments, gathered in 16 bits, next layer prefetched",
        sharding=Sharding.WEIGHTS,
        overlaps=("fsdp_prefetch",),
        weight_bytes=4.0,
        optimizer_bytes=8.0,
    ),
    Software(
        starts=("Composer",),
        why="llm-foundry: FSDP FULL_SHARD, FP32 shards, backward prefetch; Flash or Triton attention",
        sharding=Sharding.WEIGHTS,
        overlaps=("fsdp_prefetch",),
        weight_bytes=4.0,
        optimizer_bytes=8.0,
    ),
    Software(
        starts=("InternEvo",),
        why="its configs: ZeRO-1 (fp32 masters), overlap_sync_grad, FlashAttention, plain tensor parallelism (mtp)",
        sharding=Sharding.OPTIMIZER,
        overlaps=("dp_grad",),
        gradient_bytes=2.0,
    ),
    Software(
        starts=("Megatron-DeepSpeed", "Megatron+DeepSpeed", "GPT-NeoX"),
        why="software of 2021-22: unfused attention, no sequence parallelism, nothing overlapped, FP16 gradients",
        fused_since=NEVER,
        dtype="fp16",
        gradient_bytes=2.0,
    ),
    Software(
        starts=("Megatron-LM fork (sail-sg)",),
        why=(
            "Megatron-LM's defaults, pipelines only; Zero Bubble (2023) keeps 5 b a s^2 bytes of scores per layer, as "
            "its memory shows, Vocabulary Parallelism (2024) does not; FP16 gradients: memory grows by "
            "16 bytes per parameter of the first rank's vocabulary"
        ),
        fused_since="2024",
        dtype="fp16",
        gradient_bytes=2.0,
    ),
    Software(
        starts=("Megatron-LM 0.14",),
        why="SimuMax's launcher: Transformer Engine's attention, FP32 gradients, CP by all-to-all, nothing overlapped",
        sequence_parallel=True,
        sharding=Sharding.OPTIMIZER,
        ring_overlaps=False,
    ),
    Software(
        starts=("PaddleNLP",),
        why="its configs: sharding stage in the row, FlashAttention",
        gradient_bytes=4.0,
    ),
    Software(
        starts=("Megatron-LM",),
        why="Megatron-LM's defaults before FlashAttention (Korthikanti et al., arXiv 2205.05198)",
        fused_since=NEVER,
    ),
)
"""First match wins, so that longer names stand in front of shorter ones."""

UNKNOWN = Software(starts=(), why="a framework without an entry: Megatron-Core's defaults without overlaps")


def software_of(framework: str) -> Software:
    """The defaults of the framework of a row."""
    return next((software for software in SOFTWARE if framework.startswith(software.starts)), UNKNOWN)
