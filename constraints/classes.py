"""Sort candidates into classes: candidates that break the same rules share a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Classes:
    """
    Candidates grouped by their answers to the rules asked so far.

    Parameters
    ----------
    index
        Class of each candidate.
    broken
        Rules that the candidates of each class break, among those named so far.
    """

    index: NDArray[np.int64]
    broken: tuple[frozenset[Any], ...]

    @classmethod
    def one(cls, size: int) -> Classes:
        """Build one class that holds all candidates."""
        return cls(index=np.zeros(size, dtype=np.int64), broken=(frozenset(),))

    @property
    def size(self) -> int:
        """Number of candidates."""
        return len(self.index)

    @property
    def count(self) -> int:
        """Number of classes, empty ones included."""
        return len(self.broken)

    @property
    def first(self) -> NDArray[np.int64]:
        """One candidate of each class; every class must have one."""
        first = np.zeros(self.count, dtype=np.int64)
        first[self.index[::-1]] = np.arange(self.size)[::-1]
        return first

    def take(self, which: Any) -> Classes:
        """Return the classes of some of the candidates."""
        return Classes(index=self.index[which], broken=self.broken)

    def refine(self, breaks: NDArray[np.bool_], rule: Any) -> Classes:
        """
        Split each class by one more answer.

        Parameters
        ----------
        breaks
            True for each candidate that breaks the rule.
        rule
            The broken rule; None where only the split matters.
        """
        split = 2 * self.index + breaks
        present = np.zeros(2 * self.count, dtype=bool)
        present[split] = True
        renumbered = np.cumsum(present) - 1
        broken = tuple(
            self.broken[old // 2] | {rule} if old % 2 and rule is not None else self.broken[old // 2]
            for old in np.flatnonzero(present).tolist()
        )
        return Classes(index=renumbered[split], broken=broken)
