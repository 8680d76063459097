"""
Numbers as people write them: ``15T`` tokens, sequences of ``8k``, ``80GiB``, ``400Gbit/s``, ``5min``, ``700W``.

A number is directly followed by its unit. Each entry declares the kind of its numbers, so that ``T`` are trillions of
tokens and ``TB`` bytes. Libraries of physical units do not help: for pint ``k`` is Boltzmann's constant, ``T`` a tesla
and ``8 k`` valid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from costmodel import GIB_BYTES
from costmodel.errors import NumberError, SpecError
from costmodel.validation import shown

Factors = Mapping[str, int | Fraction]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kind:
    """
    A kind of numbers, with its units; as metadata of an annotation: its numbers may be such texts.

    Parameters
    ----------
    name
        Name of the kind in messages.
    example
        An example of a valid number.
    units
        Factor of each unit, relative to the unit of a bare number.
    meant
        Replacements for ambiguous spellings.
    """

    name: str
    example: str
    units: Factors
    meant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def example_text(self) -> str:
        """Description of such a number, with an example."""
        return f"{self.name} such as {self.example}"

    def read(self, value: object) -> object:
        """Convert text to its number and return other values; raises :class:`NumberError` as in :func:`number`."""
        if isinstance(value, bool):
            raise ValueError(f"expected a number, got {str(value).lower()}")
        return number(value, self) if isinstance(value, str) else value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema that reads a value first, then checks the annotated type."""
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema of the number, or of text where it is input."""
        number_schema = handler(schema)
        return number_schema if handler.mode == "serialization" else {"anyOf": [number_schema, text_schema(self)]}


_DECIMAL: Factors = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_BYTES: Factors = {
    "B": 1,
    **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": 2 ** (10 * power) for power, prefix in enumerate("KMGTP", start=1)},
}
_BITS: Factors = {f"{prefix}bit/s": Fraction(10 ** (3 * power), 8) for power, prefix in enumerate("kMGT", start=1)}
_SECONDS: Factors = {
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    **dict.fromkeys(("s", "second", "seconds"), 1),
    **dict.fromkeys(("min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}
_MEANT_BYTES = {"KB": ("kB", "KiB"), **{letter: (f"{letter}B", f"{letter}iB") for letter in "MGTP"}}
_MEANT_BYTES |= {"k": ("kB", "KiB"), "K": ("kB", "KiB")}
_MEANT_RATES = {
    **{f"{prefix}{word}": (f"{prefix}bit/s",) for prefix in "kMGT" for word in ("bps", "b/s", "bit", "bits/s")},
    **{unit: (f"{unit}/s",) for unit in _BYTES},
}

_MEANT_COUNTS = {"G": ("B",), "thousand": ("k",), "million": ("M",), "billion": ("B",), "trillion": ("T",)}

COUNT = Kind(name="a count", example="15T", units=_DECIMAL, meant=_MEANT_COUNTS)
SEQUENCE = Kind(
    name="a sequence length",
    example="8k",
    units={"k": 2**10, "K": 2**10, "M": 2**20},
    meant={"Ki": ("k",), "Mi": ("M",)},
)
BYTES = Kind(name="bytes", example="80GiB", units=_BYTES, meant=_MEANT_BYTES)
GIBIBYTES = Kind(
    name="GiB",
    example="80GiB",
    units={unit: Fraction(factor) / GIB_BYTES for unit, factor in _BYTES.items()},
    meant=_MEANT_BYTES,
)
RATE = Kind(
    name="bytes per second",
    example="50GB/s",
    units={**{f"{unit}/s": factor for unit, factor in _BYTES.items()}, **_BITS},
    meant=_MEANT_RATES,
)
SECONDS = Kind(
    name="seconds",
    example="5min",
    units=_SECONDS,
    meant={"m": ("min",), "M": ("min",), "mins": ("min",), "sec": ("s",), "hr": ("h",), "hrs": ("h",)},
)
_WATTS: Factors = {"W": 1, "kW": 10**3, "MW": 10**6}
WATTS = Kind(name="watts", example="700W", units=_WATTS, meant={"k": ("kW",), "K": ("kW",), "M": ("MW",)})
PER_HOUR = Kind(
    name="a price per hour",
    example="2.50",
    units={"/h": 1, "/hour": 1, "/day": Fraction(1, 24)},
    meant={"h": ("/h",), "/hr": ("/h",), "/d": ("/day",)},
)
PER_KWH = Kind(
    name="a price per kWh",
    example="0.12",
    units={"/kWh": 1, "/MWh": Fraction(1, 1000)},
    meant={"kWh": ("/kWh",), "MWh": ("/MWh",)},
)
KINDS = (COUNT, SEQUENCE, BYTES, RATE, SECONDS, WATTS, PER_HOUR, PER_KWH)

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_WRITTEN = re.compile(rf"([-+]?{_NUMBER})(e[-+]?[0-9]{{1,3}})?([a-z/]*)", re.IGNORECASE)
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(,[0-9]{3})+(?![0-9,])")
_LONGEST = 60
"""Longest text, in characters, that may be a number with a unit."""

_LONGEST_ADVICE = 24
"""Longest number, in characters, that a message proposes."""


def number(text: str, kind: Kind) -> int | float | str:
    """
    Convert a text with a unit to its number; return other texts unchanged.

    >>> number("15T", COUNT), number("8k", SEQUENCE), number("1.5min", SECONDS), number("many", COUNT)
    (15000000000000, 8192, 90, 'many')

    Raises
    ------
    NumberError
        If it begins like a number but is ambiguous, or its unit is not of this kind; with a correction.
    """
    found = _parts(text)
    if found is None or not found[2]:
        return _refuse_near_number(text, kind)
    digits, exponent, unit = found
    if unit not in kind.units:
        why, fix = _wrong_unit(digits + exponent, unit, kind)
        raise NumberError(f"{_expectation(text, kind)}: {why}.", fix)
    if exponent:
        problem = f"{_expectation(text, kind)}, an exponent and a unit at once."
        raise NumberError(problem, _suggest_number(found, kind))
    return _times(digits, kind.units[unit])


def finite(text: str, kind: Kind, where: str) -> float:
    """
    Convert a text, with or without a unit, to a finite number.

    >>> finite("1.5h", SECONDS, "--timeout"), finite("90", SECONDS, "--timeout")
    (5400.0, 90.0)

    Raises
    ------
    SpecError
        If it is not a finite number.
    """
    try:
        given = number(text, kind)
    except NumberError as error:
        raise SpecError(where, error.problem, error.hint) from None
    try:
        value = float(given)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise SpecError(where, f"{_expectation(text, kind)}.")
    return value


def whole(text: str, kind: Kind, where: str, *, least: int = 1) -> int:
    """Convert a text to a whole number; errors as in :func:`finite`, and for numbers below ``least``."""
    value = finite(text, kind, where)
    if not value.is_integer() or value < least:
        raise SpecError(where, f"expected a whole number from {least} on, got {shown(text)}.")
    return int(value)


def text_schema(kind: Kind) -> dict[str, Any]:
    """Return the JSON Schema of texts with a unit of a kind."""
    return {"type": "string", "pattern": f"^{_NUMBER}({'|'.join(kind.units)})$"}


def _parts(text: str) -> tuple[str, str, str] | None:
    """Split text into digits, exponent and unit; None if it has another form."""
    found = _WRITTEN.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    return (found[1], found[2] or "", found[3]) if found else None


def _refuse_near_number(text: str, kind: Kind) -> str:
    """Return text without a unit unchanged; raise if it is nearly a number with a unit."""
    fix = "" if _is_number(text) or len(text) > _LONGEST else _suggest_fix(text.strip(), kind)
    if fix:
        raise NumberError(f"{_expectation(text, kind)}.", fix)
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _suggest_fix(text: str, kind: Kind) -> str:
    """Return a correction for a number with commas, spaces or currency signs; empty if it is not of that kind."""
    if _THOUSANDS.match(text):
        text = text.replace(",", "")
    together = re.sub(r"[\s_$€£¥]", "", text.replace(",", "."))
    found = _parts(together)
    if found is None:
        return ""
    digits, exponent, unit = found
    if not unit:
        is_whole = kind not in (COUNT, SEQUENCE) or "." not in digits
        return f"Write {together}." if is_whole else "Write a whole number."
    if unit not in kind.units:
        why, fix = _wrong_unit(digits + exponent, unit, kind)
        return f"{why[0].upper()}{why[1:]}. {fix}"
    return _suggest_number(found, kind) if exponent else f"Write {together}."


def _suggest_number(parts: tuple[str, str, str], kind: Kind) -> str:
    """Return a correction for a number with an exponent and a unit, unless it is very long."""
    digits, exponent, unit = parts
    value = f"{_times(digits + exponent, kind.units[unit])}"
    return f"Write {value}." if len(value) <= _LONGEST_ADVICE else f"Write {kind.example}, or the number alone."


def _expectation(text: str, kind: Kind) -> str:
    return f"expected {kind.name} such as {kind.example}, got {shown(text)}"


def _wrong_unit(digits: str, unit: str, kind: Kind) -> tuple[str, str]:
    """Return the kind that a unit belongs to, and a correction."""
    alike = [known for known in kind.units if known.lower() == unit.lower()]
    if meant := kind.meant.get(unit) or tuple(alike):
        return f"there is no unit '{unit}' here", f"Write {' or '.join(f'{digits}{one}' for one in meant)}."
    other = next((one.name for one in KINDS if unit in one.units), None)
    whose = f"'{unit}' is a unit of {other}" if other else f"there is no unit '{unit}'"
    return whose, f"Write {digits} alone, or followed by one of {', '.join(kind.units)}."


def _times(digits: str, factor: int | Fraction) -> int | float:
    """Multiply digits by a factor; exact if the product is whole."""
    product = Fraction(Decimal(digits)) * factor
    return int(product) if product.denominator == 1 else float(product)
