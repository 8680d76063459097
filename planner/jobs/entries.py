"""
Sections of a job file as its author writes them, before names are looked up.

Numbers may be texts with units (:mod:`costmodel.quantities`): ``15T`` tokens, ``80GiB``, ``400Gbit/s``, ``5min``.

``planner.jobs.problem`` turns them into facts. ``planner.schema`` turns them into the JSON Schema for editors. The
``Parameters`` sections below are the descriptions in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_type_hints

from pydantic import BeforeValidator, Field

from costmodel.facts.device import Network, Sites
from costmodel.facts.fields import (
    Bandwidth,
    Bytes,
    Count,
    CountOrZero,
    Flag,
    NotNegative,
    Positive,
    PositiveFraction,
    Seconds,
)
from costmodel.facts.framework import Settings
from costmodel.facts.reliability import Costs, RecoveryLevel
from costmodel.quantities import COUNT, GIBIBYTES, SECONDS, SEQUENCE, Kind
from costmodel.record import strict_record
from costmodel.validation import Called

LEAST_KEPT = 2
"""Least number of checkpoints to keep: one, and another in case that one cannot be read."""

LLAMA_3_FAILURES_PER_NODE_DAY = 419 / 54 / 2048
"""419 unexpected interruptions in 54 days on 2,048 nodes; The Llama 3 Herd of Models, arXiv 2407.21783, 3.3.4."""

EVALUATION_INTERVAL_STEPS, EVALUATION_STEPS = 1000, 100
"""Defaults of ``--eval-interval`` and ``--eval-iters``: Megatron-LM, megatron/training/arguments.py."""

MOFA_RECOVERY = (
    RecoveryLevel(name="process", probability=0.3, seconds=141),
    RecoveryLevel(name="pod", probability=0.6, seconds=262),
    RecoveryLevel(name="job", probability=0.1, seconds=307),
)
"""Recovery on thousands of GPUs, mean 230.2 s: MoFa, arXiv 2511.09837, section 3.4 and equation (41)."""


def _empty_if_null(value: object) -> object:
    """Replace null by an empty section: YAML reads a section whose entries are all commented out as null."""
    return {} if value is None else value


Reference: TypeAlias = Annotated[str, Called("a name or a file")] | dict[str, Any]
Number: TypeAlias = Annotated[Count, COUNT]
NumberOrZero: TypeAlias = Annotated[CountOrZero, COUNT]
SequenceLength: TypeAlias = Annotated[Count, SEQUENCE]
Lengths: TypeAlias = str | dict[str, Any]
Tokens: TypeAlias = Annotated[Positive, Field(ge=1), COUNT]
Gibibytes: TypeAlias = Annotated[Positive, Field(le=1e6), GIBIBYTES]
Entries: TypeAlias = Annotated[dict[str, Any], BeforeValidator(_empty_if_null)]


@strict_record(frozen=True, kw_only=True, slots=True)
class ClusterSection:
    """
    The cluster that the job runs on.

    Parameters
    ----------
    device
        Name in the device catalog (``planner catalog devices``), or an alias (``planner catalog aliases``). Or the path
        of a YAML file relative to the job file, such as one that ``planner calibrate`` writes. Or the device itself: it
        may start from a catalog entry with ``base: h100-80gb-sxm`` and give only the differences.
    num_devices
        Devices that the job gets.
    spare_nodes
        Whole nodes of these devices that are kept as spares. Plans do not use them.
    devices_per_node
        Devices that share a host; instead of the device's own.
    networks
        Levels of interconnect from the innermost outwards; instead of the device's own.
    scale_up_size
        Devices of one scale-up domain; instead of the device's own.
    memory_gib
        Memory of one device in GiB; instead of the device's own.
    host_memory_gib
        Host memory per device in GiB; instead of the device's own.
    scale_up_bandwidth, internode_bandwidth
        Nominal bytes per second that one device can send in one direction, inside its scale-up domain and beyond;
        instead of the device's own. The achieved share comes from the calibration.
    sites
        Several data centres that hold equal shares of the devices: ``{count: 4, bandwidth: 100Gbit/s}``, with the
        bandwidth of a whole site, and ``latency``. ``local_steps`` above 1 synchronizes weights that seldom (DiLoCo),
        ``sent_bytes`` per parameter, in ``streams`` overlapped with computation; quality is not modelled.
    framework
        Name of a release of a training framework (``planner catalog frameworks``), or a changed release with ``base``.
        Default: the newest release for the device, of ``search.target`` or else of Megatron-LM's recipes.
    """

    device: Reference
    num_devices: Number
    spare_nodes: NumberOrZero = 0
    devices_per_node: Number | None = None
    networks: Annotated[tuple[Network, ...], Field(min_length=1, max_length=16)] | None = None
    scale_up_size: Number | None = None
    memory_gib: Gibibytes | None = None
    host_memory_gib: Gibibytes | None = None
    scale_up_bandwidth: Bandwidth | None = None
    internode_bandwidth: Bandwidth | None = None
    sites: Sites | None = None
    framework: Reference | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class TrainingSection:
    """
    The training: batch, sequence, tokens and precision.

    Parameters
    ----------
    global_batch_size
        Sequences per optimizer step; ``1k`` is 1,000.
    sequence_length
        Tokens per sequence; k and M are binary: ``8k`` is 8,192.
    sequence_lengths
        Lengths of the sequences that are packed into samples of ``sequence_length`` tokens, with their numbers or
        shares: ``{4k: 70, 32k: 30}``. Or the path of a file, relative to the job file, with a length, or a length and
        its count (``4096,70``), per line. Attention is then costed within sequences, and ranks wait for longer ones.
        Default: each sample is one sequence.
    max_seqlen_per_dp_cp_rank
        Most tokens of a packed sequence on one rank with dynamic context parallelism (Megatron-LM:
        ``--hybrid-context-parallel``). Each sequence is split over as many ranks of dp and cp as it needs. Default: all
        sequences are split over the cp ranks.
    tokens
        Tokens of the whole training, such as ``15T`` or ``15e12``.
    evaluation_interval_steps
        Steps from one evaluation to the next, ``--eval-interval`` of Megatron-LM. Without it and ``evaluation_steps``
        no evaluation is counted. Default if the other one is given: 1,000, as there.
    evaluation_steps
        Forward passes of a whole batch in each evaluation, ``--eval-iters`` of Megatron-LM. Default: 100, as there.
    data_loading_seconds
        Seconds of each step in which devices wait for data.
    precision
        Name of a recipe (``planner catalog precisions``), or the bytes per element themselves. An inline recipe may
        start from a known one with ``base: bf16``. Default: the precision of the framework's recipes, else bf16.
    """

    global_batch_size: Number
    sequence_length: SequenceLength
    tokens: Tokens
    sequence_lengths: Lengths | None = None
    max_seqlen_per_dp_cp_rank: SequenceLength | None = None
    evaluation_interval_steps: Number | None = None
    evaluation_steps: Number | None = None
    data_loading_seconds: Seconds = 0.0
    precision: Reference | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class ReliabilitySection:
    """
    Failure rate of the job, and the costs of recovery and checkpoints.

    Parameters
    ----------
    failures_per_node_day
        Mean failures of one node in a day. Default: 419 failures in 54 days on 2,048 nodes (Llama 3,
        arXiv 2407.21783, section 3.3.4).
    recovery
        Ways to recover, whose probabilities sum to 1; their mean is the time to repair. Default: MoFa's
        process, pod and job level (arXiv 2511.09837, section 3.4), 230.2 s in the mean.
    mttr_seconds
        Mean time from a failure to training again; instead of ``recovery``.
    checkpoint_seconds
        Training time lost per checkpoint. Default: computed from weights, optimizer states and the bandwidths.
    device_to_host_bandwidth, disk_write_bandwidth
        Bytes per second and device with which a checkpoint is copied to the host and written to storage; instead of
        the device's own.
    asynchronous_checkpoints
        True where training waits only for the copy to the host.
    storage_bandwidth
        Bytes per second with which all devices together write checkpoints to storage. Default: computed from
        disk_write_bandwidth, else each GPU's share of Llama 3's storage, 122 MB/s (arXiv 2407.21783, section 3.3.1).
        The default is at least the bandwidth with which one node writes to its own disks.
    storage_capacity
        Bytes of checkpoints that storage holds.
    keep_checkpoints
        Number of newest checkpoints to keep. Default: 3, or 2 where storage holds no more.
    max_write_fraction
        Largest share of the time in which checkpoints are written. It bounds the interval from below.
    init_seconds
        From the start of the job to its first step.
    """

    failures_per_node_day: NotNegative = LLAMA_3_FAILURES_PER_NODE_DAY
    recovery: Annotated[tuple[RecoveryLevel, ...], Field(min_length=1, max_length=100)] | None = None
    mttr_seconds: Seconds | None = None
    checkpoint_seconds: Seconds | None = None
    device_to_host_bandwidth: Bandwidth | None = None
    disk_write_bandwidth: Bandwidth | None = None
    asynchronous_checkpoints: Flag | None = None
    storage_bandwidth: Bandwidth | None = None
    storage_capacity: Bytes | None = None
    keep_checkpoints: Annotated[Number, Field(ge=LEAST_KEPT, le=1000)] | None = None
    max_write_fraction: PositiveFraction = 0.05
    init_seconds: Seconds = 0.0


@strict_record(frozen=True, kw_only=True, slots=True)
class SearchSection:
    """
    Search space of the planner; decisions are tp, cp, pp, dp, ep, etp, vpp, mbs, recompute, sharding ...

    Parameters
    ----------
    pin
        One value per decision, such as ``{tp: 8, recompute: none}``, or a line such as ``TP8 recompute=none``. A line
        that a report prints pins that one strategy.
    allow
        Allowed values of a decision, such as ``{pp: [4, 8]}``.
    forbid
        Forbidden combinations, such as ``[{recompute: full, pp: 8}]`` or ``[{recompute: full, pp: ">= 16"}]``.
    limits
        Bounds that must hold, such as ``["tp <= 4", "tp * cp <= 16", "num_microbatches >= 16", "recompute != full"]``.
    candidates
        Path of a CSV file with a header of decisions, or of a YAML list of mappings, relative to the job file. Only
        these strategies are considered. The planner chooses the decisions that a row does not give. A row with a
        ``layout`` is a whole strategy, completed as ``planner estimate`` completes it.
    max_devices
        Largest number of devices of a plan; plans may use any number up to it. Default: plans use all devices, or leave
        whole nodes idle where that is faster.
    idle_devices
        True where whole nodes may stay idle if that is faster than all plans that use every device. It has no effect on
        jobs with ``max_devices``, or with ``candidates`` without a ``layout``.
    max_bubble_fraction
        Largest share of the step that the slowest pipeline rank may wait for others, such as 0.1.
    memory_headroom_gib
        Device memory to leave free, in GiB. Default: enough for a chance of 95 % to fit, by the errors of predicted
        peaks. With unsharded weights also enough for a chance of 95 % that PyTorch's allocator never retries. MoE
        models leave another 4 % of the memory free. The default is at least 2 GiB.
    target
        Framework that plans are exported to: megatron-lm, megatron-bridge, torchtitan, deepspeed or accelerate. Its
        newest release is the cluster's framework, and every plan can be exported to it. Default: any.
    framework_rules
        True where plans must satisfy Megatron-LM's own checks, beyond the mathematics.
    preferences
        True where plans leave out strategies that run but are seldom good. Plans then have tensor-parallel groups
        inside a scale-up domain, a micro-batch for each pipeline rank, equal virtual stages and unsharded gradients in
        pipelines.
    evidence
        ``proven``: plans have only features, and pairs of features, that at least three measured runs have, or that the
        job pins or allows. Only runs of the job's device generation, model family and stack line count. ``any``: all
        that the rules allow; reports name unproven features.
    fastest
        True where the fastest plan comes first. Default: the plan within ``tolerance`` that an expert would start.
    tolerance
        Largest difference between the recommended and the fastest plan, as a fraction of the step.
    time_limit_seconds
        Time limit of the search, in seconds. Then the best plan so far is reported, with its gap.
    stages
        Allowed differences between pipeline stages. ``even``: none. ``layers``: the number of layers (Megatron-LM's
        ``--pipeline-model-parallel-layout``). ``free``: also recomputation and offloading of each rank. Default:
        ``even``, or ``layers`` with ``evidence: any``.
    """

    pin: Entries | str = field(default_factory=dict)
    allow: Entries = field(default_factory=dict)
    forbid: Annotated[tuple[dict[str, Any], ...], Field(max_length=1000)] = ()
    limits: Annotated[tuple[Annotated[str, Called("a bound such as 'tp <= 4'")], ...], Field(max_length=1000)] = ()
    candidates: Annotated[str, Called("the path of a CSV or YAML file")] | None = None
    max_devices: Number | None = None
    idle_devices: Flag = True
    max_bubble_fraction: Annotated[NotNegative, Field(le=1)] | None = None
    memory_headroom_gib: Annotated[NotNegative, Field(le=1e6), GIBIBYTES] | None = None
    target: Annotated[str, Called("the name of a target such as megatron-lm")] | None = None
    framework_rules: Flag = True
    preferences: Flag = True
    evidence: Literal["proven", "any"] = "proven"
    fastest: Flag = False
    tolerance: Annotated[NotNegative, Field(le=1)] = 0.01
    time_limit_seconds: Annotated[Positive, Field(le=1e6), SECONDS] = 60.0
    stages: Literal["even", "layers", "free"] | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class Job:
    """
    A pretraining job: model, cluster, training and search space.

    Parameters
    ----------
    model
        Name in the model catalog (``planner catalog models``), or path of a Hugging Face ``config.json`` (or of the
        folder that holds it) relative to the job file. Or the model itself: with ``model_type`` in Hugging Face's keys;
        or ``base``, a name or a path, with changes: ``num_layers``, ``num_kv_heads``, ``tied_embeddings``,
        ``learned_positions``.
    cluster
        The cluster that the job runs on.
    training
        The training: batch, sequence, tokens and precision.
    settings
        Options of the framework besides the strategy. Default: as in the framework's recipes. Some settings, such as
        ``gradient_dtype: [fp32, bf16]``, may have several values, among which the search chooses. ``any`` stands for
        all values that the release has, where the catalog knows them.
    reliability
        Failure rate of the job, and the costs of recovery and checkpoints.
    costs
        Prices of devices and electricity, and the energy that a data centre adds. Without a price no costs are
        reported.
    search
        Search space of the planner.
    objective
        Quantity to minimize: the time of one step, or of the whole training with its failures and checkpoints.
    top
        Number of plans to report.
    strategy
        A given strategy, as a line such as ``TP8 PP4 recompute=none`` or as ``{tp: 8, pp: 4}``. ``planner estimate``
        costs it, ``planner explain`` starts from it, ``planner plan`` does not use it. A search completes it. Its
        ``layout`` has the layers of the virtual stages in model order, such as ``3+4x2+3``. It may also be a mapping
        such as ``{layers: [3, 4, 4, 3], full_layers: [1, 0, 0, 0]}``.
    variants
        Variety of the reported plans. ``groups``: the best plan of each combination of tp, cp, pp, dp and ep. ``all``:
        the best plans, even if they differ little.
    """

    model: Reference
    cluster: ClusterSection
    training: TrainingSection
    settings: Annotated[Settings, BeforeValidator(_empty_if_null)] = field(default_factory=Settings)
    reliability: Annotated[ReliabilitySection, BeforeValidator(_empty_if_null)] = field(
        default_factory=ReliabilitySection
    )
    costs: Annotated[Costs, BeforeValidator(_empty_if_null)] = field(default_factory=Costs)
    search: Annotated[SearchSection, BeforeValidator(_empty_if_null)] = field(default_factory=SearchSection)
    objective: Literal["step_time", "total_time"] = "step_time"
    strategy: Entries | str = field(default_factory=dict)
    top: Annotated[Count, Field(le=1000)] = 3
    variants: Literal["groups", "all"] = "groups"


SECTIONS = tuple(one.name for one in fields(Job))
"""Entries at the top of a job file."""

RECORDS: Mapping[str, type] = {
    "cluster": ClusterSection,
    "training": TrainingSection,
    "reliability": ReliabilitySection,
    "costs": Costs,
    "search": SearchSection,
}
"""Sections of a job file, each with the record of its entries."""

KEYS = {one.name: f"{section}.{one.name}" for section, record in RECORDS.items() for one in fields(record)}
"""Entries of these sections by their own name."""

OPTIONS = {
    "batch": "training.global_batch_size",
    "sequence": "training.sequence_length",
    "tokens": "training.tokens",
}
"""Entries of a job by their option."""


@cache
def kinds() -> Mapping[str, Kind]:
    """Return the kind of each number that may be written with a unit, by dotted name."""
    return dict(_kinds(Job, ""))


def _kinds(record: Any, where: str) -> Iterator[tuple[str, Kind]]:
    for name, annotation in get_type_hints(record, include_extras=True).items():
        for part in _parts(annotation):
            if isinstance(part, Kind):
                yield f"{where}{name}", part
            elif isinstance(part, type) and is_dataclass(part):
                yield from _kinds(part, f"{where}{name}.")


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and its parts."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
