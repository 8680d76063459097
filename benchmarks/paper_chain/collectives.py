"""Times of large collectives by the rates of one cluster's samples: how fast devices send, inside a node and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.operators.groups import DATA
from costmodel.errors import SpecError

SAMPLES = DATA / "collectives.csv"

KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "sendrecv": "send"}
"""Collectives by their names in the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledNetwork:
    r"""
    Collectives of megabytes and more on one cluster.

    .. math:: T = \frac{W}{l R}

    W are the bytes that a rank sends: 2 (n - 1) / n of a sum, (n - 1) / n of a gather. R is the rate of one sender, and
    l how many send at once: inside a node, whose devices have a link to each other, a device's n - 1 links; across
    nodes a node's members, each its share. Tens of microseconds until it starts are less than its rate is unsure.

    Parameters
    ----------
    bytes_per_second
        R, in the median of the samples, by kind of collective and whether it crosses nodes.
    """

    bytes_per_second: Mapping[tuple[str, bool], float]

    def collective_seconds(self, kind: str, nbytes: float, ranks: int, nodes: int) -> float:
        """
        Seconds of one collective; none of one rank.

        Parameters
        ----------
        kind
            ``all_reduce``, ``all_gather`` or ``send``.
        nbytes
            Bytes of the whole tensor.
        ranks, nodes
            Members, and nodes that they are on.

        Raises
        ------
        SpecError
            If there are no samples of its kind.
        """
        if ranks < 2:
            return 0.0
        rate = self.bytes_per_second.get((kind, nodes > 1))
        if rate is None:
            place = "across nodes" if nodes > 1 else "inside a node"
            raise SpecError("collectives", f"there are no samples of {kind} {place}.")
        return float(_sent(kind, np.array([nbytes]), np.array([ranks]), np.array([nodes]))[0]) / rate


def sampled_network(hardware: str) -> SampledNetwork:
    """
    The network of one cluster of the table of collectives.

    Parameters
    ----------
    hardware
        What its name in the table starts with.

    Raises
    ------
    SpecError
        If the table has none of that name.
    """
    table = pd.read_csv(SAMPLES)
    rows = table[table.hardware.str.startswith(hardware) & table.op.isin(KINDS)]
    if rows.empty:
        raise SpecError(str(SAMPLES), f"no hardware starts with {hardware!r}.")
    rates = {}
    for (name, crosses), own in rows.groupby(["op", rows.nodes > 1]):
        counts = own.n_gpus.to_numpy(dtype=int), own.nodes.to_numpy(dtype=int)
        sent = _sent(KINDS[str(name)], own.message_bytes.to_numpy(dtype=float), *counts)
        rates[KINDS[str(name)], bool(crosses)] = float(np.median(sent / (own.time_us.to_numpy(dtype=float) * 1e-6)))
    return SampledNetwork(bytes_per_second=rates)


def _sent(
    kind: str, nbytes: NDArray[np.float64], ranks: NDArray[np.int64], nodes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Bytes of the sender that sends most; shape (rows,)."""
    if kind == "send":
        return nbytes
    wire = (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks * nbytes
    sent: NDArray[np.float64] = wire / np.where(nodes > 1, ranks / nodes, ranks - 1)
    return sent
