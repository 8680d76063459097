"""``planner calibrate``: fits the constants of a device to own runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_force, describe
from planner.cli.output import check_output, progress, require_new, write
from planner.cli.terminal.messages import complain, note

if TYPE_CHECKING:
    from planner.jobs.run_jobs import References

EXIT_CODES = """exit codes:
  0  a calibration was fitted and written
  1  the same, but rows of the file were refused
  2  wrong input
  4  too few or contradictory runs: nothing was fitted or written; which of the planned runs to measure first is said
"""
EXIT_ROWS_REFUSED = 1
EXIT_UNFIT = 4


def add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Fits the calibration of a device to measured runs, with the catalog's as prior. Says how far it "
        "is off on runs that it was not fitted to, and which runs to measure next. Of rows of kind 'planned', which "
        "have no step time yet, it says which to measure first, and what that was worth on other stacks. The file that "
        "it writes is a device of a job: cluster: {device: ./my-cluster.yaml}."
    )
    describe(parser, description, EXIT_CODES)
    parser.add_argument(
        "--runs",
        metavar="CSV",
        type=Path,
        required=True,
        help="measured runs; columns are keys of a job file (planner/measure/runs/README.md)",
    )
    parser.add_argument(
        "--logs",
        metavar="DIR",
        type=Path,
        help="logs of planned runs, whose names begin with the runs' ids (Megatron-LM, Megatron-Bridge, torchtitan): "
        "their steps are written into a table beside the device, which plan won is said",
    )
    parser.add_argument("--models", metavar="YAML", type=Path, help="architectures by the names in the runs' 'model'")
    parser.add_argument("--device", metavar="NAME", help="device of the catalog to start from (default: the runs' own)")
    add_force(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="device file to write (YAML)")


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Fit and write the device."""
    check_output(arguments.output, [path for path in (arguments.runs, arguments.models) if path])
    require_new(arguments.output, force=arguments.force)
    with progress(f"calibrating on {arguments.runs}"):
        from planner.jobs.cluster import device_text
        from planner.jobs.run_jobs import references
        from planner.measure.calibrate.calibrate import Unfit, calibrate
        from planner.measure.calibrate.wording import calibration_text, first_text

        known = references(_find_models(arguments), arguments.runs.parent)
        runs = _collect(arguments, known) if arguments.logs else arguments.runs
        try:
            found = calibrate(runs, known, name=arguments.output.stem, base=arguments.device)
        except Unfit as error:
            complain(str(error))
            if error.first is not None:
                write(first_text(error.first), None)
            return EXIT_UNFIT
    write(device_text(found.device), arguments.output)
    write(calibration_text(found, str(arguments.output)), None)
    return EXIT_ROWS_REFUSED if found.refused else 0


def _find_models(arguments: argparse.Namespace) -> Path | None:
    """Return the file of models: the given one, or that of an array of plans beside its table."""
    from planner.measure.plans.job_array import MODELS

    beside: Path = arguments.runs.parent / MODELS
    return arguments.models or (beside if arguments.logs and beside.is_file() else None)


def _collect(arguments: argparse.Namespace, known: References) -> Path:
    """Write the table with the steps of the logs, say which plan won, and return its path."""
    from planner.measure.plans.collect import collect, ranking_text

    table: Path = arguments.output.with_name(f"{arguments.output.stem}-runs.csv")
    check_output(table, [arguments.runs])
    require_new(table, force=arguments.force)
    found = collect(arguments.runs, arguments.logs)
    write(found.text, table)
    for line in found.notes:
        note(line)
    write(f"{ranking_text(table, known, found.ids)}\nmeasured runs written to {table}\n", None)
    return table
