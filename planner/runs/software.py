"""What each framework does where a row is silent: one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from costmodel.spec import Retention
from costmodel.strategy import Recompute, Sharding
from planner.runs.stages import filled_stages, module_stages
from planner.runs.table import Run

CUBLAS_WORKSPACE_BYTES = 32 * 2.0**20
"""Of one cuBLAS handle since Hopper (PyTorch ``CUDABlas.cpp``; Transformer Engine ``get_cublas_workspace_size``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """
    Defaults of one framework, for the empty cells of its rows.

    Parameters
    ----------
    starts
        How the names of the framework begin in the column ``framework``.
    noted
        What the notes of its rows say besides; empty: anything.
    why
        Where the defaults come from.
    until
        Date before which rows are of this entry; empty: all.
    sequence_parallel
        Whether tensor-parallel ranks split norms and residuals too.
    sharding
        What data-parallel ranks share.
    overlaps
        Which communication runs behind computation, in the words of the column ``overlaps``.
    plain_tp_dtypes
        Recipes that do not overlap tensor-parallel communication all the same.
    recompute
        What is computed again.
    recompute_of_need
        What it recomputes of a model without experts where a row is silent and nothing recomputed would not fit; None:
        not known.
    stack
        Its kernels: an entry of the catalog's software.
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
    unties_embeddings
        Whether heads are weights of their own, whatever the architecture's default.
    trains_mtp
        Whether it builds the multi-token prediction that an architecture has.
    holds_narrow_weights
        Whether 8-bit recipes hold weights only as their narrow copies, and gather those.
    stages
        Layers of each of so many stages, as it deals so many layers; None, itself or what it gives: as
        :func:`costmodel.stages.layers_per_chunk`.
    retention
        What it keeps in device memory for the backward pass.
    """

    starts: tuple[str, ...]
    why: str
    noted: str = ""
    until: str = ""
    sequence_parallel: bool = False
    sharding: Sharding = Sharding.NONE
    overlaps: tuple[str, ...] = ()
    plain_tp_dtypes: tuple[str, ...] = ()
    recompute: Recompute = Recompute.NONE
    recompute_of_need: Recompute | None = None
    stack: str = "nemo"
    ring_overlaps: bool = True
    dtype: str = "bf16"
    gradient_bytes: float = 4.0
    network: str = ""
    weight_bytes: float | None = None
    optimizer_bytes: float | None = None
    unties_embeddings: bool = False
    trains_mtp: bool = True
    holds_narrow_weights: bool = False
    stages: Callable[[int, int], tuple[int, ...] | None] | None = None
    retention: Retention = field(default_factory=Retention)


FRAGMENTATION = 0.049
"""Reserved over allocated memory of SimuMax's 21 runs on B200 (its notes), in the mean; 0.03 to 0.09."""

TRANSFORMER_ENGINE = Retention(
    fragmentation=FRAGMENTATION,
    logit_bytes=2.0,
    expert_output=False,
    weight_gradient_bytes=2.0,
    workspace_bytes=2 * CUBLAS_WORKSPACE_BYTES,
    follows_the_backward_pass=True,
)
"""
Megatron-Core on Transformer Engine.

Its cross-entropy writes the gradient over the 16-bit logits (TE 2.11, ``cross_entropy.py``; recipes choose
``cross_entropy_fusion_impl=te``); router scores weight the activation (MCore 0.14, ``WeightedSwiGLUFunction``); after
the fused accumulation a gradient of each weight's shape is handed on and never freed (TE, ``get_dummy_wgrad``); both
PyTorch and TE take a workspace.
"""

EAGER_LOSS = 12.0
"""
Bytes per logit of PyTorch's cross-entropy on fp32 logits, in its backward pass: the saved log-probabilities, the
gradient with respect to them, the gradient with respect to the logits.
"""

FUSED_LOSS = 4.0
"""Of flash-attention's cross-entropy, llm-foundry's default on GPUs: 16-bit logits and their gradient."""

EAGER_LOSS_RETENTION = Retention(
    fragmentation=FRAGMENTATION,
    logit_bytes=EAGER_LOSS,
    workspace_bytes=CUBLAS_WORKSPACE_BYTES,
    follows_the_backward_pass=True,
)

MEGATRON_LOSS = 6.0
"""Of Megatron-LM's: 16-bit logits and the fp32 copy, in which all happens (``vocab_parallel_cross_entropy``)."""

OLD_MEGATRON_LOSS = 10.0
"""Before 2023 it took the exponentials into one more fp32 tensor."""

UNFUSED = Retention(
    attention_score_bytes=5.0, dropout_mask_bytes=1.0, logit_bytes=MEGATRON_LOSS, follows_the_backward_pass=True
)
"""Softmax and dropout in 16 bits as kernels of their own, dropout on (Korthikanti et al., arXiv 2205.05198, eq. 1)."""

DEEPSPEED = replace(UNFUSED, logit_bytes=OLD_MEGATRON_LOSS, workspace_bytes=2e9, fragmentation=0.14)
"""
Two buckets of 5e8 16-bit gradients (DeepSpeed, ``reduce_bucket_size``).

Fragmentation of PyTorch's allocator of 2021-22: fitted once to the growth of BLOOM's memory with the micro-batch.
"""

NEMO = Software(
    stack="nemo",
    starts=("NeMo (Megatron-Core)", "NeMo 1", "NeMo 2", "NeMo Framework", "Megatron-Bridge", "Megatron-Core", "MCore"),
    why=(
        "performance recipes of NeMo and Megatron-Bridge: sequence_parallel with tp, distributed optimizer with "
        "overlap_grad_reduce and overlap_param_gather, tp_comm_overlap (Megatron-Bridge's Llama recipes, recalled: "
        "False if precision is nvfp4), overlap_p2p_comm when interleaved, grad_reduce_in_fp32 = False"
    ),
    sequence_parallel=True,
    sharding=Sharding.OPTIMIZER,
    overlaps=("tp", "dp_grad", "dp_param", "pp"),
    plain_tp_dtypes=("nvfp4",),
    gradient_bytes=2.0,
    holds_narrow_weights=True,
    stages=filled_stages,
    retention=TRANSFORMER_ENGINE,
)

MEGATRON_CORE = replace(
    NEMO,
    starts=("Megatron-LM",),
    why=(
        "Megatron-LM on Megatron-Core and Transformer Engine, with everything that its README measures with "
        "(--tp-comm-overlap, --overlap-grad-reduce, --overlap-param-gather, recalled); gradients in FP32, its default"
    ),
    gradient_bytes=4.0,
    holds_narrow_weights=False,
    stages=None,
)

TORCHTITAN = Software(
    stack="torchtitan",
    starts=("torchtitan",),
    why="FSDP2: FP32 shards of weights, gradients and two moments, gathered in 16 bits, next layer prefetched",
    sharding=Sharding.WEIGHTS,
    overlaps=("fsdp_prefetch",),
    weight_bytes=4.0,
    optimizer_bytes=8.0,
    retention=EAGER_LOSS_RETENTION,
)

VOCABULARY_PARALLELISM = Software(
    stack="zero-bubble",
    starts=("Megatron-LM fork (sail-sg)",),
    why=(
        "as before, with FlashAttention; its memory grows by 16 bytes per parameter of the vocabulary: FP16, whose "
        "gradients Megatron-LM accumulates in 16 bits"
    ),
    dtype="fp16",
    gradient_bytes=2.0,
    retention=UNFUSED,
)

OLD_DEEPSPEED = Software(
    stack="gpt-neox",
    starts=("Megatron+DeepSpeed",),
    why="software of 2021-22: unfused attention, no sequence parallelism, nothing overlapped, FP16 gradients",
    dtype="fp16",
    gradient_bytes=2.0,
    retention=DEEPSPEED,
)

SOFTWARE: tuple[Software, ...] = (
    replace(NEMO, stack="nemo-2024", until="2024-10"),
    replace(NEMO, stack="nemo-2025", until="2026-03"),
    NEMO,
    TORCHTITAN,
    replace(
        TORCHTITAN,
        stack="automodel",
        starts=("NeMo AutoModel",),
        why=(
            f"{TORCHTITAN.why}; no multi-token prediction: the TFLOP/s printed for Nemotron 3 Super are those of its "
            "88 layers alone; activation_checkpointing wraps attention, feed-forward and norms of every layer or of "
            "none (components/distributed/parallelizer.py; models with experts have a parallelizer of their own)"
        ),
        recompute_of_need=Recompute.FULL,
        trains_mtp=False,
    ),
    replace(
        TORCHTITAN,
        stack="llm-foundry",
        starts=("Composer",),
        why="llm-foundry: FSDP FULL_SHARD, FP32 shards, backward prefetch; Flash or Triton attention",
        retention=replace(EAGER_LOSS_RETENTION, logit_bytes=FUSED_LOSS),
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
        stack="bigscience-2021",
        starts=("Megatron-DeepSpeed", "Megatron+DeepSpeed"),
        until="2022",
        why=(
            "BigScience's first scripts, as below, with ZERO_STAGE=1: the 21 GB of unsharded states would not have fit "
            "the 16 GB devices that ran them"
        ),
        sharding=Sharding.OPTIMIZER,
        dtype="fp16",
        gradient_bytes=2.0,
        retention=DEEPSPEED,
    ),
    Software(
        stack="bigscience",
        starts=("Megatron-DeepSpeed",),
        until="2023",
        why=(
            "BLOOM's: unfused attention, no sequence parallelism, nothing overlapped, FP16 gradients, no dropout (its "
            "config.json); of rows that are silent on the network: Jean Zay's (BLOOM, arXiv 2211.05100, section "
            "3.2; its model card: NVLink without a switch)"
        ),
        dtype="fp16",
        gradient_bytes=2.0,
        network="4x Omni-Path 100Gb per node, NVLink 4 inter-gpu connects",
        retention=replace(DEEPSPEED, attention_score_bytes=2.0, dropout_mask_bytes=0.0),
    ),
    Software(
        stack="megatron-deepspeed",
        starts=("Megatron-DeepSpeed",),
        why="vTrain's: unfused attention, no sequence parallelism, nothing overlapped, FP16 gradients",
        dtype="fp16",
        gradient_bytes=2.0,
        retention=replace(DEEPSPEED, attention_score_bytes=2.0, dropout_mask_bytes=0.0),
    ),
    OLD_DEEPSPEED,
    replace(OLD_DEEPSPEED, starts=("GPT-NeoX",), stages=module_stages),
    Software(
        stack="megatron-lm-2023",
        starts=("Megatron-LM fork (sail-sg)",),
        until="2024",
        why=(
            "Megatron-LM of 2023, its defaults, pipelines only; Zero Bubble keeps 5 b a s^2 bytes of scores per layer "
            "and 18 bytes per parameter, as its memory shows; embeddings untied, as the notes of the fork's later runs "
            "say (Vocabulary Parallelism)"
        ),
        unties_embeddings=True,
        retention=UNFUSED,
    ),
    replace(
        VOCABULARY_PARALLELISM,
        stack="v-half",
        noted="schedule V-Half",
        why=(
            f"{VOCABULARY_PARALLELISM.why}. Its V-Half is another code (recalled: Qi et al.'s fork, arXiv 2405.15362, "
            "where chunks form a V), which the constants of other A100 software predict "
            "(benchmarks/measured_runs/README.md)"
        ),
    ),
    VOCABULARY_PARALLELISM,
    Software(
        stack="megatron-lm-0.14",
        starts=("Megatron-LM 0.14",),
        why="SimuMax's launcher: Transformer Engine's attention, FP32 gradients, CP by all-to-all, nothing overlapped",
        sequence_parallel=True,
        sharding=Sharding.OPTIMIZER,
        ring_overlaps=False,
        retention=replace(TRANSFORMER_ENGINE, context_output=True),
    ),
    Software(
        stack="paddlenlp",
        starts=("PaddleNLP",),
        why="its configs: sharding stage in the row, FlashAttention, no fused norms and activations",
        gradient_bytes=4.0,
        retention=Retention(logit_bytes=EAGER_LOSS, eager=True, follows_the_backward_pass=True),
    ),
    Software(
        stack="bigscience-2021",
        starts=("Megatron-LM",),
        until="2022",
        why=(
            "Megatron-LM's defaults before its matmuls summed gradients beside others (core/tensor_parallel/layers.py, "
            "early 2022)"
        ),
        retention=replace(UNFUSED, logit_bytes=OLD_MEGATRON_LOSS),
    ),
    Software(
        stack="megatron-lm-2022",
        starts=("Megatron-LM",),
        until="2023-07",
        why="Megatron-LM's defaults before FlashAttention (Korthikanti et al., arXiv 2205.05198)",
        retention=replace(UNFUSED, logit_bytes=OLD_MEGATRON_LOSS),
    ),
    replace(MEGATRON_CORE, stack="nemo-2024", until="2024-10"),
    replace(MEGATRON_CORE, stack="nemo-2025", until="2026-03"),
    MEGATRON_CORE,
)
"""First match wins, so that longer names stand in front of shorter ones."""

UNKNOWN = Software(starts=(), why="a framework without an entry: Megatron-Core's defaults without overlaps")


def software_of(run: Run) -> Software:
    """The defaults of a row's framework at its date, by its notes where two codes share a name."""
    framework = run.framework.lower()
    named = (
        one
        for one in SOFTWARE
        if framework.startswith(tuple(start.lower() for start in one.starts)) and one.noted in run.notes
    )
    return next((software for software in named if not software.until or "" < run.date < software.until), UNKNOWN)
