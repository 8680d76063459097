"""``planner import`` reads launch files as a job; ``planner export`` writes a plan as files that start it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.cli.arguments import add_force, add_output_file, describe
from planner.cli.output import check_output, file_errors, note, progress, require_new, write
from planner.frameworks import DASHBOARDS, LAUNCHERS, TARGETS


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Reads a launch, and writes its job with the strategy, which 'estimate' and 'explain' take. A launch is a "
        "shell script, arguments of Megatron-LM, its MODEL_ARGS (YAML), or a recipe of Megatron-Bridge or NeMo (by "
        "name, Python, overrides, YAML). It may be a configuration of torchtitan (TOML, Python), DeepSpeed (JSON) or "
        "Accelerate (YAML). It may be what a run printed or saved: a log, run_config.yaml, arguments beside a "
        "checkpoint. Nothing of it is executed. Entries that the file lacks come as key=value: "
        "cluster.device=h100-80gb-sxm cluster.num_devices=64."
    )
    describe(parser, description)
    parser.add_argument("file", metavar="FILE", type=Path, help="the script, the arguments or the configuration")
    parser.add_argument("assignments", metavar="key=value", nargs="*", help="an entry of the job")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a variable that a script leaves to its environment, or an argument of it (1=...); may come several times",
    )
    add_force(parser)
    add_output_file(parser)


def run_import(arguments: argparse.Namespace) -> int:
    """Read the file and write the job."""
    check_output(arguments.output, (arguments.file,))
    require_new(arguments.output, force=arguments.force)
    with progress(f"importing {arguments.file}"):
        from planner.frameworks.imports.job import import_job, read_variables

        imported = import_job(arguments.file, arguments.assignments, read_variables(arguments.set))
    write(imported.text, arguments.output)
    return 0


MAX_DRIFT_FRACTION = 0.01
"""Relative difference between the recorded and the newly predicted step from which on a warning is printed."""


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Writes a plan of a JSON report (planner plan JOB.yaml --format json -o plan.json) as the "
        "configuration of a training framework. Settings that the framework cannot express are refused by name, "
        "with the reason. Without -o the main file goes to stdout (with --launch: the launch file), notes to stderr."
    )
    describe(parser, description)
    parser.add_argument("plan", metavar="PLAN.json", type=Path, help="the report")
    parser.add_argument("--target", metavar="NAME", required=True, help=", ".join((*TARGETS, *DASHBOARDS)))
    parser.add_argument(
        "--framework-version",
        metavar="VERSION",
        help="release that the files are for: of Megatron Core 0.14, 0.16, 0.17, 0.18, 0.19 or main (default: the one "
        "that the plan is costed with, else the newest that takes it), of other frameworks the one that is written for",
    )
    parser.add_argument(
        "--number",
        metavar="N",
        default="1",
        help="which plan of the report, from 1 (default: 1); of --array several: 1,2,3",
    )
    parser.add_argument(
        "--array", action="store_true", help="one job that measures the plans, and the table of its runs"
    )
    parser.add_argument("--steps", metavar="N", default="20", help="steps of each run of --array (default: 20)")
    parser.add_argument("--launch", metavar="HOW", help=f"also what starts it: {', '.join(LAUNCHERS)}")
    add_force(parser, "files in the folder")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="write all files to a folder")


def run_export(arguments: argparse.Namespace) -> int:
    """Read the plan and write the files."""
    numbers = [_number("--number", one) for one in arguments.number.split(",")]
    if len(set(numbers)) < len(numbers):
        raise SpecError("--number", f"{shown(arguments.number)} names a plan twice.", "Name each once.")
    if len(numbers) > 1 and not arguments.array:
        raise SpecError("--number", "several plans are exported as one job.", "Add --array, --launch and -o.")
    if arguments.array and arguments.output is None:
        raise SpecError("--array", "writes several files.", "Name a folder: -o DIR.")
    if (arguments.launch is not None or arguments.array) and arguments.target in DASHBOARDS:
        option = "--array" if arguments.array else "--launch"
        raise SpecError(option, f"{arguments.target} starts no training.", "Take it out.")
    with progress(f"exporting {arguments.plan}"), _option_names():
        from planner.frameworks import export
        from planner.frameworks.launch import launched, write_files
        from planner.verbs.plan import read_plan

        plans = {number: read_plan(arguments.plan, number) for number in numbers}
        if arguments.array:
            from planner.measure.plans.job_array import export_array

            steps = _number("--steps", arguments.steps)
            exported = export_array(plans, arguments.target, arguments.framework_version, arguments.launch or "", steps)
        else:
            (saved,) = plans.values()
            exported = export(saved.plan, arguments.target, arguments.framework_version)
            if arguments.launch is not None:
                exported = launched(saved.plan, exported, arguments.launch)
    for saved in plans.values():
        if abs(saved.drift_fraction) > MAX_DRIFT_FRACTION:
            note(f"this version predicts another step than the report has: {saved.drift_fraction:+.1%}.")
    environment = [f"environment: {name}={value}" for name, value in exported.environment.items()]
    if arguments.output is None:
        write(list(exported.files.values())[0 if arguments.launch is None else -1], None)
    else:
        with file_errors(arguments.output):
            written = write_files(arguments.output, exported.files, force=arguments.force)
        write("\n".join(map(str, written)), None)
    for line in (*environment, *exported.notes):
        note(line)
    return 0


@contextmanager
def _option_names() -> Iterator[None]:
    """Name options in messages as they are typed: in Python they are arguments of a function."""
    try:
        yield
    except SpecError as error:
        if error.where not in ("target", "launch", "framework-version"):
            raise
        raise SpecError(f"--{error.where}", error.problem, error.hint) from None


def _number(option: str, text: str) -> int:
    """Read a count of plans or steps."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise SpecError(option, f"expected a whole number from 1, got {shown(text)}.")
    return int(text)
