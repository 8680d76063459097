"""What several commands take and do, and exit codes that several end with."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from planner.cli.output import check_output, progress, write
from planner.frameworks import TARGETS

EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_CODES = """exit codes:
  0  a plan was found and proven optimal
  1  infeasible: no strategy satisfies all rules
  2  wrong input
  3  the time limit came before the proof
"""

EXPLANATION_FORMATS = ("table", "json", "markdown")
TEXT_FORMATS = ("table", "json")


def describe(parser: argparse.ArgumentParser, description: str, exit_codes: str = "") -> None:
    """Say what a command does, and how it ends where that is more than 0 or 2."""
    parser.description = description
    if exit_codes:
        parser.epilog = exit_codes
        parser.formatter_class = argparse.RawDescriptionHelpFormatter


def add_job(parser: argparse.ArgumentParser, assignments_help: str = "") -> None:
    """Take a job file and ``key=value``: decisions too, unless the help says what."""
    decisions = "a decision such as tp=8 or recompute=full, or a job entry such as training.sequence_length=8192"
    parser.add_argument("job", metavar="JOB.yaml", type=Path, help="the job file")
    parser.add_argument("assignments", metavar="key=value", nargs="*", help=assignments_help or decisions)


def add_time_limit(parser: argparse.ArgumentParser, until: str) -> None:
    """Take the seconds of a search."""
    parser.add_argument("--time-limit", metavar="S", help=f"seconds until {until}")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Take what plans are exported to."""
    help_text = f"plans that it can run, on its newest release: {', '.join(TARGETS)} (search.target)"
    parser.add_argument("--target", metavar="NAME", help=help_text)


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    """Take a format and a file."""
    parser.add_argument("--format", choices=formats, default="table", help="output format (default: table)")
    add_output_file(parser)


def add_output_file(parser: argparse.ArgumentParser) -> None:
    """Take a file for what goes to stdout otherwise."""
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to a file instead of stdout")


def add_force(parser: argparse.ArgumentParser, what: str = "the output file") -> None:
    """Take the permission to overwrite."""
    parser.add_argument("--force", action="store_true", help=f"overwrite {what}")


OPTIONS = {"time_limit": "search.time_limit_seconds", "target": "search.target"}
"""Entries of the job by the option that several commands have for them."""


def overridden(overrides: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """Overrides of a job, those among them that have an option of their own."""
    given = {entry: getattr(arguments, option, None) for option, entry in OPTIONS.items()}
    return [*overrides, *(f"{entry}={value}" for entry, value in given.items() if value is not None)]


def report_on_job(arguments: argparse.Namespace, home: str, verb: str, doing: str) -> int:
    """Print what a verb of a module reports of the job and the decisions given; returns the report's exit code."""
    with progress(f"{doing} {arguments.job}"):
        from planner.jobs.problem import load, read_decisions, split_overrides
        from planner.report import render

        overrides, decisions = split_overrides(arguments.assignments)
        problem = load(arguments.job, overridden(overrides, arguments))
        check_output(arguments.output, problem.sources)
        report = getattr(import_module(home), verb)(problem, read_decisions(decisions))
        text = render(report, arguments.format)
    write(text, arguments.output)
    return int(report.exit_code)
