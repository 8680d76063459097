"""Memory that a job lacks however many devices it has: the answer to whether it fits on devices of a kind at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf

from costmodel.strategy import Recompute, Sharding, Strategy
from costmodel.tables import tabulate
from planner.jobs.problem import Problem
from planner.search.candidates import fits, memory_only
from planner.search.domains import Rules, default_domains, problem_rules
from planner.search.runnable import plainest
from planner.search.solver import Clock
from planner.search.space import build_space
from planner.verbs.memory_gap import closest

ENOUGH = 2**12 * 45
"""Devices on which sharded states vanish; usual nodes and degrees divide it."""

MOST_SECONDS = 10.0
"""Longest time of the search for the closest strategy."""


def missing_bytes(problem: Problem) -> float:
    """
    Return the memory per device, with its share of the host, that the closest strategy lacks.

    It is 0 where a strategy fits, and infinite where none satisfies the other rules. A few plain strategies are tried
    first, for speed.

    Parameters
    ----------
    problem
        The job, on :data:`ENOUGH` devices.

    Raises
    ------
    OutOfTimeError
        If time runs out before a strategy is found.
    """
    rules = problem_rules(problem)
    if any(_is_plan(problem, rules, strategy) for strategy in _plain_strategies(problem)):
        return 0.0
    space = build_space(problem).keep_largest_sets()
    gap = closest(problem, space, memory_only, Clock(seconds=MOST_SECONDS))
    return gap.device_bytes + gap.host_bytes if gap else inf


def _is_plan(problem: Problem, rules: Rules, strategy: Strategy) -> bool:
    """Tell whether a strategy satisfies all rules, memory last."""
    facts, decisions = problem.facts, strategy.decisions()
    if not all(tabulate(rule, facts, decisions) for rule in (*rules.rows, *rules.mixed)):
        return False
    fit = fits(facts, rules, memory_only(facts, decisions), problem.search.memory_headroom_bytes)
    return bool(fit.device & fit.host)


def _plain_strategies(problem: Problem) -> Iterator[Strategy]:
    """Yield strategies that recompute all and shard optimizer states or weights, with few degrees."""
    facts = problem.facts
    most_tp = min(facts.cluster.device.devices_per_node, 8)
    few_ep = sorted({max(value for value in default_domains(facts)["ep"] if value <= most) for most in (1, 8, 64)})
    shardings = ((Sharding.WEIGHTS, True), (Sharding.OPTIMIZER, False))
    for pp, tp, ep, (sharding, overlap) in product((1, 4, 16), (1, most_tp), few_ep, shardings):
        yield replace(
            plainest(),
            tp=tp,
            pp=pp,
            dp=ENOUGH // (tp * pp),
            ep=ep,
            sequence_parallel=tp > 1,
            sharding=sharding,
            recompute=Recompute.FULL,
            dp_overlap=overlap,
        )
