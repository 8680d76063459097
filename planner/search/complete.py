"""
Complete a strategy that is given in part: a search chooses the open decisions.

``estimate``, ``explain`` and ``compare`` complete strategies here, so that all of them mean the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from constraints.limits import limit_rules
from constraints.rule import sentence
from costmodel.errors import SpecError, alternatives
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.validation import shown
from planner.jobs.line import read_strategy, require_parts
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import (
    StrategyFile,
    apply_layout,
    complete_strategy,
    is_whole,
    require_features,
    value_text,
)
from planner.search.recipes import add_published, find_published
from planner.search.runnable import find_runnable, limit_to_runnable_stages
from planner.search.solver import Clock

if TYPE_CHECKING:
    from planner.search.alternatives import FewerDevices, JointOutcome

LEAST_SIMULATED = 5
"""
Strategies that are simulated where stages may be uneven.

In 7 of 117 jobs five gave another best plan than one did, by up to 3.9 %.
"""


RELAXED: tuple[Mapping[str, Any], ...] = ({"preferences": False}, {"memory_headroom_bytes": 0.0}, {"is_bold": True})
"""Limits that a completion drops where no strategy satisfies them, one after the other: evidence last."""


class CompletedBy(StrEnum):
    """
    Origin of the decisions that were not given.

    ``given``: all were given. ``search``: the plan with the given decisions, as ``planner plan`` recommends it.
    ``bold``: such a plan that breaks a preference, leaves too little memory free, or has unproven features; no other
    fits. ``recipes``: the framework's recipes. ``no_plan``: these recipes, since the search found no strategy.
    """

    GIVEN = "given"
    SEARCH = "search"
    BOLD = "bold"
    RECIPES = "recipes"
    NO_PLAN = "no_plan"


Completed: TypeAlias = tuple[Problem, Strategy, tuple[str, ...], CompletedBy]
"""
A whole strategy: its job with one value of each setting, the strategy, given decisions, and origin of the others.

Given stages are the decision ``layout``.
"""


def complete(problem: Problem, asked: StrategyFile, *, searched: bool = True) -> tuple[Completed, ...]:
    """
    Complete a strategy: by a search, or by the framework's recipes for each combination of the job's settings.

    Parameters
    ----------
    problem
        The job.
    asked
        Given part of the strategy.
    searched
        True where a search may choose; else the recipes do.

    Raises
    ------
    SpecError
        If the job's target cannot run the strategy, or the strategy cannot be costed for this job.
    """
    problem = choose_settings(problem, asked)
    given = whole_of(problem, asked)
    if problem.search.framework_rules and problem.search.target is None:
        require_features(problem.facts.cluster, asked.decisions, "strategy")
    by = CompletedBy.GIVEN if is_whole(given) else CompletedBy.RECIPES
    if by is CompletedBy.RECIPES and searched:
        found = _search_rest(problem, given)
        if found is not None:
            return (found,)
        by = CompletedBy.NO_PLAN
    return tuple(_follow_recipes(one, given, by) for one in problem.each)


def read_asked(problem: Problem, decisions: object) -> StrategyFile:
    """
    Read a strategy, in part or whole, that a caller asks about; a line must match the job's model.

    Raises
    ------
    SpecError
        If it is no strategy, or a name or a value is wrong.
    """
    given = read_strategy(decisions)
    if not isinstance(decisions, Mapping):
        require_parts(problem.facts.model, given)
    return given


def whole_of(problem: Problem, asked: StrategyFile) -> StrategyFile:
    """Fill open decisions from the job: from its strategy, then from its pins; a whole strategy stays as it is."""
    if is_whole(asked):
        return asked
    return asked.override(problem.given.override(StrategyFile(decisions=problem.search.pin)))


def question_of(problem: Problem, given: StrategyFile) -> tuple[Problem, tuple[str, ...]]:
    """Return the job with the given decisions pinned, and the sentences of its entries that they replace."""
    limits, asked = problem.search, given.decisions
    pins = {name: value for name, value in limits.pin.items() if asked.get(name, value) != value}
    allows = {name: values for name, values in limits.allow.items() if name in asked and asked[name] not in values}
    opposed = limit_rules(pin=pins, allow=allows, forbid=())
    left = {name: values for name, values in limits.allow.items() if name not in allows}
    question = problem.change_limits(pin={**limits.pin, **asked}, allow=left)
    if given.layout is not None:
        question = question.change_limits(pin={**question.search.pin, **given.stage_degrees}, stages="even")
    return question, tuple(sentence(rule) for rule in opposed)


def set_stages(strategy: Strategy, given: StrategyFile, facts: Facts) -> Strategy:
    """Return a strategy with the given stages, if any are."""
    return strategy if given.layout is None else apply_layout(given.layout, strategy, facts.model)


def fastest_of(problem: Problem) -> tuple[JointOutcome, FewerDevices | None]:
    """Search the best strategies of a job, enough of them for its plans, as :func:`search_numbers` does."""
    from planner.search.alternatives import search_numbers

    problem = limit_to_runnable_stages(problem)
    uneven = problem.search.stages != "even"
    wanted = max(problem.top, LEAST_SIMULATED) if uneven else problem.top
    return search_numbers(replace(problem, top=wanted))


def _search_rest(problem: Problem, given: StrategyFile) -> Completed | None:
    """
    Return the plan with the given decisions, as ``plan`` recommends it; None without one.

    The given decisions may break a limit of the search; the others may then break it, too.
    """
    from planner.search.recommendation import recommend

    clock = Clock(seconds=problem.search.time_limit_seconds)
    question, _ = question_of(replace(problem, top=1), given)
    joint, _ = fastest_of(question)
    by = CompletedBy.SEARCH
    for limits in RELAXED:
        if joint.ranked:
            break
        relaxed = question.change_limits(**limits)
        if relaxed.search != question.search:
            question, by = relaxed, CompletedBy.BOLD
            joint, _ = fastest_of(question)
    if not joint.ranked:
        return None
    published = tuple(find_published(question))
    job, strategy, seconds = add_published(published, joint)[0]
    if question.search.simplest:
        advice = recommend(question, (job, strategy, seconds), joint.of_each, joint.ranked, published, clock)
        job, strategy = advice.problem, advice.strategy
    own = next((one for one in problem.each if one.settings == job.settings), problem)
    whole = find_runnable(own, set_stages(strategy, given, own.facts), given.names)
    return own, whole, given.names, by


def _follow_recipes(problem: Problem, given: StrategyFile, by: CompletedBy) -> Completed:
    strategy = complete_strategy(problem.facts, given, problem.search.max_devices)
    return problem, find_runnable(problem, strategy, given.names), given.names, by


def choose_settings(problem: Problem, asked: StrategyFile) -> Problem:
    """
    Return the job with the settings of a line, where the job gives several values.

    Raises
    ------
    SpecError
        If the job gives only other values.
    """
    if not asked.settings:
        return problem
    for name, value in asked.settings.items():
        values = [getattr(one.facts.cluster.settings, name) for one in problem.each]
        if value not in values:
            own = alternatives([value_text(each) for each in dict.fromkeys(values)])
            problem_text = f"is {shown(value)}, but settings.{name} of the job is {own}."
            raise SpecError(f"strategy.{name}", problem_text, f"Give the job settings.{name}={value_text(value)}.")
    said = asked.settings.items()
    fitting = [
        one for one in problem.each if all(getattr(one.facts.cluster.settings, name) == value for name, value in said)
    ]
    if not fitting:
        raise SpecError("strategy", f"no combination of the job's settings has {shown(dict(said))}.")
    kept = [one.settings for one in fitting]
    if len(fitting) == 1:
        return fitting[0]
    left = tuple(one for one in problem.alternatives if one.settings in kept)
    return replace(problem, alternatives=left, facts=left[0].facts, reliability=left[0].reliability)
