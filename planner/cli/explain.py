"""``planner explain``: why this plan, and why not another; ``planner compare``: its gain over a given strategy."""

from __future__ import annotations

import argparse

from costmodel.errors import SpecError
from planner.cli.arguments import (
    COMPARISON_FORMATS,
    EXPLANATION_FORMATS,
    add_job,
    add_output,
    add_target,
    add_time_limit,
    add_variables,
    all_overrides,
    describe,
    read_job,
    report_on_job,
    report_text,
)
from planner.cli.output import check_output, progress, write

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
    """Add the options of the command."""
    description = (
        "Without decisions: which constraints hold the best plan back and by how much, or why nothing "
        "fits and what would. With words such as TP8 PP4 (a whole strategy or a part of one): why it is not the "
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
    return report_on_job(arguments, "planner.verbs.explain", "explain", "explaining")


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "The job's own strategy, or a line such as TP8 PP4, against the best plan; or two jobs against each "
        "other: step, memory, days and GPU-hours, where the time goes, and the rules that a given strategy breaks. A "
        "job is a job file, what 'import' takes, a JSON report of 'plan' or 'estimate', or one line; what has several "
        "words stands in quotation marks, with entries of its own: 'run.sh TP4 --set GBS=512', 'plan.json --number "
        "2'. Of two jobs one without a strategy stands for its recommended plan; key=value outside of the marks holds "
        "for both."
    )
    describe(parser, description, COMPARE_EXIT_CODES)
    add_job(parser)
    parser.usage = f"{parser.usage}\n       {parser.prog} [options] JOB JOB [key=value ...]"
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        nargs="?",
        const="",
        help="compare a published layout for the job: the nearest one, or that of a name (planner catalog recipes)",
    )
    add_variables(parser)
    add_time_limit(parser, "the best plan so far is compared with")
    add_output(parser, COMPARISON_FORMATS)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    if arguments.recipe is not None:
        return _run_compare_recipe(arguments)
    words = [arguments.job, *arguments.assignments]
    from planner.jobs.line.writing import is_line
    from planner.verbs.any_job import is_job

    jobs = [word for word in words if "=" not in (word.split() or [""])[0] and not is_line(word)]
    if sum(map(is_job, jobs)) > 2:
        raise SpecError(jobs[2], f"two jobs at most are compared, got {len(jobs)}.", "Compare two at a time.")
    if len(jobs) > 2 or not is_job(jobs[-1]):
        return report_on_job(arguments, "planner.verbs.compare", "compare", "comparing")
    with progress(f"comparing {' and '.join(jobs)}"):
        from planner.frameworks.imports.job import read_variables
        from planner.jobs.written.one_line import OPTIONS
        from planner.verbs.any_job import read_any
        from planner.verbs.compare import compare_two

        numbers = [
            f"{entry}={text}" for name, entry in OPTIONS.items() if (text := getattr(arguments, name)) is not None
        ]
        entries = [*numbers, *(word for word in words if word not in jobs)]
        limits = all_overrides([], arguments)
        read = [read_any(job, entries, read_variables(arguments.set), limits) for job in jobs]
        check_output(arguments.output, [path for one in read for path in one.sources])
        report = compare_two(*(one.side() for one in read)) if len(read) == 2 else read[0].compare_with_plan()
        text = report_text(report, arguments)
    write(text, arguments.output)
    return int(report.exit_code)


def _run_compare_recipe(arguments: argparse.Namespace) -> int:
    """Compare a published layout with a job's recommended plan, and print."""
    with progress(f"comparing {arguments.job}"):
        from planner.jobs.problem import load, split_overrides
        from planner.verbs.recipes import OPTION, compare_recipe

        document, overrides = read_job(arguments, arguments.assignments)
        entries, decisions = split_overrides(overrides)
        if decisions:
            raise SpecError(OPTION, f"a recipe is a whole strategy, which {decisions[0]} cannot change.")
        problem = load(document, all_overrides(entries, arguments))
        check_output(arguments.output, problem.sources)
        report = compare_recipe(problem, arguments.recipe)
        text = report_text(report, arguments)
    write(text, arguments.output)
    return int(report.exit_code)
