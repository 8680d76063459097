"""
``python -m benchmarks.resident``: resident memory of one process over 500 plans of different jobs.

Random jobs of all models of the catalog and of models that no other job has. Each is planned, rendered in every format,
estimated and exported to every target; every tenth is explained and compared. Nothing collects garbage by hand. For
every fifty plans it prints the least that the process holds after one of the last 25, since what the last job freed may
come on top, and what it holds now. Exits with 1 if the former grows, or if a job's facts outlive its plan.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from benchmarks.targets.jobs import random_jobs
from costmodel.errors import PlanningError
from costmodel.tables import Facts
from planner import compare, estimate, explain, export, load, plan, render
from planner.frameworks import TARGETS
from planner.jobs.strategy_file import strategy_entries
from planner.report import FORMATS

NUM_JOBS = 500
WARM_UP = 50
"""Plans after which everything is imported, and caches of a bounded size are near it."""

MOST_GROWTH_MEGABYTES = 20.0
SEARCH_SECONDS = 2.0
SEED = 47

EXPLAINED = 10
"""One job of so many is explained and compared, which takes several searches."""

OWN_MODEL, LONGEST = 3, 32768
"""One job of so many has a model that no other one has: with learned positions for more than the longest sequence."""


def resident_megabytes() -> float:
    """Resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def different_jobs(number: int, seed: int = SEED) -> Iterator[dict[str, Any]]:
    """Random jobs; every third model has positions of its own, so that no cache knows it."""
    for index, job in enumerate(random_jobs(seed, number, SEARCH_SECONDS)):
        own = deepcopy(job)
        if index % OWN_MODEL == 0:
            own["model"] = {"base": own["model"], "learned_positions": LONGEST + index}
        yield own


def use(job: dict[str, Any], index: int) -> None:
    """Do with a job everything that the planner can do with it."""
    problem = load(job)
    report = plan(problem, certified=index % EXPLAINED == 1)
    for name in FORMATS:
        render(report, name)
    for one in report.plans[:1]:
        estimate(problem, strategy_entries(problem.facts, one.strategy))
        for target in TARGETS:
            try:
                export(one, target)
            except PlanningError:
                continue
        if index % EXPLAINED == 0:
            explain(problem)
            compare(problem, {"tp": 1, "pp": 1, "cp": 1, "ep": 1})


def main() -> int:
    """Plan one job after the other and print the memory; return 0 if it does not grow, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resident", description=__doc__)
    parser.add_argument("--jobs", type=int, default=NUM_JOBS, help=f"how many plans (default: {NUM_JOBS})")
    arguments = parser.parse_args()
    started, least, held, wrong = time.perf_counter(), [], [], 0
    for index, job in enumerate(different_jobs(arguments.jobs)):
        try:
            use(job, index)
        except PlanningError:
            wrong += 1  # refused before the search: an answer, too
        held.append(resident_megabytes())
        if (index + 1) % WARM_UP == 0:
            least.append(min(held[-WARM_UP // 2 :]))
            print(
                f"{index + 1:5,} plans: {least[-1]:6.1f} MB, {least[-1] - least[0]:+6.1f} MB, now {held[-1]:6.1f} MB; "
                f"{time.perf_counter() - started:4.0f} s",
                flush=True,
            )
    growth, alive = least[-1] - least[0], sum(isinstance(one, Facts) for one in gc.get_objects())
    print(f"{wrong} jobs refused; facts of {alive} jobs are alive; {growth:+.1f} MB since plan {WARM_UP}.")
    holds = growth <= MOST_GROWTH_MEGABYTES and not alive
    print("All checks hold." if holds else "FAILED: memory of earlier jobs is held.")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
