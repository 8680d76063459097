"""Sizes of the random oracles: ``ENUMERATED_PROBLEMS`` of the whole search, 500 if not given; the others in step."""

from __future__ import annotations

import os

NUM_PROBLEMS = int(os.environ.get("ENUMERATED_PROBLEMS", "500"))


def in_step(of_500: int) -> int:
    """Return how many cases an oracle has that has some beside 500 problems of the whole search."""
    return -(-of_500 * NUM_PROBLEMS // 500)
