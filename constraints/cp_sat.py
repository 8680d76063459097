"""
CP-SAT's Python interface, without loading pandas.

OR-Tools imports pandas for vectorized variables, which nobody here uses; that takes a fifth of the processor time of a
small plan. Its import gets a stand-in with the two names that it annotates with, and pandas itself when it first asks
for anything later.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

PANDAS, CP_MODEL = "pandas", "ortools.sat.python.cp_model"


class _Pandas(ModuleType):
    """Names of pandas, imported when one is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(PANDAS), name)


def _import_cp_model() -> Any:
    if PANDAS in sys.modules or CP_MODEL in sys.modules:
        return import_module(CP_MODEL)
    stand_in = ModuleType(PANDAS)
    vars(stand_in).update(Index=object, Series=object)
    sys.modules[PANDAS] = stand_in
    try:
        module: Any = import_module(CP_MODEL)
    finally:
        del sys.modules[PANDAS]
    module.pd = _Pandas(PANDAS)
    return module


cp_model = _import_cp_model()
