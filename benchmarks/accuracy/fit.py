"""
``python -m benchmarks.accuracy.fit``: fit the catalog's constants to measured runs, and say what the fit is worth.

Rows are left out in turn with their group, their model, their source, or their release and all newer ones; the
constants are fitted to the others, and what was left out is predicted. Those predictions are ``held_out.csv``, from
which the benchmark reports the accuracy and the planner its intervals. With ``derivatives.json.gz`` the benchmark
computes a drawn part of them anew. Choices are made with ``--inner``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.catalog_files import write_catalog
from benchmarks.accuracy.jobs import share_work, source_weights
from benchmarks.accuracy.left_out import folds as leaving
from benchmarks.accuracy.left_out.drawn import DERIVATIVES, Stored, fingerprints, write_derivatives
from benchmarks.accuracy.left_out.intervals import write_intervals
from benchmarks.accuracy.metrics import RUNS, read_fitted
from benchmarks.output import print_lines, refuse_wrong_input
from planner.jobs.cluster import Fitted as FittedConstants
from planner.jobs.run_jobs import References, RejectedRow, Run
from planner.measure.calibrate.cases import Predictor, calibrations_of, log_measured_seconds, setting_of
from planner.measure.calibrate.constants import Constant, constants, prior_factors
from planner.measure.calibrate.fit import Fit, covariance, fit, priors_of
from planner.measure.runs.predictions import Case, cases, find_unreported_recompute


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """
    Constants fitted to all rows, and rows predicted by fits that had not seen them.

    Parameters
    ----------
    constants, values, widths
        Fitted constants, their values, and the standard deviations of their logarithms that remain.
    jacobian
        Derivatives of the rows' logarithms, shape (rows, constants).
    left_out
        Seconds of every row by kind of folds; NaN where none leaves it out.
    """

    constants: Sequence[Constant]
    values: Sequence[float]
    widths: Sequence[float]
    jacobian: NDArray[np.float64]
    left_out: Mapping[str, NDArray[np.float64]]


def timed_cases(rows: Iterable[Run | RejectedRow], known: References) -> list[Case]:
    """Rows with a step time that can be predicted."""
    found = (one for one in cases(rows, known) if isinstance(one, Case))
    return [one for one in found if one.run.step_seconds is not None]


FEWEST_OTHERS = 3
"""Rows of other sources than the one with most without which a framework's constant stays at its prior."""


def several_sources_tell(constant: Constant, timed: Sequence[Case]) -> bool:
    """Tell whether more than one source of runs would determine a framework's constant."""
    rows = Counter(case.run.source for case in timed if constant.touches(**setting_of(case)))
    return sum(rows.values()) - max(rows.values(), default=0) >= FEWEST_OTHERS


def chosen_constants(timed: Sequence[Case], *, frameworks: bool) -> tuple[Constant, ...]:
    """Choose the constants fitted to rows: all of calibrations, and those of frameworks that several sources tell."""
    return tuple(
        one for one in constants(frameworks=frameworks) if not one.framework or several_sources_tell(one, timed)
    )


def fitted(timed: Sequence[Case], known: References, *, kinds: Sequence[str], num_processes: int) -> Fitted:
    """
    Fit the constants of calibrations and frameworks to rows.

    A framework's constant that one source alone would determine stays at its prior. Rows that leave unsaid what they
    recomputed are predicted like all others, but nothing is fitted to them.

    Parameters
    ----------
    timed
        Rows with a step time.
    known
        Quantities that the constants refer to.
    kinds
        Kinds of the folds in which rows are left out.
    num_processes
        Processes that share the work.
    """
    chosen = chosen_constants(timed, frameworks=True)
    predictor = Predictor(
        cases=timed,
        constants=chosen,
        known=known.refit(FittedConstants(factors=prior_factors())),
        share_work=partial(share_work, num_processes=num_processes),
    )
    weigh = partial(source_weights, without={case.run.id for case in timed if find_unreported_recompute(case)})
    priors, weights = priors_of(chosen), weigh(timed)
    whole: Fit = fit(
        predictor.logarithms, predictor.jacobian, log_measured_seconds(timed), weights=weights, priors=priors
    )
    whole = as_shipped(predictor, whole)
    return Fitted(
        constants=chosen,
        values=np.exp(whole.logs).tolist(),
        widths=np.sqrt(np.diag(covariance(whole.jacobian, weights, priors))).tolist(),
        jacobian=whole.jacobian,
        left_out={
            kind: leaving.left_out_seconds(predictor, whole, weigh, priors, folds=leaving.folds_by(kind, timed))
            for kind in kinds
        },
    )


def as_shipped(predictor: Predictor, whole: Fit) -> Fit:
    """Return a fit with the catalog's four digits and exact errors: folds that start there can be computed anew."""
    logs = np.log([float(f"{value:.4g}") for value in np.exp(whole.logs)])
    residuals = predictor.estimate_logarithms(logs) - log_measured_seconds(predictor.cases)
    return Fit(logs=logs, jacobian=whole.jacobian, residuals=residuals)


def held_out(timed: Sequence[Case], known: References, *, num_processes: int) -> dict[str, leaving.HeldOut]:
    """Rows predicted by fits that had not seen them, by id."""
    return {
        row.id: row for row in _held_out(timed, fitted(timed, known, kinds=leaving.KINDS, num_processes=num_processes))
    }


def _held_out(timed: Sequence[Case], found: Fitted) -> list[leaving.HeldOut]:
    seconds = {kind: of.tolist() for kind, of in found.left_out.items()}
    return leaving.held_out_rows([case.run.id for case in timed], seconds)


def rows_of_each(timed: Sequence[Case]) -> Counter[str]:
    """Rows by calibration, those that it extends among them, by these with the size of the model, and by framework."""
    chains = [(case, name) for case in timed for name in calibrations_of(case)]
    of_calibrations = Counter(name for _, name in chains)
    of_sizes = Counter(f"{name} {case.facts.model.size}" for case, name in chains)
    return of_calibrations + of_sizes + Counter(str(setting_of(case)["kernels"]) for case in timed)


@refuse_wrong_input
def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the constants, and write them where asked; 0, or 2 if there is nothing to read."""
    options = _parser().parse_args(arguments)
    begin = time.monotonic()
    rows, known = read_fitted(options.runs, options.models)
    timed = timed_cases(rows, known)
    if options.inner:
        timed = [case for case in timed if not leaving.is_newest(case)]
    kinds = (leaving.GROUP,) if options.inner else leaving.KINDS
    found = fitted(timed, known, kinds=kinds, num_processes=options.processes)
    print_lines((*_lines(found), *error_lines(timed, found)))
    if options.write and not options.inner:
        write_catalog(found.constants, found.values, found.widths, rows_of_each(timed), assumed=_assumed(found))
        leaving.write_held_out(leaving.HELD_OUT, _held_out(timed, found))
        write_derivatives(
            DERIVATIVES,
            Stored(
                ids=tuple(case.run.id for case in timed),
                constants=tuple(one.name for one in found.constants),
                jacobian=found.jacobian,
                made_by=fingerprints(),
            ),
        )
        write_intervals(timed, leaving.read_held_out(leaving.HELD_OUT))
    print(f"{len(timed)} rows, {time.monotonic() - begin:.0f} s")
    return 0


def error_lines(timed: Sequence[Case], found: Fitted) -> Iterable[str]:
    """Mean absolute errors of rows left out, by kind of folds and family: over sources, and over rows."""
    measured = np.exp(log_measured_seconds(timed))
    for kind, seconds in found.left_out.items():
        for family in dict.fromkeys(case.architecture for case in timed):
            errors = defaultdict(list)
            for case, predicted, step in zip(timed, seconds, measured, strict=True):
                if case.architecture == family and not np.isnan(predicted):
                    errors[case.run.source].append(abs(predicted / step - 1))
            if errors:
                means = np.mean([np.mean(of) for of in errors.values()])
                rows = [one for of in errors.values() for one in of]
                yield (
                    f"left out by {kind:<9} {family:<7} {len(rows):>5} rows: {means:.2%} over {len(errors)} sources, "
                    f"{np.mean(rows):.2%} over rows"
                )


def _assumed(fitted: Fitted) -> dict[Constant, float]:
    """Constants of frameworks that were not fitted, and their values in the fit."""
    factors = prior_factors()
    left = (one for one in constants(frameworks=True) if one.framework and one not in fitted.constants)
    return {one: factors.get(one.framework, {}).get(one.fields[0], 1.0) for one in left}


def _lines(found: Fitted) -> Iterable[str]:
    yield f"{len(found.constants)} constants"
    yield f"\n{'constant':<62} {'value':>10} {'width':>7} {'prior':>10} {'width':>7}"
    for constant, value, width in zip(found.constants, found.values, found.widths, strict=True):
        inside = constant.lower * 1.001 < value < constant.upper * 0.999
        prior = f"{constant.prior:>10.4g} {constant.sigma:>7.1%}"
        yield f"{constant.name:<62} {value:>10.4g} {width:>7.1%} {prior}{'' if inside else ' at its bound'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.fit", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="measured runs (default: the project's)")
    parser.add_argument("--models", type=Path, help="architectures behind them (default: the project's)")
    parser.add_argument(
        "--inner",
        action="store_true",
        help="what choices are made on: groups left out, without the rows of the newest software; writes nothing",
    )
    parser.add_argument("--processes", type=int, default=2, help="processes that share the work (default: 2)")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write catalog, held_out.csv, derivatives.json.gz and the planner's intervals",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
