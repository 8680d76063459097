"""How much time is left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


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
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds_left(self) -> float:
        """What is left of it; negative once it is over."""
        return self.seconds - (time.perf_counter() - self.started)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it."""
        return self.seconds_left <= 0
