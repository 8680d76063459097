"""Whole reports: what planner explain and planner compare answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from costmodel.strategy import decision_text
from planner.report.records.outcome import ConflictRecord
from planner.report.records.plan import PlanRecord
from planner.report.records.record import Figure, Record
from planner.report.records.setting import SettingRecord
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from costmodel.tables import Facts
    from planner.explanation.compare import Comparison
    from planner.explanation.explain import Binding, Difference, Explanation
    from planner.plan import Plan


class NextFasterRecord(Record):
    """
    Of memory: the faster strategy that needs least more of it.

    Parameters
    ----------
    strategy, step_time_seconds, missing_bytes
        It, its step, and the memory that it lacks.
    """

    strategy: StrategyRecord | None
    step_time_seconds: Figure | None
    missing_bytes: Figure | None

    @classmethod
    def of(cls, binding: Binding, facts: Facts) -> NextFasterRecord | None:
        """The next faster strategy, where a constraint has one."""
        if binding.next_strategy is None:
            return None
        return cls(
            strategy=StrategyRecord.among(facts, binding.next_strategy),
            step_time_seconds=binding.next_seconds,
            missing_bytes=binding.missing_bytes,
        )


class BindingRecord(Record):
    """
    One constraint, and what would be fastest without it.

    Parameters
    ----------
    kind, constraint
        What it comes from, and what it is in words.
    step_time_seconds, saved_seconds
        The step without it, and how much shorter that is.
    proven
        Whether nothing is faster without it.
    strategy
        The fastest strategy without it.
    next_faster
        Of memory: the faster strategy that needs least more.
    """

    kind: str
    constraint: str
    step_time_seconds: Figure | None
    saved_seconds: Figure | None
    proven: bool
    strategy: StrategyRecord | None
    next_faster: NextFasterRecord | None

    @classmethod
    def of(cls, binding: Binding, facts: Facts) -> BindingRecord:
        """The record of a constraint."""
        return cls(
            kind=binding.kind.value,
            constraint=binding.what,
            step_time_seconds=binding.step_seconds,
            saved_seconds=binding.saved_seconds,
            proven=binding.is_proven,
            strategy=StrategyRecord.among(facts, binding.strategy),
            next_faster=NextFasterRecord.of(binding, facts),
        )


class DifferenceRecord(Record):
    """
    One line of two steps.

    Parameters
    ----------
    name
        Of the line.
    best_seconds, given_seconds, difference_seconds
        In the best plan, in the given one, and the second minus the first.
    """

    name: str
    best_seconds: Figure
    given_seconds: Figure
    difference_seconds: Figure

    @classmethod
    def of(cls, line: Difference) -> DifferenceRecord:
        """The record of a line."""
        return cls(
            name=line.name,
            best_seconds=line.best_seconds,
            given_seconds=line.given_seconds,
            difference_seconds=line.seconds,
        )


class ExplanationRecord(SettingRecord):
    """
    What planner explain answers.

    Parameters
    ----------
    status
        How the search for the best plan ended.
    best
        The best plan.
    bindings, not_binding
        What holds it back; constraints that do not.
    asked, opposed_entries, status_of_asked
        The strategy that was asked for, entries of the job against it, how the search for its completion ended.
    given, broken_rules, slower_seconds, differences
        Its best completion, the rules that forbid it, how much slower it is, and in which lines.
    conflict
        Why nothing fits.
    left_out
        What was not asked for want of time.
    """

    kind: Literal["explanation"]
    status: str
    best: PlanRecord | None
    bindings: list[BindingRecord]
    not_binding: list[str]
    asked: dict[str, str]
    opposed_entries: list[str]
    status_of_asked: str | None
    given: PlanRecord | None
    broken_rules: list[str]
    slower_seconds: Figure | None
    differences: list[DifferenceRecord]
    conflict: ConflictRecord | None
    left_out: list[str]

    @classmethod
    def of(cls, explanation: Explanation) -> ExplanationRecord:
        """The record of an explanation."""
        report, best, given = explanation.report, explanation.best, explanation.given
        facts, question, conflict = explanation.problem.facts, explanation.question, explanation.conflict
        return cls(
            **dict(SettingRecord.of_job(report, "explanation")),
            status=report.outcome.status.value,
            best=_plan(best),
            bindings=[BindingRecord.of(one, facts) for one in explanation.bindings],
            not_binding=list(explanation.idle),
            asked={name: decision_text(name, value) for name, value in explanation.asked.items()},
            opposed_entries=list(explanation.opposed),
            status_of_asked=question.outcome.status.value if question else None,
            given=_plan(given),
            broken_rules=list(explanation.broken_rules),
            slower_seconds=given.step_seconds - best.step_seconds if given and best else None,
            differences=[DifferenceRecord.of(line) for line in explanation.differences],
            conflict=ConflictRecord.of(question or report, conflict) if conflict else None,
            left_out=list(explanation.left_out),
        )


class ComparisonRecord(SettingRecord):
    """
    What planner compare answers.

    Parameters
    ----------
    status
        How the search for the best plan ended.
    best, given
        The best plan, and what is given.
    allowed, broken_rules
        Whether the rules allow what is given, and the sentences of those that do not.
    assumed
        Decisions that were not given, with the values that they got.
    saved_seconds_per_step, saved_fraction, saved_days, saved_gpu_hours
        What the best plan gains.
    within_noise
        Whether the two cannot be told apart.
    differences
        In which lines of the step.
    conflict
        Why nothing fits.
    """

    kind: Literal["comparison"]
    status: str
    best: PlanRecord | None
    given: PlanRecord
    allowed: bool
    broken_rules: list[str]
    assumed: dict[str, str]
    saved_seconds_per_step: Figure | None
    saved_fraction: Figure | None
    saved_days: Figure | None
    saved_gpu_hours: Figure | None
    within_noise: bool | None
    differences: list[DifferenceRecord]
    conflict: ConflictRecord | None

    @classmethod
    def of(cls, comparison: Comparison) -> ComparisonRecord:
        """The record of a comparison."""
        report, given, best = comparison.report, comparison.given, comparison.best
        conflict = report.outcome.conflict
        return cls(
            **dict(SettingRecord.of_job(report, "comparison")),
            status=report.outcome.status.value,
            best=_plan(best),
            given=PlanRecord.of_plan(given.plan),
            allowed=not given.broken_rules,
            broken_rules=list(given.broken_rules),
            assumed={name: decision_text(name, value) for name, value in given.assumed.items()},
            saved_seconds_per_step=comparison.saved_seconds if best else None,
            saved_fraction=comparison.saved_fraction if best else None,
            saved_days=comparison.saved_days if best else None,
            saved_gpu_hours=comparison.saved_gpu_hours if best else None,
            within_noise=comparison.is_within_noise if best else None,
            differences=[DifferenceRecord.of(line) for line in comparison.differences],
            conflict=ConflictRecord.of(report, conflict) if conflict else None,
        )


def _plan(plan: Plan | None) -> PlanRecord | None:
    return PlanRecord.of_plan(plan) if plan else None
