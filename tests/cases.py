"""Tables of cases, and one test case for many values: where each takes no time, it would only be counted and listed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cache, wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel import catalog

TABLES = Path(__file__).parent / "data" / "cases"


@cache
def read_table(name: str) -> Any:
    """Read a table of cases, which is plain data in ``tests/data/cases``."""
    return yaml.load((TABLES / f"{name}.yaml").read_text(encoding="utf-8"), Loader=catalog.LOADER)


def require_none(failures: Iterable[object]) -> None:
    """Fail with a line for each failure; an assertion would show the first one and shorten the rest."""
    if lines := [*map(str, failures)]:
        pytest.fail("\n".join(lines), pytrace=False)


FRACTION = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+(?:e[+-]\d+)?|e[+-]\d+)(?![\w.])")
"""A number that may be rounded; counts and versions are none."""


def require_near(text: str, stored: str) -> None:
    """
    Fail where a text differs from a stored one by more than the last digit of a rounded number.

    The last bits of NumPy's functions differ between processors, and may round it the other way.
    """
    assert FRACTION.sub("#", text) == FRACTION.sub("#", stored)
    pairs = zip(map(Decimal, FRACTION.findall(text)), map(Decimal, FRACTION.findall(stored)), strict=True)
    require_none(
        f"{now} was stored as {one}"
        for now, one in pairs
        if abs(now - one) > Decimal(1).scaleb(one.as_tuple().exponent)
    )


def in_one_case(
    names: str | tuple[str, ...], values: Iterable[Any], ids: Callable[[Any], object] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Run a test for every value, as ``pytest.mark.parametrize`` does, and fail once with all values that fail.

    Fixtures are shared by the values. ``ids`` says what a value is called in the message.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(*instance: object, **fixtures: object) -> None:
            failures = []
            for value in values:
                given = dict(zip(names, value if len(names) > 1 else (value,), strict=True))
                try:
                    test(*instance, **given, **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    place = traceback.extract_tb(error.__traceback__)[-1]
                    failures.append(f"{ids(value)}: line {place.lineno} of {place.name}: {error!r}")
            require_none(failures)

        rest = [one for name, one in signature(test).parameters.items() if name not in names]
        run.__signature__ = Signature(rest)
        return run

    return decorate
