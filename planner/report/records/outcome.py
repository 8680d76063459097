"""The outcome of the search: the proof, statistics, and why no strategy fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from planner.report.records.plan import MemoryRecord
from planner.report.records.record import Figure, Record, entry
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from constraints.conflict import Conflict, Size
    from costmodel.step.estimate import Estimate
    from planner.jobs.problem import Problem
    from planner.results import PlanReport
    from planner.search.branch_and_bound import SearchStats
    from planner.search.certificate import Certificate
    from planner.search.listed import CandidateListReport


class ExcludedRecord(Record):
    """Numbers of strategies that the solver never saw, under the first reason that applies."""

    lower_bound: int = entry("A lower bound of their time is above the best time found.")
    rules_of_time: int = entry("Without a time, or refused by a rule of the time.", "pruned.infeasible_time")
    overlaps: int = entry("Other overlaps of the same strategy are as fast.", "pruned.folded")
    cut: int = entry("Slower than the best strategy found.", "pruned.cut")
    dominance: int = entry("Another one is better in time, device memory and host memory.", "pruned.dominated")
    memory: int = entry("Too large for device or host.")

    @classmethod
    def build(cls, effort: SearchStats) -> ExcludedRecord:
        """Build the record of the strategies that a search left out."""
        return cls.read(
            effort,
            lower_bound=effort.num_bounded + effort.pruned.bounded,
            memory=effort.num_unfit + effort.pruned.unfit,
        )


class EffortRecord(Record):
    """Statistics of the search."""

    num_raw_strategies: int = entry("Combinations before any rule.", "raw_size")
    num_strategies: int = entry("Combinations that satisfy every rule but those of memory.", "size")
    num_rows: int = entry("Combinations of degrees.")
    num_rows_tabulated: int = entry("Combinations of degrees whose features were looked at.")
    num_strategies_tabulated: int = entry("Strategies with the degrees that were looked at.", "pruned.tabulated")
    num_excluded: ExcludedRecord = entry("Why the others were left out.")
    num_pipelines: int = entry("Pipelines whose stages may differ.", "stages.pipelines")
    num_pipelines_costed: int = entry("Pipelines whose ranks were costed.", "stages.costed")
    num_pipelines_solved: int = entry("Pipelines that CP-SAT solved.", "stages.solved")
    num_candidates: int = entry("Literals that CP-SAT saw.")
    num_solves: int = entry("Runs of CP-SAT.")
    build_seconds: Figure = entry("Time for the space, tables and models.")
    solve_seconds: Figure = entry("Time inside CP-SAT.")


class ImpossibleRecord(Record):
    """A strategy of the job's list that no rule allows."""

    place: str = entry("Its place in the list.")
    rules: list[str] = entry("Sentences of the rules that forbid it.")


class CandidatesRecord(Record):
    """Number of strategies of the job's candidate list that the rules allow."""

    source: str = entry("Its file.")
    num_rows: int = entry("Its strategies.")
    num_impossible: int = entry("Strategies of the list that rules forbid.")
    impossible: list[ImpossibleRecord] = entry("The first forbidden strategies.")

    @classmethod
    def build(cls, listed: CandidateListReport) -> CandidatesRecord:
        """Build the record of a list of strategies."""
        forbidden = [ImpossibleRecord(place=place, rules=list(rules)) for place, rules in listed.impossible]
        return cls.read(listed, impossible=forbidden)


class SmallestClusterRecord(Record):
    """The smallest cluster on which something fits."""

    num_devices: int | None = entry("Its devices; null where none was found.")
    strategy: StrategyRecord | None = entry("A strategy for it; null where none was found.")
    num_devices_tried: int | None = entry("The largest number that was tried.", "num_tried")
    num_devices_enough: int | None = entry("A number that is enough, where the smallest is not known.", "num_enough")
    num_devices_within: int | None = entry(
        "The largest number below the job's own that fits; null where none does.", "num_within"
    )
    time_ran_out: bool = entry("True if time ran out before smaller ones were tried.", "is_cut")

    @classmethod
    def build(cls, size: Size, problem: Problem) -> SmallestClusterRecord:
        """Build the record of a search over cluster sizes."""
        return cls.read(size, strategy=StrategyRecord.build_optional(problem, size.strategy))


class ClosestStrategyRecord(Record):
    """The decisions of the strategy that comes closest to fitting."""

    strategy: StrategyRecord = entry("Its decisions.")


class ClosestRecord(MemoryRecord, ClosestStrategyRecord):
    """The strategy that comes closest to fitting."""

    missing_bytes_by_rank: list[Figure] = entry("Memory that each pipeline rank lacks.")

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
    """Why no strategy fits."""

    least_bubble_fraction: Figure | None = entry(
        "The smallest bubble fraction of the strategies that fit, where its limit is to blame."
    )
    exclusive_rules: list[list[str]] = entry("Smallest sets of rules that exclude each other.", "exclusive")
    repairs: list[list[str]] = entry("Smallest sets of rules without which something fits.")
    release: list[str] = entry("Entries of the job to let go: the first choice.")
    releases: list[list[str]] = entry("All smallest sets of entries to let go.")
    shortage_bytes: Figure | None = entry("Device memory that the closest strategy lacks.")
    host_shortage_bytes: Figure | None = entry("Host memory that the closest strategy lacks.")
    needed_memory_bytes: Figure | None = entry("Memory of a device with which something fits.", "needed_bytes")
    needed_host_memory_bytes: Figure | None = entry(
        "Host memory of a device with which something fits.", "needed_host_bytes"
    )
    needed_headroom_bytes: Figure | None = entry("The headroom with which something fits.", "headroom_bytes")
    smallest_cluster: SmallestClusterRecord | None = entry("The smallest cluster on which something fits.")
    left_out: list[str] = entry("Parts of the explanation that are missing because time ran out.")
    closest: ClosestRecord | None = entry("The strategy that lacks least.")

    @classmethod
    def build(cls, report: PlanReport, conflict: Conflict) -> ConflictRecord:
        """Build the record of a conflict of a report's job."""
        return cls.read(
            conflict,
            smallest_cluster=SmallestClusterRecord.build(conflict.size, report.chosen) if conflict.size else None,
            closest=ClosestRecord.build_from_report(report, report.closest) if report.closest else None,
        )


class CertificateRecord(Record):
    """CP-SAT's answer when a model with all rules is asked for an even strategy that is faster than the plan."""

    verdict: Literal["certified", "not certified", "refuted"] = entry(
        "certified: none is; not certified: it could not be asked; refuted: one is, a fault of the planner."
    )
    reason: str = entry("Why it could not be asked; empty where it was.")
    below_seconds: Figure = entry("The answer's step, than which none may be faster.")
    num_decisions: int = entry("Variables of decisions.")
    num_rules: int = entry("Rules that the model holds.")
    num_constraints: int = entry("Constraints that they became; the others are domains, or hold for all values left.")
    num_rows: int = entry("Combinations of degrees.")
    num_rows_bounded: int = entry("Combinations of degrees that their lower bound excludes.")
    num_combinations: int = entry("Combinations of the decisions that memory depends on, in the model's table.")
    num_strategies: int = entry("Strategies that fit and are as fast unless a rule forbids them, in its other table.")
    is_thorough: bool = entry("True if the tables hold all features, also those that the rules forbid.")
    seconds: Figure = entry("Time that it took.")
    better: StrategyRecord | None = entry("The faster strategy; null without one.")

    @classmethod
    def build(cls, certificate: Certificate, problem: Problem) -> CertificateRecord:
        """Build the record of a certificate."""
        return cls.read(certificate, better=StrategyRecord.build_optional(problem, certificate.better))


class AlternativeRecord(Record):
    """One combination of the settings of which the job gives several values."""

    settings: dict[str, bool | int | float | str] = entry("Their values.", "problem.settings")
    answer: Literal["found", "nothing faster", "nothing fits", "unknown"] = entry(
        "found: its search found strategies that were the best so far; nothing faster: none is among the plans; "
        "nothing fits; unknown: time ran out before the proof."
    )
    num_strategies: int = entry("Strategies that satisfy every rule but those of memory.", "outcome.effort.size")
    shortage_bytes: Figure | None = entry("Device memory that its closest strategy lacks, where nothing fits.")
    host_shortage_bytes: Figure | None = entry("Host memory that it lacks.")


EVEN: Final = "even stages"
"""The scope of a bound that leaves uneven stages out; other bounds are of all strategies."""


class OutcomeRecord(Record):
    """The proof."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"] = entry(
        "optimal: nothing is faster; feasible: time ran out with plans in hand; infeasible: nothing fits; unknown."
    )
    lower_bound_seconds: Figure | None = entry(
        "No strategy is faster by its closed form, but for the rounding bound; null where none exists."
    )
    bound_of: Literal["all strategies", "even stages"] = entry(
        "Strategies that status, bound and gap are proven of; uneven stages are compared by the sum over their ranks."
    )
    gap: Figure | None = entry(
        "Largest possible distance of the best plan from that bound, as a fraction of its time; null without a plan."
    )
    rounding_bound_seconds: Figure = entry("Seconds that rounding to the solver's ticks may hide.")
    certificate: CertificateRecord | None = entry("A second proof by another model; null where nothing was found.")
    search: EffortRecord = entry("Statistics of the search.")
    candidates: CandidatesRecord | None = entry(
        "Strategies of the job's list that the rules allow; null without a list."
    )
    conflict: ConflictRecord | None = entry("Why nothing fits; null where something does.")
    alternatives: list[AlternativeRecord] = entry(
        "Combinations of settings that were searched; empty where each setting has one value."
    )
