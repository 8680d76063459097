"""The verb ``compare``: what the fastest plan would gain over a strategy that somebody runs already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.errors import SpecError
from planner.explanation.explain import Difference, differences
from planner.jobs.problem import Problem
from planner.plan import EXIT_CODES, EstimateReport, Plan, PlanReport, estimate, plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """
    A given strategy compared with the fastest plan.

    Parameters
    ----------
    report
        The report of the job: its best plan, or why no strategy fits.
    given
        The estimate of the given strategy, with the rules that forbid it.
    """

    report: PlanReport
    given: EstimateReport

    @property
    def problem(self) -> Problem:
        """The job."""
        return self.report.problem

    @property
    def best(self) -> Plan | None:
        """The job's fastest plan; None where no strategy fits, or where time ran out before one was found."""
        return self.report.fastest

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Where the given strategy loses or wins time, what matters most first."""
        return differences(self.best, self.given.plan) if self.best else ()

    @property
    def saved_seconds(self) -> float:
        """By how much the fastest plan's step is shorter; negative where rules forbid a faster strategy."""
        return self.given.plan.step_seconds - self._best.step_seconds

    @property
    def saved_fraction(self) -> float:
        """The time saved per step, as a share of the given strategy's step."""
        return self.saved_seconds / self.given.plan.step_seconds

    @property
    def saved_days(self) -> float:
        """Days that the whole training takes less."""
        return self.given.plan.schedule.days - self._best.schedule.days

    @property
    def saved_gpu_hours(self) -> float:
        """GPU-hours that the whole training takes less."""
        return self.given.plan.schedule.gpu_hours - self._best.schedule.gpu_hours

    @property
    def is_within_noise(self) -> bool:
        """Whether the predictions cannot tell the two apart."""
        best, given = sorted((self._best, self.given.plan), key=lambda one: one.step_seconds)
        return given.is_within_noise(best)

    @property
    def exit_code(self) -> int:
        """0: compared with a proven plan; 1: infeasible; 3: the time limit came before the proof."""
        return EXIT_CODES[self.report.outcome.status]

    @property
    def _best(self) -> Plan:
        assert self.best is not None, "there is no plan to compare with"
        return self.best


def compare(problem: Problem, decisions: Mapping[str, object] | None = None) -> Comparison:
    """
    Compare a given strategy with the fastest plan.

    Parameters
    ----------
    problem
        The job; its ``strategy`` is the given one.
    decisions
        Values by name that come before it, or the whole strategy; what is missing is as in
        :func:`planner.plan.estimate`.

    Raises
    ------
    SpecError
        If no strategy is given, if a name or a value is wrong, or if the strategy has no cost.
    """
    given = problem.given
    if not decisions and not given.decisions and given.layout is None:
        hint = "Give the job a 'strategy', or decisions such as tp=8 pp=4."
        raise SpecError("strategy", "is required: there is nothing to compare the fastest plan with.", hint)
    alone = replace(problem, top=1).with_limits(simplest=False)
    return Comparison(given=estimate(problem, decisions or {}), report=plan(alone, certified=False))
