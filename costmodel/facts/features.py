"""Values of decisions that a framework supports."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.framework import Framework
from costmodel.strategy import DECISIONS, DEGREES, ENUMS, decision_text

MODULES = "modules"
"""Entry for decisions whose value is a set of modules: the framework supports every set."""

MANY = "many"
"""Entry for degrees: the framework supports every degree above 1."""


@cache
def feature_of(name: str, value: int) -> str:
    """
    Return the spelling of a decision's value in the entries of frameworks.

    >>> feature_of("schedule", 0), feature_of("recompute", 8), feature_of("tp_overlap", 1), feature_of("cp", 4)
    ('1f1b', 'modules', 'true', 'many')
    """
    if name in DEGREES and value > 1:
        return MANY
    text = decision_text(name, value)
    is_set = name in ENUMS and text not in {member.text for member in ENUMS[name]}
    return MODULES if is_set else text


def lacks(framework: Framework, name: str, value: int) -> bool:
    """
    Return True if a framework lacks a value of a decision; it has every value of a decision that it does not list.

    An entry lists sets of modules as ``modules``, which means all of them, or one by one.
    """
    having = framework.features.get(name)
    if having is None or name not in DECISIONS:
        return False
    return feature_of(name, value) not in having and decision_text(name, value) not in having


def lists(framework: Framework | None, name: str) -> bool:
    """Return True if a framework's entry lists its values of a decision."""
    return framework is not None and name in framework.features


def has_values(framework: Framework | None, name: str, values: Any) -> NDArray[np.bool_]:
    """Return a mask of the values, in an array of a decision's values, that a framework has."""
    if framework is None or not lists(framework, name):
        return np.ones(np.shape(values), dtype=bool)
    if not np.ndim(values):
        return np.asarray(not lacks(framework, name, int(values)))
    unique, where = np.unique(np.asarray(values), return_inverse=True)
    known = np.array([not lacks(framework, name, int(value)) for value in unique], dtype=bool)
    return known[where].reshape(np.shape(values))
