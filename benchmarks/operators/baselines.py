"""What learned collective times are compared with: datasheet, fitted latency and bandwidth, interpolation, forest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from costmodel.facts.samples import Fabric
from costmodel.network.link_law import Calls
from costmodel.timing.gaussian_process import Rows
from planner.measure.fit.estimation import Known, Measured, estimate_constants

LAUNCH, STEP, NETWORK_STEP = 5e-6, 2e-6, 5e-6
"""Seconds of a collective, of each step inside a node and of each between nodes, where only the datasheet is known."""

ALPHA_BETA = {
    "launch": Known(value=10e-6, width=2.0),
    "step": Known(value=3e-6, width=2.0),
    "bandwidth": Known(value=50e9, width=2.0),
}
"""About what latency and bandwidth are fitted."""

FEW = 3
"""Samples of a kind, inside a node or between nodes, below which those of others fit."""


def datasheet_seconds(fabric: Fabric, calls: Calls) -> Rows:
    """Bytes that each rank sends over the slowest link at its datasheet, and a usual latency for each step."""
    bandwidth = np.full(len(calls), fabric.bandwidth or np.inf)
    if fabric.fast_peers and fabric.slow_bandwidth:
        bandwidth = np.where(calls.ranks_per_node > fabric.fast_peers, fabric.slow_bandwidth, bandwidth)
    leaves = calls.nodes > 1
    outwards = np.minimum(
        calls.ranks_per_node * (fabric.network_bandwidth or np.inf), fabric.node_network_bandwidth or np.inf
    )
    bandwidth = np.where(leaves, np.minimum(bandwidth, outwards), bandwidth)
    seconds: Rows = LAUNCH + np.where(leaves, NETWORK_STEP, STEP) * calls.steps + calls.sent_bytes / bandwidth
    return seconds


def alpha_beta_seconds(known: Measured[Calls], calls: Calls) -> Rows:
    """
    Launch, latency of each step and bandwidth, fitted for each kind inside a node and between nodes.

    Of few samples those of all kinds at this level fit, else all.
    """
    seconds = np.empty(len(calls))
    leaves, known_leaves = calls.nodes > 1, known.calls.nodes > 1
    for kind, is_out in set(zip(calls.kinds.tolist(), leaves.tolist(), strict=True)):
        rows = (calls.kinds == kind) & (leaves == is_out)
        level = known_leaves == is_out
        some = [(known.calls.kinds == kind) & level, level, np.ones(len(known), dtype=bool)]
        own = known[next(mask for mask in some if np.sum(mask) >= FEW)]

        found = estimate_constants(partial(_alpha_beta, calls=own.calls), own.seconds, ALPHA_BETA)
        seconds[rows] = _alpha_beta(found.values, calls[rows])
    return seconds


def _alpha_beta(constants: Mapping[str, float], calls: Calls) -> Rows:
    transfer = calls.sent_bytes / constants["bandwidth"]
    seconds: Rows = constants["launch"] + constants["step"] * calls.steps + transfer
    return seconds


def forest_seconds(known: Measured[Calls], calls: Calls) -> Rows:
    """A random forest of bytes, ranks, nodes and kind, as in arXiv 2509.22832."""
    forest = RandomForestRegressor(100, random_state=0, n_jobs=2)
    forest.fit(known.calls.features, np.log(known.seconds))
    seconds: Rows = np.exp(forest.predict(calls.features))
    return seconds


def interpolated_seconds(known: Measured[Calls], calls: Calls) -> Rows:
    """
    Logarithms interpolated by the bytes' logarithm on a known curve; else a line through such curves by their ranks.

    Curves of the same kind and level are taken, or of the same kind, or all.
    """
    curves = {curve: _curve(known, curve) for curve in set(known.calls.curves)}
    seconds = np.empty(len(calls))
    sizes = np.log2(calls.nbytes)
    for curve in set(calls.curves):
        rows = np.array([one == curve for one in calls.curves])
        if curve in curves:
            seconds[rows] = np.exp(_at(*curves[curve], sizes[rows]))
            continue
        kind, ranks, nodes = curve
        choices = (
            [one for one in curves if one[0] == kind and (one[2] > 1) == (nodes > 1)],
            [one for one in curves if one[0] == kind],
            list(curves),
        )
        near = next(some for some in choices if some)
        values = np.array([_at(*curves[one], sizes[rows]) for one in near])
        distances = np.log2([one[1] for one in near]) - np.log2(ranks)
        design = np.column_stack([np.ones(len(near)), distances])
        line = np.linalg.lstsq(design, values, rcond=None)[0] if np.ptp(distances) else np.mean(values, 0)[None]
        seconds[rows] = np.exp(line[0])
    return seconds


def _curve(known: Measured[Calls], curve: tuple[int, int, int]) -> tuple[Rows, Rows]:
    """Logarithms of a curve's sizes, and of the median seconds of each."""
    rows = np.array([one == curve for one in known.calls.curves])
    sizes, seconds = known.calls.nbytes[rows], known.seconds[rows]
    distinct = np.unique(sizes)
    return np.log2(distinct), np.log([np.median(seconds[sizes == one]) for one in distinct])


def _at(sizes: Rows, values: Rows, wanted: NDArray[np.float64]) -> Rows:
    """Interpolated values; beyond the ends the slope of the four next samples goes on."""
    found: Rows = np.interp(wanted, sizes, values)
    if len(sizes) < 2:
        return found
    last = max(-len(sizes), -4)
    first = min(3, len(sizes) - 1)
    above, below = wanted > sizes[-1], wanted < sizes[0]
    found[above] += (wanted[above] - sizes[-1]) * (values[-1] - values[last]) / (sizes[-1] - sizes[last])
    found[below] += (wanted[below] - sizes[0]) * (values[first] - values[0]) / (sizes[first] - sizes[0])
    return found
