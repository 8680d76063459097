"""Exports of plans; each target is one module that maps decisions and settings to its options."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.frameworks.target import Export
    from planner.results import Plan

TARGETS = {
    "megatron-lm": "planner.frameworks.megatron.lm",
    "megatron-bridge": "planner.frameworks.megatron.bridge",
    "torchtitan": "planner.frameworks.torchtitan",
    "deepspeed": "planner.frameworks.deepspeed",
    "accelerate": "planner.frameworks.accelerate",
}
"""
Module of each target, with its function ``to_<target>`` and its ``PROGRAM``; imported when it is needed.
"""

DASHBOARDS = ("prometheus", "grafana", "wandb")
"""Tools that show a plan's figures with a run's (``planner/frameworks/dashboards.py`` writes their files)."""

LAUNCHERS = {"torchrun": "launch.sh", "slurm": "job.sbatch", "kubernetes": "trainjob.yaml"}
"""The file of each launcher (``planner/frameworks/launch.py`` writes it)."""


PACKED = (
    "Attention is costed within the packed sequences of training.sequence_lengths: the data set must give their limits "
    "to its kernels (cu_seqlens; Megatron-LM: packed_seq_params). Fused causal kernels ignore a mask and work on whole "
    "samples."
)
"""Note for plans of packed sequences, which no target's options make alone."""


def export(plan: Plan, target: str, version: str | None = None) -> Export:
    """
    Export a plan to a target.

    Parameters
    ----------
    plan
        The plan.
    target
        A name of ``TARGETS`` or ``DASHBOARDS``.
    version
        Release of the framework, of the ``VERSIONS`` of the target's module. None: the one that the target is written
        for; of Megatron-LM the one that the plan is costed with, else the newest that takes the plan.

    Raises
    ------
    SpecError
        If there is no such target or version, or if no release of the catalog runs on the devices. Also if the target
        cannot express the plan; the message then lists every refused field with the reason.
    """
    from constraints.targets import require_software
    from costmodel.catalog.releases import stands_in
    from costmodel.errors import SpecError, did_you_mean
    from costmodel.validation import shown

    if target in DASHBOARDS:
        from planner.frameworks.dashboards import WRITERS

        if version is not None:
            raise SpecError("version", f"{target} has none.", "Take it out.")
        return WRITERS[target](plan)
    if target not in TARGETS:
        every = (*TARGETS, *DASHBOARDS)
        known = f"Known: {', '.join(sorted(every))}."
        nearest = did_you_mean(target, every)
        raise SpecError("target", f"{shown(target)} is unknown.", known if nearest == known else f"{nearest} {known}")
    require_software(plan.facts, target)
    module = import_module(TARGETS[target])
    exported: Export = getattr(module, f"to_{target.replace('-', '_')}")(plan, version)
    exported = replace(exported, version=exported.version or getattr(module, "VERSIONS", ("",))[-1])
    if plan.facts.workload.lengths is not None:
        exported = replace(exported, notes=(*exported.notes, PACKED))
    cluster = plan.cluster
    if cluster.framework is None or not cluster.unknown_release:
        return exported
    written = f"this is written for {exported.target} {exported.version}"
    doubt = f"{stands_in(cluster.unknown_release, cluster.framework.name)}; {written}."
    return replace(exported, notes=(*exported.notes, doubt))
