"""``planner trace read``: the contents of traces, missing parts, and how to record them."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.cli.arguments import TEXT_FORMATS, add_output, describe
from planner.cli.output import check_output, screen_of, write
from planner.cli.trace.options import traces_of

EXIT_CODES = """exit codes:
  0  the traces were read
  2  wrong input: not there, another format, no events, ranks of different runs
"""

NUM_KERNELS = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    describe(
        parser,
        "Says what traces of PyTorch's profiler hold (.json or .json.gz, one of each rank), what is missing for a "
        "replay or a prediction, and how to record it.",
        EXIT_CODES,
    )
    parser.add_argument("traces", metavar="TRACE", nargs="+", type=Path, help="files of one run, one of each rank")
    add_output(parser, TEXT_FORMATS)


def run(arguments: argparse.Namespace) -> int:
    """Read the traces and print their contents."""
    check_output(arguments.output, arguments.traces)
    from planner.measure.traces.report.contents import contents, contents_json, contents_text

    found = [contents(trace, num_kernels=NUM_KERNELS) for trace in traces_of(arguments.traces)]
    text = contents_json(found) if arguments.format == "json" else contents_text(found, screen_of(arguments.output))
    write(text, arguments.output)
    return 0
