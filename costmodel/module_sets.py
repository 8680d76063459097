"""
Sets of modules to recompute that no strategy needs: others save at least as much memory for at most as much time.

A set is compared with others in one strategy, all other decisions left as they are. What a step and a peak make of a
layer does not matter then. More seconds of recomputation, of launches or of communication in it must never make a step
faster, and more kept bytes never a peak smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.axes import Array, Decisions
from costmodel.lowering.recompute import recomputes
from costmodel.memory.footprint import layer_footprint
from costmodel.memory.rank import different_ranks, microbatches_in_flight
from costmodel.step.compute import layer_seconds
from costmodel.strategy import MODULES, Recompute
from costmodel.tables import Facts, lookup

Flags = NDArray[np.bool_]

OF_LAYERS = ("tp", "cp", "dp", "ep", "etp", "mbs", "sequence_parallel")
"""Decisions of rows on which a layer's time and activations depend."""

INSIDE = (
    ("cp_forward", ("core_attention",)),
    ("ep_forward", ("experts",)),
    ("tp_forward", ("mlp", "every_other_matmul")),
)
"""Communication that runs again with modules: what :func:`costmodel.step.links.repeated_communication` adds."""

PAIRS_AT_ONCE = 2**22
"""Pairs of sets that are compared at once; a matter of memory only."""


def needless_sets(
    facts: Facts,
    decisions: Decisions,
    *,
    sets: Sequence[int],
    dispatchers: Sequence[int],
    graphs: Sequence[int],
    alike: NDArray[np.int64],
) -> Flags:
    r"""
    Which sets of modules another one makes needless, shape (R, S).

    Derivation: of a strategy with set s the seconds of a layer are sums over the modules in s
    (:func:`costmodel.lowering.recompute.over_modules`): computation, launches, communication. With another set s' that
    has less of each and drops no less in any kind of layer (delta >= 0 bytes more), the step is no slower. The rank
    keeps :math:`n \sum_k L_k \delta_k` bytes less and needs at most :math:`w \max_k \delta_k` more for the w layers at
    work. Where n >= w its peak is no higher, whatever its layers (:func:`memory_follows`). Of sets that are equal in
    everything the first stays. Full recomputation is compared with nothing.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Degrees of rows, shape (R,); ``sequence_parallel``, ``schedule`` and ``vocabulary`` are among them.
    sets, dispatchers, graphs
        Values of ``recompute`` (S), ``token_dispatcher`` and ``cuda_graphs`` that the rows may have.
    alike
        A number for each row and set; sets are compared where it is equal: they may have the same other features.
    """
    columns = [np.asarray(decisions[name], dtype=np.int64) for name in OF_LAYERS]
    columns.append(np.unique(alike, axis=0, return_inverse=True)[1].ravel())
    _, first, inverse = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    some = {name: np.asarray(decisions[name])[first] for name in OF_LAYERS}
    needless = np.zeros((len(first), len(sets)), dtype=bool)
    step = max(1, PAIRS_AT_ONCE // len(sets) ** 2)
    for start in range(0, len(first), step):
        part = slice(start, start + step)
        of_part = {name: values[part] for name, values in some.items()}
        needless[part] = _needless(facts, of_part, sets, dispatchers, graphs, alike[first[part]])
    return needless[inverse.ravel()] & memory_follows(facts, decisions)[:, None]


def _needless(
    facts: Facts,
    decisions: Decisions,
    sets: Sequence[int],
    dispatchers: Sequence[int],
    graphs: Sequence[int],
    alike: NDArray[np.int64],
) -> Flags:
    """The same of rows that differ in their layers; S times S pairs, the set that may be needless last."""
    chosen = np.array([recomputes(name, recompute=np.array(sets)) for name in MODULES], dtype=np.float64)
    is_set = np.array([one != Recompute.FULL for one in sets])
    position = np.arange(len(sets))
    better = (alike[:, :, None] == alike[:, None, :]) & is_set[:, None] & is_set & (position[:, None] != position)
    dropped = _per_row(lookup(layer_footprint, facts, decisions).module_bytes @ chosen)
    for bytes_of_kind in dropped:
        better &= bytes_of_kind[:, :, None] >= bytes_of_kind[:, None, :]
    equal = better.copy()
    for bytes_of_kind in dropped:
        equal &= bytes_of_kind[:, :, None] == bytes_of_kind[:, None, :]
    spread = {name: values[:, None, None] for name, values in decisions.items()}
    spread |= {"token_dispatcher": np.array(dispatchers)[:, None], "cuda_graphs": np.array(graphs)}
    seconds = lookup(layer_seconds, facts, spread)
    for again in _again(seconds, chosen):
        better &= again[:, :, None] <= again[:, None, :]
        equal &= again[:, :, None] == again[:, None, :]
    return np.asarray((better & ~(equal & (position[:, None] > position))).any(axis=1))


def _again(seconds: Any, chosen: Array) -> list[Array]:
    """What each set runs again: seconds of computation, of launches and of each communication, shape (R, S) each."""
    parts = [seconds.module_forward @ chosen, seconds.module_host @ chosen]
    for name, modules in INSIDE:
        own = chosen[[MODULES.index(module) for module in modules]].sum(axis=0)
        parts.append(getattr(seconds, name)[..., None] * own)
    different: dict[bytes, Array] = {}
    for part in parts:
        for values in _per_row(part):
            different.setdefault(values.tobytes(), values)
    return list(different.values())


def _per_row(values: Array) -> list[Array]:
    """A table of rows, anything, and sets: one of rows and sets, shape (R, S), for each of anything."""
    return list(np.moveaxis(values.reshape(len(values), -1, values.shape[-1]), 1, 0))


def memory_follows(facts: Facts, decisions: Decisions) -> Flags:
    """
    Whether a peak falls with the bytes that layers keep, shape (R,).

    A layer that keeps less needs as much more while it is at work. Each rank must have as many micro-batches in flight
    as layers are at work, of layers of multi-token prediction one; what is offloaded in part saves less.
    """
    memory = facts.cluster.device.behaviour.memory
    stages, alone = different_ranks(facts, decisions), np.zeros(np.shape(decisions["tp"]), dtype=bool)
    in_flight = microbatches_in_flight(facts, {**decisions, "ep_overlap": alone}, stages)
    share = 1.0 if memory.offloaded_fraction == 1 else 1.0 - memory.offloaded_fraction
    fewest = np.minimum(in_flight, 1.0) if facts.model.mtp_layers else in_flight
    return np.asarray(((share * fewest >= memory.working_layers) & (in_flight >= 1)).all(axis=-1))
