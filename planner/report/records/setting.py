"""The setting of a report: job, model, cluster, training, failures; and the conventions of the figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from planner.report.framework import ASSUMED, is_assumed, is_extrapolated, nearest_relative
from planner.report.records.costs import CostBasisRecord
from planner.report.records.record import Figure, Record, entry
from planner.search.runnable import targets_of
from planner.verbs.saved_plan import FORMAT_VERSION

if TYPE_CHECKING:
    from costmodel.facts.workload import Workload
    from planner.jobs.conventions import Conventions
    from planner.jobs.problem import Problem
    from planner.results import EstimateReport, PlanReport


class JobRecord(Record):
    """The job and its search options."""

    name: str = entry("The job file's name without its ending.")
    objective: Literal["step_time", "total_time"] = entry(
        "Quantity that the search minimizes: step_time or total_time."
    )
    top: int = entry("Number of plans to return.")
    variants: Literal["groups", "all"] = entry("groups: one plan per combination of degrees; all: every strategy.")
    memory_headroom_bytes: Figure = entry("Device memory to leave free.", "search.memory_headroom_bytes")
    framework_rules: bool = entry(
        "True if plans must also satisfy rules of Megatron-LM that the mathematics does not need.",
        "search.framework_rules",
    )
    target: str | None = entry("Target that plans are exported to; null: any that can run them.", "search.target")
    preferences: bool = entry("True if the search keeps its preferences.", "search.preferences")
    max_devices: int | None = entry(
        "Largest number of devices that a plan may use; null: it uses all of them.", "search.max_devices"
    )
    idle_devices: bool = entry("True if whole nodes may stay idle where that is faster.", "search.idle_devices")
    max_bubble_fraction: Figure | None = entry(
        "Largest share of the step that the pipeline bubble may take.", "search.max_bubble_fraction"
    )
    costs: CostBasisRecord = entry("Prices and powers that money and energy follow from.")
    sources: list[str] = entry("Files that were read.")
    document: dict[str, Any] = entry("The job itself with the contents of its files, which can be planned again.")

    @classmethod
    def build(cls, problem: Problem) -> JobRecord:
        """Build the record of a job."""
        sources = [str(path) for path in problem.sources]
        return cls.read(problem, sources=sources, costs=CostBasisRecord.build(problem))


class ModelRecord(Record):
    """The model."""

    name: str = entry("Its name.")
    source: str = entry("Source of its numbers.")
    is_text_part: bool = entry("True if it is the text part of a multimodal model; the other parts are not planned.")
    num_layers: int = entry("Layers, multi-token prediction not counted.")
    parameters: int = entry("All parameters, those of multi-token prediction not counted.")
    active_parameters: int = entry("Parameters that one token uses.")
    mtp_parameters: int = entry("Parameters of multi-token prediction.")
    flops_per_token: Figure = entry("Forward and backward pass, multi-token prediction included.")


class ClusterRecord(Record):
    """The cluster and its framework."""

    device: str = entry("Name of the device.", "device.name")
    num_devices: int = entry("Devices that plans may use.")
    num_nodes: int = entry("Their nodes.")
    num_spare_nodes: int = entry("Further nodes that the job keeps out as spares.")
    devices_per_node: int = entry("Devices that share a node.", "device.devices_per_node")
    scale_up_network: str = entry("Network of a scale-up domain: nvlink, infinity_fabric, pcie, ...")
    scale_up_size: int = entry("Devices of one scale-up domain.")
    memory_bytes: Figure = entry("Memory of one device.", "device.memory_bytes")
    host_memory_bytes_per_device: Figure = entry(
        "The share of one device of the host's memory.", "device.host_memory_bytes"
    )
    device_note: str | None = entry("Note on a device name that several devices share; null: the name is unique.")
    framework: str | None = entry("Framework that trains.")
    framework_is_assumed: bool = entry("True if the job named no framework.")
    framework_hint: str | None = entry(
        "The entry that names another framework, where the job named none; otherwise null."
    )
    framework_is_extrapolated: bool = entry("True if no measured run of it on such devices is known.")
    framework_doubt: str | None = entry(
        "Note on an unknown release that the job names and this one stands in for; null: it is known."
    )
    settings: dict[str, bool | int | float | str] = entry(
        "Framework settings, defaults of its recipes included; where the job gives several values, the best plan's."
    )

    @classmethod
    def build(cls, problem: Problem) -> ClusterRecord:
        """Build the record of a job's cluster."""
        cluster, assumed = problem.facts.cluster, is_assumed(problem)
        return cls.read(
            cluster,
            scale_up_network=cluster.device.networks[0].name,
            device_note=cluster.device_note or None,
            framework=cluster.framework.name if cluster.framework else None,
            num_spare_nodes=problem.machine.section.spare_nodes if problem.machine else 0,
            framework_is_assumed=assumed,
            framework_hint=ASSUMED if assumed else None,
            framework_is_extrapolated=is_extrapolated(cluster),
            framework_doubt=nearest_relative(cluster),
            settings={name: value for name, value in asdict(cluster.settings).items() if value is not None},
        )


class TrainingRecord(Record):
    """Tokens per step and in total, and the precision."""

    global_batch_size: int = entry("Sequences per step.")
    sequence_length: int = entry("Tokens per sequence.")
    tokens_per_step: int = entry("Tokens per step.")
    tokens: Figure = entry("Tokens of the whole training.")
    precision: str = entry("Name of the recipe.", "precision.name")

    @classmethod
    def build(cls, workload: Workload) -> TrainingRecord:
        """Build the record of a workload."""
        return cls.read(workload, tokens_per_step=workload.global_batch_size * workload.sequence_length)


class RecoveryRecord(Record):
    """One way to recover."""

    name: str = entry("The part that restarts.")
    probability: Figure = entry("Share of the failures that it recovers.")
    seconds: Figure = entry("From the failure to training again.")


class ReliabilityRecord(Record):
    """Failures and checkpoints."""

    failures_per_node_day: Figure = entry("Mean failures of one node in a day.")
    mttr_seconds: Figure = entry("Mean time from a failure to training again.")
    checkpoint_seconds: Figure = entry("Training time lost per checkpoint.")
    init_seconds: Figure = entry("From the start of the job to its first step.")
    write_seconds: Figure = entry("Time until a checkpoint is on storage, where training does not wait for it.")
    failures_per_day: Figure = entry("Mean failures of all nodes in a day.")
    recovery: list[RecoveryRecord] = entry("Ways to recover; empty where the job gives their mean.")

    @classmethod
    def build(cls, problem: Problem) -> ReliabilityRecord:
        """Build the record of a job's failures and checkpoints."""
        reliability = problem.reliability
        return cls.read(
            reliability,
            failures_per_day=reliability.failures_per_node_day * problem.facts.cluster.num_nodes,
            recovery=problem.recovery,
        )


class ConventionsRecord(Record):
    """The conventions of MFU and HFU, and the sources of operator times."""

    peak_dtype: str = entry("Data type of the dense peak that MFU and HFU refer to.")
    peak_tflops_per_gpu: Figure = entry("Dense peak of that data type.")
    peak_bf16_tflops_per_gpu: Figure | None = entry(
        "The dense bf16 peak, which mfu_bf16 refers to; null where the device has none."
    )
    attention: Literal["full", "causal"] = entry(
        "Attention scores that count as FLOPs: full, all of them; causal, those that the causal mask leaves."
    )
    mfu: str = entry("Definition of MFU.")
    hfu: str = entry("Definition of HFU.")
    operator_times: dict[str, str] = entry("Source of the time of each operator.")

    @classmethod
    def build(cls, conventions: Conventions) -> ConventionsRecord:
        """Build the record of a report's conventions."""
        return cls.read(
            conventions,
            peak_tflops_per_gpu=conventions.peak_flops / 1e12,
            peak_bf16_tflops_per_gpu=conventions.peak_bf16_flops and conventions.peak_bf16_flops / 1e12,
            mfu="model FLOPs (forward and backward pass, multi-token prediction included) over the dense peak",
            hfu="model FLOPs and recomputed forward FLOPs over the dense peak",
        )


class OperatorRecord(Record):
    """The uncertainty of an operator's time."""

    name: str = entry("Its name in the cost model.")
    share: Figure = entry("Its share of the step.")
    relative_deviation: Figure = entry("Standard deviation of the logarithm of its time.")
    origin: str = entry("Source of its time.")
    is_sampled: bool = entry("True if samples time it.")
    is_outside: bool = entry("True if its shape is outside the range of the samples, so that their roofline is used.")


class SettingRecord(Record):
    """The first entries of every report."""

    format_version: int = entry("Grows when an entry changes its name, unit or meaning; new entries do not count.")
    kind: str = entry("Kind of the report.")
    job: JobRecord = entry("The job and its search options.")
    model: ModelRecord = entry("The model.")
    cluster: ClusterRecord = entry("The cluster.")
    training: TrainingRecord = entry("Batch, sequence length, tokens and precision.")
    reliability: ReliabilityRecord = entry("Failures and checkpoints.")
    conventions: ConventionsRecord = entry("Conventions of MFU and HFU, and sources of operator times.")
    operators: list[OperatorRecord] = entry(
        "Operators of the first plan, the least certain share of its step first; none where no samples time them."
    )
    targets: dict[str, str | None] = entry(
        "Targets of planner export, each with the first reason why it cannot run the best plan; null: it can."
    )

    @classmethod
    def build_from_job(cls, report: PlanReport | EstimateReport, kind: str) -> SettingRecord:
        """Build the first entries of a report of that kind."""
        chosen = report.chosen
        return SettingRecord(
            format_version=FORMAT_VERSION,
            kind=kind,
            job=JobRecord.build(report.problem),
            model=ModelRecord.read(report.model),
            cluster=ClusterRecord.build(chosen),
            training=TrainingRecord.build(chosen.facts.workload),
            reliability=ReliabilityRecord.build(chosen),
            conventions=ConventionsRecord.build(report.conventions),
            operators=[OperatorRecord.read(one) for one in report.plans[0].operators] if report.plans else [],
            targets=targets_of(report.plans[0]) if report.plans else {},
        )
