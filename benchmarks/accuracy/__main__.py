"""
``python -m benchmarks.accuracy``: every measured run beside the cost model's prediction of it.

Exit codes: 0 every row was in order; 1 some were refused; 2 there is nothing to read; 3 (with ``--check-jobs``) the job
file of a row is costed otherwise than the row; 4 (with ``--allowed``) rules forbid more than they may of what ran; 5
a stored figure of rows left out does not hold, or cannot be computed anew.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.accuracy.checks import allowed_lines, distinct_configurations, plain_lines, refusals
from benchmarks.accuracy.fit import chosen_constants, held_out, timed_cases
from benchmarks.accuracy.jobs import check_lines, differences, write_jobs
from benchmarks.accuracy.left_out import drawn as redrawn
from benchmarks.accuracy.left_out.folds import HELD_OUT, HeldOut, read_held_out
from benchmarks.accuracy.left_out.intervals import write_intervals
from benchmarks.accuracy.metrics import RUNS, read_fitted
from benchmarks.accuracy.report import as_json, lines, report, write_rows
from benchmarks.output import print_lines, refuse_wrong_input
from costmodel.errors import PlanningError
from planner.jobs.run_jobs import References, RejectedRow
from planner.measure.runs.predictions import Case, Prediction, predictions

ROWS_REFUSED = 1
JOBS_DIFFER = 3
RULES_FORBID = 4
FOLDS_DIFFER = 5


@refuse_wrong_input
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return one of the exit codes of the module's text."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.store and (options.share < 1 or options.budget < math.inf):
        parser.error("--store: stored figures are of one code: add --share 1, and no --budget")
    rows, known = read_fitted(options.runs, options.models)
    results = list(predictions(rows, known))
    figures = report(results, _held_out(options, known, results))
    if options.rows:
        write_rows(options.rows, results)
    if options.jobs:
        write_jobs(options.jobs, results)
    differing = list(differences(results, options.jobs)) if options.check_jobs else []
    if options.json:
        options.json.write_text(json.dumps(as_json(figures), indent=1) + "\n", encoding="utf-8")
    print_lines(lines(figures))
    if options.plain:
        print_lines(plain_lines(one for one in results if isinstance(one, Prediction)))
    if options.check_jobs:
        print_lines(check_lines(results, differing))
    found = list(refusals(distinct_configurations(_cases(results)))) if options.allowed else []
    if options.allowed:
        print_lines(allowed_lines(found))
    holds = bool(options.fit) or check_folds(options, known, results)
    if differing:
        return JOBS_DIFFER
    if not all(one.is_met for one in found):
        return RULES_FORBID
    if not holds:
        return FOLDS_DIFFER
    return ROWS_REFUSED if figures.refused else 0


def check_folds(options: argparse.Namespace, known: References, results: Sequence[Prediction | RejectedRow]) -> bool:
    """Compute drawn folds of the project's own table anew; True if every stored figure holds."""
    if options.runs != RUNS or options.models:
        return True
    rows = [one for one in results if isinstance(one, Prediction) and one.run.step_seconds is not None]
    drawn = redrawn.draw_folds(rows, options.seed, options.share)
    num_drawn, found = sum(len(of.left_out) for of in drawn.values()), list[redrawn.Fold]()
    try:
        stored, chosen = redrawn.read_derivatives(redrawn.DERIVATIVES), chosen_constants(rows, frameworks=True)
        held_out = read_held_out(HELD_OUT)
        found.extend(redrawn.compute_folds(rows, chosen, known, stored, held_out, drawn, budget_seconds=options.budget))
    except (PlanningError, ArithmeticError, ValueError) as error:
        print(f"\nDrawn folds (seed {options.seed}) cannot be computed anew: {error}")
        return False
    num_folds = sum(len(of.left_out) for of in redrawn.draw_folds(rows, options.seed, 1.0).values())
    if options.store:
        redrawn.store_folds(HELD_OUT, read_held_out(HELD_OUT), found)
        write_intervals(rows, read_held_out(HELD_OUT))
        redrawn.write_derivatives(redrawn.DERIVATIVES, replace(stored, made_by=redrawn.fingerprints()))
    print_lines(redrawn.fold_lines(found, stored.made_by, drawn=num_drawn, of=num_folds, seed=options.seed))
    return not any(one.changes for one in found)


def _cases(results: Sequence[Prediction | RejectedRow]) -> Iterator[Case]:
    return (one for one in results if isinstance(one, Prediction))


def _held_out(
    options: argparse.Namespace, known: References, results: Sequence[Prediction | RejectedRow]
) -> dict[str, HeldOut]:
    """Stored predictions of rows left out, where they are as they were then; or those of fits made now."""
    if not options.fit:
        given = {one.run.id: one.run for one in results if isinstance(one, Prediction)}
        stored = {name: row for name, row in read_held_out(HELD_OUT).items() if name in given}
        own = {row.id: row for row in read_fitted()[0]} if stored else {}
        return {name: row for name, row in stored.items() if given[name] == own.get(name)}
    timed = timed_cases((one.run for one in results if isinstance(one, Prediction)), known)
    return held_out(timed, known, num_processes=options.processes)


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {text}")
    return share


_DESCRIPTION, _EXIT_CODES = (__doc__ or "\n\n").replace("``", "'").split("\n\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("--runs", type=Path, default=RUNS, help="measured runs (default: the project's)")
    parser.add_argument("--models", type=Path, help="architectures behind the rows (default: the project's)")
    parser.add_argument("--fit", action="store_true", help="fit anew, rows left out in turn (a quarter of an hour)")
    parser.add_argument("--processes", type=int, default=2, help="with --fit: processes (default: 2)")
    parser.add_argument(
        "--seed",
        type=int,
        default=datetime.now(UTC).toordinal(),
        help="draw the folds that are computed anew by this number (default: today's)",
    )
    parser.add_argument("--share", type=_share, default=redrawn.SHARE, help="share of the folds to draw (default: 0.1)")
    parser.add_argument(
        "--budget", type=float, default=math.inf, help="seconds after which no further fold begins (default: no limit)"
    )
    parser.add_argument(
        "--store", action="store_true", help="store the folds that are computed anew: all, with --share 1"
    )
    parser.add_argument("--rows", type=Path, help="write every row with its prediction, or why it has none (CSV)")
    parser.add_argument("--plain", action="store_true", help="cost every row as a plain job too: does it fit?")
    parser.add_argument(
        "--allowed",
        action="store_true",
        help="count the distinct configurations that ran and that rules forbid (exit code 4 if physics forbids any, or "
        "their own software's rules more than 1 %%)",
    )
    parser.add_argument("--jobs", type=Path, help="write every predicted row as a job file of a folder, by its id")
    parser.add_argument(
        "--check-jobs",
        action="store_true",
        help="read every row's job file again, estimate it as 'planner estimate' does, and count those that agree with "
        "the row to the last digit (exit code 3 if any does not)",
    )
    parser.add_argument("--json", type=Path, help="write the report (JSON)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
