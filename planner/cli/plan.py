"""``planner plan``: the fastest strategies for a job; ``planner estimate``: time and memory of one given strategy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from planner.cli.arguments import (
    add_job,
    add_output,
    add_time_limit,
    describe,
    load_pinned,
    report_on_job,
    report_text,
)
from planner.cli.output import check_output, note, progress, real, write, write_model
from planner.report import FORMATS

if TYPE_CHECKING:
    from constraints.joint import JointModel
    from planner.jobs.problem import Problem
    from planner.jobs.strategy_file import StrategyFile
    from planner.results import EstimateReport, PlanReport

EXIT_CODES = """exit codes:
  0  a plan was found and proven optimal
  1  infeasible: no strategy satisfies all rules
  2  wrong input
  3  the time limit came before the proof
"""

UNUSED_STRATEGY = (
    "plan does not use the job's strategy (estimate and explain do); search.pin and words such as TP8 hold decisions "
    "fixed."
)
"""The note on a strategy of the job, which ``planner plan`` does not use."""


NO_MODEL = (
    "there is no plan that it could be about, or its cost tables are too large or take more than the time limit "
    "(--time-limit S)."
)
"""The reason that there is no model to write."""


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Chooses the fastest strategies for a job, proves that nothing allowed is faster, and recommends the one "
        "that an expert would start among those nearly as fast (search.tolerance)."
    )
    describe(parser, description, EXIT_CODES)
    add_job(
        parser,
        "a decision to hold fixed, such as TP8 or recompute=none, or a job entry such as training.sequence_length=8192",
    )
    parser.add_argument(
        "--from",
        dest="small",
        metavar="SMALL.yaml",
        action="append",
        type=Path,
        default=[],
        help="runs of the job cut down, measured on this cluster: constants that follow from them take the place of "
        "the device's (YAML: docs/guides/traces.md, section 6); may be given several times",
    )
    add_time_limit(parser, "the best plan so far is reported")
    parser.add_argument(
        "--write-model",
        metavar="FILE",
        type=Path,
        help="also write the CP-SAT model whose optimum is the answer: text if the name ends with txt, else binary",
    )
    add_output(parser, FORMATS)


def run_plan(arguments: argparse.Namespace) -> int:
    """Plan and print."""
    with progress(f"planning {arguments.job}"):
        from planner.verbs.plan import plan

        problem = load_pinned(arguments)
        sources = (*problem.sources, *arguments.small)
        check_output(arguments.output, sources)
        _check_model_file(arguments, sources)
        report = _plan_from_runs(problem, arguments.small) if arguments.small else plan(problem)
        text = report_text(report, arguments)
        model = _model(report) if arguments.write_model else None
    if not problem.given.is_empty:
        note(UNUSED_STRATEGY)
    write(text, arguments.output)
    if model:
        write_model(model.model, arguments.write_model)
    elif arguments.write_model:
        note(f"{arguments.write_model} was not written: {NO_MODEL}")
    return int(report.exit_code)


def _plan_from_runs(problem: Problem, paths: Sequence[Path]) -> PlanReport:
    """Plan a job on the device that follows from small runs, and add the notes on these runs."""
    from planner.measure.project.anchor import anchor
    from planner.measure.project.projected import add_small_runs
    from planner.measure.project.small_runs import small_runs
    from planner.verbs.plan import plan

    found = anchor(problem, small_runs(paths, problem))
    return add_small_runs(plan(found.apply_to(problem)), found, problem)


def _check_model_file(arguments: argparse.Namespace, sources: Sequence[Path]) -> None:
    """Refuse a file for the model that cannot be written, or is that of the report."""
    file: Path | None = arguments.write_model
    check_output(file, sources)
    if file and arguments.output and real(file) == real(arguments.output):
        raise SpecError("--write-model", f"is the report's file, too: {file}.", "Name another file.")


def _model(report: PlanReport) -> JointModel | None:
    """Return the CP-SAT model of a report's answer; None where there is none."""
    from planner.search.certificate import build_model_for_export

    return build_model_for_export(report.chosen, report.outcome)


# --- planner estimate --------------------------------------------------------------------------------------


def add_estimate_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    describe(parser, "Costs one given strategy, also where a rule forbids it, and says which rule does.")
    add_job(parser)
    add_output(parser, FORMATS)


def run_estimate(arguments: argparse.Namespace) -> int:
    """Estimate and print."""

    def report_of(problem: Problem, given: StrategyFile) -> EstimateReport:
        from planner.verbs.plan import estimate

        return estimate(problem, given)

    return report_on_job(arguments, "estimating", report_of)
