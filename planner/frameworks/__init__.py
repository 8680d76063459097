"""Exports of plans; each target is one module that maps every decision to its options, or refuses it."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.frameworks.target import Export, Plan

TARGETS = {
    "megatron-lm": "planner.frameworks.megatron.lm",
    "megatron-bridge": "planner.frameworks.megatron.bridge",
    "torchtitan": "planner.frameworks.torchtitan",
    "deepspeed": "planner.frameworks.deepspeed",
    "accelerate": "planner.frameworks.accelerate",
}
"""
Module of each target, with its function ``to_<target>``, its ``ANSWERS`` and its ``PROGRAM``; imported when needed.
"""

DASHBOARDS = ("prometheus", "grafana", "wandb")
"""Tools that show a plan's figures beside a run's (``planner/frameworks/dashboards.py`` writes their files)."""

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
    _require_software(plan, target)
    lengths = plan.facts.workload.lengths
    if lengths is not None and lengths.rank_tokens is not None and not target.startswith("megatron"):
        problem = f"{target} has no dynamic context parallelism: all sequences are split over the cp ranks."
        raise SpecError("training.max_seqlen_per_dp_cp_rank", problem, "Plan again without the entry.")
    module = import_module(TARGETS[target])
    exported: Export = getattr(module, f"to_{target.replace('-', '_')}")(plan, version)
    exported = replace(exported, version=exported.version or getattr(module, "VERSIONS", ("",))[-1])
    if lengths is not None:
        exported = replace(exported, notes=(*exported.notes, PACKED))
    cluster = plan.cluster
    if cluster.framework is None or not cluster.unknown_release:
        return exported
    written = f"this is written for {exported.target} {exported.version}"
    doubt = f"{stands_in(cluster.unknown_release, cluster.framework.name)}; {written}."
    return replace(exported, notes=(*exported.notes, doubt))


def targets_of(plan: Plan) -> dict[str, str | None]:
    """Return for every target the first reason why it cannot run a plan; None: it can."""
    return {target: find_refusal(plan, target) for target in TARGETS}


def find_refusal(plan: Plan, target: str) -> str | None:
    """Return the first reason why a target cannot run a plan; None: it can."""
    from costmodel.errors import SpecError

    try:
        export(plan, target)
    except SpecError as error:
        lines = [line[4:] for line in error.problem.splitlines() if line.startswith("  - ")]
        return lines[0] if lines else f"{error.where}: {error.problem}"
    return None


def _require_software(plan: Plan, target: str) -> None:
    """Refuse plans for several sites, and for devices whose own software has no export here."""
    from costmodel import catalog
    from costmodel.errors import SpecError

    if plan.cluster.sites is not None:
        hint = "Drop cluster.sites to export the plan of one site; what joins them is beyond the target."
        raise SpecError("cluster.sites", f"is nothing that {target} launches by itself.", hint)
    device, framework = plan.cluster.device, plan.cluster.framework
    if framework is None or catalog.runs_on(framework, device.architecture):
        return
    problem = f"{target} does not run on {device.name}: {framework.name} stands for software that no file knows."
    raise SpecError("target", problem, "The plan's degrees and settings are those to start from in its own software.")
