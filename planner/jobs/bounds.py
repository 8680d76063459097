"""Bounds as job files write them: ``tp <= 8``, ``tp * cp <= 16``, ``recompute != full``; beside a name, ``>= 16``."""

from __future__ import annotations

import re

from constraints.limits import RELATIONS, Bound
from costmodel.errors import SpecError
from costmodel.strategy import DECISIONS, ENUMS, FLAGS
from costmodel.validation import shown
from planner.jobs.document import parse
from planner.jobs.values import decision_value, require_one_of

BOUNDED = (*DECISIONS, "num_microbatches")
"""What a bound may be about: the decisions, and the micro-batches that follow from them."""

MAX_NUMBER = 10**9
"""Largest number that a bound compares with."""

WHOLE = re.compile(r"([^<>=!]*)(<=|>=|==|!=|<|>)([^<>=!]+)")

EXAMPLES = "such as 'tp <= 8', 'tp * cp <= 16', 'num_microbatches >= 16' or 'recompute != full'"


def read_bound(text: str, where: str) -> Bound:
    """
    The bound that one entry of ``search.limits`` means.

    Parameters
    ----------
    text
        Decisions joined by ``*``, a relation, a value.
    where
        Its path, the start of every message.

    Raises
    ------
    SpecError
        If it is not a bound, or not of decisions.
    """
    match = WHOLE.fullmatch(text.strip())
    if match is None or not match[1].strip():
        hint = "Equality is written ==." if re.fullmatch(r"[^<>=!]+=[^<>=!]+", text) else ""
        raise SpecError(where, f"expected a bound {EXAMPLES}, got {shown(text)}.", hint)
    left, relation, right = match.groups()
    names = tuple(name.strip() for name in left.split("*"))
    return _bound(names, relation, right, where)


def read_condition(name: str, value: str, where: str) -> Bound | None:
    """What an entry of ``search.forbid`` such as ``>= 16`` means for its decision; None where it is a plain value."""
    match = WHOLE.fullmatch(value.strip())
    if match is None or match[1].strip():
        return None
    return _bound((name,), match[2], match[3], where)


def _bound(names: tuple[str, ...], relation: str, right: str, where: str) -> Bound:
    for name in names:
        require_one_of(name, BOUNDED, where)
        if len(names) > 1 and name in (*ENUMS, *FLAGS):
            raise SpecError(where, f"'{name}' is no number that could be multiplied.")
    value = parse(right, where)
    if names[0] in (*ENUMS, *FLAGS):
        if relation not in ("==", "!="):
            raise SpecError(where, f"'{names[0]}' has no order; it can be compared by == or != only, got {relation}.")
        number = decision_value(names[0], value, where)
    else:
        number = _number(value, where)
    assert relation in RELATIONS
    return Bound(names=names, relation=relation, number=number)


def _number(value: object, where: str) -> int:
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int) or not 0 <= whole <= MAX_NUMBER:
        raise SpecError(where, f"expected a whole number from 0 to {MAX_NUMBER} on the right, got {shown(value)}.")
    return whole
