"""Predictions of rows whose groups were left out of the fits: the file of them, and the intervals that follow."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from math import log
from pathlib import Path

import yaml

from benchmarks.accuracy.metrics import grouped, shared
from planner.calibration.cases import group_of
from planner.runs.predictions import Case, Prediction
from planner.runs.table import RejectedRow
from planner.uncertainty.intervals import Error, Spread, kind_of, spreads


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """
    One row predicted by fits to other groups.

    Parameters
    ----------
    id
        Of the row.
    fold
        With which part of the groups it was left out.
    alone_seconds
        Predicted with constants of calibrations only.
    shipped_seconds
        Predicted with constants of calibrations and frameworks; None: not fitted.
    """

    id: str
    fold: int
    alone_seconds: float
    shipped_seconds: float | None


COLUMNS = tuple(field.name for field in fields(HeldOut))


def write_held_out(path: Path, rows: Sequence[HeldOut]) -> None:
    """Write the file, in the order of the runs."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            shipped = "" if row.shipped_seconds is None else f"{row.shipped_seconds:.6g}"
            writer.writerow((row.id, row.fold, f"{row.alone_seconds:.6g}", shipped))


def read_held_out(path: Path) -> dict[str, HeldOut]:
    """The rows of the file by id; none if there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {cells["id"]: _held_out(cells) for cells in csv.DictReader(file)}


def _held_out(cells: dict[str, str]) -> HeldOut:
    return HeldOut(
        id=cells["id"],
        fold=int(cells["fold"]),
        alone_seconds=float(cells["alone_seconds"]),
        shipped_seconds=float(cells["shipped_seconds"]) if cells["shipped_seconds"] else None,
    )


def as_held_out(
    results: Sequence[Prediction | RejectedRow], known: Mapping[str, HeldOut], *, frameworks: bool
) -> list[Prediction]:
    """Predictions with the step times of the fits that had not seen them; rows without one are left away."""
    return list(_as_held_out(results, known, frameworks=frameworks))


def _as_held_out(
    results: Sequence[Prediction | RejectedRow], known: Mapping[str, HeldOut], *, frameworks: bool
) -> Iterator[Prediction]:
    for one in results:
        if isinstance(one, Prediction) and one.run.id in known and one.run.step_seconds is not None:
            row = known[one.run.id]
            seconds = row.shipped_seconds if frameworks else row.alone_seconds
            if seconds is not None:
                yield replace(one, step_seconds=seconds)


# --- intervals ---------------------------------------------------------------------------------------------


def step_errors(timed: Sequence[Case], seconds: Sequence[float]) -> list[Error]:
    """Errors of rows that were left out."""
    return [
        Error(
            kind=kind_of(case.facts.model, case.facts.cluster),
            group=group_of(case),
            log=log((case.run.step_seconds or 0.0) / predicted),
        )
        for case, predicted in zip(timed, seconds, strict=True)
    ]


def difference_errors(timed: Sequence[Case], seconds: Sequence[float]) -> list[Error]:
    """Errors of the ratio of two layouts of one job, for every pair in the groups that share everything else."""
    errors = []
    by_job = grouped(
        zip(timed, step_errors(timed, seconds), strict=True),
        lambda pair: shared(pair[0].run, pair[0].facts.model.num_layers),
    )
    for job, members in by_job.items():
        for (case, error), (other_case, other) in combinations(members, 2):
            if case.strategy != other_case.strategy:
                errors.append(Error(kind=error.kind, group=job, log=error.log - other.log))
    return errors


def interval_document(timed: Sequence[Case], seconds: Sequence[float]) -> str:
    """The planner's file of intervals."""
    source = (
        "python -m benchmarks.accuracy.fit --write: errors of the rows of benchmarks/measured_runs, each predicted by "
        "a fit to other groups (source, model, device, number of devices)"
    )
    document = {
        "source": source,
        "steps": _plain(spreads(step_errors(timed, seconds))),
        "differences": _plain(spreads(difference_errors(timed, seconds), symmetric=True)),
    }
    return f"# Generated; do not edit.\n{yaml.safe_dump(document, sort_keys=False, width=116)}"


def _plain(of_kinds: Sequence[Spread]) -> list[dict[str, object]]:
    return [
        {
            "kind": {"device": spread.kind.device, "model": spread.kind.model, "scale": spread.kind.scale},
            "groups": spread.groups,
            "rows": spread.rows,
            "lower": spread.lower,
            "upper": spread.upper,
        }
        for spread in of_kinds
    ]
