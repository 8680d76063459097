"""The plots of a page as plain data; every text in them comes from the wording of reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from costmodel import GIB_BYTES
from costmodel.reliability import shortest_interval_steps
from costmodel.step.estimate import PARTS
from planner.jobs.checkpoints import CheckpointSchedule, schedules_around
from planner.report.reasons import constraint_text
from planner.report.records.plan import StrategyRecord
from planner.report.section import count, gib, part_label, seconds, share, span
from planner.uncertainty.intervals import COVERAGE, Interval
from planner.uncertainty.peaks import COVERAGE as PEAK_COVERAGE
from planner.uncertainty.peaks import peak_interval
from planner.uncertainty.records import strategy_interval

if TYPE_CHECKING:
    from costmodel.facts.device import Cluster
    from planner.jobs.problem import Problem
    from planner.report.html.shown import Shown
    from planner.report.records.explained import BindingRecord
    from planner.report.records.plan import MemoryRecord, PlanRecord, RankRecord
    from planner.report.records.reports import ReportRecord
    from planner.results import Plan
    from planner.verbs.explain import Difference, Explanation
    from planner.verbs.pareto import Point

Chart: TypeAlias = dict[str, Any]


def steps_chart(every: Sequence[Shown]) -> Chart:
    """Build the bars of each plan's step: exposed parts make up the step, hidden ones overlap with computation."""
    return {
        "type": "bars",
        "axis": "seconds per step",
        "without": "compute",
        "order": list(PARTS),
        "rows": [_step(one.name, one.record) for one in every],
    }


def _step(name: str, plan: PlanRecord) -> Chart:
    return {
        "label": name,
        "text": f"{seconds(plan.step_time_seconds)} s",
        "parts": list(_parts(plan, "exposed")),
        "hidden": list(_parts(plan, "hidden")),
        **step_range(plan),
    }


def step_range(plan: PlanRecord) -> Chart:
    """Return the interval of a measured step, to be drawn on a bar."""
    return range_of(plan.step_time_interval_seconds, seconds, " s")


def range_of(ends: Sequence[float], text: Callable[[float], str], unit: str = "") -> Chart:
    """Return the interval of a measured figure with its text, to be drawn on a bar."""
    return {"range": list(ends), "range_text": f"{COVERAGE:.0%}: {' to '.join(map(text, ends))}{unit}"}


def _parts(plan: PlanRecord, kind: str) -> Iterator[Chart]:
    for part in plan.breakdown:
        value = part.exposed_seconds if kind == "exposed" else part.hidden_seconds
        if value > 0:
            of_step = share(value, plan.step_time_seconds)
            text = f"{seconds(value)} s {kind}, {of_step} of the step"
            yield {"name": part.name, "label": part_label(part.name), "value": value, "text": text}


def memory_chart(cluster: Cluster, memory: MemoryRecord, *, headroom_bytes: float) -> Chart:
    """
    Build the columns of the memory of each pipeline rank, with the limits of the GPU and of the job.

    Parameters
    ----------
    cluster
        The cluster, whose measured runs give the interval of a peak.
    memory
        The memory of a strategy.
    headroom_bytes
        Device memory that the job leaves free.
    """
    capacity = cluster.device.memory_bytes
    lines = [{"value": capacity / GIB_BYTES, "text": f"a GPU has {gib(capacity)}", "hard": True}]
    if headroom_bytes:
        available_bytes = capacity - headroom_bytes
        lines.append(
            {"value": available_bytes / GIB_BYTES, "text": f"the job's limit {gib(available_bytes)}", "hard": False}
        )
    return {
        "type": "columns",
        "axis": "GiB per GPU",
        "label": "pipeline rank",
        "lines": lines,
        "columns": [_column(cluster, rank) for rank in memory.ranks],
        "range_label": f"{PEAK_COVERAGE:.0%} of measured peaks",
    }


def _column(cluster: Cluster, rank: RankRecord) -> Chart:
    ends = peak_interval(cluster, device_bytes=rank.peak_memory_bytes)
    peak = f"{gib(rank.peak_memory_bytes)} GiB ({PEAK_COVERAGE:.0%}: {' to '.join(map(gib, ends))})"
    return {
        "label": str(rank.rank),
        "text": f"rank {rank.rank}, {count(rank.num_layers, 'layer')}: {peak}",
        "range": [end / GIB_BYTES for end in ends],
        "parts": [
            {"name": name, "value": nbytes / GIB_BYTES, "text": f"{gib(nbytes)} GiB"}
            for name, nbytes in rank.bytes.items()
            if nbytes
        ],
    }


# --- checkpoints -------------------------------------------------------------------------------------------


Ends: TypeAlias = tuple[CheckpointSchedule, CheckpointSchedule]
"""A schedule with the ends of the interval of measured steps; the predicted one where failures outrun progress."""


def intervals_of(plan: Plan) -> list[tuple[CheckpointSchedule, Ends]]:
    """Return the schedules of checkpoint intervals for a plan, its own among them, with their ends."""
    around = schedules_around(
        plan.cluster, plan.facts.workload, plan.reliability, step_seconds=plan.step_seconds, best=plan.schedule
    )
    return [(one, plan.schedule_ends(one)) for one in around]


def checkpoint_charts(every: Sequence[tuple[str, Plan]]) -> dict[str, Chart]:
    """Build the plots of ETTR and days over the checkpoint interval, the best one marked, for one plan or several."""
    shared: Chart = {"type": "lines", "x": {"label": "steps between checkpoints", "log": True}}
    shortest = [shortest_interval_steps(plan.reliability, step_seconds=plan.step_seconds) for _, plan in every]
    if min(shortest) > 1:
        shared["bands"] = [{"until": min(shortest), "text": "storage is written for too much of the time"}]
    found = [(name, intervals_of(plan)) for name, plan in every]

    def chart(label: str, value: Callable[[CheckpointSchedule], float]) -> Chart:
        series = [
            {
                "name": name,
                "points": [[one.interval_steps, value(one), _point_text(name, one, ends)] for one, ends in intervals],
                "spread": [sorted(map(value, ends)) for _, ends in intervals],
            }
            for name, intervals in found
        ]
        marks = [_mark(plan.schedule, value(plan.schedule)) for _, plan in every]
        return {**shared, "y": {"label": label}, "series": series, "marks": marks}

    return {
        "ettr": chart("ETTR, %", lambda one: 100 * one.ettr),
        "days": chart("days of training", lambda one: one.days),
    }


def _mark(schedule: CheckpointSchedule, value: float) -> Chart:
    return {"x": schedule.interval_steps, "y": value, "text": f"every {count(schedule.interval_steps, 'step')}"}


def _point_text(name: str, own: CheckpointSchedule, ends: Ends) -> str:
    """Describe a checkpoint interval with its ETTR and days."""
    every = f"every {count(own.interval_steps, 'step')} ({span(own.interval_seconds)})"
    text = f"{every}: ETTR {own.ettr:.2%}, {own.days:,.2f} days ({COVERAGE:.0%}: {days_text(ends)})"
    return f"{name}\n{text}" if name else text


def days_text(ends: Ends) -> str:
    """Write the ends of an interval of days."""
    return " to ".join(f"{one.days:,.2f}" if one.days < LONG_DAYS else f"{one.days:,.0f}" for one in ends)


LONG_DAYS = 100
"""Days from which on an interval has no hundredths of them."""


# --- binding constraints, and differences ------------------------------------------------------------------


def bindings_chart(explanation: Explanation, bindings: Sequence[BindingRecord], noise_fraction: float) -> Chart:
    """Build the bars of the time that each constraint costs, with the error of differences between predictions."""
    base = explanation.compared_seconds
    return {
        "type": "bars",
        "axis": "seconds that a step would save without it",
        "rows": [
            {
                "label": constraint_text(one),
                "text": f"{own.saved_fraction:.2%} less, {seconds(own.saved_seconds)} s",
                "parts": [
                    {
                        "name": "saved",
                        "label": "saved",
                        "value": own.saved_seconds,
                        "text": f"{seconds(own.step_seconds)} s" + ("" if own.is_proven else ", not proven"),
                    }
                ],
                **savings_range(base, own.step_seconds, noise_fraction),
            }
            for one, own in zip(bindings, explanation.bindings, strict=True)
        ],
    }


def savings_range(base: float, other: float, noise_fraction: float) -> Chart:
    """Return the interval of the seconds by which a step is shorter than the base, to be drawn on a bar."""
    ends = (base - other * (1 + noise_fraction), base - other / (1 + noise_fraction))
    return range_of(ends, "{:+,.3f}".format, " s")


def differences_chart(differences: Sequence[Difference], given: Plan, best: Plan, gain: tuple[float, float]) -> Chart:
    """Build the bars of the seconds by which each part of the given step is longer, with the ends of the gain."""
    rows = [("step", given.step_seconds - best.step_seconds)]
    least = LEAST_SHOWN * given.step_seconds
    rows += [(part_label(one.name), one.difference_seconds) for one in differences if _is_seen(one, least)]
    of_step = range_of([end * given.step_seconds for end in gain], "{:+,.3f}".format, " s")
    return {
        "type": "changes",
        "axis": "seconds per step longer (right) or shorter (left)",
        "rows": [
            {
                "label": name,
                "text": f"{value:+,.3f} s",
                "value": value,
                **(of_step if name == "step" else {}),
            }
            for name, value in rows
        ],
    }


LEAST_SHOWN = 0.001
"""Share of the step from which on a difference has a bar."""


def _is_seen(difference: Difference, least: float) -> bool:
    return abs(difference.difference_seconds) >= least


# --- step time against memory ------------------------------------------------------------------------------


MOST_TIMES = 4
"""Points of the Pareto front that are this many times slower than the fastest are in the table only."""


def pareto_chart(whole: ReportRecord, points: Sequence[Point], problem: Problem) -> Chart:
    """
    Build the plot of the best step time for each amount of memory, with intervals of measured steps and peaks.

    Parameters
    ----------
    whole
        The record of the job.
    points
        The fastest strategy for each amount.
    problem
        The job.
    """
    capacity, facts = whole.cluster.memory_bytes, problem.facts
    fastest = min(one.estimate.step_seconds for one in points)
    shown = [
        (
            one,
            strategy_interval(facts, one.estimate),
            peak_interval(facts.cluster, device_bytes=one.estimate.device_bytes),
        )
        for one in points
        if one.estimate.step_seconds <= MOST_TIMES * fastest
    ]
    marks = [
        {"x": chosen.peak_memory_bytes / GIB_BYTES, "y": chosen.step_time_seconds, "text": "strategy 1"}
        for chosen in whole.plans[:1]
    ]
    series = {
        "points": [_pareto_point(problem, *one) for one in shown],
        "spread": [[step.low_seconds, step.high_seconds] for _, step, _ in shown],
        "sideways": [[end / GIB_BYTES for end in peak] for *_, peak in shown],
        "step": True,
        "dots": True,
    }
    return {
        "type": "lines",
        "x": {"label": "memory limit, GiB per GPU", "log": False},
        "y": {"label": "seconds per step", "log": True},
        "series": [series],
        "marks": marks,
        "verticals": [{"x": capacity / GIB_BYTES, "text": f"a GPU has {gib(capacity)}"}],
    }


def _pareto_point(problem: Problem, point: Point, step: Interval, peak: tuple[float, float]) -> list[Any]:
    """Return the least memory of a strategy, its step time, its text, its proof, and the limit in GiB."""
    used, strategy = point.estimate.device_bytes, point.estimate.strategy
    proof = "proven" if point.is_proven else "not proven: time ran out"
    text = (
        f"{gib(used)} GiB: {seconds(point.estimate.step_seconds)} s ({proof} within {gib(point.allowed_bytes)} GiB)\n"
        f"{COVERAGE:.0%}: {' to '.join(map(gib, peak))} GiB, "
        f"{seconds(step.low_seconds)} to {seconds(step.high_seconds)} s\n"
        f"{StrategyRecord.build(problem, strategy).line}"
    )
    return [used / GIB_BYTES, point.estimate.step_seconds, text, point.is_proven, point.allowed_bytes / GIB_BYTES]
