"""Plans as the files and flags that start them; each target is one module that maps every decision or refuses it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown

if TYPE_CHECKING:
    from planner.frameworks.target import Export
    from planner.plan import Plan

TARGETS = {
    "megatron-lm": "planner.frameworks.megatron.lm:to_megatron_lm",
    "megatron-bridge": "planner.frameworks.megatron.bridge:to_megatron_bridge",
    "torchtitan": "planner.frameworks.torchtitan:to_torchtitan",
    "deepspeed": "planner.frameworks.deepspeed:to_deepspeed",
    "accelerate": "planner.frameworks.accelerate:to_accelerate",
}
"""Where the function of each target is; imported when it is asked for."""


def export(plan: Plan, target: str) -> Export:
    """
    A plan in the words of a target.

    Parameters
    ----------
    plan
        The plan.
    target
        A name of ``TARGETS``.

    Raises
    ------
    SpecError
        If there is no such target, or if it cannot express the plan: with every decision that it refuses, and why.
    """
    if target not in TARGETS:
        known = f"Known: {', '.join(sorted(TARGETS))}."
        nearest = did_you_mean(target, TARGETS)
        raise SpecError("target", f"{shown(target)} is unknown.", known if nearest == known else f"{nearest} {known}")
    module, _, name = TARGETS[target].partition(":")
    exported: Export = getattr(import_module(module), name)(plan)
    return exported
