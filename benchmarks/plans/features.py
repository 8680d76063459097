"""``python -m benchmarks.plans.features --write``: how many measured runs have a value of a decision, by stack."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from benchmarks.accuracy.tables import read_table
from planner.runs.predictions import Prediction, predictions
from planner.uncertainty.peaks import stack_of
from planner.uncertainty.shown import TABLE, ShownFeatures, features_of_runs

SOURCE = "python -m benchmarks.plans.features --write: the strategies of the rows of benchmarks/measured_runs"


def shown(predicted: Sequence[Prediction]) -> list[ShownFeatures]:
    """What the runs that ran have shown."""
    ran = (one.case for one in predicted if one.run.kind != "oom")
    named = ((case.facts.cluster.framework, case.strategy) for case in ran)
    return features_of_runs((stack_of(framework.name), strategy) for framework, strategy in named if framework)


def document(stacks: Sequence[ShownFeatures]) -> str:
    """The planner's file."""
    plain = {"source": SOURCE, "stacks": [asdict(one) for one in stacks]}
    text = yaml.safe_dump(plain, sort_keys=False, width=120, default_flow_style=None)
    return f"# Generated; do not edit.\n{text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was shown, and write it where asked; 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans.features", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write planner/uncertainty/{TABLE}")
    options = parser.parse_args(arguments)
    stacks = shown([one for one in predictions(*read_table()) if isinstance(one, Prediction)])
    for one in stacks:
        print(one.stack)
        for name, counts in one.runs.items():
            print(f"  {name}: {', '.join(f'{value} {count:,}' for value, count in counts.items())}")
    if options.write:
        (Path(__file__).parents[2] / "planner" / "uncertainty" / TABLE).write_text(document(stacks), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
