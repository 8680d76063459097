"""The setting of a report: job, model, cluster, training, failures; and the conventions of the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from constraints.targets import effective_settings, find_first_refusals
from costmodel import catalog
from costmodel.catalog.releases import stands_in
from costmodel.facts.device import Cluster, Device, Sites
from costmodel.facts.reliability import RecoveryLevel
from costmodel.strategy import Sharding
from planner.jobs.checkpoints import ModelSummary
from planner.jobs.problem import Problem
from planner.report.records import Figure, Record, itself, read_from
from planner.report.records.plan import CostBasisRecord
from planner.uncertainty.intervals import TimedOperator
from planner.verbs.plan import FORMAT_VERSION

if TYPE_CHECKING:
    from planner.results import Plan

ASSUMED = "assumed, as the job names none (set cluster.framework; planner catalog frameworks lists them)"

"""The note on a framework that the job does not name: the entry that names one, and the command that lists them."""


def is_assumed(problem: Problem) -> bool:
    """True if the job names no framework."""
    return problem.machine is not None and problem.machine.section.framework is None


def is_extrapolated(cluster: Cluster) -> bool:
    """True if no run of the framework was measured on devices of the architecture."""
    framework, architecture = cluster.framework, cluster.device.architecture
    return framework is not None and architecture is not None and architecture not in framework.measured_on


def nearest_relative(cluster: Cluster) -> str | None:
    """Return the note that another release stands in for the unknown one that a job names; None: it is known."""
    if cluster.framework is None or not cluster.unknown_release:
        return None
    return stands_in(cluster.unknown_release, cluster.framework.name)


def framework_text(problem: Problem) -> str:
    """Describe the framework in a line."""
    cluster = problem.facts.cluster
    if cluster.framework is None:
        return "unknown"
    texts = [cluster.framework.name]
    if nearest := nearest_relative(cluster):
        texts.append(nearest)
    if problem.search.target is not None:
        texts.append(f"for search.target {problem.search.target}")
    if is_assumed(problem):
        texts.append(ASSUMED)
    if is_extrapolated(cluster):
        texts.append(
            f"extrapolated: no measured run of it on {cluster.device.architecture} is known, constants are those of "
            f"{_constants_of(cluster.device)}"
        )
    return "; ".join(texts)


def _constants_of(device: Device) -> str:
    """Return the architecture that a device's constants are fitted to."""
    relative = catalog.calibration_of_fit(device)
    return "that architecture" if relative in ("", device.architecture) else relative


def targets_text(targets: Mapping[str, str | None]) -> str:
    """List the targets that can run the best plan, in a line."""
    able = [name for name, reason in targets.items() if reason is None]
    others = "" if len(able) == len(targets) else f"; search.target=NAME plans for {'another' if able else 'one'}"
    return f"{', '.join(able) or 'none'}{others}"


def find_unused_entries(plan: Plan, document: Mapping[str, Any]) -> list[str]:
    """
    Find the entries of a job that its plan has no use for: settings, and packed sequences that fill a sample.

    Settings with several values are left out, as reports name the chosen one.
    """
    used, training = effective_settings(plan.facts, plan.strategy), document.get("training") or {}
    given = {name: value for name, value in (document.get("settings") or {}).items() if not isinstance(value, list)}
    own = {name: getattr(plan.cluster.settings, name) for name in given if given[name] != "any"}
    own.pop("gradient_dtype", None)  # 16 bits are those of the recipe
    strategy = plan.strategy
    if max(strategy.tp, strategy.etp) == 1 and strategy.sharding < Sharding.GRADIENTS:
        used = replace(used, muon_tp_mode=None)  # each rank has whole matrices
    unused = [f"settings.{name}" for name, value in own.items() if value and value != getattr(used, name)]
    if training.get("sequence_lengths") and plan.facts.workload.lengths is None:
        unused.append("training.sequence_lengths")
    return unused


class JobRecord(Record):
    """
    The job and its search options.

    Parameters
    ----------
    name
        The job file's name without its ending.
    objective
        Quantity that the search minimizes: step_time or total_time.
    top
        Number of plans to return.
    variants
        groups: one plan per combination of degrees; all: every strategy.
    memory_headroom_bytes
        Device memory to leave free.
    framework_rules
        True if plans must also satisfy rules of Megatron-LM that the mathematics does not need.
    target
        Target that plans are exported to; null: any that can run them.
    preferences
        True if the search keeps its preferences.
    max_devices
        Largest number of devices that a plan may use; null: it uses all of them.
    idle_devices
        True if whole nodes may stay idle where that is faster.
    max_bubble_fraction
        Largest share of the step that the pipeline bubble may take.
    costs
        Prices and powers that money and energy follow from.
    sources
        Files that were read.
    document
        The job itself with the contents of its files, which can be planned again.
    unused_entries
        Entries of the job without effect on the best plan, such as layers in BF16 of a job in BF16.
    """

    _inside = ("search",)

    name: str
    objective: Literal["step_time", "total_time"]
    top: int
    variants: Literal["groups", "all"]
    memory_headroom_bytes: Figure
    framework_rules: bool
    target: str | None
    preferences: bool
    max_devices: int | None
    idle_devices: bool
    max_bubble_fraction: Figure | None
    costs: CostBasisRecord = read_from(itself)
    sources: list[str] = read_from(lambda problem: [str(path) for path in problem.sources])
    document: dict[str, Any]
    unused_entries: list[str]

    @classmethod
    def build(cls, problem: Problem, plans: Sequence[Plan]) -> JobRecord:
        """Build the record of a job and its plans."""
        return cls.read(problem, unused_entries=find_unused_entries(plans[0], problem.document) if plans else [])


def _settings(problem: Problem) -> dict[str, Any]:
    return {name: value for name, value in asdict(problem.facts.cluster.settings).items() if value is not None}


class ClusterRecord(Record):
    """
    The cluster and its framework.

    Parameters
    ----------
    device
        Name of the device.
    num_devices
        Devices that plans may use.
    num_nodes
        Their nodes.
    num_spare_nodes
        Further nodes that the job keeps out as spares.
    devices_per_node
        Devices that share a node.
    scale_up_network
        Network of a scale-up domain: nvlink, infinity_fabric, pcie, ...
    scale_up_size
        Devices of one scale-up domain.
    sites
        Data centres over which the devices are spread; null: all are in one.
    memory_bytes
        Memory of one device.
    host_memory_bytes_per_device
        The share of one device of the host's memory.
    device_note
        Note on a device name that several devices share; null: the name is unique.
    framework
        Framework that trains.
    framework_is_assumed
        True if the job named no framework.
    framework_hint
        The entry that names another framework, where the job named none; otherwise null.
    framework_is_extrapolated
        True if no measured run of it on such devices is known.
    framework_doubt
        Note on an unknown release that the job names and this one stands in for; null: it is known.
    settings
        Framework settings, defaults of its recipes included; where the job gives several values, the best plan's.
    """

    _inside = ("facts.cluster", "facts.cluster.device")

    device: str = read_from("facts.cluster.device.name")
    num_devices: int
    num_nodes: int
    num_spare_nodes: int = read_from(lambda problem: problem.machine.section.spare_nodes if problem.machine else 0)
    devices_per_node: int
    scale_up_network: str = read_from(lambda problem: problem.facts.cluster.device.networks[0].name)
    scale_up_size: int
    sites: Sites | None
    memory_bytes: Figure
    host_memory_bytes_per_device: Figure = read_from("facts.cluster.device.host_memory_bytes")
    device_note: str | None = read_from(lambda problem: problem.facts.cluster.device_note or None)
    framework: str | None = read_from(lambda problem: getattr(problem.facts.cluster.framework, "name", None))
    framework_is_assumed: bool = read_from(is_assumed)
    framework_hint: str | None = read_from(lambda problem: ASSUMED if is_assumed(problem) else None)
    framework_is_extrapolated: bool = read_from(lambda problem: is_extrapolated(problem.facts.cluster))
    framework_doubt: str | None = read_from(lambda problem: nearest_relative(problem.facts.cluster))
    settings: dict[str, bool | int | float | str] = read_from(_settings)


class TrainingRecord(Record):
    """
    Tokens per step and in total, and the precision.

    Parameters
    ----------
    global_batch_size
        Sequences per step.
    sequence_length
        Tokens per sequence.
    packed_lengths
        Shortest and longest packed sequence, in tokens; null where each sample is one sequence.
    mean_packed_length
        Mean length of the packed sequences; null as above.
    own_sequence_length
        Tokens of the sequence that a token is in, averaged over tokens: attention's work grows with it.
    tokens_per_step
        Tokens per step.
    tokens
        Tokens of the whole training.
    precision
        Name of the recipe.
    """

    global_batch_size: int
    sequence_length: int
    packed_lengths: list[int] | None = read_from(
        lambda work: work.lengths and [work.lengths.lengths[0], work.lengths.lengths[-1]]
    )
    mean_packed_length: Figure | None = read_from(lambda work: work.lengths and work.lengths.mean_length)
    own_sequence_length: Figure = read_from(
        lambda work: work.lengths.mean_tokens if work.lengths else work.sequence_length
    )
    tokens_per_step: int = read_from(lambda work: work.global_batch_size * work.sequence_length)
    tokens: Figure
    precision: str = read_from("precision.name")


class ReliabilityRecord(Record):
    """
    Failures and checkpoints.

    Parameters
    ----------
    failures_per_node_day
        Mean failures of one node in a day.
    mttr_seconds
        Mean time from a failure to training again.
    checkpoint_seconds
        Training time lost per checkpoint.
    init_seconds
        From the start of the job to its first step.
    evaluation_fraction
        Time of evaluations over that of the steps between them.
    loading_seconds
        Time of each step in which devices wait for data.
    write_seconds
        Time until a checkpoint is on storage, where training does not wait for it.
    failures_per_day
        Mean failures of all nodes in a day.
    recovery
        Ways to recover; empty where the job gives their mean.
    """

    _inside = ("reliability",)

    failures_per_node_day: Figure
    mttr_seconds: Figure
    checkpoint_seconds: Figure
    init_seconds: Figure
    evaluation_fraction: Figure
    loading_seconds: Figure
    write_seconds: Figure
    failures_per_day: Figure = read_from(
        lambda job: job.reliability.failures_per_node_day * job.facts.cluster.num_nodes
    )
    recovery: list[RecoveryLevel]


MFU = "model FLOPs (forward and backward pass, multi-token prediction included) over the dense peak"

HFU = "model FLOPs and recomputed forward FLOPs over the dense peak"


class ConventionsRecord(Record):
    """
    The conventions of MFU and HFU, and the sources of operator times.

    Parameters
    ----------
    peak_dtype
        Data type of the dense peak that MFU and HFU refer to.
    peak_tflops_per_gpu
        Dense peak of that data type.
    peak_bf16_tflops_per_gpu
        The dense bf16 peak, which mfu_bf16 refers to; null where the device has none.
    attention
        Attention scores that count as FLOPs: full, all of them; causal, those that the causal mask leaves.
    mfu
        Definition of MFU.
    hfu
        Definition of HFU.
    operator_times
        Source of the time of each operator.
    """

    peak_dtype: str
    peak_tflops_per_gpu: Figure = read_from(lambda one: one.peak_flops / 1e12)
    peak_bf16_tflops_per_gpu: Figure | None = read_from(lambda one: one.peak_bf16_flops and one.peak_bf16_flops / 1e12)
    attention: Literal["full", "causal"]
    mfu: str = read_from(lambda _: MFU)
    hfu: str = read_from(lambda _: HFU)
    operator_times: dict[str, str]


class SettingRecord(Record):
    """
    The first entries of every report.

    Parameters
    ----------
    format_version
        Grows when an entry changes its name, unit or meaning; new entries do not count.
    kind
        Kind of the report.
    job
        The job and its search options.
    model
        The model.
    cluster
        The cluster.
    training
        Batch, sequence length, tokens and precision.
    reliability
        Failures and checkpoints.
    conventions
        Conventions of MFU and HFU, and sources of operator times.
    operators
        Operators of the first plan, the least certain share of its step first; none where no samples time them.
    targets
        Targets of planner export, each with the first reason why it cannot run the best plan; null: it can.
    """

    format_version: int = read_from(lambda _: FORMAT_VERSION)
    kind: str
    job: JobRecord = read_from(lambda report: JobRecord.build(report.problem, report.plans))
    model: ModelSummary
    cluster: ClusterRecord = read_from("chosen")
    training: TrainingRecord = read_from("chosen.facts.workload")
    reliability: ReliabilityRecord = read_from("chosen")
    conventions: ConventionsRecord
    operators: list[TimedOperator] = read_from(lambda report: report.plans[0].operators if report.plans else [])
    targets: dict[str, str | None] = read_from(
        lambda report: find_first_refusals(report.plans[0].facts, report.plans[0].strategy) if report.plans else {}
    )

    @property
    def problem(self) -> Problem:
        """The job itself."""
        return cast("Problem", self._sources[0].problem)
