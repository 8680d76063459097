"""``planner plan``: the fastest strategies for a job."""

from __future__ import annotations

import argparse
import sys

from planner.cli.arguments import EXIT_CODES, add_job, add_output, add_time_limit, describe, limited
from planner.cli.output import check_output, progress, write
from planner.report import FORMATS

UNUSED_STRATEGY = "plan does not use the job's strategy (estimate and compare do); search.pin holds decisions fixed."
"""What is said where a job gives one all the same."""


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    description = "Chooses the fastest strategies for a job and proves that nothing allowed is faster."
    describe(parser, description, EXIT_CODES)
    add_job(parser, "change an entry of the job, such as training.global_batch_size=512 or search.pin.tp=8")
    parser.add_argument("--top", metavar="K", help="how many plans to report (default: the job's 'top', or 1)")
    parser.add_argument(
        "--all-variants",
        action="store_true",
        help="report the best strategies whatever they have in common, not one per combination of tp, cp, pp, dp, ep",
    )
    add_time_limit(parser, "the best plan so far is reported")
    add_output(parser, FORMATS)


def run_plan(arguments: argparse.Namespace) -> int:
    """Plan and print."""
    overrides = list(arguments.assignments)
    if arguments.top is not None:
        overrides.append(f"top={arguments.top}")
    if arguments.all_variants:
        overrides.append("variants=all")
    with progress(f"planning {arguments.job}"):
        from planner.jobs.problem import load
        from planner.plan import plan
        from planner.report import render

        problem = load(arguments.job, limited(overrides, arguments.time_limit))
        check_output(arguments.output, problem.sources)
        report = plan(problem)
        text = render(report, arguments.format)
    if problem.given.decisions or problem.given.layout:
        print(f"planner: {UNUSED_STRATEGY}", file=sys.stderr)
    write(text, arguments.output)
    return int(report.exit_code)
