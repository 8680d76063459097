"""Front of step time and memory: the fastest strategy for each amount of memory that a GPU may use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from costmodel import MIB_BYTES
from costmodel.events import log_progress
from costmodel.record import record
from costmodel.step import estimate as detail
from costmodel.step.estimate import Estimate
from planner.jobs.problem import Problem
from planner.results import EXIT_CODES, PlanReport
from planner.search.candidates import memory_only
from planner.search.questions import search
from planner.search.solver import Clock, OutOfTimeError
from planner.search.space import build_space
from planner.verbs.explain import move_to_device
from planner.verbs.memory_gap import closest

NUM_STEPS = 8
"""Number of steps from the least memory of a strategy to the memory of a GPU."""

LARGER = (1.25, 1.75)
"""GPUs with more memory, as multiples of the job's own: about the memory of the next two generations."""

LEAST_SECONDS = 0.2
"""Least time of a search; with less it is not begun."""


@record(frozen=True, kw_only=True, slots=True)
class Point:
    """
    The fastest strategy within an amount of memory.

    Parameters
    ----------
    allowed_bytes
        Memory that a GPU may use.
    estimate
        The strategy with its memory use.
    is_proven
        True where no strategy within the memory has a shorter step as the search compares it; else time ran out.
    """

    allowed_bytes: float
    estimate: Estimate
    is_proven: bool


def pareto_front(report: PlanReport, clock: Clock) -> tuple[tuple[Point, ...], float | None, tuple[float, ...]]:
    """
    Search again with less and with more memory, with even stages: many searches in the time of one.

    A strategy that is fastest within some memory and takes less of it is fastest for all amounts between; these are not
    searched. The most important amounts come first: all of a GPU's memory, the middle, larger GPUs, then ever finer
    steps.

    Parameters
    ----------
    report
        Report of the job; its plan is the first point.
    clock
        Clock of the time limit.

    Returns
    -------
    tuple
        Points, least memory first. Memory below which no strategy fits, with even stages; None where time ran out
        before it was known. Amounts of memory that were not searched for lack of time.
    """
    problem = report.chosen
    device = problem.facts.cluster.device
    least = _least_bytes(problem, clock)
    room = device.memory_bytes - problem.search.memory_headroom_bytes
    is_proven = not report.outcome.gap
    points = [
        Point(allowed_bytes=room, estimate=one.estimate, is_proven=is_proven) for one in filter(None, [report.fastest])
    ]
    late = []
    amounts = _amounts(least, device.memory_bytes) if least is not None else []
    for number, amount in enumerate(amounts):
        log_progress(__name__, "other amounts of memory are tried", number, len(amounts))
        # proven within more memory, a strategy that takes no more than this is the fastest here, too
        if any(one.is_proven and one.estimate.device_bytes <= amount <= one.allowed_bytes for one in points):
            continue
        if clock.seconds_left < LEAST_SECONDS:
            late.append(amount)
            continue
        points += _search_point(problem, amount, clock)
    ascending = sorted(points, key=lambda point: point.allowed_bytes)
    return tuple(_fastest(points, one) for one in ascending), least, tuple(sorted(late))


def _fastest(points: Sequence[Point], within: Point) -> Point:
    """Return the strategy with the fastest simulated step among all that fit into a point's memory."""
    fitting = [point.estimate for point in points if point.estimate.device_bytes <= within.allowed_bytes]
    return replace(within, estimate=min(fitting, key=lambda one: one.step_seconds))


def _least_bytes(problem: Problem, clock: Clock) -> float | None:
    """Return the least memory of any strategy, in whole MiB as the solver counts."""
    none = _limit_memory(problem, MIB_BYTES)
    try:
        memory_gap = closest(none, build_space(none), memory_only, clock)
    except OutOfTimeError:
        return None
    if memory_gap is None or memory_gap.host_bytes or not memory_gap.is_proven:
        return None
    return (math.ceil(memory_gap.device_bytes / MIB_BYTES) + 1) * MIB_BYTES


def _amounts(least: float, whole: float) -> list[float]:
    """Return the memory limits to search, the most important first."""
    largest = max(whole, least)
    between = [least + (largest - least) * step / NUM_STEPS for step in _coarse_first(NUM_STEPS)]
    larger = [largest * times for times in LARGER]
    return [*([whole] if whole >= least else []), between[0], *larger, *between[1:], least]


def _coarse_first(number: int) -> Sequence[int]:
    """
    Return steps from 1 on, those with many factors of two first.

    >>> _coarse_first(8)
    [4, 2, 6, 1, 3, 5, 7]
    """
    return sorted(range(1, number), key=lambda step: (-(step & -step), step))


def _search_point(problem: Problem, amount: float, clock: Clock) -> list[Point]:
    limited = _limit_memory(problem, amount)
    outcome = search(limited.change_limits(time_limit_seconds=clock.seconds_left / 2))
    if not outcome.strategies:
        return []
    found = detail.estimate(problem.facts, outcome.strategies[0])
    return [Point(allowed_bytes=amount, estimate=found, is_proven=EXIT_CODES[outcome.status] == 0)]


def _limit_memory(problem: Problem, nbytes: float) -> Problem:
    """Return the problem on GPUs with so much usable memory, with one strategy with even stages to find."""
    limited = move_to_device(problem, memory_bytes=nbytes).change_limits(memory_headroom_bytes=0.0, stages="even")
    return replace(limited, top=1)
