"""Checkpoint intervals, the time and costs of the whole training; MoFa, section 3.4 and equation (44)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodel import catalog
from costmodel import reliability as formulas
from costmodel.errors import SpecError
from costmodel.facts.device import Cluster
from costmodel.facts.fields import Dtype
from costmodel.facts.reliability import Costs, Reliability
from costmodel.facts.workload import Workload
from costmodel.lowering import embedding_operators, head_operators, layer_operators, mtp_operators
from costmodel.models.flops import (
    AttentionConvention,
    active_parameters,
    model_flops_per_token,
    mtp_parameters,
    parameters,
    whole_shape,
)
from costmodel.record import record
from costmodel.step.estimate import Part
from costmodel.tables import Facts
from costmodel.timing.source import operator_times
from costmodel.timing.work import Operator

if TYPE_CHECKING:
    from costmodel.costs import TrainingCosts


@record(frozen=True, kw_only=True, slots=True)
class CheckpointSchedule:
    """
    A checkpoint interval and the training that follows from it.

    Parameters
    ----------
    interval_steps, interval_seconds
        Steps from one checkpoint to the next, K, and their time without interruptions.
    continuous_interval_steps
        The interval before rounding, equation (44); infinite where nothing fails.
    num_checkpoints
        Checkpoints of the whole training.
    write_fraction
        Share of the time without failures in which checkpoints are written to storage.
    num_steps
        Optimizer steps of the whole training.
    effective_seconds, interruption_seconds, total_seconds
        Time with progress, time without, and their sum.
    evaluation_seconds, loading_seconds
        Time of evaluations and of waits for data, parts of the interruptions.
    failures
        Mean failures of the whole training.
    ettr
        Effective training time ratio: effective over total time.
    days, gpu_hours
        Total time in days, and in device-hours.
    """

    interval_steps: int
    interval_seconds: float
    continuous_interval_steps: float
    num_checkpoints: int
    write_fraction: float
    num_steps: int
    effective_seconds: float
    interruption_seconds: float
    total_seconds: float
    evaluation_seconds: float
    loading_seconds: float
    failures: float
    ettr: float
    days: float
    gpu_hours: float


def schedule_checkpoints(
    cluster: Cluster, workload: Workload, reliability: Reliability, *, step_seconds: float
) -> CheckpointSchedule:
    """
    Choose the schedule with the shortest total time, MoFa equations (43) and (44).

    An asynchronous checkpoint is on storage before the next one starts. Storage is written for no larger share of the
    time than allowed (:func:`costmodel.reliability.shortest_interval_steps`).

    Parameters
    ----------
    cluster, workload, reliability
        Nodes, tokens and failures.
    step_seconds
        Time of one step without interruptions.

    Raises
    ------
    SpecError
        If failures outrun progress even with a checkpoint after every step, or with as many as storage can take.
    """
    _refuse_standstill(cluster, reliability, interval_steps=1, step_seconds=step_seconds)
    num_steps = formulas.num_steps(workload)
    shortest = min(formulas.shortest_interval_steps(reliability, step_seconds=step_seconds), num_steps)
    _refuse_slow_storage(cluster, reliability, interval_steps=shortest, step_seconds=step_seconds)
    continuous = formulas.optimal_interval_steps(cluster, reliability, num_steps=num_steps, step_seconds=step_seconds)
    inside = min(max(continuous, shortest), num_steps)
    # The total time has one minimum, so that no interval is better than both roundings. Both leave progress if the
    # shortest interval does: equation (44) stays below half of the interval that leaves none.
    roundings = (
        schedule_every(cluster, workload, reliability, step_seconds=step_seconds, interval_steps=steps)
        for steps in (math.floor(inside), math.ceil(inside))
    )
    return min(roundings, key=lambda one: one.total_seconds)


def schedule_every(
    cluster: Cluster, workload: Workload, reliability: Reliability, *, step_seconds: float, interval_steps: int
) -> CheckpointSchedule:
    """
    Return the schedule of a given interval, MoFa equations (36)-(39).

    Raises
    ------
    SpecError
        If failures outrun progress with this interval.
    """
    _refuse_standstill(cluster, reliability, interval_steps=interval_steps, step_seconds=step_seconds)
    num_steps = formulas.num_steps(workload)
    total = formulas.total_seconds(
        cluster, reliability, interval_steps=interval_steps, num_steps=num_steps, step_seconds=step_seconds
    )
    effective = formulas.effective_seconds(num_steps=num_steps, step_seconds=step_seconds)
    failures = formulas.num_failures(cluster, reliability, total_seconds=total)
    interruption = formulas.interruption_seconds(
        reliability, failures=failures, interval_steps=interval_steps, num_steps=num_steps, step_seconds=step_seconds
    )
    interval_seconds = interval_steps * step_seconds
    return CheckpointSchedule(
        interval_steps=interval_steps,
        interval_seconds=interval_seconds,
        num_checkpoints=num_steps // interval_steps,
        write_fraction=reliability.storage_seconds / (interval_seconds + reliability.checkpoint_seconds),
        continuous_interval_steps=formulas.optimal_interval_steps(
            cluster, reliability, num_steps=num_steps, step_seconds=step_seconds
        ),
        num_steps=num_steps,
        effective_seconds=effective,
        interruption_seconds=interruption,
        total_seconds=total,
        evaluation_seconds=reliability.evaluation_fraction * effective,
        loading_seconds=reliability.loading_seconds * num_steps,
        failures=failures,
        ettr=formulas.ettr_fraction(effective_seconds=effective, interruption_seconds=interruption),
        days=total / formulas.DAY,
        gpu_hours=total / 3600 * cluster.num_devices,
    )


def schedule_costs(
    schedule: CheckpointSchedule,
    costs: Costs,
    cluster: Cluster,
    *,
    num_waiting: int,
    breakdowns: Sequence[Sequence[Part]],
) -> TrainingCosts:
    """
    Compute the costs of the training of a schedule.

    Parameters
    ----------
    schedule, costs
        Times of the training, and prices.
    cluster
        Devices that train.
    num_waiting
        Devices that are held in addition and wait.
    breakdowns
        Parts of the step on each pipeline rank.
    """
    from costmodel.costs import Devices, computing_fraction, stepping_seconds, training_costs

    devices = Devices(
        num_devices=cluster.num_devices,
        num_waiting=num_waiting,
        total_seconds=schedule.total_seconds,
        stepping_seconds=stepping_seconds(
            effective_seconds=schedule.effective_seconds + schedule.evaluation_seconds,
            failures=schedule.failures,
            interval_seconds=schedule.interval_seconds,
        ),
    )
    return training_costs(
        devices,
        costs,
        catalog.power_draw(),
        power_watts=cluster.device.power_watts,
        computing_fraction=computing_fraction(breakdowns),
    )


def schedules_around(
    cluster: Cluster, workload: Workload, reliability: Reliability, *, step_seconds: float, best: CheckpointSchedule
) -> tuple[CheckpointSchedule, ...]:
    """
    Return schedules for intervals around the best one, shortest first; spaced evenly in their logarithm.

    Intervals go from one step to :data:`MOST_TIMES` the best one, as far as failures leave :data:`LEAST_PROGRESS` of
    the time.
    """
    most = min(best.num_steps, MOST_TIMES * best.interval_steps)
    spaced = {round(most ** (index / NUM_INTERVALS)) for index in range(NUM_INTERVALS + 1)}
    return tuple(
        schedule_every(cluster, workload, reliability, step_seconds=step_seconds, interval_steps=steps)
        for steps in sorted({best.interval_steps, *spaced})
        if formulas.progress_fraction(cluster, reliability, interval_steps=steps, step_seconds=step_seconds)
        >= LEAST_PROGRESS
        or steps == best.interval_steps
    )


MOST_TIMES, NUM_INTERVALS = 100, 60

"""Longest interval that is shown, as a multiple of the best one; number of intervals, duplicates included."""

LEAST_PROGRESS = 0.5

"""Least share of the time that failures leave at a shown interval."""


def _refuse_standstill(cluster: Cluster, reliability: Reliability, *, interval_steps: int, step_seconds: float) -> None:
    progress = formulas.progress_fraction(
        cluster, reliability, interval_steps=interval_steps, step_seconds=step_seconds
    )
    if progress > 0:
        return
    per_day = formulas.failures_per_second(cluster, reliability) * formulas.DAY
    lost = formulas.failure_seconds(reliability, interval_steps=interval_steps, step_seconds=step_seconds)
    raise SpecError(
        "reliability",
        f"failures outrun progress: {per_day:.4g} failures a day on {cluster.num_nodes} nodes, {lost:.4g} s lost to "
        f"each with a checkpoint every {interval_steps} steps of {step_seconds:.4g} s, are {1 - progress:.4g} s lost "
        f"in every second.",
        "Lower failures_per_node_day, mttr_seconds or the number of nodes.",
    )


def _refuse_slow_storage(
    cluster: Cluster, reliability: Reliability, *, interval_steps: int, step_seconds: float
) -> None:
    """Refuse storage that is too slow for progress between failures, and suggest a sufficient bandwidth."""
    progress = formulas.progress_fraction(
        cluster, reliability, interval_steps=interval_steps, step_seconds=step_seconds
    )
    if progress > 0:
        return
    hint = "Raise storage_bandwidth or max_write_fraction, or lower failures_per_node_day."
    saved, longest = reliability.checkpoint, formulas.longest_interval_seconds(cluster, reliability)
    if saved is not None and longest > step_seconds:
        share = reliability.max_write_fraction * (longest - step_seconds)
        hint = f"The smallest that would do is some {saved.nbytes / share:.3g} bytes per second. {hint}"
    raise SpecError(
        f"reliability.{'checkpoint_seconds' if saved and saved.is_measured else 'storage_bandwidth'}",
        f"no schedule keeps up with it: a checkpoint takes storage {reliability.storage_seconds:.4g} s, so that one is "
        f"saved every {interval_steps * step_seconds:.4g} s at best, in which failures leave no progress.",
        hint,
    )


@record(frozen=True, kw_only=True, slots=True)
class ModelSummary:
    """
    Key numbers of the trained model.

    Parameters
    ----------
    name, source
        Name of the model, and source of its numbers.
    is_text_part
        True for the text part of a multimodal model.
    doubts
        Entries of its config.json that contradict each other where its class ignores one; empty: none.
    num_layers
        Number of layers, without multi-token prediction.
    parameters, active_parameters, mtp_parameters
        Number of all; of those that one token meets; of those of multi-token prediction, counted in neither.
    flops_per_token
        FLOPs of forward and backward pass, with multi-token prediction, in the report's attention convention.
    """

    name: str
    source: str
    is_text_part: bool
    doubts: str
    num_layers: int
    parameters: int
    active_parameters: int
    mtp_parameters: int
    flops_per_token: float


@record(frozen=True, kw_only=True, slots=True)
class Conventions:
    """
    Conventions of a report's figures.

    Parameters
    ----------
    peak_dtype, peak_flops
        Dense peak to which MFU and HFU refer.
    peak_bf16_flops
        Dense bf16 peak, for any precision; None: the device has none.
    attention
        ``full``: the scores that the causal mask hides count as FLOPs; ``causal``: they do not.
    operator_times
        Source of each operator's time.
    """

    peak_dtype: Dtype
    peak_flops: float
    peak_bf16_flops: float | None
    attention: AttentionConvention
    operator_times: Mapping[str, str]


def conventions_of(facts: Facts) -> Conventions:
    """Return the conventions of a job's figures; once for equal facts."""
    return facts.compute_once(conventions_of, lambda: _read_conventions(facts))


def _read_conventions(facts: Facts) -> Conventions:
    device, dtype = facts.cluster.device, facts.workload.precision.compute
    times = operator_times(device, dtype)
    return Conventions(
        peak_dtype=dtype,
        peak_flops=device.peak_flops[dtype],
        peak_bf16_flops=device.peak_flops.get("bf16"),
        attention="causal" if device.behaviour.kernels.causal_attention else "full",
        operator_times={operator.name: times.origin(operator) for operator in _every_operator(facts)},
    )


def _every_operator(facts: Facts) -> Iterable[Operator]:
    """Yield each operator at least once, in the order of a forward pass; samples know it by dtype and framework."""
    model, device, compute = facts.model, facts.cluster.device, facts.workload.precision.compute
    shape = replace(whole_shape(model), compute_dtype=compute, wide_dtype=device.wide_dtype(compute))
    if device.constants.times == "sampled":
        shape = replace(shape, kernels=device.behaviour.kernels)
    yield from embedding_operators(model, shape)
    for layer in model.kinds:
        yield from layer_operators(layer, shape)
    yield from head_operators(model, shape)
    yield from mtp_operators(model, shape)


def model_summary(facts: Facts, conventions: Conventions) -> ModelSummary:
    """Return the key numbers of a job's model."""
    model = facts.model
    return ModelSummary(
        name=model.name,
        source=model.source,
        is_text_part=model.is_text_part,
        doubts=model.doubts,
        num_layers=model.num_layers,
        parameters=parameters(model),
        active_parameters=active_parameters(model),
        mtp_parameters=mtp_parameters(model),
        flops_per_token=model_flops_per_token(
            model, facts.workload.sequence_length, conventions.attention, facts.workload.lengths
        ),
    )
