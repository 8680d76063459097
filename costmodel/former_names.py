"""Modules that stand elsewhere now: an import by the old name says where."""

from __future__ import annotations

import sys

INTO_ROOMS = {
    "constraints.rules": "divisibility experts features frameworks memory microbatches profiles releases schedules "
    "settings topology",
    "costmodel.facts": "calibration features fields framework profiles",
    "costmodel.lowering": "recompute",
    "costmodel.memory": "footprint rank",
    "costmodel.models": "config_json description flops huggingface parameters patterns utilization",
    "costmodel.network": "collectives groups",
    "costmodel.pipelines": "orders schedules simulator stage_dealing stages",
    "costmodel.step": "adapter compute estimate layer layouts optimizer overlap",
    "planner.batch.executors": "dask ray",
    "planner.explanation": "compare explain",
    "planner.jobs": "bounds cluster completion document framework model moved problem values",
    "planner.search": "candidates clock space stage_options stage_search",
}
"""Modules that went from beside a room into it."""

RENAMED = {
    "constraints.listing": "constraints.candidate_list",
    "costmodel.layers": "costmodel.lowering",
    "costmodel.pipeline": "costmodel.pipelines.interleaved",
    "costmodel.spec": "costmodel.facts.model, costmodel.facts.device, costmodel.facts.cluster, "
    "costmodel.facts.workload, costmodel.facts.reliability",
    "planner.batch.answer": "planner.batch.job_result",
    "planner.batch.command": "planner.cli.batch",
    "planner.batch.content": "planner.batch.fingerprint",
    "planner.batch.crew": "planner.batch.executors.local",
    "planner.batch.lane": "planner.batch.executors.worker",
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
    "planner.shortage": "planner.infeasibility.memory_gap",
    "planner.sizes": "planner.infeasibility.cluster_sizes",
}
"""Modules that are called otherwise; where one became several, all of them."""

NOW = RENAMED | {
    f"{room.rpartition('.')[0]}.{name}": f"{room}.{name}"
    for room, names in INTO_ROOMS.items()
    for name in names.split()
}


class FormerNames:
    """The last finder: asked for modules that nobody else finds."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """
        Say what a module is called now.

        Raises
        ------
        ModuleNotFoundError
            For a name of ``NOW``.
        """
        if name in NOW:  # Without the error's own "name", or "from planner import problem" would lose the message.
            raise ModuleNotFoundError(f"{name} is {NOW[name]} now.")


def install() -> None:
    """Ask ``FormerNames``, once."""
    if FormerNames not in sys.meta_path:
        sys.meta_path.append(FormerNames)
