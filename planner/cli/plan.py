"""``planner plan``: the fastest strategies for a job; ``planner estimate``: time and memory of one given strategy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from planner.cli.arguments import (
    EXIT_CODES,
    FLAG_ENTRIES,
    add_force,
    add_job,
    add_report,
    add_target,
    add_time_limit,
    describe,
    load_pinned,
    report_on_job,
    report_text,
)
from planner.cli.output import check_output, progress, real, require_new, write, write_model
from planner.cli.terminal.messages import note

if TYPE_CHECKING:
    from constraints.joint import JointModel
    from planner.jobs.problem import Problem
    from planner.results import PlanReport

UNUSED_STRATEGY = (
    "plan does not use the job's strategy (estimate and compare do); search.pin and words such as TP8 hold decisions "
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
    parser.add_argument("--top", metavar="K", help="how many plans to report (default: the job's 'top', or 3)")
    parser.add_argument("--fastest", action="store_true", help="put the fastest plan first, however little it gains")
    parser.add_argument(
        "--bold",
        action="store_true",
        help="let plans have features that too few measured runs have, and name them (search.evidence: any)",
    )
    parser.add_argument(
        "--all-variants",
        action="store_true",
        help="report the best strategies whatever they have in common, not one per combination of tp, cp, pp, dp, ep",
    )
    parser.add_argument(
        "--from",
        dest="small",
        metavar="SMALL.yaml",
        action="append",
        type=Path,
        default=[],
        help="runs of the job cut down, measured on this cluster: constants that follow from them take the place of "
        "the device's (planner/measure/project/README.md); may be given several times",
    )
    add_target(parser)
    add_time_limit(parser, "the best plan so far is reported")
    parser.add_argument(
        "--write-model",
        metavar="FILE",
        type=Path,
        help="also write the CP-SAT model whose optimum is the answer: text if the name ends with txt, else binary",
    )
    add_force(parser, "the model's file")
    add_report(parser)


def run_plan(arguments: argparse.Namespace) -> int:
    """Plan and print."""
    overrides = list(arguments.assignments)
    if arguments.top is not None:
        overrides.append(f"top={arguments.top}")
    if arguments.fastest:
        overrides.append("search.fastest=true")
    overrides += [entry for flag, entry in FLAG_ENTRIES.items() if getattr(arguments, flag)]
    with progress(f"planning {arguments.job}"):
        from planner.verbs.plan import plan

        problem = load_pinned(arguments, overrides)
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
    from planner.measure.project.small_runs import small_runs
    from planner.measure.project.wording import add_small_runs
    from planner.verbs.plan import plan

    found = anchor(problem, small_runs(paths, problem))
    return add_small_runs(plan(found.apply_to(problem)), found, problem)


def _check_model_file(arguments: argparse.Namespace, sources: Sequence[Path]) -> None:
    """Refuse a file for the model that exists, cannot be written, or is that of the report."""
    file: Path | None = arguments.write_model
    check_output(file, sources)
    require_new(file, force=arguments.force)
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
    add_target(parser)
    add_report(parser)


def run_estimate(arguments: argparse.Namespace) -> int:
    """Estimate and print."""
    return report_on_job(arguments, "planner.verbs.plan", "estimate", "estimating")
