"""
Tabulate: a quantity is a function, and its signature says which facts and which decisions it depends on.

Positional parameters are facts (``model``, ``cluster``, ``workload``), keyword-only parameters are decisions. Decisions
may be scalars (one strategy) or arrays that broadcast against each other (a table): the same function serves both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from costmodel.spec import Cluster, Model, Workload

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Everything that is given: what is trained, on what, how much of it."""

    model: Model
    cluster: Cluster
    workload: Workload


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
    arguments = {
        name: num_microbatches(facts.workload, dp=decisions["dp"], mbs=decisions["mbs"])
        if name == "num_microbatches" and name not in decisions
        else decisions[name]
        for name in decision_names
    }
    return quantity(*(getattr(facts, name) for name in fact_names), **arguments)


def num_microbatches(workload: Workload, *, dp: Any, mbs: Any) -> Any:
    """
    Micro-batches per data-parallel rank and step, m; rounded down where the batch does not divide.

    .. math:: m = gbs / (d \\cdot mbs)
    """
    return workload.global_batch_size // (dp * mbs)
