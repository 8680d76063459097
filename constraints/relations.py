"""
Relations: the answers of rules, tabulated over the values of the decisions in their signatures.

They narrow the values of decisions, name the rules that can be broken at all, and become constraints of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.rule import Rule
from costmodel.record import record
from costmodel.strategy import FLAGS
from costmodel.tables import Facts, distinct, num_microbatches, signature, tabulate

MAX_CELLS = 2**14
"""Most combinations of values over which a rule is tabulated; a wider rule is posted in another way."""

DERIVED = "num_microbatches"
"""Quantity that follows from decisions and has a variable of its own, since rules refer to it."""

LOCAL = "<locals>"
"""Part of the name of a function inside another one."""

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@record(frozen=True, kw_only=True, slots=True)
class Relation:
    """
    One rule's answers, tabulated over the values of its decisions.

    Parameters
    ----------
    rule
        The rule.
    values
        Values of each decision, one axis each.
    holds
        Answers of the rule, shape (values of the first decision, values of the second, ...).
    """

    rule: Rule
    values: Mapping[str, Ints]
    holds: Flags

    def restrict(self, domains: Mapping[str, Ints]) -> Relation:
        """Return the part of the relation that lies within the domains."""
        holds = self.holds
        for axis, (name, values) in enumerate(self.values.items()):
            if len(values) > len(domains[name]):
                holds = holds.compress(np.isin(values, domains[name]), axis=axis)
        return Relation(rule=self.rule, values={name: domains[name] for name in self.values}, holds=holds)

    @property
    def support(self) -> dict[str, Ints]:
        """Values of each decision that occur in an allowed combination."""
        axes = range(self.holds.ndim)
        return {
            name: values[self.holds.any(axis=tuple(other for other in axes if other != axis))]
            for axis, (name, values) in enumerate(self.values.items())
        }


def narrow_domains(facts: Facts, rules: Sequence[Rule], domains: Mapping[str, Ints]) -> dict[str, Ints]:
    """
    Return the values of each decision that satisfy every rule taken alone; rules of wide tables are skipped.

    >>> from constraints.rules.physics import pp_overlap_needs_pp
    >>> pipelines = {"pp": np.array([1]), "pp_overlap": np.array([0, 1])}
    >>> narrow_domains(Facts(model=None, cluster=None, workload=None), (pp_overlap_needs_pp,), pipelines)["pp_overlap"]
    array([0])
    """
    return narrow(facts, rules, domains, MAX_CELLS)[0]


def list_binding(facts: Facts, rules: Sequence[Rule], domains: Mapping[str, Ints]) -> tuple[Rule, ...]:
    """
    Return the rules without those that hold wherever the others do; rules of wide tables stay.

    All are returned if they leave a decision no value: those that cut most are needed to find that out cheaply.

    >>> from constraints.rules.physics import pp_overlap_needs_pp
    >>> pipelines = {"pp": np.array([2, 4]), "pp_overlap": np.array([0, 1])}
    >>> list_binding(Facts(model=None, cluster=None, workload=None), (pp_overlap_needs_pp,), pipelines)
    ()
    """
    left, relations, wide = narrow(facts, rules, domains, MAX_CELLS)
    if not all(map(len, left.values())):
        return tuple(rules)
    binding = {*(one.rule for one in relations), *wide}
    return tuple(rule for rule in rules if rule in binding)


def narrow(
    facts: Facts, rules: Iterable[Rule], domains: Mapping[str, Ints], max_cells: int
) -> tuple[dict[str, Ints], list[Relation], list[Rule]]:
    """
    Tabulate the rules, those with few combinations first, and keep the values that each rule leaves.

    A rule that held for all combinations of some values of a job is not asked again about fewer of them; the job's own
    rules are.

    Returns
    -------
    tuple
        Remaining values of each decision, empty if the rules exclude each other. Rules that exclude a combination.
        Rules with more than ``max_cells`` combinations (0: no rule is too wide).
    """
    left = {name: np.asarray(values, dtype=np.int64) for name, values in domains.items()}
    named = [(rule, names_of(rule)) for rule in rules]
    if any(DERIVED in names for _, names in named):
        left[DERIVED] = distinct(tabulate_microbatches(facts, left))
    sets = {name: frozenset(values.tolist()) for name, values in left.items()}
    sizes = {name: len(values) for name, values in left.items()}
    unbroken = facts.compute_once(narrow, dict[Rule, list[tuple[frozenset[int], ...]]])
    relations, wide = [], []
    for rule, names in sorted(named, key=lambda one: prod([sizes[name] for name in one[1]])):
        own = tuple([sets[name] for name in names])
        cells = prod([len(values) for values in own])
        if not cells:
            break
        if max_cells and cells > max_cells:
            wide.append(rule)
            continue
        if rule in unbroken and any(all(map(frozenset.issubset, own, each)) for each in unbroken[rule]):
            continue
        values = {name: left[name] for name in names}
        relation = Relation(rule=rule, values=values, holds=_tabulate_rule(rule, facts, values))
        if not relation.holds.all():
            support = relation.support
            left |= support
            sets |= {name: frozenset(some.tolist()) for name, some in support.items() if len(some) < len(values[name])}
            relations.append(relation)
        elif LOCAL not in rule.__qualname__:  # a job's own rules are made anew, and cannot be pickled with its facts
            unbroken.setdefault(rule, []).append(own)
    return left, relations, wide


def tabulate_microbatches(facts: Facts, domains: Mapping[str, Ints]) -> Ints:
    """Return the number of micro-batches, shape (values of dp, values of mbs)."""
    decisions = {"dp": domains["dp"][:, None], "mbs": domains["mbs"][None, :]}
    return np.asarray(tabulate(num_microbatches, facts, decisions), dtype=np.int64)


def names_of(rule: Rule) -> tuple[str, ...]:
    """Return the decisions of a rule, in the order of its signature."""
    return signature(rule)[1]


def _tabulate_rule(rule: Rule, facts: Facts, values: Mapping[str, Ints]) -> Flags:
    """Return a rule's answers for all combinations of values, one axis per decision."""
    shape = tuple(map(len, values.values()))
    decisions = {
        name: cast_values(name, some).reshape(-1, *(1,) * (len(shape) - 1 - axis))
        for axis, (name, some) in enumerate(values.items())
    }
    holds = np.asarray(tabulate(rule, facts, decisions), dtype=bool)
    return holds if holds.shape == shape else np.broadcast_to(holds, shape)


def cast_values(name: str, values: Ints) -> NDArray[Any]:
    """Convert values to the type that rules expect."""
    return values.astype(bool) if name in FLAGS else values
