"""Checks that a target can run a job or a strategy; they are made outside the search, never in it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from constraints import MEMORY_RULES, PHYSICS_RULES, TARGET_RULES, Rule, find_violations, sentence
from constraints.rule import FieldValues
from constraints.rules.exports import EXPORTS
from constraints.targets import find_refusals, list_refusals, require_job
from costmodel.errors import SpecError, alternatives
from costmodel.facts.framework import lacks
from costmodel.strategy import (
    DECISIONS,
    DEGREES,
    ENUMS,
    FLAGS,
    Recompute,
    StageLayout,
    Strategy,
    decision_text,
    default_microbatch_group,
)
from costmodel.tables import Facts
from planner.jobs.problem import Problem, load, require_problem
from planner.jobs.strategy_file import LAYOUT
from planner.search.domains import default_domains, default_features, needs

MOST_LOOKED_AT = 50
"""Number of strategies whose neighbours are checked on the way to the nearest one that the target runs."""

UNLIKE = StageLayout(
    layers=(1, 1),
    recompute=(Recompute.FULL, Recompute.NONE),
    full_layers=(0, 0),
    activation_offload=(False, False),
)
"""Custom pipeline layout whose stages differ in more than their layers."""


# --- a job -------------------------------------------------------------------------------------------------


def require_runnable(problem: Problem) -> None:
    """
    Refuse a job that its target cannot run whatever the strategy, before anything is searched; others pass.

    Raises
    ------
    SpecError
        With the entry of the job, the target's own reason, and the targets that could run it.
    """
    require_problem(problem)
    if problem.search.target is None:
        return
    if not problem.search.framework_rules:
        said = f"is false, but search.target needs the rules of {problem.search.target}."
        raise SpecError("search.framework_rules", said, "Keep one of them.")
    try:
        require_target(problem)
    except SpecError as error:
        hint = f"{error.hint} {_others_text(problem)}".strip()
        raise SpecError(error.where, error.problem, hint) from None


def require_target(problem: Problem) -> None:
    """Refuse a job that its target cannot run, without the targets that could."""
    target = problem.search.target
    if target is None:
        return
    for one in problem.each:
        _require_facts(one.facts, target)
        _require_rules(one.facts, target)
    _require_limits(problem, target)


def _require_facts(facts: Facts, target: str) -> None:
    """
    Refuse a model, a precision or settings that the target does not have.

    Settings are refused where the plainest strategy and one with EP overlap are both refused for them.
    """
    own = EXPORTS[target]
    try:
        require_job(facts, target)
    except SpecError as error:
        problem = f"{error.problem} So no plan of the job can be exported to {own.name}."
        raise SpecError(error.where, problem, error.hint) from None
    overlapped = replace(plainest(), ep=2, ep_overlap=True) if facts.model.has_experts else plainest()
    others = find_refusals(facts, overlapped, target)
    for name, reason in find_refusals(facts, plainest(), target).items():
        section, _, setting = name.rpartition(".")
        if section and name in others:
            known = [_plain(value) for row in own.fields[name] if isinstance(row, FieldValues) for value in row.values]
            hint = f"It has: {alternatives(known)}." if known else ""
            value = _plain(getattr(facts.cluster.settings, setting))
            raise SpecError(name, f"is {value}, which {own.name} cannot run: {reason}", hint)


def _require_rules(facts: Facts, target: str) -> None:
    """Refuse a job that breaks a rule of its target on facts alone, so that every strategy would break it."""
    rules = [rule for rule in TARGET_RULES[target] if not needs(rule)]
    for rule in find_violations(facts, plainest().decisions(), rules=rules):
        framework = facts.cluster.unknown_release or (facts.cluster.framework.name if facts.cluster.framework else "")
        raise SpecError("search.target", f"is {target} ({framework}), which cannot run the job: {sentence(rule)}")


def plainest() -> Strategy:
    """Return the strategy of one device, one sequence per micro-batch, and no feature."""
    values: dict[str, Any] = {**dict.fromkeys((*DEGREES, "group"), 1), **dict.fromkeys(FLAGS, False)}
    enums: dict[str, Any] = {name: kind(0) for name, kind in ENUMS.items()}
    return Strategy(**values, **enums)


def _plain(value: object) -> str:
    return "the model's" if value is None else str(value).lower()


def _require_limits(problem: Problem, target: str) -> None:
    """Refuse limits of the search with no value that the target has: pinned and allowed values, and kinds of stages."""
    search = problem.search
    pinned = {f"search.pin.{name}": (name, (value,)) for name, value in search.pin.items()}
    allowed = {f"search.allow.{name}": (name, values) for name, values in search.allow.items()}
    _require_values(problem, target, pinned | allowed)
    if search.stages == "free":
        strategy = replace(plainest(), pp=2, layout=UNLIKE)
        refused = find_refusals(problem.facts, strategy, target)
        if "layout" in refused:
            raise SpecError("search.stages", f"is free, which {EXPORTS[target].name} cannot run: {refused['layout']}")


def limit_to_runnable_stages(problem: Problem) -> Problem:
    """Limit the search to even stages where the job's target has no uneven ones."""
    target, num_layers = problem.search.target, problem.facts.model.num_layers
    if target is None or num_layers < 2 or problem.search.stages != "layers":
        return problem
    contents = (Recompute.NONE, Recompute.NONE)
    layout = StageLayout(
        layers=(1, num_layers - 1), recompute=contents, full_layers=(0, 0), activation_offload=(False, False)
    )
    refused = find_refusals(problem.facts, replace(plainest(), pp=2, layout=layout), target)
    return problem.change_limits(stages="even") if "layout" in refused else problem


def require_decisions(problem: Problem, decisions: Mapping[str, int]) -> None:
    """Refuse decisions that the job's target does not have, with the reason."""
    if problem.search.target is not None:
        given = {f"strategy.{name}": (name, (value,)) for name, value in decisions.items()}
        _require_values(problem, problem.search.target, given)


def _require_values(problem: Problem, target: str, given: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Refuse entries of the job none of whose values the framework has."""
    framework = problem.facts.cluster.framework
    for where, (name, values) in given.items():
        if framework is not None and all(lacks(framework, name, value) for value in values):
            texts = alternatives([decision_text(name, value) for value in values])
            reason = find_refusals(problem.facts, _replace_decision(plainest(), name, values[0]), target).get(name)
            because = f"{EXPORTS[target].name} cannot run: {reason}" if reason else f"{framework.name} does not have."
            others = [value for value in _values(problem)[name] if not lacks(framework, name, value)]
            nearest = min(others, key=lambda value: abs(value - values[0]), default=None)
            hint = "" if nearest is None else f"The nearest that it can run is {decision_text(name, nearest)}."
            raise SpecError(where, f"is {texts}, which {because}", hint)


def _others_text(problem: Problem) -> str:
    names = [name for name in EXPORTS if name != problem.search.target and _could_run(problem, name)]
    return f"Targets that could run it: {', '.join(names)}." if names else "No other target could run it either."


def _could_run(problem: Problem, target: str) -> bool:
    """Tell whether the job would pass with another target and its newest framework."""
    document = dict(problem.document)
    document["search"] = {**(document.get("search") or {}), "target": target}
    document["cluster"] = {name: value for name, value in document["cluster"].items() if name != "framework"}
    try:
        require_target(load(document, name=problem.name))
    except SpecError:
        return False
    return True


# --- a strategy --------------------------------------------------------------------------------------------


def find_runnable(problem: Problem, strategy: Strategy, given: Collection[str]) -> Strategy:
    """
    Return the nearest strategy that the job's target can run; given decisions stay.

    Parameters
    ----------
    problem
        The job; without a target nothing changes.
    strategy
        The given decisions, completed.
    given
        Names of decisions that stay as they are, ``layout`` among them where stages were given.

    Raises
    ------
    SpecError
        If the target refuses given decisions: names them with the reasons, and the nearest strategy that it runs.
    """
    target = problem.search.target
    if target is None or not _complaints(problem.facts, strategy, target)[0]:
        return strategy
    free = [name for name in (*DECISIONS, LAYOUT) if name not in given]
    own = _nearest(problem, strategy, target, free, physics=())
    if own is not None:
        return own
    raise _refusal(problem, strategy, target)


def _refusal(problem: Problem, strategy: Strategy, target: str) -> SpecError:
    refused = find_refusals(problem.facts, strategy, target)
    text = list_refusals(problem.facts, strategy, refused)
    if not refused:
        broken = find_violations(problem.facts, strategy.decisions(), rules=TARGET_RULES[target])
        text = "".join(f"\n  - {sentence(rule)}" for rule in broken)
    asked = PHYSICS_RULES if not _find_broken(problem.facts, strategy, PHYSICS_RULES) else ()
    nearest = _nearest(problem, strategy, target, (*DECISIONS, LAYOUT), physics=asked)
    end = "No strategy near it was found that it can run."
    if nearest is not None:
        others = nearest.decisions()
        changed = {name: others[name] for name, value in strategy.decisions().items() if others[name] != value}
        texts = " ".join(f"{name}={decision_text(name, value)}" for name, value in changed.items())
        end = f"The nearest that it can run has {texts or 'even stages'}."
    return SpecError("strategy", f"{EXPORTS[target].name} cannot run this strategy:{text}\n{end}")


def _complaints(
    facts: Facts, strategy: Strategy, target: str, physics: Iterable[Rule] = ()
) -> tuple[int, frozenset[str]]:
    """
    Count a target's refusals of a strategy, and the rules of the target and of physics that it breaks.

    Also return the decisions to change: those that are refused by name, or else those of the broken rules.
    """
    refused = find_refusals(facts, strategy, target)
    broken = _find_broken(facts, strategy, (*TARGET_RULES[target], *physics))
    named = frozenset(name for name in refused if "." not in name)  # settings stay as they are
    return len(refused) + len(broken), named or frozenset().union(*map(needs, broken))


def _find_broken(facts: Facts, strategy: Strategy, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return find_violations(facts, strategy.decisions(), rules=[rule for rule in rules if rule not in MEMORY_RULES])


def _nearest(
    problem: Problem, strategy: Strategy, target: str, free: Collection[str], *, physics: Sequence[Rule]
) -> Strategy | None:
    """
    Search for the nearest strategy that a target can run, one change of a decision at a time.

    The strategy with the fewest complaints is expanded first, on a tie the one with the fewest changes. None: nothing
    was found.
    """
    domains, tried = _values(problem), itertools.count()
    first, decisions = _complaints(problem.facts, strategy, target, physics)
    waiting, seen = [(first, 0, next(tried), strategy, decisions)], {strategy}
    for _ in range(MOST_LOOKED_AT):
        if not waiting:
            return None
        number, changes, _, current, names = heapq.heappop(waiting)
        if not number:
            return current
        tied = () if LAYOUT in free or current.layout is None else ("pp", "vpp", "vocabulary")  # given stages fix these
        changing = [name for name in DECISIONS if name in names and name in free and name not in tied]
        steps = [
            _replace_decision(current, name, value, free)
            for name in changing
            for value in _order_by_distance(name, current, domains[name])
        ]
        steps += [replace(current, layout=None)] if LAYOUT in names and LAYOUT in free else []
        for step in steps:
            if step not in seen:
                seen.add(step)
                left, decisions = _complaints(problem.facts, step, target, physics)
                heapq.heappush(waiting, (left, changes + 1, next(tried), step, decisions))
    return None


def _values(problem: Problem) -> Mapping[str, Sequence[int]]:
    """Values of each decision that the search for a nearby strategy tries."""
    facts = problem.facts
    known = {**default_domains(facts), **default_features(facts)}
    return {
        name: tuple(ENUMS[name]) if name in ("schedule", "vocabulary") else known.get(name, ()) for name in DECISIONS
    }


def _order_by_distance(name: str, strategy: Strategy, values: Iterable[int]) -> Iterator[int]:
    """Yield other values of a decision, nearest first; degrees are compared by their ratio."""
    own = int(getattr(strategy, name))
    ratio = name in DEGREES

    def distance(value: int) -> tuple[float, int]:
        return (max(value, own) / min(value, own), value) if ratio else (abs(value - own), value)

    yield from sorted((int(value) for value in values if int(value) != own), key=distance)


def _replace_decision(strategy: Strategy, name: str, value: int, free: Collection[str] = DECISIONS) -> Strategy:
    """Return a strategy with another value; dp takes the remaining devices, micro-batch groups follow pp and vpp."""
    typed: Any = ENUMS[name](value) if name in ENUMS else bool(value) if name in FLAGS else value
    changed = replace(strategy, **{name: typed})
    if name in ("tp", "cp", "pp") and "dp" in free and strategy.num_devices > 1:
        changed = replace(changed, dp=max(strategy.num_devices // (changed.tp * changed.cp * changed.pp), 1))
    if name in ("pp", "vpp"):
        follows = int(default_microbatch_group(pp=changed.pp, vpp=changed.vpp))
        changed = replace(changed, layout=None, group=follows if "group" in free else changed.group)
    return changed
