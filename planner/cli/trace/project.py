"""``planner trace project``: predicts a whole job from small runs of it that fit on one node."""

from __future__ import annotations

import argparse
from pathlib import Path

from costmodel.errors import SpecError
from planner.cli.arguments import TEXT_FORMATS, add_output, describe
from planner.cli.output import check_output, progress, write


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Predicts a job from runs of it with fewer layers, pipeline ranks, experts' ranks or replicas: what they "
        "measured is used, what they have not comes from the model, and the interval says how much of the step was "
        "measured. Runs are a YAML file (planner/measure/project/README.md) or a table; 'planner calibrate' "
        "--job writes the device that follows from them."
    )
    describe(parser, description)
    small_help = "small runs; decisions of the job such as tp=8 may follow"
    parser.add_argument("small", metavar="SMALL.yaml", nargs="+", help=small_help)
    parser.add_argument("--job", metavar="JOB.yaml", type=Path, required=True, help="the whole job, with its strategy")
    add_output(parser, TEXT_FORMATS)
    parser.set_defaults(assignments=[])


def run(arguments: argparse.Namespace) -> int:
    """Project and print."""
    from planner.jobs.line import is_line

    assignments = [*(word for word in arguments.small if "=" in word or is_line(word)), *arguments.assignments]
    paths = [Path(word) for word in arguments.small if "=" not in word and not is_line(word)]
    if not paths:
        raise SpecError("small runs", "no file is named.", "planner trace project small-run.yaml --job job.yaml.")
    with progress(f"projecting {arguments.job}"):
        from planner.jobs.line import read_words
        from planner.jobs.problem import load, split_overrides
        from planner.measure.project.projected import project, projection_json, projection_text
        from planner.measure.project.small_runs import small_runs

        overrides, decisions = split_overrides(assignments)
        problem = load(arguments.job, overrides)
        check_output(arguments.output, (*problem.sources, *paths))
        found = project(problem, read_words(decisions), small_runs(paths, problem))
    write({"table": projection_text, "json": projection_json}[arguments.format](found), arguments.output)
    return 0
