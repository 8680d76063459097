"""``planner study``: one job changed in one thing, each point a proven plan."""

from __future__ import annotations

import argparse

from costmodel.errors import SpecError
from planner.cli.arguments import (
    add_job,
    add_output,
    add_time_limit,
    describe,
    load_pinned,
    seconds,
)
from planner.cli.output import check_output, progress, screen_of, write
from planner.report import STUDY_FORMATS, render_study
from planner.verbs.study_names import STUDIES

EXIT_CODES = """exit codes:
  0  every plan of the study is proven
  1  infeasible: no strategy fits at any point
  2  wrong input
  3  the time limit came before the proof of a point
"""


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = "Changes the job in one thing at a time and plans it each time. STUDY is one of these: " + " ".join(
        f"{name}: {subject}." for name, subject in STUDIES.items()
    )
    describe(parser, description, EXIT_CODES)
    parser.add_argument("study", metavar="STUDY", choices=tuple(STUDIES), help="name of the study")
    add_job(parser, "a decision to hold fixed, such as TP8 or recompute=none, or a job entry")
    parser.usage = str(parser.usage).replace("[options] ", "[options] STUDY ")
    parser.add_argument(
        "--values",
        metavar="NAME=LIST",
        action="append",
        default=[],
        help="values of one entry of the study, such as vpp=1,2,4, scale_up=8..128 or internode=200Gbit/s,400Gbit/s: "
        "only entries that are given are studied; may come several times",
    )
    parser.add_argument(
        "--step", metavar="S", type=seconds("--step"), help="a measured step, such as 28s, for the study of reliability"
    )
    add_time_limit(parser, "a point's best plan so far is reported")
    add_output(parser, STUDY_FORMATS)


def run_study(arguments: argparse.Namespace) -> int:
    """Study and print."""
    with progress(f"studying {arguments.study} of {arguments.job}"):
        from planner.batch.jobs import read_axis
        from planner.verbs.study import study

        problem = load_pinned(arguments)
        check_output(arguments.output, problem.sources)
        values = {}
        for text in arguments.values:
            key, chosen = read_axis(text)
            if key in values:
                raise SpecError(f"--values {key}", "is given twice; write its values with commas.")
            values[key] = chosen
        report = study(problem, arguments.study, values, step_seconds=arguments.step)
        text = render_study(report, arguments.format, screen=screen_of(arguments.output))
    write(text, arguments.output)
    return report.exit_code
