"""``planner trace replay``: an iteration simulated from its graph, compared with the measured one."""

from __future__ import annotations

import argparse
from pathlib import Path

from costmodel.errors import SpecError
from planner.cli.arguments import add_output, describe
from planner.cli.output import check_output, progress, screen_of, write
from planner.cli.trace.options import files_text, iteration_number, traces_of

FORMATS = ("table", "json", "html", "perfetto")

EXIT_CODES = """exit codes:
  0  the iteration was replayed
  1  the same, but the replay is more than 5 % off what was recorded: it is not usable
  2  wrong input: not there, another format, no events, no such iteration, ranks of different runs
"""
EXIT_NOT_USABLE = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    describe(
        parser,
        "Replays an iteration of a trace of PyTorch's profiler and compares it with the measured one: iteration time, "
        "what it goes into, streams, the critical path with its kernels. The format html is a page with time lines, "
        "perfetto a trace of measured and replayed tasks side by side, for Perfetto.",
        EXIT_CODES,
    )
    parser.add_argument("traces", metavar="TRACE", nargs="+", type=Path, help="files of one run, one of each rank")
    parser.add_argument(
        "--iteration", metavar="N", help="which, from 0 (default: the last one that another follows, else the last)"
    )
    add_output(parser, FORMATS)


def run(arguments: argparse.Namespace) -> int:
    """Read, replay, print."""
    number = iteration_number(arguments.iteration)
    if arguments.format == "perfetto" and arguments.output is None:
        raise SpecError("--format perfetto", "is a file.", "Name it: -o side-by-side.json.gz.")
    check_output(arguments.output, arguments.traces)
    from planner.measure.traces.report.replay import replay_report

    traces = traces_of(arguments.traces)
    with progress(f"replaying {files_text(arguments.traces)}"):
        report = replay_report(traces, number)
        match arguments.format:
            case "perfetto":
                from planner.measure.traces.report.page import side_by_side
                from planner.measure.traces.writing import write_trace

                write_trace(side_by_side(report), arguments.output)
                return 0 if report.usable else EXIT_NOT_USABLE
            case "json":
                from planner.measure.traces.report.replay import replay_json

                text = replay_json(report)
            case "html":
                from planner.measure.traces.report.page import replay_page

                text = replay_page(report)
            case _:
                from planner.measure.traces.report.replay import replay_text

                text = replay_text(report, screen_of(arguments.output))
    write(text, arguments.output)
    return 0 if report.usable else EXIT_NOT_USABLE
