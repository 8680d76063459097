"""``planner calibrate``: makes a device file from measurements: runs, samples of operators, traces or small runs."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.cli.arguments import add_force, describe
from planner.cli.output import check_output, complain, note, progress, require_new, write

if TYPE_CHECKING:
    from planner.jobs.run_jobs import References

EXIT_CODES = """exit codes:
  0  a device file was written
  1  the same, but rows of the runs were refused, some operators were not learned, or most of a trace was no sample
  2  wrong input: nothing was written
  4  too few or contradictory runs: nothing was fitted or written; which of the planned runs to measure first is said
"""
EXIT_INCOMPLETE = 1
EXIT_UNFIT = 4

RUNS, SAMPLES, TRACES, SMALL_RUNS = "runs", "samples", "traces", "small runs"

OPTIONS = {RUNS: ("logs", "models", "device"), SAMPLES: ("device",), TRACES: ("device",), SMALL_RUNS: ("job",)}
"""Options by the kind of measurements."""


def add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Makes a device file, a job's cluster: {device: ./my-cluster.yaml}, from measurements of one kind. "
        "Runs (a table with a step time per run): fits the device's calibration with the catalog's as prior; says how "
        "far it is off on runs that it was not fitted to, and which runs narrow a constant if measured next; of rows "
        "of kind 'planned', which have no step time yet, which to measure first, and what that was worth on other "
        "stacks. Samples of operators (a table of 'planner sample' or 'planner trace extract') and profiler traces: "
        "learns the times of operators and collectives, and says how far they are off on shapes that were left out. "
        "Small runs of a job on one node (with --job): changes the job's device so that their times follow."
    )
    describe(parser, description, EXIT_CODES)
    files_help = "one table, traces (.json, .json.gz), or small runs (YAML: docs/guides/traces.md, section 6)"
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help=files_help)
    parser.add_argument(
        "--device",
        metavar="NAME|YAML",
        help="device of the catalog to start from (default: the runs' own); of samples and traces also a file with "
        "what they cannot say, such as memory_bytes and networks, or base: a device of the catalog",
    )
    parser.add_argument("--job", metavar="JOB.yaml", type=Path, help="the whole job of small runs, with its strategy")
    parser.add_argument(
        "--logs",
        metavar="DIR",
        type=Path,
        help="logs of planned runs, whose names begin with the runs' ids (Megatron-LM, Megatron-Bridge, torchtitan): "
        "their steps are written into a table next to the device file, and the fastest plan is named",
    )
    parser.add_argument("--models", metavar="YAML", type=Path, help="architectures by the names in the runs' 'model'")
    add_force(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="device file to write (YAML)")


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Recognize the measurements, and write the device that follows."""
    files: list[Path] = arguments.files
    facts = Path(arguments.device) if is_file(arguments.device) else None
    check_output(arguments.output, [path for path in (*files, arguments.job, arguments.models, facts) if path])
    require_new(arguments.output, force=arguments.force)
    kind = SMALL_RUNS if arguments.job else kind_of(files[0])
    for name in ("device", "job", "logs", "models"):
        if getattr(arguments, name) is not None and name not in OPTIONS[kind]:
            raise SpecError(f"--{name}", f"is not of {kind}, as {files[0]} holds.", "Leave it out.")
    if len(files) > 1 and kind in (RUNS, SAMPLES):
        raise SpecError(str(files[1]), f"is a second file; {kind} are one table.", "Join them.")
    return {RUNS: _fit_runs, SAMPLES: _fit_samples, TRACES: _fit_traces, SMALL_RUNS: _fit_small}[kind](arguments)


def kind_of(path: Path) -> str:
    """Return the kind of the measurements in a file: by its suffix, of a CSV by its columns."""
    if path.name.endswith((".json", ".json.gz")):
        return TRACES
    if path.suffix == ".parquet":
        return SAMPLES
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns = next(csv.reader(file), [])
    except (OSError, ValueError, csv.Error):
        return RUNS  # whose reader says why it cannot be read
    if {"operator", "pass"} & {*columns}:
        return SAMPLES
    if columns and not {"id", "model"} & {*columns}:
        raise SpecError(
            str(path),
            f"is no table of measurements: its columns are {', '.join(columns)[:80]}.",
            "Runs have id, model and cluster.device; samples operator, pass and sizes.",
        )
    return RUNS


def is_file(device: str | None) -> bool:
    """Tell whether the option names a file, not a device of the catalog."""
    return device is not None and device.endswith((".yaml", ".yml"))


def read_facts(device: str | None) -> dict[str, Any] | None:
    """Read the entries of a device that its samples extend: those of a file, or a device of the catalog."""
    if device is None or not is_file(device):
        return None if device is None else {"base": device}
    from planner.jobs.document import parse, read_text

    found = parse(read_text(Path(device)), device)
    if not isinstance(found, dict) or not found:
        raise SpecError(device, f"expected entries of a device, got {shown(found)}.", "Such as base: h100-80gb-sxm.")
    return found


def _write(device: Mapping[str, Any], text: str, output: Path) -> None:
    from planner.jobs.cluster import device_text

    write(device_text(device), output)
    write(text, None)


def _fit_samples(arguments: argparse.Namespace) -> int:
    """Learn the times of operators from a table of samples."""
    with progress(f"learning from {arguments.files[0]}"):
        from planner.measure.fit.device import fit_device, render_fit
        from planner.measure.sample.table import read_samples

        samples = read_samples(arguments.files[0], notify=note)
        found = fit_device(samples, name=arguments.output.stem, facts=read_facts(arguments.device))
    _write(found.entry, render_fit(found, str(arguments.output)), arguments.output)
    return EXIT_INCOMPLETE if found.unlearned else 0


def _fit_traces(arguments: argparse.Namespace) -> int:
    """Learn the times of operators, launches and slowdown from traces."""
    with progress(f"learning from {len(arguments.files)} traces"):
        from planner.measure.traces.reading import read_recordings
        from planner.measure.traces.report.extraction import device_report, extract_samples, fit_device_file

        traces = read_recordings(arguments.files)
        samples = extract_samples(traces, None)
        name, facts = arguments.output.stem, read_facts(arguments.device)
        fitted, constants = fit_device_file(traces, samples, name=name, facts=facts)
    _write(fitted.entry, device_report(fitted, constants, str(arguments.output)), arguments.output)
    if 2 * samples.known_fraction > 1:
        return EXIT_INCOMPLETE if fitted.unlearned else 0
    note(f"{samples.known_fraction:.1%} of the recorded computation became samples; 'planner trace extract' says why.")
    return EXIT_INCOMPLETE


def _fit_small(arguments: argparse.Namespace) -> int:
    """Change the device of a job so that the times of its small runs follow."""
    with progress(f"projecting {arguments.job}"):
        from planner.jobs.problem import load
        from planner.measure.project.projected import project, projection_text
        from planner.measure.project.small_runs import small_runs

        problem = load(arguments.job)
        found = project(problem, {}, small_runs(arguments.files, problem))
    _write(found.anchor.device, projection_text(found), arguments.output)
    return 0


def _fit_runs(arguments: argparse.Namespace) -> int:
    """Fit the calibration of a device to runs."""
    (table,) = arguments.files
    if is_file(arguments.device):
        raise SpecError(
            "--device", f"{arguments.device} is a file; a fit to runs starts from a device of the catalog.", "Name it."
        )
    with progress(f"calibrating on {table}"):
        from planner.jobs.run_jobs import references
        from planner.measure.calibrate.calibrate import Unfit, calibrate
        from planner.measure.calibrate.wording import calibration_text, first_text

        known = references(_find_models(arguments), table.parent)
        runs = _collect(arguments, known) if arguments.logs else table
        try:
            found = calibrate(runs, known, name=arguments.output.stem, base=arguments.device)
        except Unfit as error:
            complain(str(error))
            if error.first is not None:
                write(first_text(error.first), None)
            return EXIT_UNFIT
    _write(found.device, calibration_text(found, str(arguments.output)), arguments.output)
    return EXIT_INCOMPLETE if found.refused else 0


def _find_models(arguments: argparse.Namespace) -> Path | None:
    """Return the file of models: the given one, or that of an array of plans next to its table."""
    from planner.measure.plans.job_array import MODELS

    beside: Path = arguments.files[0].parent / MODELS
    return arguments.models or (beside if arguments.logs and beside.is_file() else None)


def _collect(arguments: argparse.Namespace, known: References) -> Path:
    """Write the table with the steps of the logs, say which plan won, and return its path."""
    from planner.measure.plans.collect import collect, ranking_text

    table: Path = arguments.output.with_name(f"{arguments.output.stem}-runs.csv")
    check_output(table, arguments.files)
    require_new(table, force=arguments.force)
    text, notes, ids = collect(arguments.files[0], arguments.logs)
    write(text, table)
    for line in notes:
        note(line)
    write(f"{ranking_text(table, known, ids)}\nmeasured runs written to {table}\n", None)
    return table
