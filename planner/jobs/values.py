"""One value of a decision: between what people write and the numbers of the cost model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from constraints.rules.frameworks import MEGATRON_MODULES
from costmodel.errors import NumberError, SpecError, did_you_mean
from costmodel.quantities import COUNT, Kind, number
from costmodel.strategy import ENUMS, FLAGS, MODULES_OF, decision_text
from costmodel.validation import shown

MAX_DEGREE = 10**9
"""Far above every degree that a cluster allows."""

OUR_MODULES = {megatron: own for own, megatron in MEGATRON_MODULES.items() if megatron != own}
"""Modules to recompute, by the names that Megatron-LM alone has for them."""

SEVERAL = re.compile(r"[0-9]{1,9}(?:, *[0-9]{1,2}){1,9}")
"""Values beside each other; three digits behind a comma are thousands."""


def decision_value(name: str, value: object, where: str) -> int:
    """
    One value of a decision as a number.

    >>> decision_value("recompute", "full", "search.pin.recompute"), decision_value("dp_overlap", True, "example")
    (<Recompute.FULL: 2>, 1)
    """
    if name in ENUMS:
        return _enum_value(name, value, where)
    if name in FLAGS:
        if not isinstance(value, bool) and value not in (0, 1):
            raise SpecError(where, f"expected true or false, got {shown(value)}.")
        return int(bool(value))
    if where.startswith("search.pin.") and isinstance(value, str) and SEVERAL.fullmatch(value):
        problem = f"expected one whole number, got {shown(value)}."
        raise SpecError(where, problem, f"Write search.allow.{name}=[{value}] to allow several.")
    given = counted(value, where)
    whole = int(given) if isinstance(given, float) and given.is_integer() else given
    if isinstance(whole, bool) or not isinstance(whole, int):
        raise SpecError(where, f"expected a whole number, got {shown(value)}.")
    if not 1 <= whole <= MAX_DEGREE:
        raise SpecError(where, f"must be from 1 to {MAX_DEGREE}, got {shown(value)}.")
    return whole


def counted(value: object, where: str, kind: Kind = COUNT) -> object:
    """
    A value with the number that it means, if it is text with a unit; others as they are.

    >>> counted("1k", "search.pin.mbs"), counted("full", "search.pin.recompute"), counted(8, "search.pin.tp")
    (1000, 'full', 8)
    """
    try:
        return number(value, kind) if isinstance(value, str) else value
    except NumberError as error:
        raise SpecError(where, error.problem, error.hint) from None


def decision_values(decisions: Mapping[str, object], where: str) -> dict[str, int]:
    """Several decisions as numbers; ``where`` is the path of the mapping."""
    return {name: decision_value(name, value, f"{where}.{name}") for name, value in decisions.items()}


def plain_value(name: str, value: int) -> str | int | bool:
    """
    The same value as a job file writes it: the way back.

    >>> plain_value("recompute", 2), plain_value("dp_overlap", 1), plain_value("tp", 8)
    ('full', True, 8)
    """
    text = decision_text(name, value)
    return int(text) if text.isdigit() else {"true": True, "false": False}.get(text, text)


def require_one_of(name: str, known: Iterable[str], where: str, what: str = "no decision") -> None:
    """Refuse a name that is not known, which is then, say, ``no precision``."""
    if name not in (names := tuple(known)):
        raise SpecError(where, f"{shown(name)} is {what}.", did_you_mean(name, names))


def require_entry(name: str, known: Iterable[str], where: str, what: str = "decision") -> None:
    """Refuse an entry of the mapping at a path that is not among those known."""
    if name not in (names := tuple(known)):
        raise SpecError(below(where, name), f"no such {what}.", did_you_mean(name, names))


def below(where: str, name: str) -> str:
    """The path of an entry, however long or strange its name is."""
    return f"{where}.{shown(name)[1:-1]}"


def _enum_value(name: str, value: object, where: str) -> int:
    if isinstance(value, ENUMS[name]):
        return value
    modules = MODULES_OF.get(name, ())
    others = OUR_MODULES if name == "recompute" else {}
    known = [*(member.text for member in ENUMS[name]), *modules]
    try:
        parts = value.split("+") if isinstance(value, str) else []
        return ENUMS[name].named("+".join(others.get(part, part) for part in parts))
    except KeyError:
        hint = did_you_mean(value, [*known, *others]) if isinstance(value, str) else ""
        joined = " (the latter may be joined by +)" if modules else ""
        problem = f"expected one of {', '.join(known)}{joined}, got {shown(value)}."
        raise SpecError(where, problem, hint if "mean" in hint else "") from None
