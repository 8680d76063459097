"""
Clock of a time limit.

Limits are processor time, so that a busy machine does not change an answer. Time on the wall is an outer bound.
"""

from __future__ import annotations

import time
from dataclasses import field

from costmodel.record import record

LONGEST_WALL = 4.0
"""Seconds on the wall for each second of a limit; a process that gets less of a processor is cut short."""


class OutOfTimeError(Exception):
    """Time ran out; the caller reports the incomplete result."""


@record(frozen=True, kw_only=True, slots=True)
class Clock:
    """
    A running time limit.

    Parameters
    ----------
    seconds
        Length of the limit: seconds of the processor, or :data:`LONGEST_WALL` times as many on the wall.
    """

    seconds: float
    started: tuple[float, float] = field(default_factory=lambda: (time.process_time(), time.perf_counter()))

    @property
    def usage_seconds(self) -> float:
        """Seconds since the start."""
        busy, wall = time.process_time() - self.started[0], time.perf_counter() - self.started[1]
        return max(busy, wall / LONGEST_WALL)

    @property
    def seconds_left(self) -> float:
        """Remaining seconds; negative once time is up."""
        return self.seconds - self.usage_seconds

    @property
    def is_over(self) -> bool:
        """True once time is up."""
        return self.seconds_left <= 0

    def require(self) -> None:
        """
        Check that time is left.

        Raises
        ------
        OutOfTimeError
            If time is up.
        """
        if self.is_over:
            raise OutOfTimeError
