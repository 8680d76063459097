"""Results of a search so far: strategies in the order of preference, the best of each group, and the cut."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from constraints.encoding import MAX_TICKS, Candidates
from costmodel.record import record
from costmodel.strategy import DECISIONS, StageLayout, Strategy
from planner.search.candidates import Ints, sort_by_preference
from planner.search.space import strategy_of


@dataclass(order=True, frozen=True, slots=True)
class Found:
    """A strategy, in the order of preference."""

    ticks: int
    device_mebibytes: int
    host_mebibytes: int
    values: tuple[int, ...]
    layout: StageLayout | None = field(default=None, compare=False)
    seconds: float = field(default=0.0, compare=False)

    @classmethod
    def build(cls, candidates: Candidates, index: int) -> Found:
        """Return one of some candidates."""
        return cls(
            seconds=float(candidates.seconds[index]),
            ticks=int(candidates.ticks[index]),
            device_mebibytes=int(candidates.device_mebibytes[index]),
            host_mebibytes=int(candidates.host_mebibytes[index]),
            values=tuple(int(candidates.decisions[name][index]) for name in DECISIONS),
        )

    @property
    def strategy(self) -> Strategy:
        """The strategy itself."""
        return replace(strategy_of(dict(zip(DECISIONS, self.values, strict=True))), layout=self.layout)


@record(frozen=True, kw_only=True, slots=True)
class Rivals:
    """
    Best ticks of each group that other searches for the same job have found; slower strategies are not needed.

    Parameters
    ----------
    ticks, summed_ticks
        Ticks of the compared step time; of uneven stages, ticks of the sum over their ranks.
    """

    ticks: Mapping[Hashable, int] = field(default_factory=dict)
    summed_ticks: Mapping[Hashable, int] = field(default_factory=dict)

    def merge(self, others: Rivals) -> Rivals:
        """Merge other rivals into these; of two in one group the faster one stays."""
        ticks, summed = _merge(self.ticks, others.ticks), _merge(self.summed_ticks, others.summed_ticks)
        return Rivals(ticks=ticks, summed_ticks=summed)


def _merge(some: Mapping[Hashable, int], others: Mapping[Hashable, int]) -> dict[Hashable, int]:
    return {**some, **{group: min(ticks, some.get(group, ticks)) for group, ticks in others.items()}}


NO_RIVALS = Rivals()
"""No other search has results."""


@dataclass(kw_only=True, slots=True)
class IncumbentPool:
    """
    The best strategy of each group so far, and the cut that follows; with all variants each is a group.

    Ticks of rivals cut as well, though they are not among the best. Strategies are of interest up to a margin above the
    fastest one, the ``tolerance``, whatever their group.
    """

    top: int
    tolerance: float = 0.0
    groups: dict[Hashable, Found] = field(default_factory=dict)
    rivals: Mapping[Hashable, int] = field(default_factory=dict)

    def add_candidates(self, candidates: Candidates, groups: Ints) -> None:
        """Keep the preferred one of each group of some candidates, if it is its group's best."""
        order = sort_by_preference(candidates)
        for index in order[np.sort(np.unique(groups[order], return_index=True)[1])].tolist():
            self.add(int(groups[index]), Found.build(candidates, index))

    def add(self, group: Hashable, found: Found) -> None:
        """Keep a strategy if it is its group's best."""
        self.groups[group] = min(found, self.groups.get(group, found))

    def add_all(self, variants: Iterable[Found]) -> None:
        """Keep the best of the known and some more strategies."""
        known = sorted({*self.groups.values(), *variants})
        self.groups = {(found.values, found.layout): found for found in known[: self.top]}

    @property
    def best(self) -> list[Found]:
        """The best strategies, best first."""
        return sorted(self.groups.values())[: self.top]

    @property
    def least(self) -> list[int]:
        """Ticks of the best strategy of each group, rivals among them, ascending."""
        least = {group: found.ticks for group, found in self.groups.items()}
        for group, ticks in self.rivals.items():
            least[group] = min(ticks, least.get(group, ticks))
        return sorted(least.values())

    @property
    def cut(self) -> int:
        """Ticks of the slowest strategy that is reported; slower strategies are cut."""
        best = self.least
        return best[self.top - 1] if len(best) >= self.top else MAX_TICKS

    @property
    def margin(self) -> int:
        """Ticks up to which every strategy is of interest; negative where none is known."""
        best = self.least
        return min(ceil(best[0] * (1 + self.tolerance)), MAX_TICKS) if best else -1

    @property
    def reach(self) -> int:
        """Ticks above which no strategy is of interest."""
        return max(self.cut, self.margin)

    def reaches(self, groups: Ints) -> Ints:
        """Return the ticks above which no strategy is of interest, for rows of given groups."""
        return np.maximum(self.cuts(groups), self.margin)

    def cuts(self, groups: Ints) -> Ints:
        """Return the cuts for rows of given groups: a group's own strategy cuts it too."""
        cut = self.cut
        rivals = self.rivals
        own = [min(cut, self.groups[group].ticks) if group in self.groups else cut for group in groups.tolist()]
        if rivals:
            own = [min(ticks, rivals.get(group, ticks)) for ticks, group in zip(own, groups.tolist(), strict=True)]
        return np.array(own, dtype=np.int64)
