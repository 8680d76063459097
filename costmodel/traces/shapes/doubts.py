"""What is not sure of times at other sizes, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.traces.shapes.kinds import Alike
from costmodel.traces.shapes.laws import Machine

SHARE = 0.01
"""Share of all time from which something is said."""

BEYOND = 4.0
"""Ratio to the largest recorded operator of its kind from which a time is said to be extrapolated."""

MOST = 3
"""Examples of a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """
    What a rank's trace consists of.

    Parameters
    ----------
    kinds
        Of its operators and kernels.
    here
        What its machine achieved.
    """

    kinds: tuple[Alike, ...]
    here: Machine


def unsized_fraction(ranks: Sequence[Notes]) -> float:
    """Share of all time of kernels of no recorded operator that has sizes."""
    kinds = [one for rank in ranks for one in rank.kinds]
    return sum(one.total for one in _unsized(kinds)) / max(sum(one.total for one in kinds), 1)


def _unsized(kinds: Sequence[Alike]) -> list[Alike]:
    return [one for one in kinds if one.works and one.shape is None and one.kernel and not one.on_weights]


def sentences(ranks: Sequence[Notes]) -> tuple[str, ...]:
    """
    Say what is not sure, with its share of all time.

    Parameters
    ----------
    ranks
        Of each trace.
    """
    kinds = [one for rank in ranks for one in rank.kinds]
    total = sum(one.total for one in kinds)
    working = [one for one in kinds if one.works]
    unnamed = _unsized(kinds)
    unknown = [one for one in working if any(each.unknown for each in one.explained)]
    several = [one for one in working if not all(each.is_sure for each in one.explained)]
    beyond = [
        one for rank in ranks for one in rank.kinds if one.works and one.after.flops > BEYOND * rank.here.largest_flops
    ]
    cases = (
        (unnamed, "kernels of no recorded operator that has sizes: they stay. Record with record_shapes=True"),
        (unknown, "operators with sizes that are none of the job's: these sizes stay"),
        (several, "operators with sizes that may be several things of the job: the most usual was taken"),
        (beyond, f"operators that would compute more than {BEYOND:.0f} times what any recorded one did: extrapolated"),
    )
    found = ((sum(one.total for one in some) / max(total, 1), text, some) for some, text in cases)
    return tuple(_sentence(share, text, some) for share, text, some in found if share > SHARE)


def _sentence(share: float, text: str, some: Sequence[Alike]) -> str:
    longest = sorted(some, key=lambda one: -one.total)
    examples = list(dict.fromkeys(one.text for one in longest))[:MOST]
    return f"{share:.0%} of the time are {text} ({'; '.join(examples)})."
