"""
``python -m benchmarks.targets``: whether every plan that is made for a target can be exported to it.

Random jobs of all models of the catalog, each planned for each target: the plans export, or the job is refused before
the search with the target's reason, or nothing fits. Exits with 1 if a plan does not export.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from benchmarks.targets.jobs import Answer, became, random_jobs
from planner.frameworks import TARGETS

NUM_EXAMPLES = 12
"""Refusals that are shown, the most frequent ones."""

EXIT_NOT_EXPORTED = 1


def main() -> int:
    """Plan, export, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300, help="random jobs, each for every target (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn from (default: 0)")
    parser.add_argument("--seconds", type=float, default=5.0, help="time limit of each search (default: 5)")
    arguments = parser.parse_args()
    counted: dict[str, Counter[Answer]] = {target: Counter() for target in TARGETS}
    refusals: Counter[str] = Counter()
    wrong = 0
    for job in random_jobs(arguments.seed, arguments.jobs, arguments.seconds):
        for target in TARGETS:
            found = became(job, target)
            counted[target][found.answer] += 1
            if found.answer is Answer.REFUSED:
                refusals[found.text] += 1
            if found.answer is Answer.WRONG:
                wrong += 1
                print(f"WRONG: {target}: {job}\n  {found.text}", flush=True)
    width = max(map(len, Answer))
    print(f"{'':{width}}  " + "  ".join(f"{target:>15}" for target in TARGETS))
    for answer in Answer:
        print(f"{answer:{width}}  " + "  ".join(f"{counted[target][answer]:15}" for target in TARGETS))
    print("\nThe most frequent refusals:")
    for text, number in refusals.most_common(NUM_EXAMPLES):
        print(f"{number:4} {text.splitlines()[0]}")
    return EXIT_NOT_EXPORTED if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
