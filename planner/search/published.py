"""Published layouts as candidates of a job: the fastest one that its rules allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from constraints.rule import Rule
from constraints.rules.topology import virtual_stages_hold_equally_much
from constraints.verdict import find_violations, violated_by_ranks
from costmodel.step.estimate import estimate
from costmodel.strategy import Strategy
from planner.jobs.limits import StageChoice
from planner.jobs.problem import Problem
from planner.search.recipes import recipes_for
from planner.search.rules import problem_rules
from planner.uncertainty.retries import usual_headroom_bytes

if TYPE_CHECKING:
    from planner.search.alternatives import JointOutcome


def fastest_published(problem: Problem) -> tuple[Problem, Strategy, float] | None:
    """
    Find the fastest published layout that is a plan for a job.

    Parameters
    ----------
    problem
        The job; the layout keeps its rules, limits and preferences. Uneven stages are allowed although the search does
        not try them, unless the job sets ``stages`` itself.

    Returns
    -------
    tuple or None
        The job with its settings, the strategy, and its step in seconds; None without one.
    """
    return min(find_published(problem), key=lambda one: one[2], default=None)


def published_headroom_bytes(problem: Problem) -> float:
    """Return the device memory to leave free for a published layout: the job's own, else enough for both chances."""
    own = problem.search.memory_headroom_bytes
    return own if problem.search.asks_headroom else min(own, usual_headroom_bytes(problem.facts.cluster))


def add_published(problem: Problem, joint: JointOutcome) -> list[tuple[Problem, Strategy, float]]:
    """Return the strategies of a search, after a published layout that is faster than all of them."""
    found = [(*one, seconds) for one, seconds in zip(joint.ranked, joint.outcome.step_seconds, strict=True)]
    published = fastest_published(problem) if found else None
    if published is None or published[2] >= found[0][2]:
        return found
    return [published, *found]


def is_set_by_layout(strategy: Strategy, rule: Rule) -> bool:
    """Tell whether a rule is about even stages and the strategy's layout sets its stages: the rule is then skipped."""
    return rule is virtual_stages_hold_equally_much and strategy.layout is not None


def find_published(problem: Problem) -> Iterator[tuple[Problem, Strategy, float]]:
    """Yield the published layouts that are plans for a job, as in :func:`fastest_published`."""
    if problem.search.candidates is not None or problem.search.num_nodes is not None:
        return
    for job in problem.each:
        for layout in recipes_for(job):
            own, strategy = layout.problem, layout.strategy
            if own is not job:  # with a setting that is the recipe's, not the job's
                continue
            if strategy.layout is not None and job.search.stages == StageChoice.EVEN and job.search.asks_stages:
                continue
            rules = problem_rules(own)
            needed = [one for one in (*rules.rows, *rules.mixed) if not is_set_by_layout(strategy, one)]
            if violated_by_ranks(own.facts, strategy, rules=needed):
                continue
            found = estimate(own.facts, strategy)
            resources = {
                "device_bytes": found.device_bytes,
                "host_bytes": found.host_bytes,
                "memory_headroom_bytes": published_headroom_bytes(job),
                "step_seconds": found.step_seconds,
                "bubble_seconds": sum(part.exposed_seconds for part in found.breakdown if part.name == "bubble"),
            }
            if not find_violations(own.facts, strategy.decisions() | resources, rules=(*rules.memory, *rules.timed)):
                yield own, strategy, found.step_seconds
