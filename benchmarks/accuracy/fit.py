"""
``python -m benchmarks.accuracy.fit``: fit the catalog's constants to measured runs, and say what the fit is worth.

Whole groups of rows are left out in turn, the constants fitted to the others, and the rows left out predicted: those
predictions are ``held_out.csv``, from which the benchmark reports the accuracy and the planner its intervals.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.accuracy.catalog_files import write_catalog
from benchmarks.accuracy.held_out import HeldOut, interval_document, write_held_out
from benchmarks.accuracy.tables import RUNS, read_table
from costmodel.errors import PlanningError
from planner.calibration.cases import (
    Predictor,
    calibrations_of,
    folds_of,
    measured_logarithms,
    setting_of,
    source_weights,
)
from planner.calibration.constants import Constant, constants, prior_factors
from planner.calibration.fit import Fit, covariance, fit, priors_of
from planner.calibration.left_out import Weights, left_out_logarithms
from planner.jobs.cluster import Fitted as FittedConstants
from planner.runs.jobs import References
from planner.runs.predictions import Case, cases, unreported_recompute
from planner.runs.table import RejectedRow, Run
from planner.uncertainty.intervals import TABLE as INTERVALS

HELD_OUT = Path(__file__).parent / "held_out.csv"
FOLDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """
    Constants fitted to all rows, and rows predicted without their groups.

    Parameters
    ----------
    constants, values, widths
        What was fitted, to which values, and the standard deviations of their logarithms that remain.
    left_out_seconds, folds
        Of every row: predicted without its group, and which fold that was.
    """

    constants: Sequence[Constant]
    values: Sequence[float]
    widths: Sequence[float]
    left_out_seconds: Sequence[float]
    folds: Sequence[int]


def timed_cases(rows: Iterable[Run | RejectedRow], known: References) -> list[Case]:
    """Rows with a step time that can be predicted."""
    found = (one for one in cases(rows, known) if isinstance(one, Case))
    return [one for one in found if one.run.step_seconds is not None]


FEWEST_OTHERS = 3
"""Rows of other sources than the one with most without which a framework's constant stays at its prior."""


def several_sources_tell(constant: Constant, timed: Sequence[Case]) -> bool:
    """Whether a framework's constant would be determined by more than one source of runs."""
    rows = Counter(case.run.source for case in timed if constant.touches(**setting_of(case)))
    return sum(rows.values()) - max(rows.values(), default=0) >= FEWEST_OTHERS


def chosen_constants(timed: Sequence[Case], *, frameworks: bool) -> tuple[Constant, ...]:
    """What is fitted to rows: every calibration's constants, of frameworks' those that several sources tell."""
    return tuple(
        one for one in constants(frameworks=frameworks) if not one.framework or several_sources_tell(one, timed)
    )


def fitted(
    timed: Sequence[Case], known: References, weigh: Weights, *, frameworks: bool, num_folds: int, num_processes: int
) -> Fitted:
    """
    Fit the constants of calibrations, or of calibrations and frameworks, to rows.

    A framework's constant that one source alone would determine stays at its prior.

    Parameters
    ----------
    timed
        Rows with a step time.
    known
        What they refer to.
    weigh
        Weights of rows.
    frameworks
        Whether frameworks have constants of their own.
    num_folds, num_processes
        Into how many parts the groups are divided; processes that share the work.
    """
    chosen = chosen_constants(timed, frameworks=frameworks)
    predictor = Predictor(
        cases=timed,
        constants=chosen,
        known=known.with_fitted(FittedConstants(factors=prior_factors())),
        num_processes=num_processes,
    )
    priors, weights = priors_of(chosen), weigh(timed)
    whole: Fit = fit(
        predictor.logarithms, predictor.jacobian, measured_logarithms(timed), weights=weights, priors=priors
    )
    folds = folds_of(timed, num_folds)
    logs = left_out_logarithms(predictor, whole, weigh, priors, folds=folds)
    return Fitted(
        constants=chosen,
        values=np.exp(whole.logs).tolist(),
        widths=np.sqrt(np.diag(covariance(whole.jacobian, weights, priors))).tolist(),
        left_out_seconds=np.exp(logs).tolist(),
        folds=folds.tolist(),
    )


def fitted_modes(
    timed: Sequence[Case], known: References, *, frameworks: bool, num_folds: int, num_processes: int
) -> dict[str, Fitted]:
    """
    Constants of calibrations alone, and where asked of calibrations and frameworks.

    Rows that leave unsaid what they recomputed are predicted like all others, but nothing is fitted to them.
    """
    modes = {"alone": False, "shipped": True} if frameworks else {"alone": False}
    weigh = partial(source_weights, without={case.run.id for case in timed if unreported_recompute(case)})
    return {
        name: fitted(timed, known, weigh, frameworks=with_factors, num_folds=num_folds, num_processes=num_processes)
        for name, with_factors in modes.items()
    }


def held_out(
    timed: Sequence[Case], known: References, *, frameworks: bool, num_folds: int, num_processes: int
) -> dict[str, HeldOut]:
    """Rows predicted by fits to other groups, by id."""
    modes = fitted_modes(timed, known, frameworks=frameworks, num_folds=num_folds, num_processes=num_processes)
    return {row.id: row for row in _held_out(timed, modes)}


def _held_out(timed: Sequence[Case], modes: dict[str, Fitted]) -> list[HeldOut]:
    return [
        HeldOut(
            id=case.run.id,
            fold=modes["alone"].folds[row],
            alone_seconds=modes["alone"].left_out_seconds[row],
            shipped_seconds=modes["shipped"].left_out_seconds[row] if "shipped" in modes else None,
        )
        for row, case in enumerate(timed)
    ]


def rows_of_each(timed: Sequence[Case]) -> Counter[str]:
    """Rows by calibration, those that it extends among them, and by the framework whose factors theirs has."""
    of_calibrations = Counter(name for case in timed for name in calibrations_of(case))
    return of_calibrations + Counter(str(setting_of(case)["kernels"]) for case in timed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the constants, and write them where asked; 0, or 2 if there is nothing to read."""
    options = _parser().parse_args(arguments)
    begin = time.monotonic()
    try:
        rows, known = read_table(options.runs, options.models)
        timed = timed_cases(rows, known)
        modes = fitted_modes(
            timed,
            known,
            frameworks=options.ship == "shipped",
            num_folds=options.folds,
            num_processes=options.processes,
        )
    except PlanningError as error:
        print(error, file=sys.stderr)
        return 2
    shipped = modes[options.ship]
    for line in _lines(shipped, modes):
        print(line)
    if options.write:
        write_catalog(
            shipped.constants,
            shipped.values,
            shipped.widths,
            rows_of_each(timed),
            assumed=_assumed(shipped),
        )
        write_held_out(HELD_OUT, _held_out(timed, modes))
        (Path(__file__).parents[2] / "planner" / "uncertainty" / INTERVALS).write_text(
            interval_document(timed, shipped.left_out_seconds), encoding="utf-8"
        )
    print(f"{len(timed)} rows, {time.monotonic() - begin:.0f} s")
    return 0


def _assumed(fitted: Fitted) -> dict[Constant, float]:
    """Constants of frameworks that were not fitted, and their values in the fit."""
    factors = prior_factors()
    left = (one for one in constants(frameworks=True) if one.framework and one not in fitted.constants)
    return {one: factors.get(one.framework, {}).get(one.fields[0], 1.0) for one in left}


def _lines(shipped: Fitted, modes: dict[str, Fitted]) -> Iterable[str]:
    for name, mode in modes.items():
        yield f"{name}: {len(mode.constants)} constants"
    yield f"\n{'constant':<62} {'value':>10} {'width':>7} {'prior':>10} {'width':>7}"
    for constant, value, width in zip(shipped.constants, shipped.values, shipped.widths, strict=True):
        inside = constant.lower * 1.001 < value < constant.upper * 0.999
        prior = f"{constant.prior:>10.4g} {constant.sigma:>7.1%}"
        yield f"{constant.name:<62} {value:>10.4g} {width:>7.1%} {prior}{'' if inside else ' at its bound'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.fit", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="measured runs (default: the project's)")
    parser.add_argument("--models", type=Path, help="architectures behind them (default: the project's)")
    parser.add_argument("--folds", type=int, default=FOLDS, help=f"parts of which one is left out (default: {FOLDS})")
    parser.add_argument("--processes", type=int, default=2, help="processes that share the work (default: 2)")
    parser.add_argument(
        "--ship",
        choices=("alone", "shipped"),
        default="shipped",
        help="constants to print and write: of calibrations and frameworks (default), or of calibrations alone",
    )
    parser.add_argument("--write", action="store_true", help="write catalog, held_out.csv and the planner's intervals")
    return parser


if __name__ == "__main__":
    sys.exit(main())
