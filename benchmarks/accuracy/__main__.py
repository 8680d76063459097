"""
``python -m benchmarks.accuracy``: every measured run beside the cost model's prediction of it.

Exit codes: 0 every row was in order; 1 some were refused; 2 there is nothing to read; 3 (with ``--check-jobs``) the job
file of a row is costed otherwise than the row; 4 (with ``--allowed``) rules forbid more than they may of what ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.accuracy.checks import allowed_lines, distinct_configurations, plain_lines, refusals
from benchmarks.accuracy.fit import held_out, timed_cases
from benchmarks.accuracy.jobs import check_lines, differences, write_jobs
from benchmarks.accuracy.left_out.folds import HELD_OUT, HeldOut, read_held_out
from benchmarks.accuracy.metrics import RUNS, read_table
from benchmarks.accuracy.report import as_json, lines, report, write_rows
from benchmarks.output import print_lines, refuse_wrong_input
from planner.jobs.run_jobs import References
from planner.jobs.run_table import RejectedRow
from planner.measure.runs.predictions import Case, Prediction, predictions

ROWS_REFUSED = 1
JOBS_DIFFER = 3
RULES_FORBID = 4


@refuse_wrong_input
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; returns the exit code."""
    options = _parser().parse_args(arguments)
    rows, known = read_table(options.runs, options.models)
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
    if differing:
        return JOBS_DIFFER
    if not all(one.is_met for one in found):
        return RULES_FORBID
    return ROWS_REFUSED if figures.refused else 0


def _cases(results: Sequence[Prediction | RejectedRow]) -> Iterator[Case]:
    return (one.case for one in results if isinstance(one, Prediction))


def _held_out(
    options: argparse.Namespace, known: References, results: Sequence[Prediction | RejectedRow]
) -> dict[str, HeldOut]:
    """Stored predictions of rows left out, where they are as they were then; or those of fits made now."""
    if not options.fit:
        given = {one.run.id: one.run for one in results if isinstance(one, Prediction)}
        own = {row.id: row for row in read_table()[0]}
        return {name: row for name, row in read_held_out(HELD_OUT).items() if given.get(name) == own.get(name)}
    timed = timed_cases((one.run for one in results if isinstance(one, Prediction)), known)
    return held_out(timed, known, num_processes=options.processes)


_DESCRIPTION, _EXIT_CODES = (__doc__ or "\n\n").replace("``", "'").split("\n\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("--runs", type=Path, default=RUNS, help="measured runs (default: the project's)")
    parser.add_argument("--models", type=Path, help="architectures behind the rows (default: the project's)")
    parser.add_argument("--fit", action="store_true", help="fit anew, rows left out in turn (a quarter of an hour)")
    parser.add_argument("--processes", type=int, default=2, help="with --fit: processes (default: 2)")
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
