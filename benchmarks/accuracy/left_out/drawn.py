"""
A drawn part of the stored folds computed anew: each fold's constants fitted without its rows, its rows predicted.

A fit moves the shipped constants by the errors of today's predictions. Only derivatives are stored
(``derivatives.json.gz``), as they take minutes; they say how far a fit moves, not what it predicts.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import math
import random
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import costmodel
import planner
from benchmarks.accuracy.jobs import source_weights
from benchmarks.accuracy.left_out.folds import (
    HELD_OUT,
    KINDS,
    Folds,
    HeldOut,
    folds_by,
    left_out_seconds,
    write_held_out,
)
from benchmarks.accuracy.metrics import FOLDER
from costmodel import catalog
from costmodel.errors import SpecError
from planner.jobs.cluster import Fitted
from planner.jobs.run_jobs import References
from planner.measure.calibrate.cases import Predictor, log_measured_seconds
from planner.measure.calibrate.constants import Constant, calibration_fields, prior_factors, read
from planner.measure.calibrate.fit import Fit, Priors, priors_of
from planner.measure.runs.predictions import Case, Prediction, find_unreported_recompute

DERIVATIVES = HELD_OUT.with_name("derivatives.json.gz")

SHARE = 0.1
"""Share of the folds of each kind that every run computes anew."""

LARGEST_CHANGE = 0.01
"""Change of a row's step time above which a stored figure does not hold: constants are stored with four digits."""


# --- fingerprints ------------------------------------------------------------------------------------------


def fingerprints() -> dict[str, str]:
    """Return hashes of what stored figures depend on: the code of the cost model and the fit, the catalog, the rows."""
    model, tool, here = (Path(one).parent for one in (costmodel.__file__, planner.__file__, __file__))
    code = [*model.rglob("*.py"), *(tool / "jobs").rglob("*.py"), *(tool / "measure").rglob("*.py"), here / "folds.py"]
    data = [*(model / "catalog").rglob("*.yaml"), *(tool / "measure" / "calibrate").glob("*.yaml")]
    rows = [path for path in FOLDER.iterdir() if path.suffix in (".csv", ".yaml")]
    return {
        "code": _hash(code_of(path) for path in sorted(code)),
        "catalog": _hash(path.read_bytes() for path in sorted(data)),
        "rows": _hash(path.read_bytes() for path in sorted(rows)),
    }


def _hash(contents: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for content in contents:
        whole.update(hashlib.sha256(content).digest())
    return whole.hexdigest()[:12]


@cache
def code_of(path: Path) -> bytes:
    """Return a module's syntax without comments and docstrings, which change no figure."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree).encode()


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


# --- what is stored ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """
    Derivatives of all rows by all constants, with the fingerprints of what made the stored figures.

    Parameters
    ----------
    ids, constants
        Rows and constants by name, in the order of the derivatives.
    jacobian
        Derivatives of the logarithm of a row's step time by that of a constant, shape (rows, constants).
    made_by
        Fingerprints of code, catalog and rows.
    """

    ids: tuple[str, ...]
    constants: tuple[str, ...]
    jacobian: NDArray[np.float64]
    made_by: Mapping[str, str]


def write_derivatives(path: Path, stored: Stored) -> None:
    """Write derivatives to four digits behind the point."""
    rows = stored.jacobian.round(4).tolist()
    document = {
        "made_by": dict(stored.made_by),
        "constants": stored.constants,
        "rows": dict(zip(stored.ids, rows, strict=True)),
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


def read_derivatives(path: Path) -> Stored:
    """
    Read them.

    Raises
    ------
    SpecError
        If there are none, or the file is no such table.
    """
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        ids, constants = tuple(document["rows"]), tuple(document["constants"])
        jacobian = np.array(list(document["rows"].values()), dtype=np.float64).reshape(len(ids), len(constants))
        return Stored(ids=ids, constants=constants, jacobian=jacobian, made_by=document["made_by"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise SpecError(path.name, f"cannot be read ({error}): 'benchmarks.accuracy.fit --write' makes it.") from None


# --- folds computed anew -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """
    One fold computed anew beside what is stored.

    Parameters
    ----------
    kind, name
        Kind of the rows left out (``group``, ``model``, ``source``, ``software``), and its name.
    seconds, stored
        Step times by id of the row: computed now, and stored; NaN where there is none.
    """

    kind: str
    name: str
    seconds: Mapping[str, float]
    stored: Mapping[str, float]

    @property
    def changes(self) -> dict[str, float]:
        """Step times computed now over stored ones, minus 1, of rows whose stored one is wrong, the worst first."""
        found = {row: seconds / self.stored[row] - 1 for row, seconds in self.seconds.items()}
        wrong = {row: change for row, change in found.items() if not abs(change) <= LARGEST_CHANGE}
        return dict(sorted(wrong.items(), key=lambda one: -math.inf if math.isnan(one[1]) else -abs(one[1])))


def draw_folds(timed: Sequence[Case], seed: int, share: float = SHARE) -> dict[str, Folds]:
    """Draw a share of the folds of each kind, at least one of each."""
    generator = random.Random(seed)
    drawn = {}
    for kind in KINDS:
        folds = folds_by(kind, timed)
        count = min(len(folds.left_out), max(1, math.ceil(share * len(folds.left_out))))
        names = sorted(generator.sample(sorted(folds.left_out), count))
        drawn[kind] = Folds(
            left_out={name: folds.left_out[name] for name in names},
            unseen={name: folds.unseen[name] for name in names},
        )
    return drawn


def compute_folds(
    rows: Sequence[Prediction],
    constants: Sequence[Constant],
    known: References,
    stored: Stored,
    held_out: Mapping[str, HeldOut],
    drawn: Mapping[str, Folds],
    *,
    budget_seconds: float = math.inf,
) -> Iterator[Fold]:
    """
    Compute drawn folds anew, one after the other, at least one, until the budget is spent.

    Parameters
    ----------
    rows
        Today's predictions with the shipped constants, of all rows with a step time.
    constants
        Fitted constants.
    known
        References of the rows.
    stored, held_out
        Derivatives, and step times of rows left out.
    drawn
        Folds by kind.
    budget_seconds
        Time after which no further fold begins.

    Raises
    ------
    SpecError
        If the derivatives are of other rows or constants.
    """
    begin = time.monotonic()
    whole = shipped_fit(rows, constants, stored)
    predictor = Predictor(cases=rows, constants=constants, known=known.refit(Fitted(factors=prior_factors())))
    weigh = partial(source_weights, without={case.run.id for case in rows if find_unreported_recompute(case)})
    # One fold of each kind first: a budget that ends early has seen every kind.
    turns = sorted((turn, kind, name) for kind, of in drawn.items() for turn, name in enumerate(of.left_out))
    for _, kind, name in turns:
        yield _compute_fold(predictor, whole, weigh, priors_of(constants), held_out, drawn[kind], kind, name)
        if time.monotonic() - begin > budget_seconds:
            return


def store_folds(path: Path, held_out: Mapping[str, HeldOut], folds: Iterable[Fold]) -> None:
    """Write stored step times again, with those of folds computed anew."""
    seconds: dict[str, dict[str, float]] = {row: dict(one.seconds) for row, one in held_out.items()}
    for fold in folds:
        for row, value in fold.seconds.items():
            seconds.setdefault(row, {})[fold.kind] = value
    write_held_out(path, [HeldOut(id=row, seconds=of) for row, of in seconds.items()])


def _compute_fold(
    predictor: Predictor,
    whole: Fit,
    weigh: partial[NDArray[np.float64]],
    priors: Priors,
    held_out: Mapping[str, HeldOut],
    folds: Folds,
    kind: str,
    name: str,
) -> Fold:
    one = Folds(left_out={name: folds.left_out[name]}, unseen={name: folds.unseen[name]})
    seconds = left_out_seconds(predictor, whole, weigh, priors, folds=one)
    rows = [(predictor.cases[row].run.id, float(seconds[row])) for row in np.flatnonzero(folds.left_out[name]).tolist()]
    return Fold(
        kind=kind,
        name=name,
        seconds=dict(rows),
        stored={row: held_out[row].seconds.get(kind, math.nan) if row in held_out else math.nan for row, _ in rows},
    )


def shipped_fit(rows: Sequence[Prediction], constants: Sequence[Constant], stored: Stored) -> Fit:
    """Return the shipped constants as a fit, with the errors of today's predictions."""
    for what, given, found in (
        ("rows", [one.run.id for one in rows], stored.ids),
        ("constants", [one.name for one in constants], stored.constants),
    ):
        if tuple(given) != found:
            other = sorted(set(given) ^ set(found))
            problem = f"has other {what} than the fit: {', '.join(other[:3]) or 'in another order'}"
            raise SpecError(DERIVATIVES.name, f"{problem}. 'benchmarks.accuracy.fit --write' makes it.")
    return Fit(
        logs=np.log([shipped_value(one) for one in constants]),
        jacobian=stored.jacobian,
        residuals=np.log([one.step_seconds for one in rows]) - log_measured_seconds(rows),
    )


def shipped_value(constant: Constant) -> float:
    """Return the value of a constant in the catalog; a factor that no file states is 1."""
    if constant.framework:
        return catalog.framework(constant.framework).factors.get(constant.fields[0], 1.0)
    known = catalog.calibration(constant.calibration).constants
    return next(value for field in calibration_fields(constant) if (value := read(known, field)) is not None)


# --- for people --------------------------------------------------------------------------------------------


def fold_lines(folds: Sequence[Fold], made_by: Mapping[str, str], *, drawn: int, of: int, seed: int) -> Iterator[str]:
    """Say what made the stored figures, how many folds were computed anew, and those that do not hold."""
    now = fingerprints()
    other = [name for name in now if made_by.get(name) != now[name]]
    yield "\nStored figures of rows left out"
    for name in now:
        changed = "" if name not in other else f", now {now[name]}"
        yield f"  {name:<8} {made_by.get(name, 'not recorded')}{changed}"
    made = f"other {', '.join(other)}: only folds computed anew say if they hold" if other else "today's"
    yield f"  made by {made}"
    computed = f"{len(folds)} of {of} folds computed anew (seed {seed})"
    yield f"  {computed}" if len(folds) == drawn else f"  {computed}; {drawn} drawn, the budget was spent"
    for one in folds:
        for row, change in list(one.changes.items())[:1]:
            text = "cannot be computed" if math.isnan(change) else f"{change:+.1%}"
            count = f"{len(one.changes)} of {len(one.seconds)} rows"
            yield f"  does not hold: {one.kind} {one.name} left out, {count}, the worst {row} {text}"
