"""When to save checkpoints, and what the whole training then takes: MoFa, section 3.4 and equation (44)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from costmodel import reliability as formulas
from costmodel.errors import SpecError
from costmodel.facts.cluster import Cluster
from costmodel.facts.reliability import Reliability
from costmodel.facts.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSchedule:
    """
    A checkpoint interval and the training that follows from it.

    Parameters
    ----------
    interval_steps, interval_seconds
        Steps from one checkpoint to the next, K, and their time without interruptions.
    continuous_interval_steps
        The interval before rounding, equation (44); infinite where nothing fails.
    num_steps
        Optimizer steps of the whole training.
    effective_seconds, interruption_seconds, total_seconds
        Time with progress, without it, and their sum.
    failures
        Mean failures of the whole training.
    ettr
        Effective training time ratio: the first of these times over the last.
    days, gpu_hours
        The total time in days, and times the devices in hours.
    """

    interval_steps: int
    interval_seconds: float
    continuous_interval_steps: float
    num_steps: int
    effective_seconds: float
    interruption_seconds: float
    total_seconds: float
    failures: float
    ettr: float
    days: float
    gpu_hours: float


def schedule_checkpoints(
    cluster: Cluster, workload: Workload, reliability: Reliability, *, step_seconds: float
) -> CheckpointSchedule:
    """
    The schedule with the shortest total time, MoFa equations (43) and (44).

    A checkpoint that is written beside the training is on storage before the next one starts.

    Parameters
    ----------
    cluster, workload, reliability
        Nodes, tokens and failures.
    step_seconds
        One step without interruptions.

    Raises
    ------
    SpecError
        If failures outrun progress even with a checkpoint after every step.
    """
    _refuse_standstill(cluster, reliability, interval_steps=1, step_seconds=step_seconds)
    num_steps = formulas.num_steps(workload)
    continuous = formulas.optimal_interval_steps(cluster, reliability, num_steps=num_steps, step_seconds=step_seconds)
    shortest = min(max(math.ceil(reliability.write_seconds / step_seconds), 1), num_steps)
    inside = min(max(continuous, shortest), num_steps)
    # The total time has one minimum, so that no interval is better than both roundings. Both leave progress if an
    # interval of 1 does: equation (44) stays below half of the interval that leaves none.
    roundings = (
        schedule_every(cluster, workload, reliability, step_seconds=step_seconds, interval_steps=steps)
        for steps in (math.floor(inside), math.ceil(inside))
    )
    return min(roundings, key=lambda one: one.total_seconds)


def schedule_every(
    cluster: Cluster, workload: Workload, reliability: Reliability, *, step_seconds: float, interval_steps: int
) -> CheckpointSchedule:
    """
    The schedule of a given interval, MoFa equations (36)-(39).

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
    return CheckpointSchedule(
        interval_steps=interval_steps,
        interval_seconds=interval_steps * step_seconds,
        continuous_interval_steps=formulas.optimal_interval_steps(
            cluster, reliability, num_steps=num_steps, step_seconds=step_seconds
        ),
        num_steps=num_steps,
        effective_seconds=effective,
        interruption_seconds=interruption,
        total_seconds=total,
        failures=failures,
        ettr=formulas.ettr_fraction(effective_seconds=effective, interruption_seconds=interruption),
        days=total / formulas.DAY,
        gpu_hours=total / 3600 * cluster.num_devices,
    )


def schedules_around(
    cluster: Cluster, workload: Workload, reliability: Reliability, *, step_seconds: float, best: CheckpointSchedule
) -> tuple[CheckpointSchedule, ...]:
    """
    What other intervals than the best one would do, it included, shortest first; spaced evenly in their logarithm.

    From one step to :data:`MOST_TIMES` the best interval, as far as failures leave :data:`LEAST_PROGRESS` of the time.
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
"""The longest interval that is shown, as a multiple of the best one; intervals, equals by rounding counted."""

LEAST_PROGRESS = 0.5
"""Share of the time that failures must leave for an interval to be worth showing."""


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
