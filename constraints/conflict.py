"""
Explain why no strategy fits: rules that exclude each other, and the smallest repair.

Every candidate breaks a set of rules. The smallest of these sets are the *repairs*: without one of them, a candidate
is allowed. The smallest sets that share a rule with every repair are the *conflicts*: their rules exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from costmodel.strategy import Strategy

Element = TypeVar("Element", bound=Hashable)

MAX_CONFLICTS = 1000

"""Largest number of conflicts under construction; beyond it, larger conflicts are not listed."""


Written = TypeVar("Written")
"""A strategy: as the search has it, or as a report writes it."""


@record(frozen=True, kw_only=True, slots=True)
class SmallestCluster(Generic[Written]):
    """
    The smallest cluster on which something fits.

    Parameters
    ----------
    num_devices
        Its devices; null where none was found.
    strategy
        A strategy for it; null where none was found.
    num_devices_tried
        The largest number that was tried; all smaller numbers were tried as well.
    num_devices_enough
        A number that is enough, where the smallest is not known.
    num_devices_within
        The largest number below the job's own that fits; null where none does, or where it is not known.
    time_ran_out
        True if time ran out before all numbers were tried.
    """

    num_devices: int | None
    strategy: Written | None
    num_devices_tried: int
    num_devices_enough: int | None = None
    num_devices_within: int | None = None
    time_ran_out: bool = False


@record(frozen=True, kw_only=True, slots=True)
class Conflict:
    """
    Reasons why no strategy fits, in the rules' own sentences.

    Parameters
    ----------
    exclusive
        Sets of rules that exclude each other; dropping any rule of a set resolves it. Small sets first. A set that
        names memory excludes strategies together with the other rules of physics, which it does not list. In a large
        space the rules of frameworks count among them.
    repairs
        Smallest sets of rules without which a strategy is left; rules that are not listed still apply.
    release
        The smallest set of the job's own pin, allow and forbid entries without which a strategy is left; empty if
        releasing them does not help.
    releases
        All sets of such entries that must be released together, small ones first; a set of one entry helps alone.
    shortage_bytes
        Device memory that the closest strategy lacks, among those that satisfy every other rule; None if no strategy
        does.
    host_shortage_bytes
        Host memory that the same strategy lacks.
    closest
        The closest strategy itself.
    least_bubble_fraction
        Smallest bubble share of the step among the other strategies, if a bound of the bubble excludes them.
    needed_bytes
        Device memory with which the closest strategy would fit, and the least that lets any fit; None if it lacks host
        memory as well.
    needed_host_bytes
        Host memory per device with which a strategy would fit; None if more host memory alone does not help.
    headroom_bytes
        The largest headroom that fits, if a smaller headroom than the job's is enough.
    size
        The smallest cluster that fits; None if it was not asked for.
    left_out
        Limits of this answer, one sentence each: lists that are cut, and steps that ran out of time.
    is_cut
        True if time ran out before the conflicts, or the closest strategy, were known.
    """

    exclusive: tuple[tuple[str, ...], ...]
    repairs: tuple[tuple[str, ...], ...]
    release: tuple[str, ...]
    releases: tuple[tuple[str, ...], ...] = ()
    shortage_bytes: float | None = None
    host_shortage_bytes: float | None = None
    closest: Strategy | None = None
    least_bubble_fraction: float | None = None
    needed_bytes: float | None = None
    needed_host_bytes: float | None = None
    headroom_bytes: float | None = None
    size: SmallestCluster[Strategy] | None = None
    left_out: tuple[str, ...] = ()
    is_cut: bool = False


def smallest_sets(sets: Iterable[frozenset[Element]]) -> list[frozenset[Element]]:
    """
    Return the sets that contain no other set, small ones first.

    >>> [sorted(one) for one in smallest_sets([frozenset("abc"), frozenset("ab"), frozenset("cd")])]
    [['a', 'b'], ['c', 'd']]
    """
    smallest: list[frozenset[Element]] = []
    for one in sorted(dict.fromkeys(sets), key=len):
        if not contains_one_of(one, smallest):
            smallest.append(one)
    return smallest


def contains_one_of(one: frozenset[Element], others: Iterable[frozenset[Element]]) -> bool:
    """Return True if a set contains one of the others as a whole."""
    return any(other <= one for other in others)


def hitting_sets(sets: Iterable[frozenset[Element]]) -> list[frozenset[Element]]:
    """
    Return the smallest sets that share an element with each of the given sets (Berge's algorithm).

    >>> [sorted(one) for one in hitting_sets([frozenset("ab"), frozenset("bc")])]
    [['b'], ['a', 'c']]
    """
    hitting: list[frozenset[Element]] = [frozenset()]
    for one in sets:
        extended = (known if known & one else known | {element} for known in hitting for element in sort_by_text(one))
        hitting = smallest_sets(extended)[:MAX_CONFLICTS]
    return hitting


def sort_by_text(elements: Iterable[Element]) -> list[Element]:
    """Sort elements into an order that does not change from run to run."""
    return sorted(elements, key=lambda element: getattr(element, "__doc__", None) or str(element))


def necessary(rules: Sequence[Element], satisfiable: Callable[[Sequence[Element]], bool]) -> list[Element]:
    """
    Return a smallest subset of the rules that cannot hold together.

    Parameters
    ----------
    rules
        Rules that cannot hold together; the first ones are dropped if possible.
    satisfiable
        Function that returns True if the given rules can hold together.

    >>> necessary([1, 2, 3, 4], lambda rules: not {2, 4} <= set(rules))
    [2, 4]
    """
    needed = list(rules)
    for rule in rules:
        fewer = [other for other in needed if other != rule]
        if not satisfiable(fewer):
            needed = fewer
    return needed


@record(frozen=True, kw_only=True, slots=True)
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
