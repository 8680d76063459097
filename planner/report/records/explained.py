"""Whole reports of planner explain and planner compare."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from costmodel.pipelines.stages import stage_layers
from costmodel.step.estimate import estimate
from costmodel.strategy import decision_text
from planner.jobs.strategy_file import LAYOUT, layers_text
from planner.report.records.costs import SavedCostsRecord
from planner.report.records.gain import GainRecord
from planner.report.records.outcome import ConflictRecord
from planner.report.records.plan import PlanRecord
from planner.report.records.record import Figure, Record, entry
from planner.report.records.setting import SettingRecord
from planner.report.records.strategy import StrategyRecord
from planner.results import PlanReport
from planner.uncertainty.peaks import chance_to_fit
from planner.uncertainty.retries import chance_fast

if TYPE_CHECKING:
    from planner.jobs.problem import Problem
    from planner.results import Plan
    from planner.verbs.compare import Comparison, Side
    from planner.verbs.explain import Binding, Explanation


class NextFasterRecord(Record):
    """The faster strategy that needs least more memory."""

    strategy: StrategyRecord | None = entry("The strategy.")
    step_time_seconds: Figure | None = entry("Its step.", "next_seconds")
    missing_bytes: Figure | None = entry("The memory that it lacks.")

    @classmethod
    def build(cls, binding: Binding, problem: Problem) -> NextFasterRecord | None:
        """Build the record of a constraint's next faster strategy, if it has one."""
        if binding.next_strategy is None:
            return None
        return cls.read(binding, strategy=StrategyRecord.build_optional(problem, binding.next_strategy))


class BindingRecord(Record):
    """One constraint, and the fastest strategy without it."""

    kind: str = entry("The origin of the constraint.")
    constraint: str = entry("The constraint in words.", "what")
    step_time_seconds: Figure | None = entry("The step without it.", "step_seconds")
    saved_seconds: Figure | None = entry("Seconds by which the step is shorter without it.")
    proven: bool = entry("True if no strategy is proven faster without it.", "is_proven")
    strategy: StrategyRecord | None = entry("The fastest strategy without it.")
    next_faster: NextFasterRecord | None = entry("For memory: the faster strategy that needs least more of it.")
    chance_to_fit: Figure | None = entry("For the headroom: the chance that the fastest strategy without it fits.")
    chance_fast: Figure | None = entry("For the headroom: the chance that this strategy is fast.")

    @classmethod
    def build(cls, binding: Binding, problem: Problem) -> BindingRecord:
        """Build the record of a constraint."""
        fits, fast = _chances(binding, problem)
        return cls.read(
            binding,
            strategy=StrategyRecord.build_optional(problem, binding.strategy),
            next_faster=NextFasterRecord.build(binding, problem),
            chance_to_fit=fits,
            chance_fast=fast,
        )


def _chances(binding: Binding, problem: Problem) -> tuple[float | None, float | None]:
    """Return the chances that the fastest strategy without the headroom fits, and is fast: why it is kept."""
    if binding.kind != "headroom" or binding.strategy is None:
        return None, None
    cluster = problem.facts.cluster
    peak = estimate(problem.facts, binding.strategy).device_bytes
    fits, fast = chance_to_fit(cluster, device_bytes=peak), chance_fast(cluster, binding.strategy, device_bytes=peak)
    return fits.share, fast.share


class DifferenceRecord(Record):
    """One part of two steps."""

    name: str = entry("The part of the step.")
    best_seconds: Figure = entry("Its exposed time in the best plan.")
    given_seconds: Figure = entry("Its exposed time in the given strategy.")
    difference_seconds: Figure = entry("The second minus the first.", "seconds")


class ExplanationRecord(SettingRecord):
    """The report of planner explain."""

    kind: Literal["explanation"] = entry("Kind of the report.")
    status: str = entry("End of the search for the best plan.", "report.outcome.status")
    best: PlanRecord | None = entry("The best plan.")
    bindings: list[BindingRecord] = entry("The binding constraints.")
    not_binding: list[str] = entry("Constraints that do not bind.", "idle")
    asked: dict[str, str] = entry("The decisions that were asked about.")
    opposed_entries: list[str] = entry("Entries of the job against them.", "opposed")
    status_of_asked: str | None = entry("End of the search for their completion.")
    given: PlanRecord | None = entry("Their best completion.")
    broken_rules: list[str] = entry("Sentences of the rules that forbid it.")
    broken_preferences: list[str] = entry("Sentences of the preferences for which the search leaves it out.")
    slower_seconds: Figure | None = entry("Seconds by which its step is longer than the best plan's.")
    differences: list[DifferenceRecord] = entry("Differences by line of the step.")
    conflict: ConflictRecord | None = entry("Why nothing fits.")
    left_out: list[str] = entry("Parts of the explanation that are missing because time ran out.")

    @classmethod
    def build(cls, explanation: Explanation) -> ExplanationRecord:
        """Build the record of an explanation."""
        report, best, given = explanation.report, explanation.best, explanation.given
        problem, question, conflict = explanation.problem, explanation.question, explanation.conflict
        stages = stage_layers(given.strategy, given.facts.model) if given and explanation.is_staged else ()
        return cls.read(
            explanation,
            **dict(SettingRecord.build_from_job(report, "explanation")),
            best=_plan(best),
            bindings=[BindingRecord.build(one, problem) for one in explanation.bindings],
            asked={
                **{name: decision_text(name, value) for name, value in explanation.asked.items()},
                **({LAYOUT: layers_text(stages)} if stages else {}),
            },
            status_of_asked=question.outcome.status if question else None,
            given=_plan(given),
            slower_seconds=given.step_seconds - best.step_seconds if given and best else None,
            conflict=ConflictRecord.build(question or report, conflict) if conflict else None,
        )


class SideRecord(Record):
    """One of two jobs that are compared."""

    name: str = entry("Its name: a file or a job.")
    what: str = entry("The strategy of it that is compared.")
    notes: list[str] = entry("Options that were left out and values that were assumed when it was read.")
    setting: SettingRecord = entry("Setting of its own report: job, model, cluster and training.")

    @classmethod
    def build(cls, side: Side) -> SideRecord:
        """Build the record of a side."""
        return cls.read(side, notes=list(side.notes), setting=SettingRecord.build_from_job(side.report, "estimate"))


class UnlikeRecord(Record):
    """One setting in which two jobs differ."""

    what: str = entry("model, cluster, node, framework, batch, tokens or precision.")
    given: str = entry("Its value in the first job.")
    best: str = entry("Its value in the second job.")


class MemoryDifferenceRecord(Record):
    """One part of the memory of two strategies' fullest pipeline ranks."""

    name: str = entry("The part of the memory.")
    best_bytes: Figure = entry("Its bytes in the best plan.")
    given_bytes: Figure = entry("Its bytes in the given strategy.")
    difference_bytes: Figure = entry("The second minus the first.")

    @classmethod
    def build(cls, best: PlanRecord, given: PlanRecord) -> list[MemoryDifferenceRecord]:
        """Compare the fullest ranks of two plans, the largest difference first."""
        ours, theirs = (max(plan.ranks, key=attrgetter("peak_memory_bytes")).bytes for plan in (best, given))
        lines = [
            cls(name=name, best_bytes=ours.get(name, 0.0), given_bytes=theirs.get(name, 0.0), difference_bytes=more)
            for name in dict.fromkeys((*ours, *theirs))
            if (more := theirs.get(name, 0.0) - ours.get(name, 0.0)) or ours.get(name)
        ]
        return sorted(lines, key=lambda line: -abs(line.difference_bytes))


class TokenDifferenceRecord(Record):
    """One part of two steps, in device seconds per token, which compare across batches and numbers of devices."""

    name: str = entry("The part of the step.")
    best_device_seconds: Figure = entry("Exposed time of all devices per million tokens in the best plan.")
    given_device_seconds: Figure = entry("Exposed time of all devices per million tokens in the given strategy.")
    difference_device_seconds: Figure = entry("The second minus the first.")

    @classmethod
    def build(cls, comparison: Comparison) -> list[TokenDifferenceRecord]:
        """Compare the parts of two steps, the largest difference first."""
        if comparison.best is None:
            return []
        scales = [_device_seconds(plan) for plan in (comparison.best, comparison.given.plan)]
        pairs = [
            (one.name, one.best_seconds * scales[0], one.given_seconds * scales[1]) for one in comparison.differences
        ]
        lines = [
            cls(name=name, best_device_seconds=best, given_device_seconds=given, difference_device_seconds=given - best)
            for name, best, given in pairs
        ]
        return sorted(lines, key=lambda line: -abs(line.difference_device_seconds))


def _device_seconds(plan: Plan) -> float:
    """Return the device seconds per million tokens that one second of a plan's step is."""
    work = plan.facts.workload
    return plan.cluster.num_devices / (work.global_batch_size * work.sequence_length / 1e6)


class ApartRecord(Record):
    """Differences of two strategies besides the parts of their steps."""

    sides: list[SideRecord] = entry("Two jobs; the setting of the report is the second's. Empty where it is one job.")
    gain: GainRecord | None = entry("Gain of the best plan, with its interval and its ground; null without one.")
    given_name: str = entry("Name of the given strategy, such as a published recipe; empty where it has none.")
    unlike: list[UnlikeRecord] = entry("Settings in which the two jobs differ.")
    per_token: list[TokenDifferenceRecord] = entry(
        "Differences by line of the step, in device seconds per million tokens."
    )
    memory: list[MemoryDifferenceRecord] = entry("Differences by part of the memory of the fullest pipeline ranks.")
    completed: str = entry(
        "Decisions of the given strategy that were completed, as words of its line.", "given.completed"
    )
    completed_by: str = entry("Origin of these values: given, search, recipes or no_plan.", "given.completed_by")
    saved_costs: SavedCostsRecord | None = entry("Energy and money that the best plan saves; null without one.")

    @classmethod
    def build(cls, comparison: Comparison, best: PlanRecord | None, given: PlanRecord) -> ApartRecord:
        """Build the record of a comparison's two strategies."""
        return cls.read(
            comparison,
            sides=[SideRecord.build(side) for side in comparison.sides],
            gain=GainRecord.build(comparison.gain),
            per_token=TokenDifferenceRecord.build(comparison),
            memory=MemoryDifferenceRecord.build(best, given) if best else [],
            saved_costs=SavedCostsRecord.build(given.costs, best.costs) if best else None,
        )


class ComparisonRecord(SettingRecord):
    """The report of planner compare: of a job's strategy and its recommended plan, or of two jobs."""

    kind: Literal["comparison"] = entry("Kind of the report.")
    status: str = entry("End of the search for the best plan; compared for two jobs.")
    best: PlanRecord | None = entry("The best plan; of two jobs the second one's.")
    given: PlanRecord = entry("The given strategy; of two jobs the first one's.")
    allowed: bool = entry("True if the rules allow the given strategy.")
    broken_rules: list[str] = entry("Sentences of the rules that forbid it.", "given.broken_rules")
    broken_preferences: list[str] = entry(
        "Sentences of the preferences for which the search leaves it out.", "given.broken_preferences"
    )
    assumed: dict[str, str] = entry("Decisions that were not given, with the values that they got.")
    saved_seconds_per_step: Figure | None = entry(
        "Seconds by which the best plan's step is shorter; null where the steps of two jobs train different models or "
        "numbers of tokens.",
        "saved_seconds",
    )
    saved_fraction: Figure | None = entry("The time saved per step, as a share of the given step; null as above.")
    saved_days: Figure | None = entry("Days that the best plan saves.")
    saved_gpu_hours: Figure | None = entry("GPU-hours that the best plan saves.")
    within_noise: bool | None = entry(
        "True if the interval of the gain holds zero, so that either may be the faster one.", "is_within_noise"
    )
    differences: list[DifferenceRecord] = entry("Differences by line of the step.")
    apart: ApartRecord = entry("Differences besides the lines of the step.")
    conflict: ConflictRecord | None = entry("Why nothing fits.")

    @classmethod
    def build(cls, comparison: Comparison) -> ComparisonRecord:
        """Build the record of a comparison."""
        report, given = comparison.report, comparison.given
        best, ours = _plan(comparison.best), PlanRecord.build_from_plan(given.plan)
        conflict = report.outcome.conflict if isinstance(report, PlanReport) else None
        nothing_saved = dict.fromkeys(SAVED if best is None else () if comparison.same_step else OF_STEP)
        return cls.read(
            comparison,
            **dict(SettingRecord.build_from_job(report, "comparison")),
            **nothing_saved,
            best=best,
            given=ours,
            allowed=not given.broken_rules,
            assumed={name: decision_text(name, value) for name, value in given.assumed.items()},
            apart=ApartRecord.build(comparison, best, ours),
            conflict=ConflictRecord.build(report, conflict) if isinstance(report, PlanReport) and conflict else None,
        )


OF_STEP = ("saved_seconds_per_step", "saved_fraction")
"""Entries of a comparison that need two steps that train the same."""

SAVED = ("saved_seconds_per_step", "saved_fraction", "saved_days", "saved_gpu_hours", "within_noise")
"""Entries of a comparison that need a best plan."""


def _plan(plan: Plan | None) -> PlanRecord | None:
    return PlanRecord.build_from_plan(plan) if plan else None
