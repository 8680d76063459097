"""Number of measured runs with each value of each property: one count, for gaps, intervals and rules of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from pydantic.dataclasses import dataclass as validated

from costmodel.facts.fields import STRICT
from planner.uncertainty.evidence.kinds import ANY
from planner.uncertainty.evidence.stored import read_stored

TABLE = "counts.yaml"

Value: TypeAlias = str | int

Entry: TypeAlias = tuple[str, str, Value]
"""Dimension, subset of runs, and value."""


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class Tally:
    """
    Number of runs with each value.

    Parameters
    ----------
    dimension
        Dimension of the values.
    among
        Subset of runs; ``any`` for all of them.
    runs
        Number of runs by value.
    """

    dimension: str
    among: str
    runs: Mapping[int | str, int]


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class CountsTable:
    """
    Counts of the measured runs.

    Parameters
    ----------
    source
        Source of the runs.
    tallies
        Counts by dimension and subset.
    """

    source: str
    tallies: tuple[Tally, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """
    Some runs, counted.

    Parameters
    ----------
    by_value
        Number of runs by dimension and subset, then by value.
    """

    by_value: Mapping[tuple[str, str], Counter[Value]]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Counts:
        """Count entries of runs."""
        counts: dict[tuple[str, str], Counter[Value]] = {}
        for dimension, among, value in entries:
            counts.setdefault((dimension, among), Counter())[value] += 1
        return cls(counts)

    @property
    def tallies(self) -> list[Tally]:
        """The counts as records of a file, in a fixed order."""
        return [
            Tally(dimension=dimension, among=among, runs=dict(sorted(counter.items(), key=_number_or_text)))
            for (dimension, among), counter in sorted(self.by_value.items())
        ]

    def has(self, among: str) -> bool:
        """Return True if a subset has runs."""
        return any(known == among for _, known in self.by_value)

    def values(self, dimension: str, among: str = ANY) -> Counter[Value]:
        """Return the number of runs with each value of a dimension."""
        return self.by_value.get((dimension, among), Counter())

    def runs(self, dimension: str, value: Value, among: str = ANY) -> int:
        """Return the number of runs with a value."""
        return self.values(dimension, among)[value]

    def total(self, dimension: str, among: str = ANY) -> int:
        """Return the number of runs with any value."""
        return self.values(dimension, among).total()

    def reaching(self, dimension: str, number: int, among: str) -> int:
        """Return the number of runs with at least some number."""
        return sum(runs for value, runs in self.values(dimension, among).items() if int(value) >= number)

    def within(self, dimension: str, number: int, among: str) -> int:
        """Return the number of runs with at most some number."""
        return sum(runs for value, runs in self.values(dimension, among).items() if int(value) <= number)

    def largest(self, dimension: str, among: str, *, fewest: int = 1) -> int:
        """Return the largest number that at least ``fewest`` runs reach; 0 if there is none."""
        numbers = map(int, self.values(dimension, among))
        return max((one for one in numbers if self.reaching(dimension, one, among) >= fewest), default=0)

    def smallest(self, dimension: str, among: str, *, fewest: int = 1) -> int:
        """Return the smallest number that at least ``fewest`` runs do not exceed; 0 if there is none."""
        numbers = map(int, self.values(dimension, among))
        return min((one for one in numbers if self.within(dimension, one, among) >= fewest), default=0)

    def most(self, dimension: str, among: str, number: int) -> list[tuple[Value, int]]:
        """Return the most frequent values, with their number of runs."""
        return sorted(self.values(dimension, among).items(), key=lambda one: (-one[1], str(one[0])))[:number]


def _number_or_text(item: tuple[Value, int]) -> tuple[int, str]:
    value, _ = item
    return (value, "") if isinstance(value, int) else (0, value)


@cache
def read_counts() -> Counts:
    """Return the counts of the project's measured runs."""
    table = read_stored(CountsTable, TABLE, "planner.uncertainty.evidence")
    return Counts({(one.dimension, one.among): Counter(one.runs) for one in table.tallies})
