"""Settings of CP-SAT: one worker and one seed, so that each job has one answer."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from constraints.cp_sat import cp_model
from constraints.encoding import MAX_TICKS, Candidates
from costmodel.strategy import DECISIONS, StageLayout, Strategy
from planner.jobs.problem import Problem
from planner.search.candidates import Ints
from planner.search.space import strategy_of


def new_solver(seconds: float, *, one_of_many: bool = False) -> cp_model.CpSolver:
    """
    Make a solver with one worker and one seed, so that answers repeat.

    OR-Tools issue 5293 asks for the inclusion limit.

    Parameters
    ----------
    seconds
        Time limit.
    one_of_many
        True where it chooses one entry of a list. Probing, symmetries and relaxations then find nothing and take more
        than half of the time.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.catch_sigint_signal = False  # its handler takes the place of Python's: Ctrl-C would kill
    if one_of_many:
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        solver.parameters.linearization_level = 0
    solver.parameters.max_time_in_seconds = max(seconds, 0.0)
    return solver


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


Verb = TypeVar("Verb", bound=Callable[..., Any])


def releases_memory(verb: Verb) -> Verb:
    """
    Drop a job's tables when a verb has returned, and give freed memory back to the system.

    glibc raises its thresholds with the largest array that is freed, then keeps up to 64 MB at the top of the heap
    (mallopt(3), M_MMAP_THRESHOLD). A process that plans many jobs would keep the memory of the largest one. The call
    takes a hundredth of a second. Other C libraries have no such call and keep their memory.
    """

    @wraps(verb)
    def released(problem: Problem, **options: Any) -> Any:
        report = verb(problem, **options)
        for one in problem.each:
            one.facts.forget()
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library without a name
            return report
        return report

    return cast(Verb, released)


@dataclass(order=True, frozen=True, slots=True)
class Found:
    """A strategy, in the order of preference."""

    ticks: int
    device_mebibytes: int
    host_mebibytes: int
    values: tuple[int, ...]
    layout: StageLayout | None = field(default=None, compare=False)

    @classmethod
    def of(cls, candidates: Candidates, index: int) -> Found:
        """Return one of some candidates."""
        return cls(
            ticks=int(candidates.ticks[index]),
            device_mebibytes=int(candidates.device_mebibytes[index]),
            host_mebibytes=int(candidates.host_mebibytes[index]),
            values=tuple(int(candidates.decisions[name][index]) for name in DECISIONS),
        )

    @property
    def strategy(self) -> Strategy:
        """The strategy itself."""
        return replace(strategy_of(dict(zip(DECISIONS, self.values, strict=True))), layout=self.layout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rivals:
    """
    Best ticks of each group that other searches for the same job have found; slower strategies are not needed.

    Parameters
    ----------
    ticks, summed_ticks
        Ticks by the closed form, and by the sum over ranks that uneven stages are searched by.
    """

    ticks: Mapping[Hashable, int] = field(default_factory=dict)
    summed_ticks: Mapping[Hashable, int] = field(default_factory=dict)

    def merge(self, others: Rivals) -> Rivals:
        """Merge the rivals of other groups into these."""
        return Rivals(ticks={**self.ticks, **others.ticks}, summed_ticks={**self.summed_ticks, **others.summed_ticks})


NO_RIVALS = Rivals()

"""No other search has results."""


@dataclass(kw_only=True, slots=True)
class IncumbentPool:
    """
    The best strategy of each group so far, and the cut that follows; with all variants each is a group.

    Ticks of rivals cut as well, though they are not among the best.
    """

    top: int
    groups: dict[Hashable, Found] = field(default_factory=dict)
    rivals: Mapping[Hashable, int] = field(default_factory=dict)

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
    def cut(self) -> int:
        """Ticks above which no strategy is of interest."""
        least = {group: found.ticks for group, found in self.groups.items()}
        for group, ticks in self.rivals.items():
            least[group] = min(ticks, least.get(group, ticks))
        best = sorted(least.values())
        return best[self.top - 1] if len(best) >= self.top else MAX_TICKS

    def cuts(self, groups: Ints) -> Ints:
        """Return the cuts for rows of given groups: a group's own strategy cuts it too."""
        cut = self.cut
        rivals = self.rivals
        own = [min(cut, self.groups[group].ticks) if group in self.groups else cut for group in groups.tolist()]
        if rivals:
            own = [min(ticks, rivals.get(group, ticks)) for ticks, group in zip(own, groups.tolist(), strict=True)]
        return np.array(own, dtype=np.int64)
