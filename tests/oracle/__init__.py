"""Sizes of the random oracles: ``ENUMERATED_PROBLEMS`` of the whole search, 500 if not given; the others in step."""

from __future__ import annotations

import os

NUM_PROBLEMS = int(os.environ.get("ENUMERATED_PROBLEMS", "500"))


def in_step(of_500: int) -> int:
    """Return how many cases an oracle has that has some beside 500 problems of the whole search."""
    return -(-of_500 * NUM_PROBLEMS // 500)


def blocks(num: int, size: int, few: range) -> list[list[int]]:
    """Return the seeds of an oracle's tests: ``size`` for each, but a few of the first ones, which are a unit test."""
    first, *others = ([*range(start, start + size)] for start in range(0, num, size))
    return [[*few], [seed for seed in first if seed not in few], *others]


def name_of(seeds: list[int]) -> str:
    """Return the name of a block of seeds: its first one."""
    return str(seeds[0])
