"""``planner explain``: why this plan, why not another one, and what it gains over a given strategy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from planner.cli.arguments import (
    COMPARISON_FORMATS,
    add_job,
    add_output,
    add_time_limit,
    all_overrides,
    describe,
    read_job,
    report_on_job,
    report_text,
)
from planner.cli.output import check_output, progress, write

if TYPE_CHECKING:
    from planner.jobs.problem import Problem
    from planner.jobs.strategy_file import StrategyFile
    from planner.report.records.reports import AnyReport

EXIT_CODES = """exit codes:
  0  explained: why this plan, why no strategy fits, why not the given strategy, or the gain over it
  1  infeasible: there is no plan to compare with
  2  wrong input
  3  the time limit came before the proof, or before all was explained
"""


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Says which constraints hold the best plan back and by how much, or why nothing fits and what would. With "
        "words such as TP8 PP4 (a whole strategy or a part of one): why it is not the plan: the rules that forbid "
        "it, the memory that it lacks and on which rank, or how much slower it is and where. For a job with a "
        "strategy (its 'strategy', a launch script or log, a JSON report) or with --recipe: the gain of the best plan "
        "over it in step, memory, days and GPU-hours, by part of the step, and the rules that it breaks. For two jobs: "
        "the gain of the second one's plan. A job of several words stands in quotation marks, with entries of its own: "
        "'run.sh TP4 --set GBS=512', 'plan.json --number 2'; key=value outside of them holds for both. The job's "
        "time limit holds for the whole explanation."
    )
    describe(parser, description, EXIT_CODES)
    add_job(parser)
    parser.usage = f"{parser.usage}\n       {parser.prog} [options] JOB [JOB] [WORD|key=value ...]"
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        nargs="?",
        const="",
        help="compare with a published layout: the nearest one, or that of a name (planner catalog recipes)",
    )
    add_time_limit(parser, "what is known so far is reported")
    add_output(parser, COMPARISON_FORMATS)


def run_explain(arguments: argparse.Namespace) -> int:
    """Explain and print."""
    if arguments.recipe is not None:
        return _run_compare_recipe(arguments)
    from planner.jobs.line import is_line
    from planner.verbs.any_job import is_job

    words = [arguments.job, *arguments.assignments]
    others = (word for word in arguments.assignments if "=" not in (word.split() or [""])[0] and not is_line(word))
    jobs = [arguments.job, *others]
    if sum(map(is_job, jobs)) > 2:
        raise SpecError(jobs[2], f"two jobs at most are compared, got {len(jobs)}.", "Compare two at a time.")
    if len(jobs) > 2 or not is_job(jobs[-1]) or (len(jobs) == 1 and jobs[0].endswith((".yaml", ".yml"))):
        return report_on_job(arguments, "explaining", _explain)
    with progress(f"explaining {' and '.join(jobs)}"):
        from planner.jobs.entries import OPTIONS
        from planner.verbs.any_job import read_any
        from planner.verbs.compare import compare_two

        numbers = [
            f"{entry}={text}" for name, entry in OPTIONS.items() if (text := getattr(arguments, name)) is not None
        ]
        entries = [*numbers, *(word for word in words if word not in jobs)]
        read = [read_any(job, entries, limits=all_overrides([], arguments)) for job in jobs]
        check_output(arguments.output, [path for one in read for path in one.sources])
        report: AnyReport
        if len(read) == 2:
            report = compare_two(*(one.side() for one in read))
        elif read[0].strategy is not None:
            report = read[0].compare_with_plan()
        else:
            report = _explain(read[0].problem, read[0].decisions)
        text = report_text(report, arguments)
    write(text, arguments.output)
    return int(report.exit_code)


def _explain(problem: Problem, given: StrategyFile | Mapping[str, object]) -> AnyReport:
    """Explain why the plan is not as given; without words compare the strategy of a job that has one with its plan."""
    is_asked = bool(given) if isinstance(given, Mapping) else not given.is_empty
    if is_asked or problem.given.is_empty:
        from planner.verbs.explain import explain

        return explain(problem, given)
    from planner.verbs.compare import compare

    return compare(problem, given)


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
