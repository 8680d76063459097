"""Rates and overhead of a machine, as its trace shows them: rates of large operators, times of the smallest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.shapes.work import Work

GOOD = 0.9
"""Quantile of rates that counts as the achieved rate of large operators; single operators are mismeasured."""

LARGE = 0.1
"""Share of the largest work above which an operator counts as large."""

LEAST = 0.05
"""Quantile of times that counts as the overhead of an operator."""

FIXED = 5_000.0
"""
Upper bound of a kernel's fixed time in nanoseconds, where no shorter kernel lowers it.

The smallest kernels of public traces, 5 % of all, take up to 2.0 us on H800 (DeepSeek-V3) and A100, and 1.7 us on
MI300X. Matmuls also fill and drain their pipelines. Vidur's times of linear layers at other numbers of tokens and ranks
follow equally well with 2 and 5 us on A100. On H100 those at twice the tokens follow better with 5 us.
"""

APART = 4.0
"""Ratio of two works above which a line through their times gives the overhead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """
    Rates and overhead that a machine achieved in a trace.

    Parameters
    ----------
    flops_per_second, bytes_per_second
        Rates of large operators that multiply, and of those that only move data; infinite where there are none.
    overhead
        Nanoseconds of an operator with almost no work: on threads the least time of an operator, on devices the
        shortest kernel, at most :data:`FIXED`.
    largest_flops
        FLOPs of the largest operator.
    """

    flops_per_second: float
    bytes_per_second: float
    overhead: float
    largest_flops: float

    def seconds(self, work: Work) -> float:
        r"""
        Roofline time, :math:`\max(F / R, Q / B)`; a term whose rate was not recorded is left out.

        Parameters
        ----------
        work
            Work of an operator.
        """
        return max(work.flops / self.flops_per_second, work.nbytes / self.bytes_per_second)


def machine(
    works: Sequence[Work],
    durations: NDArray[np.float64],
    everything: NDArray[np.float64],
    *,
    on_device: bool = False,
) -> Machine:
    """
    Derive the rates and the overhead of a trace's machine.

    Parameters
    ----------
    works, durations
        Work of operators, and their nanoseconds; shape (operators,).
    everything
        Nanoseconds of all operators, including those without work.
    on_device
        True where they are kernels.
    """
    flops = np.array([work.flops for work in works])
    nbytes = np.array([work.nbytes for work in works])
    return Machine(
        flops_per_second=_rate(flops, durations),
        bytes_per_second=_rate(np.where(flops > 0, 0.0, nbytes), durations),
        overhead=_overhead(everything, on_device=on_device),
        largest_flops=float(flops.max(initial=0.0)),
    )


def _overhead(everything: NDArray[np.float64], *, on_device: bool) -> float:
    """Return the time of an operator with almost no work."""
    if not len(everything):
        return 0.0
    return min(float(everything.min()), FIXED) if on_device else float(np.quantile(everything, LEAST))


def _rate(amounts: NDArray[np.float64], durations: NDArray[np.float64]) -> float:
    """Return the rate per second that large operators achieve."""
    large = (amounts > LARGE * amounts.max(initial=0.0)) & (durations > 0)
    if not large.any():
        return np.inf
    return float(np.quantile(amounts[large] / durations[large], GOOD)) * 1e9


def overhead_of(seconds: NDArray[np.float64], durations: NDArray[np.float64], *, least: float) -> float:
    r"""
    Return the overhead in nanoseconds of operators of one name, from those that differ in size.

    .. math:: t = t_0 + c \cdot w

    The median of t_0 over all pairs whose work differs enough (after Theil and Sen); at least the overhead of any
    operator, at most the time of the smallest one.

    Parameters
    ----------
    seconds
        Roofline time of the work of each size, w; shape (sizes,).
    durations
        Nanoseconds of each, t.
    least
        Overhead of any operator, in nanoseconds.

    >>> overhead_of(np.array([1.0, 2.0, 8.0]), np.array([7.0, 9.0, 21.0]), least=1.0)
    5.0
    """
    found = [
        low_time - low * (high_time - low_time) / (high - low)
        for (low, low_time), (high, high_time) in combinations(sorted(zip(seconds, durations, strict=True)), 2)
        if high >= APART * low > 0
    ]
    if not found:
        return min(least, float(durations.min()))
    return float(np.clip(np.median(found), min(least, durations.min()), durations.min()))
