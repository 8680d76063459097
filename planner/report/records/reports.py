"""Whole reports of planner plan and planner estimate: the proof, statistics of the search, why no strategy fits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, cast

from constraints.conflict import SmallestCluster
from planner.report.records import Figure, Record, finite, itself, read_from
from planner.report.records.plan import (
    MemoryRecord,
    NumberedPlanRecord,
    PlanRecord,
    PublishedLayoutRecord,
    StrategyRecord,
    decisions_of,
)
from planner.report.records.setting import SettingRecord
from planner.results import EstimateReport, Plan, PlanReport
from planner.search.certificate import Certificate
from planner.search.listed import CandidateListReport
from planner.search.recommendation import Preference
from planner.verbs.recipes import nearest_recipe

if TYPE_CHECKING:
    from constraints.conflict import Conflict
    from costmodel.step.estimate import Estimate
    from costmodel.strategy import Strategy
    from planner.results import Plan, PlanReport
    from planner.verbs.compare import Comparison
    from planner.verbs.explain import Explanation


class ExcludedRecord(Record):
    """
    Numbers of strategies that the solver never saw, under the first reason that applies.

    Parameters
    ----------
    lower_bound
        A lower bound of their time is above the best time found.
    rules_of_time
        Without a time, or refused by a rule of the time.
    cut
        Slower than the best strategy found.
    dominance
        Another one is better in time, device memory and host memory.
    memory
        Too large for device or host.
    """

    lower_bound: int = read_from(lambda effort: effort.num_bounded + effort.num_bounded_tabulated)
    rules_of_time: int = read_from("num_untimed")
    cut: int = read_from("num_cut")
    dominance: int = read_from("num_needless")
    memory: int = read_from(lambda effort: effort.num_unfit + effort.num_unfit_tabulated)


class EffortRecord(Record):
    """
    Statistics of the search.

    Parameters
    ----------
    num_raw_strategies
        Combinations before any rule.
    num_strategies
        Combinations that satisfy every rule but those of memory.
    num_rows
        Combinations of degrees.
    num_rows_tabulated
        Combinations of degrees whose features were looked at.
    num_strategies_tabulated
        Strategies with the degrees that were looked at.
    num_excluded
        Numbers of the other strategies, by the reason why the solver never saw them.
    num_pipelines
        Pipelines whose stages may differ.
    num_pipelines_costed
        Pipelines whose ranks were costed.
    num_pipelines_solved
        Pipelines that CP-SAT solved.
    num_candidates
        Strategies that CP-SAT chose from, without those that a rule forbids.
    num_solves
        Runs of CP-SAT.
    build_seconds
        Time for the space, tables and models.
    solve_seconds
        Time inside CP-SAT.
    """

    num_raw_strategies: int = read_from("raw_size")
    num_strategies: int = read_from("size")
    num_rows: int
    num_rows_tabulated: int
    num_strategies_tabulated: int = read_from("num_tabulated")
    num_excluded: ExcludedRecord = read_from(itself)
    num_pipelines: int
    num_pipelines_costed: int
    num_pipelines_solved: int
    num_candidates: int
    num_solves: int
    build_seconds: Figure
    solve_seconds: Figure


class ClosestRecord(MemoryRecord):
    """
    The strategy that comes closest to fitting.

    Parameters
    ----------
    strategy
        Its decisions.
    missing_bytes_by_rank
        Memory that each pipeline rank lacks.
    """

    strategy: StrategyRecord
    missing_bytes_by_rank: list[Figure]

    @classmethod
    def build_from_report(cls, report: PlanReport, closest: Estimate) -> ClosestRecord:
        """Build the record of the strategy that lacks the least memory on a job's devices."""
        cluster = report.chosen.facts.cluster
        room_bytes = cluster.device.memory_bytes - report.problem.search.memory_headroom_bytes
        return cls.read(
            strategy=StrategyRecord.build(report.chosen, closest.strategy),
            **MemoryRecord.build_from_estimate(closest, cluster).entries(MemoryRecord),
            missing_bytes_by_rank=[max(0.0, rank.device_bytes - room_bytes) for rank in closest.ranks],
        )


def write(report: PlanReport, strategy: Strategy | None) -> StrategyRecord | None:
    """Build the record of a strategy for the job of a report, if there is one."""
    return StrategyRecord.build_optional(report.chosen, strategy)


class ConflictRecord(Record):
    """
    Rules that no strategy satisfies together.

    Parameters
    ----------
    least_bubble_fraction
        The smallest bubble fraction of the strategies that fit, where its limit is to blame.
    exclusive_rules
        Smallest sets of rules that exclude each other.
    repairs
        Smallest sets of rules without which something fits.
    release
        Entries of the job to let go: the first choice.
    releases
        All smallest sets of entries to let go.
    shortage_bytes
        Device memory that the closest strategy lacks.
    host_shortage_bytes
        Host memory that the closest strategy lacks.
    needed_memory_bytes
        Memory of a device with which something fits.
    needed_host_memory_bytes
        Host memory of a device with which something fits.
    needed_headroom_bytes
        The headroom with which something fits.
    smallest_cluster
        The smallest cluster on which something fits.
    left_out
        Parts of the explanation that are missing because time ran out.
    closest
        The strategy that lacks least.
    """

    least_bubble_fraction: Figure | None
    exclusive_rules: list[list[str]] = read_from("exclusive")
    repairs: list[list[str]]
    release: list[str]
    releases: list[list[str]]
    shortage_bytes: Figure | None
    host_shortage_bytes: Figure | None
    needed_memory_bytes: Figure | None = read_from("needed_bytes")
    needed_host_memory_bytes: Figure | None = read_from("needed_host_bytes")
    needed_headroom_bytes: Figure | None = read_from("headroom_bytes")
    smallest_cluster: SmallestCluster[StrategyRecord] | None
    left_out: list[str]
    closest: ClosestRecord | None

    @classmethod
    def build_optional(cls, report: PlanReport, conflict: Conflict | None) -> ConflictRecord | None:
        """Build the record of a conflict of a report's job, if there is one."""
        if conflict is None:
            return None
        size: Any = conflict.size
        return cls.read(
            conflict,
            smallest_cluster=size and replace(size, strategy=write(report, size.strategy)),
            closest=ClosestRecord.build_from_report(report, report.closest) if report.closest else None,
        )


class AlternativeRecord(Record):
    """
    One combination of the settings of which the job gives several values.

    Parameters
    ----------
    settings
        Their values.
    answer
        found: its search found strategies that were the best so far; nothing faster: none is among the plans; nothing
        fits; unknown: time ran out before the proof.
    num_strategies
        Strategies that satisfy every rule but those of memory.
    bound_seconds
        Lower bound of its steps, where that alone excludes it and nothing was searched; null elsewhere.
    shortage_bytes
        Device memory that its closest strategy lacks, where nothing fits.
    host_shortage_bytes
        Host memory that it lacks.
    """

    settings: dict[str, bool | int | float | str] = read_from("problem.settings")
    answer: Literal["found", "nothing faster", "nothing fits", "unknown"]
    num_strategies: int = read_from("outcome.effort.size")
    bound_seconds: Figure | None
    shortage_bytes: Figure | None
    host_shortage_bytes: Figure | None


EVEN: Final = "even stages"

"""The scope of a bound that leaves uneven stages out; other bounds are of all strategies."""


class AllDevicesRecord(Record):
    """
    The best plan that uses all devices, where others are faster.

    Parameters
    ----------
    num_devices
        Devices that it uses.
    step_time_seconds
        Its step.
    mfu
        Its model FLOPs over the peak of the conventions.
    strategy
        Its decisions.
    """

    num_devices: int = read_from("cluster.num_devices")
    step_time_seconds: Figure = read_from("step_seconds")
    mfu: Figure
    strategy: StrategyRecord = read_from(decisions_of)


class IdleDevicesRecord(Record):
    """
    Whole nodes that stay idle where that is faster.

    Parameters
    ----------
    num_idle_devices
        Devices that the best plan leaves idle.
    all_devices
        The best plan that uses all devices, where some are idle; null where there is none.
    fewest_nodes_searched
        The smallest number of nodes below the job's own that was searched; on fewer no step can be as short. 0: no
        smaller number can be as fast.
    most_nodes_searched
        The largest number below the job's own; 0 where none was searched.
    is_proven
        True if no plan on any smaller number is faster than the best one: proven.
    """

    num_idle_devices: int
    all_devices: AllDevicesRecord | None
    fewest_nodes_searched: int = read_from("fewer.fewest_nodes")
    most_nodes_searched: int = read_from("fewer.most_nodes")
    is_proven: bool = read_from("fewer.is_proven")


class NearbyBatchRecord(Record):
    """
    A near-by batch with which all devices train faster.

    Parameters
    ----------
    global_batch_size
        Sequences per step.
    change_fraction
        Difference from the job's own batch, as a fraction of that.
    num_devices
        Devices that its plan uses: all.
    step_time_seconds
        One optimizer step of its plan.
    tokens_per_second
        Tokens that all devices together train per second.
    gain_fraction
        Gain in tokens per second over the job's own batch and best plan, as a fraction.
    mfu
        Model FLOPs over the peak of the conventions.
    strategy
        The decisions of its plan.
    """

    global_batch_size: int = read_from("facts.workload.global_batch_size")
    change_fraction: Figure
    num_devices: int = read_from("cluster.num_devices")
    step_time_seconds: Figure = read_from("step_seconds")
    tokens_per_second: Figure
    gain_fraction: Figure
    mfu: Figure
    strategy: StrategyRecord = read_from(decisions_of)

    @classmethod
    def build(cls, plan: Plan, best: Plan) -> NearbyBatchRecord:
        """Build the record of one near-by batch, compared with the job's best plan."""
        own = best.facts.workload.global_batch_size
        return cls.read(
            plan,
            change_fraction=plan.facts.workload.global_batch_size / own - 1,
            gain_fraction=plan.tokens_per_second / best.tokens_per_second - 1,
        )


class RecommendationRecord(Record):
    """
    The recommended plan, compared with the fastest one.

    Parameters
    ----------
    is_fastest
        True if the recommended plan is the fastest one.
    fastest_number
        The number of the fastest plan; null where the report does not have it.
    fastest_strategy
        Its decisions.
    fastest_step_time_seconds
        Its step.
    fastest_closed_form_step_time_seconds
        Its step as the search compares it; the proof is about this time.
    gain_fraction
        Time by which the fastest step is shorter, as a fraction of the recommended plan's step.
    tolerance_fraction
        Largest slowdown against the fastest plan that the recommended one may have, as a fraction.
    preferred
        Criteria by which the recommended plan is better, in their order.
    complete
        True if the search for plans that the order prefers was completed in time.
    """

    is_fastest: bool
    fastest_number: int | None
    fastest_strategy: StrategyRecord = read_from(decisions_of)
    fastest_step_time_seconds: Figure = read_from("step_seconds")
    fastest_closed_form_step_time_seconds: Figure = read_from("closed_form_seconds")
    gain_fraction: Figure
    tolerance_fraction: Figure
    preferred: list[Preference]
    complete: bool = read_from("is_complete")

    @classmethod
    def build(cls, report: PlanReport) -> RecommendationRecord | None:
        """Build the record of a report's recommendation, if it has one."""
        advice, fastest = report.recommendation, report.fastest
        if advice is None or fastest is None or not report.plans:
            return None
        strategies = [plan.strategy for plan in report.plans]
        number = strategies.index(fastest.strategy) + 1 if fastest.strategy in strategies else None
        gain = 1 - fastest.step_seconds / report.plans[0].step_seconds
        return cls.read(fastest, advice, fastest_number=number, gain_fraction=gain)


def _nearest_published(report: PlanReport | EstimateReport) -> PublishedLayoutRecord | None:
    """Find the published layout nearest to a report's job, and compare it with the first plan."""
    judged = nearest_recipe(report.chosen) if report.plans else None
    if judged is None:
        return None
    slower = judged.report.plan.step_seconds / report.plans[0].step_seconds - 1
    return PublishedLayoutRecord.read(judged, slower_fraction=slower)


class PlanReportRecord(SettingRecord):
    """
    The report of planner plan.

    Parameters
    ----------
    kind
        Kind of the report.
    status
        optimal: nothing is faster; feasible: time ran out with plans in hand; infeasible: nothing fits; unknown.
    lower_bound_seconds
        No strategy has a shorter step as the search compares it, but for the rounding bound; null where none exists.
    bound_of
        Strategies that status, bound and gap are proven of; uneven stages are compared by the sum over their ranks.
    gap
        Largest possible distance of the best plan from that bound, as a fraction of its time; null without a plan.
    rounding_bound_seconds
        Seconds that rounding to the solver's ticks may hide.
    certificate
        A second proof by another model; null where nothing was found.
    search
        Statistics of the search.
    candidates
        Strategies of the job's list that the rules allow; null without a list.
    conflict
        Reasons why nothing fits; null if something does.
    alternatives
        Combinations of settings that were searched; empty where each setting has one value.
    plans
        The recommended one first, then by their steps.
    published
        The nearest published layout, costed for the job; null where none is for it, or no plan was found.
    small_runs
        Notes on the small runs that the device's constants come from; empty without any.
    recommendation
        Reason why the first plan is the first; null if the fastest one was asked for, or none was found.
    idle
        Whole nodes that stay idle where that is faster; null where the job says how many devices are used.
    nearby_batches
        Near-by batches with which all devices train more tokens per second, the nearest first, each faster than those
        before it. They are looked for where devices stay idle or share a small divisor with the batch.
    """

    _inside = ("outcome",)

    kind: Literal["plan"] = read_from(lambda _: "plan")
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    lower_bound_seconds: Figure | None = read_from(lambda report: finite(report.outcome.lower_bound_seconds))
    bound_of: Literal["all strategies", "even stages"] = read_from(
        lambda report: EVEN if report.outcome.stages_differ else "all strategies"
    )
    gap: Figure | None = read_from(lambda report: finite(report.outcome.gap))
    rounding_bound_seconds: Figure
    certificate: Certificate[StrategyRecord] | None = read_from(
        lambda report: (
            report.certificate and replace(report.certificate, better=write(report, report.certificate.better))
        )
    )
    search: EffortRecord = read_from("effort")
    candidates: CandidateListReport | None = read_from("listed")
    conflict: ConflictRecord | None = read_from(
        lambda report: ConflictRecord.build_optional(report, report.outcome.conflict)
    )
    alternatives: list[AlternativeRecord]
    plans: list[NumberedPlanRecord] = read_from(lambda report: NumberedPlanRecord.build_all(report.plans))
    published: PublishedLayoutRecord | None = read_from(_nearest_published)
    small_runs: list[str]
    recommendation: RecommendationRecord | None = read_from(RecommendationRecord.build)
    idle: IdleDevicesRecord | None = read_from(lambda report: report if report.fewer else None)
    nearby_batches: list[NearbyBatchRecord] = read_from(
        lambda report: [NearbyBatchRecord.build(plan, report.fastest) for plan in report.nearby]
    )

    broken_rules: ClassVar[tuple[str, ...]] = ()
    broken_preferences: ClassVar[tuple[str, ...]] = ()

    @property
    def report(self) -> PlanReport:
        """The report itself."""
        return cast("PlanReport", self._sources[0])


class GivenRecord(Record):
    """
    A strategy that was given.

    Parameters
    ----------
    allowed
        True if the rules allow the strategy.
    broken_rules
        Sentences of the rules that forbid it.
    broken_preferences
        Sentences of the preferences for which the search leaves it out.
    assumed
        Decisions that were not given, with the values that they got.
    completed
        Completed decisions, as words of the strategy's line.
    completed_by
        Origin of these values: search, recipes (of the framework), no_plan (recipes, as nothing with what was given is
        allowed); given: nothing was left open.
    """

    allowed: bool = read_from(lambda report: not report.broken_rules)
    broken_rules: list[str]
    broken_preferences: list[str]
    assumed: dict[str, int | bool | str] = read_from(lambda report: finite(report.assumed))
    completed: str
    completed_by: str


class EstimateReportRecord(PlanRecord, GivenRecord, SettingRecord):
    """
    The report of planner estimate.

    Parameters
    ----------
    kind
        Kind of the report.
    published
        The nearest published layout, costed for the job; null where none is for it.
    """

    kind: Literal["estimate"] = read_from(lambda _: "estimate")
    published: PublishedLayoutRecord | None = read_from(_nearest_published)

    @classmethod
    def build_from_report(cls, report: EstimateReport) -> EstimateReportRecord:
        """Build the record of a report."""
        (plan,) = NumberedPlanRecord.build_all(report.plans)
        return cls.read(report, plan, **plan.entries(PlanRecord))

    recommendation: ClassVar[None] = None
    idle: ClassVar[None] = None
    conflict: ClassVar[None] = None
    small_runs: ClassVar[tuple[str, ...]] = ()
    nearby_batches: ClassVar[tuple[NearbyBatchRecord, ...]] = ()

    @property
    def report(self) -> EstimateReport:
        """The report itself."""
        return cast("EstimateReport", self._sources[0])

    @property
    def plans(self) -> list[NumberedPlanRecord]:
        """The one plan, as a :class:`PlanReportRecord` holds its plans; it is compared with itself."""
        return [self._sources[1]]


ReportRecord: TypeAlias = PlanReportRecord | EstimateReportRecord


def report_record(report: PlanReport | EstimateReport | ReportRecord) -> ReportRecord:
    """Build the record of a report; one that is built already is returned."""
    if isinstance(report, PlanReportRecord | EstimateReportRecord):
        return report
    if isinstance(report, EstimateReport):
        return EstimateReportRecord.build_from_report(report)
    return PlanReportRecord.read(report)


AnyReport: TypeAlias = "PlanReport | EstimateReport | Explanation | Comparison"
