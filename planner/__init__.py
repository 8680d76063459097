"""
Plan the pretraining of a language model: ``from planner import load, plan, estimate, explain``.

Nothing is imported before it is used, so that ``planner --help`` answers at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from costmodel.former_names import install

if TYPE_CHECKING:
    from costmodel.errors import PlanningError as PlanningError
    from costmodel.errors import SpecError as SpecError
    from planner.batch.job_result import JobResult as JobResult
    from planner.batch.run import plan_many as plan_many
    from planner.explanation.any_job import AnyJob as AnyJob
    from planner.explanation.any_job import read_any as read_any
    from planner.explanation.compare import Comparison as Comparison
    from planner.explanation.compare import compare as compare
    from planner.explanation.compare import compare_two as compare_two
    from planner.explanation.explain import Explanation as Explanation
    from planner.explanation.explain import explain as explain
    from planner.frameworks import export as export
    from planner.frameworks.accelerate import to_accelerate as to_accelerate
    from planner.frameworks.deepspeed import to_deepspeed as to_deepspeed
    from planner.frameworks.imports.job import import_job as import_job
    from planner.frameworks.launch import launched as launched
    from planner.frameworks.megatron.bridge import to_megatron_bridge as to_megatron_bridge
    from planner.frameworks.megatron.lm import to_megatron_lm as to_megatron_lm
    from planner.frameworks.megatron.read import Imported as Imported
    from planner.frameworks.megatron.read import from_megatron_lm as from_megatron_lm
    from planner.frameworks.target import Export as Export
    from planner.frameworks.torchtitan import to_torchtitan as to_torchtitan
    from planner.jobs.problem import Problem as Problem
    from planner.jobs.problem import load as load
    from planner.plan import EstimateReport as EstimateReport
    from planner.plan import Plan as Plan
    from planner.plan import PlanReport as PlanReport
    from planner.plan import estimate as estimate
    from planner.plan import plan as plan
    from planner.report import render as render
    from planner.saved_plan import read_plan as read_plan
    from planner.studies.device_counts import PlansBySize as PlansBySize
    from planner.studies.device_counts import SizedPlan as SizedPlan
    from planner.studies.device_counts import plan_for_sizes as plan_for_sizes

_NAMES = {
    "costmodel.errors": "PlanningError SpecError",
    "planner.explanation.any_job": "AnyJob read_any",
    "planner.batch.job_result": "JobResult",
    "planner.batch.run": "plan_many",
    "planner.explanation.compare": "Comparison compare compare_two",
    "planner.explanation.explain": "Explanation explain",
    "planner.frameworks": "export",
    "planner.frameworks.accelerate": "to_accelerate",
    "planner.frameworks.deepspeed": "to_deepspeed",
    "planner.frameworks.imports.job": "import_job",
    "planner.frameworks.launch": "launched",
    "planner.frameworks.megatron.bridge": "to_megatron_bridge",
    "planner.frameworks.megatron.lm": "to_megatron_lm",
    "planner.frameworks.megatron.read": "Imported from_megatron_lm",
    "planner.frameworks.target": "Export",
    "planner.frameworks.torchtitan": "to_torchtitan",
    "planner.jobs.problem": "Problem load",
    "planner.plan": "EstimateReport Plan PlanReport estimate plan",
    "planner.report": "render",
    "planner.saved_plan": "read_plan",
    "planner.studies.device_counts": "PlansBySize SizedPlan plan_for_sizes",
}
"""Public names by the module that defines them."""

_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)


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
install()
