"""Problem -> PlanReport: search, estimate each strategy, schedule its checkpoints; or one given strategy alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from constraints import Rule, sentence
from constraints.verdict import violated
from costmodel.costs import TrainingCosts
from costmodel.errors import SpecError
from costmodel.events import log_event
from costmodel.facts.cluster import Cluster
from costmodel.facts.reliability import Reliability
from costmodel.models.flops import model_flops_per_token, recomputed_flops_per_token
from costmodel.models.utilization import flops_per_second_per_device, tokens_per_second_per_device, utilization_fraction
from costmodel.reliability import on_cluster, storage_bandwidth
from costmodel.step import estimate as detail
from costmodel.step.estimate import Estimate, RankEstimate, rank_breakdowns
from costmodel.strategy import DECISIONS, Strategy
from costmodel.tables import Facts
from planner.checkpoints import CheckpointSchedule, schedule_checkpoints, schedule_costs
from planner.conventions import Conventions, ModelSummary, conventions_of, model_summary
from planner.frameworks.runnable import require_runnable, with_runnable_stages
from planner.jobs.line.writing import write_completed
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import StrategyFile
from planner.partial.complete import CompletedBy, complete, fastest_of, read_asked
from planner.search.clock import Clock
from planner.search.freed_memory import releases_memory
from planner.search.listed import CandidateListReport, listed
from planner.search.node_counts import num_held, num_spares, says_how_many, with_idle_nodes
from planner.search.rules import problem_rules
from planner.uncertainty.ground import Gap, ground_of
from planner.uncertainty.intervals import Interval, noise_fraction, step_interval
from planner.uncertainty.operators import TimedOperator, operators_deviation, timed_operators
from planner.uncertainty.peaks import Chance, chance_to_fit

if TYPE_CHECKING:
    from planner.alternatives import AlternativeOutcome, JointOutcome
    from planner.certificate import Certificate
    from planner.idle_devices import FewerDevices
    from planner.recommendation import Recommendation
    from planner.search.branch_and_bound import Outcome

SAME_FRACTION = 1e-9
"""Fraction of a step up to which two are equal."""

EXIT_CODES = {"optimal": 0, "infeasible": 1, "feasible": 3, "unknown": 3}
"""What a command returns, by the status of the search."""


# --- records -----------------------------------------------------------------------------------------------


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

    def rank_headroom_bytes(self, rank: RankEstimate) -> float:
        """What one rank leaves free."""
        return self.memory_bytes - rank.device_bytes

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


# --- verbs -------------------------------------------------------------------------------------------------


@releases_memory
def plan(problem: Problem, *, certified: bool = True) -> PlanReport:
    """
    Choose the fastest strategies and the simplest one within their noise, and schedule the checkpoints of each.

    The search compares strategies by their steps, pipelines simulated pass by pass where no law is exact
    (:func:`costmodel.step.rank_time.waiting_seconds`). Of a strategy with uneven stages and the best even one of its
    group the faster one stays.

    Uneven stages are looked for by the sum over their ranks; at least :data:`planner.partial.complete.LEAST_SIMULATED`
    are costed by their step.
    The objective ``total_time`` has the same order as ``step_time`` (MoFa, arXiv:2511.09837, section 3.4: the total
    time grows with the step time), so that one search serves both.

    Parameters
    ----------
    problem
        What to plan.
    certified
        Whether the answer gets a certificate, and near-by batches where devices stay idle; without them it is found
        and proven all the same.

    Raises
    ------
    SpecError
        If failures outrun progress, so that no training ends, or if the job's target cannot run it.
    """
    from planner.alternatives import each_once
    from planner.certificate import certify_all
    from planner.recommendation import recommended

    require_runnable(problem)
    problem = with_runnable_stages(problem)
    clock = Clock(seconds=problem.search.time_limit_seconds)
    log_event(__name__, "search begins", job=problem.name, time_limit_seconds=clock.seconds)
    joint, fewer = fastest_of(problem)
    outcome, chosen = joint.outcome, replace(joint.problem, top=problem.top)
    nearest = outcome.conflict.closest if outcome.conflict else None
    conventions = conventions_of(chosen.facts)
    parts = (*joint.of_each, *(fewer.parts if fewer and not fewer.are_faster else ()))
    searched = [(one.searched, one.outcome) for one in parts]
    plans = [evaluate(replace(job, top=problem.top), each) for job, each in joint.ranked[: problem.top]]
    fastest = plans[0] if plans else None
    log_event(__name__, "search ended", status=outcome.status, gap=outcome.gap, plans=len(plans))
    advice = None
    if problem.search.simplest and joint.ranked:
        log_event(__name__, "simpler plans are looked for")
        advice = recommended(problem, (*joint.ranked[0], outcome.step_seconds[0]), clock)
        if not advice.is_fastest:
            plans = _with_first(plans, evaluate(replace(advice.problem, top=problem.top), advice.strategy))
    return PlanReport(
        problem=problem,
        model=model_summary(chosen.facts, conventions),
        conventions=conventions,
        plans=tuple(plans),
        outcome=outcome,
        closest=detail.estimate(chosen.facts, nearest) if nearest else None,
        chosen=chosen,
        listed=listed(chosen, outcome.space) if problem.search.candidates else None,
        certificate=certify_all(searched, outcome, clock) if certified else None,
        alternatives=each_once(joint.of_each) if problem.alternatives else (),
        recommendation=advice,
        fastest=fastest,
        fewer=fewer,
        all_devices=_on_all_devices(problem, fewer) if fewer and fewer.are_faster else None,
        nearby=_nearby(problem, joint, fewer, clock) if certified else (),
    )


def _with_first(plans: Sequence[Plan], first: Plan) -> list[Plan]:
    """As many plans, one of them first, whether or not it was among them."""
    others = [one for one in plans if one.strategy != first.strategy]
    return [first, *others][: len(plans)]


def _nearby(problem: Problem, joint: JointOutcome, fewer: FewerDevices | None, clock: Clock) -> tuple[Plan, ...]:
    """Plans for near-by batches, where devices stay idle or the batch shares a small divisor with them."""
    from planner.nearby_batches import divides_poorly, nearby_batches

    workload, num_devices = problem.facts.workload, problem.facts.cluster.num_devices
    is_idle = fewer is not None and fewer.are_faster
    if (
        says_how_many(problem)
        or not joint.ranked
        or not (is_idle or divides_poorly(workload.global_batch_size, num_devices))
    ):
        return ()
    found = nearby_batches(problem, joint.ranked[0], joint.outcome.step_seconds[0], clock)
    return tuple(evaluate(job, strategy) for job, strategy in found)


def _on_all_devices(problem: Problem, fewer: FewerDevices) -> Plan | None:
    """The best plan of those that use all devices; None where there is none."""
    ranked = fewer.all_devices.ranked[:1]
    return next((evaluate(replace(job, top=problem.top), strategy) for job, strategy in ranked), None)


def estimate(
    problem: Problem, decisions: Mapping[str, object] | str | StrategyFile, *, searched: bool = True
) -> EstimateReport:
    """
    Cost one given strategy, also where a rule forbids it.

    Where the job gives several values of settings, it is costed with those with which it is fastest, among those with
    which no rule forbids it if there are any.

    Parameters
    ----------
    problem
        The job.
    decisions
        A line such as ``TP4 PP2 recompute=none``; or values by name, and ``layout``, as job files spell them or members
        of enums. What is missing is what the job's ``strategy`` says, then what its ``search.pin`` says; what is still
        open a search chooses (:mod:`planner.partial.complete`).
    searched
        Whether it may; else the rest is as :func:`planner.jobs.completion.completed` has it.

    Raises
    ------
    SpecError
        If a name or a value is wrong, if the strategy is so far from the job that it has no cost, or if it is none that
        the job's target can run.
    """
    require_runnable(problem)
    found = complete(problem, read_asked(problem, decisions), searched=searched)
    given = [judged(one.problem, one.strategy, one.names, one.by) for one in found]
    return min(given, key=lambda one: (bool(one.broken_rules), one.plan.step_seconds))


def judged(
    problem: Problem,
    strategy: Strategy,
    given: Collection[str] = DECISIONS,
    completed_by: CompletedBy = CompletedBy.GIVEN,
) -> EstimateReport:
    """
    A whole strategy costed, with the rules that forbid it.

    Parameters
    ----------
    problem
        The job, of each setting with one value.
    strategy
        Every decision.
    given
        Names of those that somebody gave.
    completed_by
        The origin of the others.
    """
    of_devices = with_idle_nodes(problem, strategy.num_devices)
    conventions = conventions_of(problem.facts)
    estimated = evaluate(problem, strategy, conventions)
    return EstimateReport(
        problem=problem,
        model=model_summary(problem.facts, conventions),
        conventions=conventions,
        plan=estimated,
        broken_rules=tuple(dict.fromkeys(sentence(rule) for rule in _broken_rules(of_devices, estimated.estimate))),
        broken_preferences=tuple(sentence(rule) for rule in _broken_preferences(of_devices, strategy)),
        assumed={name: value for name, value in strategy.decisions().items() if name not in given},
        completed_by=completed_by,
        completed=write_completed(problem.facts, strategy, given),
    )


# --- one plan ----------------------------------------------------------------------------------------------


def evaluate(problem: Problem, strategy: Strategy, conventions: Conventions | None = None) -> Plan:
    """All that follows from one strategy; the report's conventions by default."""
    problem = with_idle_nodes(problem, strategy.num_devices)
    facts, conventions = problem.facts, conventions or conventions_of(problem.facts)
    estimated = detail.estimate(facts, strategy)
    _require_finite(facts.cluster, estimated)
    used = replace(facts, cluster=_used(problem, strategy))
    reliability = on_cluster(used.cluster, problem.reliability)
    needed = model_flops_per_token(facts.model, facts.workload.sequence_length, conventions.attention)
    again = recomputed_flops_per_token(
        facts.model, facts.workload.sequence_length, conventions.attention, recompute=strategy.recompute
    )
    model_flops, hardware_flops = (
        float(
            flops_per_second_per_device(
                used.cluster, used.workload, flops_per_token=flops, step_seconds=estimated.step_seconds
            )
        )
        for flops in (needed, needed + again)
    )
    tokens = tokens_per_second_per_device(used.cluster, used.workload, step_seconds=estimated.step_seconds)
    operators, gaps = timed_operators(used, strategy, estimated.breakdown), ground_of(used, strategy)
    return Plan(
        problem=problem,
        estimate=estimated,
        schedule=schedule_checkpoints(used.cluster, used.workload, reliability, step_seconds=estimated.step_seconds),
        tokens_per_second_per_device=float(tokens),
        model_flops_per_second_per_device=model_flops,
        hardware_flops_per_second_per_device=hardware_flops,
        mfu=float(utilization_fraction(model_flops, peak_flops=conventions.peak_flops)),
        hfu=float(utilization_fraction(hardware_flops, peak_flops=conventions.peak_flops)),
        interval=step_interval(
            used.model,
            used.cluster,
            step_seconds=estimated.step_seconds,
            operators_deviation=operators_deviation(operators),
            gaps=gaps,
        ),
        gaps=tuple(gaps),
        operators=operators,
        noise_fraction=noise_fraction(used.model, used.cluster),
        facts=used,
        reliability=reliability,
    )


def _used(problem: Problem, strategy: Strategy) -> Cluster:
    """
    What a strategy is counted with: the whole cluster, or what it uses where the job lets it use fewer devices.

    A strategy for more devices than there are is counted with the devices that it takes.
    """
    cluster = problem.facts.cluster
    least = cluster.num_devices if problem.search.max_devices is None else 1
    return replace(cluster, num_devices=max(least, strategy.num_devices))


# --- a given strategy --------------------------------------------------------------------------------------


def _require_finite(cluster: Cluster, estimated: Estimate) -> None:
    if math.isfinite(estimated.step_seconds) and math.isfinite(estimated.device_bytes + estimated.host_bytes):
        return
    if cluster.device.constants.times == "measured":
        raise SpecError(
            "strategy",
            f"the measured operator times of {cluster.device.name} do not cover its shapes.",
            "Change tp, mbs or ep, or let cluster.device.calibration.times be modified_roofline.",
        )
    raise SpecError("strategy", f"its step takes {estimated.step_seconds} s, beyond what can be reported.")


def _broken_rules(problem: Problem, estimated: Estimate) -> tuple[Rule, ...]:
    """Rules and limits of the job that forbid a strategy; what the search alone leaves out is none of them."""
    rules, limits = problem_rules(problem), problem.search
    of_search = {*rules.bounds, *rules.preferences}
    asked = [rule for rule in (*rules.rows, *rules.mixed, *rules.memory, *rules.timed) if rule not in of_search]
    resources = {
        "device_bytes": estimated.device_bytes,
        "host_bytes": estimated.host_bytes,
        "memory_headroom_bytes": limits.memory_headroom_bytes if limits.asks_headroom else 0.0,
        "step_seconds": estimated.step_seconds,
        "bubble_seconds": sum(part.exposed_seconds for part in estimated.breakdown if part.name == "bubble"),
    }
    return violated(problem.facts, estimated.strategy.decisions() | resources, rules=asked)


def _broken_preferences(problem: Problem, strategy: Strategy) -> tuple[Rule, ...]:
    """Preferences for which the job's search would leave a strategy out."""
    return violated(problem.facts, strategy.decisions(), rules=problem_rules(problem).preferences)
