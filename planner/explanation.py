"""
Explain that nothing fits.

The explanation looks at a wider space than the search: the rules of the job, of frameworks and of memory may be broken
there, and values that the job insists on stand beside those that the search would try. The other rules of physics hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from constraints import PHYSICS_RULES
from constraints.classes import Classes
from constraints.conflict import (
    Conflict,
    contains_one_of,
    hitting_sets,
    necessary,
    smallest_sets,
    sorted_by_text,
)
from constraints.limits import limited
from constraints.rule import Rule, sentence
from costmodel.strategy import OVERLAPS, Strategy
from costmodel.tables import tabulate
from planner.candidates import MemoryFunction, fits, mode_memory
from planner.problem import Problem
from planner.space import (
    FEATURE_VALUES,
    FEATURES,
    WORLD,
    Columns,
    Rules,
    Space,
    allowed_features,
    classify_features,
    column,
    default_domains,
    grow,
    needs,
    problem_rules,
    spread,
    strategy_of,
)

MAX_STRAYS = 16
"""Values outside a degree's own domain that the explanation looks at."""

MAX_REPAIRS = 16
"""Repairs and conflicts that are listed."""

SAMPLE_ROWS = 64
"""Rows of a class that are tried first."""

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
    repairs = _Relaxation(problem, rules, memory).repairs()
    releases = [repair for repair in repairs if repair <= set(rules.limits)]
    conflicts = hitting_sets(repairs)[:MAX_REPAIRS]
    shortage = _shortage(problem, space, memory)
    return Conflict(
        exclusive=tuple(_sentences(_with_physics(problem, rules, conflict)) for conflict in conflicts),
        repairs=tuple(_sentences(repair) for repair in repairs[:MAX_REPAIRS]),
        release=_sentences(releases[0]) if releases else (),
        shortage_bytes=shortage.device_bytes if shortage else None,
        host_shortage_bytes=shortage.host_bytes if shortage else None,
        closest=shortage.strategy if shortage else None,
    )


def _sentences(rules: Iterable[Rule]) -> tuple[str, ...]:
    return tuple(sentence(rule) for rule in sorted_by_text(rules))


# --- repairs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """Candidates of one class of rows that break the same rules, memory apart, and the modes in which they do."""

    row_class: int
    broken: RuleSet
    modes: NDArray[np.bool_]


class _Relaxation:
    """The wider space, and what its candidates break."""

    def __init__(self, problem: Problem, rules: Rules, memory: MemoryFunction) -> None:
        self.problem = problem
        self.facts = problem.facts
        self.rules = rules
        self.memory = memory
        fixed = set(PHYSICS_RULES)
        replicas = limited(pin=problem.search.pin, allow=problem.search.allow).get("dp", ())
        self.rows, row_classes = grow(
            self.facts,
            relaxed_domains(problem),
            rules.rows,
            tolerate=[rule for rule in rules.rows if rule not in fixed],
            replicas=replicas,
        )
        self.features: Columns = {name: column(name, FEATURE_VALUES[name]) for name in FEATURES}
        self.classes = classify_features(self.facts, self.rows, self.features, rules.mixed, row_classes)

    def repairs(self) -> list[RuleSet]:
        """The smallest sets of rules that a candidate breaks."""
        repairs: list[RuleSet] = []
        entries = sorted(self.entries(), key=lambda entry: len(entry.broken))
        for size in sorted({len(entry.broken) for entry in entries}):
            level = [entry for entry in entries if len(entry.broken) == size]
            for limit in (SAMPLE_ROWS, None):
                level = [entry for entry in level if not contains_one_of(entry.broken, repairs)]
                fits = self.resources({entry.row_class for entry in level}, limit)
                found = [entry.broken | lacking for entry in level for lacking in _lacking(entry, fits, self.rules)]
                complete = found if limit is None else [one for one in found if not one & set(self.rules.memory)]
                repairs = smallest_sets([*repairs, *complete])
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
            if rule in PHYSICS_RULES:
                possible &= holds
            else:
                cells = cells.refine(~holds.ravel(), rule)
        num_overlaps = 2 ** len(OVERLAPS)
        broken = np.where(possible, cells.index.reshape(shape), -1).reshape(len(used), -1, num_overlaps)
        for position, row_class_index in enumerate(used.tolist()):
            for cell in np.unique(broken[position]).tolist():
                if cell >= 0:
                    yield _Entry(
                        row_class=row_class_index,
                        broken=self.classes.broken[row_class_index] | cells.broken[cell],
                        modes=(broken[position] == cell).any(axis=1),
                    )

    def resources(self, row_classes: set[int], limit: int | None) -> dict[int, NDArray[np.bool_]]:
        """
        For each class of rows, mode and resource (device, host) which combinations of "fits" occur.

        Shape (modes, 2, 2): device does not fit or does, host does not fit or does.
        """
        seen: dict[int, NDArray[np.bool_]] = {}
        members = [
            np.flatnonzero(self.classes.index == one)[:: _stride(self.classes, one, limit)] for one in row_classes
        ]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *members])
        for chunk in np.split(rows, range(CHUNK_ROWS, len(rows), CHUNK_ROWS)):
            if not len(chunk):
                continue
            degrees = {name: values[chunk] for name, values in self.rows.items()}
            used = mode_memory(self.facts, degrees, self.features, self.memory)
            fit = fits(self.facts, self.rules, used, self.problem.search.memory_headroom_bytes)
            device, host = fit.device, fit.host
            occurs = np.stack([~device & ~host, ~device & host, device & ~host, device & host], axis=-1)
            for one in np.unique(self.classes.index[chunk]).tolist():
                mine = occurs[self.classes.index[chunk] == one].any(axis=0).reshape(-1, 2, 2)
                seen[one] = seen[one] | mine if one in seen else mine
        return seen


def _stride(classes: Classes, one: int, limit: int | None) -> int:
    return 1 if limit is None else max(1, int((classes.index == one).sum()) // limit)


def _lacking(entry: _Entry, seen: Mapping[int, NDArray[np.bool_]], rules: Rules) -> Iterator[RuleSet]:
    """The memory rules that some candidates of the entry break."""
    occurs = np.logical_or.reduce(seen[entry.row_class][entry.modes], axis=0)
    of_device = frozenset(rule for rule in rules.memory if "device_bytes" in needs(rule))
    of_host = frozenset(rule for rule in rules.memory if "host_bytes" in needs(rule))
    for device_fits in (1, 0):
        for host_fits in (1, 0):
            if occurs[device_fits, host_fits]:
                yield (frozenset() if device_fits else of_device) | (frozenset() if host_fits else of_host)


def relaxed_domains(problem: Problem) -> Columns:
    """Values of each degree: all that could make sense, and what the job insists on."""
    rules = problem_rules(problem).rows
    chosen = limited(pin=problem.search.pin, allow=problem.search.allow)
    domains = {}
    for name, values in default_domains(problem.facts).items():
        own = column(name, values)
        for rule in rules:
            if needs(rule) == {name} and rule in PHYSICS_RULES:
                own = own[np.broadcast_to(np.asarray(tabulate(rule, problem.facts, {name: own})), own.shape)]
        strays = [value for value in chosen.get(name, ()) if value not in own][:MAX_STRAYS]
        domains[name] = column(name, [*own.tolist(), *strays])
    return domains


# --- conflicts ---------------------------------------------------------------------------------------------


def _with_physics(problem: Problem, rules: Rules, conflict: RuleSet) -> list[Rule]:
    """A conflict with the rules of physics that it needs; one that names memory would need nearly all of them."""
    if conflict & set(rules.memory):
        return list(conflict)
    physics = [rule for rule in (*rules.rows, *rules.mixed) if rule in PHYSICS_RULES]
    own = set().union(*(needs(rule) for rule in conflict))
    near = [rule for rule in physics if needs(rule) & own]

    def satisfiable(some: Sequence[Rule]) -> bool:
        return _satisfiable(problem, [*conflict, *some])

    return [*conflict, *necessary(physics if satisfiable(near) else near, satisfiable)]


def _satisfiable(problem: Problem, rules: Sequence[Rule]) -> bool:
    """Whether some degrees and features satisfy some rules together; what no rule names has any one value."""
    named: set[str] = set().union(*(needs(rule) for rule in rules))
    named |= WORLD if "dp" in named else set()
    domains = {n: values if n in named else values[:1] for n, values in relaxed_domains(problem).items()}
    features = {n: column(n, FEATURE_VALUES[n] if n in named else FEATURE_VALUES[n][:1]) for n in FEATURES}
    replicas = limited(pin=problem.search.pin, allow=problem.search.allow).get("dp", ())
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
    The strategy that lacks least memory of all that satisfy the other rules.

    The closest one lacks the fewest bytes on device and host together; of equals the first in the order of the rows.
    """
    device = problem.facts.cluster.device
    capacity = device.memory_bytes - problem.search.memory_headroom_bytes
    best: _Shortage | None = None
    for start in range(0, space.num_rows, CHUNK_ROWS):
        box = space.box(np.arange(start, min(start + CHUNK_ROWS, space.num_rows)))
        used = mode_memory(problem.facts, box.degrees, box.features, memory)
        overlaps = box.allowed.reshape(*used.device_bytes.shape, -1)
        lacking_device = np.maximum(used.device_bytes - capacity, 0.0)
        lacking_host = np.maximum(used.host_bytes - device.host_memory_bytes, 0.0)
        lacking = np.where(overlaps.any(axis=-1), lacking_device + lacking_host, np.inf)
        row, mode = np.unravel_index(lacking.argmin(), lacking.shape)
        if best is None or lacking[row, mode] < best.device_bytes + best.host_bytes:
            values = box.values(int(row), int(mode), int(overlaps[row, mode].argmax()))
            best = _Shortage(
                device_bytes=float(lacking_device[row, mode]),
                host_bytes=float(lacking_host[row, mode]),
                strategy=strategy_of(values),
            )
    return best
