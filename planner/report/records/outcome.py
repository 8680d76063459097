"""How the search ended: the proof, what it had to do, and why nothing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from planner.report.records.plan import MemoryRecord
from planner.report.records.record import Figure, Record, finite
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from constraints.conflict import Conflict, Size
    from costmodel.step.estimate import Estimate
    from costmodel.tables import Facts
    from planner.plan import PlanReport
    from planner.search.branch_and_bound import Effort
    from planner.search.listed import Listed


class ExcludedRecord(Record):
    """
    Strategies that the solver never saw, under the first reason that applies.

    Parameters
    ----------
    lower_bound
        A bound of their time is above what was found.
    rules_of_time
        Without a time, or refused by a rule of the time.
    overlaps
        Other overlaps of the same strategy are as fast.
    cut
        Slower than what was found.
    dominance
        Another one is better in time, device memory and host memory.
    memory
        Too large for device or host.
    """

    lower_bound: int
    rules_of_time: int
    overlaps: int
    cut: int
    dominance: int
    memory: int

    @classmethod
    def of(cls, effort: Effort) -> ExcludedRecord:
        """What a search left out."""
        pruned = effort.pruned
        return cls(
            lower_bound=effort.num_bounded + pruned.bounded,
            rules_of_time=pruned.timeless,
            overlaps=pruned.folded,
            cut=pruned.cut,
            dominance=pruned.dominated,
            memory=pruned.unfit + effort.num_unfit,
        )


class EffortRecord(Record):
    """
    What the search had to do.

    Parameters
    ----------
    num_raw_strategies, num_strategies
        Combinations before any rule; those that satisfy every rule but those of memory.
    num_rows, num_rows_tabulated
        Combinations of degrees; those whose features were looked at.
    num_strategies_tabulated
        Strategies of these.
    num_excluded
        Why the others were left out.
    num_pipelines, num_pipelines_costed, num_pipelines_solved
        Pipelines whose stages may differ: all, those that were costed, those that CP-SAT solved.
    num_candidates, num_solves
        Literals that CP-SAT saw, and how often it ran.
    build_seconds, solve_seconds
        Time for the space, tables and models; time inside CP-SAT.
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
    def of(cls, effort: Effort) -> EffortRecord:
        """The record of a search."""
        return cls(
            num_raw_strategies=effort.raw_size,
            num_strategies=effort.size,
            num_rows=effort.num_rows,
            num_rows_tabulated=effort.num_rows_tabulated,
            num_strategies_tabulated=effort.pruned.tabulated,
            num_excluded=ExcludedRecord.of(effort),
            num_pipelines=effort.stages.pipelines,
            num_pipelines_costed=effort.stages.costed,
            num_pipelines_solved=effort.stages.solved,
            num_candidates=effort.num_candidates,
            num_solves=effort.num_solves,
            build_seconds=effort.build_seconds,
            solve_seconds=effort.solve_seconds,
        )


class ImpossibleRecord(Record):
    """
    A strategy of the job's list that no rule allows.

    Parameters
    ----------
    place
        Where it stands.
    rules
        Sentences of the rules that forbid it.
    """

    place: str
    rules: list[str]


class CandidatesRecord(Record):
    """
    What the rules leave of the job's list of strategies.

    Parameters
    ----------
    source
        Its file.
    num_rows, num_impossible
        Its strategies; those that rules forbid.
    impossible
        The first of them.
    """

    source: str
    num_rows: int
    num_impossible: int
    impossible: list[ImpossibleRecord]

    @classmethod
    def of(cls, listed: Listed) -> CandidatesRecord:
        """The record of a list of strategies."""
        return cls(
            source=listed.source,
            num_rows=listed.num_rows,
            num_impossible=listed.num_impossible,
            impossible=[ImpossibleRecord(place=place, rules=list(rules)) for place, rules in listed.impossible],
        )


class SmallestClusterRecord(Record):
    """
    The smallest cluster on which something fits.

    Parameters
    ----------
    num_devices, strategy
        Its devices and a strategy for them; null where none was found.
    num_devices_tried, num_devices_enough
        The largest number that was tried; one that is enough, where the smallest is not known.
    num_devices_within
        The largest number below the job's own that fits; null where none does.
    time_ran_out
        Whether smaller ones were left out for want of time.
    """

    num_devices: int | None
    strategy: StrategyRecord | None
    num_devices_tried: int | None
    num_devices_enough: int | None
    num_devices_within: int | None
    time_ran_out: bool

    @classmethod
    def of(cls, size: Size, facts: Facts) -> SmallestClusterRecord:
        """The record of a search over cluster sizes."""
        return cls(
            num_devices=size.num_devices,
            strategy=StrategyRecord.among(facts, size.strategy),
            num_devices_tried=size.num_tried,
            num_devices_enough=size.num_enough,
            num_devices_within=size.num_within,
            time_ran_out=size.is_cut,
        )


class ClosestStrategyRecord(Record):
    """
    The decisions of the strategy that comes closest to fitting.

    Parameters
    ----------
    strategy
        It.
    """

    strategy: StrategyRecord


class ClosestRecord(MemoryRecord, ClosestStrategyRecord):
    """
    The strategy that comes closest to fitting.

    Parameters
    ----------
    missing_bytes_by_rank
        Memory that each pipeline rank lacks.
    """

    missing_bytes_by_rank: list[Figure]

    @classmethod
    def of_report(cls, report: PlanReport, closest: Estimate) -> ClosestRecord:
        """The record of the strategy that lacks least of what a job's devices have."""
        device = report.problem.facts.cluster.device
        room_bytes = device.memory_bytes - report.problem.search.memory_headroom_bytes
        return cls(
            strategy=StrategyRecord.of(closest.strategy, num_microbatches=closest.num_microbatches),
            **dict(MemoryRecord.of_estimate(closest, device)),
            missing_bytes_by_rank=[max(0.0, rank.device_bytes - room_bytes) for rank in closest.ranks],
        )


class ConflictRecord(Record):
    """
    Why nothing fits.

    Parameters
    ----------
    least_bubble_fraction
        The smallest share that the pipeline idles in what fits, where that is to blame.
    exclusive_rules, repairs
        Smallest sets of rules that exclude each other; smallest sets without which something fits.
    release, releases
        Entries of the job to let go: the first choice, and all smallest sets of them.
    shortage_bytes, host_shortage_bytes
        Memory that the closest strategy lacks.
    needed_memory_bytes, needed_host_memory_bytes, needed_headroom_bytes
        Memory of a device or its host with which something fits, or the headroom.
    smallest_cluster
        The smallest cluster on which something fits.
    left_out
        What was not asked for want of time.
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
    def of(cls, report: PlanReport, conflict: Conflict) -> ConflictRecord:
        """The record of a conflict of a report's job."""
        return cls(
            least_bubble_fraction=conflict.least_bubble_fraction,
            exclusive_rules=[list(rules) for rules in conflict.exclusive],
            repairs=[list(rules) for rules in conflict.repairs],
            release=list(conflict.release),
            releases=[list(rules) for rules in conflict.releases],
            shortage_bytes=conflict.shortage_bytes,
            host_shortage_bytes=conflict.host_shortage_bytes,
            needed_memory_bytes=conflict.needed_bytes,
            needed_host_memory_bytes=conflict.needed_host_bytes,
            needed_headroom_bytes=conflict.headroom_bytes,
            smallest_cluster=SmallestClusterRecord.of(conflict.size, report.problem.facts) if conflict.size else None,
            left_out=list(conflict.left_out),
            closest=ClosestRecord.of_report(report, report.closest) if report.closest else None,
        )


class OutcomeRecord(Record):
    """
    The proof.

    Parameters
    ----------
    status
        optimal: nothing is faster; feasible: time ran out with plans in hand; infeasible: nothing fits; unknown.
    lower_bound_seconds
        No strategy is faster, but for the rounding bound; null where none exists.
    gap
        How far the best plan may be from that, as a fraction of its time; null without a plan.
    rounding_bound_seconds
        What rounding to the solver's ticks may hide.
    search
        What the search had to do.
    candidates
        What the rules leave of the job's list of strategies; null without one.
    conflict
        Why nothing fits; null where something does.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    lower_bound_seconds: Figure | None
    gap: Figure | None
    rounding_bound_seconds: Figure
    search: EffortRecord
    candidates: CandidatesRecord | None
    conflict: ConflictRecord | None

    @classmethod
    def of_report(cls, report: PlanReport) -> OutcomeRecord:
        """The record of how the search of a report ended."""
        outcome = report.outcome
        return OutcomeRecord(
            status=outcome.status.value,
            lower_bound_seconds=finite(outcome.lower_bound_seconds),
            gap=finite(outcome.gap),
            rounding_bound_seconds=outcome.rounding_bound_seconds,
            search=EffortRecord.of(outcome.effort),
            candidates=CandidatesRecord.of(report.listed) if report.listed else None,
            conflict=ConflictRecord.of(report, outcome.conflict) if outcome.conflict else None,
        )
