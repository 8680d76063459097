"""Names of framework releases as people write them: the known release, or the nearest one to an unknown release."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf
from typing import Literal, TypeAlias

from costmodel.record import record

Scheme: TypeAlias = Literal["year", "month", "version", "branch"]

NEWEST = ("main", "master", "dev", "latest", "nightly")
"""Names for a release that is newer than all others."""

NAME = re.compile(
    r"(?P<stack>[a-z][a-z0-9]*(?:[-_ ]+[a-z][a-z0-9]*)*?)(?:[-_ :@=]+v?|v)"
    rf"(?:(?P<number>[0-9]{{1,6}}(?:\.[0-9]{{1,6}})*)(?P<rest>(?:[-_.+]?(?:alpha|beta|rc|dev|post|a|b)[\w.+-]*|\+[\w.+-]*)?)"
    rf"|(?P<branch>{'|'.join(NEWEST)}))"
)
"""A stack and its release: ``Megatron-Bridge 26.04``, ``torchtitan==0.3.0``, ``megatron-core-v0.19.0rc1``."""


@record(frozen=True, kw_only=True, slots=True)
class Release:
    """
    A release of a stack.

    Parameters
    ----------
    stack
        Its software, such as ``megatron-bridge``.
    number
        Parts of its number without trailing zeros; infinite for a branch that is newer than all.
    is_final
        True if it is the final release of that number, neither a candidate nor a later build.
    """

    stack: str
    number: tuple[float, ...]
    is_final: bool = True

    @property
    def scheme(self) -> Scheme:
        """Numbering of the stack: by years (2023), by months (26.04), or by versions (0.17)."""
        first = self.number[0] if self.number else 0
        if first == inf:
            return "branch"
        if len(self.number) == 1 and first >= 1900:
            return "year"
        return "month" if 20 <= first < 100 and len(self.number) > 1 else "version"

    def month(self, since: str = "") -> float:
        """
        Months from 2000 to the release, from its number if its stack counts by months, otherwise from a date.

        A branch is newest.

        Parameters
        ----------
        since
            Date of the release in the catalog; empty: not known, which counts as newest.

        >>> Release(stack="nemo", number=(25, 2)).month(), Release(stack="torchtitan", number=(0, 3)).month("2025-02")
        (302.0, 302.0)
        """
        if self.scheme != "month":
            return month_of_date(since) if since and self.scheme != "branch" else inf
        year, month, *patch = self.number
        return 12 * year + month + sum(patch) / 100


def month_of_date(date: str) -> float:
    """
    Months from 2000 to a date: for a range, to its end; for a year alone, to the end of the year.

    >>> month_of_date("2025-02"), month_of_date("2024-08-12"), month_of_date("2025-11..2026-05"), month_of_date("2023")
    (302.0, 296.0, 317.0, 288.0)
    """
    year, _, month = date.rpartition(".")[2].partition("-")
    return 12.0 * (int(year) - 2000) + int(month[:2] or 12)


def release_of(name: str) -> Release | None:
    """
    Parse the name of a release; None if it has no number.

    >>> release_of("torchtitan==0.3.0")
    Release(stack='torchtitan', number=(0, 3), is_final=True)
    >>> release_of("Megatron_Bridge v26.04") == release_of("megatron-bridge-26.4")
    True
    """
    found = NAME.fullmatch(name.strip().lower())
    if found is None:
        return None
    stack = re.sub(r"[-_ ]+", "-", found["stack"])
    if found["branch"]:
        return Release(stack=stack, number=(inf,), is_final=False)
    parts = [int(part) for part in found["number"].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return Release(stack=stack, number=tuple(parts), is_final=not found["rest"])


def find_release_spelling(name: str, known: Iterable[str]) -> str | None:
    """
    Return the known spelling of a release that is written differently; None if the release is not known.

    >>> find_release_spelling("torchtitan-0.3.0", ["torchtitan-0.1", "torchtitan-0.3"])
    'torchtitan-0.3'
    """
    names = tuple(known)
    if name in names:
        return name
    wanted = release_of(name)
    return None if wanted is None else next((one for one in names if release_of(one) == wanted), None)


def nearest_release(name: str, known: Iterable[str]) -> str | None:
    """
    Return the nearest known release of the same stack; None if the stack is not known.

    It is the newest release that is not newer, otherwise the oldest. If all are numbered differently, it is the newest.

    >>> nearest_release("nemo-25.11", ["nemo-24.07", "nemo-25.09", "nemo-26.04", "torchtitan-0.1"])
    'nemo-25.09'
    >>> nearest_release("nemo-23.01", ["nemo-24.07", "nemo-25.09"])
    'nemo-24.07'
    """
    wanted = release_of(name)
    if wanted is None:
        return None
    every = ((one, release_of(one)) for one in known)
    same = sorted((made.number, one) for one, made in every if made is not None and made.stack == wanted.stack)
    if not same:
        return None
    alike = [(number, one) for number, one in same if Release(stack="", number=number).scheme == wanted.scheme]
    older = [one for number, one in alike if number <= wanted.number]
    if not alike:  # by versions where the stack counts by months, or a branch: nothing tells which is near
        newest = {"year": 0, "version": 1, "month": 2, "branch": 3}
        return max(same, key=lambda one: (newest[Release(stack="", number=one[0]).scheme], one[0]))[1]
    return older[-1] if older else alike[0][1]


def stands_in(asked: str, known: str) -> str:
    """Return the sentence, without a full stop, on a release that the catalog does not know."""
    ours, theirs = release_of(known), release_of(asked)
    if ours is None or theirs is None or ours.stack == theirs.stack:
        return f"{asked} is not known: costed as {known}, its nearest release"
    return (
        f"{asked} is not known: costed as {known}, plain PyTorch; say what differs (cluster.framework.base, settings), "
        "and measure two layouts for planner calibrate"
    )
