"""What was asked: job, model, cluster, training, failures; and the conventions of the figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from planner.report.framework import ASSUMED, is_assumed, is_extrapolated
from planner.report.records.record import Figure, Record

if TYPE_CHECKING:
    from costmodel.facts.workload import Workload
    from planner.jobs.problem import Problem
    from planner.plan import Conventions, EstimateReport, PlanReport

FORMAT_VERSION = 1
"""Grows when an entry changes its name, unit or meaning; new entries do not count."""


class JobRecord(Record):
    """What was asked."""

    name: str = Field(description="The job file's name without its ending.")
    objective: Literal["step_time", "total_time"] = Field(
        description="What is as small as possible: step_time or total_time."
    )
    top: int = Field(description="How many plans.")
    variants: Literal["groups", "all"] = Field(description="Whether one plan per group of degrees or all.")
    memory_headroom_bytes: Figure = Field(description="Device memory to leave free.")
    framework_rules: bool = Field(description="Whether plans satisfy what Megatron-LM demands beyond the mathematics.")
    max_devices: int | None = Field(description="Devices that a plan may use at most; null: it uses all of them.")
    max_bubble_fraction: Figure | None = Field(description="Share of the step that the pipeline may idle.")
    sources: list[str] = Field(description="Files that were read.")
    document: dict[str, Any] = Field(
        description="The job itself with the contents of its files, which can be planned again."
    )

    @classmethod
    def of(cls, problem: Problem) -> JobRecord:
        """The record of a job."""
        search = problem.search
        return cls(
            name=problem.name,
            objective=problem.objective,
            top=problem.top,
            variants=problem.variants,
            memory_headroom_bytes=search.memory_headroom_bytes,
            framework_rules=search.framework_rules,
            max_devices=search.max_devices,
            max_bubble_fraction=search.max_bubble_fraction,
            sources=[str(path) for path in problem.sources],
            document=dict(problem.document),
        )


class ModelRecord(Record):
    """What is trained."""

    name: str = Field(description="What it is called.")
    source: str = Field(description="Where its numbers come from.")
    num_layers: int = Field(description="Layers, multi-token prediction not counted.")
    parameters: int = Field(description="All parameters, those of multi-token prediction not counted.")
    active_parameters: int = Field(description="Those that one token meets.")
    mtp_parameters: int = Field(description="Those of multi-token prediction.")
    flops_per_token: Figure = Field(description="Forward and backward pass, multi-token prediction included.")


class ClusterRecord(Record):
    """On what."""

    device: str = Field(description="What one device is called.")
    num_devices: int = Field(description="Devices.")
    num_nodes: int = Field(description="Nodes.")
    devices_per_node: int = Field(description="Devices that share a node.")
    scale_up_size: int = Field(description="Devices of one NVLink domain.")
    memory_bytes: Figure = Field(description="Memory of one device.")
    host_memory_bytes_per_device: Figure = Field(description="The share of one device of the host's memory.")
    framework: str | None = Field(description="What trains.")
    framework_is_assumed: bool = Field(description="Whether the job named no framework.")
    framework_hint: str | None = Field(description="What to write for another where the job named none; else null.")
    framework_is_extrapolated: bool = Field(description="Whether no run of it on such devices is known.")
    settings: dict[str, bool | int | str] = Field(
        description="What the framework is told, its recipes' defaults included."
    )

    @classmethod
    def of(cls, problem: Problem) -> ClusterRecord:
        """The record of a job's cluster."""
        cluster, device, assumed = problem.facts.cluster, problem.facts.cluster.device, is_assumed(problem)
        return cls(
            device=device.name,
            num_devices=cluster.num_devices,
            num_nodes=cluster.num_nodes,
            devices_per_node=device.devices_per_node,
            scale_up_size=cluster.scale_up_size,
            memory_bytes=device.memory_bytes,
            host_memory_bytes_per_device=device.host_memory_bytes,
            framework=cluster.framework.name if cluster.framework else None,
            framework_is_assumed=assumed,
            framework_hint=ASSUMED if assumed else None,
            framework_is_extrapolated=is_extrapolated(cluster),
            settings={name: value for name, value in asdict(cluster.settings).items() if value is not None},
        )


class TrainingRecord(Record):
    """What is trained per step and in total."""

    global_batch_size: int = Field(description="Sequences per step.")
    sequence_length: int = Field(description="Tokens per sequence.")
    tokens_per_step: int = Field(description="Tokens per step.")
    tokens: Figure = Field(description="Tokens of the whole training.")
    precision: str = Field(description="Name of the recipe.")

    @classmethod
    def of(cls, workload: Workload) -> TrainingRecord:
        """The record of a workload."""
        return cls(
            global_batch_size=workload.global_batch_size,
            sequence_length=workload.sequence_length,
            tokens_per_step=workload.global_batch_size * workload.sequence_length,
            tokens=workload.tokens,
            precision=workload.precision.name,
        )


class RecoveryRecord(Record):
    """One way to recover."""

    name: str = Field(description="What restarts.")
    probability: Figure = Field(description="Share of the failures that it recovers.")
    seconds: Figure = Field(description="From the failure to training again.")


class ReliabilityRecord(Record):
    """Failures and checkpoints."""

    failures_per_node_day: Figure = Field(description="Mean failures of one node in a day.")
    mttr_seconds: Figure = Field(description="Mean time from a failure to training again.")
    checkpoint_seconds: Figure = Field(description="Training time lost per checkpoint.")
    init_seconds: Figure = Field(description="From the start of the job to its first step.")
    write_seconds: Figure = Field(
        description="Time until a checkpoint is on storage, where training does not wait for it."
    )
    failures_per_day: Figure = Field(description="Mean failures of all nodes in a day.")
    recovery: list[RecoveryRecord] = Field(description="Ways to recover; empty where the job gives their mean.")

    @classmethod
    def of(cls, problem: Problem) -> ReliabilityRecord:
        """The record of a job's failures and checkpoints."""
        reliability = problem.reliability
        return cls(
            **asdict(reliability),
            failures_per_day=reliability.failures_per_node_day * problem.facts.cluster.num_nodes,
            recovery=[RecoveryRecord.model_validate(level) for level in problem.recovery],
        )


class ConventionsRecord(Record):
    """How to compare the figures with others'."""

    peak_dtype: str = Field(description="Data type of the dense peak that MFU and HFU refer to.")
    peak_tflops_per_gpu: Figure = Field(description="That peak.")
    attention: Literal["full", "causal"] = Field(
        description="Whether scores that the causal mask hides count as FLOPs: full or causal."
    )
    mfu: str = Field(description="What MFU means, in words.")
    hfu: str = Field(description="What HFU means, in words.")
    operator_times: dict[str, str] = Field(description="Who timed each operator.")

    @classmethod
    def of(cls, conventions: Conventions) -> ConventionsRecord:
        """The record of a report's conventions."""
        return cls(
            peak_dtype=conventions.peak_dtype,
            peak_tflops_per_gpu=conventions.peak_flops / 1e12,
            attention=conventions.attention,
            mfu="model FLOPs (forward and backward pass, multi-token prediction included) over the dense peak",
            hfu="model FLOPs and recomputed forward FLOPs over the dense peak",
            operator_times=dict(conventions.operator_times),
        )


class SettingRecord(Record):
    """What every report begins with."""

    format_version: int = Field(
        description="Grows when an entry changes its name, unit or meaning; new entries do not count."
    )
    kind: str = Field(description="Of which kind the report is.")
    job: JobRecord = Field(description="What was asked.")
    model: ModelRecord = Field(description="What is trained.")
    cluster: ClusterRecord = Field(description="What it is trained on.")
    training: TrainingRecord = Field(description="How it is trained.")
    reliability: ReliabilityRecord = Field(description="Failures and checkpoints.")
    conventions: ConventionsRecord = Field(description="How to read MFU and HFU, and who timed the operators.")

    @classmethod
    def of_job(cls, report: PlanReport | EstimateReport, kind: str) -> SettingRecord:
        """What a report of that kind begins with."""
        problem = report.problem
        return SettingRecord(
            format_version=FORMAT_VERSION,
            kind=kind,
            job=JobRecord.of(problem),
            model=ModelRecord.model_validate(report.model),
            cluster=ClusterRecord.of(problem),
            training=TrainingRecord.of(problem.facts.workload),
            reliability=ReliabilityRecord.of(problem),
            conventions=ConventionsRecord.of(report.conventions),
        )
