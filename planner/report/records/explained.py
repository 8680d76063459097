"""Whole reports of planner explain: reasons, and gains over a strategy."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast

from costmodel.pipelines.stages import stage_layers
from costmodel.step.estimate import estimate
from costmodel.strategy import decision_text
from planner.jobs.strategy_file import LAYOUT, layers_text
from planner.report.records import Figure, Record, read_from
from planner.report.records.plan import PlanRecord, SavedCostsRecord, StrategyRecord
from planner.report.records.reports import ConflictRecord
from planner.report.records.setting import SettingRecord
from planner.results import PlanReport
from planner.uncertainty.peaks import chance_fast, chance_to_fit
from planner.verbs.compare import Gain, Unlike
from planner.verbs.explain import Difference

if TYPE_CHECKING:
    from planner.jobs.problem import Problem
    from planner.results import Plan
    from planner.verbs.compare import Comparison
    from planner.verbs.explain import Binding, Explanation


class NextFasterRecord(Record):
    """
    The faster strategy that needs least more memory.

    Parameters
    ----------
    strategy
        The strategy.
    step_time_seconds
        Its step.
    missing_bytes
        The memory that it lacks.
    """

    strategy: StrategyRecord | None
    step_time_seconds: Figure | None = read_from("next_seconds")
    missing_bytes: Figure | None

    @classmethod
    def build(cls, binding: Binding, problem: Problem) -> NextFasterRecord | None:
        """Build the record of a constraint's next faster strategy, if it has one."""
        if binding.next_strategy is None:
            return None
        return cls.read(binding, strategy=StrategyRecord.build(problem, binding.next_strategy))


class BindingRecord(Record):
    """
    One constraint, and the fastest strategy without it.

    Parameters
    ----------
    kind
        The origin of the constraint.
    constraint
        The constraint in words.
    step_time_seconds
        The step without it.
    saved_seconds
        Seconds by which the step is shorter without it.
    proven
        True if no strategy is proven faster without it.
    strategy
        The fastest strategy without it.
    next_faster
        For memory: the faster strategy that needs least more of it.
    chance_to_fit
        For the headroom: the chance that the fastest strategy without it fits.
    chance_fast
        For the headroom: the chance that this strategy is fast.
    """

    kind: str
    constraint: str = read_from("what")
    step_time_seconds: Figure | None = read_from("step_seconds")
    saved_seconds: Figure | None
    proven: bool = read_from("is_proven")
    strategy: StrategyRecord | None
    next_faster: NextFasterRecord | None
    chance_to_fit: Figure | None
    chance_fast: Figure | None

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


class ExplanationRecord(SettingRecord):
    """
    The report of planner explain.

    Parameters
    ----------
    kind
        Kind of the report.
    status
        End of the search for the best plan.
    best
        The best plan.
    bindings
        The binding constraints.
    not_binding
        Constraints that do not bind.
    asked
        The decisions that were asked about.
    opposed_entries
        Entries of the job against them.
    status_of_asked
        End of the search for their completion.
    given
        Their best completion.
    broken_rules
        Sentences of the rules that forbid it.
    broken_preferences
        Sentences of the preferences for which the search leaves it out.
    slower_seconds
        Seconds by which its step is longer than the best plan's.
    differences
        Differences by line of the step.
    conflict
        Reasons why nothing fits.
    left_out
        Parts of the explanation that are missing because time ran out.
    """

    kind: Literal["explanation"]
    status: str = read_from("report.outcome.status")
    best: PlanRecord | None = read_from(lambda explanation: _plan(explanation.best))
    bindings: list[BindingRecord] = read_from(
        lambda one: [BindingRecord.build(binding, one.problem) for binding in one.bindings]
    )
    not_binding: list[str] = read_from("idle")
    asked: dict[str, str]
    opposed_entries: list[str] = read_from("opposed")
    status_of_asked: str | None = read_from(lambda one: one.question.outcome.status if one.question else None)
    given: PlanRecord | None = read_from(lambda explanation: _plan(explanation.given))
    broken_rules: list[str]
    broken_preferences: list[str]
    slower_seconds: Figure | None
    differences: list[Difference]
    conflict: ConflictRecord | None = read_from(
        lambda one: ConflictRecord.build_optional(one.question or one.report, one.conflict)
    )
    left_out: list[str]

    @property
    def explanation(self) -> Explanation:
        """The explanation itself."""
        return cast("Explanation", self._sources[0])

    @classmethod
    def build(cls, explanation: Explanation) -> ExplanationRecord:
        """Build the record of an explanation."""
        best, given = explanation.best, explanation.given
        stages = stage_layers(given.strategy, given.facts.model) if given and explanation.is_staged else ()
        return cls.read(
            explanation,
            **SettingRecord.read(explanation.report, kind="explanation").entries(SettingRecord),
            asked={
                **{name: decision_text(name, value) for name, value in explanation.asked.items()},
                **({LAYOUT: layers_text(stages)} if stages else {}),
            },
            slower_seconds=given.step_seconds - best.step_seconds if given and best else None,
        )


class SideRecord(Record):
    """
    One of two jobs that are compared.

    Parameters
    ----------
    name
        Its name: a file or a job.
    what
        The strategy of it that is compared.
    notes
        Options that were left out and values that were assumed when it was read.
    setting
        Setting of its own report: job, model, cluster and training.
    """

    name: str
    what: str
    notes: list[str]
    setting: SettingRecord = read_from(lambda side: SettingRecord.read(side.report, kind="estimate"))


class MemoryDifferenceRecord(Record):
    """
    One part of the memory of two strategies' fullest pipeline ranks.

    Parameters
    ----------
    name
        The part of the memory.
    best_bytes
        Its bytes in the best plan.
    given_bytes
        Its bytes in the given strategy.
    difference_bytes
        The second minus the first.
    """

    name: str
    best_bytes: Figure
    given_bytes: Figure
    difference_bytes: Figure

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
    """
    One part of two steps, in device seconds per token, which compare across batches and numbers of devices.

    Parameters
    ----------
    name
        The part of the step.
    best_device_seconds
        Exposed time of all devices per million tokens in the best plan.
    given_device_seconds
        Exposed time of all devices per million tokens in the given strategy.
    difference_device_seconds
        The second minus the first.
    """

    name: str
    best_device_seconds: Figure
    given_device_seconds: Figure
    difference_device_seconds: Figure

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
    """
    Differences of two strategies besides the parts of their steps.

    Parameters
    ----------
    sides
        Two jobs; the setting of the report is the second's. Empty where it is one job.
    gain
        Gain of the best plan, with its interval and its ground; null without one.
    given_name
        Name of the given strategy, such as a published recipe; empty where it has none.
    unlike
        Settings in which the two jobs differ.
    per_token
        Differences by line of the step, in device seconds per million tokens.
    memory
        Differences by part of the memory of the fullest pipeline ranks.
    completed
        Decisions of the given strategy that were completed, as words of its line.
    completed_by
        Origin of these values: given, search, recipes or no_plan.
    saved_costs
        Energy and money that the best plan saves; null without one.
    """

    sides: list[SideRecord]
    gain: Gain | None
    given_name: str
    unlike: list[Unlike]
    per_token: list[TokenDifferenceRecord]
    memory: list[MemoryDifferenceRecord]
    completed: str
    completed_by: str
    saved_costs: SavedCostsRecord | None

    @classmethod
    def build(cls, comparison: Comparison, best: PlanRecord | None, given: PlanRecord) -> ApartRecord:
        """Build the record of a comparison's two strategies."""
        return cls.read(
            comparison,
            comparison.given,
            per_token=TokenDifferenceRecord.build(comparison),
            memory=MemoryDifferenceRecord.build(best, given) if best else [],
            saved_costs=SavedCostsRecord.build(given.costs, best.costs) if best else None,
        )


class ComparisonRecord(SettingRecord):
    """
    The report of planner explain: of a job's strategy and its recommended plan, or of two jobs.

    Parameters
    ----------
    kind
        Kind of the report.
    status
        End of the search for the best plan; compared for two jobs.
    best
        The best plan; of two jobs the second one's.
    given
        The given strategy; of two jobs the first one's.
    allowed
        True if the rules allow the given strategy.
    broken_rules
        Sentences of the rules that forbid it.
    broken_preferences
        Sentences of the preferences for which the search leaves it out.
    assumed
        Decisions that were not given, with the values that they got.
    saved_seconds_per_step
        Seconds by which the best plan's step is shorter; null where the steps of two jobs train different models or
        numbers of tokens.
    saved_fraction
        The time saved per step, as a share of the given step; null as above.
    saved_days
        Days that the best plan saves.
    saved_gpu_hours
        GPU-hours that the best plan saves.
    within_noise
        True if the interval of the gain holds zero, so that either may be the faster one.
    differences
        Differences by line of the step.
    apart
        Differences besides the lines of the step.
    conflict
        Reasons why nothing fits.
    """

    kind: Literal["comparison"]
    status: str
    best: PlanRecord | None
    given: PlanRecord
    allowed: bool
    broken_rules: list[str]
    broken_preferences: list[str]
    assumed: dict[str, str]
    saved_seconds_per_step: Figure | None
    saved_fraction: Figure | None
    saved_days: Figure | None
    saved_gpu_hours: Figure | None
    within_noise: bool | None
    differences: list[Difference]
    apart: ApartRecord
    conflict: ConflictRecord | None

    @property
    def comparison(self) -> Comparison:
        """The comparison itself."""
        return cast("Comparison", self._sources[0])

    @classmethod
    def build(cls, comparison: Comparison) -> ComparisonRecord:
        """Build the record of a comparison."""
        report, given = comparison.report, comparison.given
        best, ours = _plan(comparison.best), PlanRecord.build_from_plan(given.plan)
        saved: dict[str, Any] = dict.fromkeys(SAVED)
        if comparison.best is not None:
            saved = {"within_noise": comparison.is_within_noise, "saved_seconds_per_step": comparison.saved_seconds}
            saved |= {} if comparison.same_step else dict.fromkeys(OF_STEP)
        return cls.read(
            comparison,
            given,
            **SettingRecord.read(report, kind="comparison").entries(SettingRecord),
            **saved,
            best=best,
            given=ours,
            allowed=not given.broken_rules,
            assumed={name: decision_text(name, value) for name, value in given.assumed.items()},
            apart=ApartRecord.build(comparison, best, ours),
            conflict=ConflictRecord.build_optional(report, report.outcome.conflict)
            if isinstance(report, PlanReport)
            else None,
        )


OF_STEP = ("saved_seconds_per_step", "saved_fraction")

"""Entries of a comparison that need two steps that train the same."""

SAVED = ("saved_seconds_per_step", "saved_fraction", "saved_days", "saved_gpu_hours", "within_noise")

"""Entries of a comparison that need a best plan."""


def _plan(plan: Plan | None) -> PlanRecord | None:
    return PlanRecord.build_from_plan(plan) if plan else None
