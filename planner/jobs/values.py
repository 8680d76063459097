"""Convert one value of a decision between the text of a job and the numbers of the cost model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from constraints.rules.frameworks import MEGATRON_MODULES
from costmodel.errors import NumberError, SpecError, did_you_mean
from costmodel.quantities import COUNT, Kind, number
from costmodel.strategy import ENUMS, FLAGS, MODULES_OF, decision_text
from costmodel.validation import shown

MAX_DEGREE = 10**9
"""Largest degree that is accepted; far above that of every cluster."""

OUR_MODULES = {megatron: own for own, megatron in MEGATRON_MODULES.items() if megatron != own}
"""Modules to recompute whose names differ in Megatron-LM, by Megatron-LM's name."""

SEVERAL = re.compile(r"[0-9]{1,9}(?:, *[0-9]{1,2}){1,9}")
"""Several values separated by commas; three digits after a comma are thousands."""


def decision_value(name: str, value: object, where: str) -> int:
    """
    Read one value of a decision as a number.

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
    given = parse_count(value, where)
    whole = int(given) if isinstance(given, float) and given.is_integer() else given
    if isinstance(whole, bool) or not isinstance(whole, int):
        raise SpecError(where, f"expected a whole number, got {shown(value)}.")
    if not 1 <= whole <= MAX_DEGREE:
        raise SpecError(where, f"must be from 1 to {MAX_DEGREE}, got {shown(value)}.")
    return whole


def parse_count(value: object, where: str, kind: Kind = COUNT) -> object:
    """
    Read text with a unit as a number; return other values unchanged.

    >>> parse_count("1k", "search.pin.mbs"), parse_count("full", "search.pin.recompute"), parse_count(8, "search.pin.tp")
    (1000, 'full', 8)
    """
    try:
        return number(value, kind) if isinstance(value, str) else value
    except NumberError as error:
        raise SpecError(where, error.problem, error.hint) from None


def decision_values(decisions: Mapping[str, object], where: str) -> dict[str, int]:
    """Read several decisions as numbers; ``where`` is the path of the mapping."""
    return {name: decision_value(name, value, f"{where}.{name}") for name, value in decisions.items()}


def plain_value(name: str, value: int) -> str | int | bool:
    """
    Write a value as in a job file; the inverse of :func:`decision_value`.

    >>> plain_value("recompute", 2), plain_value("dp_overlap", 1), plain_value("tp", 8)
    ('full', True, 8)
    """
    text = decision_text(name, value)
    return int(text) if text.isdigit() else {"true": True, "false": False}.get(text, text)


def require_one_of(name: str, known: Iterable[str], where: str, what: str = "no decision") -> None:
    """Refuse an unknown name; ``what`` completes the message, such as ``no precision``."""
    if name not in (names := tuple(known)):
        raise SpecError(where, f"{shown(name)} is {what}.", did_you_mean(name, names))


def require_entry(name: str, known: Iterable[str], where: str, what: str = "decision") -> None:
    """Refuse an unknown entry of the mapping at a path."""
    if name not in (names := tuple(known)):
        raise SpecError(entry_path(where, name), f"no such {what}.", did_you_mean(name, names))


def entry_path(where: str, name: str) -> str:
    """Return the path of an entry; long or strange names are shortened."""
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
