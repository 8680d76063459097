"""Uncertainty of times at other sizes, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from planner.measure.traces.shapes.kinds import Alike
from planner.measure.traces.shapes.laws import Machine

SHARE = 0.01
"""Share of the total time above which a doubt is reported."""

BEYOND = 4.0
"""Ratio to the largest recorded operator of its kind above which a time is reported as extrapolated."""

MOST = 3
"""Examples in a sentence."""


Notes: TypeAlias = tuple[tuple[Alike, ...], Machine]
"""Kinds of operators and kernels of a rank's trace; rates and overhead that its machine achieved."""


def unsized_fraction(ranks: Sequence[Notes]) -> float:
    """Share of the total time that is in kernels without a recorded operator with sizes."""
    kinds = [one for own, _ in ranks for one in own]
    return sum(one.total for one in _find_unsized(kinds)) / max(sum(one.total for one in kinds), 1)


def _find_unsized(kinds: Sequence[Alike]) -> list[Alike]:
    return [one for one in kinds if one.works and one.shape is None and one.kernel and not one.on_weights]


def sentences(ranks: Sequence[Notes]) -> tuple[str, ...]:
    """
    Describe uncertain times, with their share of the total time.

    Parameters
    ----------
    ranks
        Notes of each trace.
    """
    kinds = [one for own, _ in ranks for one in own]
    total = sum(one.total for one in kinds)
    working = [one for one in kinds if one.works]
    unnamed = _find_unsized(kinds)
    unknown = [one for one in working if any(each.unknown for each in one.explained)]
    several = [one for one in working if not all(each.is_sure for each in one.explained)]
    beyond = [one for own, here in ranks for one in own if one.works and one.after.flops > BEYOND * here.largest_flops]
    cases = (
        (unnamed, "kernels without an operator with recorded sizes: they are kept. Record with record_shapes=True"),
        (unknown, "operators with sizes that the job does not have: these sizes are kept"),
        (several, "operators whose sizes fit several quantities of the job: the most common was taken"),
        (beyond, f"operators that would compute more than {BEYOND:.0f} times the largest recorded FLOPs: extrapolated"),
    )
    found = ((sum(one.total for one in some) / max(total, 1), text, some) for some, text in cases)
    return tuple(_sentence(share, text, some) for share, text, some in found if share > SHARE)


def _sentence(share: float, text: str, some: Sequence[Alike]) -> str:
    longest = sorted(some, key=lambda one: -one.total)
    examples = list(dict.fromkeys(one.text for one in longest))[:MOST]
    return f"{share:.0%} of the time are {text} ({'; '.join(examples)})."
