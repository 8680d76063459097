"""What a page shows beside the report: what holds the plan back, and the front of step time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from planner.explanation.explain import Explanation, explain_plan
from planner.plan import EstimateReport, PlanReport
from planner.search.clock import Clock
from planner.studies.pareto import Front, front

SHARE = 0.5
"""Of the time that the search has left: for what holds the plan back; the front gets what that leaves."""

RESERVE = 0.05
"""Share of the time limit that is kept for making the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """
    A report with what further searches found.

    Parameters
    ----------
    report
        The answer.
    explanation
        What holds the best plan back; None where there is no plan or none was searched for.
    front
        The fastest strategies within other amounts of memory; None where memory does not matter.
    """

    report: PlanReport | EstimateReport
    explanation: Explanation | None = None
    front: Front | None = None


def study(report: PlanReport | EstimateReport) -> Study:
    """Search again around the best plan, in the time that the job's limit leaves; an estimate stays as it is."""
    if isinstance(report, EstimateReport):
        return Study(report=report)
    effort = report.outcome.effort
    spent = effort.build_seconds + effort.solve_seconds
    clock = Clock(seconds=(1 - RESERVE) * report.problem.search.time_limit_seconds - spent)
    explanation = explain_plan(report, Clock(seconds=SHARE * clock.seconds_left)) if report.plans else None
    matters = bool(report.plans) or report.closest is not None
    return Study(report=report, explanation=explanation, front=front(report, clock) if matters else None)
