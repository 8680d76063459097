"""What was asked: job, model, cluster, training, failures; and the conventions of the figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from planner.report.framework import ASSUMED, is_assumed, is_extrapolated
from planner.report.records.record import Figure, Record

if TYPE_CHECKING:
    from costmodel.facts.spec import Workload
    from planner.jobs.problem import Problem
    from planner.plan import Conventions, EstimateReport, PlanReport

FORMAT_VERSION = 1
"""Grows when an entry changes its name, unit or meaning; new entries do not count."""


class JobRecord(Record):
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

    name: str
    objective: Literal["step_time", "total_time"]
    top: int
    variants: Literal["groups", "all"]
    memory_headroom_bytes: Figure
    framework_rules: bool
    max_devices: int | None
    max_bubble_fraction: Figure | None
    sources: list[str]
    document: dict[str, Any]

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

    name: str
    source: str
    num_layers: int
    parameters: int
    active_parameters: int
    mtp_parameters: int
    flops_per_token: Figure


class ClusterRecord(Record):
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

    device: str
    num_devices: int
    num_nodes: int
    devices_per_node: int
    scale_up_size: int
    memory_bytes: Figure
    host_memory_bytes_per_device: Figure
    framework: str | None
    framework_is_assumed: bool
    framework_hint: str | None
    framework_is_extrapolated: bool
    settings: dict[str, bool | int | str]

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

    global_batch_size: int
    sequence_length: int
    tokens_per_step: int
    tokens: Figure
    precision: str

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

    name: str
    probability: Figure
    seconds: Figure


class ReliabilityRecord(Record):
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

    failures_per_node_day: Figure
    mttr_seconds: Figure
    checkpoint_seconds: Figure
    init_seconds: Figure
    write_seconds: Figure
    failures_per_day: Figure
    recovery: list[RecoveryRecord]

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

    peak_dtype: str
    peak_tflops_per_gpu: Figure
    attention: Literal["full", "causal"]
    mfu: str
    hfu: str
    operator_times: dict[str, str]

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
    """
    What every report begins with.

    Parameters
    ----------
    format_version
        Grows when an entry changes its name, unit or meaning; new entries do not count.
    kind
        Of which kind the report is.
    job, model, cluster, training, reliability
        What was asked.
    conventions
        How to read MFU and HFU, and who timed the operators.
    """

    format_version: int
    kind: str
    job: JobRecord
    model: ModelRecord
    cluster: ClusterRecord
    training: TrainingRecord
    reliability: ReliabilityRecord
    conventions: ConventionsRecord

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
