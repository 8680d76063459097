"""
``python -m benchmarks.monotone``: whether faster hardware, an overlap or less work ever make a predicted step longer.

Random jobs of the catalog's models, devices and releases, each device faster or slower than the catalog's, random
strategies that the rules allow, each changed in every way of ``benchmarks/monotone/checks.py``. Exits with 1 if a step
gets longer by more than a citation allows.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from benchmarks.accuracy.metrics import grouped
from benchmarks.monotone.checks import FASTER, SLOWER, TOLERANCE, Case, Seen, random_cases, seen
from costmodel.step.layer import layer_parts

PER_JOB = 4
"""Strategies that are drawn of each random job."""

MOST_BY_PIECES = 0.45
"""
Fraction of a step by which tensor-parallel overlap may make it longer where single matmuls overlap.

PyTorch, ``torch/distributed/_symmetric_memory/__init__.py``: such a matmul is launched piece by piece, and the pieces
are added up. The most that was drawn is 0.42, with 32 pieces.
"""

MOST_BY_LEAD = 5e-3
"""
Fraction of a step by which anything may make it longer where the host is late in a pipeline.

A host is ahead by what the device takes longer in one pass, and has that for the next one, since launches are queued
(CUDA programming guide, asynchronous concurrent execution). So a device that is faster in one pass waits in the other:
both together take as long, but ranks that wait for each other's single passes may wait a little longer.
"""

MOST_BY_WINDOW = 2e-3
"""
Fraction of a step by which shorter passes may make it longer, if the pipeline takes as long as with the longer ones.

Exposed data-parallel communication and transfers between ranks are the parts that the passes beside them do not hide
(MoFa, arXiv:2511.09837, equations (24) and (23)). If ranks wait for others, a shorter pass begins later, and with it
the reduction of its gradients; transfers are hidden by a mean pass. So the step may be longer by no more than what is
exposed of that. All-to-alls that are hidden in the steady phase are exposed in warm-up and cool-down.
"""


def is_cited(one: Seen) -> bool:
    """Tell whether a source says that this change may make this step longer."""
    facts, strategy = one.case.facts, one.case.strategy
    in_pieces = facts.cluster.device.behaviour.communication.tp_overlaps_single_matmuls
    if one.name == "tp_overlap" and in_pieces and one.excess <= MOST_BY_PIECES:
        return True
    shown = one.shown + TOLERANCE * one.before
    if strategy.pp > 1 and one.excess <= MOST_BY_WINDOW and one.after - one.before <= shown:
        return True
    is_late = host_is_late(one.case) or host_is_late(one.other)
    longest = 1 + facts.cluster.device.constants.overlap_launches_most_fraction
    if one.name == "ep_overlap" and host_is_late(one.other) and one.after <= longest * one.before:
        return True  # launches of alternating passes take longer
    return strategy.pp > 1 and one.excess <= MOST_BY_LEAD and is_late


def host_is_late(case: Case) -> bool:
    """Tell whether the device waits for launches in some layer."""
    return bool((layer_parts(case.facts, case.strategy.decisions()).host > 0).any())


def run(num_strategies: int, *, fewest: int = 0, first_seed: int = 0) -> Iterator[Seen]:
    """
    The checks of so many random strategies, and of more for changes that few strategies allow.

    Parameters
    ----------
    num_strategies
        Number of strategies that are changed in every way.
    fewest
        Number of checks that each change gets at least, by further strategies.
    first_seed
        From which random jobs on.
    """
    drawn, seed, checks = 0, first_seed, Counter(dict.fromkeys((*FASTER, *SLOWER), 0))
    while drawn < num_strategies or min(checks.values()) < fewest:
        for case in random_cases(seed, PER_JOB):
            names = [name for name in checks if drawn < num_strategies or checks[name] < fewest]
            for one in seen(case, drawn, names=names):
                checks[one.name] += 1
                yield one
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
    parser.add_argument("--fewest", type=int, default=1000, help="checks of each change, by further strategies")
    parser.add_argument("--first-seed", type=int, default=0, help="the first random job")
    given = parser.parse_args()
    checks = list(run(given.strategies, fewest=given.fewest, first_seed=given.first_seed))
    found = violations(checks)
    by_name = grouped(checks, lambda one: one.name)
    print(f"{'change':22}{'checks':>8}{'offload':>9}{'longer':>8}{'worst':>10}")
    for name, own in by_name.items():
        longer = [one for one in own if one.excess > TOLERANCE]
        offloading = sum(one.case.strategy.activation_offload for one in own)
        worst = max((one.excess for one in own), default=0.0)
        print(f"{name:22}{len(own):8}{offloading:9}{len(longer):8}{max(worst, 0.0):10.4%}")
    cited = sum(one.excess > TOLERANCE and is_cited(one) for one in checks)
    print(f"{len(checks)} checks, {len(found)} violations; {cited} steps longer by what a source says")
    for one in found[:20]:
        facts = one.case.facts
        where = f"{facts.model.name} on {facts.cluster.num_devices} x {facts.cluster.device.name}"
        print(f"  {one.name}: {one.before:.6f} to {one.after:.6f} s, {where}: {one.case.strategy}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
