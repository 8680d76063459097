"""Strategies that a job's list gives whole, with their stages: costed one by one beside the space."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from constraints.encoding import seconds_to_ticks
from costmodel.step.layouts import strategy_cost, strategy_seconds
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.search.candidates import CostLike, Ints
from planner.search.incumbents import Found
from planner.search.listed import broken_by
from planner.search.space import Space


class Run(Protocol):
    """The search that the list belongs to."""

    problem: Problem
    space: Space
    group_of_row: Ints

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""

    def leave(self, ticks: int) -> None:
        """Note that something as fast as this was left."""

    def resources(self, cost: CostLike) -> dict[str, Any]:
        """Figures that rules of memory and time ask for."""

    def keep(self, group: Hashable, found: Found) -> None:
        """Note a strategy."""

    def of_layout(self, strategy: Strategy, cost: CostLike) -> Found:
        """A strategy with what it costs."""


def cost_whole(run: Run) -> None:
    """Cost the strategies that a list gives with their stages, each as it is, and note those that the rules allow."""
    candidate_list = run.problem.search.candidates
    for strategy in candidate_list.whole if candidate_list else ():
        if run.seconds_left <= 0:
            run.leave(0)
            return
        facts = run.space.facts
        cost = strategy_cost(facts, strategy)
        if not broken_by(run.problem, run.space.rules, strategy, run.resources(cost)):
            ticks = int(seconds_to_ticks(np.asarray(strategy_seconds(facts, strategy))))
            run.keep(_group_of(run, strategy), replace(run.of_layout(strategy, cost), ticks=ticks))


def _group_of(run: Run, strategy: Strategy) -> Hashable:
    """The group of a strategy, whether or not the space has others of it."""
    values = {name: getattr(strategy, name) for name in ("tp", "cp", "pp", "dp", "ep")}
    same = np.logical_and.reduce([run.space.rows[name] == value for name, value in values.items()])
    return int(run.group_of_row[same][0]) if same.any() else tuple(values.values())
