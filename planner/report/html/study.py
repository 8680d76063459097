"""The plans that a page shows, and further searches around the best one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.report.records.explained import BindingRecord
from planner.report.records.plan import PlanRecord
from planner.report.records.reports import ReportRecord, report_record
from planner.report.records.setting import SettingRecord
from planner.results import EstimateReport, Plan, PlanReport
from planner.search.clock import Clock
from planner.verbs.compare import Comparison
from planner.verbs.explain import Explanation, explain_plan
from planner.verbs.pareto import ParetoFront, pareto_front

SHARE = 0.5
"""Share of the time left that goes to the binding constraints; the Pareto front gets the rest."""

RESERVE = 0.05
"""Share of the time limit that is kept for making the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """
    One plan on a page.

    Parameters
    ----------
    number
        Its place, from 1.
    name
        Its name, such as "Strategy 1".
    of
        Ending of the title of a table that is about it alone; empty where there is no other plan.
    plan, record
        The plan, and its record.
    setting
        The record of its job.
    """

    number: int
    name: str
    of: str
    plan: Plan
    record: PlanRecord
    setting: SettingRecord


def report_plans(report: PlanReport | EstimateReport, whole: ReportRecord) -> tuple[Shown, ...]:
    """Return the plans of a report, best first."""
    several = len(report.plans) > 1
    return tuple(
        Shown(
            number=record.number,
            name=f"Strategy {record.number}",
            of=f" of strategy {record.number}" if several else "",
            plan=plan,
            record=record,
            setting=whole,
        )
        for plan, record in zip(report.plans, whole.plans, strict=True)
    )


def comparison_plans(comparison: Comparison) -> Iterator[Shown]:
    """Return the given strategy and the recommended plan, if there is one, or the strategies of two jobs."""
    first, second = ("First job", "Second job") if comparison.sides else ("Given strategy", "Fastest plan")
    yield _side(1, first, comparison.given.plan, comparison.given)
    if comparison.best is not None:
        yield _side(2, second, comparison.best, comparison.report)


def _side(number: int, name: str, plan: Plan, report: PlanReport | EstimateReport) -> Shown:
    return Shown(
        number=number,
        name=name,
        of=f" of the {name.lower()}",
        plan=plan,
        record=PlanRecord.build_from_plan(plan),
        setting=report_record(report),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """
    A report with the results of further searches.

    Parameters
    ----------
    report, whole
        The answer, and its record.
    explanation
        The binding constraints of the best plan; None where there is no plan or none was searched for.
    pareto_front
        The fastest strategies within other amounts of memory; None where memory does not matter.
    """

    report: PlanReport | EstimateReport
    whole: ReportRecord
    explanation: Explanation | None = None
    pareto_front: ParetoFront | None = None

    @property
    def shown(self) -> tuple[Shown, ...]:
        """The plans of the page."""
        return report_plans(self.report, self.whole)

    @property
    def bindings(self) -> tuple[BindingRecord, ...]:
        """The records of the binding constraints."""
        found = self.explanation.bindings if self.explanation else ()
        return tuple(BindingRecord.build(one, self.report.chosen) for one in found)


def study(report: PlanReport | EstimateReport) -> Study:
    """Search again around the best plan, in the rest of the job's time limit; return an estimate as it is."""
    whole = report_record(report)
    if isinstance(report, EstimateReport):
        return Study(report=report, whole=whole)
    effort = report.outcome.effort
    spent = effort.build_seconds + effort.solve_seconds
    clock = Clock(seconds=(1 - RESERVE) * report.problem.search.time_limit_seconds - spent)
    explanation = explain_plan(report, Clock(seconds=SHARE * clock.seconds_left)) if report.plans else None
    matters = bool(report.plans) or report.closest is not None
    found = pareto_front(report, clock) if matters else None
    return Study(report=report, whole=whole, explanation=explanation, pareto_front=found)
