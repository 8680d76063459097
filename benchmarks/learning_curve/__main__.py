"""
``python -m benchmarks.learning_curve``: what 1, 2, 4, 8 and 16 own runs are worth on a stack left out of the fit.

Exit codes: 0 eight runs that the advice measures first halve the error in the median over stacks, and by four and eight
no stack gets worse in the median over draws; 1 not so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import planner.measure.calibrate.published as learning
from benchmarks.learning_curve import curve
from benchmarks.output import print_lines

GOAL = 0.5
JUDGED = 8
NEVER_WORSE = (4, 8)
FEWEST_DRAWS = 20
TABLE = Path(learning.__file__).parent / learning.TABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the curve, and write it for the planner where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_curve", description=__doc__.split("\n\n")[0])
    parser.add_argument("--draws", type=int, default=FEWEST_DRAWS, help="random choices of own runs (default: 20)")
    parser.add_argument("--processes", type=int, default=2, help="processes that share the work (default: 2)")
    parser.add_argument("--exact", action="store_true", help="eight runs also without linear steps (half an hour)")
    parser.add_argument("--spread", action="store_true", help="how stacks differ beyond constants, by likelihood")
    parser.add_argument("--write", action="store_true", help="write planner/measure/calibrate/learning_curve.json")
    options = parser.parse_args(arguments)
    if options.draws < FEWEST_DRAWS:
        parser.error(f"--draws: at least {FEWEST_DRAWS}; fewer leave kinds of models with the gains of too few stacks")
    begin = time.monotonic()
    found = list(curve.stacks(curve.measured()))
    if options.spread:
        print_lines(curve.spread_lines(found))
        return 0
    tried = list(curve.trials(found, num_draws=options.draws))
    every, gains = list(curve.points(tried)), list(curve.summarize_gains(tried))
    print_lines(curve.lines(every))
    if options.exact:
        print_lines(curve.exact_lines(curve.exact_points(found, gains, JUDGED, options.processes), every))
    if options.write:
        TABLE.write_text(curve.document(every, gains), encoding="utf-8")
    print(f"{len(found)} stacks, {time.monotonic() - begin:.0f} s")
    judged = [one for one in curve.worths(every) if (one.models, one.chosen, one.runs) == ("all", "first", JUDGED)]
    harmed = curve.worse([one for one in every if one.runs in NEVER_WORSE])
    return 0 if all(one.ratio <= GOAL for one in judged) and not harmed else 1


if __name__ == "__main__":
    sys.exit(main())
