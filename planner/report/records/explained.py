"""Whole reports: what planner explain and planner compare answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from costmodel.strategy import decision_text
from planner.report.records.outcome import ConflictRecord
from planner.report.records.plan import PlanRecord
from planner.report.records.record import Figure, Record, entry
from planner.report.records.setting import SettingRecord
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from costmodel.tables import Facts
    from planner.explanation.compare import Comparison
    from planner.explanation.explain import Binding, Explanation
    from planner.plan import Plan


class NextFasterRecord(Record):
    """The faster strategy that needs least more memory."""

    strategy: StrategyRecord | None = entry("The strategy.")
    step_time_seconds: Figure | None = entry("Its step.", "next_seconds")
    missing_bytes: Figure | None = entry("The memory that it lacks.")

    @classmethod
    def of(cls, binding: Binding, facts: Facts) -> NextFasterRecord | None:
        """The next faster strategy, where a constraint has one."""
        if binding.next_strategy is None:
            return None
        return cls.read(binding, strategy=StrategyRecord.among(facts, binding.next_strategy))


class BindingRecord(Record):
    """One constraint, and what would be fastest without it."""

    kind: str = entry("The origin of the constraint.")
    constraint: str = entry("The constraint in words.", "what")
    step_time_seconds: Figure | None = entry("The step without it.", "step_seconds")
    saved_seconds: Figure | None = entry("How much shorter the step without it is.")
    proven: bool = entry("Whether nothing is faster without it.", "is_proven")
    strategy: StrategyRecord | None = entry("The fastest strategy without it.")
    next_faster: NextFasterRecord | None = entry("For memory: the faster strategy that needs least more of it.")

    @classmethod
    def of(cls, binding: Binding, facts: Facts) -> BindingRecord:
        """The record of a constraint."""
        return cls.read(
            binding,
            strategy=StrategyRecord.among(facts, binding.strategy),
            next_faster=NextFasterRecord.of(binding, facts),
        )


class DifferenceRecord(Record):
    """One part of two steps."""

    name: str = entry("The part of the step.")
    best_seconds: Figure = entry("Its exposed time in the best plan.")
    given_seconds: Figure = entry("Its exposed time in the given strategy.")
    difference_seconds: Figure = entry("The second minus the first.", "seconds")


class ExplanationRecord(SettingRecord):
    """The report of planner explain."""

    kind: Literal["explanation"] = entry("Of which kind the report is.")
    status: str = entry("How the search for the best plan ended.", "report.outcome.status")
    best: PlanRecord | None = entry("The best plan.")
    bindings: list[BindingRecord] = entry("The binding constraints.")
    not_binding: list[str] = entry("Constraints that do not bind.", "idle")
    asked: dict[str, str] = entry("The decisions that were asked about.")
    opposed_entries: list[str] = entry("Entries of the job against them.", "opposed")
    status_of_asked: str | None = entry("How the search for their completion ended.")
    given: PlanRecord | None = entry("Their best completion.")
    broken_rules: list[str] = entry("Sentences of the rules that forbid it.")
    broken_preferences: list[str] = entry("Sentences of the preferences for which the search leaves it out.")
    slower_seconds: Figure | None = entry("How much longer its step is than the best one's.")
    differences: list[DifferenceRecord] = entry("In which lines of the step.")
    conflict: ConflictRecord | None = entry("Why nothing fits.")
    left_out: list[str] = entry("What is not covered because time ran out.")

    @classmethod
    def of(cls, explanation: Explanation) -> ExplanationRecord:
        """The record of an explanation."""
        report, best, given = explanation.report, explanation.best, explanation.given
        facts, question, conflict = explanation.problem.facts, explanation.question, explanation.conflict
        return cls.read(
            explanation,
            **dict(SettingRecord.of_job(report, "explanation")),
            best=_plan(best),
            bindings=[BindingRecord.of(one, facts) for one in explanation.bindings],
            asked={name: decision_text(name, value) for name, value in explanation.asked.items()},
            status_of_asked=question.outcome.status if question else None,
            given=_plan(given),
            slower_seconds=given.step_seconds - best.step_seconds if given and best else None,
            conflict=ConflictRecord.of(question or report, conflict) if conflict else None,
        )


class ComparisonRecord(SettingRecord):
    """The report of planner compare."""

    kind: Literal["comparison"] = entry("Of which kind the report is.")
    status: str = entry("How the search for the best plan ended.", "report.outcome.status")
    best: PlanRecord | None = entry("The best plan.")
    given: PlanRecord = entry("The given strategy.")
    allowed: bool = entry("Whether the rules allow the given strategy.")
    broken_rules: list[str] = entry("Sentences of the rules that forbid it.", "given.broken_rules")
    broken_preferences: list[str] = entry(
        "Sentences of the preferences for which the search leaves it out.", "given.broken_preferences"
    )
    assumed: dict[str, str] = entry("Decisions that were not given, with the values that they got.")
    saved_seconds_per_step: Figure | None = entry("By how much the best plan's step is shorter.", "saved_seconds")
    saved_fraction: Figure | None = entry("The time saved per step, as a share of the given step.")
    saved_days: Figure | None = entry("Days that the best plan saves.")
    saved_gpu_hours: Figure | None = entry("GPU-hours that the best plan saves.")
    within_noise: bool | None = entry(
        "Whether the difference is within the noise of the predictions.", "is_within_noise"
    )
    differences: list[DifferenceRecord] = entry("In which lines of the step.")
    conflict: ConflictRecord | None = entry("Why nothing fits.")

    @classmethod
    def of(cls, comparison: Comparison) -> ComparisonRecord:
        """The record of a comparison."""
        report, given, best = comparison.report, comparison.given, comparison.best
        conflict = report.outcome.conflict
        nothing_saved = {} if best else dict.fromkeys(SAVED)
        return cls.read(
            comparison,
            **dict(SettingRecord.of_job(report, "comparison")),
            **nothing_saved,
            best=_plan(best),
            given=PlanRecord.of_plan(given.plan),
            allowed=not given.broken_rules,
            assumed={name: decision_text(name, value) for name, value in given.assumed.items()},
            conflict=ConflictRecord.of(report, conflict) if conflict else None,
        )


SAVED = ("saved_seconds_per_step", "saved_fraction", "saved_days", "saved_gpu_hours", "within_noise")
"""Entries of a comparison that need a best plan."""


def _plan(plan: Plan | None) -> PlanRecord | None:
    return PlanRecord.of_plan(plan) if plan else None
