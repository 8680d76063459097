"""``planner sample``: measures operators and collectives on this machine."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.cli.arguments import EXIT_INTERRUPTED, count, describe
from planner.cli.output import check_output, complain, current, note, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.jobs.problem import Problem
    from planner.measure.sample.run import Counts
    from planner.measure.sample.samples import Point

EXIT_CODES = """exit codes:
  0  the table has points; those without a time are counted with their reasons
  1  nothing could be measured
  2  wrong input, no such device, or torch is not installed
  4  another process failed in a collective: what was measured stays
  130  interrupted: what was measured stays; the same command goes on
"""
EXIT_NOTHING = 1
EXIT_LOST = 4

LONGEST_SECONDS = 1e9
"""Longest budget."""

FOR = (
    "a job, whose operators come first; if its device comes from samples, those that leave most of its step time "
    "open come before them"
)

MOST_REASONS = 8
"""Reasons of skipped points that are listed; the others are counted."""


def add_sample_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Measures operators on this machine within a budget, the most useful first: constants of the device, the "
        "operators of a job with their true sizes, then sizes between and beyond them. With several GPUs, or under "
        "torchrun, collectives too. The same command goes on where it was stopped. Other programs on the device make "
        "the times wrong."
    )
    describe(parser, description, EXIT_CODES)
    parser.add_argument("--for", metavar="JOB.yaml", type=Path, dest="job", help=FOR)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="", help="device to sample (default: the GPU if there is one)"
    )
    parser.add_argument(
        "--dtype",
        choices=("bf16", "fp16", "fp32"),
        default="",
        help="precision of the points that are no job's (default: bf16 on a GPU, fp32 on a CPU)",
    )
    parser.add_argument(
        "--budget", metavar="TIME", default="10min", help="when to stop: 90, 90s, 10min, 1h (default: 10min)"
    )
    parser.add_argument(
        "--ranks",
        metavar="N",
        type=count("--ranks", least=0),
        help="processes that measure collectives on this host (default: one for each GPU, one on a CPU; under "
        "torchrun all of its own)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the table, .csv or .parquet; it is added to"
    )


def run_sample(arguments: argparse.Namespace) -> int:
    """Measure, and print the number of points and the reasons of skipped ones."""
    from planner.jobs.problem import load
    from planner.measure.sample.ranks import LostRankError
    from planner.measure.sample.run import sample_operators

    budget = budget_seconds(arguments.budget)
    problem = load(arguments.job) if arguments.job else None
    first = _doubtful(problem) if problem else ()
    check_output(arguments.output, problem.sources if problem else ())
    line, end = current(), time.monotonic() + budget
    try:
        counts = sample_operators(
            arguments.output,
            problem,
            budget_seconds=budget,
            device=arguments.device,
            dtype=arguments.dtype,
            ranks=arguments.ranks,
            first=first,
            notify=note,
            progress=lambda text: line.show(f"{max(0.0, end - time.monotonic()):.0f} s left, {text}"),
        )
    except KeyboardInterrupt:
        note(f"interrupted. Finished measurements are in {arguments.output}; run the same command again to go on.")
        return EXIT_INTERRUPTED
    except LostRankError as error:
        complain(str(error))
        return EXIT_LOST
    line.clear()
    if counts is None:  # not the first of several processes, which says all
        return 0
    write(summary_text(counts, str(arguments.output)), None)
    return 0 if counts.measured or counts.known else EXIT_NOTHING


def _doubtful(problem: Problem) -> Sequence[Point]:
    """Return the points whose measurement would make the step times of the best plans most certain."""
    if problem.facts.cluster.device.calibration.samples is None:
        return ()
    from planner.measure.sample.shapes import doubtful_points, job_shapes
    from planner.verbs.plan import plan

    found = plan(problem)
    if not found.plans:
        note(f"{problem.name}: no strategy fits on this device, so that no operator of its plans comes first.")
        return ()
    return doubtful_points(found.plans, job_shapes(problem))


def budget_seconds(text: str) -> float:
    """
    Read a budget in seconds.

    Examples
    --------
    >>> budget_seconds("90s"), budget_seconds("1.5h"), budget_seconds("10min"), budget_seconds("600")
    (90.0, 5400.0, 600.0, 600.0)
    """
    from costmodel.quantities import SECONDS, finite

    seconds = finite(text, SECONDS, "--budget")
    if not 0 < seconds <= LONGEST_SECONDS:
        raise SpecError("--budget", f"expected a time above 0 such as 10min, got {shown(text)}.")
    return seconds


def summary_text(counts: Counts, path: str) -> str:
    """Summarize the measured and skipped points, and name the next command."""
    known = f", {counts.known:,} were there before" if counts.known else ""
    lines = [f"{path}: {counts.measured:,} points measured in {counts.seconds:.0f} s{known}."]
    reasons = sorted(counts.skipped.items(), key=lambda item: -item[1])
    if reasons:
        lines.append(f"{sum(counts.skipped.values()):,} points have no time:")
    lines += [f"{number:>7,}  {reason}" for reason, number in reasons[:MOST_REASONS]]
    others = reasons[MOST_REASONS:]
    if others:
        lines.append(f"{sum(number for _, number in others):>7,}  for {len(others):,} other reasons")
    if counts.measured or counts.known:
        lines.append(f"Next: planner calibrate {path} -o my-cluster.yaml; the same command again measures on.")
    return "\n".join(lines)
