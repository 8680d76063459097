"""``python -m benchmarks.plans.features --write``: number of measured runs by their properties and features."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.accuracy.metrics import RUNS, read_table
from benchmarks.output import format_generated
from planner.measure.runs.predictions import Case, cases
from planner.uncertainty.evidence.counts import TABLE, Counts, traits_of
from planner.uncertainty.evidence.features import feature_entries

SOURCE = "python -m benchmarks.plans.features --write: the strategies of the rows of benchmarks/measured_runs"

NEWER = RUNS.with_name("newer.csv")

FOLDER = Path(__file__).parents[2] / "planner" / "uncertainty" / "evidence"


def measured_cases() -> list[Case]:
    """The rows of the project's table that ran, as the cost model takes them."""
    return [one for one in cases(*read_table()) if isinstance(one, Case) and one.run.kind != "oom"]


def proving_cases() -> list[Case]:
    """
    The rows that tell what a stack line can do: those of the table, and newer ones that no constant was fitted to.

    Not those of MLPerf, whose submissions run software of their own.
    """
    newer = [one for one in cases(*read_table(NEWER)) if isinstance(one, Case) and one.run.kind != "oom"]
    return [*measured_cases(), *(one for one in newer if not one.run.source.startswith("MLPerf"))]


def count_runs() -> Counts:
    """Count the traits of the table's rows, and the features of those that tell what a stack line can do."""
    traits = (entry for case in measured_cases() for entry in traits_of(case.facts, case.strategy).entries())
    features = (entry for case in proving_cases() for entry in feature_entries(case.facts, case.strategy))
    return Counts.count((*traits, *features))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts, and write them where asked; 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans.features", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write planner/uncertainty/evidence/{TABLE}")
    options = parser.parse_args(arguments)
    tallies = count_runs().tallies
    for tally in tallies:
        print(f"{tally.dimension}, {tally.among}: {', '.join(f'{v} {count:,}' for v, count in tally.runs.items())}")
    if options.write:
        entries = {"source": SOURCE, "tallies": [asdict(one) for one in tallies]}
        text = format_generated(entries, width=120, default_flow_style=None)
        (FOLDER / TABLE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
