"""
What a rule is: a function of facts and decisions that returns whether a strategy is allowed.

Positional parameters are facts, keyword-only parameters are decisions, as in :mod:`costmodel.tables`. Decisions may be
scalars or arrays that broadcast; the answer then is a bool or an array of bools that broadcasts with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import and_
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = int | NDArray[np.int64]
Floats: TypeAlias = float | NDArray[np.float64]
Flags: TypeAlias = bool | NDArray[np.bool_]
Holds: TypeAlias = bool | np.bool_ | NDArray[np.bool_]

Rule: TypeAlias = Callable[..., Holds]


def sentence(rule: Rule) -> str:
    """What the rule says to the user: the first line of its docstring."""
    return (rule.__doc__ or "").strip().splitlines()[0]


def family(rule: Rule) -> str:
    """What the rule is about: the module that it lives in, such as ``memory``."""
    return rule.__module__.rpartition(".")[2]


def implies(premise: Holds, conclusion: Holds) -> Holds:
    """
    Whether the conclusion holds wherever the premise does.

    >>> bool(implies(False, False)), bool(implies(True, False))
    (True, False)
    """
    answer: Holds = np.less_equal(premise, conclusion)  # of false and true, in one pass
    return answer


def every(conditions: Iterable[Holds]) -> Holds:
    """
    Whether all conditions hold; of none, yes.

    >>> bool(every([])), bool(every([True, False]))
    (True, False)
    """
    return reduce(and_, conditions, True)
