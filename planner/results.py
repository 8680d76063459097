"""Records of plans and estimates: one plan with its figures, and the reports around plans."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from importlib import import_module
from typing import TYPE_CHECKING

from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from costmodel.facts.device import Cluster, Sites
from costmodel.facts.reliability import Reliability
from costmodel.models.flops import utilization_fraction
from costmodel.record import cut_line, record
from costmodel.reliability import storage_bandwidth
from costmodel.step import estimate as detail
from costmodel.step.estimate import Estimate, rank_breakdowns
from costmodel.step.layouts import strategy_seconds
from costmodel.step.rank_time import imbalance_seconds
from costmodel.strategy import Sharding, Strategy
from costmodel.tables import Facts
from planner.jobs.checkpoints import (
    CheckpointSchedule,
    Conventions,
    ModelSummary,
    schedule_costs,
    schedule_every,
)
from planner.jobs.line import write_line
from planner.jobs.problem import Problem
from planner.search.complete import CompletedBy
from planner.search.domains import num_held, num_spares
from planner.search.listed import CandidateListReport
from planner.uncertainty.counts import Gap, list_gaps
from planner.uncertainty.features import MEGATRON, Unproven, line_of, unproven_of
from planner.uncertainty.intervals import Interval, TimedOperator, list_timed_operators
from planner.uncertainty.peaks import Chance, chance_to_fit
from planner.uncertainty.records import BestRun, interval_and_record

if TYPE_CHECKING:
    from pandas import DataFrame

    from costmodel.costs import TrainingCosts
    from planner.search.alternatives import AlternativeOutcome, FewerDevices
    from planner.search.branch_and_bound import Outcome
    from planner.search.certificate import Certificate
    from planner.search.recommendation import Recommendation


LOCAL_STEPS_CAVEAT = (
    "Quality is not modelled: local steps (DiLoCo) train another optimizer, whose loss per token differs from that of "
    "synchronous steps."
)
"""Note on jobs of several sites."""

SAME_FRACTION = 1e-9
"""Largest difference of two equal steps, as a fraction."""

ONE_CONNECTION = ("volta", "ampere", "ada", "hopper")
"""Device generations whose kernels start in order on one CUDA connection alone."""

EXIT_CODES = {"optimal": 0, "infeasible": 1, "feasible": 3, "unknown": 3}
"""Exit code of a command, by the status of the search."""


class Displayed:
    """A record that notebooks show as a page, and pandas as rows; both are imported when asked for."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the page of the record, which notebooks show."""
        shown: str = import_module("planner.notebooks").html_of(self)
        return shown

    def to_frame(self) -> DataFrame:
        """Return a row for each plan as a DataFrame of pandas, with the columns of the CSV output."""
        return import_module("planner.notebooks").to_frame(self)


def _line(kind: str, problem: Problem, status: str, best: Plan | None) -> str:
    """Return a report as one line."""
    cluster = problem.facts.cluster
    of = f"{problem.facts.model.name} on {cluster.num_devices:,} x {cluster.device.name}, {status}"
    return cut_line(f"{kind}({of}{f': {_figures(best)}' if best else ''})")


def _figures(plan: Plan) -> str:
    """Return a plan's figures and its line."""
    line = write_line(plan.facts, plan.strategy, plan.problem.settings)
    return f"{plan.step_seconds:,.3f} s, {plan.estimate.device_bytes / GIB_BYTES:.1f} GiB, MFU {plan.mfu:.1%}, {line}"


@record(frozen=True, kw_only=True, slots=True)
class Plan:
    """
    One strategy with its figures.

    Parameters
    ----------
    problem
        Job of the plan, with the chosen values of settings for which it gives several.
    estimate
        Step with its breakdown, and the memory of every pipeline rank.
    schedule
        Checkpoint interval and the whole training.
    tokens_per_second_per_device
        Tokens that one device trains per second.
    model_flops_per_second_per_device, hardware_flops_per_second_per_device
        FLOP/s of one device: the model's own; with recomputed forward passes.
    mfu, hfu
        Model and hardware FLOP/s over the peak that the report's conventions name.
    noise_fraction
        Fraction by which another plan of the job must be predicted slower for a difference beyond the noise of such
        predictions.
    facts
        Model, workload and cluster; the cluster is the devices that the plan uses.
    reliability
        Failure rate of these devices, and the cost of their checkpoints.
    projected
        Interval by the user's own runs of the job cut down; None: by comparable measured runs.
    """

    problem: Problem = field(compare=False, repr=False)
    estimate: Estimate
    schedule: CheckpointSchedule
    tokens_per_second_per_device: float
    model_flops_per_second_per_device: float
    hardware_flops_per_second_per_device: float
    mfu: float
    hfu: float
    noise_fraction: float
    facts: Facts
    reliability: Reliability
    projected: Interval | None = None

    def __repr__(self) -> str:
        """Return its figures in one line."""
        return cut_line(f"Plan({_figures(self)})")

    @property
    def operators(self) -> tuple[TimedOperator, ...]:
        """Certainty of the operator times that come from samples; else empty."""
        return list_timed_operators(self.facts, self.strategy, self.estimate.breakdown)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Features that few or no measured runs have."""
        return self.facts.compute_once((list_gaps, self.strategy), lambda: tuple(list_gaps(self.facts, self.strategy)))

    @property
    def interval(self) -> Interval:
        """Interval of the measured step time, by the errors on comparable measured runs."""
        return self.projected or self._interval_and_record[0]

    @property
    def record(self) -> BestRun | None:
        """Best comparable published run; None where there is none."""
        return self._interval_and_record[1]

    @property
    def _interval_and_record(self) -> tuple[Interval, BestRun | None]:
        return self.facts.compute_once(
            (interval_and_record, self.strategy),
            lambda: interval_and_record(
                self.facts, step_seconds=self.step_seconds, operators=self.operators, gaps=self.gaps
            ),
        )

    @property
    def checkpoint_seconds(self) -> float:
        """Training time that is lost per checkpoint."""
        return self.reliability.checkpoint_seconds

    @property
    def checkpoint_bytes(self) -> float | None:
        """Bytes of a checkpoint, if known."""
        saved = self.reliability.checkpoint
        return saved.nbytes if saved else None

    @property
    def kept_checkpoints(self) -> int | None:
        """Number of newest checkpoints to keep."""
        saved = self.reliability.checkpoint
        return saved.keep if saved else None

    @property
    def storage_bandwidth(self) -> float | None:
        """Bytes per second with which its devices write a checkpoint to storage; None for a measured checkpoint."""
        saved = self.reliability.checkpoint
        return None if saved is None or saved.is_measured else storage_bandwidth(self.cluster, saved)

    @property
    def write_seconds(self) -> float:
        """Seconds to write a checkpoint to storage during the training; 0 where training waits for it."""
        return self.reliability.write_seconds

    @property
    def strategy(self) -> Strategy:
        """Decisions of the plan."""
        return self.estimate.strategy

    @property
    def unproven(self) -> tuple[Unproven, ...]:
        """Features, and pairs of features, that too few measured runs have."""
        return unproven_of(self.facts, self.strategy)

    @property
    def contested_seconds(self) -> float:
        """
        Hidden tp and cp communication of a step that may be exposed by FSDP or EP overlap, an upper bound.

        Before Blackwell tp and cp need one CUDA connection, the others many (CUDA_DEVICE_MAX_CONNECTIONS). Megatron-LM
        warns against both at once (megatron/training/arguments.py:1400-1418, core 0.18.2).
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
        """Devices that the plan uses."""
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
        """Time of one optimizer step."""
        return self.estimate.step_seconds

    @property
    def closed_form_seconds(self) -> float:
        """Time of one optimizer step that the search compares; computed for reports that show it."""
        facts = self.problem.facts
        return facts.compute_once((strategy_seconds, self.strategy), lambda: strategy_seconds(facts, self.strategy))

    @property
    def mfu_bf16(self) -> float | None:
        """Model FLOPs over the dense bf16 peak, whatever the precision; None where the device has none."""
        peak = self.cluster.device.peak_flops.get("bf16")
        needed = self.model_flops_per_second_per_device
        return None if peak is None else float(utilization_fraction(needed, peak_flops=peak))

    @property
    def site_links_seconds(self) -> float:
        """Seconds of a step in which devices wait for the links between sites; 0 with one site."""
        sites = self.cluster.sites
        if sites is None:
            return 0.0
        free = replace(self.facts, cluster=replace(self.cluster, sites=replace(sites, bandwidth=None, latency=0.0)))
        alone = self.facts.compute_once((Sites, self.strategy), lambda: detail.estimate(free, self.strategy))
        return self.step_seconds - alone.step_seconds

    @property
    def length_imbalance_seconds(self) -> float:
        """Seconds of a step in which ranks wait for longer packed sequences; 0 with equal lengths."""
        return float(imbalance_seconds(self.facts, self.strategy.decisions()))

    @property
    def num_idle_devices(self) -> int:
        """Number of devices that the job holds and this plan leaves idle."""
        return max(0, num_held(self.problem) - self.cluster.num_devices)

    def schedule_ends(self, schedule: CheckpointSchedule) -> tuple[CheckpointSchedule, CheckpointSchedule]:
        """Return a schedule at both ends of the interval of measured steps; itself where failures outrun progress."""

        def schedule_at(step_seconds: float) -> CheckpointSchedule:
            with suppress(SpecError):  # with so long a step
                return schedule_every(
                    self.cluster,
                    self.facts.workload,
                    self.reliability,
                    step_seconds=step_seconds,
                    interval_steps=schedule.interval_steps,
                )
            return schedule

        return schedule_at(self.interval.low_seconds), schedule_at(self.interval.high_seconds)

    @property
    def days_interval(self) -> tuple[float, float]:
        """Days of the whole training at both ends of the interval of measured steps."""
        low, high = self.schedule_ends(self.schedule)
        return low.days, high.days

    @property
    def ettr_interval(self) -> tuple[float, float]:
        """ETTR of the whole training at these ends, ascending."""
        low, high = sorted(one.ettr for one in self.schedule_ends(self.schedule))
        return low, high

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
        """Tokens per second of all devices that the plan uses."""
        return self.tokens_per_second_per_device * self.cluster.num_devices

    @property
    def headroom_bytes(self) -> float:
        """Free memory of the fullest rank; negative where it does not fit."""
        return self.memory_bytes - self.estimate.device_bytes

    @property
    def chance_to_fit(self) -> Chance:
        """Chance that the fullest rank fits, by runs that did and runs that did not."""
        return chance_to_fit(self.cluster, device_bytes=self.estimate.device_bytes)

    def slower_fraction(self, best: Plan) -> float:
        """Return the relative difference to the best plan's step, negative where this one is shorter; 0 for equals."""
        slower = self.step_seconds / best.step_seconds - 1
        return slower if abs(slower) > SAME_FRACTION else 0.0

    def difference(self, best: Plan) -> dict[str, float]:
        """Return the additional seconds of each part over the best plan, the largest difference first."""
        lines = {part.name: part.exposed_seconds for part in self.estimate.breakdown}
        for part in best.estimate.breakdown:
            lines[part.name] -= part.exposed_seconds
        return dict(sorted(lines.items(), key=lambda line: -abs(line[1])))

    def is_within_noise(self, best: Plan) -> bool:
        """Tell whether the predictions cannot tell the plan from the best one."""
        return abs(self.slower_fraction(best)) < self.noise_fraction


@record(frozen=True, kw_only=True, slots=True)
class PlanReport(Displayed):
    """
    The plans for a job, with proof.

    Parameters
    ----------
    problem
        Planned job.
    model
        Key numbers of the trained model.
    conventions
        Conventions of MFU and HFU, and the source of operator times.
    plans
        Plans, the recommended one first, the others by their steps.
    outcome
        Status, bound, gap, size of the space, effort, and the reason why no strategy fits.
    closest
        Strategy that lacks least memory, if no strategy fits for lack of memory.
    listed
        Possible and impossible rows of the job's list of candidates; None without a list.
    certificate
        Check of the answer by CP-SAT; None where no strategy was found or no certificate was asked for.
    chosen
        The job with the settings of the fastest plan; without plans, with those of the conflict.
    alternatives
        Result for each combination of settings; empty where each setting has one value.
    recommendation
        Reason for the first plan; None where the fastest plan was asked for, or none was found.
    fastest
        Fastest plan; None where none was found.
    fewer
        Results for fewer devices than the job's own; None where the job allows none.
    all_devices
        Best plan on all devices, if plans on fewer devices are faster; else None.
    small_runs
        Statements of small runs whose constants the device has; empty without any.
    nearby
        Plans on all devices for near-by batches that train more tokens per second, the nearest first. Empty unless the
        job's own batch leaves devices idle or shares a small divisor with them.
    """

    problem: Problem
    model: ModelSummary
    conventions: Conventions
    plans: tuple[Plan, ...]
    outcome: Outcome
    chosen: Problem
    closest: Estimate | None = None
    listed: CandidateListReport | None = None
    certificate: Certificate[Strategy] | None = None
    alternatives: tuple[AlternativeOutcome, ...] = ()
    recommendation: Recommendation | None = None
    fastest: Plan | None = None
    fewer: FewerDevices | None = None
    all_devices: Plan | None = None
    small_runs: tuple[str, ...] = ()
    nearby: tuple[Plan, ...] = ()

    def __repr__(self) -> str:
        """Return the answer in one line."""
        status = f"{self.outcome.status}, {len(self.plans)} plans"
        return _line("PlanReport", self.problem, status, self.plans[0] if self.plans else None)

    @property
    def num_idle_devices(self) -> int:
        """Number of devices that the best plan leaves idle, in whole nodes."""
        return self.plans[0].num_idle_devices if self.fewer and self.fewer.are_faster else 0

    @property
    def exit_code(self) -> int:
        """0: proven; 1: infeasible; 3: the time limit came before the proof."""
        return EXIT_CODES[self.outcome.status]


@record(frozen=True, kw_only=True, slots=True)
class EstimateReport(Displayed):
    """
    The estimate of one given strategy.

    Parameters
    ----------
    problem
        Job of the estimate, with one value of each setting.
    model
        Key numbers of the trained model.
    conventions
        Conventions of MFU and HFU, and the source of operator times.
    plan
        The strategy with its figures.
    broken_rules
        Sentences of the rules that forbid the strategy.
    broken_preferences
        Sentences of the preferences for which the job's search would leave it out, though it may run.
    assumed
        Decisions that were not given, with their values.
    completed_by, completed
        Origin of these values, and their words in a line.
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

    def __repr__(self) -> str:
        """Return the answer in one line."""
        return _line("EstimateReport", self.problem, "forbidden" if self.broken_rules else "allowed", self.plan)

    @property
    def chosen(self) -> Problem:
        """Job of the estimate, under the name that a :class:`PlanReport` has for it."""
        return self.problem

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The one plan, under the name that a :class:`PlanReport` has for it."""
        return (self.plan,)

    @property
    def exit_code(self) -> int:
        """0: an estimate is an answer, even for a forbidden strategy."""
        return 0
