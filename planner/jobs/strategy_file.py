"""A strategy that somebody gives: decisions, and the stages of its pipeline where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.strategy import DECISIONS, Recompute, Schedule, StageLayout, Strategy, Vocabulary
from costmodel.validation import shown
from planner.jobs.values import decision_value, decision_values, require_entry

FOLLOWING = ("num_microbatches",)
"""What a report writes beside the decisions of a strategy; it follows from them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyFile:
    """
    A strategy as a file or a job gives it, in part or whole.

    Parameters
    ----------
    decisions
        Values by name.
    layout
        ``layers`` of each virtual stage, and of each pipeline rank what :class:`costmodel.strategy.StageLayout` says;
        what is not given is what the decisions say of all ranks. None: stages are dealt evenly.
    """

    decisions: Mapping[str, int] = field(default_factory=dict)
    layout: Mapping[str, tuple[int, ...]] | None = None


def read_given(entries: Mapping[str, Any], where: str = "strategy") -> StrategyFile:
    """
    Read a strategy as a job file or a report writes it.

    >>> read_given({"tp": 8, "recompute": "full", "layout": {"layers": [1, 2, 1]}})
    StrategyFile(decisions={'tp': 8, 'recompute': <Recompute.FULL: 2>}, layout={'layers': (1, 2, 1)})

    Raises
    ------
    SpecError
        If a name or a value is wrong.
    """
    for name in entries:
        require_entry(name, (*DECISIONS, "layout", *FOLLOWING), where)
    layout = entries.get("layout")
    return StrategyFile(
        decisions=decision_values({name: value for name, value in entries.items() if name in DECISIONS}, where),
        layout=None if layout is None else _read_layout(layout, f"{where}.layout"),
    )


def _read_layout(entries: object, where: str) -> dict[str, tuple[int, ...]]:
    if not isinstance(entries, Mapping):
        raise SpecError(where, f"expected a mapping such as {{layers: [3, 4, 3]}}, got {shown(entries)}.")
    for name in entries:
        require_entry(name, (one.name for one in fields(StageLayout)), where, "entry")
    if "layers" not in entries:
        raise SpecError(f"{where}.layers", "is required but missing.")
    return {name: _values(name, values, f"{where}.{name}") for name, values in entries.items()}


def _values(name: str, values: object, where: str) -> tuple[int, ...]:
    if not isinstance(values, (list, tuple)) or not values:
        raise SpecError(where, f"expected a list such as [3, 4, 3], got {shown(values)}.")
    return tuple(_value(name, value, f"{where}.{index}") for index, value in enumerate(values))


def _value(name: str, value: object, where: str) -> int:
    if name in DECISIONS:
        return decision_value(name, value, where)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(where, f"expected a number of layers, got {shown(value)}.")
    return value


def stage_layout(given: Mapping[str, tuple[int, ...]], strategy: Strategy, model: Model) -> StageLayout:
    """
    The layout that is given for a strategy.

    Raises
    ------
    SpecError
        If it is not one of the strategy's pipeline and the model.
    """
    where, stages = "strategy.layout", strategy.pp * strategy.vpp
    if strategy.schedule != Schedule.ONE_F_ONE_B or strategy.vocabulary != Vocabulary.ENDS:
        raise SpecError(where, "stages that differ are costed in schedule 1f1b with vocabulary ends only.")
    layers = given["layers"]
    if len(layers) != stages:
        raise SpecError(f"{where}.layers", f"has {len(layers)} virtual stages, pp * vpp = {stages}.")
    if sum(layers) != model.num_layers:
        raise SpecError(f"{where}.layers", f"holds {sum(layers)} layers, {model.name} has {model.num_layers}.")
    same = {"recompute": strategy.recompute, "full_layers": 0, "activation_offload": strategy.activation_offload}
    of_ranks = {name: given.get(name, (int(value),) * strategy.pp) for name, value in same.items()}
    for name, values in of_ranks.items():
        if len(values) != strategy.pp:
            raise SpecError(f"{where}.{name}", f"has {len(values)} values, one for each of pp = {strategy.pp} ranks.")
    for rank, full in enumerate(of_ranks["full_layers"]):
        if full > (own := sum(layers[rank :: strategy.pp])):
            raise SpecError(f"{where}.full_layers.{rank}", f"is {full}, more than the {own} layers of the rank.")
    return StageLayout(
        layers=layers,
        recompute=tuple(map(Recompute, of_ranks["recompute"])),
        full_layers=of_ranks["full_layers"],
        activation_offload=tuple(map(bool, of_ranks["activation_offload"])),
    )
