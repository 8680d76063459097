"""Occupancy of a device over time: the share of its processors that have blocks of kernels to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Device, Integers, Trace, Track
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.replay import Replayed

Shares: TypeAlias = NDArray[np.float64]
"""Shares of the processors, 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessorUse:
    """
    Share of a device's processors (streaming multiprocessors, compute units) that kernels occupy.

    Parameters
    ----------
    begin, end
        The interval, in nanoseconds since the iteration began.
    shares
        Mean share in each of its equal parts, 0 to 1; shape (parts,).
    num_kernels, num_unknown
        Number of kernels, and of those without recorded blocks or device: they are not in the shares.
    unknown_nanoseconds
        Total time of the latter.
    """

    begin: int
    end: int
    shares: Shares
    num_kernels: int
    num_unknown: int
    unknown_nanoseconds: int

    @property
    def mean(self) -> float:
        """Mean share of the whole interval."""
        return float(self.shares.mean())


def processor_use(
    graph: ExecutionGraph, times: Replayed, rank: int, *, window: tuple[int, int], num_parts: int
) -> ProcessorUse | None:
    r"""
    Return the share of a rank's processors that are occupied over time; None where no kernel's blocks were recorded.

    .. math:: u(t) = \min\left(1, \sum_k \min\left(1, \frac{b_k}{n}\right)\right)

    with :math:`b_k` the blocks of the kernels that run at t, n the processors of the device. It is an upper bound: a
    kernel counts in full from its first block to its last, and blocks of several kernels may share a processor.

    Parameters
    ----------
    graph, times, rank
        A graph, the times of its tasks, and the rank of the device.
    window
        Begin and end of the interval, in nanoseconds since the iteration began.
    num_parts
        Number of equal parts of the interval.
    """
    own = (graph.task_ranks == rank) & graph.is_on_stream
    kernels = np.flatnonzero(own & np.isin(graph.tasks.kind, (Kind.COMPUTE, Kind.COMMUNICATION)))
    share = _shares(graph, kernels)
    known = ~np.isnan(share)
    if not known.any():
        return None
    start, end = times.start[kernels], times.end[kernels]
    return ProcessorUse(
        begin=window[0],
        end=window[1],
        shares=_means(start[known], end[known], share[known], np.linspace(*window, num_parts + 1)),
        num_kernels=len(kernels),
        num_unknown=int(np.count_nonzero(~known)),
        unknown_nanoseconds=int((end - start)[~known].sum()),
    )


def _shares(graph: ExecutionGraph, kernels: Integers) -> Shares:
    """Return the share of the processors that each kernel occupies; NaN where it was not recorded."""
    found = np.full(len(kernels), np.nan)
    of_trace, event = graph.tasks.trace[kernels], graph.tasks.event[kernels]
    for number, trace in enumerate(graph.traces):
        own = np.flatnonzero((of_trace == number) & (event != UNKNOWN))
        places = trace.events.blocks[event[own]]
        tracks = trace.events.track[event[own]]
        pairs, which = np.unique(np.column_stack([places, tracks]), axis=0, return_inverse=True)
        shares = [_share(trace, place, trace.tracks[track]) for place, track in pairs.tolist()]
        found[own] = np.array(shares, dtype=np.float64)[which.ravel()]
    return found


def _share(trace: Trace, place: int, track: Track) -> float:
    """Return the share of a kernel with some blocks on a stream."""
    if place == UNKNOWN:
        return np.nan
    blocks, device = trace.blocks[place], _device(trace, track)
    if device is not None and device.num_processors and blocks.num_blocks:
        return min(1.0, blocks.num_blocks / device.num_processors)
    return min(1.0, blocks.blocks_per_processor) if blocks.blocks_per_processor else np.nan


def _device(trace: Trace, track: Track) -> Device | None:
    """Return the device of a stream; where its number names none, the only kind of device, else None."""
    if track.process.isascii() and track.process.isdigit() and int(track.process) < len(trace.devices):
        return trace.devices[int(track.process)]
    return trace.devices[0] if len(set(trace.devices)) == 1 else None


def _means(
    start: Integers, end: Integers, share: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean between edges of the sum of some intervals' shares, at most 1."""
    moments, place = np.unique(np.concatenate([start, end]), return_inverse=True)
    changes = np.bincount(place.ravel(), weights=np.concatenate([share, -share]), minlength=len(moments))
    level = np.clip(np.cumsum(changes)[:-1], 0, 1)
    until = np.concatenate([[0.0], np.cumsum(level * np.diff(moments))])
    means: Shares = np.diff(np.interp(edges, moments, until)) / np.diff(edges)
    return np.clip(means, 0, 1)
