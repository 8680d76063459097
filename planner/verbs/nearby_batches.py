"""
Near-by batch sizes that keep all devices busy, where the job's own does not.

A batch of 1,024 can be divided among few of the data-parallel sizes that 504 devices allow; 1,008 among 63 ranks. The
sizes within some per cent of the job's batch that share the largest divisor with its devices are searched. Sizes that
train more tokens per second than the job's own plan are reported. This is advice: its time is bounded, and there is no
proof that no other size is better.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from costmodel.events import log_event
from costmodel.step.layouts import summed_strategy_seconds
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import SHORTEST_SECONDS
from planner.search.questions import Question, answer, rivals_at
from planner.search.solver import Clock

MOST_CHANGE = 0.05
"""Largest change of a near-by batch, as a fraction: learning rates hold for it."""

MOST_TRIED, MOST_REPORTED = 4, 3
"""Numbers of sizes that are searched, and reported."""

LEAST_GAIN = 0.01
"""Least gain in tokens per second, as a fraction, of a reported size."""

POORER = 2
"""Factor by which another size's shared divisor with the devices is larger if the job's own divides poorly."""

LONGEST_SECONDS = 10.0
"""Longest time of all searches together, within the time limit."""


def nearby_batches(
    problem: Problem, best: tuple[Problem, Strategy], step_seconds: float, clock: Clock
) -> tuple[tuple[Problem, Strategy], ...]:
    """
    Search batch sizes near a job's own with which all of its devices train faster, the nearest first.

    Parameters
    ----------
    problem
        The job.
    best
        The job with the settings of its best strategy, and that strategy.
    step_seconds
        Step of that strategy.
    clock
        Clock of the job's time limit.

    Returns
    -------
    tuple
        The job with each size, and the best strategy for it. Each is faster than those before.
    """
    own = problem.facts.workload.global_batch_size
    clock = Clock(seconds=min(clock.seconds_left, LONGEST_SECONDS))
    found: list[tuple[Problem, Strategy]] = []
    least_gain = 1 + LEAST_GAIN
    for size in sorted(
        promising_sizes(own, problem.facts.cluster.num_devices), key=lambda size: (abs(size - own), size)
    ):
        log_event(__name__, "near-by batches are tried", sequences=size)
        asked = _change_batch(best[0], size, clock)
        times = size / own / least_gain
        if faster := _faster(asked, best, step_seconds, times):
            strategy, seconds = faster
            found.append((asked, strategy))
            least_gain = size / own * step_seconds / seconds
    return tuple(found[-MOST_REPORTED:])


def divides_poorly(global_batch_size: int, num_devices: int) -> bool:
    """
    Tell whether a near-by batch shares a much larger divisor with the devices.

    >>> divides_poorly(1024, 504), divides_poorly(1024, 512), divides_poorly(15360, 2048)
    (True, False, False)
    """
    shared = math.gcd(global_batch_size, num_devices)
    return any(
        math.gcd(size, num_devices) >= POORER * shared for size in promising_sizes(global_batch_size, num_devices)
    )


def promising_sizes(global_batch_size: int, num_devices: int) -> list[int]:
    """
    Return sizes near a batch with a larger common divisor with the devices than its own, the largest divisor first.

    >>> promising_sizes(1024, 504)
    [1008, 1071, 1064, 1050]
    """
    shared = math.gcd(global_batch_size, num_devices)
    low, high = (math.ceil(global_batch_size * (1 - MOST_CHANGE)), int(global_batch_size * (1 + MOST_CHANGE)))
    sizes = np.arange(low, high + 1)
    divisors = np.gcd(sizes, num_devices)
    order = np.lexsort([np.abs(sizes - global_batch_size), -divisors])
    return [int(sizes[at]) for at in order[:MOST_TRIED] if divisors[at] > shared]


def _change_batch(problem: Problem, size: int, clock: Clock) -> Problem:
    """Return the job with so many sequences per step, on all devices, with the time left."""
    workload = replace(problem.facts.workload, global_batch_size=size)
    everything = problem.change_limits(
        idle_devices=False,
        max_devices=None,
        num_nodes=None,
        faster_than_seconds=None,
        time_limit_seconds=max(clock.seconds_left, SHORTEST_SECONDS),
    )
    return replace(everything, facts=replace(problem.facts, workload=workload))


def _faster(
    asked: Problem, best: tuple[Problem, Strategy], step_seconds: float, times: float
) -> tuple[Strategy, float] | None:
    """Return the best strategy and step for a batch, if below ``times`` the step of another batch; else None."""
    summed = summed_strategy_seconds(best[0].facts, best[1])
    rivals = rivals_at(step_seconds * times, summed * times, 1)
    (outcome,) = answer([Question(problem=replace(asked, top=1), rivals=rivals)])
    found = zip(outcome.strategies, outcome.step_seconds, strict=True)
    return next((one for one in found if one[1] < step_seconds * times), None)
