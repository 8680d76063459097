"""Published layouts as candidates of a job: the fastest of those that its rules allow."""

from __future__ import annotations

from collections.abc import Iterator

from constraints.rule import Rule
from constraints.rules.topology import virtual_stages_hold_equally_much
from constraints.verdict import violated, violated_by_ranks
from costmodel.step.estimate import estimate
from costmodel.strategy import Strategy
from planner.jobs.limits import StageChoice
from planner.jobs.problem import Problem
from planner.recipes.layouts import recipes_for
from planner.search.rules import problem_rules


def fastest_published(problem: Problem) -> tuple[Problem, Strategy, float] | None:
    """
    Find the fastest published layout that is a plan for a job.

    Parameters
    ----------
    problem
        The job, whose rules, limits and preferences the layout keeps. Its stages may be what the search does not try,
        unless the job says itself what they may differ in.

    Returns
    -------
    tuple or None
        The job with its settings, the strategy, and the seconds of its step; None where there is none.
    """
    return min(_allowed(problem), key=lambda one: one[2], default=None)


def by_hand(strategy: Strategy, rule: Rule) -> bool:
    """Return whether a rule is about stages that a strategy's layout deals by hand: it is none of their business."""
    return rule is virtual_stages_hold_equally_much and strategy.layout is not None


def _allowed(problem: Problem) -> Iterator[tuple[Problem, Strategy, float]]:
    if problem.search.candidates is not None or problem.search.num_nodes is not None:
        return
    for job in problem.each:
        for layout in recipes_for(job):
            own, strategy = layout.problem, layout.strategy
            if strategy.layout is not None and job.search.stages == StageChoice.EVEN and job.search.asks_stages:
                continue
            rules = problem_rules(own)
            needed = [one for one in (*rules.rows, *rules.mixed) if not by_hand(strategy, one)]
            if violated_by_ranks(own.facts, strategy, rules=needed):
                continue
            found = estimate(own.facts, strategy)
            resources = {
                "device_bytes": found.device_bytes,
                "host_bytes": found.host_bytes,
                "memory_headroom_bytes": job.search.memory_headroom_bytes,
                "step_seconds": found.step_seconds,
                "bubble_seconds": sum(part.exposed_seconds for part in found.breakdown if part.name == "bubble"),
            }
            if not violated(own.facts, strategy.decisions() | resources, rules=(*rules.memory, *rules.timed)):
                yield own, strategy, found.step_seconds
