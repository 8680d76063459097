"""``python -m benchmarks.plans.features --write``: what measured runs have shown, and how many of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from benchmarks.accuracy.tables import RUNS, read_table
from planner.measure.runs.predictions import Case, cases
from planner.uncertainty.evidence import features, shown, traits
from planner.uncertainty.evidence.features import shown_by
from planner.uncertainty.evidence.kinds import stack_of
from planner.uncertainty.evidence.shown import ShownFeatures, features_of_runs
from planner.uncertainty.evidence.traits import Traits, tallies_of, traits_of

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


def features_shown(ran: Sequence[Case]) -> list[ShownFeatures]:
    """Features that runs have shown, by stack."""
    named = ((case.facts.cluster.framework, case.strategy) for case in ran)
    return features_of_runs((stack_of(framework.name), strategy) for framework, strategy in named if framework)


def traits_shown(ran: Sequence[Case]) -> list[Traits]:
    """Everything else that they have shown, each run's own."""
    return [traits_of(case.facts, case.strategy) for case in ran]


def document(entries: dict[str, Any]) -> str:
    """A file of the planner's."""
    text = yaml.safe_dump({"source": SOURCE, **entries}, sort_keys=False, width=120, default_flow_style=None)
    return f"# Generated; do not edit.\n{text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was shown, and write it where asked; 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans.features", description=__doc__)
    files = f"{shown.TABLE}, {traits.TABLE} and {features.TABLE}"
    parser.add_argument("--write", action="store_true", help=f"write planner/uncertainty/evidence/: {files}")
    options = parser.parse_args(arguments)
    ran = measured_cases()
    stacks, tallies = features_shown(ran), tallies_of(traits_shown(ran))
    proven = shown_by((case.facts, case.strategy) for case in proving_cases())
    for one in stacks:
        print(one.stack)
        for name, counts in one.runs.items():
            print(f"  {name}: {', '.join(f'{value} {count:,}' for value, count in counts.items())}")
    for tally in tallies:
        print(f"{tally.dimension}, {tally.among}: {', '.join(f'{v} {count:,}' for v, count in tally.runs.items())}")
    if options.write:
        by_file = {
            shown.TABLE: {"stacks": [asdict(one) for one in stacks]},
            traits.TABLE: {"tallies": [asdict(one) for one in tallies]},
            features.TABLE: {"shown": [asdict(one) for one in proven]},
        }
        for name, entries in by_file.items():
            (FOLDER / name).write_text(document(entries), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
