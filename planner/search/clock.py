"""How much time is left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


class OutOfTimeError(Exception):
    """A clock is over; whoever set it says what is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """
    A span of time that has begun.

    Parameters
    ----------
    seconds
        Its length.
    """

    seconds: float
    started: float = field(default_factory=lambda: time.perf_counter())

    @property
    def seconds_left(self) -> float:
        """What is left of it; negative once it is over."""
        return self.seconds - (time.perf_counter() - self.started)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it."""
        return self.seconds_left <= 0

    def require(self) -> None:
        """
        Go on only where something is left of it.

        Raises
        ------
        OutOfTimeError
            If nothing is.
        """
        if self.is_over:
            raise OutOfTimeError
