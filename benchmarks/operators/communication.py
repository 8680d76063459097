"""Collective times learned from published samples, on sizes and numbers of ranks that were left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from benchmarks.operators import baselines
from benchmarks.operators.groups import DATA
from costmodel.errors import SpecError
from costmodel.facts.calibration import Fabric
from costmodel.network.link_law import KINDS, Calls, calls_of
from costmodel.timing.gaussian_process import Rows
from planner.measure.fit.communication import FEWEST, learn_collectives
from planner.measure.fit.law import Measured

PUBLISHED_KINDS = {"allreduce": "all_reduce", "all2all": "all_to_all", "sendrecv": "send", "send_recv": "send"}
"""Names of published tables that are not ours."""

EVERY = 6
"""Stride of the sizes of a curve that are left out at once."""

LATENCY_BOUND = 2 * 2**20
"""Bytes up to which a collective is called latency-bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """
    Samples of one fabric.

    Parameters
    ----------
    name
        In the published table.
    fabric
        Datasheet of the fabric.
    samples
        All of them.
    """

    name: str
    fabric: Fabric
    samples: Measured[Calls]


@cache
def facts() -> dict[str, Any]:
    """Return the datasheets of the published tables' systems."""
    read: dict[str, Any] = yaml.safe_load((DATA / "fabrics.yaml").read_text(encoding="utf-8"))
    return read


def fabric_of(entry: dict[str, Any]) -> Fabric:
    """An entry of ``fabrics.yaml``, whose bandwidths are in GB/s and times in microseconds."""

    def scaled(name: str, unit: float) -> float | None:
        return entry[name] * unit if entry.get(name) is not None else None

    return Fabric(
        bandwidth=scaled("bandwidth", 1e9),
        slow_bandwidth=scaled("slow_bandwidth", 1e9),
        fast_peers=entry.get("fast_peers"),
        is_mesh=entry.get("is_mesh", False),
        sums_in_switch=entry.get("sums_in_switch", False),
        network_bandwidth=scaled("network", 1e9),
        node_network_bandwidth=scaled("node_network", 1e9),
        launch_seconds=scaled("launch_us", 1e-6),
    )


def collectives() -> Iterator[System]:
    """Systems of ``collectives.csv``; seconds by the time, else by either bandwidth that it states."""
    table = pd.read_csv(DATA / "collectives.csv")
    table = table[table.message_bytes.notna()]
    table["op"] = table.op.replace(PUBLISHED_KINDS)
    ranks = table.n_gpus.fillna(32)  # of the one table that does not state them, by the ratio of its bandwidths
    passes = np.where(table.op == "all_reduce", 2.0, 1.0) * np.where(table.op == "send", 1.0, (ranks - 1) / ranks)
    by_algorithm = table.message_bytes / (table.algbw_GBps * 1e9)
    by_bus = table.message_bytes * passes / (table.busbw_GBps * 1e9)
    seconds = (table.time_us * 1e-6).fillna(by_algorithm).fillna(by_bus)
    table = table.assign(ranks=ranks, seconds=seconds)
    notes = table.notes.fillna("")
    is_ring = (table.op == "all_reduce") & (table.nodes == 1) & notes.str.contains("off|Ring")
    for name, entry in facts()["collectives"].items():
        rows = table.hardware.isin(entry["rows"]["hardware"])
        if "ring" in entry["rows"]:
            rows &= is_ring == entry["rows"]["ring"]
        yield _system(name, entry, table[rows])


def small_collectives() -> Iterator[System]:
    """Systems of ``small_collectives.csv.gz``."""
    table = pd.read_csv(DATA / "small_collectives.csv.gz")
    table["op"] = table.op.replace(PUBLISHED_KINDS)
    table = table.rename(columns={"bytes": "message_bytes"})
    table = table.assign(nodes=table.ranks // table.devices_per_node, seconds=table.milliseconds * 1e-3)
    for name, entry in facts()["small_collectives"].items():
        yield _system(name, entry, table[table.system == name])


def _system(name: str, entry: dict[str, Any], rows: pd.DataFrame) -> System:
    if not len(rows):
        raise SpecError("fabrics.yaml", f"no row of the table is of {name}.")
    calls = calls_of(
        rows.op.to_numpy(dtype=str),
        nbytes=rows.message_bytes.to_numpy(),
        ranks=rows.ranks.to_numpy(),
        nodes=rows.nodes.to_numpy(),
    )
    samples = Measured(calls=calls, seconds=rows.seconds.to_numpy(dtype=float))
    return System(name=name, fabric=fabric_of(entry), samples=samples)


# --- what is left out --------------------------------------------------------------------------------------


def by_size(samples: Measured[Calls]) -> NDArray[np.intp]:
    """Fold of each row: each curve's sizes dealt in turn; none (-1) of curves that are too short; shape (rows,)."""
    folds = np.full(len(samples), -1)
    rows_of: dict[tuple[int, int, int], list[int]] = {}
    for row, curve in enumerate(samples.calls.curves):
        rows_of.setdefault(curve, []).append(row)
    for rows in rows_of.values():
        if len(rows) >= EVERY:
            order = np.array(rows)[np.argsort(samples.calls.nbytes[rows], kind="stable")]
            folds[order] = np.arange(len(order)) % EVERY
    return folds


def by_ranks(samples: Measured[Calls]) -> NDArray[np.intp]:
    """Fold of each row: its number of ranks; shape (rows,)."""
    folds: NDArray[np.intp] = samples.calls.ranks.astype(np.intp)
    return folds


def left_out(system: System, folds: NDArray[np.intp]) -> baselines.Unseen | None:
    """Errors on each fold of a system by laws that know the others; None if too few are left to learn from."""
    parts = []
    for fold in np.unique(folds[folds >= 0]):
        known, unseen = system.samples[folds != fold], system.samples[folds == fold]
        if len(known) >= FEWEST:
            parts.append(_errors(system, known, unseen))
    return baselines.joined(parts) if parts else None


def _group(kind: int, _: int, nodes: int) -> str:
    return f"{KINDS[kind]}, {'one node' if nodes == 1 else 'nodes'}"


def _errors(system: System, known: Measured[Calls], unseen: Measured[Calls]) -> baselines.Unseen:
    times = learn_collectives(known, system.fabric)
    calls = unseen.calls
    seconds: dict[str, Rows] = {
        "datasheet": baselines.datasheet_seconds(system.fabric, calls),
        "fitted a + b": baselines.alpha_beta_seconds(known, calls),
        "interpolated": baselines.interpolated_seconds(known, calls),
        "forest": baselines.forest_seconds(known, calls),
        "law": times.law(calls),
        "learned": times.seconds_of(calls),
    }
    groups = np.array([_group(*curve) for curve in calls.curves])
    deviation = times.deviation_of(calls)
    return baselines.score(unseen.seconds, seconds, deviation, system=system.name, groups=groups, nbytes=calls.nbytes)


def latency_bound(unseen: baselines.Unseen) -> NDArray[np.bool_]:
    """Return a mask of the small collectives; shape (rows,)."""
    small: NDArray[np.bool_] = unseen["nbytes"].to_numpy() <= LATENCY_BOUND
    return small
