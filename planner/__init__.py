"""
Plan the pretraining of a language model: ``from planner import load, plan, estimate, explain``.

Nothing is imported before it is used, so that ``planner --help`` answers at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.errors import PlanningError, SpecError
    from planner.batch.answer import JobResult
    from planner.batch.run import plan_many
    from planner.compare import Comparison, compare
    from planner.elastic import PlansBySize, SizedPlan, plan_for_sizes
    from planner.explain import Explanation, explain
    from planner.export import export
    from planner.export.accelerate import to_accelerate
    from planner.export.deepspeed import to_deepspeed
    from planner.export.launch import launched
    from planner.export.megatron_bridge import to_megatron_bridge
    from planner.export.megatron_import import Imported, from_megatron_lm
    from planner.export.megatron_lm import to_megatron_lm
    from planner.export.target import Export
    from planner.export.torchtitan import to_torchtitan
    from planner.plan import EstimateReport, Plan, PlanReport, estimate, plan
    from planner.problem import Problem, load
    from planner.recorded import read_plan
    from planner.report import render

__all__ = [
    "Comparison",
    "EstimateReport",
    "Explanation",
    "Export",
    "Imported",
    "JobResult",
    "Plan",
    "PlanReport",
    "PlanningError",
    "PlansBySize",
    "Problem",
    "SizedPlan",
    "SpecError",
    "compare",
    "estimate",
    "explain",
    "export",
    "from_megatron_lm",
    "launched",
    "load",
    "plan",
    "plan_for_sizes",
    "plan_many",
    "read_plan",
    "render",
    "to_accelerate",
    "to_deepspeed",
    "to_megatron_bridge",
    "to_megatron_lm",
    "to_torchtitan",
]

_HOMES = {
    "Comparison": "planner.compare",
    "EstimateReport": "planner.plan",
    "Explanation": "planner.explain",
    "Export": "planner.export.target",
    "Imported": "planner.export.megatron_import",
    "JobResult": "planner.batch.answer",
    "Plan": "planner.plan",
    "PlanReport": "planner.plan",
    "PlanningError": "costmodel.errors",
    "PlansBySize": "planner.elastic",
    "Problem": "planner.problem",
    "SizedPlan": "planner.elastic",
    "SpecError": "costmodel.errors",
    "compare": "planner.compare",
    "estimate": "planner.plan",
    "explain": "planner.explain",
    "export": "planner.export",
    "from_megatron_lm": "planner.export.megatron_import",
    "launched": "planner.export.launch",
    "load": "planner.problem",
    "plan": "planner.plan",
    "plan_for_sizes": "planner.elastic",
    "plan_many": "planner.batch.run",
    "read_plan": "planner.recorded",
    "render": "planner.report",
    "to_accelerate": "planner.export.accelerate",
    "to_deepspeed": "planner.export.deepspeed",
    "to_megatron_bridge": "planner.export.megatron_bridge",
    "to_megatron_lm": "planner.export.megatron_lm",
    "to_torchtitan": "planner.export.torchtitan",
}
"""Where each public name is defined."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, imported or not."""
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """
    A package whose ``plan`` is the verb.

    Importing ``planner.plan`` makes Python store that module as the package's attribute of the same name. The verb is
    stored instead; the module stays reachable as ``from planner.plan import ...``.
    """

    def __setattr__(self, name: str, value: object) -> None:
        is_home = isinstance(value, ModuleType) and _HOMES.get(name) == value.__name__
        super().__setattr__(name, getattr(value, name) if is_home else value)


sys.modules[__name__].__class__ = _Package
