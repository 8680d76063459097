"""Measured steps on devices that no constant was fitted to, beside the predicted ones and their intervals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from planner.jobs.run_jobs import read, references
from planner.measure.runs.predictions import Prediction, predictions
from planner.uncertainty.counts import list_gaps
from planner.uncertainty.intervals import Interval, step_interval

RUNS = Path(__file__).with_name("runs.csv")

MOST_OFF = 0.25
"""Share of the predicted step by which a measured one may be off."""


def predicted_runs() -> Iterator[tuple[Prediction, Interval]]:
    """Every run with its prediction and its interval; a :class:`ValueError` if one cannot be predicted."""
    for one in predictions(read(RUNS), references(None)):
        if not isinstance(one, Prediction):
            raise ValueError(str(one))
        gaps, cluster = list_gaps(one.facts, one.strategy), one.facts.cluster
        yield one, step_interval(one.facts.model, cluster, step_seconds=one.step_seconds, gaps=gaps)


def main() -> int:
    """Print the table; 0 if every measured step is within ``MOST_OFF`` of its prediction."""
    outside = 0
    for one, interval in predicted_runs():
        measured = one.run.step_seconds or 0.0
        outside += abs(measured / one.step_seconds - 1) > MOST_OFF
        print(
            f"{one.run.id:24}  measured {measured:6.3f} s, predicted {one.step_seconds:6.3f} s "
            f"({interval.low_seconds:.3f} to {interval.high_seconds:.3f}), "
            f"{measured / one.step_seconds:.2f} of it"
        )
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
