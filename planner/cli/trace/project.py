"""``planner trace project``: predicts a whole job from small runs of it that fit on one node."""

from __future__ import annotations

import argparse
from pathlib import Path

from costmodel.errors import SpecError
from planner.cli.arguments import TEXT_FORMATS, add_force, add_output, describe
from planner.cli.output import check_output, progress, require_new, write


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Predicts a job from runs of it with fewer layers, pipeline ranks, experts' ranks or replicas: what they "
        "measured is used, what they have not comes from the model, and the interval says how much of the step was "
        "measured. Runs are a YAML file (planner/measure/project/README.md) or a table as 'planner calibrate' takes it."
    )
    describe(parser, description)
    small_help = "small runs; decisions of the job such as tp=8 may follow"
    parser.add_argument("small", metavar="SMALL.yaml", nargs="+", help=small_help)
    parser.add_argument("--job", metavar="JOB.yaml", type=Path, required=True, help="the whole job, with its strategy")
    device_help = "also write the device that follows, which a job takes: cluster: {device: ./measured.yaml}"
    parser.add_argument("--device", metavar="FILE", type=Path, help=device_help)
    add_force(parser, "the device's file")
    add_output(parser, TEXT_FORMATS)
    parser.set_defaults(assignments=[])


def run(arguments: argparse.Namespace) -> int:
    """Project and print."""
    from planner.jobs.line.writing import is_line

    assignments = [*(word for word in arguments.small if "=" in word or is_line(word)), *arguments.assignments]
    paths = [Path(word) for word in arguments.small if "=" not in word and not is_line(word)]
    if not paths:
        raise SpecError("small runs", "no file is named.", "planner trace project small-run.yaml --job job.yaml.")
    with progress(f"projecting {arguments.job}"):
        from planner.jobs.cluster import device_text
        from planner.jobs.line.reading import read_words
        from planner.jobs.problem import load, split_overrides
        from planner.measure.project.projected import project
        from planner.measure.project.small_runs import small_runs
        from planner.measure.project.wording import projection_json, projection_text

        overrides, decisions = split_overrides(assignments)
        problem = load(arguments.job, overrides)
        for path in (arguments.output, arguments.device):
            check_output(path, (*problem.sources, *paths))
        require_new(arguments.device, force=arguments.force)
        found = project(problem, read_words(decisions), small_runs(paths, problem))
    if arguments.device:
        write(device_text(found.anchor.device), arguments.device)
    write({"table": projection_text, "json": projection_json}[arguments.format](found), arguments.output)
    return 0
