"""
The joint problem as one CP-SAT model: an integer variable per decision, every rule as constraints.

A rule is posted from the same function that filters arrays: it is tabulated over the values of the decisions in its
signature. A rule of one decision restricts the variable's domain (tensor parallelism within a node). A rule of several
decisions becomes the assignments that it allows or forbids, whichever are fewer. The number of devices is a variable,
the product of the degrees. A rule of many decisions with many values is tabulated over the combinations in the cost
tables.

The cost of strategies is held in two tables. One has the memory of each combination of the decisions that memory
depends on. The other has the ticks of each of those combinations with the remaining decisions, such as overlaps. Both
hold only strategies within a cut of the objective: without the cut such tables do not finish, with it they take
milliseconds. The caller reports the omitted strategies.

Combinations of the settings that a job leaves open are parts of one model, and so are all devices and fewer nodes. Each
part has facts and rules of its own; the part and its settings are variables. A constraint that all parts share is
posted once, another one is enforced in its part alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np

from constraints.cp_sat import Candidates, Capacity, cp_model
from constraints.relations import (
    DERIVED,
    MAX_CELLS,
    Flags,
    Ints,
    cast_values,
    names_of,
    narrow,
    tabulate_microbatches,
)
from constraints.rule import Rule, sentence
from constraints.rules import physics
from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.tables import Facts, distinct, tabulate

MAX_VALUE = 2**31
"""Largest value of a decision: products of several stay within the solver's 64 bits where a rule bounds them."""

PART, SIZE = "part", "num_devices"
"""Variables of the part that a strategy belongs to, a column of cost tables as well, and of its number of devices."""

ALLOW, FORBID, AT_MOST = "allow", "forbid", "at most"
"""Kinds of constraints: assignments that some variables may have, or may not; the largest value of one variable."""

DEGREES = ("tp", "cp", "pp", "dp")
"""Decisions whose product is the number of devices."""

Variables: TypeAlias = "dict[str, cp_model.IntVar]"


@record(frozen=True, kw_only=True, slots=True)
class Part:
    """
    Part of a model: the strategies with one combination of settings.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    rules
        Rules on the decisions, except those of memory.
    capacity
        Memory; None: there are no cost tables.
    settings
        Values of the settings that the job leaves open; each becomes a variable.
    """

    facts: Facts
    rules: Sequence[Rule]
    capacity: Capacity | None = None
    settings: Mapping[str, object] = field(default_factory=dict)


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
    def build(cls, candidates: Candidates, others: Iterable[str], parts: Ints | None = None) -> CostTables:
        """Divide strategies into their memory, by part and all decisions but ``others``, and their step time."""
        of_memory = {name: values for name, values in candidates.decisions.items() if name not in set(others)}
        of_memory |= {} if parts is None else {PART: parts}
        device, host = candidates.device_mebibytes, candidates.host_mebibytes
        rows = np.stack([*of_memory.values(), device, host], axis=-1)
        _, first, combination = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return cls(
            combinations={name: values[first] for name, values in of_memory.items()},
            device_mebibytes=device[first],
            host_mebibytes=host[first],
            combination=combination.reshape(-1),
            others={name: values for name, values in candidates.decisions.items() if name not in of_memory},
            ticks=candidates.ticks,
        )

    @property
    def domains(self) -> dict[str, Ints]:
        """Values of each decision that occur in the tables."""
        return {name: distinct(values) for name, values in (*self.combinations.items(), *self.others.items())}

    def columns(self, names: Iterable[str]) -> dict[str, Ints]:
        """Return the values of some decisions of each strategy."""
        known = self.combinations
        return {name: known[name][self.combination] if name in known else self.others[name] for name in names}


MEMORY: Mapping[str, Rule] = {
    "device_mebibytes": physics.fits_in_device_memory,
    "host_mebibytes": physics.fits_in_host_memory,
}
"""Variables that a rule of memory bounds."""


class JointModel:
    """
    The CP-SAT model of a value per decision, all rules and, with cost tables, memory and the least step up to a cut.

    ``model`` is CP-SAT's. ``variables`` are one per decision, and one for the number of micro-batches. ``num_rules``
    counts the rules in the model, and ``num_constraints`` the constraints made from them, of several parts the most of
    one. The other rules are domains of variables, or hold for all remaining values. ``num_combinations`` counts the
    rows of the memory's table.

    Parameters
    ----------
    parts
        Facts and rules; of several parts the tables have the column ``PART``.
    domains
        Values of each decision, ascending.
    tables
        Costs of strategies; without them the model holds only the rules and has no objective.
    cut
        Largest step time in ticks; required with tables.
    ranks
        Rank of each strategy of the tables, shape (E,); the least rank is chosen, then the least step time.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        domains: Mapping[str, Ints],
        tables: CostTables | None = None,
        *,
        cut: int = 0,
        ranks: Ints | None = None,
    ) -> None:
        self.parts, self.tables = parts, tables
        self.model = cp_model.CpModel()
        self.variables: Variables = {}
        self.waiting: dict[tuple[str, tuple[str, ...], bytes, str], tuple[Ints, set[int]]] = {}
        self.num_rules = max(len(part.rules) for part in parts) + (0 if tables is None else len(MEMORY))
        self.num_constraints = 0
        self.num_combinations = 0 if tables is None else len(tables.device_mebibytes)
        integers = {name: _integers(name, values) for name, values in domains.items() if name != PART}
        max_cells = 0 if tables is None else MAX_CELLS
        narrowed = [narrow(part.facts, part.rules, integers, max_cells) for part in parts]
        self.possible = [number for number, (left, _, _) in enumerate(narrowed) if all(map(len, left.values()))]
        if not self.possible:
            self.model.add_bool_or([]).with_name("no value is left of a decision")
            return
        left = [narrowed[part][0] for part in self.possible]
        names = dict.fromkeys(name for values in left for name in values)
        every = {name: np.concatenate([values[name] for values in left if name in values]) for name in names}
        self.domains = {name: distinct(values) for name, values in every.items()}
        self.add_variables()
        self.add_sizes()
        for part in self.possible:
            values, relations, wide = narrowed[part]
            rest = (one.restrict(values) for one in relations)
            binding = [one for one in rest if not one.holds.all()]
            self.num_constraints = max(self.num_constraints, len(binding) + len(wide))
            self.add_domains(part, values)
            for relation in binding:
                grid = np.meshgrid(*relation.values.values(), indexing="ij")
                columns = {name: values.ravel() for name, values in zip(relation.values, grid, strict=True)}
                self.add_rule(part, relation.rule, columns, relation.holds.ravel())
            for rule in wide:
                self.add_wide(part, rule)
        if tables is not None:
            self.add_costs(tables, cut, ranks)
        self.make_waiting()

    def forbid(self, values: Mapping[str, int]) -> None:
        """Forbid some values of decisions together, so that the next solution has others."""
        chosen = [self.variables[name] for name in values]
        self.model.add_forbidden_assignments(chosen, [tuple(values.values())]).with_name("another group is asked for")

    def add_variables(self) -> None:
        """Add a variable per decision, and of several parts one for the part and one per open setting."""
        for name, values in self.domains.items():
            self.add_variable(name, values)
        if len(self.parts) == 1:
            return
        columns = {PART: np.array(self.possible)}
        columns |= {f"{PART} {part}": (columns[PART] == part).astype(np.int64) for part in self.possible}
        for name in self.parts[0].settings:
            of_parts = [part.settings[name] for part in self.parts]
            columns[name] = np.array([of_parts.index(of_parts[part]) for part in self.possible])
        for name, values in columns.items():
            self.add_variable(name, values)
        self.allow(columns, "settings of a part")

    def add_variable(self, name: str, values: Ints) -> None:
        """Add a variable that has one of some values."""
        self.variables[name] = self.model.new_int_var_from_domain(cp_model.Domain.from_values(values.tolist()), name)

    def add_domains(self, part: int, left: Mapping[str, Ints]) -> None:
        """Restrict the decisions of a part to its values; the number of micro-batches is a function of dp and mbs."""
        for name, values in left.items():
            if len(values) < len(self.domains[name]):
                self.post(part, ALLOW, (name,), values[:, None], name)
        if DERIVED in left:
            table = tabulate_microbatches(self.parts[part].facts, left)
            dp, mbs = np.meshgrid(left["dp"], left["mbs"], indexing="ij")
            rows = np.stack([dp, mbs, table], axis=-1).reshape(-1, 3)
            self.post(part, ALLOW, ("dp", "mbs", DERIVED), rows, DERIVED)

    def add_rule(self, part: int, rule: Rule, columns: Mapping[str, Ints], holds: Flags) -> None:
        """Add a rule as the assignments that it allows or forbids, whichever are fewer; its sizes are added before."""
        if not sizes_of(rule, self.parts[part].facts):
            rows, few = np.stack(list(columns.values()), axis=-1), holds.sum() <= len(holds) // 2
            chosen = rows[holds if few else ~holds]
            self.post(part, ALLOW if few else FORBID, tuple(columns), chosen, sentence(rule))

    def add_wide(self, part: int, rule: Rule) -> None:
        """Add a rule of many combinations over those in the cost tables."""
        assert self.tables is not None
        names = names_of(rule)
        asked = [name for name in names if name != DERIVED] + (["dp", "mbs"] if DERIVED in names else [])
        columns = self.tables.columns(dict.fromkeys(asked))
        rows = np.unique(np.stack(list(columns.values()), axis=-1), axis=0)
        decisions = {name: cast_values(name, values) for name, values in zip(columns, rows.T, strict=True)}
        holds = np.asarray(tabulate(rule, self.parts[part].facts, decisions))
        self.add_rule(part, rule, dict(zip(columns, rows.T, strict=True)), np.broadcast_to(holds, len(rows)))

    def add_sizes(self) -> None:
        """Add the number of devices, the product of the degrees, with the rules that restrict it alone."""
        sizes = [
            (part, sentence(rule), allowed)
            for part in self.possible
            for rule in self.parts[part].rules
            if (allowed := sizes_of(rule, self.parts[part].facts))
        ]
        if not sizes:
            return
        least, most = (of(of(allowed) for *_, allowed in sizes) for of in (min, max))
        self.variables[SIZE] = self.model.new_int_var(least, most, SIZE)
        factors = [self.variables[name] for name in DEGREES]
        self.model.add_multiplication_equality(self.variables[SIZE], factors).with_name(SIZE)
        for part, name, allowed in sizes:
            is_bound = isinstance(allowed, range) and allowed[0] == 1
            rows = np.array([allowed[-1:]] if is_bound else [[size] for size in allowed])
            self.post(part, AT_MOST if is_bound else ALLOW, (SIZE,), rows, name)

    def add_costs(self, tables: CostTables, cut: int, ranks: Ints | None) -> None:
        """Add the two tables, the memory limits, the objective and its cut."""
        if not len(tables.ticks):
            self.model.add_bool_or([]).with_name("no strategy is within the cut and the memory")
            return
        of_combination = dict(tables.combinations)
        for name, rule in MEMORY.items():
            values = of_combination[name] = getattr(tables, name)
            self.variables[name] = self.model.new_int_var(int(values.min()), int(values.max()), name)
            for part in self.possible:
                room = getattr(self.parts[part].capacity, name)
                self.post(part, AT_MOST, (name,), np.array([[room]]), sentence(rule))
        number = np.arange(len(tables.device_mebibytes))
        self.variables["combination"] = self.model.new_int_var(0, len(number) - 1, "combination")
        self.variables["ticks"] = self.model.new_int_var(int(tables.ticks.min()), int(tables.ticks.max()), "ticks")
        self.allow({"combination": number, **of_combination}, "memory")
        ticks, of_strategy = self.variables["ticks"], {"combination": tables.combination, **tables.others}
        objective: cp_model.LinearExprT = ticks
        if ranks is not None:
            rank = self.variables["rank"] = self.model.new_int_var(int(ranks.min()), int(ranks.max()), "rank")
            of_strategy["rank"] = ranks
            objective = rank * (int(np.ptp(tables.ticks)) + 1) + ticks
        self.allow({**of_strategy, "ticks": tables.ticks}, "step time")
        self.model.add(ticks <= cut).with_name("the cut of the objective")
        self.model.minimize(objective)

    def allow(self, columns: Mapping[str, Ints], name: str) -> None:
        """Allow only the given assignments of some variables in all parts."""
        self.add(ALLOW, tuple(columns), np.stack(list(columns.values()), axis=-1), name)

    def post(self, part: int, kind: str, names: tuple[str, ...], rows: Ints, name: str) -> None:
        """Note a constraint of a part; equal ones of several parts are made once."""
        if kind != FORBID or len(rows):
            self.waiting.setdefault((kind, names, rows.tobytes(), name), (rows, set()))[1].add(part)

    def make_waiting(self) -> None:
        """Make the constraints, those that not all parts have for their parts alone."""
        for (kind, names, _, name), (rows, parts) in self.waiting.items():
            if len(parts) == len(self.possible):
                self.add(kind, names, rows, name)
                continue
            for part in sorted(parts):
                self.add(kind, names, rows, name).only_enforce_if(self.variables[f"{PART} {part}"])

    def add(self, kind: str, names: tuple[str, ...], rows: Ints, name: str) -> cp_model.Constraint:
        """Add a constraint to the model."""
        chosen = [self.variables[one] for one in names]
        if kind == AT_MOST:
            return self.model.add(chosen[0] <= int(rows[0, 0])).with_name(name)
        table = self.model.add_allowed_assignments if kind == ALLOW else self.model.add_forbidden_assignments
        return table(chosen, rows.tolist()).with_name(name)


def sizes_of(rule: Rule, facts: Facts) -> Sequence[int] | None:
    """Return the numbers of devices that a rule allows, where it depends on nothing else; else None."""
    if rule is physics.degrees_multiply_to_the_devices:
        return (facts.cluster.num_devices,)
    return getattr(rule, "sizes", None)


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
