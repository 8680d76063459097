"""
Explain that no strategy fits.

The explanation covers a wider space than the search. The rules of the job, of frameworks and of memory, and the
search's preferences may be broken there. It has the values that the job asks for and the values that the search would
try. The other rules of physics hold. In a large space at most one preference or rule of a framework is broken, and
sets of rules that exclude each other are those of strategies that break none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from math import ceil, prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from constraints import PHYSICS_RULES, PREFERENCE_RULES
from constraints.conflict import (
    MAX_CONFLICTS,
    Classes,
    Conflict,
    SmallestCluster,
    contains_one_of,
    hitting_sets,
    necessary,
    smallest_sets,
    sort_by_text,
)
from constraints.limits import unless
from constraints.rule import Holds, Ints, Rule, sentence
from constraints.rules import physics
from costmodel.events import log_event
from costmodel.models.flops import parameters
from costmodel.record import record
from costmodel.strategy import OVERLAPS, Strategy
from costmodel.tables import Facts, tabulate
from planner.jobs.problem import Problem
from planner.search.alternatives import AlternativeOutcome, JointOutcome
from planner.search.branch_and_bound import SHORTEST_SECONDS, Outcome, Status
from planner.search.candidates import (
    OWN,
    CostTable,
    Formulas,
    Memory,
    MemoryFunction,
    fits,
    least_memory,
    memory_only,
    mode_memory,
)
from planner.search.domains import (
    FEATURES,
    ROW_DECISIONS,
    SEARCH_BOUNDS,
    Columns,
    Rules,
    cheap_recompute,
    column,
    default_domains,
    default_features,
    default_microbatch_groups,
    divisors,
    feature_values,
    free_replicas,
    job_choices,
    job_values,
    most_tp,
    needs,
    row_domains,
)
from planner.search.questions import search
from planner.search.solver import Clock, OutOfTimeError
from planner.search.space import FeatureSplit, Space, classify_features, grow, space_of, spread, tabulate_features
from planner.uncertainty.peaks import usual_headroom_bytes
from planner.verbs.memory_gap import MemoryGap, chunks, closest, first_that_fits, least_host_bytes, least_lacking

MOST_TIMES = 16
"""Largest size that is tried, as a multiple of the job's own."""

MOST_NODES, GROWTH = 32, 1 / 16
"""Nodes of a range of sizes whose rows grow together, at least and as a part of its first; affects memory only."""


def smallest_cluster(problem: Problem, rules: Rules, memory: MemoryFunction, clock: Clock) -> SmallestCluster[Strategy]:
    """Search the smallest cluster, of at most ``MOST_TIMES`` the job's devices, on which a strategy fits."""
    tried, half = 0, Clock(seconds=clock.seconds_left / 2)
    enough_for_states = _fewest_devices(problem) if memory is memory_only else 1
    for fewest, most in _ranges(problem, MOST_TIMES * problem.facts.cluster.num_devices):
        if most < enough_for_states:
            tried = most
            continue
        try:
            found = _smallest_of(problem, rules, memory, (fewest, most), half)
        except OutOfTimeError:
            enough = _enough(problem, rules, memory, clock)
            return SmallestCluster(
                num_devices=None,
                strategy=None,
                num_devices_tried=tried,
                num_devices_enough=enough,
                time_ran_out=True,
            )
        if found:
            size = found.num_devices
            within = _largest_within(problem, rules, memory, size, clock)
            return SmallestCluster(num_devices=size, strategy=found, num_devices_tried=size, num_devices_within=within)
        tried = most
    return SmallestCluster(num_devices=None, strategy=None, num_devices_tried=tried)


def _fewest_devices(problem: Problem) -> int:
    """
    Return a lower bound of the devices on which the job fits.

    Derivation: weights and gradients never leave the devices, and each lies on one of them at least. Optimizer states
    may be on the host.
    """
    device = problem.facts.cluster.device
    precision = problem.facts.workload.precision.adapt_to(device.silicon)
    of_weight = min(precision.weight_bytes, precision.wide_weight_bytes)
    nbytes = parameters(problem.facts.model) * (of_weight + precision.gradient_bytes)
    return ceil(nbytes / max(device.memory_bytes - problem.search.memory_headroom_bytes, 1.0))


def _largest_within(problem: Problem, rules: Rules, memory: MemoryFunction, smallest: int, clock: Clock) -> int | None:
    """Return the largest size below the job's own on which a strategy fits; None where time runs out."""
    ranges = [span for span in _ranges(problem, problem.facts.cluster.num_devices - 1) if span[1] >= smallest]
    with suppress(OutOfTimeError):
        for fewest, most in reversed(ranges):
            found = _smallest_of(problem, rules, memory, (fewest, most), clock, largest=True)
            if found:
                return found.num_devices
    return None


def _enough(problem: Problem, rules: Rules, memory: MemoryFunction, clock: Clock) -> int | None:
    """Return the first doubling of the job's devices on which a strategy fits; None without one or without time."""
    node, size = problem.facts.cluster.device.devices_per_node, problem.facts.cluster.num_devices
    with suppress(OutOfTimeError):
        while (size := 2 * size) <= MOST_TIMES * problem.facts.cluster.num_devices:
            is_whole = size < node or size % node == 0
            if is_whole and _smallest_of(problem, rules, memory, (size, size), clock):
                return size
    return None


def _smallest_of(
    problem: Problem,
    rules: Rules,
    memory: MemoryFunction,
    sizes: tuple[int, int],
    clock: Clock,
    *,
    largest: bool = False,
) -> Strategy | None:
    """Return a strategy that fits on the smallest (or ``largest``) possible size of a range; None without one."""
    clock.require()
    problem = problem.change_cluster(num_devices=sizes[1])
    space = _space(problem, rules, *sizes)
    num_devices = np.prod([space.rows[name] for name in ("tp", "cp", "pp", "dp")], axis=0)
    hopeful = _hopeful(problem, space, memory, clock)
    order = np.argsort(num_devices[hopeful] * (-1 if largest else 1), kind="stable")
    return first_that_fits(problem, space, memory, hopeful[order], clock)


def _hopeful(problem: Problem, space: Space, memory: MemoryFunction, clock: Clock) -> NDArray[np.int64]:
    """
    Return the rows that a lower bound of their memory does not exclude.

    Rows that differ in ``dp`` alone are excluded together with the largest ``dp``. More replicas share states and have
    fewer micro-batches each, so memory falls with ``dp``.
    """
    key = np.zeros(space.num_rows, dtype=np.int64)
    for name in (name for name in ROW_DECISIONS if name != "dp"):
        values, index = np.unique(space.rows[name], return_inverse=True)
        key = key * max(len(values), 1) + index
    order = np.lexsort([-space.rows["dp"], key])
    _, first, family = np.unique(key[order], return_index=True, return_inverse=True)
    largest = order[first]
    may_fit = least_lacking(problem, space, largest, memory, clock) == 0
    if len(largest) == space.num_rows:
        return np.asarray(largest[may_fit])
    left = order[may_fit[family]]
    return np.asarray(left[least_lacking(problem, space, left, memory, clock) == 0])


def _ranges(problem: Problem, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the smallest and largest size of each range up to a limit: single devices, then more and more nodes."""
    node = problem.facts.cluster.device.devices_per_node
    for size in range(1, min(node, limit + 1)):
        yield size, size
    first, nodes = 1, 1
    while first * node <= limit:
        last = min(first + nodes - 1, limit // node)
        yield first * node, last * node
        first, nodes = last + 1, min(2 * nodes, max(MOST_NODES, int(last * GROWTH)))


def _space(problem: Problem, rules: Rules, fewest: int, most: int) -> Space:
    """Build the space of strategies for whole numbers of nodes in a range; below a node, for one size."""
    sized = (_fills_whole_nodes(problem.facts, fewest, most), _leaves_devices(most))
    of_rows = [*sized, *(rule for rule in rules.rows if rule is not physics.degrees_multiply_to_the_devices)]
    domains = _domains(problem, of_rows, most)
    grown, _ = grow(problem.facts, domains, of_rows, tolerate=(), replicas=domains["dp"].tolist())
    rows = {name: grown[name] for name in ROW_DECISIONS}
    return space_of(problem.facts, rules, rows, feature_values(problem), raw_size=0).keep_largest_sets()


def _fills_whole_nodes(facts: Facts, fewest: int, most: int) -> Rule:
    step = min(facts.cluster.device.devices_per_node, most)

    def holds(*, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Holds:
        """The strategy fills a whole number of nodes within the searched range."""
        size = tp * cp * pp * dp
        return (fewest <= size) & (size <= most) & (size % step == 0)

    return holds


def _leaves_devices(most: int) -> Rule:
    def holds(*, tp: Ints, cp: Ints, pp: Ints) -> Holds:
        """The degrees take at most the devices that there are."""
        return tp * cp * pp <= most

    return holds


def _domains(problem: Problem, rules: Sequence[Rule], most: int) -> Columns:
    """Return the values of each degree that some rules allow, for any number of devices up to the largest."""
    sizes = np.arange(1, most + 1)
    scale_up = sizes[: most_tp(problem)]
    has_experts = len(default_domains(problem.facts)["etp"]) > 1
    free = {"tp": scale_up, "cp": sizes, "pp": sizes, "dp": sizes, **({"etp": scale_up} if has_experts else {})}
    domains = row_domains(problem)
    others = {name: domains[name] for name in ("mbs", "vpp")}
    left = {name: _filter_values(problem.facts, rules, name, values, others) for name, values in free.items()}
    return domains | left | ({} if "group" in job_choices(problem) else default_microbatch_groups(left["pp"]))


def _filter_values(
    facts: Facts, rules: Sequence[Rule], name: str, values: NDArray[np.int64], others: Columns
) -> NDArray[Any]:
    """Filter values of a degree by rules that need nothing else, or one more decision with few values."""
    for rule in rules:
        other_names = needs(rule) - {name}
        if other_names <= set(others) and len(other_names) < 2 and name in needs(rule):
            grid = {name: values[:, None]} | {other: others[other][None, :] for other in other_names}
            shape = np.broadcast_shapes(*(column.shape for column in grid.values()))
            holds = np.broadcast_to(np.asarray(tabulate(rule, facts, grid)), shape)
            values = values[holds.any(axis=1)]
    return values


WORLD = frozenset({"tp", "cp", "pp", "dp"})

MAX_OUT_OF_DOMAIN = 16

"""Number of values outside a degree's own domain that the explanation covers."""

MAX_LISTED = 16

"""Number of repairs and conflicts that are listed."""

SAMPLE_ROWS = 16

"""Number of rows of a class that are tried first."""

HOPEFUL_ROWS = 16

"""Number of rows of a class with the smallest bounds of memory that are tried before all."""

WIDE_ROWS = 5_000

"""Rows up to which several preferences and rules of frameworks may be broken at once: some two seconds."""

SIZE_SECONDS = 6.0

"""Longest time of the search for the smallest cluster."""

RuleSet: TypeAlias = frozenset[Rule]

Key = TypeVar("Key")


def explain(
    problem: Problem,
    space: Space,
    memory: MemoryFunction,
    *,
    seconds_left: float = np.inf,
) -> Conflict:
    """
    Explain why no strategy fits.

    Parameters
    ----------
    problem
        A problem without a solution.
    space
        Strategies that its rules allow, apart from the memory rules.
    memory
        Formula of the bytes of strategies.
    seconds_left
        Time limit; the conflict lists the parts that were left out.
    """
    clock, rules = Clock(seconds=seconds_left), space.rules
    nearest, is_closest = None, False
    with suppress(OutOfTimeError):
        nearest = closest(problem, space, memory, clock)
        is_closest = nearest is None or nearest.is_proven
    size = smallest_cluster(problem, rules, memory, Clock(seconds=min(SIZE_SECONDS, clock.seconds_left / 2)))
    relaxation = _Relaxation(problem, rules, memory, clock)
    try:
        repairs = relaxation.repairs()
        conflicts = hitting_sets([repair for repair in repairs if not repair & relaxation.one_of])
        listed = conflicts[:MAX_LISTED]
        kept = (relaxation.fixed | relaxation.one_of) & {*rules.preferences, *rules.frameworks}
        exclusive = tuple(_sentences(_add_fixed_rules(problem, rules, conflict, kept)) for conflict in listed)
        left_out = [*_cut(conflicts, "sets of rules that exclude each other"), *_cut(repairs, "smallest repairs")]
        is_cut = False
    except OutOfTimeError:
        repairs, exclusive, is_cut = relaxation.known, (), True
        left_out = ["Time ran out before it was known which rules exclude each other."]
    releases = [_sentences(repair) for repair in repairs if repair and repair <= set(rules.limits)]
    if not is_closest:
        left_out.append("Time ran out before it was known which strategy lacks least memory.")
    needs_host = _memory_rules(rules)[1] in repairs
    return Conflict(
        exclusive=exclusive,
        repairs=tuple(_sentences(repair) for repair in repairs[:MAX_LISTED]),
        release=releases[0] if releases else (),
        releases=tuple(releases[:MAX_LISTED]),
        **_memory_of(problem, nearest),
        needed_host_bytes=least_host_bytes(problem, space, memory, clock) if needs_host else None,
        size=size,
        left_out=tuple(left_out),
        is_cut=is_cut or not is_closest,
    )


def _cut(sets: Sequence[RuleSet], what: str) -> Iterator[str]:
    if len(sets) >= MAX_CONFLICTS:
        yield f"Only {MAX_LISTED} of more than {MAX_CONFLICTS:,} {what} are listed."
    elif len(sets) > MAX_LISTED:
        yield f"Only {MAX_LISTED} of {len(sets):,} {what} are listed."


def _memory_of(problem: Problem, nearest: MemoryGap | None) -> dict[str, Any]:
    """Return the missing memory of the closest strategy, and the memory that is enough for it."""
    if nearest is None:
        return {}
    headroom = problem.search.memory_headroom_bytes
    known: dict[str, Any] = {
        "shortage_bytes": nearest.device_bytes,
        "host_shortage_bytes": nearest.host_bytes,
        "closest": nearest.strategy,
    }
    if nearest.is_proven and not nearest.host_bytes:
        known["needed_bytes"] = _needed_bytes(problem, nearest.device_bytes)
        if 0 < nearest.device_bytes <= headroom:
            known["headroom_bytes"] = headroom - nearest.device_bytes
    return known


def _needed_bytes(problem: Problem, shortage_bytes: float) -> float:
    """
    Return the memory of a device that has no shortage, in bytes.

    Derivation: the usual headroom is a share of the memory, so that both are found by repeated substitution.
    """
    cluster, headroom = problem.facts.cluster, problem.search.memory_headroom_bytes
    peak = cluster.device.memory_bytes + shortage_bytes - headroom
    before = 0.0
    while not problem.search.asks_headroom and headroom - before > 1:
        device, before = replace(cluster.device, memory_bytes=peak + headroom), headroom
        headroom = usual_headroom_bytes(replace(cluster, device=device), problem.facts.model)
    return peak + headroom


def _sentences(rules: Iterable[Rule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentence(rule) for rule in sort_by_text(rules)))


# --- repairs -----------------------------------------------------------------------------------------------
@record(frozen=True, kw_only=True, slots=True)
class _Entry:
    """One class of rows that break the same rules, memory apart, and the modes in which they do."""

    row_class: int
    broken: RuleSet
    modes: NDArray[np.int64]


_Look: TypeAlias = tuple[int, tuple[int, ...] | None]
"""A class of rows, and the modes of the bound by which rows are chosen; None: all of its rows."""


def _bound_modes(split: FeatureSplit, features: Columns) -> NDArray[np.int64]:
    """Return the mode of :func:`planner.search.candidates.least_memory` for each mode of memory."""
    sizes = [len(features[name]) for name in split.modes]
    bound = [1 if name in ("sharding", *OVERLAPS) else size for name, size in zip(split.modes, sizes, strict=True)]
    each = np.unravel_index(np.arange(prod(sizes)), sizes)
    return np.ravel_multi_index([np.minimum(one, size - 1) for one, size in zip(each, bound, strict=True)], bound)


class _Relaxation:
    """The wider space, and the rules that its candidates break."""

    def __init__(self, problem: Problem, rules: Rules, memory: MemoryFunction, clock: Clock) -> None:
        self.problem = problem
        self.clock = clock
        self.facts = problem.facts
        self.rules = rules
        self.memory = memory
        self.known: list[RuleSet] = []
        self.looked_at: dict[_Look, NDArray[np.bool_]] = {}
        self.sampled: dict[int, NDArray[np.bool_]] = {}
        self.tried: dict[int, NDArray[np.bool_]] = {}
        of_device, of_host = _memory_rules(rules)
        self.memory_rules = (of_device | of_host, of_device, of_host, RuleSet())
        self.fixed = {*PHYSICS_RULES, *rules.bounds, *rules.candidate_list}
        self.one_of: RuleSet = RuleSet()
        self.rows, row_classes = self.grow()
        if row_classes.size > WIDE_ROWS:
            self.one_of = RuleSet((*rules.preferences, *rules.frameworks))
            self.rows, row_classes = self.grow()
        self.features = _wide_features(problem)
        self.lifted = tuple(rule for rule in _restore_bounds(problem) if needs(rule) & set(FEATURES))
        self.mixed = (*rules.mixed, *self.lifted)
        classes = classify_features(self.facts, self.rows, self.features, self.mixed, row_classes)
        present, index = np.unique(classes.index, return_inverse=True)
        self.classes = Classes(index=index, broken=tuple(classes.broken[one] for one in present.tolist()))
        first = np.zeros(1, dtype=np.int64)
        used, fold = self.mode_memory(first) if self.classes.size else (None, None)
        self.fold: FeatureSplit | None = fold
        self.num_modes = used.device_bytes.shape[1] if used else 0
        self.bound_modes = _bound_modes(fold, self.features) if fold else np.zeros(0, dtype=np.int64)
        num_bounds = self.bound_modes.max(initial=0) + 1
        self.least_bytes = np.full((self.classes.size, num_bounds), np.nan, dtype=np.float32)

    def grow(self) -> tuple[Columns, Classes]:
        """Return the rows that break none of the fixed rules, and the other rules that each breaks."""
        problem, rules, lifted = self.problem, self.rules, _restore_bounds(self.problem)
        return grow(
            self.facts,
            wide_domains(problem, tuple(rule for rule in (*PHYSICS_RULES, *PREFERENCE_RULES) if rule in self.fixed)),
            [*rules.rows, *(rule for rule in lifted if not needs(rule) & set(FEATURES))],
            tolerate=[rule for rule in rules.rows if rule not in self.fixed],
            replicas=(*job_values(problem).get("dp", ()), *free_replicas(problem)),
            one_of=self.one_of,
        )

    def repairs(self) -> list[RuleSet]:
        """Return the smallest sets of rules that a candidate breaks; those of few rules are known first."""
        if not self.classes.size:
            return []
        every = np.ones((self.classes.count, self.num_modes), dtype=bool)
        unbroken = np.array([not broken for broken in self.classes.broken], dtype=bool)
        table = self.cells()
        first = list(self.entries(table, every & unbroken[:, None]))
        self.known = self.level([entry for entry in first if not entry.broken], [])
        of_device, _ = _memory_rules(self.rules)
        by_size: dict[int, list[_Entry]] = {}
        for entry in self.entries(table, self.fitting_modes() if of_device in self.known else every):
            by_size.setdefault(len(entry.broken), []).append(entry)
        for size in sorted(by_size.keys() - {0}):
            self.known = self.level(by_size[size], self.known)
        return self.known

    def level(self, entries: Sequence[_Entry], repairs: list[RuleSet]) -> list[RuleSet]:
        """Add the smallest sets of rules of some entries, which break equally many, to those of fewer rules."""
        for look in (self.some_of, self.hopeful_of, self.all_of):
            left = [entry for entry in entries if not contains_one_of(entry.broken, repairs)]
            occurs = look(left, repairs)
            lacking = (self.lacking(seen[entry.modes]) for entry, seen in zip(left, occurs, strict=True))
            found = [entry.broken | rules for entry, sets in zip(left, lacking, strict=True) for rules in sets]
            repairs = smallest_sets([*repairs, *found])
        return repairs

    def cells(self) -> tuple[Classes, NDArray[np.int64]]:
        """
        Return the sets of rules that features break, and those of each class of rows.

        The latter has the shape (classes, modes, overlaps); -1: excluded.
        """
        decisions = spread({name: values[self.classes.first] for name, values in self.rows.items()}, self.features)
        shape = (self.classes.count, *(len(values) for values in self.features.values()))
        possible = np.ones(shape, dtype=bool)
        cells = Classes.one(possible.size)
        for rule in self.mixed:
            holds = np.asarray(tabulate(rule, self.facts, decisions))
            if holds.all():
                continue
            if rule in self.fixed or rule in self.lifted:
                possible &= holds
            else:
                cells = cells.refine(~np.broadcast_to(holds, shape).ravel(), rule)
        assert self.fold, "no rows"
        return cells, self.fold.flat(np.where(possible, cells.index.reshape(shape), -1))

    def entries(self, table: tuple[Classes, NDArray[np.int64]], modes: NDArray[np.bool_]) -> Iterator[_Entry]:
        """Yield classes of rows with every set of rules that their features break in some modes, (classes, modes)."""
        (cells, of_classes), numbers = table, np.arange(self.num_modes)[:, None]
        for row_class in np.flatnonzero(modes.any(axis=1)).tolist():
            broken = np.where(modes[row_class][:, None], of_classes[row_class], -1)
            pairs = np.unique(broken * self.num_modes + numbers)
            cell, mode = np.divmod(pairs[pairs >= 0], self.num_modes)
            ends = [*(np.flatnonzero(cell[1:] != cell[:-1]) + 1).tolist(), len(cell)]
            for start, end in zip([0, *ends], ends, strict=False):
                if start < end:
                    sets = self.classes.broken[row_class] | cells.broken[cell[start]]
                    if len(sets & self.one_of) < 2:
                        yield _Entry(row_class=row_class, broken=sets, modes=mode[start:end])

    def fitting_modes(self) -> NDArray[np.bool_]:
        """
        Mark the modes in which a row of each class may fit on the device.

        Once device memory is a repair by itself, sets of rules with others are wanted of these alone.
        """
        fitting = np.zeros((self.classes.count, self.least_bytes.shape[1]), dtype=bool)
        for mode in range(fitting.shape[1]):
            rows = self.may_fit(np.arange(self.classes.size), (mode,))
            fitting[np.unique(self.classes.index[rows]), mode] = True
        return fitting[:, self.bound_modes]

    def mode_memory(self, rows: NDArray[np.int64]) -> tuple[Memory, FeatureSplit]:
        """Return the memory of some rows in every mode."""
        return mode_memory(self.facts, self.degrees(rows), self.features, self.memory)

    def some_of(self, entries: Sequence[_Entry], _: Sequence[RuleSet]) -> list[NDArray[np.bool_]]:
        """Return the observed fits of a few rows of each entry's class, enough to see that most of them fit."""
        members = {one: self.members(one) for one in {entry.row_class for entry in entries} - self.sampled.keys()}
        few = {one: rows[:: max(1, len(rows) // SAMPLE_ROWS)] for one, rows in members.items()}
        self.sampled |= self.occurring(few)
        return [self.sampled[entry.row_class] for entry in entries]

    def hopeful_of(self, entries: Sequence[_Entry], repairs: Sequence[RuleSet]) -> list[NDArray[np.bool_]]:
        """
        Return the observed fits of the few rows of each entry's class whose lower bound of memory is smallest.

        Most classes with a row that fits have it among these, so that their other rows need not be looked at.
        """
        looks = {
            row_class: modes
            for row_class, modes in self.looks(entries, repairs)
            if modes is not None and row_class not in self.tried
        }
        members = {one: self.members(one) for one in looks}
        self.may_fit(np.concatenate([np.zeros(0, dtype=np.int64), *members.values()]), (0,))  # all bounds at once
        few = {}
        for one, modes in looks.items():
            hopeful = members[one][self.may_fit(members[one], modes)]
            least = self.least_bytes[np.ix_(hopeful, np.array(modes))].min(axis=1)
            few[one] = hopeful[np.argsort(least, kind="stable")[:HOPEFUL_ROWS]]
        self.tried |= self.occurring(few)
        return [self.tried.get(entry.row_class, self.sampled[entry.row_class]) for entry in entries]

    def looks(self, entries: Sequence[_Entry], repairs: Sequence[RuleSet]) -> list[_Look]:
        """Return the rows to look at for each entry: all, or those that may fit once a repair of memory is known."""
        of_device, _ = _memory_rules(self.rules)
        return [
            (
                entry.row_class,
                tuple(np.unique(self.bound_modes[entry.modes]).tolist())
                if contains_one_of(entry.broken | of_device, repairs)
                else None,
            )
            for entry in entries
        ]

    def all_of(self, entries: Sequence[_Entry], repairs: Sequence[RuleSet]) -> list[NDArray[np.bool_]]:
        """
        Return the observed fits of all relevant rows of each entry's class.

        Once a repair without device memory is known, rows that certainly lack device memory are skipped.
        """
        looks = self.looks(entries, repairs)
        members = {}
        for row_class, modes in {*looks} - self.looked_at.keys():
            own = self.members(row_class)
            members[row_class, modes] = own if modes is None else own[self.may_fit(own, modes)]
        found = self.occurring(members)
        self.looked_at |= found
        return [self.looked_at[look] for look in looks]

    def lacking(self, occurs: NDArray[np.bool_]) -> Iterator[RuleSet]:
        """Yield the memory rules that candidates break, from the observed fits of their modes."""
        seen = np.logical_or.reduce(occurs, axis=0).ravel().tolist()
        yield from (rules for rules, is_seen in zip(self.memory_rules, seen, strict=True) if is_seen)

    def members(self, row_class: int) -> NDArray[np.int64]:
        """Return the rows of a class."""
        return np.flatnonzero(self.classes.index == row_class)

    def may_fit(self, rows: NDArray[np.int64], modes: Sequence[int]) -> NDArray[np.bool_]:
        """Mark rows whose lower bound of memory fits on the device in one of some modes of the bound."""
        if self.memory is not memory_only:
            return np.ones(len(rows), dtype=bool)
        for chunk in chunks(rows[np.isnan(self.least_bytes[rows, 0])]):
            self.clock.require()
            least = least_memory(self.facts, self.degrees(chunk), self.features)
            fit, _ = fits(self.facts, self.rules, least, self.problem.search.memory_headroom_bytes)
            self.least_bytes[chunk] = np.where(fit, least.device_bytes, np.inf)
        return np.asarray(np.isfinite(self.least_bytes[np.ix_(rows, np.array(modes))]).any(axis=1))

    def degrees(self, rows: NDArray[np.int64]) -> Columns:
        """Return the degrees of some rows."""
        return {name: values[rows] for name, values in self.rows.items()}

    def occurring(self, members: Mapping[Key, NDArray[np.int64]]) -> dict[Key, NDArray[np.bool_]]:
        """
        Return the combinations of "fits" that each group of rows has, by memory mode.

        Shape (modes, 2, 2): the device does not fit or does, the host does not fit or does.
        """
        occurs = {one: np.zeros((self.num_modes, 2, 2), dtype=bool) for one in members}
        answers, names = np.array([False, True]), list(members)
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *members.values()])
        owners = np.repeat(np.arange(len(names)), [len(own) for own in members.values()])
        for chunk, owned in zip(chunks(rows), chunks(owners), strict=True):
            self.clock.require()
            used, _ = self.mode_memory(chunk)
            device, host = fits(self.facts, self.rules, used, self.problem.search.memory_headroom_bytes)
            both = (device[..., None, None] == answers[:, None]) & (host[..., None, None] == answers)
            for one in np.unique(owned).tolist():
                occurs[names[one]] |= both[owned == one].any(axis=0)
        return occurs


def _memory_rules(rules: Rules) -> tuple[RuleSet, RuleSet]:
    """Return the rules of device memory and the rules of host memory."""
    return (
        frozenset(rule for rule in rules.memory if "device_bytes" in needs(rule)),
        frozenset(rule for rule in rules.memory if "host_bytes" in needs(rule)),
    )


def _restore_bounds(problem: Problem) -> Iterator[Rule]:
    """Yield the search's bounds that the job lifts for some values; they hold again if its entries are removed."""
    chosen = job_values(problem)
    yield from (unless(bound, name, chosen[name]) for name, bound in SEARCH_BOUNDS.items() if chosen.get(name))


def _wide_features(problem: Problem) -> Columns:
    """Return the values of each feature: all that the search tries, and those that the job asks for."""
    chosen = job_values(problem)
    return {
        name: column(name, tuple(dict.fromkeys((*values, *chosen.get(name, ())[:MAX_OUT_OF_DOMAIN]))))
        for name, values in _few_features(problem.facts).items()
    }


def _few_features(facts: Facts) -> dict[str, tuple[int, ...]]:
    """Return the values of each feature; of recomputation only those that the search tries first."""
    return default_features(facts) | {"recompute": cheap_recompute(facts.model, facts.cluster.framework)}


def wide_domains(problem: Problem, physics: Sequence[Rule] = PHYSICS_RULES) -> Columns:
    """Return the values of each degree that satisfy some rules alone, and those that the job asks for."""
    defaults = default_domains(problem.facts, problem.search.max_devices, most_tp=most_tp(problem)) | {
        "tp": divisors(problem.facts.cluster.num_devices)
    }
    chosen = job_values(problem)
    domains = {}
    for name, values in defaults.items():
        own = column(name, values)
        for rule in physics:
            if needs(rule) == {name}:
                own = own[np.broadcast_to(np.asarray(tabulate(rule, problem.facts, {name: own})), own.shape)]
        out_of_domain = [value for value in dict.fromkeys(chosen.get(name, ())) if value not in own][:MAX_OUT_OF_DOMAIN]
        domains[name] = column(name, [*own.tolist(), *out_of_domain])
    return domains if "group" in chosen else domains | default_microbatch_groups(domains["pp"])


# --- conflicts ---------------------------------------------------------------------------------------------
def _add_fixed_rules(problem: Problem, rules: Rules, conflict: RuleSet, kept: Set[Rule]) -> list[Rule]:
    """
    Add to a conflict the rules of physics, bounds of the search and kept preferences that it needs.

    A conflict with memory rules would need nearly all of them and stays as it is.
    """
    if conflict & set(rules.memory):
        return list(conflict)
    fixed = {*PHYSICS_RULES, *rules.bounds, *kept}
    fixed_rules = [rule for rule in (*rules.rows, *rules.mixed) if rule in fixed]
    own = set().union(*(needs(rule) for rule in conflict))
    near = [rule for rule in fixed_rules if needs(rule) & own]

    def satisfiable(some: Sequence[Rule]) -> bool:
        return _satisfiable(problem, [*conflict, *some])

    if rules.candidate_list and satisfiable(fixed_rules):
        conflict |= set(rules.candidate_list)
    for enough in (near, fixed_rules):
        if not satisfiable(enough):
            return [*conflict, *necessary(enough, satisfiable)]
    return list(conflict)


def _satisfiable(problem: Problem, rules: Sequence[Rule]) -> bool:
    """Tell whether some rules hold together for any degrees and features; decisions without a rule get one value."""
    named: set[str] = set().union(*(needs(rule) for rule in rules))
    named |= WORLD if "dp" in named else set()
    domains = {n: values if n in named else values[:1] for n, values in wide_domains(problem, rules).items()}
    defaults = _few_features(problem.facts)
    features = {n: column(n, values if n in named else values[:1]) for n, values in defaults.items()}
    replicas = (1, 2, *job_values(problem).get("dp", ()), *free_replicas(problem))
    of_rows = [rule for rule in rules if not needs(rule) & set(FEATURES)]
    rows, _ = grow(problem.facts, domains, of_rows, tolerate=(), replicas=replicas)
    of_features = [rule for rule in rules if needs(rule) & set(FEATURES)]
    return bool(tabulate_features(problem.facts, rows, features, of_features)[1].any())


EXPLANATION_FRACTION = 0.1

"""Least share of the time limit for an explanation."""

EXPLANATION_SECONDS = 15.0

"""Longest time of an explanation, unless a quarter of the time limit is longer."""

BUBBLE_ROWS = 2048

"""Rows whose bubble is tabulated at once; the clock is read between such blocks."""


def search_or_explain(problem: Problem, formulas: Formulas = OWN) -> Outcome:
    """
    Search the best strategies of a problem with proof, or explain why no strategy fits.

    Parameters
    ----------
    problem
        Job to plan.
    formulas
        Formulas of cost; default: the cost model.
    """
    clock = Clock(seconds=problem.search.time_limit_seconds)
    return add_conflict(problem, search(problem, formulas), formulas, clock)


def add_conflict(problem: Problem, outcome: Outcome, formulas: Formulas, clock: Clock) -> Outcome:
    """Add the reason to the result of a search where no strategy fits."""
    if outcome.status != Status.INFEASIBLE:
        return outcome
    return replace(outcome, conflict=_conflict(problem, outcome, formulas, clock.seconds_left))


def _conflict(problem: Problem, outcome: Outcome, formulas: Formulas, seconds_left: float) -> Conflict:
    """Return the reason why no strategy fits; rules of time are the reason if a strategy fits without them."""
    space = outcome.space
    limit = problem.search.time_limit_seconds
    enough = min(max(seconds_left, EXPLANATION_FRACTION * limit), max(EXPLANATION_SECONDS, limit / 4))
    if not space.rules.timed:
        return explain(problem, space.keep_largest_sets(), formulas.memory, seconds_left=enough)
    longest = max(seconds_left, SHORTEST_SECONDS)
    roomy = replace(problem, top=1).change_limits(max_bubble_fraction=None, time_limit_seconds=longest)
    without = search_or_explain(roomy, formulas)
    if not without.strategies:
        no_time = Conflict(exclusive=(), repairs=(), release=(), is_cut=True)
        return without.conflict or no_time
    texts = tuple(sentence(rule) for rule in space.rules.timed)
    return Conflict(
        exclusive=(texts,),
        repairs=(texts,),
        release=texts,
        releases=(texts,),
        least_bubble_fraction=_least_bubble_fraction(problem, outcome, formulas, Clock(seconds=enough)),
    )


def _least_bubble_fraction(problem: Problem, outcome: Outcome, formulas: Formulas, clock: Clock) -> float | None:
    """Return the smallest bubble fraction of a strategy that fits; None where time is short."""
    space, least = outcome.space, np.inf
    table = CostTable.build(problem, space, formulas)
    for start in range(0, space.num_rows, BUBBLE_ROWS):
        if clock.is_over:
            return None
        least = min(least, table.least_bubble(np.arange(start, min(start + BUBBLE_ROWS, space.num_rows))))
    return float(least)


def explain_failure(problem: Problem, joint: JointOutcome, clock: Clock) -> JointOutcome:
    """Add the reason why nothing fits: the conflict of the closest combination, and the missing memory of all."""
    if joint.outcome.status != Status.INFEASIBLE:
        return joint
    log_event(__name__, "nothing fits: reasons are looked for")
    of_each = joint.of_each
    if len(of_each) == 1:
        reason = add_conflict(problem, joint.outcome, OWN, clock)
        return replace(joint, outcome=reason, of_each=(replace(of_each[0], outcome=reason),))
    clock = Clock(seconds=max(clock.seconds_left, EXPLANATION_FRACTION * problem.search.time_limit_seconds))
    gaps = [_gap(one, Clock(seconds=clock.seconds_left / (2 * len(of_each)))) for one in of_each]
    with_gaps = [
        replace(one, shortage_bytes=gap.device_bytes, host_shortage_bytes=gap.host_bytes) if gap else one
        for one, gap in zip(of_each, gaps, strict=True)
    ]
    known = [number for number, gap in enumerate(gaps) if gap]
    nearest = min(known, key=lambda number: (gaps[number].size, number), default=0)  # type: ignore[union-attr]
    chosen = of_each[nearest]
    longest = max(clock.seconds_left, SHORTEST_SECONDS)
    alone = search_or_explain(chosen.problem.change_limits(time_limit_seconds=longest))
    return JointOutcome(
        outcome=replace(alone, effort=joint.outcome.effort),
        problem=chosen.problem,
        ranked=(),
        of_each=tuple(with_gaps),
    )


def _gap(one: AlternativeOutcome, clock: Clock) -> MemoryGap | None:
    """Return the missing memory of a combination's closest strategy; None without one, or where time is short."""
    with suppress(OutOfTimeError):
        return closest(one.problem, one.outcome.space.keep_largest_sets(), OWN.memory, clock)
    return None
