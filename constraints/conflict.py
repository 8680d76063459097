"""
Why no strategy fits: which rules exclude each other, and the smallest repair.

Every candidate breaks a set of rules. The smallest of these sets are the *repairs*: give up one of them, and a
candidate is left. The smallest sets that share a rule with every repair are the *conflicts*: their rules exclude each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from costmodel.strategy import Strategy

Element = TypeVar("Element", bound=Hashable)

MAX_CONFLICTS = 1000
"""Conflicts under construction at a time; beyond that, larger ones are not listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """
    How large a cluster must be.

    Parameters
    ----------
    num_devices
        Devices of the smallest cluster on which a strategy satisfies all rules; None where no size does that was tried.
    strategy
        One such strategy.
    num_tried
        The largest size that was tried; all smaller ones were, too.
    is_cut
        Whether time ran out before all sizes were tried.
    num_enough
        A size on which something fits, where time ran out before the smallest was known.
    num_within
        The largest size below the job's own on which something fits; None where none does, or nobody knows.
    """

    num_devices: int | None
    strategy: Strategy | None
    num_tried: int
    is_cut: bool = False
    num_enough: int | None = None
    num_within: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """
    Why no strategy fits, in the rules' own sentences.

    Parameters
    ----------
    exclusive
        Sets of rules that exclude each other; none of a set can be left out. Small ones first. Where a set names
        memory, it holds beside the other rules of physics (in a large space also of frameworks), which it does not
        list.
    repairs
        Smallest sets of rules without which a strategy is left; the same rules hold.
    release
        The smallest set of the job's own pin, allow and forbid entries without which a strategy is left; empty where
        releasing them does not help.
    releases
        All sets of such entries none of which can be kept, small ones first: those of one entry help alone.
    shortage_bytes
        Device memory that the strategy which comes closest lacks, of all that satisfy every other rule; None where no
        strategy does.
    host_shortage_bytes
        Host memory that the same strategy lacks.
    closest
        That strategy.
    least_bubble_fraction
        Where a bound of the bubble excludes what else fits: the smallest share of the step that it takes there.
    needed_bytes
        Device memory with which it would fit, and nothing would with less; None where it lacks host memory, too.
    needed_host_bytes
        Host memory per device with which something would fit; None where more of it alone does not help.
    headroom_bytes
        The largest headroom that fits, where a smaller one than the job's is enough.
    size
        How large a cluster must be; None where nobody asked.
    left_out
        What this does not cover, one sentence each: lists that are cut, and where time ran out.
    is_cut
        Whether time ran out before the rules that exclude each other, or the closest strategy, were known.
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
    size: Size | None = None
    left_out: tuple[str, ...] = ()
    is_cut: bool = False


def smallest_sets(sets: Iterable[frozenset[Element]]) -> list[frozenset[Element]]:
    """
    The sets that contain no other one, small ones first.

    >>> [sorted(one) for one in smallest_sets([frozenset("abc"), frozenset("ab"), frozenset("cd")])]
    [['a', 'b'], ['c', 'd']]
    """
    smallest: list[frozenset[Element]] = []
    for one in sorted(dict.fromkeys(sets), key=len):
        if not contains_one_of(one, smallest):
            smallest.append(one)
    return smallest


def contains_one_of(one: frozenset[Element], others: Iterable[frozenset[Element]]) -> bool:
    """Whether a set contains another one as a whole."""
    return any(other <= one for other in others)


def hitting_sets(sets: Iterable[frozenset[Element]]) -> list[frozenset[Element]]:
    """
    The smallest sets that share an element with each of the given ones (Berge's algorithm).

    >>> [sorted(one) for one in hitting_sets([frozenset("ab"), frozenset("bc")])]
    [['b'], ['a', 'c']]
    """
    hitting: list[frozenset[Element]] = [frozenset()]
    for one in sets:
        extended = (known if known & one else known | {element} for known in hitting for element in sorted_by_text(one))
        hitting = smallest_sets(extended)[:MAX_CONFLICTS]
    return hitting


def sorted_by_text(elements: Iterable[Element]) -> list[Element]:
    """Elements in an order that does not change from run to run."""
    return sorted(elements, key=lambda element: getattr(element, "__doc__", None) or str(element))


def necessary(rules: Sequence[Element], satisfiable: Callable[[Sequence[Element]], bool]) -> list[Element]:
    """
    A smallest part of some rules that cannot hold together.

    Parameters
    ----------
    rules
        Rules that cannot hold together; the first ones are left out if they can be.
    satisfiable
        Whether some rules can hold together.

    >>> necessary([1, 2, 3, 4], lambda rules: not {2, 4} <= set(rules))
    [2, 4]
    """
    needed = list(rules)
    for rule in rules:
        fewer = [other for other in needed if other != rule]
        if not satisfiable(fewer):
            needed = fewer
    return needed
