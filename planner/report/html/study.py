"""Further searches for a page: the binding constraints of the plan, and the Pareto front of step time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from planner.explanation.explain import Explanation, explain_plan
from planner.plan import EstimateReport, PlanReport
from planner.report.records.explained import BindingRecord
from planner.report.records.reports import ReportRecord, report_record
from planner.search.clock import Clock
from planner.studies.pareto import ParetoFront, pareto_front

SHARE = 0.5
"""Share of the time left that goes to the binding constraints; the Pareto front gets the rest."""

RESERVE = 0.05
"""Share of the time limit that is kept for making the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """
    A report with what further searches found.

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
    def bindings(self) -> tuple[BindingRecord, ...]:
        """The records of the binding constraints."""
        facts, found = self.report.chosen.facts, self.explanation.bindings if self.explanation else ()
        return tuple(BindingRecord.of(one, facts) for one in found)


def study(report: PlanReport | EstimateReport) -> Study:
    """Search again around the best plan, in the time that the job's limit leaves; an estimate stays as it is."""
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
