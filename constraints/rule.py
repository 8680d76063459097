"""
Definition of a rule: a function of facts and decisions that returns True where a strategy is allowed.

Positional parameters are facts, keyword-only parameters are decisions, as in :mod:`costmodel.tables`. Decisions may be
scalars or arrays that broadcast; the answer is a bool, or an array of bools of the broadcast shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record

Ints: TypeAlias = int | NDArray[np.int64]
Floats: TypeAlias = float | NDArray[np.float64]
Flags: TypeAlias = bool | NDArray[np.bool_]
Holds: TypeAlias = bool | np.bool_ | NDArray[np.bool_]

Rule: TypeAlias = Callable[..., Holds]


@record(frozen=True, slots=True)
class FieldValues:
    """
    Values of a field that an export target has.

    Parameters
    ----------
    values
        The values.
    reason
        Reason why it refuses any other one: a sentence with its source, and ``{value}`` for the value.
    """

    values: tuple[Any, ...]
    reason: str


def sentence(rule: Rule) -> str:
    """Return the sentence that the user reads: the first line of the rule's docstring."""
    return (rule.__doc__ or "").strip().splitlines()[0]


def reason(rule: Rule) -> str:
    r"""
    Return the sentence of a rule with its source, the text below ``References``.

    >>> def rule(): ...
    >>> rule.__doc__ = "Pipelines are even.\n\nReferences\n----------\ntool/pipe.py:12: an assertion."
    >>> reason(rule)
    'Pipelines are even (tool/pipe.py:12: an assertion).'
    """
    below = (rule.__doc__ or "").partition("----------")[2].replace("``", "")
    source = " ".join(below.split()).removesuffix(".")
    text = sentence(rule).removesuffix(".")
    if not source:
        return sentence(rule)
    return f"{text[:-1]}; {source})." if text.endswith(")") else f"{text} ({source})."


def family(rule: Rule) -> str:
    """Return the subject of the rule: the name of its module, such as ``targets``."""
    return rule.__module__.rpartition(".")[2]


def implies(premise: Holds, conclusion: Holds) -> Holds:
    """
    Return True where the premise is false or the conclusion is true.

    >>> bool(implies(False, False)), bool(implies(True, False))
    (True, False)
    """
    answer: Holds = np.less_equal(premise, conclusion)  # of false and true, in one pass
    return answer


def every(conditions: Iterable[Holds]) -> Holds:
    """
    Return True where all conditions hold; also if there is none.

    >>> bool(every([])), bool(every([True, False]))
    (True, False)
    """
    return reduce(and_, conditions, True)
