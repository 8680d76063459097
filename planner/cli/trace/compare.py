"""``planner trace compare``: the planner's step of a job compared with the traced one."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.cli.arguments import TEXT_FORMATS, add_output, describe
from planner.cli.output import check_output, progress, screen_of, write

EXIT_CODES = """exit codes:
  0  both steps were laid side by side
  2  wrong input: no strategy, no whole iteration, a rank that is on no stage of the job
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    describe(
        parser,
        "Compares the planner's step of a job with the traced one, part by part: computation by kind of "
        "operator, communication by group of ranks, host and idle. Both are means over the ranks that traces are given "
        "of, the planner's of the pipeline stages of these ranks. The parts of each sum to its step.",
        EXIT_CODES,
    )
    parser.add_argument("job", metavar="JOB.yaml", type=Path, help="the job file, with the strategy that was traced")
    parser.add_argument(
        "traces",
        metavar="TRACE",
        type=Path,
        nargs="+",
        help="traces of its ranks: of a pipeline one rank of each stage, or those that matter",
    )
    add_output(parser, TEXT_FORMATS)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    check_output(arguments.output, [arguments.job, *arguments.traces])
    with progress(f"reading {len(arguments.traces)} traces"):
        from planner.jobs.problem import load
        from planner.measure.traces.reading import read_traces
        from planner.measure.traces.report.compare import (
            compare_with_traces,
            write_comparison_json,
            write_comparison_text,
        )

        found = compare_with_traces(load(arguments.job), read_traces(arguments.traces))
    screen = screen_of(arguments.output)
    text = write_comparison_json(found) if arguments.format == "json" else write_comparison_text(found, screen)
    write(text, arguments.output)
    return 0
