"""``planner top``: the jobs of a batch, ranked."""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path

from costmodel.errors import SpecError
from planner.batch.choices import METRICS, TOP_FORMATS
from planner.cli.arguments import add_output_file, describe
from planner.cli.output import check_output, write


def add_top_options(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    describe(parser, "Ranks the jobs of results files, each by its best plan.")
    parser.add_argument("results", metavar="RESULTS.jsonl", nargs="+", type=Path, help="what planner batch wrote")
    parser.add_argument(
        "--by", choices=tuple(METRICS), default="step_time", help="what to rank by (default: step_time)"
    )
    parser.add_argument("--top", metavar="K", type=int, default=10, help="how many jobs (default: 10)")
    parser.add_argument("--format", choices=TOP_FORMATS, default="table", help="output format (default: table)")
    add_output_file(parser)


def run_top(arguments: argparse.Namespace) -> int:
    """Read the results and print the ranking."""
    from planner.batch.results import read_results
    from planner.batch.top import render_top, top

    check_output(arguments.output, arguments.results)
    if arguments.top < 1:
        raise SpecError("top", f"must be at least 1, got {arguments.top}.")

    def notify(sentence: str) -> None:
        print(f"planner: {sentence}", file=sys.stderr)

    lines = chain.from_iterable(read_results(path, notify=notify) for path in arguments.results)
    write(render_top(top(lines, by=arguments.by, count=arguments.top), arguments.format), arguments.output)
    return 0
