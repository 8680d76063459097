"""
The joint problem as one CP-SAT model: an integer variable per decision, every rule as constraints.

A rule is posted from the same function that filters arrays: it is tabulated over the values of the decisions in its
signature. A rule of one decision restricts the variable's domain (tensor parallelism within a node). A rule of several
decisions becomes the assignments that it allows or forbids, whichever are fewer. The world size, whose table is wide
on large clusters, is posted as a product. A rule of many decisions with many values is tabulated over the combinations
in the cost tables.

The cost of strategies is held in two tables. One has the memory of each combination of the decisions that memory
depends on. The other has the ticks of each of those combinations with the remaining decisions, such as overlaps. Both
hold only strategies within a cut of the objective: without the cut such tables do not finish, with it they take
milliseconds. The caller reports the omitted strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from constraints.cp_sat import cp_model
from constraints.encoding import Candidates, Capacity
from constraints.relations import (
    DERIVED,
    MAX_CELLS,
    Ints,
    Relation,
    cast_values,
    names_of,
    narrow,
    tabulate_microbatches,
)
from constraints.rule import Rule, sentence
from constraints.rules import memory, topology
from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.tables import Facts, distinct, tabulate

MAX_VALUE = 2**31
"""Largest value of a decision: products of several stay within the solver's 64 bits where a rule bounds them."""

Variables = dict[str, cp_model.IntVar]


@record(frozen=True, kw_only=True, slots=True)
class CostTables:
    """
    Memory and step time of strategies, in two tables.

    Parameters
    ----------
    combinations
        Values of the decisions that memory depends on, one entry per combination, shape (C,).
    device_mebibytes, host_mebibytes
        Memory of each combination, shape (C,).
    combination, others, ticks
        Combination, values of the other decisions and step time of each strategy with a known time, shape (E,). A
        combination that exceeds the memory needs no strategy.
    """

    combinations: Mapping[str, Ints]
    device_mebibytes: Ints
    host_mebibytes: Ints
    combination: Ints
    others: Mapping[str, Ints]
    ticks: Ints

    @classmethod
    def build(cls, candidates: Candidates, others: Iterable[str]) -> CostTables:
        """Divide strategies into their memory, by all decisions but ``others``, and their step time."""
        of_memory = {name: values for name, values in candidates.decisions.items() if name not in set(others)}
        device, host = candidates.device_mebibytes, candidates.host_mebibytes
        first, combination = _distinct([*of_memory.values(), device, host])
        return cls(
            combinations={name: values[first] for name, values in of_memory.items()},
            device_mebibytes=device[first],
            host_mebibytes=host[first],
            combination=combination,
            others={name: values for name, values in candidates.decisions.items() if name not in of_memory},
            ticks=candidates.ticks,
        )

    @property
    def domains(self) -> dict[str, Ints]:
        """Values of each decision that occur in the tables."""
        return {name: distinct(values) for name, values in (*self.combinations.items(), *self.others.items())}

    def columns(self, names: Iterable[str]) -> dict[str, Ints]:
        """Return the values of some decisions: per combination if those hold them all, otherwise per strategy."""
        wanted = list(names)
        if all(name in self.combinations for name in wanted):
            return {name: self.combinations[name] for name in wanted}
        taken = {name: values[self.combination] for name, values in self.combinations.items() if name in wanted}
        return taken | {name: values for name, values in self.others.items() if name in wanted}


@record(frozen=True, kw_only=True, slots=True)
class JointModel:
    """
    A CP-SAT model with its variables.

    Parameters
    ----------
    model
        The CP-SAT model.
    variables
        One per decision, and one for the number of micro-batches.
    num_rules, num_constraints
        Number of rules in the model; number of constraints made from them. The other rules are domains of variables, or
        hold for all remaining values.
    num_combinations
        Rows of the memory's table.
    """

    model: cp_model.CpModel
    variables: Variables
    num_rules: int
    num_constraints: int
    num_combinations: int

    def forbid(self, values: Mapping[str, int]) -> None:
        """Forbid some values of decisions together, so that the next solution has others."""
        chosen = [self.variables[name] for name in values]
        self.model.add_forbidden_assignments(chosen, [tuple(values.values())]).with_name("another group is asked for")


def joint_model(
    facts: Facts,
    rules: Sequence[Rule],
    domains: Mapping[str, Ints],
    tables: CostTables | None = None,
    *,
    capacity: Capacity | None = None,
    cut: int = 0,
    ranks: Ints | None = None,
) -> JointModel:
    """
    Build the model: a value per decision, all rules and, with cost tables, memory and the least step time up to a cut.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    rules
        Rules on the decisions, except those of memory.
    domains
        Values of each decision, ascending.
    tables
        Costs of strategies; without them the model holds only the rules and has no objective.
    capacity
        Memory; required with tables.
    cut
        Largest step time in ticks; required with tables.
    ranks
        Rank of each strategy of the tables, shape (E,); the least rank is chosen, then the least step time.
    """
    posting = _Posting(facts, rules, domains, tables)
    if tables is not None and posting.is_possible:
        assert capacity is not None
        posting.add_costs(tables, capacity, cut, ranks)
    num_memory = 0 if tables is None else len((memory.fits_in_device_memory, memory.fits_in_host_memory))
    return JointModel(
        model=posting.model,
        variables=posting.variables,
        num_rules=len(rules) + num_memory,
        num_constraints=posting.num_constraints,
        num_combinations=0 if tables is None else len(tables.device_mebibytes),
    )


def _distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return the first of each set of equal rows, and the number of each row's set."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        if len(values) > 1:  # numbers are made dense again, so that they stay below the square of the rows
            number = np.unique(number * len(values) + place, return_inverse=True)[1]
    return np.unique(number, return_index=True)[1], number


class _Posting:
    """Builds one model: narrows the domains by every rule, then adds variables and constraints."""

    def __init__(
        self, facts: Facts, rules: Sequence[Rule], domains: Mapping[str, Ints], tables: CostTables | None
    ) -> None:
        self.facts = facts
        self.tables = tables
        self.model = cp_model.CpModel()
        self.variables: Variables = {}
        self.num_constraints = 0
        integers = {name: _integers(name, values) for name, values in domains.items()}
        self.domains, relations, wide = narrow(facts, rules, integers, 0 if tables is None else MAX_CELLS)
        if not self.is_possible:
            self.model.add_bool_or([]).with_name("no value is left of a decision")
            return
        self.add_variables()
        for relation in relations:
            self.add_relation(relation.restrict(self.domains))
        for rule in wide:
            self.add_wide(rule)

    @property
    def is_possible(self) -> bool:
        """True if the rules leave at least one value for each decision."""
        return all(len(values) for values in self.domains.values())

    def add_variables(self) -> None:
        """Add a variable per decision, and the number of micro-batches as a function of dp and mbs."""
        for name, values in self.domains.items():
            domain = cp_model.Domain.from_values(values.tolist())
            self.variables[name] = self.model.new_int_var_from_domain(domain, name)
        if DERIVED in self.domains:
            table = tabulate_microbatches(self.facts, self.domains)
            dp, mbs = np.meshgrid(self.domains["dp"], self.domains["mbs"], indexing="ij")
            self.allow(("dp", "mbs", DERIVED), np.stack([dp, mbs, table], axis=-1).reshape(-1, 3), DERIVED)

    def add_relation(self, relation: Relation) -> None:
        """Add a rule as the assignments that it allows or forbids, whichever are fewer."""
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
        """Add a rule of many combinations: as a product, or over the combinations in the cost tables."""
        self.num_constraints += 1
        if rule in PRODUCTS:
            PRODUCTS[rule](self)
            return
        assert self.tables is not None
        names = names_of(rule)
        asked = [name for name in names if name != DERIVED] + (["dp", "mbs"] if DERIVED in names else [])
        columns = self.tables.columns(dict.fromkeys(asked))
        rows = np.unique(np.stack(list(columns.values()), axis=-1), axis=0)
        decisions = {name: cast_values(name, values) for name, values in zip(columns, rows.T, strict=True)}
        broken = rows[~np.broadcast_to(np.asarray(tabulate(rule, self.facts, decisions)), len(rows))]
        if len(broken):
            self.forbid(tuple(columns), broken, sentence(rule))

    def add_costs(self, tables: CostTables, capacity: Capacity, cut: int, ranks: Ints | None) -> None:
        """Add the two tables, the memory limits, the objective and its cut."""
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
        ticks, of_strategy = self.variables["ticks"], {"combination": tables.combination, **tables.others}
        objective: cp_model.LinearExprT = ticks
        if ranks is not None:
            rank = self.variables["rank"] = self.model.new_int_var(int(ranks.min()), int(ranks.max()), "rank")
            of_strategy["rank"] = ranks
            objective = rank * (int(np.ptp(tables.ticks)) + 1) + ticks
        self.allow_columns({**of_strategy, "ticks": tables.ticks}, "step time")
        self.model.add(ticks <= cut).with_name("the cut of the objective")
        self.model.minimize(objective)

    def allow_columns(self, columns: Mapping[str, Ints], name: str) -> None:
        """Add a table of allowed assignments; skip a column of one value if its variable has no other."""
        asked = {
            one: values
            for one, values in columns.items()
            if one not in self.domains or len(self.domains[one]) > 1 or (values != self.domains[one][0]).any()
        }
        self.allow(tuple(asked), np.stack(list(asked.values()), axis=-1), name)

    def allow(self, names: Sequence[str], rows: Ints, name: str) -> None:
        """Allow only the given assignments of some variables, one per row."""
        chosen = [self.variables[one] for one in names]
        self.model.add_allowed_assignments(chosen, rows.tolist()).with_name(name)

    def forbid(self, names: Sequence[str], rows: Ints, name: str) -> None:
        """Forbid the given assignments of some variables, one per row."""
        chosen = [self.variables[one] for one in names]
        self.model.add_forbidden_assignments(chosen, rows.tolist()).with_name(name)

    def add_world_size(self) -> None:
        """Require that the degrees multiply to the number of devices."""
        factors = [self.variables[name] for name in ("tp", "cp", "pp", "dp")]
        rule = topology.degrees_multiply_to_the_devices
        self.model.add_multiplication_equality(self.facts.cluster.num_devices, factors).with_name(sentence(rule))


PRODUCTS: dict[Rule, Callable[[_Posting], None]] = {
    topology.degrees_multiply_to_the_devices: _Posting.add_world_size,
}
"""Rules that are products of variables, and the method that posts each where its table is wide."""


def _integers(name: str, values: Ints | Sequence[int]) -> Ints:
    """
    Convert the values of a decision to the solver's integers.

    Raises
    ------
    SpecError
        If one of them fits into no integer variable.
    """
    largest = max((abs(int(value)) for value in values), default=0)
    if largest > MAX_VALUE:
        raise SpecError(name, f"must be at most {MAX_VALUE} for the solver, got {largest}.")
    return np.asarray(values, dtype=np.int64)
