"""Clock of a time limit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


class OutOfTimeError(Exception):
    """Time ran out; the caller reports the incomplete result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """
    A running time limit.

    Parameters
    ----------
    seconds
        Length of the limit.
    """

    seconds: float
    started: float = field(default_factory=lambda: time.perf_counter())

    @property
    def seconds_left(self) -> float:
        """Remaining seconds; negative once time is up."""
        return self.seconds - (time.perf_counter() - self.started)

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
