"""The outcome of the search: the proof, statistics, and why no strategy fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from planner.report.records.plan import MemoryRecord
from planner.report.records.record import Figure, Record
from planner.report.records.strategy import StrategyRecord
from planner.search.recommendation import Preference

if TYPE_CHECKING:
    from constraints.conflict import Conflict, Size
    from costmodel.step.estimate import Estimate
    from planner.jobs.problem import Problem
    from planner.results import Plan, PlanReport
    from planner.search.alternatives import AlternativeOutcome
    from planner.search.branch_and_bound import SearchStats
    from planner.search.certificate import Certificate
    from planner.search.listed import CandidateListReport


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

    lower_bound: int
    rules_of_time: int
    cut: int
    dominance: int
    memory: int

    @classmethod
    def build(cls, effort: SearchStats) -> ExcludedRecord:
        """Build the record of the strategies that a search left out."""
        return cls.read(
            effort,
            lower_bound=effort.num_bounded + effort.pruned.bounded,
            memory=effort.num_unfit + effort.pruned.unfit,
            rules_of_time=effort.pruned.infeasible_time,
            cut=effort.pruned.cut,
            dominance=effort.pruned.dominated,
        )


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
        Why the others were left out.
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

    num_raw_strategies: int
    num_strategies: int
    num_rows: int
    num_rows_tabulated: int
    num_strategies_tabulated: int
    num_excluded: ExcludedRecord
    num_pipelines: int
    num_pipelines_costed: int
    num_pipelines_solved: int
    num_candidates: int
    num_solves: int
    build_seconds: Figure
    solve_seconds: Figure

    @classmethod
    def build(cls, effort: SearchStats) -> EffortRecord:
        """Build the record of a search's effort."""
        return cls.read(
            effort,
            num_raw_strategies=effort.raw_size,
            num_strategies=effort.size,
            num_strategies_tabulated=effort.pruned.tabulated,
            num_excluded=ExcludedRecord.build(effort),
            num_pipelines=effort.stages.pipelines,
            num_pipelines_costed=effort.stages.costed,
            num_pipelines_solved=effort.stages.solved,
        )


class ImpossibleRecord(Record):
    """
    A strategy of the job's list that no rule allows.

    Parameters
    ----------
    place
        Its place in the list.
    rules
        Sentences of the rules that forbid it.
    """

    place: str
    rules: list[str]


class CandidatesRecord(Record):
    """
    Number of strategies of the job's candidate list that the rules allow.

    Parameters
    ----------
    source
        Its file.
    num_rows
        Its strategies.
    num_impossible
        Strategies of the list that rules forbid.
    impossible
        The first forbidden strategies.
    """

    source: str
    num_rows: int
    num_impossible: int
    impossible: list[ImpossibleRecord]

    @classmethod
    def build(cls, listed: CandidateListReport) -> CandidatesRecord:
        """Build the record of a list of strategies."""
        forbidden = [ImpossibleRecord(place=place, rules=list(rules)) for place, rules in listed.impossible]
        return cls.read(listed, impossible=forbidden)


class SmallestClusterRecord(Record):
    """
    The smallest cluster on which something fits.

    Parameters
    ----------
    num_devices
        Its devices; null where none was found.
    strategy
        A strategy for it; null where none was found.
    num_devices_tried
        The largest number that was tried.
    num_devices_enough
        A number that is enough, where the smallest is not known.
    num_devices_within
        The largest number below the job's own that fits; null where none does.
    time_ran_out
        True if time ran out before smaller ones were tried.
    """

    num_devices: int | None
    strategy: StrategyRecord | None
    num_devices_tried: int | None
    num_devices_enough: int | None
    num_devices_within: int | None
    time_ran_out: bool

    @classmethod
    def build(cls, size: Size, problem: Problem) -> SmallestClusterRecord:
        """Build the record of a search over cluster sizes."""
        return cls(
            num_devices=size.num_devices,
            strategy=StrategyRecord.build_optional(problem, size.strategy),
            num_devices_tried=size.num_tried,
            num_devices_enough=size.num_enough,
            num_devices_within=size.num_within,
            time_ran_out=size.is_cut,
        )


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
        return cls(
            strategy=StrategyRecord.build(report.chosen, closest.strategy),
            **dict(MemoryRecord.build_from_estimate(closest, cluster)),
            missing_bytes_by_rank=[max(0.0, rank.device_bytes - room_bytes) for rank in closest.ranks],
        )


class ConflictRecord(Record):
    """
    Why no strategy fits.

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
    exclusive_rules: list[list[str]]
    repairs: list[list[str]]
    release: list[str]
    releases: list[list[str]]
    shortage_bytes: Figure | None
    host_shortage_bytes: Figure | None
    needed_memory_bytes: Figure | None
    needed_host_memory_bytes: Figure | None
    needed_headroom_bytes: Figure | None
    smallest_cluster: SmallestClusterRecord | None
    left_out: list[str]
    closest: ClosestRecord | None

    @classmethod
    def build(cls, report: PlanReport, conflict: Conflict) -> ConflictRecord:
        """Build the record of a conflict of a report's job."""
        return cls.read(
            conflict,
            exclusive_rules=conflict.exclusive,
            needed_memory_bytes=conflict.needed_bytes,
            needed_host_memory_bytes=conflict.needed_host_bytes,
            needed_headroom_bytes=conflict.headroom_bytes,
            smallest_cluster=SmallestClusterRecord.build(conflict.size, report.chosen) if conflict.size else None,
            closest=ClosestRecord.build_from_report(report, report.closest) if report.closest else None,
        )


class CertificateRecord(Record):
    """
    CP-SAT's answer when a model with all rules is asked for an even strategy that is faster than the plan.

    Parameters
    ----------
    verdict
        certified: none is; not certified: it could not be asked; refuted: one is, a fault of the planner.
    reason
        Why it could not be asked; empty where it was.
    below_seconds
        The answer's step, than which none may be faster.
    num_decisions
        Variables of decisions.
    num_rules
        Rules that the model holds.
    num_constraints
        Constraints that they became; the others are domains, or hold for all values left.
    num_rows
        Combinations of degrees.
    num_rows_bounded
        Combinations of degrees that their lower bound excludes.
    num_combinations
        Combinations of the decisions that memory depends on, in the model's table.
    num_strategies
        Strategies that the rules and the memory allow and that are as fast, in its other table.
    is_thorough
        True if the tables hold all features, also those that the rules forbid.
    seconds
        Time that it took.
    better
        The faster strategy; null without one.
    """

    verdict: Literal["certified", "not certified", "refuted"]
    reason: str
    below_seconds: Figure
    num_decisions: int
    num_rules: int
    num_constraints: int
    num_rows: int
    num_rows_bounded: int
    num_combinations: int
    num_strategies: int
    is_thorough: bool
    seconds: Figure
    better: StrategyRecord | None

    @classmethod
    def build(cls, certificate: Certificate, problem: Problem) -> CertificateRecord:
        """Build the record of a certificate."""
        return cls.read(certificate, better=StrategyRecord.build_optional(problem, certificate.better))


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
    shortage_bytes
        Device memory that its closest strategy lacks, where nothing fits.
    host_shortage_bytes
        Host memory that it lacks.
    """

    settings: dict[str, bool | int | float | str]
    answer: Literal["found", "nothing faster", "nothing fits", "unknown"]
    num_strategies: int
    shortage_bytes: Figure | None
    host_shortage_bytes: Figure | None

    @classmethod
    def build(cls, one: AlternativeOutcome) -> AlternativeRecord:
        """Build the record of a combination."""
        return cls.read(one, settings=one.problem.settings, num_strategies=one.outcome.effort.size)


EVEN: Final = "even stages"

"""The scope of a bound that leaves uneven stages out; other bounds are of all strategies."""


class OutcomeRecord(Record):
    """
    The proof.

    Parameters
    ----------
    status
        optimal: nothing is faster; feasible: time ran out with plans in hand; infeasible: nothing fits; unknown.
    lower_bound_seconds
        No strategy is faster by its closed form, but for the rounding bound; null where none exists.
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
        Why nothing fits; null where something does.
    alternatives
        Combinations of settings that were searched; empty where each setting has one value.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    lower_bound_seconds: Figure | None
    bound_of: Literal["all strategies", "even stages"]
    gap: Figure | None
    rounding_bound_seconds: Figure
    certificate: CertificateRecord | None
    search: EffortRecord
    candidates: CandidatesRecord | None
    conflict: ConflictRecord | None
    alternatives: list[AlternativeRecord]


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

    num_devices: int
    step_time_seconds: Figure
    mfu: Figure
    strategy: StrategyRecord

    @classmethod
    def build(cls, plan: Plan) -> AllDevicesRecord:
        """Build the record of a plan."""
        return cls.read(plan, plan.cluster, step_time_seconds=plan.step_seconds, strategy=_decisions(plan))


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
    fewest_nodes_searched: int
    most_nodes_searched: int
    is_proven: bool

    @classmethod
    def build(cls, report: PlanReport) -> IdleDevicesRecord | None:
        """Build the record of a report; None where the job wants no idle devices."""
        if report.fewer is None:
            return None
        return cls(
            num_idle_devices=report.num_idle_devices,
            all_devices=AllDevicesRecord.build(report.all_devices) if report.all_devices else None,
            fewest_nodes_searched=report.fewer.fewest_nodes,
            most_nodes_searched=report.fewer.most_nodes,
            is_proven=report.fewer.is_proven,
        )


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

    global_batch_size: int
    change_fraction: Figure
    num_devices: int
    step_time_seconds: Figure
    tokens_per_second: Figure
    gain_fraction: Figure
    mfu: Figure
    strategy: StrategyRecord

    @classmethod
    def build_from_report(cls, report: PlanReport) -> list[NearbyBatchRecord]:
        """Build the records of a report's near-by batches."""
        return [cls.build(plan, report.fastest) for plan in report.nearby if report.fastest]

    @classmethod
    def build(cls, plan: Plan, best: Plan) -> NearbyBatchRecord:
        """Build the record of one near-by batch, compared with the job's best plan."""
        own = best.facts.workload.global_batch_size
        return cls.read(
            plan,
            plan.cluster,
            plan.facts.workload,
            step_time_seconds=plan.step_seconds,
            change_fraction=plan.facts.workload.global_batch_size / own - 1,
            gain_fraction=plan.tokens_per_second / best.tokens_per_second - 1,
            strategy=_decisions(plan),
        )


def _decisions(plan: Plan) -> StrategyRecord:
    return StrategyRecord.build(plan.problem, plan.strategy)


class RecommendationRecord(Record):
    """
    The recommended plan beside the fastest one.

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
        Its step by the closed form, which the proof is about.
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
    fastest_strategy: StrategyRecord
    fastest_step_time_seconds: Figure
    fastest_closed_form_step_time_seconds: Figure
    gain_fraction: Figure
    tolerance_fraction: Figure
    preferred: list[Preference]
    complete: bool

    @classmethod
    def build(cls, report: PlanReport) -> RecommendationRecord | None:
        """Build the record of a report's recommendation, if it has one."""
        advice, fastest = report.recommendation, report.fastest
        if advice is None or fastest is None or not report.plans:
            return None
        strategies = [plan.strategy for plan in report.plans]
        number = strategies.index(fastest.strategy) + 1 if fastest.strategy in strategies else None
        return cls.read(
            advice,
            complete=advice.is_complete,
            fastest_number=number,
            fastest_strategy=StrategyRecord.build(fastest.problem, fastest.strategy),
            fastest_step_time_seconds=fastest.step_seconds,
            fastest_closed_form_step_time_seconds=fastest.closed_form_seconds,
            gain_fraction=1 - fastest.step_seconds / report.plans[0].step_seconds,
        )
