"""
Tabulate: a quantity is a function, and its signature says which facts and which decisions it depends on.

Positional parameters are facts (``model``, ``cluster``, ``workload``), keyword-only parameters are decisions. Decisions
may be scalars (one strategy) or arrays that broadcast against each other (a table): the same function serves both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from costmodel.spec import Cluster, Model, Workload

Result = TypeVar("Result")

WORTH_A_TABLE = 256
"""Strategies from which on a table pays for its lookup; a matter of speed only."""

MOST_MADE = 1024
"""Quantities of single strategies that are kept; a matter of memory only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """
    Everything that is given: what is trained, on what, how much of it.

    Parameters
    ----------
    model, cluster, workload
        The records.
    made
        What :func:`lookup` computed of them for single strategies: a step asks for the same quantities several times.
    """

    model: Model
    cluster: Cluster
    workload: Workload
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


@cache
def signature(quantity: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """
    The facts and the decisions that a quantity or a rule depends on.

    >>> def state_bytes(model, *, tp, pp): ...
    >>> signature(state_bytes)
    (('model',), ('tp', 'pp'))
    """
    parameters = inspect.signature(quantity).parameters.values()
    facts = tuple(p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY)
    decisions = tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
    return facts, decisions


def tabulate(quantity: Callable[..., Result], facts: Facts, decisions: Mapping[str, Any]) -> Result:
    """
    Call ``quantity`` with the facts and decisions that its signature names.

    Parameters
    ----------
    quantity
        A function of facts (positional) and decisions (keyword-only).
    facts
        What is given.
    decisions
        Values by name; arrays must broadcast. ``num_microbatches`` is derived where it is missing.
    """
    fact_names, decision_names = signature(quantity)
    arguments = {name: _decision(facts, decisions, name) for name in decision_names}
    return quantity(*(getattr(facts, name) for name in fact_names), **arguments)


def lookup(quantity: Callable[..., Result], facts: Facts, decisions: Mapping[str, Any]) -> Result:
    """
    The same values as :func:`tabulate`, computed once for each combination of the quantity's own decisions.

    Where many strategies share few combinations, the quantity's table is computed and looked up. The result may be an
    array or a dataclass of arrays, whose first axes are those of the decisions.
    """
    fact_names, decision_names = signature(quantity)
    given = [_decision(facts, decisions, name) for name in decision_names]
    if all(isinstance(value, int) for value in given):
        return _made(quantity, facts, decisions, (quantity, *given))
    arguments = {name: np.asarray(value) for name, value in zip(decision_names, given, strict=True)}
    shapes = {value.shape for value in arguments.values() if value.ndim}
    radices = [int(value.max(initial=0)) + 1 for value in arguments.values()]
    if len(shapes) != 1 or prod(next(iter(shapes))) < WORTH_A_TABLE or prod(radices) > np.iinfo(np.int64).max:
        return tabulate(quantity, facts, decisions)
    key = np.zeros(next(iter(shapes)), dtype=np.int64)
    for value, radix in zip(arguments.values(), radices, strict=True):
        key = key * radix + value
    _, index, inverse = np.unique(key.ravel(), return_index=True, return_inverse=True)
    axes = {name: value.ravel()[index] if value.ndim else value for name, value in arguments.items()}
    table = quantity(*(getattr(facts, name) for name in fact_names), **axes)
    return cast(Result, _take(table, inverse.reshape(key.shape)))


def _made(quantity: Callable[..., Result], facts: Facts, decisions: Mapping[str, Any], key: tuple[Any, ...]) -> Result:
    """A quantity of one strategy, computed when it is first asked for."""
    if key not in facts.made:
        if len(facts.made) >= MOST_MADE:
            facts.made.clear()
        facts.made[key] = tabulate(quantity, facts, decisions)
    return cast(Result, facts.made[key])


def _decision(facts: Facts, decisions: Mapping[str, Any], name: str) -> Any:
    if name == "num_microbatches" and name not in decisions:
        return microbatches(facts, decisions)
    return decisions[name]


def _take(table: Any, inverse: NDArray[np.int64]) -> Any:
    if is_dataclass(table):
        columns = {field.name: _take(getattr(table, field.name), inverse) for field in fields(table)}
        return replace(cast(Any, table), **columns)
    values = np.asarray(table)
    return values[inverse] if values.ndim else values


def microbatches(facts: Facts, decisions: Mapping[str, Any]) -> Any:
    """Micro-batches of the strategies that the decisions span, by :func:`num_microbatches`."""
    return num_microbatches(facts.workload, dp=decisions["dp"], mbs=decisions["mbs"])


def num_microbatches(workload: Workload, *, dp: Any, mbs: Any) -> Any:
    r"""
    Micro-batches per data-parallel rank and step, m; rounded down where the batch does not divide.

    .. math:: m = gbs / (d \cdot mbs)
    """
    return workload.global_batch_size // (dp * mbs)
