"""Explain a plan: its binding constraints, the reason why no strategy fits, and reasons against another strategy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from constraints.conflict import Conflict
from constraints.cp_sat import TICK_SECONDS
from constraints.limits import limit_rules
from constraints.rule import sentence
from costmodel.events import log_progress
from costmodel.record import record
from costmodel.step import estimate as detail
from costmodel.step import step
from costmodel.step.layouts import strategy_seconds
from costmodel.strategy import DECISIONS, ENUMS, FLAGS, Strategy
from planner.jobs.limits import SearchLimits
from planner.jobs.problem import Problem, require_problem
from planner.jobs.strategy_file import StrategyFile, is_whole
from planner.results import EXIT_CODES, Displayed, EstimateReport, Plan, PlanReport
from planner.search.branch_and_bound import ROUNDING_BOUND_SECONDS, Outcome
from planner.search.candidates import OWN, CostTable, Ints
from planner.search.complete import choose_settings, question_of, read_asked, set_stages, whole_of
from planner.search.domains import SEARCH_BOUNDS, divisors, problem_rules
from planner.search.questions import search
from planner.search.runnable import require_decisions
from planner.search.solver import Clock
from planner.search.space import Space, build_space, strategy_of
from planner.verbs.plan import estimate, judge_strategy, plan

ENDLESS_BYTES = 1e18
"""Memory that no strategy fills."""

TABULATED_ROWS = 2048
"""Rows whose features are tabulated at once; affects memory only."""

MOST_MICRO_BATCHES = 10_000
"""Number of micro-batch sizes that are tried where the search's bound is lifted."""

EXIT_UNFINISHED = 3


# --- records -----------------------------------------------------------------------------------------------


BindingKind: TypeAlias = Literal[
    "entry", "memory", "host_memory", "headroom", "framework_rules", "preferences", "evidence", "search_bound"
]
"""The origin of a constraint."""


SUPERSETS = ("framework_rules", "preferences", "evidence", "search_bound")
"""Kinds whose removal can only enlarge a space; if its size stays, the space is the same."""

OF_A_KIND = ("framework_rules", "preferences", "is_bold")
"""Limits that lift many rules at once; each counts as one constraint."""


@record(frozen=True, kw_only=True, slots=True)
class Binding:
    """
    One constraint, and the fastest strategy without it alone.

    Parameters
    ----------
    kind
        Its origin.
    what
        The constraint in words; a rule's own sentence where it is one rule.
    strategy
        The fastest strategy without it; None where time ran out before one was found.
    step_seconds
        Step time of that strategy.
    saved_seconds
        Time saved per step against the best plan; 0 where the constraint does not bind.
    is_proven
        True where no strategy is faster without it; else time ran out.
    next_strategy
        For memory: among strategies faster than the best plan, the one that needs least more memory.
    next_seconds, missing_bytes
        Step time of that strategy, and the memory that it lacks.
    """

    kind: BindingKind
    what: str
    strategy: Strategy | None
    step_seconds: float
    saved_seconds: float
    is_proven: bool
    next_strategy: Strategy | None = None
    next_seconds: float | None = None
    missing_bytes: float | None = None

    @property
    def saved_fraction(self) -> float:
        """Saved share of the step, as the search compares it."""
        return self.saved_seconds / (self.step_seconds + self.saved_seconds)


@record(frozen=True, kw_only=True, slots=True)
class Difference:
    """
    One part of two steps.

    Parameters
    ----------
    name
        The part of the step.
    best_seconds
        Its exposed time in the best plan.
    given_seconds
        Its exposed time in the given strategy.
    difference_seconds
        The second minus the first.
    """

    name: str
    best_seconds: float
    given_seconds: float
    difference_seconds: float


def differences(best: Plan, given: Plan) -> tuple[Difference, ...]:
    """Return the differences in time between a strategy and the best plan, the largest first."""
    lines = [
        Difference(
            name=part.name,
            best_seconds=ours,
            given_seconds=part.exposed_seconds,
            difference_seconds=part.exposed_seconds - ours,
        )
        for ours, part in zip(
            (one.exposed_seconds for one in best.estimate.breakdown), given.estimate.breakdown, strict=True
        )
    ]
    return tuple(sorted(lines, key=lambda line: -abs(line.difference_seconds)))


@record(frozen=True, kw_only=True, slots=True)
class Explanation(Displayed):
    """
    Answer to "why this plan", or to "why not this strategy".

    Parameters
    ----------
    report
        Report of the job: its best plan, or the reason why no strategy fits.
    bindings
        Constraints that were relaxed one at a time, the most costly first.
    idle
        Constraints without which no strategy is faster, in words.
    asked
        Decisions in question.
    is_staged
        True where stages are in question.
    opposed
        Entries of the job that exclude these decisions, in words; the rest of the answer ignores them.
    given
        The strategy in question, or the best one with the decisions; None where the rules allow none.
    broken_rules
        Rules that forbid a complete strategy, in their own sentences.
    broken_preferences
        Preferences for which the search leaves a complete strategy out, in their own sentences.
    question
        The search among the strategies that have the decisions; None for a complete strategy.
    left_out
        Parts that were left out for lack of time, one sentence each.
    """

    report: PlanReport
    bindings: tuple[Binding, ...] = ()
    idle: tuple[str, ...] = ()
    asked: Mapping[str, int]
    is_staged: bool = False
    opposed: tuple[str, ...] = ()
    given: Plan | None = None
    broken_rules: tuple[str, ...] = ()
    broken_preferences: tuple[str, ...] = ()
    question: PlanReport | None = None
    left_out: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        """The job."""
        return self.report.problem

    @property
    def best(self) -> Plan | None:
        """Fastest plan of the job."""
        return self.report.fastest

    @property
    def compared_seconds(self) -> float:
        """Step time to which relaxed constraints are compared: even stages, as searched; nan without any."""
        first = self.bindings[0] if self.bindings else None
        return first.step_seconds + first.saved_seconds if first else math.nan

    @property
    def conflict(self) -> Conflict | None:
        """Reason why no strategy has the decisions, or why none fits at all."""
        asked = self.question.outcome.conflict if self.question else None
        return _mark_asked(asked, self.asked) if asked else self.report.outcome.conflict

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Differences in time between the given strategy and the best plan, the largest first."""
        return differences(self.best, self.given) if self.best and self.given else ()

    @property
    def exit_code(self) -> int:
        """0: explained; 3: the time limit came before the proof."""
        statuses = [report.outcome.status for report in (self.report, self.question) if report]
        unfinished = any(EXIT_CODES[status] == EXIT_UNFINISHED for status in statuses)
        conflict = self.conflict
        return EXIT_UNFINISHED if unfinished or self.left_out or (conflict and conflict.is_cut) else 0


# --- verb --------------------------------------------------------------------------------------------------


def explain(problem: Problem, decisions: Mapping[str, object] | str | StrategyFile | None = None) -> Explanation:
    """
    Explain the plan of a job, the reason why no strategy fits, or the reasons against another strategy.

    Parameters
    ----------
    problem
        The job; its time limit holds for the whole explanation.
    decisions
        A strategy in part or whole, as :func:`planner.verbs.plan.estimate` takes and completes it. The answer says why
        it is not the plan. Without decisions the answer gives the constraints that hold the plan back.

    Raises
    ------
    SpecError
        If a name or a value is wrong, if the job's target lacks it, or if a complete strategy cannot be costed for this
        job.
    """
    require_problem(problem)
    clock = Clock(seconds=problem.search.time_limit_seconds)
    asked = read_asked(problem, decisions or {})
    require_decisions(problem, asked.decisions)
    simplest = problem.search.simplest
    problem = replace(choose_settings(problem, asked), top=1).change_limits(simplest=False)
    report = plan(problem, certified=False)
    if asked.is_empty:
        return explain_plan(report, clock)
    given = whole_of(replace(problem, given=StrategyFile()), asked)  # The plan does not follow it either.
    question, opposed = question_of(problem, StrategyFile(decisions=given.decisions))
    explanation = Explanation(report=report, asked=asked.decisions, opposed=opposed, is_staged=asked.layout is not None)
    if is_whole(given):
        return _add_estimate(explanation, estimate(question, given), given)
    found = plan(_limit_time(question_of(problem, given)[0], clock).change_limits(simplest=simplest), certified=False)
    if not found.plans or given.layout is None:
        return replace(explanation, given=found.plans[0] if found.plans else None, question=found)
    own = next(one for one in question.each if one.settings == found.chosen.settings)
    return _add_estimate(explanation, judge_strategy(own, set_stages(found.plans[0].strategy, given, own.facts)), given)


def _add_estimate(explanation: Explanation, whole: EstimateReport, given: StrategyFile) -> Explanation:
    """Add the strategy in question to an explanation, and the rules that forbid it besides its own pins."""
    own = {_pin_sentence(name, value) for name, value in given.decisions.items()}
    broken = tuple(rule for rule in whole.broken_rules if rule not in own)
    return replace(explanation, given=whole.plan, broken_rules=broken, broken_preferences=whole.broken_preferences)


def _limit_time(problem: Problem, clock: Clock) -> Problem:
    """Return the problem with one plan to report and the time left."""
    return replace(problem, top=1).change_limits(time_limit_seconds=max(clock.seconds_left, 1e-3))


# --- what holds a plan back --------------------------------------------------------------------------------


def explain_plan(report: PlanReport, clock: Clock) -> Explanation:
    """Explain the best plan of a report: relax each constraint alone, with even stages."""
    if not report.plans:
        return Explanation(report=report, asked={})
    problem, outcome = _even_out_stages(report, clock)
    seconds = outcome.step_seconds[0]
    found: list[Binding] = []
    late: list[str] = []
    without_more: list[str] = []
    relaxations = list(_relaxations(problem))
    for number, (kind, what, relaxed) in enumerate(relaxations):
        log_progress(__name__, "constraints are relaxed", number, len(relaxations))
        if clock.is_over:
            late.append(what)
            continue
        if kind in SUPERSETS and build_space(relaxed).size == outcome.effort.size:
            without_more.append(what)
            continue
        binding = _binding(kind, what, search(_limit_time(relaxed, clock)), seconds)
        if kind == "memory" and binding.saved_seconds:
            binding = _add_next(binding, problem, seconds, clock)
        found.append(binding)
    return Explanation(
        report=report,
        asked={},
        bindings=tuple(sorted((one for one in found if one.saved_seconds), key=lambda one: -one.saved_seconds)),
        idle=(*(one.what for one in found if one.is_proven and not one.saved_seconds), *without_more),
        left_out=(
            *(f"Time ran out before this was relaxed: {what}" for what in late),
            *(f"Time ran out before the proof without this: {one.what}" for one in found if not one.is_proven),
        ),
    )


def _even_out_stages(report: PlanReport, clock: Clock) -> tuple[Problem, Outcome]:
    """
    Return the job with even stages and its best result; the job itself where no strategy fits or time is short.

    If a job gives several values of settings, those of its best plan are used.
    """
    problem = report.chosen
    if problem.search.stages == "even" and not report.alternatives:
        return problem, report.outcome
    even = replace(problem, top=1).change_limits(stages="even")
    outcome = search(_limit_time(even, clock))
    return (even, outcome) if outcome.strategies else (problem, report.outcome)


def _binding(kind: BindingKind, what: str, outcome: Outcome, seconds: float) -> Binding:
    fastest = outcome.step_seconds[0] if outcome.strategies else np.inf
    saved = seconds - fastest
    return Binding(
        kind=kind,
        what=what,
        strategy=outcome.strategies[0] if outcome.strategies else None,
        step_seconds=fastest,
        saved_seconds=saved if saved > ROUNDING_BOUND_SECONDS else 0.0,
        is_proven=EXIT_CODES[outcome.status] != EXIT_UNFINISHED,
    )


def _relaxations(problem: Problem) -> Iterator[tuple[BindingKind, str, Problem]]:
    """Yield each constraint that a user can change, and the problem without it."""
    limits, rules = problem.search, problem_rules(problem)
    yield "memory", "device memory", move_to_device(problem, memory_bytes=ENDLESS_BYTES)
    yield "host_memory", "host memory", move_to_device(problem, host_memory_bytes=ENDLESS_BYTES)
    if limits.memory_headroom_bytes:
        yield "headroom", "search.memory_headroom_gib", problem.change_limits(memory_headroom_bytes=0.0)
    for what, released in release_limits(problem).items():
        yield "entry", what, released
    if limits.framework_rules:
        what = "search.framework_rules" if limits.target is None else "search.target"
        yield "framework_rules", what, problem.change_limits(framework_rules=False)
    if limits.preferences:
        yield "preferences", "search.preferences", problem.change_limits(preferences=False)
    if limits.needs_evidence:
        yield "evidence", "search.evidence", problem.change_limits(is_bold=True)
    for name, bound in SEARCH_BOUNDS.items():
        if bound in rules.bounds:
            allow = {**limits.allow, name: _every_value(problem, name)}
            yield "search_bound", sentence(bound), problem.change_limits(allow=allow)


def move_to_device(problem: Problem, **changes: Any) -> Problem:
    """Return the job on a changed device, by the names of :class:`costmodel.facts.device.EquippedDevice`."""
    return problem.change_cluster(device=replace(problem.facts.cluster.device, **changes))


def _every_value(problem: Problem, name: str) -> tuple[int, ...]:
    """Return all values of a decision that the search bounds by itself."""
    if name in FLAGS:
        return (0, 1)
    return (
        tuple(ENUMS[name]) if name in ENUMS else divisors(problem.facts.workload.global_batch_size)[:MOST_MICRO_BATCHES]
    )


def release_limits(problem: Problem) -> dict[str, Problem]:
    """
    Return the problem without each one of its own limits, by the sentences of the removed rules.

    An entry that is there twice is not removed: neither copy changes the rules alone.
    """
    own = rule_sentences(problem)
    fewer = (replace(problem, search=limits) for limits in _one_entry_fewer(problem.search))
    gone = (({*own} - {*rule_sentences(released)}, released) for released in fewer)
    return {" ".join(sorted(rules)): released for rules, released in gone if rules}


def rule_sentences(problem: Problem) -> list[str]:
    """List the sentences of all rules of a problem, each once."""
    rules = problem_rules(problem)
    return list(dict.fromkeys(sentence(rule) for one in fields(rules) for rule in getattr(rules, one.name)))


def _one_entry_fewer(limits: SearchLimits) -> Iterator[SearchLimits]:
    """Yield the job's limits with one entry removed, of any kind except ``OF_A_KIND``."""
    for one in (each for each in fields(limits) if each.name not in OF_A_KIND):
        value = getattr(limits, one.name)
        fewer: list[Any] = []
        if isinstance(value, Mapping):
            fewer = [{key: kept for key, kept in value.items() if key != name} for name in value]
        elif isinstance(value, tuple):
            fewer = [(*value[:index], *value[index + 1 :]) for index in range(len(value))]
        elif one.default is not MISSING and value != one.default:
            fewer = [one.default]
        yield from (replace(limits, **{one.name: left}) for left in fewer)


# --- the next faster strategy ------------------------------------------------------------------------------


def _add_next(binding: Binding, problem: Problem, seconds: float, clock: Clock) -> Binding:
    """Add the strategy that is faster than some seconds and lacks least memory."""
    found = _next_faster(problem, seconds - ROUNDING_BOUND_SECONDS, clock)
    if found is None:
        return binding
    estimated = detail.estimate(problem.facts, found)
    room = problem.facts.cluster.device.memory_bytes - problem.search.memory_headroom_bytes
    return replace(
        binding,
        next_strategy=found,
        next_seconds=strategy_seconds(problem.facts, found),
        missing_bytes=estimated.device_bytes - room,
    )


def _next_faster(problem: Problem, seconds: float, clock: Clock) -> Strategy | None:
    """Return the strategy with least device memory among those that take less time and fit on the host."""
    space = build_space(problem)
    cost_table = CostTable.build(problem, space, OWN)
    best: tuple[int, int] | None = None
    values: dict[str, int] = {}
    for rows in _faster_rows(problem, space, seconds):
        if clock.is_over:
            return None
        cuts = np.full(len(rows), int(seconds / TICK_SECONDS), dtype=np.int64)
        costed = cost_table.cost(space.block(rows), cuts)
        found, _ = costed.take(costed.allowed & costed.timed & (costed.ticks <= cuts[0]))
        found = found.take(np.flatnonzero(found.host_mebibytes <= cost_table.capacity.host_mebibytes))
        for index in np.lexsort([found.ticks, found.device_mebibytes])[:1].tolist():
            key = int(found.device_mebibytes[index]), int(found.ticks[index])
            if best is None or key < best:
                best, values = key, {name: int(found.decisions[name][index]) for name in DECISIONS}
    return strategy_of(values) if best else None


def _faster_rows(problem: Problem, space: Space, seconds: float) -> Iterator[Ints]:
    """Yield blocks of rows that a lower bound of their step time does not exclude."""
    for start in range(0, space.num_rows, TABULATED_ROWS):
        rows = np.arange(start, min(start + TABULATED_ROWS, space.num_rows))
        bounds = np.broadcast_to(step.lower_bound_seconds(problem.facts, space.degrees(rows)), rows.shape)
        if (bounds <= seconds).any():
            yield rows[bounds <= seconds]


# --- why not this strategy ---------------------------------------------------------------------------------


def _pin_sentence(name: str, value: int) -> str:
    (rule,) = limit_rules(pin={name: value}, allow={}, forbid=())
    return sentence(rule)


def _mark_asked(conflict: Conflict, asked: Mapping[str, int]) -> Conflict:
    """Mark the decisions in question in the sentences of a conflict."""
    pins = {_pin_sentence(name, value): name for name, value in asked.items()}
    texts = {pin: f"asked: {pin.removeprefix('search.pin: ')}" for pin in pins}

    def rename(rules: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(texts.get(rule, rule) for rule in rules)

    return replace(
        conflict,
        exclusive=tuple(map(rename, conflict.exclusive)),
        repairs=tuple(map(rename, conflict.repairs)),
        release=rename(conflict.release),
        releases=tuple(map(rename, conflict.releases)),
    )
