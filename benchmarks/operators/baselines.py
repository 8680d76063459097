"""Baselines of learned collective times: datasheet, fitted latency and bandwidth, interpolation, forest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel.facts.calibration import Fabric
from costmodel.network.link_law import Calls
from costmodel.timing.gaussian_process import Rows
from costmodel.timing.sampled_source import NORMAL_90
from planner.measure.fit.law import Known, Measured, estimate_constants

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

    A kind with few samples is fitted to those of all kinds at this level, or else to all samples.
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
    from sklearn.ensemble import RandomForestRegressor  # two seconds, which laws without a forest need not wait

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


Unseen: TypeAlias = pd.DataFrame
"""
Relative errors on samples that were left out, a row each.

``system``, ``group``: the system or device; operator, kind of collective or fold, by which errors are reported.
``covered``: the 90 % interval holds the measured time. ``outside``: 1 where the sample is outside of the range of the
known ones, else 0; NaN where it is not known. ``nbytes``: of each collective, 0 of others. Further columns are laws:
predicted over measured, less one, absolute; NaN where there is no datasheet.
"""

FACTS = ("system", "group", "covered", "outside", "nbytes")


def error_within(unseen: Unseen, fraction: float, law: str = "learned") -> float:
    """Error that a fraction of the rows is within; NaN where the law has none."""
    return float(np.quantile(unseen[law], fraction))


def by_group(unseen: Unseen) -> Iterator[tuple[str, str, Unseen]]:
    """Yield the rows of each system and group, with their names."""
    for names, rows in unseen.groupby(["system", "group"]):
        yield *names, rows


def score(
    measured: Rows,
    seconds: Mapping[str, Rows],
    deviation: Rows,
    *,
    system: str,
    groups: NDArray[np.str_],
    outside: NDArray[np.bool_] | None = None,
    nbytes: Rows | None = None,
) -> Unseen:
    """
    Compare the seconds of laws with measured ones.

    Parameters
    ----------
    measured
        Measured seconds; shape (rows,).
    seconds, deviation
        Seconds by law, with ``learned``, whose logarithm has this standard deviation; shape (rows,).
    system, groups, outside, nbytes
        As in :data:`Unseen`.
    """
    logarithms = np.log(seconds["learned"] / measured)
    return pd.DataFrame(
        {
            "system": system,
            "group": groups,
            "covered": np.abs(logarithms) <= NORMAL_90 * deviation,
            "outside": np.nan if outside is None else outside.astype(float),
            "nbytes": 0.0 if nbytes is None else nbytes,
            **{name: np.abs(own / measured - 1) for name, own in seconds.items()},
        }
    )


def joined(parts: Sequence[Unseen]) -> Unseen:
    """Join parts with the same laws."""
    return pd.concat(parts, ignore_index=True)


def laws_of(unseen: Unseen) -> list[str]:
    """List the laws whose errors are there."""
    return [name for name in unseen.columns if name not in FACTS]


def head(laws: Iterable[str]) -> str:
    """Return the heading of a table."""
    heads = "".join(f"{name:>18}" for name in laws)
    return f"{'system':28}{'errors of':28}{'rows':>7}{heads}{'in 90 %':>9}{'outside':>9}"


def group_lines(unseen: Unseen) -> Iterator[str]:
    """Yield a row for each system and group: median and 90th percentile of each law."""
    yield from (line(*one) for one in by_group(unseen))


def lines(unseen: Unseen) -> Iterator[str]:
    """Yield a table: a row for each system and group; then all together."""
    yield head(laws_of(unseen))
    yield from group_lines(unseen)
    yield line("all", "", unseen)


def line(system: str, group: str, unseen: Unseen) -> str:
    """Return one row of the table."""
    cells = "".join(f"{_cell(unseen, law):>18}" for law in laws_of(unseen))
    beyond = float(np.mean(unseen["outside"].to_numpy()))
    shares = f"{np.mean(unseen['covered']):>9.0%}{'-' if np.isnan(beyond) else f'{beyond:.1%}':>9}"
    return f"{system[:27]:28}{group[:27]:28}{len(unseen):>7}{cells}{shares}"


def _cell(unseen: Unseen, law: str) -> str:
    middle, most = (error_within(unseen, fraction, law) for fraction in (0.5, 0.9))
    return "-" if np.isnan(middle) else f"{middle:.1%} / {most:.1%}"
