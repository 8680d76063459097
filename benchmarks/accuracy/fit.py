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
from costmodel.errors import PlanningError
from planner.calibration.cases import Predictor, folds_of, measured_logarithms, source_weights
from planner.calibration.constants import Constant, constants
from planner.calibration.fit import Fit, covariance, fit, priors_of
from planner.calibration.intervals import TABLE as INTERVALS
from planner.calibration.left_out import Weights, left_out_logarithms
from planner.runs.facts import References, device_name, references
from planner.runs.predictions import Case, cases, left_unsaid
from planner.runs.software import software_of
from planner.runs.table import NotRun, Run, read

FOLDER = Path(__file__).parents[1] / "measured_runs"
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


def timed_cases(rows: Iterable[Run | NotRun], known: References) -> list[Case]:
    """Rows with a step time that can be predicted."""
    found = (one for one in cases(rows, known) if isinstance(one, Case))
    return [one for one in found if one.run.step_seconds is not None]


def fitted(
    timed: Sequence[Case], known: References, weigh: Weights, *, software: bool, num_folds: int, num_processes: int
) -> Fitted:
    """
    Fit the constants of devices, or of devices and software, to rows; what is not fitted of software is neutral.

    Parameters
    ----------
    timed
        Rows with a step time.
    known
        What they refer to.
    weigh
        Weights of rows.
    software
        Whether software stacks have constants of their own.
    num_folds, num_processes
        Into how many parts the groups are divided; processes that share the work.
    """
    chosen = constants(software=software)
    neutral: dict[str, dict[str, float]] = {software_of(case.run).stack: {} for case in timed}
    predictor = Predictor(
        cases=timed,
        constants=chosen,
        known=known.with_profiles(known.devices, neutral),
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
    timed: Sequence[Case], known: References, *, software: bool, num_folds: int, num_processes: int
) -> dict[str, Fitted]:
    """
    Constants of devices alone, and where asked of devices and software stacks.

    Rows that leave unsaid what they recomputed are predicted like all others, but nothing is fitted to them.
    """
    modes = {"device": False, "software": True} if software else {"device": False}
    weigh = partial(source_weights, without={case.run.id for case in timed if left_unsaid(case)})
    return {
        name: fitted(timed, known, weigh, software=with_software, num_folds=num_folds, num_processes=num_processes)
        for name, with_software in modes.items()
    }


def held_out(
    timed: Sequence[Case], known: References, *, software: bool, num_folds: int, num_processes: int
) -> dict[str, HeldOut]:
    """Rows predicted by fits to other groups, by id."""
    modes = fitted_modes(timed, known, software=software, num_folds=num_folds, num_processes=num_processes)
    return {row.id: row for row in _held_out(timed, modes)}


def _held_out(timed: Sequence[Case], modes: dict[str, Fitted]) -> list[HeldOut]:
    return [
        HeldOut(
            id=case.run.id,
            fold=modes["device"].folds[row],
            device_seconds=modes["device"].left_out_seconds[row],
            software_seconds=modes["software"].left_out_seconds[row] if "software" in modes else None,
        )
        for row, case in enumerate(timed)
    ]


def rows_of_each(timed: Sequence[Case], known: References) -> Counter[str]:
    """Rows by device of the catalog, and by software stack."""
    devices = Counter(device_name(case.run.gpu, known) for case in timed)
    return devices + Counter(software_of(case.run).stack for case in timed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the constants, and write them where asked; 0, or 2 if there is nothing to read."""
    options = _parser().parse_args(arguments)
    begin = time.monotonic()
    try:
        known = references(FOLDER / "models.yaml", FOLDER / "systems.yaml")
        timed = timed_cases(read(options.runs), known)
        modes = fitted_modes(
            timed,
            known,
            software=options.ship == "software",
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
        write_catalog(shipped.constants, shipped.values, shipped.widths, rows_of_each(timed, known))
        write_held_out(HELD_OUT, _held_out(timed, modes))
        (Path(__file__).parents[2] / "planner" / "calibration" / INTERVALS).write_text(
            interval_document(timed, shipped.left_out_seconds), encoding="utf-8"
        )
    print(f"{len(timed)} rows, {time.monotonic() - begin:.0f} s")
    return 0


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
    parser.add_argument("--runs", type=Path, default=FOLDER / "runs.csv", help="measured runs (default: the project's)")
    parser.add_argument("--folds", type=int, default=FOLDS, help=f"parts of which one is left out (default: {FOLDS})")
    parser.add_argument("--processes", type=int, default=2, help="processes that share the work (default: 2)")
    parser.add_argument(
        "--ship",
        choices=("device", "software"),
        default="software",
        help="constants to print and write: of devices and software stacks (default), or of devices alone",
    )
    parser.add_argument("--write", action="store_true", help="write catalog, held_out.csv and the planner's intervals")
    return parser


if __name__ == "__main__":
    sys.exit(main())
