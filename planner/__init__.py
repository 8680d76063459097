"""
Plan the pretraining of a language model: ``from planner import load, plan, estimate, explain``.

:mod:`planner.api` lists the stable names. Nothing is imported before it is used, so that ``planner --help`` answers at
once.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from planner.api import SHORT

if TYPE_CHECKING:
    from planner.api import Advice as Advice
    from planner.api import AnyJob as AnyJob
    from planner.api import ClusterChoices as ClusterChoices
    from planner.api import Comparison as Comparison
    from planner.api import EstimateReport as EstimateReport
    from planner.api import Explanation as Explanation
    from planner.api import Export as Export
    from planner.api import Imported as Imported
    from planner.api import JobResult as JobResult
    from planner.api import Plan as Plan
    from planner.api import PlanningError as PlanningError
    from planner.api import PlanReport as PlanReport
    from planner.api import PlansBySize as PlansBySize
    from planner.api import PriceList as PriceList
    from planner.api import Problem as Problem
    from planner.api import SizedPlan as SizedPlan
    from planner.api import SpecError as SpecError
    from planner.api import SpecErrors as SpecErrors
    from planner.api import StudyReport as StudyReport
    from planner.api import Wish as Wish
    from planner.api import advice_rows as advice_rows
    from planner.api import advise as advise
    from planner.api import compare as compare
    from planner.api import compare_recipe as compare_recipe
    from planner.api import compare_two as compare_two
    from planner.api import estimate as estimate
    from planner.api import explain as explain
    from planner.api import export as export
    from planner.api import from_megatron_lm as from_megatron_lm
    from planner.api import import_job as import_job
    from planner.api import judge_recipes as judge_recipes
    from planner.api import launched as launched
    from planner.api import load as load
    from planner.api import plan as plan
    from planner.api import plan_for_sizes as plan_for_sizes
    from planner.api import plan_many as plan_many
    from planner.api import read_any as read_any
    from planner.api import read_plan as read_plan
    from planner.api import read_prices as read_prices
    from planner.api import recipe_candidates as recipe_candidates
    from planner.api import recipes_for as recipes_for
    from planner.api import render as render
    from planner.api import render_advice as render_advice
    from planner.api import render_study as render_study
    from planner.api import study as study
    from planner.api import to_accelerate as to_accelerate
    from planner.api import to_deepspeed as to_deepspeed
    from planner.api import to_frame as to_frame
    from planner.api import to_megatron_bridge as to_megatron_bridge
    from planner.api import to_megatron_lm as to_megatron_lm
    from planner.api import to_torchtitan as to_torchtitan

    __version__: str

__all__ = list(SHORT)


def __getattr__(name: str) -> Any:
    """Ask for a public name in ``planner.api`` when it is first wanted."""
    if name not in __all__ and name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("planner.api"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List public names, imported or not."""
    return sorted({*globals(), *__all__, "__version__"})


logging.getLogger(__name__).addHandler(logging.NullHandler())
