"""How the search ended: the proof, statistics, and why nothing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from planner.report.records.plan import MemoryRecord
from planner.report.records.record import Figure, Record, finite
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from constraints.conflict import Conflict, Size
    from costmodel.step.estimate import Estimate
    from costmodel.tables import Facts
    from planner.plan import PlanReport
    from planner.search.branch_and_bound import SearchStats
    from planner.search.listed import CandidateListReport


class ExcludedRecord(Record):
    """Strategies that the solver never saw, under the first reason that applies."""

    lower_bound: int = Field(description="A bound of their time is above what was found.")
    rules_of_time: int = Field(description="Without a time, or refused by a rule of the time.")
    overlaps: int = Field(description="Other overlaps of the same strategy are as fast.")
    cut: int = Field(description="Slower than what was found.")
    dominance: int = Field(description="Another one is better in time, device memory and host memory.")
    memory: int = Field(description="Too large for device or host.")

    @classmethod
    def of(cls, effort: SearchStats) -> ExcludedRecord:
        """What a search left out."""
        pruned = effort.pruned
        return cls(
            lower_bound=effort.num_bounded + pruned.bounded,
            rules_of_time=pruned.infeasible_time,
            overlaps=pruned.folded,
            cut=pruned.cut,
            dominance=pruned.dominated,
            memory=pruned.unfit + effort.num_unfit,
        )


class EffortRecord(Record):
    """Statistics of the search."""

    num_raw_strategies: int = Field(description="Combinations before any rule.")
    num_strategies: int = Field(description="Combinations that satisfy every rule but those of memory.")
    num_rows: int = Field(description="Combinations of degrees.")
    num_rows_tabulated: int = Field(description="Combinations of degrees whose features were looked at.")
    num_strategies_tabulated: int = Field(description="Strategies with the degrees that were looked at.")
    num_excluded: ExcludedRecord = Field(description="Why the others were left out.")
    num_pipelines: int = Field(description="Pipelines whose stages may differ.")
    num_pipelines_costed: int = Field(description="Pipelines whose ranks were costed.")
    num_pipelines_solved: int = Field(description="Pipelines that CP-SAT solved.")
    num_candidates: int = Field(description="Literals that CP-SAT saw.")
    num_solves: int = Field(description="How often CP-SAT ran.")
    build_seconds: Figure = Field(description="Time for the space, tables and models.")
    solve_seconds: Figure = Field(description="Time inside CP-SAT.")

    @classmethod
    def of(cls, effort: SearchStats) -> EffortRecord:
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
    """A strategy of the job's list that no rule allows."""

    place: str = Field(description="Where it stands.")
    rules: list[str] = Field(description="Sentences of the rules that forbid it.")


class CandidatesRecord(Record):
    """How many strategies of the job's candidate list the rules allow."""

    source: str = Field(description="Its file.")
    num_rows: int = Field(description="Its strategies.")
    num_impossible: int = Field(description="Strategies of the list that rules forbid.")
    impossible: list[ImpossibleRecord] = Field(description="The first forbidden strategies.")

    @classmethod
    def of(cls, listed: CandidateListReport) -> CandidatesRecord:
        """The record of a list of strategies."""
        return cls(
            source=listed.source,
            num_rows=listed.num_rows,
            num_impossible=listed.num_impossible,
            impossible=[ImpossibleRecord(place=place, rules=list(rules)) for place, rules in listed.impossible],
        )


class SmallestClusterRecord(Record):
    """The smallest cluster on which something fits."""

    num_devices: int | None = Field(description="Its devices; null where none was found.")
    strategy: StrategyRecord | None = Field(description="A strategy for it; null where none was found.")
    num_devices_tried: int | None = Field(description="The largest number that was tried.")
    num_devices_enough: int | None = Field(description="A number that is enough, where the smallest is not known.")
    num_devices_within: int | None = Field(
        description="The largest number below the job's own that fits; null where none does."
    )
    time_ran_out: bool = Field(description="Whether smaller ones were left out for want of time.")

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
    """The decisions of the strategy that comes closest to fitting."""

    strategy: StrategyRecord = Field(description="Its decisions.")


class ClosestRecord(MemoryRecord, ClosestStrategyRecord):
    """The strategy that comes closest to fitting."""

    missing_bytes_by_rank: list[Figure] = Field(description="Memory that each pipeline rank lacks.")

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
    """Why nothing fits."""

    least_bubble_fraction: Figure | None = Field(
        description="The smallest share that the pipeline idles in what fits, where that is to blame."
    )
    exclusive_rules: list[list[str]] = Field(description="Smallest sets of rules that exclude each other.")
    repairs: list[list[str]] = Field(description="Smallest sets of rules without which something fits.")
    release: list[str] = Field(description="Entries of the job to let go: the first choice.")
    releases: list[list[str]] = Field(description="All smallest sets of entries to let go.")
    shortage_bytes: Figure | None = Field(description="Device memory that the closest strategy lacks.")
    host_shortage_bytes: Figure | None = Field(description="Host memory that the closest strategy lacks.")
    needed_memory_bytes: Figure | None = Field(description="Memory of a device with which something fits.")
    needed_host_memory_bytes: Figure | None = Field(description="Host memory of a device with which something fits.")
    needed_headroom_bytes: Figure | None = Field(description="The headroom with which something fits.")
    smallest_cluster: SmallestClusterRecord | None = Field(description="The smallest cluster on which something fits.")
    left_out: list[str] = Field(description="What is not covered because time ran out.")
    closest: ClosestRecord | None = Field(description="The strategy that lacks least.")

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
    """The proof."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"] = Field(
        description="optimal: nothing is faster; feasible: time ran out with plans in hand; infeasible: nothing fits; "
        "unknown."
    )
    lower_bound_seconds: Figure | None = Field(
        description="No strategy is faster, but for the rounding bound; null where none exists."
    )
    gap: Figure | None = Field(
        description="How far the best plan may be from that, as a fraction of its time; null without a plan."
    )
    rounding_bound_seconds: Figure = Field(description="What rounding to the solver's ticks may hide.")
    search: EffortRecord = Field(description="What the search had to do.")
    candidates: CandidatesRecord | None = Field(
        description="What the rules leave of the job's list of strategies; null without one."
    )
    conflict: ConflictRecord | None = Field(description="Why nothing fits; null where something does.")

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
