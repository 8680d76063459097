"""Records that plans and estimates return: a plan with all that follows from it, and the reports around plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from costmodel.costs import TrainingCosts
from costmodel.facts.cluster import Cluster
from costmodel.facts.reliability import Reliability
from costmodel.models.flops import utilization_fraction
from costmodel.reliability import storage_bandwidth
from costmodel.step.estimate import Estimate, rank_breakdowns
from costmodel.strategy import Sharding, Strategy
from costmodel.tables import Facts
from planner.jobs.checkpoints import CheckpointSchedule, schedule_costs
from planner.jobs.conventions import Conventions, ModelSummary
from planner.jobs.problem import Problem
from planner.partial.complete import CompletedBy
from planner.search.listed import CandidateListReport
from planner.search.node_counts import num_held, num_spares
from planner.uncertainty.evidence.features import MEGATRON, Unproven, line_of, unproven_of
from planner.uncertainty.evidence.ground import Gap
from planner.uncertainty.intervals import Interval
from planner.uncertainty.operators import TimedOperator
from planner.uncertainty.peaks import Chance, chance_to_fit
from planner.uncertainty.records import BestRun

if TYPE_CHECKING:
    from planner.alternatives import AlternativeOutcome
    from planner.certificate import Certificate
    from planner.recommendation import Recommendation
    from planner.search.branch_and_bound import Outcome
    from planner.sizes.idle_devices import FewerDevices

SAME_FRACTION = 1e-9
"""Fraction of a step up to which two are equal."""

ONE_CONNECTION = ("volta", "ampere", "ada", "hopper")
"""Generations of devices whose kernels start in order on one CUDA connection alone."""

EXIT_CODES = {"optimal": 0, "infeasible": 1, "feasible": 3, "unknown": 3}
"""What a command returns, by the status of the search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """
    One strategy and all that follows from it.

    Parameters
    ----------
    problem
        The job that it is for, with the settings that were chosen where it gives several values of some.
    estimate
        Its step with the breakdown, and the memory of every pipeline rank.
    schedule
        Its checkpoint interval and the whole training.
    tokens_per_second_per_device
        Tokens that one device trains per second.
    model_flops_per_second_per_device, hardware_flops_per_second_per_device
        FLOP/s of one device: what the model needs; recomputed forward passes added.
    mfu, hfu
        The same over the peak; the report's conventions say which.
    interval
        Where its measured step time lies, by the errors on comparable measured runs.
    record
        The best published run that it compares with; None where there is none.
    gaps
        What of it measured runs have shown little or nothing of.
    operators
        How sure the times of its operators are, where samples time them; else none.
    noise_fraction
        Fraction by which another plan of the job must be predicted slower so that the difference exceeds the noise of
        such predictions.
    facts
        What is trained, and on what: the cluster is the devices that the plan uses.
    reliability
        How often these devices fail, and what their checkpoints cost.
    """

    problem: Problem = field(compare=False, repr=False)
    estimate: Estimate
    schedule: CheckpointSchedule
    tokens_per_second_per_device: float
    model_flops_per_second_per_device: float
    hardware_flops_per_second_per_device: float
    mfu: float
    hfu: float
    interval: Interval
    record: BestRun | None
    gaps: tuple[Gap, ...]
    operators: tuple[TimedOperator, ...]
    noise_fraction: float
    facts: Facts
    reliability: Reliability

    @property
    def checkpoint_seconds(self) -> float:
        """Training time that is lost per checkpoint."""
        return self.reliability.checkpoint_seconds

    @property
    def checkpoint_bytes(self) -> float | None:
        """What a checkpoint holds, where it is known."""
        saved = self.reliability.checkpoint
        return saved.nbytes if saved else None

    @property
    def kept_checkpoints(self) -> int | None:
        """How many of them are kept, the newest ones."""
        saved = self.reliability.checkpoint
        return saved.keep if saved else None

    @property
    def storage_bandwidth(self) -> float | None:
        """Bytes per second with which its devices write a checkpoint to storage, if that takes as long as follows."""
        saved = self.reliability.checkpoint
        return None if saved is None or saved.is_measured else storage_bandwidth(self.cluster, saved)

    @property
    def write_seconds(self) -> float:
        """From the start of a checkpoint until it is on storage, beside the training; 0 where training waits for it."""
        return self.reliability.write_seconds

    @property
    def strategy(self) -> Strategy:
        """The decisions."""
        return self.estimate.strategy

    @property
    def unproven(self) -> tuple[Unproven, ...]:
        """Its features, and pairs of them, that too few measured runs have."""
        return unproven_of(self.facts, self.strategy)

    @property
    def contested_seconds(self) -> float:
        """
        Hidden tp and cp communication of a step that may show beside FSDP or EP overlap.

        Before Blackwell tp and cp want one CUDA connection, the others many (CUDA_DEVICE_MAX_CONNECTIONS); Megatron-LM
        warns against both at once (megatron/training/arguments.py:1400-1418, core 0.18.2). All of it may show at most.
        """
        strategy, cluster = self.strategy, self.cluster
        wants_many = strategy.ep_overlap or strategy.sharding == Sharding.WEIGHTS
        wants_one = strategy.tp > 1 or strategy.cp > 1
        is_early = cluster.device.architecture in ONE_CONNECTION and line_of(cluster.framework) == MEGATRON
        if not (wants_many and wants_one and is_early):
            return 0.0
        return sum(part.hidden_seconds for part in self.estimate.breakdown if part.name in ("tp", "cp"))

    @property
    def cluster(self) -> Cluster:
        """The devices that it uses."""
        return self.facts.cluster

    @property
    def memory_bytes(self) -> float:
        """Memory of one device."""
        return self.cluster.device.memory_bytes

    @property
    def host_memory_bytes(self) -> float:
        """One device's share of its host's memory."""
        return self.cluster.device.host_memory_bytes

    @property
    def step_seconds(self) -> float:
        """One optimizer step."""
        return self.estimate.step_seconds

    @property
    def mfu_bf16(self) -> float | None:
        """Model FLOPs over the dense bf16 peak, whatever the precision; None where the device has none."""
        peak = self.cluster.device.peak_flops.get("bf16")
        needed = self.model_flops_per_second_per_device
        return None if peak is None else float(utilization_fraction(needed, peak_flops=peak))

    @property
    def num_idle_devices(self) -> int:
        """Devices that the job holds for its plans and that this one leaves idle."""
        return max(0, num_held(self.problem) - self.cluster.num_devices)

    @property
    def costs(self) -> TrainingCosts:
        """Device-hours, energy and money of the whole training, on all devices that the job holds."""
        return schedule_costs(
            self.schedule,
            self.problem.costs,
            self.cluster,
            num_waiting=self.num_idle_devices + num_spares(self.problem),
            breakdowns=rank_breakdowns(self.facts, self.strategy),
        )

    @property
    def tokens_per_second(self) -> float:
        """What all devices that it uses train together."""
        return self.tokens_per_second_per_device * self.cluster.num_devices

    @property
    def headroom_bytes(self) -> float:
        """What the fullest rank leaves free; negative where it does not fit."""
        return self.memory_bytes - self.estimate.device_bytes

    @property
    def chance_to_fit(self) -> Chance:
        """How likely the fullest rank fits, by runs that did and runs that did not."""
        return chance_to_fit(self.cluster, device_bytes=self.estimate.device_bytes)

    def slower_fraction(self, best: Plan) -> float:
        """How much longer its step takes than the best one's, negative where it is shorter; of equals 0."""
        slower = self.step_seconds / best.step_seconds - 1
        return slower if abs(slower) > SAME_FRACTION else 0.0

    def difference(self, best: Plan) -> dict[str, float]:
        """By which seconds each line of its breakdown is longer than the best one's, the largest difference first."""
        lines = {part.name: part.exposed_seconds for part in self.estimate.breakdown}
        for part in best.estimate.breakdown:
            lines[part.name] -= part.exposed_seconds
        return dict(sorted(lines.items(), key=lambda line: -abs(line[1])))

    def is_within_noise(self, best: Plan) -> bool:
        """Whether the predictions cannot tell it from the best one."""
        return abs(self.slower_fraction(best)) < self.noise_fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """
    The plans for a job, with proof.

    Parameters
    ----------
    problem
        What was asked.
    model
        What is trained.
    conventions
        How to read MFU and HFU, and who timed the operators.
    plans
        The recommended one first, then by their steps.
    outcome
        Status, bound, gap, the space's size, the effort, and why no strategy fits.
    closest
        The strategy that lacks least memory, where no strategy fits for want of memory.
    listed
        What the rules leave of the job's candidates, where it lists them.
    certificate
        CP-SAT, asked for the fastest strategy up to the answer; None where nothing was found or nobody asked.
    chosen
        The job with the settings of the fastest plan; without plans, with those that the conflict is about.
    alternatives
        What became of each combination of settings; empty where each setting has one value.
    recommendation
        Why the first plan is the first; None where the fastest one was asked for, or none was found.
    fastest
        The fastest plan; None where none was found.
    fewer
        What became of numbers of devices below the job's own; None where the job wants none of them.
    all_devices
        Where plans on fewer devices are faster the best one that uses all; None where there is none.
    small_runs
        What small runs say, whose constants the device has; empty without any.
    nearby
        Plans on all devices for near-by batches that train more tokens per second, where the job's own batch leaves
        devices idle or shares a small divisor with them; the nearest first.
    """

    problem: Problem
    model: ModelSummary
    conventions: Conventions
    plans: tuple[Plan, ...]
    outcome: Outcome
    chosen: Problem
    closest: Estimate | None = None
    listed: CandidateListReport | None = None
    certificate: Certificate | None = None
    alternatives: tuple[AlternativeOutcome, ...] = ()
    recommendation: Recommendation | None = None
    fastest: Plan | None = None
    fewer: FewerDevices | None = None
    all_devices: Plan | None = None
    small_runs: tuple[str, ...] = ()
    nearby: tuple[Plan, ...] = ()

    @property
    def num_idle_devices(self) -> int:
        """Devices that the best plan leaves idle, whole nodes."""
        return self.plans[0].num_idle_devices if self.fewer and self.fewer.are_faster else 0

    @property
    def exit_code(self) -> int:
        """0: proven; 1: infeasible; 3: the time limit came before the proof."""
        return EXIT_CODES[self.outcome.status]


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateReport:
    """
    The estimate of one given strategy.

    Parameters
    ----------
    problem
        The job that it is for, of several values of a setting with one.
    model
        What is trained.
    conventions
        How to read MFU and HFU, and who timed the operators.
    plan
        The strategy and all that follows from it.
    broken_rules
        The sentences of the rules that forbid it.
    broken_preferences
        The sentences of the preferences for which the job's search would leave it out, though it may run.
    assumed
        Decisions that were not given, with the values that they got.
    completed_by, completed
        The origin of these values, and those of them that a line says.
    """

    problem: Problem
    model: ModelSummary
    conventions: Conventions
    plan: Plan
    broken_rules: tuple[str, ...]
    assumed: Mapping[str, int]
    broken_preferences: tuple[str, ...] = ()
    completed_by: CompletedBy = CompletedBy.GIVEN
    completed: str = ""

    @property
    def chosen(self) -> Problem:
        """The job, as a :class:`PlanReport` has it with the settings of its best plan."""
        return self.problem

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The one plan, as a :class:`PlanReport` holds them."""
        return (self.plan,)

    @property
    def exit_code(self) -> int:
        """0: an estimate is an answer, whatever the rules say of it."""
        return 0
