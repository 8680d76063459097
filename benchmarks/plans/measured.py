"""``python -m benchmarks.plans.measured --write``: measured runs with their steps, for the planner to name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.accuracy.metrics import read_table
from benchmarks.output import format_csv
from costmodel.models.flops import parameters
from planner.jobs.run_jobs import RejectedRow, Run
from planner.measure.runs.predictions import Prediction, predictions
from planner.uncertainty.intervals import release_name, size_of
from planner.uncertainty.records import RUNS_TABLE, decisions_of, job_of

FILE = Path(__file__).parents[2] / "planner" / "uncertainty" / RUNS_TABLE

COLUMNS = (
    "id",
    "source",
    "model",
    "parameters",
    "hidden_size",
    "num_experts",
    "job",
    "release",
    "decisions",
    "step_seconds",
    "predicted_seconds",
)


def measured(rows: Iterable[Prediction | RejectedRow]) -> Iterator[Prediction]:
    """The usable pretraining runs whose whole step was timed, the newest first."""
    found = [one for one in rows if isinstance(one, Prediction) and _is_timed(one.run)]
    yield from sorted(found, key=lambda one: one.run.date, reverse=True)


def _is_timed(run: Run) -> bool:
    """A sum of parts that were timed alone is no measured step."""
    return run.kind == "pretrain" and bool(run.step_seconds) and run.get("settings.composition") != "parts"


def row(one: Prediction) -> tuple[str, ...]:
    """One row of the planner's table."""
    hidden_size, num_experts = size_of(one.facts.model)
    return (
        one.run.id,
        one.run.source,
        one.run.model,
        f"{parameters(one.facts.model):.5g}",
        str(hidden_size),
        str(num_experts),
        " ".join(map(str, job_of(one.facts))),
        release_name(one.facts.cluster),
        " ".join(f"{name}={value}" for name, value in decisions_of(one.strategy).items()),
        f"{one.run.step_seconds:.5g}",
        f"{one.step_seconds:.5g}",
    )


def text_of(runs: Iterable[Prediction]) -> str:
    """The planner's table."""
    return format_csv(COLUMNS, map(row, runs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Count the runs, and write them where asked; 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans.measured", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write planner/uncertainty/{RUNS_TABLE}")
    options = parser.parse_args(arguments)
    text = text_of(measured(predictions(*read_table())))
    print(f"{len(text.splitlines()) - 1:,} runs, {len(text.encode()):,} bytes")
    if options.write:
        FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
