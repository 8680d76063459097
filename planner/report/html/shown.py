"""The plans that a page shows, and further searches around the best one."""

from __future__ import annotations

from costmodel.record import record
from planner.report.records.explained import BindingRecord, ComparisonRecord
from planner.report.records.plan import PlanRecord
from planner.report.records.reports import ReportRecord, report_record
from planner.report.records.setting import SettingRecord
from planner.results import EstimateReport, Plan, PlanReport
from planner.search.solver import Clock
from planner.verbs.explain import Explanation, explain_plan
from planner.verbs.pareto import Point, pareto_front

SHARE = 0.5
"""Share of the time left that goes to the binding constraints; the Pareto front gets the rest."""

RESERVE = 0.05
"""Share of the time limit that is kept for making the page."""


@record(frozen=True, kw_only=True, slots=True)
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
    record
        Its record.
    setting
        The record of its job.
    """

    number: int
    name: str
    of: str
    record: PlanRecord
    setting: SettingRecord

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.record.plan


def report_plans(whole: ReportRecord) -> tuple[Shown, ...]:
    """Return the plans of a report, best first."""
    several = len(whole.plans) > 1
    return tuple(
        Shown(
            number=record.number,
            name=f"Strategy {record.number}",
            of=f" of strategy {record.number}" if several else "",
            record=record,
            setting=whole,
        )
        for record in whole.plans
    )


def comparison_plans(whole: ComparisonRecord) -> tuple[Shown, ...]:
    """Return the given strategy and the recommended plan, if there is one, or the strategies of two jobs."""
    sides = whole.apart.sides
    names = ("First job", "Second job") if sides else ("Given strategy", "Fastest plan")
    settings = [side.setting for side in sides] or [
        SettingRecord.read(whole.comparison.given, kind="estimate"),
        whole,
    ]
    plans = [plan for plan in (whole.given, whole.best) if plan]
    return tuple(
        Shown(number=number, name=name, of=f" of the {name.lower()}", record=record, setting=setting)
        for number, (name, record, setting) in enumerate(zip(names, plans, settings, strict=False), start=1)
    )


@record(frozen=True, kw_only=True, slots=True)
class ShownReport:
    """
    A report with the results of further searches.

    Parameters
    ----------
    whole
        The record of the answer.
    explanation
        The binding constraints of the best plan; None where there is no plan or none was searched for.
    points
        The fastest strategies within other amounts of memory, the least first; empty where memory does not matter.
    least_bytes
        Memory below which no strategy fits; None where it is not known.
    late_bytes
        Amounts of memory that were not searched for lack of time.
    """

    whole: ReportRecord
    explanation: Explanation | None = None
    points: tuple[Point, ...] = ()
    least_bytes: float | None = None
    late_bytes: tuple[float, ...] = ()

    @property
    def plans(self) -> tuple[Shown, ...]:
        """The plans of the page."""
        return report_plans(self.whole)

    @property
    def bindings(self) -> tuple[BindingRecord, ...]:
        """The records of the binding constraints."""
        found = self.explanation.bindings if self.explanation else ()
        return tuple(BindingRecord.build(one, self.whole.report.chosen) for one in found)


def show_report(shown: PlanReport | EstimateReport | ReportRecord) -> ShownReport:
    """Search again around the best plan, in the rest of the job's time limit; return an estimate as it is."""
    whole = report_record(shown)
    report = whole.report
    if isinstance(report, EstimateReport):
        return ShownReport(whole=whole)
    effort = report.outcome.effort
    spent = effort.build_seconds + effort.solve_seconds
    clock = Clock(seconds=(1 - RESERVE) * report.problem.search.time_limit_seconds - spent)
    explanation = explain_plan(report, Clock(seconds=SHARE * clock.seconds_left)) if report.plans else None
    matters = bool(report.plans) or report.closest is not None
    points, least, late = pareto_front(report, clock) if matters else ((), None, ())
    return ShownReport(whole=whole, explanation=explanation, points=points, least_bytes=least, late_bytes=late)
