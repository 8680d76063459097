"""What learned collective times are compared with: datasheet, fitted latency and bandwidth, interpolation, forest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """
    Relative errors on samples that were left out.

    Parameters
    ----------
    systems
        Name of the system, or of the device, of each; shape (rows,).
    groups
        Operator, kind of collective or fold, by which a system's errors are reported; shape (rows,).
    of_laws
        Predicted over measured, less one, absolute, by law; shape (rows,); NaN where there is no datasheet.
    covered
        True where the 90 % interval holds the measured time; shape (rows,).
    outside
        1 where the sample is outside of the range of the known ones, else 0; NaN where it is not known; shape (rows,).
    nbytes
        Bytes of each collective; shape (rows,); 0 of others.
    """

    systems: NDArray[np.str_]
    groups: NDArray[np.str_]
    of_laws: Mapping[str, Rows]
    covered: NDArray[np.bool_]
    outside: Rows
    nbytes: Rows

    def __getitem__(self, rows: NDArray[np.bool_]) -> Unseen:
        """Return some of the rows."""
        return Unseen(
            systems=self.systems[rows],
            groups=self.groups[rows],
            of_laws={name: errors[rows] for name, errors in self.of_laws.items()},
            covered=self.covered[rows],
            outside=self.outside[rows],
            nbytes=self.nbytes[rows],
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.covered)

    def quantile(self, fraction: float, law: str = "learned") -> float:
        """Error that a fraction of the rows is within; NaN where the law has none."""
        return float(np.quantile(self.of_laws[law], fraction))

    def by_group(self) -> Iterator[tuple[str, str, Unseen]]:
        """Yield the rows of each system and group, with their names."""
        pairs = dict.fromkeys(zip(self.systems.tolist(), self.groups.tolist(), strict=True))
        for system, group in sorted(pairs):
            yield system, group, self[(self.systems == system) & (self.groups == group)]


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
        As in :class:`Unseen`.
    """
    logarithms = np.log(seconds["learned"] / measured)
    return Unseen(
        systems=np.full(len(measured), system),
        groups=groups,
        of_laws={name: np.abs(own / measured - 1) for name, own in seconds.items()},
        covered=np.abs(logarithms) <= NORMAL_90 * deviation,
        outside=np.full(len(measured), np.nan) if outside is None else outside.astype(float),
        nbytes=np.zeros(len(measured)) if nbytes is None else nbytes,
    )


def joined(parts: Sequence[Unseen]) -> Unseen:
    """Join parts with the same laws."""
    return Unseen(
        of_laws={name: np.concatenate([one.of_laws[name] for one in parts]) for name in parts[0].of_laws},
        **{
            name: np.concatenate([getattr(one, name) for one in parts])
            for name in ("systems", "groups", "covered", "outside", "nbytes")
        },
    )


def head(laws: Iterable[str]) -> str:
    """Return the heading of a table."""
    heads = "".join(f"{name:>18}" for name in laws)
    return f"{'system':28}{'errors of':28}{'rows':>7}{heads}{'in 90 %':>9}{'outside':>9}"


def group_lines(unseen: Unseen) -> Iterator[str]:
    """Yield a row for each system and group: median and 90th percentile of each law."""
    yield from (line(*one) for one in unseen.by_group())


def lines(unseen: Unseen) -> Iterator[str]:
    """Yield a table: a row for each system and group; then all together."""
    yield head(unseen.of_laws)
    yield from group_lines(unseen)
    yield line("all", "", unseen)


def line(system: str, group: str, unseen: Unseen) -> str:
    """Return one row of the table."""
    cells = "".join(f"{_cell(unseen, law):>18}" for law in unseen.of_laws)
    beyond = float(np.mean(unseen.outside))
    shares = f"{np.mean(unseen.covered):>9.0%}{'-' if np.isnan(beyond) else f'{beyond:.1%}':>9}"
    return f"{system[:27]:28}{group[:27]:28}{len(unseen):>7}{cells}{shares}"


def _cell(unseen: Unseen, law: str) -> str:
    middle, most = (unseen.quantile(fraction, law) for fraction in (0.5, 0.9))
    return "-" if np.isnan(middle) else f"{middle:.1%} / {most:.1%}"
