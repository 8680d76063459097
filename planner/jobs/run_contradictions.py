"""Cells of a measured run that cannot both be true: the row is refused with the names of both columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.validation import shown

Pair: TypeAlias = tuple[str, str, Callable[[Any, Any], bool], str]


def require_no_contradiction(cell: Callable[[str], Any]) -> None:
    """
    Refuse a row whose settings and decisions exclude each other.

    A row that leaves one of both open is not wrong: its framework's default ran.

    Parameters
    ----------
    cell
        Function that returns a column's value in the row, None where it is empty.

    Raises
    ------
    SpecError
        With both columns.
    """
    for column, other, excludes, why in (*PAIRS, *_processors(cell)):
        value, other_value = cell(column), cell(other)
        if value is not None and other_value is not None and excludes(value, other_value):
            raise SpecError(column, f"{shown(value)} contradicts {other} = {shown(other_value)}: {why}.")


def _is_in_16_bits(precision: Any) -> bool:
    name = precision.get("base") if isinstance(precision, Mapping) else precision
    return name in ("bf16", "fp16")


def _are_modules(graphs: Any) -> bool:
    return graphs not in ("none", "full_iteration")


PAIRS: tuple[Pair, ...] = (
    (
        "settings.fp8_param_gather",
        "training.precision",
        lambda gather, precision: gather == 1 and _is_in_16_bits(precision),
        "there are no 8-bit weights to gather",
    ),
    (
        "settings.optimizer_group",
        "strategy.sharding",
        lambda _, sharding: sharding == "none",
        "no ranks share optimizer states",
    ),
    (
        "settings.offloaded_layers",
        "strategy.activation_offload",
        lambda _, offload: offload == 0,
        "no layer is offloaded",
    ),
    *(
        (name, "strategy.optimizer_offload", lambda _, offload: offload == 0, "no optimizer state is offloaded")
        for name in ("settings.offloaded_states", "settings.offloaded_masters", "settings.offload_overlap")
    ),
    (
        "strategy.cuda_graphs",
        "strategy.recompute",
        lambda graphs, recompute: _are_modules(graphs) and recompute == "full",
        "layers that are recomputed whole are in no graph of modules",
    ),
    (
        "strategy.sequence_parallel",
        "strategy.tp",
        lambda parallel, tp: parallel == 1 and tp == 1,
        "there are no ranks to split a sequence over",
    ),
    (
        "strategy.vpp",
        "strategy.pp",
        lambda vpp, pp: pp == 1 and isinstance(vpp, int) and vpp > 1,
        "one stage has no virtual ones",
    ),
    (
        "strategy.token_dispatcher",
        "strategy.ep",
        lambda dispatcher, ep: ep == 1 and dispatcher != "alltoall",
        "no token leaves its device",
    ),
    (
        "strategy.ep_overlap",
        "strategy.ep",
        lambda overlap, ep: overlap == 1 and ep == 1,
        "no token leaves its device",
    ),
    (
        "settings.communication_sms",
        "strategy.ep",
        lambda _, ep: ep == 1,
        "no token leaves its device",
    ),
    (
        "settings.communication_sms",
        "strategy.token_dispatcher",
        lambda _, dispatcher: dispatcher == "alltoall",
        "an all-to-all has no kernels that take processors of their own",
    ),
)
"""Two columns, a test that their values exclude each other, and the reason."""


def _processors(cell: Callable[[str], Any]) -> Iterator[Pair]:
    """Yield communication SMs against the processors of a device in the catalog."""
    name = cell("cluster.device")
    most = catalog.device(name).num_processors if isinstance(name, str) and catalog.find_unique_device(name) else None
    if most is not None:
        why = f"it has {most} processors"
        yield "settings.communication_sms", "cluster.device", lambda sms, _: isinstance(sms, int) and sms > most, why
