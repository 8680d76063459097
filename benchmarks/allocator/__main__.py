"""
``python -m benchmarks.allocator``: what PyTorch's allocator holds beyond tensors, played over steps; no GPU.

Prints the shares by allocator and kind of job, then what communicators, dispatchers and graphs take beside. Exits with
0 when the catalog's shares (``costmodel/catalog/allocators.yaml``) are those of the simulation, to 0.01, and lie around
those that nine published layouts measured.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.allocator.allocator import Allocator
from benchmarks.allocator.steps import Job, Rank, jobs, lines
from benchmarks.inputs import read_rows
from costmodel.catalog.releases import ALLOCATORS, Share, Shares, allocator
from costmodel.catalog.releases import Allocator as Known

TOLERANCE = 0.01
"""By which a share of the catalog may differ from the simulation's."""

TAIL = 0.1
"""Below the low share, and above the high one, lie so many of the simulated jobs."""

LEAST_INSIDE = 7
"""Least number of the nine measured layouts within the low and the high share: 80 %, rounded down."""

ROUNDS = 5
"""Halvings of the interval in which the least memory lies that a job runs in, or runs in without retries."""

STEPS = 5
"""Steps that are played; the last one tells whether retries go on."""

KINDS = ("whole", "gathered", "gathered_recomputed")

RUNS = Path(__file__).parents[1] / "measured_runs" / "runs.csv"


def kind_of(job: Job) -> str:
    """Return the catalog's kind of a job: whole weights, or gathered ones with or without full recomputation."""
    if job.sharded == "none":
        return "whole"
    return "gathered_recomputed" if job.recompute == "full" else "gathered"


def shares_of(job: Job, name: str) -> tuple[float, float, float]:
    """Bytes reserved over bytes in tensors, minus 1: where there is room, at least, and at least without retries."""
    played, _ = _played(job, name)
    ends = float(played.most_allocated), float(played.most_reserved)
    least = _least(lambda capacity: _retries(job, name, capacity) is not None, *ends)
    quiet = _least(lambda capacity: _retries(job, name, capacity) == 0, *ends)
    return ends[1] / ends[0] - 1, least / ends[0] - 1, quiet / ends[0] - 1


def simulated(name: str) -> Known:
    """The catalog's entry as the simulation has it."""
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for job in jobs():
        found[kind_of(job)].append(shares_of(job, name))
    held, least, quiet = ({kind: [one[i] for one in found[kind]] for kind in KINDS} for i in range(3))
    return Known(
        at_the_limit=float(np.quantile(least["whole"], 0.5)), reserved=_shares(held), without_retries=_shares(quiet)
    )


def _shares(found: Mapping[str, list[float]]) -> Shares:
    tails = {"low": TAIL, "middle": 0.5, "high": 1 - TAIL}
    made = {
        kind: Share(**{name: float(np.quantile(values, share)) for name, share in tails.items()})
        for kind, values in found.items()
    }
    return Shares(**made)


def measured_shares() -> Mapping[str, float]:
    """Reserved over allocated memory, minus 1, of every layout whose notes say both."""
    found: dict[str, float] = {}
    for row in read_rows(RUNS):
        noted = re.search(r"real_reserved_gib=([\d.]+).*memory measured on (same case|\S+)", row["notes"])
        if noted:
            layout = row["id"] if noted[2] == "same case" else noted[2]
            found[layout] = float(noted[1]) / float(row["peak_memory_gib"]) - 1
    return found


def _played(job: Job, name: str, capacity: float = float("inf")) -> tuple[Allocator, int]:
    """The allocator after all steps, and the retries of the last one."""
    played = Allocator(expandable=name == "expandable", capacity=capacity)
    return played, Rank(job, played).run(STEPS)


def _retries(job: Job, name: str, capacity: float) -> int | None:
    """Retries of the last step in a device's memory; None where the job does not run."""
    try:
        return _played(job, name, capacity)[1]
    except MemoryError:
        return None


def _least(is_enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least capacity that is enough, by bisection; the high one is."""
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _numbers(one: Known) -> dict[str, float]:
    told = {
        f"{group}.{kind}.{name}": getattr(getattr(getattr(one, group), kind), name)
        for group in ("reserved", "without_retries")
        for kind in KINDS
        for name in ("low", "middle", "high")
    }
    return {"at_the_limit": one.at_the_limit, **told}


def _wrong() -> Iterator[str]:
    for name in ALLOCATORS:
        known, found = _numbers(allocator(name)), _numbers(simulated(name))
        for key, value in found.items():
            print(f"{name:<12} {key:<36} {value:>8.1%} catalog {known[key]:>7.1%}")
            if abs(value - known[key]) > TOLERANCE:
                yield f"{name}.{key}: the catalog says {known[key]:.3f}, the simulation {value:.3f}"
    measured, whole = measured_shares(), allocator("segments").reserved.whole
    inside = sum(whole.low <= share <= whole.high for share in measured.values())
    print(f"measured on {len(measured)} layouts: {', '.join(f'{share:.1%}' for share in sorted(measured.values()))}")
    print(f"of which {inside} lie within {whole.low:.1%} and {whole.high:.1%} (at least {LEAST_INSIDE})")
    if inside < LEAST_INSIDE:
        yield f"only {inside} measured layouts lie within the simulated shares"


def main() -> int:
    """Print the shares; 0, or 1 with what is wrong."""
    wrong = list(_wrong())
    for line in (*wrong, "", *lines()):
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
