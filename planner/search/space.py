"""
The space of a problem: every combination of degrees (a row) and features that the rules allow.

Rows grow one degree at a time, and each rule is applied as soon as its decisions are known. Rules of degrees and
features sort the rows into few classes, each with one table of allowed features. The memory rules need the cost of a
strategy and are left to the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.conflict import Classes
from constraints.relations import list_binding
from constraints.rule import Rule
from costmodel.record import record
from costmodel.strategy import (
    DECISIONS,
    ENUMS,
    FLAGS,
    OVERLAPS,
    Recompute,
    Strategy,
)
from costmodel.tables import Facts, present, tabulate
from planner.jobs.problem import Problem
from planner.search.domains import (
    GROWTH,
    ROW_DECISIONS,
    Columns,
    Rules,
    all_replicas,
    fast_enough,
    feature_values,
    free_replicas,
    job_choices,
    needs,
    problem_rules,
    row_domains,
)

TIME_ONLY = ("token_dispatcher", "cuda_graphs", *OVERLAPS)
"""Features that change time alone where the memory has no axis for them."""


@record(frozen=True, kw_only=True, slots=True)
class Space:
    """
    Rows of degrees, and the features of each.

    Parameters
    ----------
    facts
        Facts of the job.
    rules
        Rules that made the space.
    rows
        One value per row for each of ``ROW_DECISIONS``; rows are in ascending order of them.
    features
        Values of each feature, one axis each.
    feature_class
        Index in ``allowed`` of each row's table.
    allowed
        Allowed features of the rows of each class: classes on the first axis, then the features' axes in order.
    raw_size
        Strategies before any rule, the product of the domains; the number of devices and usual groups are left out.
    """

    facts: Facts
    rules: Rules
    rows: Columns
    features: Columns
    feature_class: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    raw_size: int

    @property
    def num_rows(self) -> int:
        """Rows that have at least one allowed combination of features."""
        return len(self.feature_class)

    @property
    def size(self) -> int:
        """Number of complete strategies that satisfy every rule except those of memory."""
        return int(self.row_sizes.sum())

    @property
    def row_sizes(self) -> NDArray[np.int64]:
        """Number of strategies of each row."""
        per_class = self.allowed.sum(axis=tuple(range(1, self.allowed.ndim)), dtype=np.int64)
        return np.asarray(per_class[self.feature_class], dtype=np.int64)

    def groups(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the group of each row by the first few decisions; rows ascend, so a group begins where they change."""
        assert ROW_DECISIONS[: len(names)] == tuple(names)
        columns = np.stack([self.rows[name] for name in names])
        return np.concatenate([[0], np.cumsum((columns[:, 1:] != columns[:, :-1]).any(axis=0))])[: self.num_rows]

    def degrees(self, rows: Any) -> Columns:
        """Return the decisions of some rows, one axis."""
        return {name: values[rows] for name, values in self.rows.items()}

    def allow_everything(self) -> Space:
        """Return the space with every combination of features in each row, whether or not a rule allows it."""
        shape = (1, *self.allowed.shape[1:])
        return replace(self, feature_class=np.zeros_like(self.feature_class), allowed=np.ones(shape, dtype=bool))

    def allows(self, rows: NDArray[np.int64], decisions: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Tell whether the rules allow the features of some strategies, each of one row."""
        at = ((decisions[name][:, None] == values).argmax(axis=1) for name, values in self.features.items())
        return np.asarray(self.allowed[self.feature_class[rows], *at])

    def keep_largest_sets(self) -> Space:
        """
        Return the space without sets of modules to recompute that are part of another set with the same features.

        A strategy that fits with such a set also fits with the larger one, which keeps less.
        """
        values = self.features["recompute"]
        tables = np.moveaxis(self.allowed, 1 + list(self.features).index("recompute"), 0)
        numbers: dict[bytes, int] = {}
        table = np.array([numbers.setdefault(allowed.tobytes(), len(numbers)) for allowed in tables])
        is_set = values % Recompute.first_bit() == 0  # one bit for each module
        is_part = (values[:, None] & values == values[:, None]) & is_set[:, None] & is_set
        is_part &= (table[:, None] == table) & ~np.eye(len(values), dtype=bool)
        return self.keep_values(recompute=values[~is_part.any(axis=1)].tolist())

    def keep_values(self, **chosen: Collection[int]) -> Space:
        """Return the space with only some values of some features."""
        allowed, features = self.allowed, dict(self.features)
        for axis, (name, values) in enumerate(self.features.items(), start=1):
            kept = [index for index, value in enumerate(values.tolist()) if value in chosen.get(name, (value,))]
            if len(kept) < len(values):
                allowed, features[name] = allowed.take(kept, axis=axis), values[kept]
        return replace(self, features=features, allowed=allowed)

    def take(self, rows: NDArray[np.int64]) -> Space:
        """Return the space of some of the rows."""
        return replace(self, rows=self.degrees(rows), feature_class=self.feature_class[rows])

    def block(self, rows: NDArray[np.int64]) -> CandidateBlock:
        """Return some rows with all features that any of them may have."""
        classes, class_of_row = np.unique(self.feature_class[rows], return_inverse=True)
        allowed, features = self.allowed[classes], dict(self.features)
        for axis, where in enumerate(np.nonzero(allowed.any(axis=0).reshape(allowed.shape[1:]))):
            used, name = present(where), list(features)[axis]
            if len(used) < len(features[name]):
                allowed, features[name] = allowed.take(used, axis=1 + axis), features[name][used]
        return CandidateBlock(
            degrees=self.degrees(rows), features=features, of_class=allowed, class_of_row=class_of_row
        )


@record(frozen=True, kw_only=True, slots=True)
class CandidateBlock:
    """
    Some rows, and the smallest table of features that covers them.

    Parameters
    ----------
    degrees
        One value per row of each decision that is not a feature.
    features
        Values of each feature.
    of_class
        Allowed features of the rows of each class: classes on the first axis, then the features' axes in order.
    class_of_row
        Class of each row.
    """

    degrees: Columns
    features: Columns
    of_class: NDArray[np.bool_]
    class_of_row: NDArray[np.int64]

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Allowed features of each row, rows on the first axis; computed anew each time."""
        return self.of_class[self.class_of_row]

    @property
    def row_sizes(self) -> NDArray[np.int64]:
        """Number of allowed combinations of features of each row."""
        per_class = self.of_class.sum(axis=tuple(range(1, self.of_class.ndim)), dtype=np.int64)
        return np.asarray(per_class[self.class_of_row], dtype=np.int64)

    @property
    def width(self) -> int:
        """Number of combinations of features, allowed or not."""
        return prod(len(values) for values in self.features.values())

    def take(self, which: NDArray[np.int64]) -> CandidateBlock:
        """Return some of the rows."""
        degrees = {name: values[which] for name, values in self.degrees.items()}
        return replace(self, degrees=degrees, class_of_row=self.class_of_row[which])

    @property
    def furthest_sharding(self) -> NDArray[np.int64]:
        """Largest sharding of each row."""
        axis = 1 + list(self.features).index("sharding")
        others = tuple(other for other in range(1, self.of_class.ndim) if other != axis)
        allowed = np.asarray(self.of_class.any(axis=others))
        furthest: NDArray[np.int64] = self.features["sharding"][allowed.shape[1] - 1 - allowed[:, ::-1].argmax(axis=1)]
        return furthest[self.class_of_row]

    def alike(self, name: str) -> NDArray[np.int64]:
        """Number each row and value of a feature; equal numbers allow the same other features."""
        tables = np.moveaxis(self.of_class, 1 + list(self.features).index(name), 1)
        numbers: dict[bytes, int] = {}
        of_class = [[numbers.setdefault(one.tobytes(), len(numbers)) for one in table] for table in tables]
        return np.array(of_class, dtype=np.int64)[self.class_of_row]

    def split(self, chosen: NDArray[np.bool_], names: Sequence[str]) -> tuple[CandidateBlock, NDArray[np.int64]]:
        """
        Split some combinations of features into rows of their own; also return the old row of each.

        Parameters
        ----------
        chosen
            Mask with rows on the first axis, then the features of ``names``.
        names
            Features that become columns; the others keep their axes.
        """
        others = {name: values for name, values in self.features.items() if name not in names}
        order = [1 + list(self.features).index(name) for name in (*names, *others)]
        row, mode = np.divmod(np.flatnonzero(chosen), chosen[0].size)
        where = zip(names, np.unravel_index(mode, chosen.shape[1:]), strict=True)
        return CandidateBlock(
            degrees={name: values[row] for name, values in self.degrees.items()}
            | {name: self.features[name][at] for name, at in where},
            features=others,
            of_class=self.of_class.transpose(0, *order).reshape(-1, *(len(values) for values in others.values())),
            class_of_row=self.class_of_row[row] * chosen[0].size + mode,
        ), row

    @property
    def decisions(self) -> dict[str, Any]:
        """Every decision: degrees on the first axis, each feature on an axis of its own."""
        return spread(self.degrees, self.features)


@record(frozen=True, kw_only=True, slots=True)
class FeatureSplit:
    """
    The features in two parts: modes, which change memory, and overlaps and the like, which change time alone.

    Parameters
    ----------
    features, overlaps
        All features in the order of their axes; features of the second part.
    """

    features: tuple[str, ...]
    overlaps: tuple[str, ...]

    @classmethod
    def split(cls, features: Iterable[str], *memory: Any) -> FeatureSplit:
        """Split features by memory tables with rows on the first axis: a feature without an axis in them is folded."""
        names = tuple(features)
        shape = np.broadcast_shapes(*(np.shape(table) for table in memory), (1,) * (1 + len(names)))
        axes = dict(zip(names, shape[1:], strict=True))
        return cls(features=names, overlaps=tuple(name for name in TIME_ONLY if axes.get(name) == 1))

    @property
    def modes(self) -> tuple[str, ...]:
        """Features of the first part."""
        return tuple(name for name in self.features if name not in self.overlaps)

    def flat(self, table: NDArray[Any]) -> NDArray[Any]:
        """Reshape a table with rows and each feature on an axis of its own to (rows, modes, overlaps)."""
        order = [1 + self.features.index(name) for name in (*self.modes, *self.overlaps)]
        moved = table.transpose(0, *order)
        sizes = moved.shape[1 : 1 + len(self.modes)]
        return moved.reshape(moved.shape[0], prod(sizes), prod(moved.shape[1 + len(self.modes) :]))

    def choose(self, features: Columns, mode: Any, overlaps: Any) -> Columns:
        """Return the values of the features at flat indices of modes and overlaps."""
        columns: Columns = {}
        for names, flat in ((self.modes, mode), (self.overlaps, overlaps)):
            indices = np.unravel_index(flat, tuple(len(features[name]) for name in names)) if names else ()
            columns |= {name: features[name][index] for name, index in zip(names, indices, strict=True)}
        return columns


def strategy_of(values: Mapping[str, int]) -> Strategy:
    """Build a strategy from one number per decision."""
    kinds: dict[str, Callable[[int], Any]] = {**ENUMS, **dict.fromkeys(FLAGS, bool)}
    return Strategy(**{name: kinds.get(name, int)(values[name]) for name in DECISIONS})


def build_space(problem: Problem) -> Space:
    """Build the space of everything that the problem's rules allow, memory apart."""
    rules = problem_rules(problem)
    domains = row_domains(problem)
    replicas = free_replicas(problem)
    binding = list_binding(problem.facts, rules.rows, domains | {"dp": all_replicas(problem, domains)})
    rows, _ = grow(problem.facts, domains, (*binding, *fast_enough(problem)), tolerate=(), replicas=replicas)
    features = feature_values(problem)
    raw_size = _raw_size(problem, domains, features) * max(1, len(replicas))
    return space_of(problem.facts, rules, _ascending(rows), features, raw_size=raw_size)


def space_of(facts: Facts, rules: Rules, rows: Columns, features: Columns, *, raw_size: int) -> Space:
    """Build the space of some rows with their allowed features; rows without any are left out."""
    classes, allowed = tabulate_features(facts, rows, features, rules.mixed)
    useful = np.logical_or.reduce(allowed, axis=tuple(range(1, allowed.ndim)))[classes]
    if not useful.all():
        rows, classes = {name: values[useful] for name, values in rows.items()}, classes[useful]
    return Space(
        facts=facts,
        rules=rules,
        rows=rows,
        features=features,
        feature_class=classes,
        allowed=allowed,
        raw_size=raw_size,
    )


def spread(degrees: Mapping[str, Any], features: Columns) -> dict[str, Any]:
    """Put degrees on the first axis, and each feature on an axis of its own."""
    axes = len(features)
    spread_degrees = {name: np.reshape(values, (-1, *(1,) * axes)) for name, values in degrees.items()}
    spread_features = {
        name: np.reshape(values, (1,) * (1 + axis) + (-1,) + (1,) * (axes - 1 - axis))
        for axis, (name, values) in enumerate(features.items())
    }
    return spread_degrees | spread_features


def _raw_size(problem: Problem, domains: Mapping[str, NDArray[Any]], features: Columns) -> int:
    """Count combinations before any rule; ``dp`` follows from the others, as does ``group`` unless the job gives it."""
    counted = [values for name, values in domains.items() if name != "group" or name in job_choices(problem)]
    return prod(len(values) for values in (*counted, *features.values()))


def grow(
    facts: Facts,
    domains: Mapping[str, NDArray[Any]],
    rules: Sequence[Rule],
    *,
    tolerate: Iterable[Rule],
    replicas: Iterable[int] = (),
    one_of: Set[Rule] = frozenset(),
) -> tuple[Columns, Classes]:
    """
    Grow rows of degrees, one degree at a time.

    Parameters
    ----------
    facts
        Facts of the job.
    domains
        Values of each degree except ``dp``.
    rules
        Rules of degrees alone, each applied as soon as its degrees are known.
    tolerate
        Rules that a row may break; broken ones decide the row's class. Rows that break another rule are dropped.
    replicas
        Further values of ``dp``, besides the one that follows from the other degrees.
    one_of
        Tolerated rules of which a row breaks one at most.

    Returns
    -------
    tuple
        The rows, and the classes of tolerated rules that they break.
    """
    tolerated = set(tolerate)
    columns: Columns = {}
    classes = Classes.one(1)
    waiting = list(rules)
    for name in GROWTH:
        left, values = _next_column(facts, columns, name, domains, replicas, classes.size)
        known = {*columns, name}
        asked = sorted((r for r in waiting if needs(r) <= known), key=lambda rule: rule in tolerated)
        waiting = [rule for rule in waiting if rule not in asked]
        classes = classes.take(left)
        for rule in asked:
            holds = _ask(rule, facts, columns, left, name, values)
            if rule in tolerated:
                classes = classes.refine(~holds, rule)
                holds = np.array([len(broken & one_of) < 2 for broken in classes.broken], dtype=bool)[classes.index]
            if not holds.all():
                left, values, classes = left[holds], values[holds], classes.take(holds)
        columns = {known_name: column[left] for known_name, column in columns.items()} | {name: values}
    assert not waiting, f"rules that no column serves: {waiting}"
    return columns, classes


def _next_column(
    facts: Facts,
    columns: Columns,
    name: str,
    domains: Mapping[str, NDArray[Any]],
    replicas: Iterable[int],
    size: int,
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the cross product of the rows so far and one more column: index of the row, value of the column."""
    if name != "dp":
        values = domains[name]
        return np.repeat(np.arange(size), len(values)), np.tile(values, size)
    following = facts.cluster.num_devices // columns["tp"] // columns["cp"] // columns["pp"]
    others = np.array(list(replicas), dtype=np.int64)
    table = np.column_stack([np.maximum(following, 1), np.tile(others, (size, 1))])
    keep = np.column_stack([np.ones(size, dtype=bool), table[:, 1:] != table[:, :1]])
    return np.repeat(np.arange(size), keep.sum(axis=1)), table[keep]


def _ask(
    rule: Rule, facts: Facts, columns: Columns, left: NDArray[np.int64], name: str, values: NDArray[Any]
) -> NDArray[np.bool_]:
    decisions = {known: columns[known][left] for known in needs(rule) if known in columns}
    holds = np.asarray(tabulate(rule, facts, decisions | {name: values}))
    return holds if holds.shape == values.shape else np.broadcast_to(holds, values.shape)


def _ascending(rows: Columns) -> Columns:
    order = np.lexsort([rows[name] for name in reversed(ROW_DECISIONS)])
    return {name: rows[name][order] for name in ROW_DECISIONS}


def tabulate_features(
    facts: Facts, rows: Columns, features: Columns, rules: Sequence[Rule]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the class of allowed features of each row, and the table of each class."""
    shape = tuple(len(values) for values in features.values())
    if not len(rows["tp"]):
        return np.zeros(0, dtype=np.int64), np.zeros((0, *shape), dtype=bool)
    values = {name: np.array(present(of_rows)) for name, of_rows in rows.items()} | features
    rules = list_binding(facts, rules, values)
    classes = classify_features(facts, rows, features, rules)
    representatives = {name: values[classes.first] for name, values in rows.items()}
    decisions = spread(representatives, features)
    of_shape: dict[tuple[int, ...], NDArray[np.bool_]] = {}
    for rule in rules:
        holds = np.asarray(tabulate(rule, facts, decisions))
        of_shape[holds.shape] = of_shape[holds.shape] & holds if holds.shape in of_shape else holds
    allowed: NDArray[np.bool_] = np.ones((1,) * (1 + len(shape)), dtype=bool)
    for holds in sorted(of_shape.values(), key=np.size):  # the small ones first: few have many axes
        allowed = allowed & holds
    return classes.index, np.array(np.broadcast_to(allowed, (classes.count, *shape)), order="C")


def classify_features(
    facts: Facts, rows: Columns, features: Columns, rules: Sequence[Rule], classes: Classes | None = None
) -> Classes:
    """Put rows that no rule tells apart, with any features, into one class; ``classes`` are split further."""
    classes = Classes.one(len(rows["tp"])) if classes is None else classes
    for rule in rules:
        own = {name: values for name, values in features.items() if name in needs(rule)}
        if needs(rule) <= set(own):
            continue
        degrees, where = _different({name: rows[name] for name in sorted(needs(rule) - set(own))})
        holds = tabulate(rule, facts, spread(degrees, own))
        num, shape = len(next(iter(degrees.values()))), tuple(len(values) for values in own.values())
        table = np.broadcast_to(np.asarray(holds), (num, *shape))
        answers = {cell.tobytes(): cell for cell in np.ascontiguousarray(table.reshape(num, prod(shape)).T)}
        for cell in answers.values():
            if cell.any() and not cell.all():  # else it tells none apart
                classes = classes.refine(cell[where], None)
    return classes


def _different(columns: Columns) -> tuple[Columns, NDArray[np.int64]]:
    """Return the few distinct rows of some columns, and the index of each row among them."""
    key = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
    for values in columns.values():
        whole = values.astype(np.int64)
        key = key * (int(whole.max(initial=0)) + 1) + whole
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    return {name: values[first] for name, values in columns.items()}, where
