"""``planner estimate``: time and memory of one given strategy."""

from __future__ import annotations

import argparse

from planner.cli.arguments import add_job, add_output, add_target, describe, report_on_job
from planner.report import FORMATS


def add_estimate_options(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    describe(parser, "Costs one given strategy, also where a rule forbids it, and says which rule does.")
    add_job(parser)
    add_target(parser)
    add_output(parser, FORMATS)


def run_estimate(arguments: argparse.Namespace) -> int:
    """Estimate and print."""
    return report_on_job(arguments, "planner.plan", "estimate", "estimating")
