"""``python -m benchmarks.accuracy``: every measured run beside the cost model's prediction of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.fit import HELD_OUT, held_out, timed_cases
from benchmarks.accuracy.held_out import HeldOut, read_held_out
from benchmarks.accuracy.report import as_json, lines, report, write_rows
from costmodel.errors import PlanningError
from planner.runs.facts import References, references
from planner.runs.predictions import Prediction, predictions
from planner.runs.table import NotRun, read

FOLDER = Path(__file__).parents[1] / "measured_runs"

ROWS_REFUSED = 1
NO_TABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 0 if every row was in order, 1 if some were refused, 2 if there is nothing to read."""
    options = _parser().parse_args(arguments)
    try:
        known = references(options.models, FOLDER / "systems.yaml", options.systems)
        results = list(predictions(read(options.runs), known))
        figures = report(results, _held_out(options, known, results))
        if options.rows:
            write_rows(options.rows, results)
        if options.json:
            options.json.write_text(json.dumps(as_json(figures), indent=1) + "\n", encoding="utf-8")
    except (PlanningError, OSError) as error:
        print(error, file=sys.stderr)
        return NO_TABLE
    for line in lines(figures):
        print(line)
    return ROWS_REFUSED if figures.refused else 0


def _held_out(
    options: argparse.Namespace, known: References, results: Sequence[Prediction | NotRun]
) -> dict[str, HeldOut]:
    """Stored predictions of groups left out, of rows that are as they were then; or those of fits made now."""
    if not options.folds:
        given = {one.run.id: one.run for one in results if isinstance(one, Prediction)}
        own = {row.id: row for row in read(FOLDER / "runs.csv")}
        return {name: row for name, row in read_held_out(HELD_OUT).items() if given.get(name) == own.get(name)}
    timed = timed_cases((one.run for one in results if isinstance(one, Prediction)), known)
    return held_out(timed, known, num_folds=options.folds, num_processes=options.processes, software=options.software)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--runs", type=Path, default=FOLDER / "runs.csv", help="measured runs (default: the project's)")
    parser.add_argument("--models", type=Path, default=FOLDER / "models.yaml", help="architectures behind the rows")
    parser.add_argument("--systems", type=Path, default=FOLDER / "systems.yaml", help="peak rates and bandwidths")
    parser.add_argument("--folds", type=int, help="fit anew and leave out one of so many parts of the groups (minutes)")
    parser.add_argument("--software", action="store_true", help="with --folds: fit software stacks too")
    parser.add_argument("--processes", type=int, default=2, help="with --folds: processes (default: 2)")
    parser.add_argument("--rows", type=Path, help="write every row with its prediction, or why it has none (CSV)")
    parser.add_argument("--json", type=Path, help="write the report (JSON)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
