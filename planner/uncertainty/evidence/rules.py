"""Rules of the search that leave out the features, and the pairs of them, that too few measured runs have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from itertools import combinations
from operator import or_
from typing import Any

import numpy as np

from constraints.rule import Holds, Ints, Rule
from costmodel.strategy import decision_text
from costmodel.tables import Facts
from planner.uncertainty.evidence.features import (
    AXES,
    DEEP,
    FEATURES,
    Axis,
    Evidence,
    evidence_for,
    makes_pair,
    most_ep,
)


def evidence_rules(facts: Facts, asked: Iterable[str]) -> tuple[Rule, ...]:
    """
    Make the rules that exclude features and pairs of features that too few measured runs have.

    Parameters
    ----------
    facts
        Facts of the job, which decide the runs that count.
    asked
        Decisions whose values the job names: their features are allowed, and pairs of two of them, or with one that
        is unproven anyway.

    Returns
    -------
    tuple
        A rule for each feature and each pair of them that some value breaks.
    """
    known, size = evidence_for(facts.model, facts.cluster, facts.workload), facts.cluster.scale_up_size
    named = frozenset(axis.name for axis in (*AXES.values(), DEEP) if set(axis.decisions) & set(asked))
    rules = _rules(known.key, known.where, known.bits, size, named)
    degrees, tokens = known.ep_range(most_ep(facts.model, facts.cluster)), known.least_cp_tokens
    ranks = () if "ep" in named or degrees is None else (_usual_ranks(known, *degrees),)
    parts = () if "cp" in named or not tokens else (_long_parts(known, tokens, facts.workload.sequence_length),)
    return (*rules, *ranks, *parts)


@lru_cache(maxsize=64)
def _rules(
    key: tuple[str, str, str], where: str, bits: int, scale_up_size: int, asked: frozenset[str]
) -> tuple[Rule, ...]:
    known = Evidence.read(key, where, bits)
    proven = {axis.name: known.proven(axis) for axis in FEATURES}
    alone = (_alone(known, axis, proven[axis.name], scale_up_size) for axis in FEATURES if axis.name not in asked)
    pairs = (
        _pair(known, (one, proven[one.name]), (other, proven.get(other.name, frozenset({1}))), scale_up_size)
        for one, other in combinations(AXES.values(), 2)
        if one in FEATURES and not {one.name, other.name} <= asked
    )
    deep = None if "vpp" in asked else _few_stages(known)
    return tuple(rule for rule in (*alone, *pairs, deep) if rule is not None)


def _few_stages(known: Evidence) -> Rule | None:
    """Make the rule that virtual stages per rank are no more than runs reach; None where nobody knows."""
    most = known.most_vpp
    if most is None:
        return None

    def holds(*, vpp: Ints) -> Holds:
        return vpp <= most

    return _rule(holds, ("vpp",), f"The search uses vpp up to {most}: of more, {known.grounds} ({LIFTED}).")


def _usual_ranks(known: Evidence, least: int, most: int) -> Rule:
    """Make the rule that experts are divided over as many ranks as in runs."""

    def holds(*, ep: Ints) -> Holds:
        return (ep == 1) | ((ep >= least) & (ep <= most))

    text = f"The search uses ep 1, or from {least} to {most}: of others, {known.grounds}"
    return _rule(holds, ("ep",), f"{text} ({LIFTED}).")


def _long_parts(known: Evidence, tokens: int, sequence_length: int) -> Rule:
    """Make the rule that context parallelism leaves a rank no fewer tokens than in runs."""
    most = max(1, sequence_length // tokens)

    def holds(*, cp: Ints) -> Holds:
        return cp <= most

    text = f"The search uses cp up to {most}, {tokens:,} tokens of a sequence per rank: of less, {known.grounds}"
    return _rule(holds, ("cp",), f"{text} ({LIFTED}).")


def _alone(known: Evidence, axis: Axis, proven: frozenset[int], scale_up_size: int) -> Rule | None:
    """Make the rule of one feature; None where runs have shown all its values."""
    if axis.is_flag and proven:
        return None
    allowed = {int(value) for value in (*axis.usual, *proven)}

    def holds(**decisions: Any) -> Holds:
        values = np.asarray(axis.of(scale_up_size, decisions))
        answer: Holds = reduce(or_, (values == one for one in sorted(allowed)))
        return answer

    few = axis.text(1) if axis.is_flag else f"{axis.words.partition(' {')[0]} {_values(axis, allowed)}"
    text = f"leaves {few} out" if axis.is_flag else f"has {few} alone"
    return _rule(holds, axis.decisions, f"The search {text}: {known.grounds} ({LIFTED}).")


def _values(axis: Axis, values: Iterable[int]) -> str:
    return " or ".join(decision_text(axis.name, value) for value in sorted(values))


def _pair(
    known: Evidence, one: tuple[Axis, frozenset[int]], other: tuple[Axis, frozenset[int]], scale_up_size: int
) -> Rule | None:
    """Make the rule of a pair of features, each proven alone; None where runs have shown all their values together."""
    (first, left), (second, right) = one, other
    apart = [
        (a, b)
        for a in sorted(left)
        for b in sorted(right)
        if makes_pair(first, a, second) and not known.shows((first, a), (second, b))
    ]
    if not apart:
        return None

    def holds(**decisions: Any) -> Holds:
        have, meet = (np.asarray(axis.of(scale_up_size, decisions)) for axis in (first, second))
        together = reduce(or_, ((have == a) & (meet == b) for a, b in apart))
        answer: Holds = np.logical_not(together)
        return answer

    words = "; ".join(f"{first.text(a)} with {second.text(b)}" for a, b in apart)
    names = tuple(dict.fromkeys((*first.decisions, *second.decisions)))
    return _rule(holds, names, f"The search leaves {words} out: {known.grounds} ({LIFTED}).")


LIFTED = "search.evidence: any"
"""Entry of a job that lifts these rules."""


def _rule(holds: Callable[..., Holds], decisions: Iterable[str], text: str) -> Rule:
    """Return a function as a rule about some decisions, with its sentence."""
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in decisions]
    holds.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    holds.__doc__ = text
    return holds
