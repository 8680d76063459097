"""What each framework does where a row is silent: one table."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.strategy import Recompute, Sharding


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
    stack
        Its kernels: an entry of the catalog's software.
    older
        A date, and the stack of rows before it.
    ring_overlaps
        Whether the context-parallel exchange runs behind the attention core.
    dtype
        Of rows that do not state theirs.
    gradient_bytes
        Of the accumulated and reduced gradients.
    network
        What its runs say of the network between nodes, for rows that are silent.
    weight_bytes, optimizer_bytes
        Where they differ from Megatron-LM's mixed precision; None: as the catalog's recipe has them.
    trains_mtp
        Whether it builds the multi-token prediction that an architecture has.
    """

    starts: tuple[str, ...]
    why: str
    sequence_parallel: bool = False
    sharding: Sharding = Sharding.NONE
    overlaps: tuple[str, ...] = ()
    recompute: Recompute = Recompute.NONE
    stack: str = "nemo"
    older: tuple[str, str] | None = None
    ring_overlaps: bool = True
    dtype: str = "bf16"
    gradient_bytes: float = 4.0
    network: str = ""
    weight_bytes: float | None = None
    optimizer_bytes: float | None = None
    trains_mtp: bool = True


SOFTWARE: tuple[Software, ...] = (
    Software(
        stack="nemo",
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
        stack="fsdp2",
        starts=("NeMo AutoModel", "torchtitan"),
        why=(
            "FSDP2: FP32 shards of weights, gradients and two moments, gathered in 16 bits, next layer prefetched; no "
            "multi-token prediction: the TFLOP/s printed for Nemotron 3 Super are those of its 88 layers alone"
        ),
        sharding=Sharding.WEIGHTS,
        overlaps=("fsdp_prefetch",),
        weight_bytes=4.0,
        optimizer_bytes=8.0,
        trains_mtp=False,
    ),
    Software(
        stack="llm-foundry",
        starts=("Composer",),
        why="llm-foundry: FSDP FULL_SHARD, FP32 shards, backward prefetch; Flash or Triton attention",
        sharding=Sharding.WEIGHTS,
        overlaps=("fsdp_prefetch",),
        weight_bytes=4.0,
        optimizer_bytes=8.0,
    ),
    Software(
        stack="internevo",
        starts=("InternEvo",),
        why=(
            "its configs: ZeRO-1 (fp32 masters) within groups of 8, overlap_sync_grad, FlashAttention, plain tensor "
            "parallelism (mtp); hybrid_zero_optim.py: gradients all-reduced, updated tensors broadcast; one cluster"
        ),
        sharding=Sharding.OPTIMIZER,
        overlaps=("dp_grad",),
        gradient_bytes=2.0,
        network="4x100Gb RoCE per node",
    ),
    Software(
        stack="megatron-deepspeed",
        starts=("Megatron-DeepSpeed",),
        why=(
            "BLOOM's and vTrain's: unfused attention, no sequence parallelism, nothing overlapped, FP16 gradients; of "
            "rows that are silent on the network: Jean Zay's (BLOOM, arXiv 2211.05100, section 3.2)"
        ),
        dtype="fp16",
        gradient_bytes=2.0,
        network="4x Omni-Path 100Gb per node",
    ),
    Software(
        stack="megatron-deepspeed",
        starts=("Megatron+DeepSpeed", "GPT-NeoX"),
        why="software of 2021-22: unfused attention, no sequence parallelism, nothing overlapped, FP16 gradients",
        dtype="fp16",
        gradient_bytes=2.0,
    ),
    Software(
        stack="zero-bubble",
        starts=("Megatron-LM fork (sail-sg)",),
        why=(
            "Megatron-LM's defaults, pipelines only; Zero Bubble (2023) keeps 5 b a s^2 bytes of scores per layer, as "
            "its memory shows, Vocabulary Parallelism (2024) does not"
        ),
        older=("2024", "megatron-lm-2022"),
    ),
    Software(
        stack="megatron-lm-0.14",
        starts=("Megatron-LM 0.14",),
        why="SimuMax's launcher: Transformer Engine's attention, FP32 gradients, CP by all-to-all, nothing overlapped",
        sequence_parallel=True,
        sharding=Sharding.OPTIMIZER,
        ring_overlaps=False,
    ),
    Software(
        stack="paddlenlp",
        starts=("PaddleNLP",),
        why="its configs: sharding stage in the row, FlashAttention",
        gradient_bytes=4.0,
    ),
    Software(
        stack="megatron-lm-2022",
        starts=("Megatron-LM",),
        why="Megatron-LM's defaults before FlashAttention (Korthikanti et al., arXiv 2205.05198)",
    ),
)
"""First match wins, so that longer names stand in front of shorter ones."""

UNKNOWN = Software(starts=(), why="a framework without an entry: Megatron-Core's defaults without overlaps")


def software_of(framework: str) -> Software:
    """The defaults of the framework of a row."""
    return next((software for software in SOFTWARE if framework.startswith(software.starts)), UNKNOWN)


def stack_of(framework: str, date: str) -> str:
    """The entry of the catalog's software with which a row ran."""
    software = software_of(framework)
    if software.older is not None and date < software.older[0]:
        return software.older[1]
    return software.stack
