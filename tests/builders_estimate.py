"""Estimates of strategies that say little, completed as the recipes of a framework have it, without a search."""

from __future__ import annotations

from functools import partial

from planner.verbs.plan import estimate

estimate_by_recipes = partial(estimate, searched=False)
"""Cost a strategy; what it leaves open is as the recipes have it."""
