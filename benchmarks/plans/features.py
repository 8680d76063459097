"""``python -m benchmarks.plans.features --write``: number of measured runs by their properties and features."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.accuracy.metrics import read_fitted
from benchmarks.output import format_csv
from planner.measure.runs.predictions import Case, cases
from planner.uncertainty.counts import COLUMNS, TABLE, Counts, traits_of
from planner.uncertainty.features import feature_entries

FOLDER = Path(__file__).parents[2] / "planner" / "uncertainty" / "evidence"


def measured_cases() -> list[Case]:
    """The rows that ran of those that a fit has, as the cost model takes them."""
    return [one for one in cases(*read_fitted()) if isinstance(one, Case) and one.run.kind != "oom"]


def is_proving(one: Case) -> bool:
    """Tell if a row says what a stack line can do: not those of MLPerf, whose submissions run software of their own."""
    return not one.run.source.startswith("MLPerf")


def count_runs() -> Counts:
    """Count the traits of the table's rows, and the features of those that tell what a stack line can do."""
    ran = measured_cases()
    traits = (entry for case in ran for entry in traits_of(case.facts, case.strategy).entries())
    features = (entry for case in filter(is_proving, ran) for entry in feature_entries(case.facts, case.strategy))
    return Counts.count((*traits, *features))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts, and write them where asked; 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans.features", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write planner/uncertainty/evidence/{TABLE}")
    options = parser.parse_args(arguments)
    counted = count_runs()
    for (dimension, among), rows in groupby(counted.rows(), key=lambda row: row[:2]):
        print(f"{dimension}, {among}: {', '.join(f'{value} {runs:,}' for _, _, value, runs in rows)}")
    if options.write:
        (FOLDER / TABLE).write_text(format_csv(COLUMNS, counted.rows()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
