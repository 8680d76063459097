"""
The JSON reports as types: what each entry means, in which unit. Their JSON Schema is made from these.

Bytes, seconds and fractions are plain numbers; what is infinite or undefined is null.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict
from typing_extensions import TypedDict

STRICT = ConfigDict(extra="forbid")


class LayoutRecord(TypedDict):
    """
    Stages that differ.

    Parameters
    ----------
    layers
        Layers of each virtual stage in model order, pp * vpp of them.
    recompute
        What each pipeline rank computes again.
    full_layers
        Layers of each rank that are recomputed in full, the first ones of each chunk.
    activation_offload
        Whether each rank's activations wait in host memory.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]  # pydantic's own protocol
    layers: list[int]
    recompute: list[str]
    full_layers: list[int]
    activation_offload: list[bool]


class StrategyRecord(TypedDict):
    """
    Every decision by name, as job files spell its value.

    Parameters
    ----------
    tp, cp, pp, dp, ep, etp
        Tensor-, context-, pipeline-, data-, expert-parallel degree, and the tensor-parallel degree inside experts.
    vpp
        Model chunks per pipeline rank.
    group
        Micro-batches that pass through a chunk before the next one begins.
    mbs
        Sequences per micro-batch.
    sequence_parallel
        Whether norms and residuals are split over the tensor-parallel ranks.
    schedule
        In which order the pipeline ranks work.
    vocabulary
        Where the pipeline keeps embedding and head.
    sharding
        What the data-parallel ranks share.
    recompute
        What the backward pass computes again; modules are joined by +.
    activation_offload, optimizer_offload
        Whether activations wait in host memory; whether optimizer states live there.
    token_dispatcher
        How tokens get to their experts and back.
    cuda_graphs
        What the host launches at once; modules are joined by +.
    tp_overlap, cp_overlap, ep_overlap, pp_overlap, dp_overlap
        Whether communication of that dimension runs behind computation.
    layout
        The stages where they differ, else null.
    num_microbatches
        Micro-batches per pipeline and step.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int
    vpp: int
    group: int
    mbs: int
    sequence_parallel: bool
    schedule: str
    vocabulary: str
    sharding: str
    recompute: str
    activation_offload: bool
    optimizer_offload: bool
    token_dispatcher: str
    cuda_graphs: str
    tp_overlap: bool
    cp_overlap: bool
    ep_overlap: bool
    pp_overlap: bool
    dp_overlap: bool
    layout: LayoutRecord | None
    num_microbatches: int


class PartRecord(TypedDict):
    """
    One line of a step.

    Parameters
    ----------
    name
        compute, recompute, tp, cp, ep, offload, host, pp, bubble, dp or optimizer.
    exposed_seconds
        Its share of the step; all lines add up to the step.
    hidden_seconds
        What runs behind computation.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    name: str
    exposed_seconds: float
    hidden_seconds: float


class RankRecord(TypedDict):
    """
    One pipeline rank.

    Parameters
    ----------
    rank
        Its number.
    num_layers
        Layers that it holds, those of multi-token prediction included.
    microbatch_seconds
        One micro-batch, forward and backward.
    bytes
        Peak device memory by what it holds.
    peak_memory_bytes
        Their sum.
    headroom_bytes
        What it leaves free; negative where it does not fit.
    host_memory_bytes
        Host memory that one of its devices needs.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    rank: int
    num_layers: int
    microbatch_seconds: float
    bytes: dict[str, float]
    peak_memory_bytes: float
    headroom_bytes: float
    host_memory_bytes: float


class MemoryRecord(TypedDict):
    """
    Memory of one device.

    Parameters
    ----------
    peak_memory_bytes, headroom_bytes
        Peak of the fullest pipeline rank, and what it leaves free.
    allocated_bytes, reserved_bytes
        The same peak as PyTorch counts it: in tensors; in all that its allocator holds.
    host_memory_bytes, host_headroom_bytes
        Host memory of one device, and what it leaves free of its share.
    ranks
        Every pipeline rank.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    peak_memory_bytes: float
    allocated_bytes: float
    reserved_bytes: float
    headroom_bytes: float
    host_memory_bytes: float
    host_headroom_bytes: float
    ranks: list[RankRecord]


class CheckpointRecord(TypedDict):
    """
    When to save.

    Parameters
    ----------
    interval_steps, interval_seconds
        Steps from one checkpoint to the next, and their time.
    unrounded_interval_steps
        Where the continuous optimum lies.
    seconds
        Training time lost per checkpoint.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    interval_steps: int
    interval_seconds: float
    unrounded_interval_steps: float | None
    seconds: float


class TrainingRunRecord(TypedDict):
    """
    The whole training.

    Parameters
    ----------
    num_steps
        Optimizer steps.
    effective_seconds, interruption_seconds, total_seconds
        Steps alone; checkpoints, repeated steps and recoveries; both.
    num_failures
        Expected interruptions.
    ettr
        Effective over total time.
    days, gpu_hours
        Total time; the same times all devices.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    num_steps: int
    effective_seconds: float
    interruption_seconds: float
    total_seconds: float
    num_failures: float
    ettr: float
    days: float
    gpu_hours: float


class PlanRecord(MemoryRecord):
    """
    One strategy and all that follows from it.

    Parameters
    ----------
    num_devices, num_nodes
        Devices and nodes that it uses.
    step_time_seconds
        One optimizer step, played through stage by stage.
    closed_form_step_time_seconds
        The same by the formulas that the search compares strategies by.
    step_time_interval_seconds, step_time_interval_probability, step_time_interval_basis
        Between which bounds a measured step lies, how often, and by which measured runs.
    tokens_per_second_per_gpu
        Tokens that one device trains per second.
    model_tflops_per_gpu, hardware_tflops_per_gpu
        Model FLOPs per second and device, and with those that are recomputed.
    mfu, hfu
        The same over the peak of the conventions.
    strategy
        The decisions.
    breakdown
        Where the step goes, on the rank whose pace the others keep.
    checkpoint
        When to save.
    training_run
        The whole training.
    """

    num_devices: int
    num_nodes: int
    step_time_seconds: float
    closed_form_step_time_seconds: float
    step_time_interval_seconds: list[float]
    step_time_interval_probability: float
    step_time_interval_basis: str
    tokens_per_second_per_gpu: float
    model_tflops_per_gpu: float
    hardware_tflops_per_gpu: float
    mfu: float
    hfu: float
    strategy: StrategyRecord
    breakdown: list[PartRecord]
    checkpoint: CheckpointRecord
    training_run: TrainingRunRecord


class NumberedPlanRecord(PlanRecord):
    """
    One of several plans.

    Parameters
    ----------
    number
        Its place, from 1.
    slower_fraction, difference_seconds
        How much longer its step is than the first one's.
    within_noise_of_best
        Whether predictions cannot tell it from the first one.
    difference_by_part
        By which seconds each line of its step is longer than the first one's.
    """

    number: int
    slower_fraction: float
    within_noise_of_best: bool
    difference_seconds: float
    difference_by_part: dict[str, float]


# --- the setting -------------------------------------------------------------------------------------------


class JobRecord(TypedDict):
    """
    What was asked.

    Parameters
    ----------
    name
        The job file's name without its ending.
    objective
        What is as small as possible: step_time or total_time.
    top, variants
        How many plans, and whether one per group of degrees or all.
    memory_headroom_bytes
        Device memory to leave free.
    framework_rules
        Whether plans satisfy what Megatron-LM demands beyond the mathematics.
    max_devices
        Devices that a plan may use at most; null: it uses all of them.
    max_bubble_fraction
        Share of the step that the pipeline may idle.
    sources
        Files that were read.
    document
        The job itself with the contents of its files, which can be planned again.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    name: str
    objective: Literal["step_time", "total_time"]
    top: int
    variants: Literal["groups", "all"]
    memory_headroom_bytes: float
    framework_rules: bool
    max_devices: int | None
    max_bubble_fraction: float | None
    sources: list[str]
    document: dict[str, Any]


class ModelRecord(TypedDict):
    """
    What is trained.

    Parameters
    ----------
    name, source
        What it is called, and where its numbers come from.
    num_layers
        Layers, multi-token prediction not counted.
    parameters, active_parameters, mtp_parameters
        All; those that one token meets; those of multi-token prediction, in neither.
    flops_per_token
        Forward and backward pass, multi-token prediction included.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    name: str
    source: str
    num_layers: int
    parameters: int
    active_parameters: int
    mtp_parameters: int
    flops_per_token: float


class ClusterRecord(TypedDict):
    """
    On what.

    Parameters
    ----------
    device
        What one device is called.
    num_devices, num_nodes, devices_per_node
        Devices, nodes, devices that share one.
    scale_up_size
        Devices of one NVLink domain.
    memory_bytes, host_memory_bytes_per_device
        Memory of one device, and its share of the host's.
    framework, framework_is_assumed, framework_is_extrapolated
        What trains; whether the job named none; whether no run of it on such devices is known.
    framework_hint
        What to write for another where the job named none; else null.
    settings
        What the framework is told, its recipes' defaults included.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    device: str
    num_devices: int
    num_nodes: int
    devices_per_node: int
    scale_up_size: int
    memory_bytes: float
    host_memory_bytes_per_device: float
    framework: str | None
    framework_is_assumed: bool
    framework_hint: str | None
    framework_is_extrapolated: bool
    settings: dict[str, bool | int | str]


class TrainingRecord(TypedDict):
    """
    What is trained per step and in total.

    Parameters
    ----------
    global_batch_size, sequence_length, tokens_per_step
        Sequences per step, tokens per sequence, their product.
    tokens
        Of the whole training.
    precision
        Name of the recipe.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    global_batch_size: int
    sequence_length: int
    tokens_per_step: int
    tokens: float
    precision: str


class RecoveryRecord(TypedDict):
    """
    One way to recover.

    Parameters
    ----------
    name
        What restarts.
    probability
        Share of the failures that it recovers.
    seconds
        From the failure to training again.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    name: str
    probability: float
    seconds: float


class ReliabilityRecord(TypedDict):
    """
    Failures and checkpoints.

    Parameters
    ----------
    failures_per_node_day, failures_per_day
        Mean failures of one node, and of all, in a day.
    mttr_seconds
        Mean time from a failure to training again.
    checkpoint_seconds, write_seconds
        Training time lost per checkpoint; time until it is on storage, where training does not wait for it.
    init_seconds
        From the start of the job to its first step.
    recovery
        Ways to recover; empty where the job gives their mean.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    failures_per_node_day: float
    failures_per_day: float
    mttr_seconds: float
    checkpoint_seconds: float
    write_seconds: float
    init_seconds: float
    recovery: list[RecoveryRecord]


class ConventionsRecord(TypedDict):
    """
    How to compare the figures with others'.

    Parameters
    ----------
    peak_dtype, peak_tflops_per_gpu
        The dense peak that MFU and HFU refer to.
    attention
        Whether scores that the causal mask hides count as FLOPs: full or causal.
    mfu, hfu
        What they mean, in words.
    operator_times
        Who timed each operator.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    peak_dtype: str
    peak_tflops_per_gpu: float
    attention: Literal["full", "causal"]
    mfu: str
    hfu: str
    operator_times: dict[str, str]


class SettingRecord(TypedDict):
    """
    What every report begins with.

    Parameters
    ----------
    format_version
        Grows when an entry changes its name, unit or meaning; new entries do not count.
    job, model, cluster, training, reliability
        What was asked.
    conventions
        How to read MFU and HFU, and who timed the operators.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    format_version: int
    job: JobRecord
    model: ModelRecord
    cluster: ClusterRecord
    training: TrainingRecord
    reliability: ReliabilityRecord
    conventions: ConventionsRecord


# --- the outcome -------------------------------------------------------------------------------------------


class ExcludedRecord(TypedDict):
    """
    Strategies that the solver never saw, under the first reason that applies.

    Parameters
    ----------
    lower_bound
        A bound of their time is above what was found.
    rules_of_time
        Without a time, or refused by a rule of the time.
    overlaps
        Other overlaps of the same strategy are as fast.
    cut
        Slower than what was found.
    dominance
        Another one is better in time, device memory and host memory.
    memory
        Too large for device or host.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    lower_bound: int
    rules_of_time: int
    overlaps: int
    cut: int
    dominance: int
    memory: int


class EffortRecord(TypedDict):
    """
    What the search had to do.

    Parameters
    ----------
    num_raw_strategies, num_strategies
        Combinations before any rule; those that satisfy every rule but those of memory.
    num_rows, num_rows_tabulated
        Combinations of degrees; those whose features were looked at.
    num_strategies_tabulated
        Strategies of these.
    num_excluded
        Why the others were left out.
    num_pipelines, num_pipelines_costed, num_pipelines_solved
        Pipelines whose stages may differ: all, those that were costed, those that CP-SAT solved.
    num_candidates, num_solves
        Literals that CP-SAT saw, and how often it ran.
    build_seconds, solve_seconds
        Time for the space, tables and models; time inside CP-SAT.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    num_raw_strategies: int
    num_strategies: int
    num_rows: int
    num_rows_tabulated: int
    num_strategies_tabulated: int
    num_excluded: ExcludedRecord
    num_pipelines: int
    num_pipelines_costed: int
    num_pipelines_solved: int
    num_candidates: int
    num_solves: int
    build_seconds: float
    solve_seconds: float


class ImpossibleRecord(TypedDict):
    """
    A strategy of the job's list that no rule allows.

    Parameters
    ----------
    place
        Where it stands.
    rules
        Sentences of the rules that forbid it.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    place: str
    rules: list[str]


class CandidatesRecord(TypedDict):
    """
    What the rules leave of the job's list of strategies.

    Parameters
    ----------
    source
        Its file.
    num_rows, num_impossible
        Its strategies; those that rules forbid.
    impossible
        The first of them.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    source: str
    num_rows: int
    num_impossible: int
    impossible: list[ImpossibleRecord]


class SmallestClusterRecord(TypedDict):
    """
    The smallest cluster on which something fits.

    Parameters
    ----------
    num_devices, strategy
        Its devices and a strategy for them; null where none was found.
    num_devices_tried, num_devices_enough
        The largest number that was tried; one that is enough, where the smallest is not known.
    num_devices_within
        The largest number below the job's own that fits; null where none does.
    time_ran_out
        Whether smaller ones were left out for want of time.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    num_devices: int | None
    strategy: StrategyRecord | None
    num_devices_tried: int | None
    num_devices_enough: int | None
    num_devices_within: int | None
    time_ran_out: bool


class ClosestRecord(MemoryRecord):
    """
    The strategy that comes closest to fitting.

    Parameters
    ----------
    strategy
        It.
    missing_bytes_by_rank
        Memory that each pipeline rank lacks.
    """

    strategy: StrategyRecord
    missing_bytes_by_rank: list[float]


class ConflictRecord(TypedDict):
    """
    Why nothing fits.

    Parameters
    ----------
    least_bubble_fraction
        The smallest share that the pipeline idles in what fits, where that is to blame.
    exclusive_rules, repairs
        Smallest sets of rules that exclude each other; smallest sets without which something fits.
    release, releases
        Entries of the job to let go: the first choice, and all smallest sets of them.
    shortage_bytes, host_shortage_bytes
        Memory that the closest strategy lacks.
    needed_memory_bytes, needed_host_memory_bytes, needed_headroom_bytes
        Memory of a device or its host with which something fits, or the headroom.
    smallest_cluster
        The smallest cluster on which something fits.
    left_out
        What was not asked for want of time.
    closest
        The strategy that lacks least.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    least_bubble_fraction: float | None
    exclusive_rules: list[list[str]]
    repairs: list[list[str]]
    release: list[str]
    releases: list[list[str]]
    shortage_bytes: float | None
    host_shortage_bytes: float | None
    needed_memory_bytes: float | None
    needed_host_memory_bytes: float | None
    needed_headroom_bytes: float | None
    smallest_cluster: SmallestClusterRecord | None
    left_out: list[str]
    closest: ClosestRecord | None


class OutcomeRecord(TypedDict):
    """
    The proof.

    Parameters
    ----------
    status
        optimal: nothing is faster; feasible: time ran out with plans in hand; infeasible: nothing fits; unknown.
    lower_bound_seconds
        No strategy is faster, but for the rounding bound; null where none exists.
    gap
        How far the best plan may be from that, as a fraction of its time; null without a plan.
    rounding_bound_seconds
        What rounding to the solver's ticks may hide.
    search
        What the search had to do.
    candidates
        What the rules leave of the job's list of strategies; null without one.
    conflict
        Why nothing fits; null where something does.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    lower_bound_seconds: float | None
    gap: float | None
    rounding_bound_seconds: float
    search: EffortRecord
    candidates: CandidatesRecord | None
    conflict: ConflictRecord | None


# --- whole reports -----------------------------------------------------------------------------------------


class PlanReportRecord(SettingRecord, OutcomeRecord):
    """
    What planner plan answers.

    Parameters
    ----------
    kind
        Of which kind the report is.
    plans
        Best first.
    """

    kind: Literal["plan"]
    plans: list[NumberedPlanRecord]


class EstimateReportRecord(SettingRecord, PlanRecord):
    """
    What planner estimate answers.

    Parameters
    ----------
    kind
        Of which kind the report is.
    allowed, broken_rules
        Whether the rules allow the strategy, and the sentences of those that do not.
    assumed
        Decisions that were not given, with the values that they got.
    """

    kind: Literal["estimate"]
    allowed: bool
    broken_rules: list[str]
    assumed: dict[str, int | bool | str]


class NextFasterRecord(TypedDict):
    """
    Of memory: the faster strategy that needs least more of it.

    Parameters
    ----------
    strategy, step_time_seconds, missing_bytes
        It, its step, and the memory that it lacks.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    strategy: StrategyRecord | None
    step_time_seconds: float | None
    missing_bytes: float | None


class BindingRecord(TypedDict):
    """
    One constraint, and what would be fastest without it.

    Parameters
    ----------
    kind, constraint
        What it comes from, and what it is in words.
    step_time_seconds, saved_seconds
        The step without it, and how much shorter that is.
    proven
        Whether nothing is faster without it.
    strategy
        The fastest strategy without it.
    next_faster
        Of memory: the faster strategy that needs least more.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    kind: str
    constraint: str
    step_time_seconds: float | None
    saved_seconds: float | None
    proven: bool
    strategy: StrategyRecord | None
    next_faster: NextFasterRecord | None


class DifferenceRecord(TypedDict):
    """
    One line of two steps.

    Parameters
    ----------
    name
        Of the line.
    best_seconds, given_seconds, difference_seconds
        In the best plan, in the given one, and the second minus the first.
    """

    __pydantic_config__ = STRICT  # type: ignore[misc]
    name: str
    best_seconds: float
    given_seconds: float
    difference_seconds: float


class ExplanationRecord(SettingRecord):
    """
    What planner explain answers.

    Parameters
    ----------
    kind
        Of which kind the report is.
    status
        How the search for the best plan ended.
    best
        The best plan.
    bindings, not_binding
        What holds it back; constraints that do not.
    asked, opposed_entries, status_of_asked
        The strategy that was asked for, entries of the job against it, how the search for its completion ended.
    given, broken_rules, slower_seconds, differences
        Its best completion, the rules that forbid it, how much slower it is, and in which lines.
    conflict
        Why nothing fits.
    left_out
        What was not asked for want of time.
    """

    kind: Literal["explanation"]
    status: str
    best: PlanRecord | None
    bindings: list[BindingRecord]
    not_binding: list[str]
    asked: dict[str, str]
    opposed_entries: list[str]
    status_of_asked: str | None
    given: PlanRecord | None
    broken_rules: list[str]
    slower_seconds: float | None
    differences: list[DifferenceRecord]
    conflict: ConflictRecord | None
    left_out: list[str]


class ComparisonRecord(SettingRecord):
    """
    What planner compare answers.

    Parameters
    ----------
    kind
        Of which kind the report is.
    status
        How the search for the best plan ended.
    best, given
        The best plan, and what is given.
    allowed, broken_rules
        Whether the rules allow what is given, and the sentences of those that do not.
    assumed
        Decisions that were not given, with the values that they got.
    saved_seconds_per_step, saved_fraction, saved_days, saved_gpu_hours
        What the best plan gains.
    within_noise
        Whether the two cannot be told apart.
    differences
        In which lines of the step.
    conflict
        Why nothing fits.
    """

    kind: Literal["comparison"]
    status: str
    best: PlanRecord | None
    given: PlanRecord
    allowed: bool
    broken_rules: list[str]
    assumed: dict[str, str]
    saved_seconds_per_step: float | None
    saved_fraction: float | None
    saved_days: float | None
    saved_gpu_hours: float | None
    within_noise: bool | None
    differences: list[DifferenceRecord]
    conflict: ConflictRecord | None
