"""``planner explain``: why this plan, and why not another; ``planner compare``: what it gains over a given strategy."""

from __future__ import annotations

import argparse

from planner.cli.arguments import (
    EXPLANATION_FORMATS,
    add_job,
    add_output,
    add_target,
    add_time_limit,
    describe,
    report_on_job,
)

EXIT_CODES = """exit codes:
  0  explained: why this plan, why no strategy fits, or why not the given strategy
  2  wrong input
  3  the time limit came before the proof, or before all was explained
"""
COMPARE_EXIT_CODES = """exit codes:
  0  compared with the proven best plan
  1  infeasible: there is no plan to compare with
  2  wrong input
  3  the time limit came before the proof
"""


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    description = (
        "Without decisions: which constraints hold the best plan back and by how much, or why nothing "
        "fits and what would. With decisions such as tp=8 pp=4 (a whole strategy or a part of one): why it is not the "
        "plan: the rules that forbid it, the memory that it lacks and on which rank, or how much slower it is and "
        "where. The job's time limit holds for the whole explanation."
    )
    describe(parser, description, EXIT_CODES)
    add_job(parser)
    add_target(parser)
    add_time_limit(parser, "what is known so far is reported")
    add_output(parser, EXPLANATION_FORMATS)


def run_explain(arguments: argparse.Namespace) -> int:
    """Explain and print."""
    return report_on_job(arguments, "planner.explanation.explain", "explain", "explaining")


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    description = (
        "The job's own strategy, or decisions such as tp=8 pp=4, against the best plan: step, memory, days "
        "and GPU-hours, where the time goes, and the rules that the given strategy breaks."
    )
    describe(parser, description, COMPARE_EXIT_CODES)
    add_job(parser)
    add_time_limit(parser, "the best plan so far is compared with")
    add_output(parser, EXPLANATION_FORMATS)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    return report_on_job(arguments, "planner.explanation.compare", "compare", "comparing")
