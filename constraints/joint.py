"""
The joint problem as one CP-SAT model that holds the rules: an integer variable per decision, every rule as constraints.

A rule is posted from the function that filters arrays: tabulated over the values of the decisions in its signature. Of
one decision it is the variable's domain (tensor parallelism within a node), of several the assignments that it allows
or forbids, whichever are fewer. The world size, whose table is wide on large clusters, is a product there. A rule of
many decisions with many values is tabulated over what the cost tables hold of them.

What a strategy costs are two tables. One has the memory of each combination of the decisions that memory depends on;
the other one the ticks of each of those with the overlaps and their like. Both hold only what is within a cut of the
objective: without it such tables do not finish, with it they take milliseconds. What they leave out is for whoever made
them to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from constraints.encoding import Capacity
from constraints.rule import Rule, sentence
from constraints.rules import memory, topology
from costmodel.errors import SpecError
from costmodel.strategy import FLAGS
from costmodel.tables import Facts, num_microbatches, signature, tabulate

MAX_CELLS = 2**14
"""Combinations of values over which a rule is tabulated; a wider one is posted in another way."""

MAX_VALUE = 2**31
"""Largest value of a decision: products of several stay within the solver's 64 bits where a rule bounds them."""

DERIVED = "num_microbatches"
"""What follows from decisions and has a variable of its own, since rules are about it."""

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Variables = dict[str, cp_model.IntVar]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostTables:
    """
    What strategies cost, in two tables.

    Parameters
    ----------
    combinations
        Values of the decisions that memory depends on, one entry per combination, shape (C,).
    device_mebibytes, host_mebibytes
        Memory of each, shape (C,).
    combination, others, ticks
        For each strategy whose time is known its combination, its values of the other decisions, its step time, shape
        (E,). A combination that no memory holds needs none.
    """

    combinations: Mapping[str, Ints]
    device_mebibytes: Ints
    host_mebibytes: Ints
    combination: Ints
    others: Mapping[str, Ints]
    ticks: Ints

    @property
    def domains(self) -> dict[str, Ints]:
        """The values of each decision that occur in them."""
        return {name: np.unique(values) for name, values in (*self.combinations.items(), *self.others.items())}

    def columns(self, names: Iterable[str]) -> dict[str, Ints]:
        """Values of some decisions: of each combination where that is enough, else of each strategy."""
        wanted = list(names)
        if all(name in self.combinations for name in wanted):
            return {name: self.combinations[name] for name in wanted}
        taken = {name: values[self.combination] for name, values in self.combinations.items() if name in wanted}
        return taken | {name: values for name, values in self.others.items() if name in wanted}


@dataclass(frozen=True, kw_only=True, slots=True)
class JointModel:
    """
    A model with handles into it.

    Parameters
    ----------
    model
        The CP-SAT model.
    variables
        One per decision, and one for the micro-batches that follow from them.
    num_rules, num_constraints
        Rules that it holds; constraints that they became. The others are the domains of variables, or hold for all
        values that are left.
    """

    model: cp_model.CpModel
    variables: Variables
    num_rules: int
    num_constraints: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Relation:
    """
    A rule over the values of its decisions.

    Parameters
    ----------
    rule
        The rule.
    values
        Of each decision, one axis each.
    holds
        The rule's answers, shape (values of the first decision, values of the second, ...).
    """

    rule: Rule
    values: Mapping[str, Ints]
    holds: Flags

    def within(self, domains: Mapping[str, Ints]) -> _Relation:
        """The part of it that domains leave."""
        holds = self.holds
        for axis, (name, values) in enumerate(self.values.items()):
            if len(values) > len(domains[name]):
                holds = holds.compress(np.isin(values, domains[name]), axis=axis)
        return _Relation(rule=self.rule, values={name: domains[name] for name in self.values}, holds=holds)

    @property
    def support(self) -> dict[str, Ints]:
        """The values of each decision with which the rule can be kept."""
        axes = range(self.holds.ndim)
        return {
            name: values[self.holds.any(axis=tuple(other for other in axes if other != axis))]
            for axis, (name, values) in enumerate(self.values.items())
        }


def joint_model(
    facts: Facts,
    rules: Sequence[Rule],
    domains: Mapping[str, Ints],
    tables: CostTables | None = None,
    *,
    capacity: Capacity | None = None,
    cut: int = 0,
) -> JointModel:
    """
    The model: one value per decision, all rules, and with cost tables the memory and the least step time up to a cut.

    Parameters
    ----------
    facts
        What is given.
    rules
        What holds of the decisions, memory apart.
    domains
        Values of each decision, ascending.
    tables
        What strategies cost; without them the model is about the rules alone, and has no objective.
    capacity
        Memory, which the tables ask for.
    cut
        Ticks that a step may take, which the tables ask for.
    """
    posting = _Posting(facts, rules, domains, tables)
    if tables is not None and posting.is_possible:
        assert capacity is not None
        posting.add_costs(tables, capacity, cut)
    num_memory = 0 if tables is None else len((memory.fits_in_device_memory, memory.fits_in_host_memory))
    return JointModel(
        model=posting.model,
        variables=posting.variables,
        num_rules=len(rules) + num_memory,
        num_constraints=posting.num_constraints,
    )


def narrowed(facts: Facts, rules: Sequence[Rule], domains: Mapping[str, Ints]) -> dict[str, Ints]:
    """
    The values of each decision that the rules leave, each rule asked by itself; those of wide tables are not asked.

    >>> from constraints.rules.features import pp_overlap_needs_pp
    >>> pipelines = {"pp": np.array([1]), "pp_overlap": np.array([0, 1])}
    >>> narrowed(Facts(model=None, cluster=None, workload=None), (pp_overlap_needs_pp,), pipelines)["pp_overlap"]
    array([0])
    """
    left, _, _ = _narrow(facts, rules, domains, MAX_CELLS)
    return left


class _Posting:
    """One model as it is made: domains first, which every rule narrows, then variables and constraints."""

    def __init__(
        self, facts: Facts, rules: Sequence[Rule], domains: Mapping[str, Ints], tables: CostTables | None
    ) -> None:
        self.facts = facts
        self.tables = tables
        self.model = cp_model.CpModel()
        self.variables: Variables = {}
        self.num_constraints = 0
        self.domains, relations, wide = _narrow(facts, rules, domains, 0 if tables is None else MAX_CELLS)
        if not self.is_possible:
            self.model.add_bool_or([]).with_name("no value is left of a decision")
            return
        self.add_variables()
        for relation in relations:
            self.add_relation(relation.within(self.domains))
        for rule in wide:
            self.add_wide(rule)

    @property
    def is_possible(self) -> bool:
        """Whether the rules leave a value to each decision."""
        return all(len(values) for values in self.domains.values())

    def add_variables(self) -> None:
        """A variable per decision, and the micro-batches as they follow from two of them."""
        for name, values in self.domains.items():
            domain = cp_model.Domain.from_values(values.tolist())
            self.variables[name] = self.model.new_int_var_from_domain(domain, name)
        if DERIVED in self.domains:
            table = _microbatches(self.facts, self.domains)
            dp, mbs = np.meshgrid(self.domains["dp"], self.domains["mbs"], indexing="ij")
            self.allow(("dp", "mbs", DERIVED), np.stack([dp, mbs, table], axis=-1).reshape(-1, 3), DERIVED)

    def add_relation(self, relation: _Relation) -> None:
        """A rule as the assignments that it allows or forbids, whichever are fewer."""
        if relation.holds.all():
            return
        self.num_constraints += 1
        some = [axis for axis, values in enumerate(relation.values.values()) if len(values) > 1]
        names = tuple(list(relation.values)[axis] for axis in some)
        columns = [list(relation.values.values())[axis] for axis in some]
        holds = relation.holds.reshape([len(column) for column in columns])
        few = holds.sum() <= holds.size // 2
        chosen = np.nonzero(holds if few else ~holds)
        rows = np.stack([column[index] for column, index in zip(columns, chosen, strict=True)], axis=-1)
        (self.allow if few else self.forbid)(names, rows, sentence(relation.rule))

    def add_wide(self, rule: Rule) -> None:
        """A rule of many combinations: a product, or over those that the cost tables hold."""
        self.num_constraints += 1
        if rule in PRODUCTS:
            PRODUCTS[rule](self)
            return
        assert self.tables is not None
        names = _names(rule)
        asked = [name for name in names if name != DERIVED] + (["dp", "mbs"] if DERIVED in names else [])
        columns = self.tables.columns(dict.fromkeys(asked))
        rows = np.unique(np.stack(list(columns.values()), axis=-1), axis=0)
        decisions = {name: _typed(name, values) for name, values in zip(columns, rows.T, strict=True)}
        broken = rows[~np.broadcast_to(np.asarray(tabulate(rule, self.facts, decisions)), len(rows))]
        if len(broken):
            self.forbid(tuple(columns), broken, sentence(rule))

    def add_costs(self, tables: CostTables, capacity: Capacity, cut: int) -> None:
        """The two tables, the memory, the objective and its cut."""
        if not len(tables.ticks):
            self.model.add_bool_or([]).with_name("no strategy is within the cut and the memory")
            return
        of_combination = dict(tables.combinations)
        for name, values, room, rule in (
            ("device_mebibytes", tables.device_mebibytes, capacity.device_mebibytes, memory.fits_in_device_memory),
            ("host_mebibytes", tables.host_mebibytes, capacity.host_mebibytes, memory.fits_in_host_memory),
        ):
            of_combination[name] = values
            self.variables[name] = self.model.new_int_var(int(values.min()), int(values.max()), name)
            self.model.add(self.variables[name] <= room).with_name(sentence(rule))
        number = np.arange(len(tables.device_mebibytes))
        self.variables["combination"] = self.model.new_int_var(0, len(number) - 1, "combination")
        self.variables["ticks"] = self.model.new_int_var(int(tables.ticks.min()), int(tables.ticks.max()), "ticks")
        self.allow_columns({"combination": number, **of_combination}, "memory")
        self.allow_columns({"combination": tables.combination, **tables.others, "ticks": tables.ticks}, "step time")
        self.model.add(self.variables["ticks"] <= cut).with_name("the cut of the objective")
        self.model.minimize(self.variables["ticks"])

    def allow_columns(self, columns: Mapping[str, Ints], name: str) -> None:
        """A table of allowed assignments; a column of one value is left out where its variable has no other."""
        asked = {
            one: values
            for one, values in columns.items()
            if one not in self.domains or len(self.domains[one]) > 1 or (values != self.domains[one][0]).any()
        }
        self.allow(tuple(asked), np.stack(list(asked.values()), axis=-1), name)

    def allow(self, names: Sequence[str], rows: Ints, name: str) -> None:
        """Allowed assignments of some variables, one per row."""
        chosen = [self.variables[one] for one in names]
        self.model.add_allowed_assignments(chosen, rows.tolist()).with_name(name)

    def forbid(self, names: Sequence[str], rows: Ints, name: str) -> None:
        """Forbidden assignments of some variables, one per row."""
        chosen = [self.variables[one] for one in names]
        self.model.add_forbidden_assignments(chosen, rows.tolist()).with_name(name)

    def add_world_size(self) -> None:
        """The degrees multiply to the devices."""
        factors = [self.variables[name] for name in ("tp", "cp", "pp", "dp")]
        rule = topology.degrees_multiply_to_the_devices
        self.model.add_multiplication_equality(self.facts.cluster.num_devices, factors).with_name(sentence(rule))


def _narrow(
    facts: Facts, rules: Iterable[Rule], domains: Mapping[str, Ints], max_cells: int
) -> tuple[dict[str, Ints], list[_Relation], list[Rule]]:
    """
    Tabulate the rules, those of few combinations first, and keep the values that each leaves.

    Returns
    -------
    tuple
        The values, none of a decision where the rules exclude each other; the rules that exclude something; those of
        more than ``max_cells`` combinations (0: none is too wide).
    """
    left = {name: _integers(name, values) for name, values in domains.items()}
    if any(DERIVED in _names(rule) for rule in rules):
        left[DERIVED] = np.unique(_microbatches(facts, left))
    relations, wide = [], []
    for rule in sorted(rules, key=lambda one: prod(len(left[name]) for name in _names(one))):
        values = {name: left[name] for name in _names(rule)}
        cells = prod(map(len, values.values()))
        if not cells:
            break
        if max_cells and cells > max_cells:
            wide.append(rule)
            continue
        relation = _Relation(rule=rule, values=values, holds=_tabulated(rule, facts, values))
        if not relation.holds.all():
            left |= relation.support
            relations.append(relation)
    return left, relations, wide


def _microbatches(facts: Facts, domains: Mapping[str, Ints]) -> Ints:
    """Micro-batches by data-parallel degree and micro-batch, shape (values of dp, values of mbs)."""
    decisions = {"dp": domains["dp"][:, None], "mbs": domains["mbs"][None, :]}
    return np.asarray(tabulate(num_microbatches, facts, decisions), dtype=np.int64)


PRODUCTS: dict[Rule, Callable[[_Posting], None]] = {
    topology.degrees_multiply_to_the_devices: _Posting.add_world_size,
}
"""Rules that are products of variables, posted as such where their tables are wide."""


def _names(rule: Rule) -> tuple[str, ...]:
    """The decisions that a rule is about, in the order of its signature."""
    return signature(rule)[1]


def _tabulated(rule: Rule, facts: Facts, values: Mapping[str, Ints]) -> Flags:
    """A rule's answers for all combinations of values, one axis per decision."""
    shape = tuple(len(some) for some in values.values())
    decisions = {
        name: _typed(name, some).reshape([-1 if other == axis else 1 for other in range(len(shape))])
        for axis, (name, some) in enumerate(values.items())
    }
    return np.broadcast_to(np.asarray(tabulate(rule, facts, decisions), dtype=bool), shape)


def _integers(name: str, values: Ints | Sequence[int]) -> Ints:
    """
    Values of a decision as the solver has them.

    Raises
    ------
    SpecError
        If one of them fits into no integer variable.
    """
    largest = max((abs(int(value)) for value in values), default=0)
    if largest > MAX_VALUE:
        raise SpecError(name, f"no integer variable of the solver holds {largest}; at most {MAX_VALUE}.")
    return np.asarray(values, dtype=np.int64)


def _typed(name: str, values: Ints) -> NDArray[Any]:
    """Values in the type that rules expect."""
    return values.astype(bool) if name in FLAGS else values
