"""Former names of modules, and of names in packages that were modules: an import by the old name names the new one."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import NoReturn

INTO_ROOMS = {
    "constraints.rules": "divisibility experts features frameworks memory microbatches profiles releases schedules "
    "settings topology",
    "costmodel.facts": "calibration features fields framework",
    "costmodel.lowering": "recompute",
    "costmodel.memory": "footprint rank",
    "costmodel.models": "config_json description flops huggingface parameters patterns",
    "costmodel.network": "collectives groups",
    "costmodel.pipelines": "orders schedules simulator stages",
    "costmodel.step": "compute estimate layer layouts optimizer overlap",
    "planner.batch.executors": "dask ray",
    "planner.explanation": "compare explain",
    "planner.jobs": "cluster completion document framework model moved problem values",
    "planner.search": "candidates clock space",
}
"""Modules that moved into a room."""

RENAMED = {
    "planner.bounds": "planner.jobs.limits",
    "planner.jobs.bounds": "planner.jobs.limits",
    "costmodel.adapter": "costmodel.step.links",
    "costmodel.step.adapter": "costmodel.step.links",
    "constraints.listing": "constraints.candidate_list",
    "costmodel.layers": "costmodel.lowering",
    "costmodel.models.utilization": "costmodel.models.flops",
    "costmodel.profiles": "costmodel.lowering.framework.settings",
    "costmodel.stage_dealing": "costmodel.lowering.framework.stage_dealing",
    "costmodel.pipeline": "costmodel.pipelines.interleaved",
    "costmodel.utilization": "costmodel.models.flops",
    "costmodel.spec": "costmodel.facts.model, costmodel.facts.device, costmodel.facts.cluster, "
    "costmodel.facts.workload, costmodel.facts.reliability",
    "planner.batch.answer": "planner.batch.job_result",
    "planner.batch.command": "planner.cli.batch",
    "planner.batch.content": "planner.batch.fingerprint",
    "planner.batch.crew": "planner.batch.executors.local",
    "planner.batch.lane": "planner.batch.executors.worker",
    "planner.calibration.profile_text": "benchmarks.accuracy.profile_text",
    "planner.calibration.intervals": "planner.uncertainty.intervals",
    "planner.elastic": "planner.studies.device_counts",
    "planner.export": "planner.frameworks, planner.frameworks.megatron",
    "planner.features": "planner.jobs.framework",
    "planner.front": "planner.studies.pareto",
    "planner.given": "planner.jobs.strategy_file",
    "planner.job": "planner.jobs.entries",
    "planner.listing": "planner.jobs.candidate_list, planner.search.listed",
    "planner.recorded": "planner.saved_plan",
    "planner.schedule": "planner.checkpoints",
    "planner.search.stage_options": "planner.search.stages.options",
    "planner.search.stage_search": "planner.search.stages.search",
    "planner.stage_options": "planner.search.stages.options",
    "planner.stage_search": "planner.search.stages.search",
    "planner.report.explained": "planner.report.records.explained, planner.report.document",
    "planner.report.schema": "planner.schema.reports",
    "planner.report.stages": "planner.report.strategies",
    "planner.shortage": "planner.infeasibility.memory_gap",
}
"""Renamed modules; a module that became several lists all of them."""

NOW = RENAMED | {
    f"{room.rpartition('.')[0]}.{name}": f"{room}.{name}"
    for room, names in INTO_ROOMS.items()
    for name in names.split()
}


class FormerNames:
    """The last finder: it handles modules that no other finder finds."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """
        Raise with the new name of a module.

        Raises
        ------
        ModuleNotFoundError
            For a name of ``NOW``.
        """
        if name in NOW:  # Without the error's own "name", or "from planner import problem" would lose the message.
            raise ModuleNotFoundError(f"{name} is {NOW[name]} now.")


def explain_members(package: str) -> None:
    """
    Let a package that was a module report the new module of a name.

    The package's ``__getattr__`` is set from here: in the package's own source, mypy would allow any name.
    """
    vars(sys.modules[package])["__getattr__"] = partial(_former_member, package)


def _former_member(package: str, name: str) -> NoReturn:
    modules = [f"{package}.{one.name}" for one in iter_modules(sys.modules[package].__path__)]
    if not name.startswith("_") and f"{package}.{name}" not in modules:
        having = [module for module in map(import_module, modules) if hasattr(module, name)]
        if having:
            home = getattr(getattr(having[0], name), "__module__", having[0].__name__)
            raise ImportError(f"{package}.{name} is {home}.{name} now.")
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def install() -> None:
    """Append ``FormerNames`` to the finders, once."""
    if FormerNames not in sys.meta_path:
        sys.meta_path.append(FormerNames)
