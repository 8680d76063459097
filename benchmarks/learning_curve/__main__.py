"""
``python -m benchmarks.learning_curve``: what 2, 4, 8 and 16 own runs are worth on a stack left out of the fit.

Exit codes: 0 eight runs that the advice measures first halve the error in the median over stacks; 1 they do not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import planner.measure.calibrate.wording as learning
from benchmarks.learning_curve.curve import document, exact_lines, exact_points, lines, points, spread_lines, worths
from benchmarks.learning_curve.stacks import measured, stacks
from benchmarks.output import print_lines

GOAL = 0.5
JUDGED = 8
TABLE = Path(learning.__file__).parent / learning.TABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the curve, and write it for the planner where asked."""
    options = _parser().parse_args(arguments)
    begin = time.monotonic()
    known = measured(options.derivatives, options.processes)
    found = list(stacks(known))
    if options.spread:
        print_lines(spread_lines(found))
        return 0
    curve = list(points(found, num_draws=options.draws))
    print_lines(lines(curve))
    if options.exact:
        print_lines(exact_lines(exact_points(found, JUDGED, options.processes), curve))
    if options.write:
        TABLE.write_text(document(curve), encoding="utf-8")
    print(f"{len(found)} stacks, {time.monotonic() - begin:.0f} s")
    judged = [one for one in worths(curve) if (one.models, one.chosen, one.runs) == ("all", "first", JUDGED)]
    return 0 if all(one.ratio <= GOAL for one in judged) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_curve", description=__doc__.split("\n\n")[0])
    parser.add_argument("--draws", type=int, default=20, help="random choices of own runs (default: 20)")
    parser.add_argument("--processes", type=int, default=2, help="processes that share the work (default: 2)")
    parser.add_argument("--derivatives", type=Path, help="file that keeps predictions and derivatives between calls")
    parser.add_argument("--exact", action="store_true", help="eight runs also without linear steps (half an hour)")
    parser.add_argument("--spread", action="store_true", help="how stacks differ beyond constants, by likelihood")
    parser.add_argument("--write", action="store_true", help="write planner/measure/calibrate/learning_curve.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
