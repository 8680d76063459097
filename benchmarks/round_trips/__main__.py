"""
``python -m benchmarks.round_trips``: whether a plan that is given back as it was printed has the same step and peak.

Random jobs whose pipelines mostly divide no layers, for every target. Each plan is given back in each form: its line,
the ``strategy`` of a job, the JSON report, a list of candidates, an export imported again. Exits
with 1 if a step or a peak differs in the last digit.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.round_trips.jobs import random_jobs
from benchmarks.round_trips.ways import WAYS, Printed, difference, printed
from costmodel.errors import PlanningError

EXIT_UNLIKE = 1


def main() -> int:
    """Plan, give back, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=300, help="plans that are given back (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="what jobs are drawn from (default: 0)")
    parser.add_argument("--seconds", type=float, default=5.0, help="time limit of each search (default: 5)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="forms (default: all)")
    arguments = parser.parse_args()
    alike, unlike, uneven, plans = Counter[str](), Counter[str](), 0, 0
    for job in random_jobs(arguments.seed, 100 * arguments.plans, arguments.seconds):
        if plans >= arguments.plans:
            break
        with TemporaryDirectory() as folder:
            for one in _printed(job, Path(folder)):
                strategy = one.plan.strategy
                plans += 1
                uneven += one.plan.facts.model.num_layers % (strategy.pp * strategy.vpp) > 0
                for way in arguments.ways:
                    found = difference(way, one)
                    (unlike if found else alike)[way] += 1
                    if found:
                        print(f"{way}: {found}\n  {job}\n  {one.line}", flush=True)
    print(f"{plans} plans, {uneven} of them with layers that pp * vpp does not divide")
    for way in arguments.ways:
        print(f"{way:28} {alike[way]:5} alike {unlike[way]:5} unlike")
    return EXIT_UNLIKE if unlike else 0


def _printed(job: dict[str, Any], folder: Path) -> Iterator[Printed]:
    try:
        yield from printed(job, folder)
    except PlanningError as error:
        print(f"no plan: {error}"[:200], flush=True)


if __name__ == "__main__":
    sys.exit(main())
