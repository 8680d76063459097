"""
``python -m benchmarks.monotone``: whether faster hardware, an overlap or less work ever make a predicted step longer.

Random jobs of the catalog's models, devices and releases, each device faster or slower than the catalog's, random
strategies that the rules allow, each changed in every way of ``benchmarks/monotone/checks.py``. Exits with 1 if a step
gets longer by more than a citation allows.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.monotone.checks import TOLERANCE, Seen, seen
from benchmarks.monotone.problems import random_cases

PER_JOB = 4
"""Strategies that are drawn of each random job."""

PIECES = (
    "tp_overlap",
    0.1,
    "PyTorch, torch/distributed/_symmetric_memory/__init__.py: overlapped matmuls are launched piece by piece, and the "
    "pieces are added up",
)
"""What may make a step longer: a change, by which fraction at most, and who says so."""


def is_cited(one: Seen) -> bool:
    """Whether a source says that this change may make this step longer."""
    name, most, _ = PIECES
    in_pieces = one.case.facts.cluster.device.behaviour.communication.tp_overlaps_single_matmuls
    return one.name == name and in_pieces and one.excess <= most


def run(num_strategies: int, *, first_seed: int = 0) -> Iterator[Seen]:
    """
    The checks of so many random strategies.

    Parameters
    ----------
    num_strategies
        Number of strategies.
    first_seed
        From which random jobs on.
    """
    drawn, seed = 0, first_seed
    while drawn < num_strategies:
        for case in random_cases(seed, PER_JOB):
            yield from seen(case, drawn)
            drawn += 1
        seed += 1


def violations(checks: list[Seen]) -> list[Seen]:
    """Checks whose step is longer than it may be, the worst first."""
    found = [one for one in checks if one.excess > TOLERANCE and not is_cited(one)]
    return sorted(found, key=lambda one: -one.excess)


def main() -> int:
    """Print how often each change made a step longer, and the worst cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", type=int, default=1200, help="random strategies, each changed in every way")
    parser.add_argument("--first-seed", type=int, default=0, help="the first random job")
    given = parser.parse_args()
    checks = list(run(given.strategies, first_seed=given.first_seed))
    found = violations(checks)
    by_name: dict[str, list[Seen]] = defaultdict(list)
    for one in checks:
        by_name[one.name].append(one)
    print(f"{'change':22}{'checks':>8}{'offload':>9}{'longer':>8}{'worst':>10}")
    for name, own in by_name.items():
        longer = [one for one in own if one.excess > TOLERANCE]
        offloading = sum(one.case.strategy.activation_offload for one in own)
        worst = max((one.excess for one in own), default=0.0)
        print(f"{name:22}{len(own):8}{offloading:9}{len(longer):8}{max(worst, 0.0):10.4%}")
    cited = sum(is_cited(one) and one.excess > TOLERANCE for one in checks)
    print(f"{len(checks)} checks, {len(found)} violations; {cited} steps longer by pieces of matmuls: {PIECES[2]}.")
    for one in found[:20]:
        facts = one.case.facts
        where = f"{facts.model.name} on {facts.cluster.num_devices} x {facts.cluster.device.name}"
        print(f"  {one.name}: {one.before:.6f} to {one.after:.6f} s, {where}: {one.case.strategy}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
