"""``planner estimate``: time and memory of one given strategy."""

from __future__ import annotations

import argparse

from planner.cli.arguments import add_job, add_output, describe, read_job
from planner.cli.output import progress, write
from planner.report import FORMATS


def add_estimate_options(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    describe(parser, "Costs one given strategy, also where a rule forbids it, and says which rule does.")
    add_job(parser)
    add_output(parser, FORMATS)


def run_estimate(arguments: argparse.Namespace) -> int:
    """Estimate and print."""
    with progress(f"estimating {arguments.job}"):
        from planner.plan import estimate
        from planner.report import render

        report = estimate(*read_job(arguments))
        text = render(report, arguments.format)
    write(text, arguments.output)
    return int(report.exit_code)
