"""
Tabulate quantities: a quantity is a function whose signature names the facts and the decisions that it depends on.

Positional parameters are facts (``model``, ``cluster``, ``workload``), keyword-only parameters are decisions. Decisions
may be scalars (one strategy) or arrays that broadcast against each other (a table): one function serves both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import reduce
from math import prod
from operator import add, is_
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.record import record

Result = TypeVar("Result")

WORTH_A_TABLE = 8

"""Fewest strategies for which a table pays for its lookup; affects only speed."""

MOST_COMBINATIONS = 2**16

"""Largest number of combinations in a quantity's table before it is cleared; affects only memory."""

MOST_MADE = 1024

"""Largest number of cached quantities of single strategies; affects only memory."""


@record(frozen=True, kw_only=True, slots=True)
class Facts:
    """
    Facts of a job: model, cluster, workload, and the quantities computed from them.

    Parameters
    ----------
    model, cluster, workload
        Model, cluster and workload.
    made, tables
        Results of :func:`lookup`, for single strategies and for many: a step asks for equal quantities several times,
        and a search for equal combinations in each of its batches.
    latest
        Last result of :func:`memoize_last` by name, and the arrays that it was computed from.
    """

    model: Model
    cluster: Cluster
    workload: Workload
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    tables: dict[Any, _Table] = field(default_factory=dict, init=False, repr=False, compare=False)
    latest: dict[Any, tuple[tuple[Any, ...], Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def compute_once(self, key: Any, make: Callable[[], Result]) -> Result:
        """Return a result for single strategies, computed on the first request."""
        if key not in self.made:
            if len(self.made) >= MOST_MADE:
                self.made.clear()
            self.made[key] = make()
        return cast(Result, self.made[key])

    def forget(self) -> None:
        """Clear the tables of many strategies, tens of megabytes, which the owner of a report does not need."""
        self.tables.clear()
        self.latest.clear()


Signature: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]

"""Names of the facts, and of the decisions."""


def signature(quantity: Callable[..., Any]) -> Signature:
    """
    Return the facts and the decisions that a quantity or a rule depends on; it is read once, and kept by the function.

    >>> def state_bytes(model, *, tp, pp): ...
    >>> signature(state_bytes)
    (('model',), ('tp', 'pp'))
    """
    known: Signature | None = getattr(quantity, "known_signature", None)
    if known is None:
        parameters = inspect.signature(quantity).parameters.values()
        facts = tuple(p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY)
        decisions = tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
        known = (facts, decisions)
        vars(quantity)["known_signature"] = known
    return known


def tabulate(quantity: Callable[..., Result], facts: Facts, decisions: Mapping[str, Any]) -> Result:
    """
    Call ``quantity`` with the facts and decisions that its signature names.

    Parameters
    ----------
    quantity
        A function of facts (positional) and decisions (keyword-only). A function of other quantities takes all
        ``facts``.
    facts
        Model, cluster, workload.
    decisions
        Values by name; arrays must broadcast. ``num_microbatches`` is derived if it is missing.
    """
    fact_names, decision_names = signature(quantity)
    arguments = dict(zip(decision_names, _decisions(facts, decisions, decision_names), strict=True))
    return quantity(*[facts if name == "facts" else getattr(facts, name) for name in fact_names], **arguments)


def lookup(quantity: Callable[..., Result], facts: Facts, decisions: Mapping[str, Any]) -> Result:
    """
    Return the values of :func:`tabulate`, computed once for each combination of the quantity's own decisions.

    If many strategies share few combinations, the quantity's table is computed, cached with the facts, and looked up.
    The result may be an array or a record of arrays (:class:`Record`), whose first axes are those of the decisions.
    """
    _, decision_names = signature(quantity)
    given = _decisions(facts, decisions, decision_names)
    if all(isinstance(value, int) for value in given):
        return facts.compute_once((quantity, *given), lambda: _look_up_one(quantity, facts, decisions, given))
    return memoize_last(facts, quantity, given, lambda: _look_up(quantity, facts, decisions, given))


def memoize_last(facts: Facts, name: Any, given: Sequence[Any], make: Callable[[], Result]) -> Result:
    """
    Return the last result of ``name`` if it was computed from the same arrays; otherwise compute it.

    The parts of a step ask for equal quantities of equal strategies. The result, and the arrays it was computed from,
    must not be changed.
    """
    last = facts.latest.get(name)
    if last is not None and all(map(is_, last[0], given)):
        return cast(Result, last[1])
    result = make()
    facts.latest[name] = (tuple(given), result)
    return result


def _look_up_one(
    quantity: Callable[..., Result], facts: Facts, decisions: Mapping[str, Any], given: Sequence[int]
) -> Result:
    """Look up a quantity of one strategy in its table, if that has it; otherwise compute it."""
    table = facts.tables.get(quantity)
    position = table.find([np.array(value) for value in given]) if table else None
    if table is None or position is None:
        return tabulate(quantity, facts, decisions)
    return cast(Result, _take(table.values, position))


def _look_up(
    quantity: Callable[..., Result], facts: Facts, decisions: Mapping[str, Any], given: Sequence[Any]
) -> Result:
    """Look up a quantity of many strategies in its table, which grows by missing combinations."""
    columns = [np.asarray(value) for value in given]
    shape = np.broadcast(*columns).shape
    if not shape:
        return tabulate(quantity, facts, decisions)
    table = facts.tables.get(quantity)
    found = table.find(columns) if table else None
    if table is None or found is None:
        if prod(shape) < WORTH_A_TABLE:
            return tabulate(quantity, facts, decisions)
        spread = [np.broadcast_to(column, shape).ravel() for column in columns]
        more = _extend(table, quantity, facts, spread)
        if more is None:
            return tabulate(quantity, facts, decisions)
        table, found = more
        facts.tables[quantity] = table
    return cast(Result, _take(table.values, found.reshape(shape)))


@record(frozen=True, slots=True)
class _Table:
    """
    Table of a quantity by combinations of its decisions.

    Parameters
    ----------
    columns
        Values of each decision, shape (decisions, N), in the order of the keys.
    radices
        One more than the largest value of each decision.
    keys
        Combinations as mixed-radix numbers, ascending, shape (N,).
    values
        Value of each combination: an array or a dataclass of arrays with N entries on the first axis; without axes
        if all are equal.
    """

    columns: NDArray[np.int64]
    radices: tuple[int, ...]
    keys: NDArray[np.int64]
    values: Any

    def find(self, columns: Sequence[NDArray[Any]]) -> NDArray[np.int64] | None:
        """Return the positions of combinations; None if one of them is not in the table."""
        for column, most in zip(columns, self.radices, strict=True):
            if (column.item() if column.size == 1 else _LARGEST(column, axis=None, initial=0)) >= most:
                return None
        keys = _keys(columns, self.radices)
        position: NDArray[np.int64] = np.searchsorted(self.keys, keys)
        return position if (self.keys.take(position, mode="clip") == keys).all() else None


_LARGEST = np.maximum.reduce

"""Maximum over an array; for small arrays it takes half the time of their method."""


def _keys(columns: Iterable[NDArray[Any]], radices: Sequence[int]) -> Any:
    """
    Return combinations as mixed-radix numbers; columns of one shape are added up before they are broadcast.

    Columns of one entry are numbers, so that all of one combination is a number.
    """
    sums: dict[tuple[int, ...], Any] = {}
    for index, column in enumerate(columns):
        weight = prod(radices[index + 1 :])
        digit = int(column.item()) * weight if column.size == 1 else column * weight
        shape = () if column.size == 1 else column.shape
        sums[shape] = sums[shape] + digit if shape in sums else digit
    return reduce(add, sums.values())


def _extend(
    table: _Table | None, quantity: Callable[..., Any], facts: Facts, columns: Sequence[NDArray[Any]]
) -> tuple[_Table, NDArray[np.int64]] | None:
    """
    Return a table with more combinations, a new one if it was full, and their positions.

    None if its keys do not fit into 64 bits.
    """
    known = table if table is not None and len(table.keys) < MOST_COMBINATIONS else None
    every = np.stack(columns, dtype=np.int64, casting="unsafe")
    if known is not None:
        every = np.concatenate([known.columns, every], axis=1)
    radices = tuple(int(column.max(initial=0)) + 1 for column in every)
    if prod(radices) > np.iinfo(np.int64).max:
        return None
    keys, first, inverse = np.unique(np.atleast_1d(_keys(every, radices)), return_index=True, return_inverse=True)

    def compute_rows(chosen: NDArray[np.int64]) -> Any:
        named = zip(signature(quantity)[1], every[:, chosen], columns, strict=True)
        return tabulate(quantity, facts, {name: column.astype(kind.dtype) for name, column, kind in named})

    values = None
    if known is not None:
        is_new = first >= len(known.keys)
        joined = _concatenate(known.values, compute_rows(first[is_new]))
        where = np.where(is_new, len(known.keys) + np.cumsum(is_new) - 1, first)
        values = None if joined is None else _take(joined, where)
    table = _Table(every[:, first], radices, keys, compute_rows(first) if values is None else values)
    return table, inverse[-len(columns[0]) :]


def _concatenate(table: Any, more: Any) -> Any:
    """
    Concatenate two tables.

    None if only one of them has an axis for its combinations, or if they differ in other axes. The number of a
    pipeline's different ranks is an axis that all combinations share.
    """
    if isinstance(table, Record):
        names = [field.name for field in fields(cast(Any, table))]
        both = {name: _concatenate(getattr(table, name), getattr(more, name)) for name in names}
        return None if any(one is None for one in both.values()) else replace(cast(Any, table), **both)
    one, other = np.asarray(table), np.asarray(more)
    if one.ndim == other.ndim == 0 and one == other:
        return one
    return np.concatenate([one, other]) if one.ndim and one.shape[1:] == other.shape[1:] else None


def _decisions(facts: Facts, decisions: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Return the values of some decisions."""
    if "num_microbatches" in names and "num_microbatches" not in decisions:
        decisions = {**decisions, "num_microbatches": microbatches(facts, decisions)}
    return [decisions[name] for name in names]


class Record:
    """
    Base of a quantity's record, a dataclass of arrays. A record from a table takes each array when it is first read.

    A batch of strategies asks for few of a table's many arrays.
    """

    __slots__ = ("_table", "_where")

    @classmethod
    def take(cls, table: Record, where: NDArray[np.int64]) -> Self:
        """Return some entries of a table of this class."""
        record = object.__new__(cls)
        object.__setattr__(record, "_table", table)
        object.__setattr__(record, "_where", where)
        return record

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # of a slot that nothing was written to
            if name not in self.__dataclass_fields__:
                raise AttributeError(f"{type(self).__name__} has no {name}")
            values = _take(getattr(self._table, name), self._where)
            object.__setattr__(self, name, values)
            return values


def _take(table: Any, where: NDArray[np.int64]) -> Any:
    if isinstance(table, Record):
        return table.take(table, where)
    values = np.asarray(table)
    return values.take(where, 0) if values.ndim else values  # indexing takes ten times as long


def microbatches(facts: Facts, decisions: Mapping[str, Any]) -> Any:
    """Return the micro-batches of the strategies that the decisions span, by :func:`num_microbatches`."""
    dp, mbs = decisions["dp"], decisions["mbs"]
    return memoize_last(facts, num_microbatches, (dp, mbs), lambda: num_microbatches(facts.workload, dp=dp, mbs=mbs))


def num_microbatches(workload: Workload, *, dp: Any, mbs: Any) -> Any:
    r"""
    Micro-batches per data-parallel rank and step, m; rounded down if the batch does not divide.

    .. math:: m = gbs / (d \cdot mbs)
    """
    return workload.global_batch_size // (dp * mbs)


def present(values: Any) -> list[int]:
    """
    Return the distinct values of small non-negative numbers, ascending; ``np.unique`` takes ten times as long.

    >>> present(np.array([[3, 0], [3, 1]]))
    [0, 1, 3]
    """
    return np.flatnonzero(np.bincount(np.ravel(values))).tolist()


def distinct(values: Any) -> NDArray[Any]:
    """
    Return the distinct values, ascending; ``np.unique`` takes twice as long, and loads ``numpy.ma``.

    >>> distinct([3, 1, 3]).tolist()
    [1, 3]
    """
    ordered = np.sort(values, axis=None)
    is_new = np.ones(ordered.shape, dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


SHORT = 32

"""Longest axis for which slices are faster; NumPy's own reduction of two to five entries takes ten times as long."""


def is_near(values: Any, known: float) -> NDArray[np.bool_]:
    """
    Return True for values near a number; ``np.isclose``, which asks for infinite ones, takes ten times as long.

    >>> is_near([4.0, 4.1], 4.0).tolist()
    [True, False]
    """
    return np.asarray(np.abs(np.subtract(values, known)) <= 1e-8 + 1e-5 * known)


def largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Return the largest values along the last axis.

    >>> largest(np.array([[1.0, 3.0], [4.0, 2.0]])).tolist()
    [3.0, 4.0]
    """
    return _reduce_last(np.maximum, values)


def sum_last(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Return the sums along the last axis.

    >>> sum_last(np.array([[1.0, 3.0], [4.0, 2.0]])).tolist()
    [4.0, 6.0]
    """
    return _reduce_last(np.add, values)


def _reduce_last(function: np.ufunc, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if not 0 < values.shape[-1] <= SHORT:
        return np.asarray(function.reduce(values, axis=-1))
    slices: Any = (values[..., index] for index in range(values.shape[-1]))
    return np.asarray(reduce(function, slices))


def any_of(table: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """
    Return True for each entry of a smaller shape, which broadcasts to the table's, if any of its table entries is true.

    >>> any_of(np.array([[True, False], [False, False]]), (2, 1)).tolist()
    [[True], [False]]
    """
    in_front = table.ndim - len(shape)
    smaller = np.asarray(table.any(axis=tuple(range(in_front)))) if in_front > 0 else table
    folded = tuple(axis - smaller.ndim for axis in range(smaller.ndim) if shape[axis - smaller.ndim] == 1)
    return np.asarray(smaller.any(axis=folded, keepdims=True))


Decisions: TypeAlias = Mapping[str, Any]

Array: TypeAlias = NDArray[np.float64]


def either(decisions: Decisions) -> NDArray[np.bool_]:
    """Return false and true on a new axis before those of the decisions."""
    return add_leading_axis([False, True], decisions)


def add_leading_axis(values: Any, decisions: Decisions) -> NDArray[np.bool_]:
    """Return values on a new axis before those of the decisions."""
    return np.array(values).reshape(-1, *(1,) * max(np.ndim(decision) for decision in decisions.values()))


def add_layer_axis(decision: Any) -> NDArray[Any]:
    """Return a decision with a new last axis, for the kinds of layers or the ranks."""
    return np.asarray(decision)[..., None]


@record(frozen=True, kw_only=True, slots=True)
class Table:
    """Base of a record whose fields are columns: arrays of equal length."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Return some of the rows."""
        return type(self)(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    @classmethod
    def join(cls, several: Sequence[Self]) -> Self:
        """Concatenate several tables."""
        return cls(**{one.name: np.concatenate([getattr(each, one.name) for each in several]) for one in fields(cls)})


MOST_ROWS = 2**16

"""Largest number of cached rows; affects only memory."""


def remember_rows(function: Callable[..., NDArray[np.float64]]) -> Callable[..., Any]:
    """
    Return a function of arrays that broadcast, which asks another one once for each distinct row.

    Parameters
    ----------
    function
        Function that takes columns of shape (rows,) and returns as many values. Known rows are cleared beyond
        :data:`MOST_ROWS`, since it may outlive many jobs.

    >>> asked = []
    >>> once = remember_rows(lambda one, other: asked.extend(one.tolist()) or one + other)
    >>> once(np.array([1.0, 2.0, 1.0]), 3.0).tolist(), float(once(2.0, 3.0)), asked
    ([4.0, 5.0, 4.0], 5.0, [1.0, 2.0])
    """
    known: dict[tuple[float, ...], float] = {}

    def find(*columns: Any) -> Any:
        arrays = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in columns))
        rows, inverse = _different([one.ravel() for one in arrays])
        keys = list(zip(*(one.tolist() for one in rows), strict=True))
        if len(known) > MOST_ROWS:
            known.clear()
        unknown = [index for index, key in enumerate(keys) if key not in known]
        if unknown:
            values = function(*(one[unknown] for one in rows)).tolist()
            known.update(zip((keys[index] for index in unknown), values, strict=True))
        found = np.array([known[key] for key in keys])
        return found[inverse].reshape(arrays[0].shape)[()]

    return find


def _different(columns: list[NDArray[np.float64]]) -> tuple[list[NDArray[np.float64]], NDArray[np.intp]]:
    """Return the columns of the distinct rows, and each row's index; ``np.unique`` along an axis takes much longer."""
    codes = np.zeros(len(columns[0]), dtype=np.intp)
    for column in columns:
        if np.all(column == column[:1]):
            continue
        values, places = np.unique(column, return_inverse=True)
        codes = codes * len(values) + places
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return [column[first] for column in columns], inverse
