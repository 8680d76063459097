"""``planner trace what-if``: replays a recorded step after a change of the job."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from costmodel.errors import SpecError
from planner.cli.arguments import TEXT_FORMATS, add_output, describe
from planner.cli.output import check_output, progress, screen_of, write
from planner.cli.trace.options import files_text, iteration_number, traces_of

EXIT_CODES = """exit codes:
  0  the changed step was replayed
  2  wrong input, or the traces do not show what the change needs, or their replay is not usable (see --anyway)
"""

MOST_FASTER = 1e6


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    describe(
        parser,
        "Changes a recorded step and replays it: layers=48 or microbatches=16 by the traces alone; with --job, the job "
        "that was recorded, also tp, pp, dp, vpp, mbs, schedule, the model's sizes, training.sequence_length, "
        "training.global_batch_size and cluster.num_devices. Any other difference of the job is refused.",
        EXIT_CODES,
    )
    parser.add_argument(
        "traces", metavar="TRACE | key=value", nargs="+", help="traces of one step, one of each rank; and changes of it"
    )
    parser.add_argument("--job", metavar="JOB.yaml", type=Path, help="the job that was recorded, with its strategy")
    parser.add_argument("--iteration", metavar="N", help="number of the recorded iteration, from 0")
    parser.add_argument(
        "--faster",
        metavar="PATTERN=FACTOR",
        action="append",
        default=[],
        help="tasks whose names contain a regular expression, so many times faster",
    )
    parser.add_argument("--cuda-graphs", action="store_true", help="the step without launches of single kernels")
    parser.add_argument("--no-overlap", action="store_true", help="communication does not overlap with computation")
    parser.add_argument(
        "--anyway", action="store_true", help="go on although the replay of the recorded step is more than 5 %% off"
    )
    add_output(parser, TEXT_FORMATS)
    parser.set_defaults(assignments=[])  # changes behind options come here


def run(arguments: argparse.Namespace) -> int:
    """replay, print."""
    from planner.measure.traces.report.what_if import (
        read_changed_jobs,
        read_changes,
        require_job,
        what_if,
        what_if_json,
        what_if_text,
    )

    files = [word for word in arguments.traces if "=" not in word or os.path.exists(word)]
    own, others = read_changes([word for word in [*arguments.traces, *arguments.assignments] if word not in files])
    if not files:
        raise SpecError("traces", "there is no file among what was given, only changes.")
    if arguments.job is None:
        require_job(others)
    speedups = [_faster(text) for text in arguments.faster]
    iteration = iteration_number(arguments.iteration)
    paths = [Path(file) for file in files]
    check_output(arguments.output, paths)
    traces = traces_of(paths)
    with progress(f"replaying {files_text(paths)}"):
        jobs = read_changed_jobs(arguments.job, others) if arguments.job else None
        found = what_if(
            traces,
            jobs,
            **own,
            speedups=speedups,
            cuda_graphs=arguments.cuda_graphs,
            overlap=not arguments.no_overlap,
            iteration=iteration,
            anyway=arguments.anyway,
        )
    text = what_if_json(found) if arguments.format == "json" else what_if_text(found, screen_of(arguments.output))
    write(text, arguments.output)
    return 0


def _faster(text: str) -> tuple[str, float]:
    pattern, _, factor = text.rpartition("=")
    try:
        number = float(factor)
    except ValueError:
        number = 0.0
    if not pattern or not 0 < number < MOST_FASTER:
        raise SpecError("--faster", f"is '{text[:60]}', expected PATTERN=FACTOR with a factor above 0, such as gemm=2.")
    return pattern, number
