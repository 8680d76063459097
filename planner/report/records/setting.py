"""What was asked: job, model, cluster, training, failures; and the conventions of the figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from planner.frameworks.runnable import targets_of
from planner.report.framework import ASSUMED, is_assumed, is_extrapolated, nearest_relative
from planner.report.records.costs import CostBasisRecord
from planner.report.records.record import Figure, Record, entry
from planner.saved_plan import FORMAT_VERSION

if TYPE_CHECKING:
    from costmodel.facts.workload import Workload
    from planner.jobs.conventions import Conventions
    from planner.jobs.problem import Problem
    from planner.results import EstimateReport, PlanReport


class JobRecord(Record):
    """What was asked."""

    name: str = entry("The job file's name without its ending.")
    objective: Literal["step_time", "total_time"] = entry("What is as small as possible: step_time or total_time.")
    top: int = entry("How many plans.")
    variants: Literal["groups", "all"] = entry("Whether one plan per group of degrees or all.")
    memory_headroom_bytes: Figure = entry("Device memory to leave free.", "search.memory_headroom_bytes")
    framework_rules: bool = entry(
        "Whether plans satisfy what Megatron-LM demands beyond the mathematics.", "search.framework_rules"
    )
    target: str | None = entry("What plans are exported to; null: whatever can run them.", "search.target")
    preferences: bool = entry("Whether the search keeps its preferences.", "search.preferences")
    max_devices: int | None = entry(
        "Devices that a plan may use at most; null: it uses all of them.", "search.max_devices"
    )
    idle_devices: bool = entry("Whether whole nodes may stay idle where that is faster.", "search.idle_devices")
    max_bubble_fraction: Figure | None = entry(
        "Share of the step that the pipeline may idle.", "search.max_bubble_fraction"
    )
    costs: CostBasisRecord = entry("Prices and powers that money and energy follow from.")
    sources: list[str] = entry("Files that were read.")
    document: dict[str, Any] = entry("The job itself with the contents of its files, which can be planned again.")

    @classmethod
    def of(cls, problem: Problem) -> JobRecord:
        """The record of a job."""
        sources = [str(path) for path in problem.sources]
        return cls.read(problem, sources=sources, costs=CostBasisRecord.of(problem))


class ModelRecord(Record):
    """What is trained."""

    name: str = entry("What it is called.")
    source: str = entry("Where its numbers come from.")
    is_text_part: bool = entry("Whether it is the text part of a multimodal model, whose other parts are not planned.")
    num_layers: int = entry("Layers, multi-token prediction not counted.")
    parameters: int = entry("All parameters, those of multi-token prediction not counted.")
    active_parameters: int = entry("Those that one token meets.")
    mtp_parameters: int = entry("Those of multi-token prediction.")
    flops_per_token: Figure = entry("Forward and backward pass, multi-token prediction included.")


class ClusterRecord(Record):
    """On what."""

    device: str = entry("What one device is called.", "device.name")
    num_devices: int = entry("Devices that plans may use.")
    num_nodes: int = entry("Their nodes.")
    num_spare_nodes: int = entry("Further nodes that the job keeps out as spares.")
    devices_per_node: int = entry("Devices that share a node.", "device.devices_per_node")
    scale_up_network: str = entry("Network of such a domain: nvlink, infinity_fabric, pcie, ...")
    scale_up_size: int = entry("Devices of one scale-up domain.")
    memory_bytes: Figure = entry("Memory of one device.", "device.memory_bytes")
    host_memory_bytes_per_device: Figure = entry(
        "The share of one device of the host's memory.", "device.host_memory_bytes"
    )
    device_note: str | None = entry("What the name that the job gave the device leaves open; null: nothing.")
    framework: str | None = entry("What trains.")
    framework_is_assumed: bool = entry("Whether the job named no framework.")
    framework_hint: str | None = entry("What to write for another where the job named none; else null.")
    framework_is_extrapolated: bool = entry("Whether no run of it on such devices is known.")
    framework_doubt: str | None = entry("For which release that no file knows it stands; null: for none.")
    settings: dict[str, bool | int | float | str] = entry(
        "What the framework is told, its recipes' defaults included; of several values those of the best plan."
    )

    @classmethod
    def of(cls, problem: Problem) -> ClusterRecord:
        """The record of a job's cluster."""
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
    """What is trained per step and in total."""

    global_batch_size: int = entry("Sequences per step.")
    sequence_length: int = entry("Tokens per sequence.")
    tokens_per_step: int = entry("Tokens per step.")
    tokens: Figure = entry("Tokens of the whole training.")
    precision: str = entry("Name of the recipe.", "precision.name")

    @classmethod
    def of(cls, workload: Workload) -> TrainingRecord:
        """The record of a workload."""
        return cls.read(workload, tokens_per_step=workload.global_batch_size * workload.sequence_length)


class RecoveryRecord(Record):
    """One way to recover."""

    name: str = entry("What restarts.")
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
    def of(cls, problem: Problem) -> ReliabilityRecord:
        """The record of a job's failures and checkpoints."""
        reliability = problem.reliability
        return cls.read(
            reliability,
            failures_per_day=reliability.failures_per_node_day * problem.facts.cluster.num_nodes,
            recovery=problem.recovery,
        )


class ConventionsRecord(Record):
    """How to compare the figures with others'."""

    peak_dtype: str = entry("Data type of the dense peak that MFU and HFU refer to.")
    peak_tflops_per_gpu: Figure = entry("That peak.")
    peak_bf16_tflops_per_gpu: Figure | None = entry(
        "The dense bf16 peak, which mfu_bf16 refers to; null where the device has none."
    )
    attention: Literal["full", "causal"] = entry(
        "Whether scores that the causal mask hides count as FLOPs: full or causal."
    )
    mfu: str = entry("What MFU means, in words.")
    hfu: str = entry("What HFU means, in words.")
    operator_times: dict[str, str] = entry("Who timed each operator.")

    @classmethod
    def of(cls, conventions: Conventions) -> ConventionsRecord:
        """The record of a report's conventions."""
        return cls.read(
            conventions,
            peak_tflops_per_gpu=conventions.peak_flops / 1e12,
            peak_bf16_tflops_per_gpu=conventions.peak_bf16_flops and conventions.peak_bf16_flops / 1e12,
            mfu="model FLOPs (forward and backward pass, multi-token prediction included) over the dense peak",
            hfu="model FLOPs and recomputed forward FLOPs over the dense peak",
        )


class OperatorRecord(Record):
    """How sure the time of an operator is."""

    name: str = entry("As the cost model names it.")
    share: Figure = entry("Its share of the step.")
    relative_deviation: Figure = entry("Standard deviation of the logarithm of its time.")
    origin: str = entry("Who timed it.")
    is_sampled: bool = entry("Whether samples did.")
    is_outside: bool = entry("Whether its shape is outside of the samples' range, so that their roofline speaks.")


class SettingRecord(Record):
    """What every report begins with."""

    format_version: int = entry("Grows when an entry changes its name, unit or meaning; new entries do not count.")
    kind: str = entry("Of which kind the report is.")
    job: JobRecord = entry("What was asked.")
    model: ModelRecord = entry("What is trained.")
    cluster: ClusterRecord = entry("What it is trained on.")
    training: TrainingRecord = entry("How it is trained.")
    reliability: ReliabilityRecord = entry("Failures and checkpoints.")
    conventions: ConventionsRecord = entry("How to read MFU and HFU, and who timed the operators.")
    operators: list[OperatorRecord] = entry(
        "Operators of the first plan, those first that leave most of its step open; none where no samples time them."
    )
    targets: dict[str, str | None] = entry(
        "Targets of planner export, each with the first reason why it cannot run the best plan; null: it can."
    )

    @classmethod
    def of_job(cls, report: PlanReport | EstimateReport, kind: str) -> SettingRecord:
        """What a report of that kind begins with."""
        chosen = report.chosen
        return SettingRecord(
            format_version=FORMAT_VERSION,
            kind=kind,
            job=JobRecord.of(report.problem),
            model=ModelRecord.read(report.model),
            cluster=ClusterRecord.of(chosen),
            training=TrainingRecord.of(chosen.facts.workload),
            reliability=ReliabilityRecord.of(chosen),
            conventions=ConventionsRecord.of(report.conventions),
            operators=[OperatorRecord.read(one) for one in report.plans[0].operators] if report.plans else [],
            targets=targets_of(report.plans[0]) if report.plans else {},
        )
