"""Which values of decisions a framework has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.framework import Framework
from costmodel.strategy import DECISIONS, ENUMS, decision_text

MODULES = "modules"
"""What a framework's entry says of decisions whose value is a set of modules, whichever they are."""


def feature_of(name: str, value: int) -> str:
    """
    A value of a decision as entries of frameworks spell it.

    >>> feature_of("schedule", 0), feature_of("recompute", 8), feature_of("tp_overlap", 1)
    ('1f1b', 'modules', 'true')
    """
    text = decision_text(name, value)
    is_set = name in ENUMS and text not in {member.text for member in ENUMS[name]}
    return MODULES if is_set else text


def lacks(framework: Framework, name: str, value: int) -> bool:
    """Whether a framework does not have a value of a decision; what its entry does not list it has."""
    having = framework.features.get(name)
    return name in DECISIONS and having is not None and feature_of(name, value) not in having


def has_values(framework: Framework | None, name: str, values: Any) -> NDArray[np.bool_]:
    """Of an array of values of a decision, which a framework has."""
    if framework is None or name not in framework.features:
        return np.ones(np.shape(values), dtype=bool)
    unique, where = np.unique(np.asarray(values), return_inverse=True)
    known = np.array([not lacks(framework, name, int(value)) for value in unique], dtype=bool)
    return known[where].reshape(np.shape(values))
