"""
The job's own limits as rules: what ``search.pin``, ``search.allow`` and ``search.forbid`` say.

Each entry becomes one rule with a signature and a sentence of its own, so that it is tabulated, combined and named in
a conflict like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import and_
from typing import Any

import numpy as np

from constraints.rule import Holds, Rule
from costmodel.strategy import ENUMS, FLAGS

SHOWN_VALUES = 8
"""Values of a long list that a sentence names."""


def limit_rules(
    *,
    pin: Mapping[str, int],
    allow: Mapping[str, tuple[int, ...]],
    forbid: Iterable[Mapping[str, int]],
) -> tuple[Rule, ...]:
    """
    One rule per entry.

    Parameters
    ----------
    pin
        Decisions with their only value.
    allow
        Decisions with the values that they may have.
    forbid
        Combinations of values that may not occur together.

    >>> [rule.__doc__ for rule in limit_rules(pin={"tp": 8}, allow={"pp": (4, 8)}, forbid=[{"recompute": 2, "mbs": 1}])]
    ['search.pin: tp is 8.', 'search.allow: pp is 4 or 8.', 'search.forbid: not both recompute is full and mbs is 1.']
    """
    pins = [_one_of(name, (value,), f"search.pin: {name} is {_text(name, value)}.") for name, value in pin.items()]
    allows = [
        _one_of(name, values, f"search.allow: {name} is {_choice(name, values)}.") for name, values in allow.items()
    ]
    return (*pins, *allows, *(_not_together(combination) for combination in forbid))


def limited(*, pin: Mapping[str, int], allow: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """
    The values that the job leaves to each decision that it limits; none where pin and allow contradict.

    >>> limited(pin={"tp": 8}, allow={"tp": (4, 8), "pp": (4, 8)})
    {'tp': (8,), 'pp': (4, 8)}
    """
    pins = {name: (value,) for name, value in pin.items()}
    return {
        name: tuple(v for v in pins.get(name, values) if v in values) for name, values in (pins | dict(allow)).items()
    }


def unless(rule: Rule, name: str, values: Iterable[int]) -> Rule:
    """
    A rule that some values of one of its decisions need not satisfy.

    Parameters
    ----------
    rule
        A rule of decisions alone.
    name
        One of them.
    values
        Its values that are allowed regardless.

    >>> def small(*, mbs):
    ...     return mbs <= 16
    >>> [bool(unless(small, "mbs", [32])(mbs=mbs)) for mbs in (8, 32, 64)]
    [True, True, False]
    """
    regardless = np.array(list(values), dtype=np.int64)

    def holds(**decisions: Any) -> Holds:
        return np.logical_or(rule(**decisions), np.isin(np.asarray(decisions[name], dtype=np.int64), regardless))

    return _named(holds, tuple(inspect.signature(rule).parameters), rule.__doc__ or "")


def _one_of(name: str, values: tuple[int, ...], text: str) -> Rule:
    allowed = np.array(values, dtype=np.int64)

    def holds(**decisions: Any) -> Holds:
        return np.isin(np.asarray(decisions[name], dtype=np.int64), allowed)

    return _named(holds, (name,), text)


def _not_together(combination: Mapping[str, int]) -> Rule:
    def holds(**decisions: Any) -> Holds:
        equal = (np.asarray(decisions[name]) == value for name, value in combination.items())
        answer: Holds = np.logical_not(reduce(and_, equal))
        return answer

    equalities = [f"{name} is {_text(name, value)}" for name, value in combination.items()]
    if len(equalities) == 1:
        return _named(holds, tuple(combination), f"search.forbid: not {equalities[0]}.")
    return _named(holds, tuple(combination), f"search.forbid: not both {' and '.join(equalities)}.")


def _named(holds: Callable[..., Holds], names: tuple[str, ...], text: str) -> Rule:
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    holds.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    holds.__doc__ = text
    return holds


def _choice(name: str, values: tuple[int, ...]) -> str:
    texts = [_text(name, value) for value in values[:SHOWN_VALUES]]
    if len(values) > SHOWN_VALUES:
        texts.append(f"{len(values) - SHOWN_VALUES} more")
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _text(name: str, value: int) -> str:
    if name in ENUMS:
        return ENUMS[name](value).text
    return str(bool(value)).lower() if name in FLAGS else str(value)
