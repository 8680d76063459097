"""
Folds leave a row out of a fit with its group, its model, its source, or its release and all newer ones.

Choices are made on groups (the inner folds). Every kind of folds is reported, the worst as the headline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.inputs import read_rows
from benchmarks.output import format_csv
from costmodel.catalog import releases
from planner.jobs.run_jobs import RejectedRow
from planner.measure.calibrate.cases import Predictor, folds_of, log_measured_seconds
from planner.measure.calibrate.fit import Fit, Priors, Weights, fit
from planner.measure.runs.predictions import Case, Prediction
from planner.uncertainty.intervals import release_name

GROUP, MODEL, SOURCE, SOFTWARE = "group", "model", "source", "software"

KINDS = (GROUP, MODEL, SOURCE, SOFTWARE)

NUM_GROUP_FOLDS = 5

LINES = ("nemo", "megatron-bridge")

"""Families of releases of one line of software, the older first: Megatron-Bridge took the place of NeMo."""

NEWEST = (1, "26.06")

"""The newest release that is left out of a fit as one: every row of it, and of what came after it."""

Release = tuple[int, str]


def model_of(key: str) -> str:
    """
    The model behind a key: shapes that a source swept, vocabularies and cut-down layers are one model.

    >>> [model_of(key) for key in ("bloomtune-176b-l70-h14336-a64", "simumax-llama3-70b-l12", "vp-10b-v32k")]
    ['bloom', 'llama3-70b', 'vp-10b']
    >>> model_of("gpt-l24-h2048-a16-v50257"), model_of("llama3-70b")
    ('gpt', 'llama3-70b')
    """
    stem = re.sub(r"(-l\d+)?(-h\d+)?(-a\d+)?(-v(\d+k|\d{4,}))?$", "", key.removeprefix("simumax-"))
    return "bloom" if stem.startswith("bloom") else stem


def release_of(case: Case) -> Release | None:
    """Place in the line of software and the version up to the month; None: software of no such line."""
    return release_named(release_name(case.facts.cluster))


def release_named(name: str) -> Release | None:
    """
    Return the release that a name states, None for a name without one.

    >>> release_named("megatron-bridge-26.04.01"), release_named("nemo-25.02"), release_named("torchtitan-0.1")
    ((1, '26.04'), (0, '25.02'), None)
    """
    made = releases.release_of(name)
    if made is None or made.stack not in LINES:
        return None
    return LINES.index(made.stack), ".".join(f"{part:02.0f}" for part in made.number[:2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Folds:
    """
    One way to leave rows out.

    Parameters
    ----------
    left_out
        Rows that each fit predicts: masks of shape (rows,), by their common value.
    unseen
        Rows that each fit does not see: the predicted ones, and if releases are left out newer ones too.
    """

    left_out: Mapping[str, NDArray[np.bool_]]
    unseen: Mapping[str, NDArray[np.bool_]]


def folds_by(kind: str, timed: Sequence[Case], *, num_groups: int = NUM_GROUP_FOLDS) -> Folds:
    """
    The folds of one kind.

    Parameters
    ----------
    kind
        One of ``KINDS``.
    timed
        Rows with a step time.
    num_groups
        Into how many folds groups are divided.
    """
    if kind == SOFTWARE:
        return _by_release(timed)
    names = {
        GROUP: lambda: [str(fold) for fold in folds_of(timed, num_groups)],
        MODEL: lambda: [model_of(case.run.model) for case in timed],
        SOURCE: lambda: [case.run.source for case in timed],
    }[kind]()
    masks = {name: np.array([one == name for one in names]) for name in sorted(set(names))}
    return Folds(left_out=masks, unseen=masks)


def _by_release(timed: Sequence[Case]) -> Folds:
    """Each release but the oldest, predicted by a fit to the older ones and to all other software."""
    of_rows = [release_of(case) for case in timed]
    known = sorted({one for one in of_rows if one is not None})[1:]
    return Folds(
        left_out={release_text(one): np.array([other == one for other in of_rows]) for one in known},
        unseen={
            release_text(one): np.array([other is not None and other >= one for other in of_rows]) for one in known
        },
    )


def release_text(release: Release) -> str:
    """Its name, up to the month."""
    line, version = release
    return f"{LINES[line]}-{version}"


def is_newest(case: Case) -> bool:
    """Tell whether a row is of the newest software: the release that is kept out of every choice."""
    release = release_of(case)
    return release is not None and release >= NEWEST


def left_out_seconds(
    predictor: Predictor, whole: Fit, weigh: Weights, priors: Priors, *, folds: Folds
) -> NDArray[np.float64]:
    """
    Seconds of every row, predicted by a fit that does not see it; NaN where no fold leaves it out.

    Constants are fitted with the derivatives of the whole fit, in which logarithms of times are nearly linear: a fit to
    all folds but one moves few of them far. Predictions with the fitted constants are exact.

    Parameters
    ----------
    predictor
        The rows and the constants.
    whole
        A fit to all rows.
    weigh
        Square roots of the weights of the rows that are fitted.
    priors
        As in :func:`planner.measure.calibrate.fit.fit`.
    folds
        Rows that each fit leaves out.
    """
    measured = log_measured_seconds(predictor.cases)
    seconds = np.full(len(measured), np.nan)
    for name, rows in folds.left_out.items():
        logs = fitted_without(predictor.cases, whole, measured, weigh, priors, unseen=folds.unseen[name])
        seconds[rows] = np.exp(predictor.estimate_logarithms(logs, rows))
    return seconds


def fitted_without(
    cases: Sequence[Case],
    whole: Fit,
    measured: NDArray[np.float64],
    weigh: Weights,
    priors: Priors,
    *,
    unseen: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Logarithms of the constants fitted to the rows that are seen, with the derivatives of the whole fit."""
    weights = np.zeros(len(measured))
    weights[~unseen] = weigh([case for case, out in zip(cases, unseen, strict=True) if not out])
    found = fit(
        lambda logs: whole.residuals + measured + whole.jacobian @ (logs - whole.logs),
        lambda logs, before: whole.jacobian,
        measured,
        weights=weights,
        priors=priors,
        start=whole,
        num_refreshes=0,
    )
    return np.asarray(found.logs)


HELD_OUT = Path(__file__).parents[1] / "held_out.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """
    One row predicted by fits that had not seen it.

    Parameters
    ----------
    id
        Identifier of the row.
    seconds
        Predicted step time by what was left out: ``group``, ``model``, ``source``, ``software``; of other lines of
        software there is no ``software``.
    """

    id: str
    seconds: Mapping[str, float]


COLUMNS = ("id", *(f"{kind}_seconds" for kind in KINDS))


def held_out_rows(ids: Sequence[str], seconds: Mapping[str, Sequence[float]]) -> list[HeldOut]:
    """Rows from one column of seconds for each kind of folds, NaN where no fold leaves a row out."""
    return [
        HeldOut(id=name, seconds={kind: of[row] for kind, of in seconds.items() if not isnan(of[row])})
        for row, name in enumerate(ids)
    ]


def write_held_out(path: Path, rows: Sequence[HeldOut]) -> None:
    """Write the file, in the order of the runs."""
    cells = ((row.id, *(f"{row.seconds[kind]:.6g}" if kind in row.seconds else "" for kind in KINDS)) for row in rows)
    path.write_text(format_csv(COLUMNS, cells), encoding="utf-8")


def read_held_out(path: Path) -> dict[str, HeldOut]:
    """The rows of the file by id; none if there is no file."""
    if not path.exists():
        return {}
    return {cells["id"]: _held_out(cells) for cells in read_rows(path)}


def _held_out(cells: dict[str, str]) -> HeldOut:
    given = {kind: cells[f"{kind}_seconds"] for kind in KINDS}
    return HeldOut(id=cells["id"], seconds={kind: float(cell) for kind, cell in given.items() if cell})


def as_held_out(
    results: Sequence[Prediction | RejectedRow], known: Mapping[str, HeldOut], kind: str
) -> list[Prediction]:
    """Predictions with the step times of the fits that left out a group, model, source or release; others left away."""
    return list(_as_held_out(results, known, kind))


def _as_held_out(
    results: Sequence[Prediction | RejectedRow], known: Mapping[str, HeldOut], kind: str
) -> Iterator[Prediction]:
    for one in results:
        if isinstance(one, Prediction) and one.run.id in known and one.run.step_seconds is not None:
            seconds = known[one.run.id].seconds.get(kind)
            if seconds is not None:
                yield replace(one, step_seconds=seconds)
