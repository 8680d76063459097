"""
Plan a problem: search, estimate each strategy, schedule its checkpoints; or cost one given strategy.

Near-by batch sizes keep all devices busy where the job's own does not. A batch of 1,024 can be divided among few of the
data-parallel sizes that 504 devices allow; 1,008 among 63 ranks. The sizes within some per cent of the job's batch that
share the largest divisor with its devices are searched. Sizes that train more tokens per second than the job's own plan
are reported. This is advice: its time is bounded, and there is no proof that no other size is better.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from constraints import Rule, find_violations, sentence
from constraints.rules.frameworks import recomputation_of, recomputed_modules_have_names
from costmodel.errors import SpecError
from costmodel.events import log_event
from costmodel.facts.device import Cluster
from costmodel.models.flops import (
    flops_per_second_per_device,
    model_flops_per_token,
    recomputation_flops_per_token,
    tokens_per_second_per_device,
    utilization_fraction,
)
from costmodel.record import record
from costmodel.reliability import scale_reliability
from costmodel.step import estimate as detail
from costmodel.step.estimate import Estimate
from costmodel.step.layouts import summed_strategy_seconds
from costmodel.strategy import DECISIONS, Strategy
from costmodel.tables import Facts
from costmodel.validation import require_type, shown
from planner.jobs.checkpoints import Conventions, conventions_of, model_summary, schedule_checkpoints
from planner.jobs.document import read_text
from planner.jobs.line import write_completed
from planner.jobs.problem import Problem, load
from planner.jobs.strategy_file import StrategyFile, complete_strategy, read_given
from planner.results import EstimateReport, Plan, PlanReport
from planner.search.branch_and_bound import SHORTEST_SECONDS
from planner.search.complete import CompletedBy, complete, fastest_of, read_asked, whole_of
from planner.search.domains import allow_idle_nodes, problem_rules, resources_of, says_how_many
from planner.search.listed import check_list
from planner.search.questions import answer, rivals_at
from planner.search.recipes import add_published, find_published
from planner.search.runnable import limit_to_runnable_stages, require_runnable
from planner.search.solver import Clock, releases_memory
from planner.uncertainty.intervals import noise_fraction

if TYPE_CHECKING:
    from planner.search.alternatives import FewerDevices, JointOutcome


MOST_CHANGE = 0.05
"""Largest change of a near-by batch, as a fraction: learning rates hold for it."""

MOST_TRIED, MOST_REPORTED = 4, 3
"""Numbers of sizes that are searched, and reported."""

LEAST_GAIN = 0.01
"""Least gain in tokens per second, as a fraction, of a reported size."""

POORER = 2
"""Factor by which another size's shared divisor with the devices is larger if the job's own divides poorly."""

LONGEST_SECONDS = 10.0
"""Longest time of all searches together, within the time limit."""


def nearby_batches(
    problem: Problem, best: tuple[Problem, Strategy], step_seconds: float, clock: Clock
) -> tuple[tuple[Problem, Strategy], ...]:
    """
    Search batch sizes near a job's own with which all of its devices train faster, the nearest first.

    Parameters
    ----------
    problem
        The job.
    best
        The job with the settings of its best strategy, and that strategy.
    step_seconds
        Step of that strategy.
    clock
        Clock of the job's time limit.

    Returns
    -------
    tuple
        The job with each size, and the best strategy for it. Each is faster than those before.
    """
    own = problem.facts.workload.global_batch_size
    clock = Clock(seconds=min(clock.seconds_left, LONGEST_SECONDS))
    found: list[tuple[Problem, Strategy]] = []
    least_gain = 1 + LEAST_GAIN
    for size in sorted(
        promising_sizes(own, problem.facts.cluster.num_devices), key=lambda size: (abs(size - own), size)
    ):
        log_event(__name__, "near-by batches are tried", sequences=size)
        asked = _change_batch(best[0], size, clock)
        times = size / own / least_gain
        if faster := _faster(asked, best, step_seconds, times):
            strategy, seconds = faster
            found.append((asked, strategy))
            least_gain = size / own * step_seconds / seconds
    return tuple(found[-MOST_REPORTED:])


def divides_poorly(global_batch_size: int, num_devices: int) -> bool:
    """
    Tell whether a near-by batch shares a much larger divisor with the devices.

    >>> divides_poorly(1024, 504), divides_poorly(1024, 512), divides_poorly(15360, 2048)
    (True, False, False)
    """
    shared = math.gcd(global_batch_size, num_devices)
    return any(
        math.gcd(size, num_devices) >= POORER * shared for size in promising_sizes(global_batch_size, num_devices)
    )


def promising_sizes(global_batch_size: int, num_devices: int) -> list[int]:
    """
    Return sizes near a batch with a larger common divisor with the devices than its own, the largest divisor first.

    >>> promising_sizes(1024, 504)
    [1008, 1071, 1064, 1050]
    """
    shared = math.gcd(global_batch_size, num_devices)
    low, high = (math.ceil(global_batch_size * (1 - MOST_CHANGE)), int(global_batch_size * (1 + MOST_CHANGE)))
    sizes = np.arange(low, high + 1)
    divisors = np.gcd(sizes, num_devices)
    order = np.lexsort([np.abs(sizes - global_batch_size), -divisors])
    return [int(sizes[at]) for at in order[:MOST_TRIED] if divisors[at] > shared]


def _change_batch(problem: Problem, size: int, clock: Clock) -> Problem:
    """Return the job with so many sequences per step, on all devices, with the time left."""
    workload = replace(problem.facts.workload, global_batch_size=size)
    everything = problem.change_limits(
        idle_devices=False,
        max_devices=None,
        num_nodes=None,
        faster_than_seconds=None,
        time_limit_seconds=max(clock.seconds_left, SHORTEST_SECONDS),
    )
    return replace(everything, facts=replace(problem.facts, workload=workload))


def _faster(
    asked: Problem, best: tuple[Problem, Strategy], step_seconds: float, times: float
) -> tuple[Strategy, float] | None:
    """Return the best strategy and step for a batch, if below ``times`` the step of another batch; else None."""
    summed = summed_strategy_seconds(best[0].facts, best[1])
    rivals = rivals_at(step_seconds * times, summed * times, 1)
    (outcome,) = answer([replace(asked, top=1)], rivals=rivals)
    found = zip(outcome.strategies, outcome.step_seconds, strict=True)
    return next((one for one in found if one[1] < step_seconds * times), None)


@releases_memory
def plan(problem: Problem, *, certified: bool = True, explained: bool = True) -> PlanReport:
    """
    Choose the fastest strategies and the one that an expert would start, and schedule the checkpoints of each.

    The search compares strategies by their steps. Pipelines are simulated pass by pass where no formula is exact
    (:func:`costmodel.step.rank_time.waiting_seconds`). In each group the faster of uneven and even stages is kept.

    Uneven stages are searched by the sum over their ranks; at least :data:`planner.search.complete.LEAST_SIMULATED`
    are costed by their step.
    The objective ``total_time`` has the same order as ``step_time`` (MoFa, arXiv:2511.09837, section 3.4: the total
    time grows with the step time), so that one search serves both.

    Parameters
    ----------
    problem
        Job to plan.
    certified
        True for a certificate, and for near-by batches where devices stay idle. The answer and its proof do not depend
        on it.
    explained
        True for the reasons where no strategy fits.

    Raises
    ------
    SpecError
        If failures outrun progress, so that no training ends, or if the job's target cannot run it.
    """
    from planner.search.alternatives import each_once
    from planner.search.certificate import certify
    from planner.search.recommendation import recommend

    require_runnable(problem)
    problem = limit_to_runnable_stages(problem)
    clock = Clock(seconds=problem.search.time_limit_seconds)
    log_event(__name__, "search begins", job=problem.name, time_limit_seconds=clock.seconds)
    joint, fewer = fastest_of(problem)
    if explained and not joint.ranked:
        from planner.verbs.repairs import explain_failure

        joint = explain_failure(problem, joint, clock)
    outcome, chosen = joint.outcome, replace(joint.problem, top=problem.top)
    nearest = outcome.conflict.closest if outcome.conflict else None
    conventions = conventions_of(chosen.facts)
    parts = (*joint.of_each, *(fewer.parts if fewer and not fewer.are_faster else ()))
    searched = [(one.searched, one.outcome) for one in parts]
    published = tuple(find_published(problem)) if joint.ranked else ()
    ranked = add_published(published, joint)
    plans = [evaluate(replace(job, top=problem.top), each) for job, each, _ in ranked[: problem.top]]
    fastest = plans[0] if plans else None
    log_event(__name__, "search ended", status=outcome.status, gap=outcome.gap, plans=len(plans))
    advice = None
    if problem.search.simplest and ranked:
        log_event(__name__, "preferred plans are looked for")
        advice = recommend(problem, ranked[0], parts, joint.ranked, published, clock)
        if not advice.is_fastest:
            plans = _put_first(plans, evaluate(replace(advice.problem, top=problem.top), advice.strategy))
    return PlanReport(
        problem=problem,
        model=model_summary(chosen.facts, conventions),
        conventions=conventions,
        plans=tuple(plans),
        outcome=outcome,
        closest=detail.estimate(chosen.facts, nearest) if nearest else None,
        chosen=chosen,
        listed=check_list(chosen, outcome.space) if problem.search.candidates else None,
        certificate=certify(searched, outcome, clock) if certified else None,
        alternatives=each_once(joint.of_each) if problem.alternatives else (),
        recommendation=advice,
        fastest=fastest,
        fewer=fewer,
        all_devices=_plan_all_devices(problem, fewer) if fewer and fewer.are_faster else None,
        nearby=_nearby(problem, joint, fewer, clock) if certified else (),
    )


def _put_first(plans: Sequence[Plan], first: Plan) -> list[Plan]:
    """Put a plan first in a list of the same length, whether or not it was in the list."""
    others = [one for one in plans if (one.strategy, one.problem.settings) != (first.strategy, first.problem.settings)]
    return [first, *others][: len(plans)]


def _nearby(problem: Problem, joint: JointOutcome, fewer: FewerDevices | None, clock: Clock) -> tuple[Plan, ...]:
    """Plan near-by batches, if devices stay idle or the batch shares a small divisor with them."""
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


def _plan_all_devices(problem: Problem, fewer: FewerDevices) -> Plan | None:
    """Return the best plan on all devices; None without one."""
    ranked = fewer.all_devices.ranked[:1]
    return next((evaluate(replace(job, top=problem.top), strategy) for job, strategy in ranked), None)


def estimate(
    problem: Problem, decisions: Mapping[str, object] | str | StrategyFile, *, searched: bool = True
) -> EstimateReport:
    """
    Cost one given strategy, even if a rule forbids it.

    If the job gives several values of settings, the fastest combination is taken, if possible among those that no rule
    forbids.

    Parameters
    ----------
    problem
        The job.
    decisions
        A line such as ``TP4 PP2 recompute=none``; or values by name, and ``layout``, in the spelling of job files or as
        members of enums. Missing decisions come from the job's ``strategy``, then from its ``search.pin``. The search
        chooses the rest (:mod:`planner.search.complete`).
    searched
        True where a search may choose; else the rest follows :func:`planner.jobs.strategy_file.complete_strategy`.

    Raises
    ------
    SpecError
        If a name or a value is wrong, if the strategy cannot be costed for this job, or if the job's target cannot run
        it.
    """
    require_runnable(problem)
    found = complete(problem, read_asked(problem, decisions), searched=searched)
    given = [judge_strategy(*one) for one in found]
    return min(given, key=lambda one: (bool(one.broken_rules), one.plan.step_seconds))


def require_strategy(problem: Problem, decisions: object = MappingProxyType({})) -> None:
    """
    Refuse a job of several devices without a strategy, where its runs had one.

    Raises
    ------
    SpecError
        If neither the job nor the caller names a decision.
    """
    given = whole_of(problem, read_asked(problem, decisions))
    if problem.facts.cluster.num_devices > 1 and not given.decisions and given.layout is None:
        fix = "Give the strategy that ran, such as strategy: {tp: 4, pp: 2}."
        raise SpecError("strategy", "is required but missing: the runs had one.", fix)


def judge_strategy(
    problem: Problem,
    strategy: Strategy,
    given: Collection[str] = DECISIONS,
    completed_by: CompletedBy = CompletedBy.GIVEN,
) -> EstimateReport:
    """
    Cost a whole strategy, with the rules that forbid it.

    Parameters
    ----------
    problem
        Job with one value of each setting.
    strategy
        Strategy with every decision.
    given
        Names of the given decisions.
    completed_by
        Origin of the other decisions.
    """
    of_devices = allow_idle_nodes(problem, strategy.num_devices)
    conventions = conventions_of(problem.facts)
    estimated = evaluate(problem, strategy, conventions)
    return EstimateReport(
        problem=problem,
        model=model_summary(problem.facts, conventions),
        conventions=conventions,
        plan=estimated,
        broken_rules=tuple(
            dict.fromkeys(_explain(rule, problem) for rule in _find_broken_rules(of_devices, estimated.estimate))
        ),
        broken_preferences=tuple(sentence(rule) for rule in _find_broken_preferences(of_devices, strategy)),
        assumed={name: value for name, value in strategy.decisions().items() if name not in given},
        completed_by=completed_by,
        completed=write_completed(problem.facts, strategy, given),
    )


# --- one plan ----------------------------------------------------------------------------------------------
def evaluate(problem: Problem, strategy: Strategy, conventions: Conventions | None = None) -> Plan:
    """Evaluate one strategy as a plan; ``conventions`` are the job's by default."""
    problem = allow_idle_nodes(problem, strategy.num_devices)
    facts, conventions = problem.facts, conventions or conventions_of(problem.facts)
    estimated = detail.estimate(facts, strategy)
    _require_finite(facts.cluster, estimated)
    used = _choose_facts(problem, strategy)
    reliability = scale_reliability(used.cluster, problem.reliability)
    work = facts.workload
    counted = (facts.model, work.sequence_length, conventions.attention, work.lengths)
    needed = model_flops_per_token(*counted)
    again = recomputation_flops_per_token(*counted, recompute=strategy.recompute)
    model_flops, hardware_flops = (
        float(
            flops_per_second_per_device(
                used.cluster, used.workload, flops_per_token=flops, step_seconds=estimated.step_seconds
            )
        )
        for flops in (needed, needed + again)
    )
    tokens = tokens_per_second_per_device(used.cluster, used.workload, step_seconds=estimated.step_seconds)
    return Plan(
        problem=problem,
        estimate=estimated,
        schedule=schedule_checkpoints(used.cluster, used.workload, reliability, step_seconds=estimated.step_seconds),
        tokens_per_second_per_device=float(tokens),
        model_flops_per_second_per_device=model_flops,
        hardware_flops_per_second_per_device=hardware_flops,
        mfu=float(utilization_fraction(model_flops, peak_flops=conventions.peak_flops)),
        hfu=float(utilization_fraction(hardware_flops, peak_flops=conventions.peak_flops)),
        noise_fraction=noise_fraction(used.model, used.cluster),
        facts=used,
        reliability=reliability,
    )


def _choose_facts(problem: Problem, strategy: Strategy) -> Facts:
    """
    Return the facts with which a strategy is costed: the whole cluster's, or fewer devices' where the job allows fewer.

    A strategy for more devices than the cluster has is costed with its own number. The job's own facts share what was
    computed for them.
    """
    facts = problem.facts
    least = facts.cluster.num_devices if problem.search.max_devices is None else 1
    num_devices = max(least, strategy.num_devices)
    if num_devices == facts.cluster.num_devices:
        return facts
    return replace(facts, cluster=replace(facts.cluster, num_devices=num_devices))


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


def _explain(rule: Rule, problem: Problem) -> str:
    """Return the sentence of a broken rule; of one on recomputed modules with those that the model has."""
    more = recomputation_of(problem.facts.model, problem.facts.cluster)
    return f"{sentence(rule)} {more}" if rule is recomputed_modules_have_names else sentence(rule)


def _find_broken_rules(problem: Problem, estimated: Estimate) -> tuple[Rule, ...]:
    """Return rules and limits of the job that forbid a strategy, without the search's own bounds and preferences."""
    rules, limits = problem_rules(problem), problem.search
    of_search = {*rules.bounds, *rules.preferences}
    asked = [rule for rule in (*rules.rows, *rules.mixed, *rules.memory, *rules.timed) if rule not in of_search]
    resources = resources_of(estimated, limits.memory_headroom_bytes if limits.asks_headroom else 0.0)
    return find_violations(problem.facts, estimated.strategy.decisions() | resources, rules=asked)


def _find_broken_preferences(problem: Problem, strategy: Strategy) -> tuple[Rule, ...]:
    """Return preferences for which the job's search would leave a strategy out."""
    return find_violations(problem.facts, strategy.decisions(), rules=problem_rules(problem).preferences)


FORMAT_VERSION = 1

"""Version of JSON reports; grows when an entry changes its name, unit or meaning; new entries do not count."""

MAX_BYTES = 2**28

"""Largest size of a report; it has some kilobytes per pipeline rank and plan."""

HINT = "Make one with: planner plan JOB.yaml --format json -o plan.json"


@record(frozen=True, kw_only=True, slots=True)
class SavedPlan:
    """
    A plan of a report.

    Parameters
    ----------
    problem
        Job of the plan.
    plan
        The plan, costed again.
    step_seconds
        Step time in the report.
    """

    problem: Problem
    plan: Plan
    step_seconds: float

    @property
    def drift_fraction(self) -> float:
        """Relative difference of its step between this version of the planner and the report."""
        return self.plan.step_seconds / self.step_seconds - 1


def read_plan(path: str | os.PathLike[str], number: int = 1) -> SavedPlan:
    """
    Read one plan of a JSON report, as ``planner plan`` and ``planner estimate`` write it.

    Parameters
    ----------
    path
        The file.
    number
        Number of the plan, from 1, best first.

    Raises
    ------
    SpecError
        If the file is no such report, has another format version, or has no plan with that number.
    """
    require_type(path, (str, os.PathLike), "path", "the path of a JSON report")
    require_type(number, int, "number", "a whole number")
    path = Path(path)
    report = _report(path)
    plans = report.get("plans") if report.get("kind") == "plan" else [report]
    if not isinstance(plans, list):
        raise SpecError(str(path), f"is no complete report: expected a list of plans, got {shown(plans)}.", HINT)
    if not plans:
        raise SpecError(str(path), f"holds no plan: its status is {shown(report.get('status'))}.")
    if not 1 <= number <= len(plans):
        raise SpecError(str(path), f"has plans 1 to {len(plans)}, not {number}.")
    try:
        chosen = plans[number - 1]
        problem = _problem(report, chosen.get("settings") or {})
        given = read_given(chosen["strategy"], f"{path}: strategy")
        step_seconds = float(chosen["step_time_seconds"])
        if not 0 < step_seconds < math.inf:
            raise ValueError(f"the step time is {shown(chosen['step_time_seconds'])}")
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise SpecError(str(path), f"is no complete report: {error}.", HINT) from None
    strategy = complete_strategy(problem.facts, given)
    return SavedPlan(problem=problem, plan=evaluate(problem, strategy), step_seconds=step_seconds)


def _report(path: Path) -> Mapping[str, Any]:
    text = read_text(path, MAX_BYTES)
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(str(path), f"is not JSON: {error}.", HINT) from None
    if not isinstance(report, dict) or "format_version" not in report:
        raise SpecError(str(path), "is no report of this planner.", HINT)
    if report["format_version"] != FORMAT_VERSION:
        version = shown(report["format_version"])
        raise SpecError(str(path), f"has format version {version}; this planner reads {FORMAT_VERSION}.", HINT)
    if report.get("kind") not in ("plan", "estimate"):
        raise SpecError(str(path), f"is a report of kind {shown(report.get('kind'))}, expected plan or estimate.", HINT)
    return report


def _problem(report: Mapping[str, Any], settings: Mapping[str, Any]) -> Problem:
    """Load the job of a report, with a plan's settings and the names from the report."""
    document = report["job"]["document"]
    problem = load({**document, "settings": {**(document.get("settings") or {}), **settings}})
    said = report["model"]
    model = replace(problem.facts.model, name=_text(said["name"], "name"), source=_text(said["source"], "source"))
    facts = replace(problem.facts, model=model)
    return replace(problem, name=_text(report["job"]["name"], "name"), facts=facts, settings=settings)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}, expected text")
    return value
