"""The plots of a page as plain data; every text in them comes from the wording of reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from costmodel.reliability import shortest_interval_steps
from costmodel.step.estimate import PARTS
from planner.checkpoints import CheckpointSchedule, schedules_around
from planner.report.reasons import constraint_text
from planner.report.records.strategy import StrategyRecord
from planner.report.strategies import strategy_text
from planner.report.wording import DAY_SECONDS, GIB_BYTES, count, gib, part_label, seconds, share, span

if TYPE_CHECKING:
    from planner.explanation.explain import Explanation
    from planner.plan import EstimateReport, Plan, PlanReport
    from planner.report.records.explained import BindingRecord
    from planner.report.records.plan import MemoryRecord, PlanRecord
    from planner.report.records.reports import ReportRecord
    from planner.report.records.setting import SettingRecord
    from planner.studies.pareto import ParetoFront, Point

Chart: TypeAlias = dict[str, Any]


def steps_chart(plans: Sequence[PlanRecord]) -> Chart:
    """Where the step of each plan goes: exposed parts make up the step, hidden ones overlap with computation."""
    return {
        "type": "bars",
        "axis": "seconds per step",
        "without": "compute",
        "order": list(PARTS),
        "rows": [_step(number, plan) for number, plan in enumerate(plans, start=1)],
    }


def _step(number: int, plan: PlanRecord) -> Chart:
    low, high = plan.step_time_interval_seconds
    return {
        "label": f"Strategy {number}",
        "text": f"{seconds(plan.step_time_seconds)} s",
        "parts": list(_parts(plan, "exposed")),
        "hidden": list(_parts(plan, "hidden")),
        "range": [low, high],
        "range_text": f"{plan.step_time_interval_probability:.0%} interval: {seconds(low)} to {seconds(high)} s",
    }


def _parts(plan: PlanRecord, kind: str) -> Iterator[Chart]:
    for part in plan.breakdown:
        value = part.exposed_seconds if kind == "exposed" else part.hidden_seconds
        if value > 0:
            of_step = share(value, plan.step_time_seconds)
            text = f"{seconds(value)} s {kind}, {of_step} of the step"
            yield {"name": part.name, "label": part_label(part.name), "value": value, "text": text}


def memory_chart(setting: SettingRecord, memory: MemoryRecord) -> Chart:
    """What each pipeline rank holds, against what a GPU has and what the job leaves free."""
    capacity, reserve = setting.cluster.memory_bytes, setting.job.memory_headroom_bytes
    lines = [{"value": capacity / GIB_BYTES, "text": f"a GPU has {gib(capacity)}", "hard": True}]
    if reserve:
        available_bytes = capacity - reserve
        lines.append(
            {"value": available_bytes / GIB_BYTES, "text": f"the job's limit {gib(available_bytes)}", "hard": False}
        )
    return {
        "type": "columns",
        "axis": "GiB per GPU",
        "label": "pipeline rank",
        "lines": lines,
        "columns": [
            {
                "label": str(rank.rank),
                "text": f"rank {rank.rank}, {count(rank.num_layers, 'layer')}: {gib(rank.peak_memory_bytes)} GiB",
                "parts": [
                    {"name": name, "value": nbytes / GIB_BYTES, "text": f"{gib(nbytes)} GiB"}
                    for name, nbytes in rank.bytes.items()
                    if nbytes
                ],
            }
            for rank in memory.ranks
        ],
    }


def schedules_of(report: PlanReport | EstimateReport, plan: Plan) -> tuple[CheckpointSchedule, ...]:
    """What other checkpoint intervals would do for a plan."""
    return schedules_around(
        plan.cluster,
        plan.facts.workload,
        plan.reliability,
        step_seconds=plan.step_seconds,
        best=plan.schedule,
    )


def checkpoint_charts(report: PlanReport | EstimateReport, plan: Plan) -> tuple[Chart, Chart]:
    """ETTR and days against the checkpoint interval, the best one marked."""
    schedules, best = schedules_of(report, plan), plan.schedule
    shortest = shortest_interval_steps(plan.reliability, step_seconds=plan.step_seconds)
    shared: Chart = {"type": "lines", "x": {"label": "steps between checkpoints", "log": True}}
    if shortest > 1:
        shared["bands"] = [{"until": shortest, "text": "storage is written for too much of the time"}]

    def chart(label: str, value: Callable[[CheckpointSchedule], float]) -> Chart:
        points = [[one.interval_steps, value(one), schedule_text(one)] for one in schedules]
        mark = {"x": best.interval_steps, "y": value(best), "text": f"every {count(best.interval_steps, 'step')}"}
        return {**shared, "y": {"label": label}, "series": [{"points": points}], "marks": [mark]}

    return (
        chart("ETTR, %", lambda one: 100 * one.ettr),
        chart("days of training", lambda one: one.total_seconds / DAY_SECONDS),
    )


def schedule_text(schedule: CheckpointSchedule) -> str:
    """One interval and what follows from it."""
    every = f"every {count(schedule.interval_steps, 'step')} ({span(schedule.interval_seconds)})"
    return f"{every}: ETTR {schedule.ettr:.2%}, {schedule.days:,.2f} days"


def bindings_chart(explanation: Explanation, bindings: Sequence[BindingRecord]) -> Chart:
    """What each constraint costs."""
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
            }
            for one, own in zip(bindings, explanation.bindings, strict=True)
        ],
    }


MOST_TIMES = 4
"""Points of the Pareto front that are this many times slower than the fastest are in the table only."""


def pareto_chart(whole: ReportRecord, pareto_front: ParetoFront) -> Chart:
    """The best step time for each amount of memory."""
    capacity = whole.cluster.memory_bytes
    fastest = min(one.estimate.step_seconds for one in pareto_front.points)
    shown = [one for one in pareto_front.points if one.estimate.step_seconds <= MOST_TIMES * fastest]
    points = [_pareto_point(one) for one in shown]
    marks = [
        {"x": chosen.peak_memory_bytes / GIB_BYTES, "y": chosen.step_time_seconds, "text": "strategy 1"}
        for chosen in whole.plans[:1]
    ]
    return {
        "type": "lines",
        "x": {"label": "memory limit, GiB per GPU", "log": False},
        "y": {"label": "seconds per step", "log": True},
        "series": [{"points": points, "step": True, "dots": True}],
        "marks": marks,
        "verticals": [{"x": capacity / GIB_BYTES, "text": f"a GPU has {gib(capacity)}"}],
    }


def _pareto_point(point: Point) -> list[Any]:
    """Where a strategy begins to fit, its step time, its text, and whether it is proven."""
    used, strategy = point.estimate.device_bytes, point.estimate.strategy
    proof = "proven" if point.is_proven else "not proven: time ran out"
    text = (
        f"{gib(used)} GiB: {seconds(point.estimate.step_seconds)} s ({proof} within {gib(point.allowed_bytes)} GiB)\n"
        f"{strategy_text(StrategyRecord.read(strategy, num_microbatches=point.estimate.num_microbatches))}"
    )
    return [used / GIB_BYTES, point.estimate.step_seconds, text, point.is_proven, point.allowed_bytes / GIB_BYTES]
