"""
Explain that nothing fits.

The explanation looks at a wider space than the search: the rules of the job, of frameworks and of memory may be broken
there, and values that the job insists on stand beside those that the search would try. The other rules of physics hold,
and so do those of frameworks where the space is large already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from constraints import FRAMEWORK_RULES, PHYSICS_RULES
from constraints.classes import Classes
from constraints.conflict import (
    Conflict,
    contains_one_of,
    hitting_sets,
    necessary,
    smallest_sets,
    sorted_by_text,
)
from constraints.rule import Rule, sentence
from costmodel.strategy import Strategy
from costmodel.tables import tabulate
from planner.candidates import Memory, MemoryFunction, fits, mode_memory
from planner.problem import Problem
from planner.space import (
    FEATURE_VALUES,
    FEATURES,
    WORLD,
    Columns,
    Fold,
    Rules,
    Space,
    allowed_features,
    classify_features,
    column,
    default_domains,
    divisors,
    free_replicas,
    grow,
    insisted_values,
    needs,
    spread,
    strategy_of,
    usual_groups,
)

MAX_STRAYS = 16
"""Values outside a degree's own domain that the explanation looks at."""

MAX_REPAIRS = 16
"""Repairs and conflicts that are listed."""

SAMPLE_ROWS = 64
"""Rows of a class that are tried first."""

WIDE_ROWS = 10_000
"""Rows of the search up to which the rules of frameworks may be broken, too; a matter of time."""

CHUNK_ROWS = 4096
"""Rows whose memory is computed at once."""

RuleSet: TypeAlias = frozenset[Rule]


def explain(problem: Problem, space: Space, memory: MemoryFunction) -> Conflict:
    """
    Why nothing fits.

    Parameters
    ----------
    problem
        A problem without a solution.
    space
        What its rules but those of memory allow.
    memory
        Bytes that strategies take.
    """
    rules = space.rules
    repairs = _Relaxation(problem, rules, memory, space.num_rows).repairs()
    releases = [repair for repair in repairs if repair <= set(rules.limits)]
    conflicts = hitting_sets(repairs)[:MAX_REPAIRS]
    shortage = _shortage(problem, space, memory)
    return Conflict(
        exclusive=tuple(_sentences(_with_rules_behind(problem, rules, conflict)) for conflict in conflicts),
        repairs=tuple(_sentences(repair) for repair in repairs[:MAX_REPAIRS]),
        release=_sentences(releases[0]) if releases else (),
        shortage_bytes=shortage.device_bytes if shortage else None,
        host_shortage_bytes=shortage.host_bytes if shortage else None,
        closest=shortage.strategy if shortage else None,
    )


def _sentences(rules: Iterable[Rule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentence(rule) for rule in sorted_by_text(rules)))


# --- repairs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """Candidates of one class of rows that break the same rules, memory apart, and the modes in which they do."""

    row_class: int
    broken: RuleSet
    modes: NDArray[np.bool_]


class _Relaxation:
    """The wider space, and what its candidates break."""

    def __init__(self, problem: Problem, rules: Rules, memory: MemoryFunction, num_rows: int) -> None:
        self.problem = problem
        self.facts = problem.facts
        self.rules = rules
        self.memory = memory
        self.whole: dict[int, NDArray[np.bool_]] = {}
        self.fixed = {*PHYSICS_RULES, *rules.bounds, *rules.listing, *(FRAMEWORK_RULES if num_rows > WIDE_ROWS else ())}
        replicas = (*insisted_values(problem).get("dp", ()), *free_replicas(problem))
        self.rows, row_classes = grow(
            self.facts,
            relaxed_domains(problem),
            rules.rows,
            tolerate=[rule for rule in rules.rows if rule not in self.fixed],
            replicas=replicas,
        )
        self.features: Columns = {name: column(name, FEATURE_VALUES[name]) for name in FEATURES}
        self.classes = classify_features(self.facts, self.rows, self.features, rules.mixed, row_classes)

    def repairs(self) -> list[RuleSet]:
        """The smallest sets of rules that a candidate breaks."""
        repairs: list[RuleSet] = []
        entries = sorted(self.entries(), key=lambda entry: len(entry.broken))
        for size in sorted({len(entry.broken) for entry in entries}):
            for look in (self.some_of, self.all_of):
                level = [e for e in entries if len(e.broken) == size and not contains_one_of(e.broken, repairs)]
                occurs = look({entry.row_class for entry in level})
                lacking = (_lacking(occurs[entry.row_class][entry.modes], self.rules) for entry in level)
                found = [entry.broken | rules for entry, sets in zip(level, lacking, strict=True) for rules in sets]
                repairs = smallest_sets([*repairs, *found])
        return repairs

    def entries(self) -> Iterator[_Entry]:
        """Every class of rows with every set of rules that its features break."""
        used, row_class = np.unique(self.classes.index, return_inverse=True)
        if not len(used):
            return
        first = np.zeros(len(used), dtype=np.int64)
        first[row_class[::-1]] = np.arange(len(row_class))[::-1]
        decisions = spread({name: values[first] for name, values in self.rows.items()}, self.features)
        shape = (len(used), *(len(values) for values in self.features.values()))
        possible = np.ones(shape, dtype=bool)
        cells = Classes.one(possible.size)
        for rule in self.rules.mixed:
            holds = np.broadcast_to(np.asarray(tabulate(rule, self.facts, decisions)), shape)
            if rule in self.fixed:
                possible &= holds
            else:
                cells = cells.refine(~holds.ravel(), rule)
        _, fold = self.mode_memory(first[:1])
        broken = fold.flat(np.where(possible, cells.index.reshape(shape), -1))
        for position, row_class_index in enumerate(used.tolist()):
            for cell in np.unique(broken[position]).tolist():
                if cell >= 0:
                    yield _Entry(
                        row_class=row_class_index,
                        broken=self.classes.broken[row_class_index] | cells.broken[cell],
                        modes=(broken[position] == cell).any(axis=1),
                    )

    def mode_memory(self, rows: NDArray[np.int64]) -> tuple[Memory, Fold]:
        """Memory of some rows in every mode."""
        degrees = {name: values[rows] for name, values in self.rows.items()}
        return mode_memory(self.facts, degrees, self.features, self.memory)

    def some_of(self, row_classes: set[int]) -> dict[int, NDArray[np.bool_]]:
        """What occurs in a few rows of each class, enough to see that most of them fit."""
        members = {one: np.flatnonzero(self.classes.index == one) for one in row_classes}
        return self.occurring({one: rows[:: max(1, len(rows) // SAMPLE_ROWS)] for one, rows in members.items()})

    def all_of(self, row_classes: set[int]) -> dict[int, NDArray[np.bool_]]:
        """What occurs in all rows of each class."""
        new = {one: np.flatnonzero(self.classes.index == one) for one in row_classes - self.whole.keys()}
        self.whole |= self.occurring(new)
        return self.whole

    def occurring(self, members: Mapping[int, NDArray[np.int64]]) -> dict[int, NDArray[np.bool_]]:
        """
        For some rows of each class, which combinations of "fits" occur in which memory mode.

        Shape (modes, 2, 2): the device does not fit or does, the host does not fit or does.
        """
        occurs = {one: np.zeros((0, 2, 2), dtype=bool) for one in members}
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *members.values()])
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            used, _ = self.mode_memory(chunk)
            fit = fits(self.facts, self.rules, used, self.problem.search.memory_headroom_bytes)
            both = np.stack(
                [
                    np.stack([~fit.device & ~fit.host, ~fit.device & fit.host], axis=-1),
                    np.stack([fit.device & ~fit.host, fit.device & fit.host], axis=-1),
                ],
                axis=-2,
            )
            of_chunk = self.classes.index[chunk]
            for one in np.unique(of_chunk).tolist():
                here = both[of_chunk == one].any(axis=0)
                occurs[one] = occurs[one] | here if len(occurs[one]) else here
        return occurs


def _lacking(occurs: NDArray[np.bool_], rules: Rules) -> Iterator[RuleSet]:
    """The memory rules that candidates break, from what occurs in their modes."""
    of_device = frozenset(rule for rule in rules.memory if "device_bytes" in needs(rule))
    of_host = frozenset(rule for rule in rules.memory if "host_bytes" in needs(rule))
    seen = occurs.any(axis=0)
    for device_fits, host_fits in np.argwhere(seen).tolist():
        yield (frozenset() if device_fits else of_device) | (frozenset() if host_fits else of_host)


def relaxed_domains(problem: Problem, physics: Sequence[Rule] = PHYSICS_RULES) -> Columns:
    """Values of each degree: all that could make sense where some rules hold, and what the job insists on."""
    defaults = default_domains(problem.facts, problem.search.max_devices) | {
        "tp": divisors(problem.facts.cluster.num_devices)
    }
    chosen = insisted_values(problem)
    domains = {}
    for name, values in defaults.items():
        own = column(name, values)
        for rule in physics:
            if needs(rule) == {name}:
                own = own[np.broadcast_to(np.asarray(tabulate(rule, problem.facts, {name: own})), own.shape)]
        strays = [value for value in chosen.get(name, ()) if value not in own][:MAX_STRAYS]
        domains[name] = column(name, [*own.tolist(), *strays])
    return domains if "group" in chosen else domains | usual_groups(domains["pp"])


# --- conflicts ---------------------------------------------------------------------------------------------


def _with_rules_behind(problem: Problem, rules: Rules, conflict: RuleSet) -> list[Rule]:
    """
    A conflict with the rules of physics and the bounds of the search that it needs.

    One that names memory would need nearly all of them, and is left as it is.
    """
    if conflict & set(rules.memory):
        return list(conflict)
    fixed = {*PHYSICS_RULES, *rules.bounds}
    behind = [rule for rule in (*rules.rows, *rules.mixed) if rule in fixed]
    own = set().union(*(needs(rule) for rule in conflict))
    near = [rule for rule in behind if needs(rule) & own]

    def satisfiable(some: Sequence[Rule]) -> bool:
        return _satisfiable(problem, [*conflict, *some])

    if rules.listing and satisfiable(behind):
        conflict |= set(rules.listing)
    return [*conflict, *necessary(behind if satisfiable(near) else near, satisfiable)]


def _satisfiable(problem: Problem, rules: Sequence[Rule]) -> bool:
    """Whether some degrees and features satisfy some rules together; what no rule names has any one value."""
    named: set[str] = set().union(*(needs(rule) for rule in rules))
    named |= WORLD if "dp" in named else set()
    domains = {n: values if n in named else values[:1] for n, values in relaxed_domains(problem, rules).items()}
    features = {n: column(n, FEATURE_VALUES[n] if n in named else FEATURE_VALUES[n][:1]) for n in FEATURES}
    replicas = (1, 2, *insisted_values(problem).get("dp", ()), *free_replicas(problem))
    of_rows = [rule for rule in rules if not needs(rule) & set(FEATURES)]
    rows, _ = grow(problem.facts, domains, of_rows, tolerate=(), replicas=replicas)
    of_features = [rule for rule in rules if needs(rule) & set(FEATURES)]
    return bool(allowed_features(problem.facts, rows, features, of_features)[1].any())


# --- shortage ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shortage:
    """What the strategy that comes closest lacks."""

    device_bytes: float
    host_bytes: float
    strategy: Strategy


def _shortage(problem: Problem, space: Space, memory: MemoryFunction) -> _Shortage | None:
    """
    The strategy that lacks least device memory of all that satisfy the other rules, host memory among them.

    Where none has enough host memory, the one that lacks least in all. Of equals the first in the order of the rows.
    """
    device = problem.facts.cluster.device
    capacity = device.memory_bytes - problem.search.memory_headroom_bytes
    best: tuple[float, float] = (np.inf, np.inf)
    closest: _Shortage | None = None
    for start in range(0, space.num_rows, CHUNK_ROWS):
        box = space.box(np.arange(start, min(start + CHUNK_ROWS, space.num_rows)))
        used, fold = mode_memory(problem.facts, box.degrees, box.features, memory)
        overlaps = fold.flat(box.allowed)
        lacks_device = np.maximum(used.device_bytes - capacity, 0.0)
        lacks_host = np.maximum(used.host_bytes - device.host_memory_bytes, 0.0)
        lacks = np.where(overlaps.any(axis=-1), lacks_device + lacks_host, np.inf)
        for which in (lacks_host == 0, lacks_host > 0):
            row, mode = np.unravel_index(np.where(which, lacks, np.inf).argmin(), lacks.shape)
            key = (float(lacks_host[row, mode] > 0), float(lacks[row, mode]))
            if key < best:
                features = fold.features(box.features, mode, overlaps[row, mode].argmax())
                values = {name: int(degrees[row]) for name, degrees in box.degrees.items()}
                values |= {name: int(value) for name, value in features.items()}
                best, closest = (
                    key,
                    _Shortage(
                        device_bytes=float(lacks_device[row, mode]),
                        host_bytes=float(lacks_host[row, mode]),
                        strategy=strategy_of(values),
                    ),
                )
    return closest
