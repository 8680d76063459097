"""What all targets share: entries for each decision, a refusal for what a target cannot say, and the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from costmodel.errors import SpecError
from planner.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """
    A plan in the words of a target.

    Parameters
    ----------
    target
        Its name.
    files
        Texts by file name; the first one is the main one.
    environment
        Environment variables that every process needs, beside what the files set themselves.
    notes
        What one should know who uses them, such as what the target decides by itself.
    """

    target: str
    files: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a target cannot express the value of a decision: one sentence with its source."""

    reason: str


Entries: TypeAlias = dict[str, Any]
"""Options of a target with their values."""

Say: TypeAlias = Callable[[Plan], Entries | Refusal]
"""What a target says for one field of a strategy."""


def entries_of(plan: Plan, target: str, says: Mapping[str, Say]) -> Entries:
    """
    All that a target says of a plan's strategy.

    Parameters
    ----------
    plan
        The plan.
    target
        The target's name, for messages.
    says
        What it says for each field of :class:`costmodel.strategy.Strategy`, every one of them.

    Raises
    ------
    SpecError
        If it refuses fields: all of them by name, with the reasons.
    """
    said = {name: say(plan) for name, say in says.items()}
    refused = {name: one.reason for name, one in said.items() if isinstance(one, Refusal)}
    if refused:
        reasons = " ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise SpecError(f"strategy.{next(iter(refused))}", f"{target} cannot express this plan. {reasons}")
    entries: Entries = {}
    for one in said.values():
        assert isinstance(one, dict)
        doubled = [name for name in one.keys() & entries.keys() if one[name] != entries[name]]
        assert not doubled, f"two fields of a strategy say different things of {doubled}"
        entries |= one
    return entries
