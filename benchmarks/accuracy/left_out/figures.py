"""The accuracy: errors on rows whose group, model, source or release was left out of the fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.left_out.folds import GROUP, KINDS, MODEL, SOFTWARE, SOURCE, is_newest
from benchmarks.accuracy.left_out.held_out import HeldOut, as_held_out
from benchmarks.accuracy.left_out.intervals import Coverage, coverages, left_out_errors
from benchmarks.accuracy.metrics import Errors, errors, grouped
from planner.measure.runs.predictions import Prediction

FAMILIES = {"dense": ("dense",), "MoE and hybrid": ("moe", "hybrid")}


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """
    Figures of rows predicted by fits that had not seen them.

    Parameters
    ----------
    rows
        How many.
    by_source
        Step-time errors by what was left out, then by source.
    macro, num_rows
        Mean over sources of their mean absolute errors, and how many rows, by what was left out, then by family.
    newest
        Errors of the newest software, predicted by fits to older releases, by family and ``all``.
    coverages
        Rows inside the intervals that others make.
    """

    rows: int
    by_source: dict[str, dict[str, Errors]]
    macro: dict[str, dict[str, float]]
    num_rows: dict[str, dict[str, int]]
    newest: dict[str, Errors]
    coverages: tuple[Coverage, ...]


def left_out(predicted: Sequence[Prediction], known: Mapping[str, HeldOut]) -> LeftOut | None:
    """Figures of the rows that are in the file of such predictions; None if none is."""
    by_kind = {kind: as_held_out(predicted, known, kind) for kind in KINDS}
    rows = by_kind[GROUP]
    if not rows:
        return None
    newest = [one for one in by_kind[SOFTWARE] if is_newest(one.case)]
    seconds = {kind: [known[one.run.id].seconds.get(kind, float("nan")) for one in rows] for kind in KINDS}
    return LeftOut(
        rows=len(rows),
        by_source={kind: by_source(same) for kind, same in by_kind.items() if same},
        macro={kind: macro_by_family(same) for kind, same in by_kind.items() if same},
        num_rows={
            kind: {name: len(of) for name, of in _families(same, every="all").items()}
            for kind, same in by_kind.items()
            if same
        },
        newest={name: _errors(same) for name, same in _families(newest, every="all").items()},
        coverages=tuple(coverages(left_out_errors([one.case for one in rows], seconds))),
    )


def by_source(rows: Sequence[Prediction]) -> dict[str, Errors]:
    """Step-time errors of each source."""
    return {source: _errors(same) for source, same in sorted(grouped(rows, lambda one: one.run.source).items())}


def _errors(rows: Sequence[Prediction]) -> Errors:
    return errors([one.time_error or 0.0 for one in rows])


def macro(rows: Sequence[Prediction]) -> float:
    """Mean absolute step-time error, every source weighing the same."""
    return float(np.mean([one.mean for one in by_source(rows).values()]))


def macro_by_family(rows: Sequence[Prediction]) -> dict[str, float]:
    """The same for all rows, for dense models, for those with experts or state-space layers."""
    return {name: macro(same) for name, same in _families(rows, every="all").items()}


def _families(rows: Sequence[Prediction], *, every: str) -> dict[str, list[Prediction]]:
    found = {every: list(rows)}
    found |= {name: [one for one in rows if one.architecture in kinds] for name, kinds in FAMILIES.items()}
    return {name: same for name, same in found.items() if same}


NEWEST_SOFTWARE = "newest software"


def outer(figures: LeftOut, family: str) -> dict[str, tuple[float, int]]:
    """
    A family's error, and of how many rows, by what was left out: a model, a source, the newest software.

    Over sources the mean is of their means; the newest software is of one source.
    """
    found = {}
    for kind in (MODEL, SOURCE):
        if family in figures.macro.get(kind, {}):
            found[kind] = (figures.macro[kind][family], figures.num_rows[kind][family])
    if family in figures.newest:
        newest = figures.newest[family]
        found[NEWEST_SOFTWARE] = (newest.mean, newest.rows)
    return found


def worst_outer(figures: LeftOut, family: str) -> tuple[str, float, int] | None:
    """What left out makes a family's error largest, that error, and of how many rows it is: the headline."""
    found = outer(figures, family)
    worst = max(found, key=lambda kind: found[kind][0], default=None)
    return None if worst is None else (worst, *found[worst])
