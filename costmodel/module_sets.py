"""
Sets of recomputed modules that no strategy needs: others save at least as much memory for at most as much time.

A set is compared with others in one strategy, with all other decisions equal. Then only monotony of step time and peak
matters. More seconds of recomputation, of launches or of communication must never make a step faster, and more kept
bytes never a peak smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.lowering.layer import recomputes
from costmodel.memory import different_ranks, layer_footprint, microbatches_in_flight
from costmodel.step.compute import layer_seconds
from costmodel.strategy import MODULES, Recompute
from costmodel.tables import Array, Decisions, Facts, lookup

Flags = NDArray[np.bool_]

OF_LAYERS = ("tp", "cp", "dp", "ep", "etp", "mbs", "sequence_parallel")
"""Decisions that determine a layer's time and activations."""

INSIDE = (
    ("cp_forward", ("core_attention",)),
    ("ep_forward", ("experts",)),
    ("tp_forward", ("mlp", "every_other_matmul")),
)
"""Communication that recomputed modules repeat, as in :func:`costmodel.step.layer.repeated_communication_seconds`."""

PAIRS_AT_ONCE = 2**22
"""Pairs of sets that are compared at once; affects only memory."""


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
    Return a mask of module sets that another set makes needless, shape (R, S).

    Derivation: the seconds of a layer with set s are sums over the modules in s
    (:func:`costmodel.lowering.layer.sum_over_modules`): computation, launches, communication. Let another set s'
    have less of each and drop no less in any kind of layer (delta >= 0 bytes more); then the step is no slower. The
    rank keeps :math:`n \sum_k L_k \delta_k` bytes less and needs at most :math:`w \max_k \delta_k` more for the w
    layers at work. If n >= w, its peak is no higher, with any layers (:func:`memory_follows`). The first of fully equal
    sets is kept. Full recomputation is not compared.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    decisions
        Degrees of rows, shape (R,); ``sequence_parallel``, ``schedule`` and ``vocabulary`` are among them.
    sets, dispatchers, graphs
        Values of ``recompute`` (S), ``token_dispatcher`` and ``cuda_graphs`` that the rows may have.
    alike
        A number for each row and set; only sets with equal numbers are compared, as they allow the same features.
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
    """Return the mask for rows that differ in their layers; compares S times S pairs, the needless set last."""
    chosen = np.array([recomputes(name, recompute=np.array(sets)) for name in MODULES], dtype=np.float64)
    is_set = np.array([one != Recompute.FULL for one in sets])
    position = np.arange(len(sets))
    better = (alike[:, :, None] == alike[:, None, :]) & is_set[:, None] & is_set & (position[:, None] != position)
    dropped = _split_rows(lookup(layer_footprint, facts, decisions).module_bytes @ chosen)
    for bytes_of_kind in dropped:
        better &= bytes_of_kind[:, :, None] >= bytes_of_kind[:, None, :]
    equal = better.copy()
    for bytes_of_kind in dropped:
        equal &= bytes_of_kind[:, :, None] == bytes_of_kind[:, None, :]
    spread = {name: values[:, None, None] for name, values in decisions.items()}
    spread |= {"token_dispatcher": np.array(dispatchers)[:, None], "cuda_graphs": np.array(graphs)}
    seconds = lookup(layer_seconds, facts, spread)
    for again in _repeated_seconds(seconds, chosen):
        better &= again[:, :, None] <= again[:, None, :]
        equal &= again[:, :, None] == again[:, None, :]
    return np.asarray((better & ~(equal & (position[:, None] > position))).any(axis=1))


def _repeated_seconds(seconds: Any, chosen: Array) -> list[Array]:
    """Return the repeated seconds of each set: computation, launches and each communication, shape (R, S) each."""
    parts = [seconds.module_forward @ chosen, seconds.module_host @ chosen]
    for name, modules in INSIDE:
        own = chosen[[MODULES.index(module) for module in modules]].sum(axis=0)
        parts.append(getattr(seconds, name)[..., None] * own)
    different: dict[bytes, Array] = {}
    for part in parts:
        for values in _split_rows(part):
            different.setdefault(values.tobytes(), values)
    return list(different.values())


def _split_rows(values: Array) -> list[Array]:
    """Split a table of rows, other axes and sets into tables of rows and sets, shape (R, S)."""
    return list(np.moveaxis(values.reshape(len(values), -1, values.shape[-1]), 1, 0))


def memory_follows(facts: Facts, decisions: Decisions) -> Flags:
    """
    Return True where a peak falls with the bytes that layers keep, shape (R,).

    A layer that keeps less needs as much more while it is at work. Each rank must have at least as many micro-batches
    in flight as layers at work, or one for layers of multi-token prediction. Partial offloading saves less.
    """
    memory = facts.cluster.device.behaviour.memory
    stages, alone = different_ranks(facts, decisions), np.zeros(np.shape(decisions["tp"]), dtype=bool)
    in_flight = microbatches_in_flight(facts, {**decisions, "ep_overlap": alone}, stages)
    share = 1.0 if memory.offloaded_fraction == 1 else 1.0 - memory.offloaded_fraction
    fewest = np.minimum(in_flight, 1.0) if facts.model.mtp_layers else in_flight
    return np.asarray(((share * fewest >= memory.working_layers) & (in_flight >= 1)).all(axis=-1))
