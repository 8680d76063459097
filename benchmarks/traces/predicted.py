"""
Recorded steps predicted from the trace of another configuration, beside what was measured.

A prediction is scaled by how the base's own step, measured without the profiler, compares with the replay of its trace:
whoever has a trace knows that time, too. That takes out what the profiler costs, and the pace of the machine.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.traces.recorded.configurations import TracedConfiguration
from benchmarks.traces.recorded.folder import Index, Measured
from costmodel.errors import SpecError, did_you_mean

Predict: TypeAlias = Callable[[tuple[Path, ...], TracedConfiguration, TracedConfiguration], float]
"""Seconds of a step: from the traces of all ranks of a base, the base's configuration, and that of the target."""

CHANGES = {
    "num_layers": "layers",
    "hidden_size": "width",
    "sequence_length": "sequence",
    "mbs": "micro-batch",
    "num_microbatches": "micro-batches",
    "dp": "data parallelism",
    "pp": "pipeline",
}
"""What a target may change, and how the table calls it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """
    A target beside its prediction.

    Parameters
    ----------
    target
        Its name.
    changed
        What it has other than its base, as in ``CHANGES``.
    measured
        Its steps without the profiler.
    seconds
        Predicted.
    """

    target: str
    changed: tuple[str, ...]
    measured: Measured
    seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.seconds / self.measured.seconds - 1


def changed(base: TracedConfiguration, target: TracedConfiguration) -> tuple[str, ...]:
    """What a target has other than its base."""
    return tuple(word for name, word in CHANGES.items() if getattr(base, name) != getattr(target, name))


def predictions(index: Index, folder: str | os.PathLike[str], base: str, predict: Predict) -> tuple[Prediction, ...]:
    """
    All targets that differ from a base in something that can be changed.

    Parameters
    ----------
    index, folder
        What was recorded, and where.
    base
        Name of the configuration whose traces are changed.
    predict
        What predicts. It also gets the base as its own target.

    Raises
    ------
    SpecError
        If the folder has no such base.
    """
    if base not in index.recordings:
        raise SpecError(base, "was not recorded.", did_you_mean(base, index.recordings))
    own = index.recordings[base]
    traces = tuple(Path(folder) / trace for trace in own.quietest.traces)
    scale = index.plain(base).seconds / predict(traces, own.configuration, own.configuration)
    return tuple(
        Prediction(
            target=name,
            changed=changed(own.configuration, one.configuration),
            measured=index.plain(name),
            seconds=scale * predict(traces, own.configuration, one.configuration),
        )
        for name, one in index.recordings.items()
        if changed(own.configuration, one.configuration) and one.configuration.optimizer == own.configuration.optimizer
    )


def lines(rows: Sequence[Prediction]) -> Iterator[str]:
    """A table in text: a row for each target, and errors by what was changed."""
    yield f"{'target':32}{'measured, ms':>14}{'spread':>8}{'predicted, ms':>15}{'error':>8}  changed"
    for row in rows:
        yield (
            f"{row.target:32}{1e3 * row.measured.seconds:>14.1f}{row.measured.spread:>8.1%}"
            f"{1e3 * row.seconds:>15.1f}{row.error:>+8.1%}  {', '.join(row.changed)}"
        )
    yield f"{'changed':32}{'targets':>8}{'mean':>8}{'median':>8}{'p90':>8}{'signed':>8}"
    for word in CHANGES.values():
        yield from _summary(word, [row.error for row in rows if word in row.changed])
    yield from _summary("one thing", [row.error for row in rows if len(row.changed) == 1])
    yield from _summary("several things", [row.error for row in rows if len(row.changed) > 1])
    yield from _summary("all", [row.error for row in rows])


def _summary(word: str, errors: Sequence[float]) -> Iterator[str]:
    if errors:
        sizes = np.abs(errors)
        yield (
            f"{word:32}{len(errors):>8}{sizes.mean():>8.1%}{np.median(sizes):>8.1%}{np.quantile(sizes, 0.9):>8.1%}"
            f"{statistics.fmean(errors):>+8.1%}"
        )
