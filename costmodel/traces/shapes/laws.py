"""What this trace says of its machine: rates of large operators, and what the smallest take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from costmodel.traces.shapes.work import Work

GOOD = 0.9
"""Quantile of rates that counts as what a machine achieves with large operators: single ones are mismeasured."""

LARGE = 0.1
"""Share of the largest work from which an operator counts as large."""

LEAST = 0.05
"""Quantile of times that counts as what an operator takes that has next to nothing to do."""

FIXED = 5_000.0
"""
Nanoseconds that are at most fixed of a kernel's time, where no shorter kernel says less.

The smallest kernels of public traces, 5 % of all, take up to 2.0 us on H800 (DeepSeek-V3) and A100, and 1.7 us on
MI300X; matmuls fill and drain their pipelines besides. From Vidur's times of linear layers, those at other numbers of
tokens and ranks follow alike with 2 and 5 us on A100; on H100 those at twice the tokens follow better with 5 us.
"""

APART = 4.0
"""Ratio of two works from which a line through their times says what of them is overhead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """
    What a machine achieved in a trace.

    Parameters
    ----------
    flops_per_second, bytes_per_second
        Of large operators that multiply, and of those that only move; infinite where there are none.
    overhead
        Nanoseconds of an operator that has next to nothing to do: on threads the least that they take, on devices the
        shortest kernel, where that is no longer than :data:`FIXED`.
    largest_flops
        Of one operator.
    """

    flops_per_second: float
    bytes_per_second: float
    overhead: float
    largest_flops: float

    def seconds(self, work: Work) -> float:
        r"""
        The roofline, :math:`\max(F / R, Q / B)`; where nothing of a kind was recorded, the other one.

        Parameters
        ----------
        work
            Of an operator.
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
    What a trace says of its machine.

    Parameters
    ----------
    works, durations
        Work of operators, and their nanoseconds; shape (operators,).
    everything
        Nanoseconds of all operators, also of those without work.
    on_device
        Whether they are kernels.
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
    """What an operator takes that has next to nothing to do."""
    if not len(everything):
        return 0.0
    return min(float(everything.min()), FIXED) if on_device else float(np.quantile(everything, LEAST))


def _rate(amounts: NDArray[np.float64], durations: NDArray[np.float64]) -> float:
    """What large operators achieve per second."""
    large = (amounts > LARGE * amounts.max(initial=0.0)) & (durations > 0)
    if not large.any():
        return np.inf
    return float(np.quantile(amounts[large] / durations[large], GOOD)) * 1e9


def overhead_of(seconds: NDArray[np.float64], durations: NDArray[np.float64], *, least: float) -> float:
    r"""
    Nanoseconds that operators of one name take beside their work, from those of them that differ in size.

    .. math:: t = t_0 + c \cdot w

    The median of t_0 over all pairs whose work differs enough (after Theil and Sen); at least what any operator takes,
    at most what the smallest of them does.

    Parameters
    ----------
    seconds
        Work of each size, as the roofline has it, w; shape (sizes,).
    durations
        Nanoseconds of each, t.
    least
        Nanoseconds of any operator.

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
