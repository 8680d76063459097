"""What all targets share: entries for each decision, a refusal for what a target cannot say, and the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from costmodel.errors import SpecError
from costmodel.strategy import Decision, StageLayout, Strategy
from planner.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """
    A plan in the words of a target.

    Parameters
    ----------
    target
        Its name as one writes it, such as DeepSpeed.
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

EVERY_FIELD = frozenset(one.name for one in fields(Strategy))
"""What a target must have an answer for."""

NO_NAME = re.compile(r"[^\w .,:+()-]")
"""What could end a comment or a text."""

HINT = "Plan again with search.pin, search.allow or search.forbid keeping to what it can."


def only(name: str, value: object, reason: str) -> Say:
    """
    What a target says for a field that it has no option for.

    Parameters
    ----------
    name
        The field.
    value
        What the target does anyway; any other value is refused.
    reason
        Why: one sentence with its source.
    """
    return lambda plan: {} if getattr(plan.strategy, name) == value else Refusal(reason)


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
    assert says.keys() == EVERY_FIELD, f"{target} has no answer for {sorted(EVERY_FIELD ^ says.keys())}"
    said = {name: say(plan) for name, say in says.items()}
    refused = {name: one.reason for name, one in said.items() if isinstance(one, Refusal)}
    if refused:
        values = {name: _spelled(getattr(plan.strategy, name)) for name in refused}
        reasons = "".join(f"\n  - {name} = {values[name]}: {reason}" for name, reason in refused.items())
        raise SpecError("strategy", f"{target} cannot express this plan:{reasons}\n{HINT}")
    entries: Entries = {}
    for one in said.values():
        assert isinstance(one, dict)
        doubled = [name for name in one.keys() & entries.keys() if one[name] != entries[name]]
        assert not doubled, f"two fields of a strategy say different things of {doubled}"
        entries |= one
    return entries


def _spelled(value: object) -> str:
    """A decision as job files spell it."""
    if isinstance(value, StageLayout):
        return "its own stages"
    return value.text if isinstance(value, Decision) else str(value).lower()


def nested(entries: Entries) -> dict[str, Any]:
    """
    Options with dotted names as mappings in mappings.

    >>> nested({"a.b": 1, "a.c": 2, "d": 3})
    {'a': {'b': 1, 'c': 2}, 'd': 3}
    """
    whole: dict[str, Any] = {}
    for name, value in entries.items():
        *path, last = name.split(".")
        inner = whole
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return whole


def num_microbatches(plan: Plan) -> int | None:
    """Micro-batches per pipeline and step; None where the batch is no multiple of them."""
    each = plan.strategy.dp * plan.strategy.mbs
    batch = plan.facts.workload.global_batch_size
    return None if batch % each else batch // each


def checkpoints(plan: Plan) -> str:
    """How often a plan saves, as a note."""
    wait = f"training waits {plan.checkpoint_seconds:.3g} s for each"
    beside = f"; it is on storage after {plan.write_seconds:.3g} s, beside the training" if plan.write_seconds else ""
    return f"A checkpoint every {plan.schedule.interval_steps} steps, where {wait}{beside}."


def subject(plan: Plan) -> str:
    """What a plan is for, in a line that any file can have as a comment, whatever the names are."""
    model, device = (NO_NAME.sub("?", name) for name in (plan.facts.model.name, plan.cluster.device.name))
    return f"{model} on {plan.strategy.num_devices:,} x {device}, {plan.step_seconds:.3f} s per step as predicted"
