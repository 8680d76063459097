"""Check a line against the model of its job: only models with experts accept decisions about experts."""

from __future__ import annotations

from collections.abc import Mapping

from constraints.rules.frameworks import MEGATRON_MODULES
from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.strategy import MODULES_OF, decision_text
from planner.jobs.line.reading import STRATEGY
from planner.jobs.strategy_file import StrategyFile

OF_EXPERTS = ("shared_experts", "expert_activation", "experts", "moe", "moe_router", "moe_preprocess")
"""Modules that only models with experts have."""

OFF: Mapping[str, int] = {"ep": 1, "etp": 1, "token_dispatcher": 0, "ep_overlap": 0}
"""Decisions about experts, with their values in models without experts."""


def require_parts(model: Model, given: StrategyFile, where: str = STRATEGY) -> None:
    """
    Refuse decisions about experts in a line for a model that has none.

    Raises
    ------
    SpecError
        With the wrong decision.
    """
    if model.has_experts:
        return
    for name, value in given.decisions.items():
        parts = decision_text(name, int(value)).split("+")
        of_experts = [part for part in parts if name in MODULES_OF and part in OF_EXPERTS]
        if of_experts or value != OFF.get(name, value):
            text = "+".join(MEGATRON_MODULES.get(part, part) for part in parts)
            raise SpecError(f"{where}.{name}", f"is {text}, but {model.name} has no experts.")
