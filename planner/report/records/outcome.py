"""How the search ended: the proof, statistics, and why no strategy fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from planner.report.records.plan import MemoryRecord
from planner.report.records.record import Figure, Record, entry
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from constraints.conflict import Conflict, Size
    from costmodel.step.estimate import Estimate
    from planner.certificate import Certificate
    from planner.jobs.problem import Problem
    from planner.results import PlanReport
    from planner.search.branch_and_bound import SearchStats
    from planner.search.listed import CandidateListReport


class ExcludedRecord(Record):
    """Strategies that the solver never saw, under the first reason that applies."""

    lower_bound: int = entry("A bound of their time is above what was found.")
    rules_of_time: int = entry("Without a time, or refused by a rule of the time.", "pruned.infeasible_time")
    overlaps: int = entry("Other overlaps of the same strategy are as fast.", "pruned.folded")
    cut: int = entry("Slower than what was found.", "pruned.cut")
    dominance: int = entry("Another one is better in time, device memory and host memory.", "pruned.dominated")
    memory: int = entry("Too large for device or host.")

    @classmethod
    def of(cls, effort: SearchStats) -> ExcludedRecord:
        """What a search left out."""
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
    num_solves: int = entry("How often CP-SAT ran.")
    build_seconds: Figure = entry("Time for the space, tables and models.")
    solve_seconds: Figure = entry("Time inside CP-SAT.")


class ImpossibleRecord(Record):
    """A strategy of the job's list that no rule allows."""

    place: str = entry("Where it stands.")
    rules: list[str] = entry("Sentences of the rules that forbid it.")


class CandidatesRecord(Record):
    """How many strategies of the job's candidate list the rules allow."""

    source: str = entry("Its file.")
    num_rows: int = entry("Its strategies.")
    num_impossible: int = entry("Strategies of the list that rules forbid.")
    impossible: list[ImpossibleRecord] = entry("The first forbidden strategies.")

    @classmethod
    def of(cls, listed: CandidateListReport) -> CandidatesRecord:
        """The record of a list of strategies."""
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
    time_ran_out: bool = entry("Whether smaller ones were left out for want of time.", "is_cut")

    @classmethod
    def of(cls, size: Size, problem: Problem) -> SmallestClusterRecord:
        """The record of a search over cluster sizes."""
        return cls.read(size, strategy=StrategyRecord.among(problem, size.strategy))


class ClosestStrategyRecord(Record):
    """The decisions of the strategy that comes closest to fitting."""

    strategy: StrategyRecord = entry("Its decisions.")


class ClosestRecord(MemoryRecord, ClosestStrategyRecord):
    """The strategy that comes closest to fitting."""

    missing_bytes_by_rank: list[Figure] = entry("Memory that each pipeline rank lacks.")

    @classmethod
    def of_report(cls, report: PlanReport, closest: Estimate) -> ClosestRecord:
        """The record of the strategy that lacks least of what a job's devices have."""
        cluster = report.chosen.facts.cluster
        room_bytes = cluster.device.memory_bytes - report.problem.search.memory_headroom_bytes
        return cls(
            strategy=StrategyRecord.of(report.chosen, closest.strategy),
            **dict(MemoryRecord.of_estimate(closest, cluster)),
            missing_bytes_by_rank=[max(0.0, rank.device_bytes - room_bytes) for rank in closest.ranks],
        )


class ConflictRecord(Record):
    """Why no strategy fits."""

    least_bubble_fraction: Figure | None = entry(
        "The smallest share that the pipeline idles in what fits, where that is to blame."
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
    left_out: list[str] = entry("What is not covered because time ran out.")
    closest: ClosestRecord | None = entry("The strategy that lacks least.")

    @classmethod
    def of(cls, report: PlanReport, conflict: Conflict) -> ConflictRecord:
        """The record of a conflict of a report's job."""
        return cls.read(
            conflict,
            smallest_cluster=SmallestClusterRecord.of(conflict.size, report.chosen) if conflict.size else None,
            closest=ClosestRecord.of_report(report, report.closest) if report.closest else None,
        )


class CertificateRecord(Record):
    """What CP-SAT answers when a model that holds all rules is asked for the fastest even strategy up to the answer."""

    verdict: Literal["certified", "not certified", "refuted"] = entry(
        "certified: none is; not certified: it could not be asked; refuted: one is, a fault of the planner."
    )
    reason: str = entry("Why it could not be asked; empty where it was.")
    below_seconds: Figure = entry("The answer's step, than which none may be faster.")
    num_decisions: int = entry("Variables of decisions.")
    num_rules: int = entry("Rules that the model holds.")
    num_constraints: int = entry("Constraints that they became; the others are domains, or hold for all values left.")
    num_rows: int = entry("Combinations of degrees.")
    num_rows_bounded: int = entry("Those of them that their lower bound excludes.")
    num_combinations: int = entry("Combinations of the decisions that memory depends on, in the model's table.")
    num_strategies: int = entry("Strategies that fit and are as fast unless a rule forbids them, in its other table.")
    is_thorough: bool = entry("Whether features are in the tables whether or not the rules allow them.")
    seconds: Figure = entry("Time that it took.")
    better: StrategyRecord | None = entry("The faster strategy; null without one.")

    @classmethod
    def of(cls, certificate: Certificate, problem: Problem) -> CertificateRecord:
        """The record of a certificate."""
        return cls.read(certificate, better=StrategyRecord.among(problem, certificate.better))


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
"""What a bound may be of; otherwise it is of all strategies."""


class OutcomeRecord(Record):
    """The proof."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"] = entry(
        "optimal: nothing is faster; feasible: time ran out with plans in hand; infeasible: nothing fits; unknown."
    )
    lower_bound_seconds: Figure | None = entry(
        "No strategy is faster by its closed form, but for the rounding bound; null where none exists."
    )
    bound_of: Literal["all strategies", "even stages"] = entry(
        "What status, bound and gap are proven of; uneven stages are compared by the sum over their ranks."
    )
    gap: Figure | None = entry(
        "How far the best plan may be from that, as a fraction of its time; null without a plan."
    )
    rounding_bound_seconds: Figure = entry("What rounding to the solver's ticks may hide.")
    certificate: CertificateRecord | None = entry("A second proof by another model; null where nothing was found.")
    search: EffortRecord = entry("What the search had to do.")
    candidates: CandidatesRecord | None = entry(
        "What the rules leave of the job's list of strategies; null without one."
    )
    conflict: ConflictRecord | None = entry("Why nothing fits; null where something does.")
    alternatives: list[AlternativeRecord] = entry(
        "Combinations of settings that were searched; empty where each setting has one value."
    )
