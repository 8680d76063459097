"""Whole reports: what planner explain and planner compare answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

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
    """The faster strategy that needs least more memory."""

    strategy: StrategyRecord | None = Field(description="The strategy.")
    step_time_seconds: Figure | None = Field(description="Its step.")
    missing_bytes: Figure | None = Field(description="The memory that it lacks.")

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
    """One constraint, and what would be fastest without it."""

    kind: str = Field(description="The origin of the constraint.")
    constraint: str = Field(description="The constraint in words.")
    step_time_seconds: Figure | None = Field(description="The step without it.")
    saved_seconds: Figure | None = Field(description="How much shorter the step without it is.")
    proven: bool = Field(description="Whether nothing is faster without it.")
    strategy: StrategyRecord | None = Field(description="The fastest strategy without it.")
    next_faster: NextFasterRecord | None = Field(
        description="For memory: the faster strategy that needs least more of it."
    )

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
    """One part of two steps."""

    name: str = Field(description="The part of the step.")
    best_seconds: Figure = Field(description="Its exposed time in the best plan.")
    given_seconds: Figure = Field(description="Its exposed time in the given strategy.")
    difference_seconds: Figure = Field(description="The second minus the first.")

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
    """The report of planner explain."""

    kind: Literal["explanation"] = Field(description="Of which kind the report is.")
    status: str = Field(description="How the search for the best plan ended.")
    best: PlanRecord | None = Field(description="The best plan.")
    bindings: list[BindingRecord] = Field(description="The binding constraints.")
    not_binding: list[str] = Field(description="Constraints that do not bind.")
    asked: dict[str, str] = Field(description="The decisions that were asked about.")
    opposed_entries: list[str] = Field(description="Entries of the job against them.")
    status_of_asked: str | None = Field(description="How the search for their completion ended.")
    given: PlanRecord | None = Field(description="Their best completion.")
    broken_rules: list[str] = Field(description="Sentences of the rules that forbid it.")
    slower_seconds: Figure | None = Field(description="How much longer its step is than the best one's.")
    differences: list[DifferenceRecord] = Field(description="In which lines of the step.")
    conflict: ConflictRecord | None = Field(description="Why nothing fits.")
    left_out: list[str] = Field(description="What is not covered because time ran out.")

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
    """The report of planner compare."""

    kind: Literal["comparison"] = Field(description="Of which kind the report is.")
    status: str = Field(description="How the search for the best plan ended.")
    best: PlanRecord | None = Field(description="The best plan.")
    given: PlanRecord = Field(description="The given strategy.")
    allowed: bool = Field(description="Whether the rules allow the given strategy.")
    broken_rules: list[str] = Field(description="Sentences of the rules that forbid it.")
    assumed: dict[str, str] = Field(description="Decisions that were not given, with the values that they got.")
    saved_seconds_per_step: Figure | None = Field(description="By how much the best plan's step is shorter.")
    saved_fraction: Figure | None = Field(description="The time saved per step, as a share of the given step.")
    saved_days: Figure | None = Field(description="Days that the best plan saves.")
    saved_gpu_hours: Figure | None = Field(description="GPU-hours that the best plan saves.")
    within_noise: bool | None = Field(description="Whether the difference is within the noise of the predictions.")
    differences: list[DifferenceRecord] = Field(description="In which lines of the step.")
    conflict: ConflictRecord | None = Field(description="Why nothing fits.")

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
