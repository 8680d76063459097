"""``planner trace``: reads, replays and changes profiler traces, and compares them with the planner's figures."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from planner.cli.arguments import TEXT_FORMATS, add_force, add_output, describe
from planner.cli.output import check_output, current, progress, require_new, screen_of, write

if TYPE_CHECKING:
    from planner.measure.traces.events import Trace

MOST_DIGITS = 9


def iteration_number(text: str | None) -> int | None:
    """
    Read ``--iteration``, where it is given.

    Raises
    ------
    SpecError
        If it is no whole number from 0.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        raise SpecError("--iteration", f"expected a whole number from 0, got '{text[:40]}'.")
    return int(text)


def traces_of(paths: Sequence[Path]) -> tuple[Trace, ...]:
    """Read traces, with a progress line."""
    from planner.measure.traces.reading import read_traces

    line = current()
    what = files_text(paths)
    traces = read_traces(paths, progress=lambda fraction: line.show(f"reading {what}: {fraction:.0%}"))
    line.clear()
    return traces


def files_text(paths: Sequence[Path]) -> str:
    """Return the name of the only file, or the number of files."""
    return paths[0].name if len(paths) == 1 else f"{len(paths)} traces"


# --- planner trace read ---
READ_EXIT_CODES = """exit codes:
  0  the traces were read
  2  wrong input: not there, another format, no events, ranks of different runs
"""

NUM_KERNELS = 10


def add_read_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner trace read``."""
    describe(
        parser,
        "Says what traces of PyTorch's profiler hold (.json or .json.gz, one of each rank), what is missing for a "
        "replay or a prediction, and how to record it.",
        READ_EXIT_CODES,
    )
    parser.add_argument("traces", metavar="TRACE", nargs="+", type=Path, help="files of one run, one of each rank")
    add_output(parser, TEXT_FORMATS)


def run_read(arguments: argparse.Namespace) -> int:
    """Read the traces and print their contents."""
    check_output(arguments.output, arguments.traces)
    from planner.measure.traces.report.contents import contents, contents_json, contents_text

    found = [contents(trace, num_kernels=NUM_KERNELS) for trace in traces_of(arguments.traces)]
    text = contents_json(found) if arguments.format == "json" else contents_text(found, screen_of(arguments.output))
    write(text, arguments.output)
    return 0


# --- planner trace replay ---
REPLAY_FORMATS = ("table", "json", "html", "perfetto")

REPLAY_EXIT_CODES = """exit codes:
  0  the iteration was replayed
  1  the same, but the replay is more than 5 % off what was recorded: it is not usable
  2  wrong input: not there, another format, no events, no such iteration, ranks of different runs
"""
EXIT_NOT_USABLE = 1


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner trace replay``."""
    describe(
        parser,
        "Replays an iteration of a trace of PyTorch's profiler and compares it with the measured one: iteration time, "
        "what it goes into, streams, the critical path with its kernels. The format html is a page with time lines, "
        "perfetto a trace of measured and replayed tasks side by side, for Perfetto.",
        REPLAY_EXIT_CODES,
    )
    parser.add_argument("traces", metavar="TRACE", nargs="+", type=Path, help="files of one run, one of each rank")
    parser.add_argument(
        "--iteration", metavar="N", help="which, from 0 (default: the last one that another follows, else the last)"
    )
    add_output(parser, REPLAY_FORMATS)


def run_replay(arguments: argparse.Namespace) -> int:
    """Read, replay, print."""
    number = iteration_number(arguments.iteration)
    if arguments.format == "perfetto" and arguments.output is None:
        raise SpecError("--format perfetto", "is a file.", "Name it: -o side-by-side.json.gz.")
    check_output(arguments.output, arguments.traces)
    from planner.measure.traces.report.replay import replay_report

    traces = traces_of(arguments.traces)
    with progress(f"replaying {files_text(arguments.traces)}"):
        report = replay_report(traces, number)
        match arguments.format:
            case "perfetto":
                from planner.measure.traces.report.page import side_by_side
                from planner.measure.traces.writing import write_trace

                write_trace(side_by_side(report), arguments.output)
                return 0 if report.usable else EXIT_NOT_USABLE
            case "json":
                from planner.measure.traces.report.replay import replay_json

                text = replay_json(report)
            case "html":
                from planner.measure.traces.report.page import replay_page

                text = replay_page(report)
            case _:
                from planner.measure.traces.report.replay import replay_text

                text = replay_text(report, screen_of(arguments.output))
    write(text, arguments.output)
    return 0 if report.usable else EXIT_NOT_USABLE


# --- planner trace extract ---
EXTRACT_EXIT_CODES = """exit codes:
  0  a table of samples was written
  1  the same, but most of the recorded computation is of no operator that the planner samples
  2  wrong input: nothing was written
"""
EXIT_MOSTLY_UNKNOWN = 1


def add_extract_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner trace extract``."""
    description = (
        "Turns profiler traces of training steps into the table of samples that 'planner sample' writes: each "
        "operator, pass and size with the median of its times. Says what could not be converted, and why. A device "
        "file of traces: 'planner calibrate'."
    )
    describe(parser, description, EXTRACT_EXIT_CODES)
    parser.add_argument("traces", metavar="TRACE", type=Path, nargs="+", help="traces of ranks, of one run or several")
    parser.add_argument("--job", metavar="JOB.yaml", type=Path, help="the job, whose missing operators are named")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="table of samples to write (CSV or Parquet)"
    )
    add_force(parser)


def run_extract(arguments: argparse.Namespace) -> int:
    """Extract, and write the table."""
    check_output(arguments.output, [*arguments.traces, *([arguments.job] if arguments.job else [])])
    require_new(arguments.output, force=arguments.force)
    with progress(f"reading {len(arguments.traces)} traces"):
        from planner.jobs.problem import load
        from planner.measure.traces.reading import read_recordings
        from planner.measure.traces.report.extraction import (
            extract_samples,
            host_times,
            missing_operators,
            write_extraction_text,
            write_samples,
        )

        traces = read_recordings(arguments.traces)
        problem = load(arguments.job) if arguments.job else None
        found = extract_samples(traces, problem)
        hosts = host_times(traces, found.by_trace)
        missing = missing_operators(problem, found) if problem else None
    write_samples(found, arguments.output)
    write(write_extraction_text(found, str(arguments.output), hosts=hosts, missing=missing), None)
    return 0 if 2 * found.known_fraction > 1 else EXIT_MOSTLY_UNKNOWN


# --- planner trace compare ---
COMPARE_EXIT_CODES = """exit codes:
  0  both steps were laid side by side
  1  the same, but the trace is of another job, so the difference says nothing
  2  wrong input: no strategy, no whole iteration, a rank that is on no stage of the job
"""


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner trace compare``."""
    describe(
        parser,
        "Compares the planner's step of a job with the traced one, part by part: computation by kind of "
        "operator, communication by group of ranks, host and idle. Both are means over the ranks that traces are given "
        "of, the planner's of the pipeline stages of these ranks. The parts of each sum to its step.",
        COMPARE_EXIT_CODES,
    )
    parser.add_argument("job", metavar="JOB.yaml", type=Path, help="the job file, with the strategy that was traced")
    parser.add_argument(
        "traces",
        metavar="TRACE",
        type=Path,
        nargs="+",
        help="traces of its ranks: of a pipeline one rank of each stage, or those that matter",
    )
    add_output(parser, TEXT_FORMATS)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    check_output(arguments.output, [arguments.job, *arguments.traces])
    with progress(f"reading {len(arguments.traces)} traces"):
        from planner.jobs.problem import load
        from planner.measure.traces.reading import read_traces
        from planner.measure.traces.report.compare import (
            compare_with_traces,
            write_comparison_json,
            write_comparison_text,
        )

        found = compare_with_traces(load(arguments.job), read_traces(arguments.traces))
    screen = screen_of(arguments.output)
    text = write_comparison_json(found) if arguments.format == "json" else write_comparison_text(found, screen)
    write(text, arguments.output)
    return EXIT_MOSTLY_UNKNOWN if found.is_other_job else 0


# --- planner trace what-if ---
WHAT_IF_EXIT_CODES = """exit codes:
  0  the changed step was replayed
  2  wrong input, or the traces do not show what the change needs, or their replay is not usable (see --anyway)
"""

MOST_FASTER = 1e6


def add_what_if_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner trace what-if``."""
    describe(
        parser,
        "Changes a recorded step and replays it: layers=48 or microbatches=16 by the traces alone; with --job, the job "
        "that was recorded, also tp, pp, dp, vpp, mbs, schedule, the model's sizes, training.sequence_length, "
        "training.global_batch_size and cluster.num_devices. Any other difference of the job is refused.",
        WHAT_IF_EXIT_CODES,
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


def run_what_if(arguments: argparse.Namespace) -> int:
    """Change, replay, print."""
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
        raise SpecError("traces", "there is no file among what was given, only changes.", "Name the traces first.")
    if arguments.job is None:
        require_job(others)
    speedups = [_faster(text) for text in arguments.faster]
    iteration = iteration_number(arguments.iteration)
    paths = [Path(file) for file in files]
    check_output(arguments.output, paths)
    traces = traces_of(paths)
    with progress(f"replaying {files_text(paths)}"):
        jobs = read_changed_jobs(arguments.job, others) if arguments.job else None
        found, layouts = what_if(
            traces,
            jobs,
            **own,
            speedups=speedups,
            cuda_graphs=arguments.cuda_graphs,
            overlap=not arguments.no_overlap,
            iteration=iteration,
            anyway=arguments.anyway,
        )
    as_json, screen = arguments.format == "json", screen_of(arguments.output)
    write(what_if_json(found) if as_json else what_if_text(found, layouts, screen), arguments.output)
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


# --- planner trace project ---
def add_project_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner trace project``."""
    description = (
        "Predicts a job from runs of it with fewer layers, pipeline ranks, experts' ranks or replicas: what they "
        "measured is used, what they have not comes from the model, and the interval says how much of the step was "
        "measured. Runs are a table or a YAML file, runs: [{job: ..., strategy: ..., step_seconds: ...}], each with "
        "its differences from the job (docs/guides/traces.md, section 6); 'planner calibrate' "
        "--job writes the device that follows from them."
    )
    describe(parser, description)
    small_help = "small runs; decisions of the job such as tp=8 may follow"
    parser.add_argument("small", metavar="SMALL.yaml", nargs="+", help=small_help)
    parser.add_argument("--job", metavar="JOB.yaml", type=Path, required=True, help="the whole job, with its strategy")
    add_output(parser, TEXT_FORMATS)
    parser.set_defaults(assignments=[])


def run_project(arguments: argparse.Namespace) -> int:
    """Project and print."""
    from planner.jobs.line import is_line

    assignments = [*(word for word in arguments.small if "=" in word or is_line(word)), *arguments.assignments]
    paths = [Path(word) for word in arguments.small if "=" not in word and not is_line(word)]
    if not paths:
        raise SpecError("small runs", "no file is named.", "planner trace project small-run.yaml --job job.yaml.")
    with progress(f"projecting {arguments.job}"):
        from planner.jobs.line import read_asked
        from planner.jobs.problem import load, split_overrides
        from planner.measure.project.projected import project, projection_json, projection_text
        from planner.measure.project.small_runs import small_runs

        overrides, decisions = split_overrides(assignments)
        problem = load(arguments.job, overrides)
        check_output(arguments.output, (*problem.sources, *paths))
        found = project(problem, read_asked(decisions, overrides), small_runs(paths, problem))
    write({"table": projection_text, "json": projection_json}[arguments.format](found), arguments.output)
    return 0


COMMANDS: Mapping[str, tuple[Callable[..., None], Callable[..., int], str]] = {
    "read": (add_read_options, run_read, "what traces hold, what they lack, and how to record it"),
    "replay": (
        add_replay_options,
        run_replay,
        "replay of an iteration, compared with the measured one: breakdown, critical path",
    ),
    "extract": (add_extract_options, run_extract, "samples of operators from traces"),
    "compare": (
        add_compare_options,
        run_compare,
        "the planner's step of a job compared with the recorded one, part by part",
    ),
    "what-if": (add_what_if_options, run_what_if, "a recorded step after a change of the job"),
    "project": (add_project_options, run_project, "a whole job predicted from runs of it on one node"),
}
"""Functions that add the options of each command and run it, and its help."""


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands on traces with their options."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (add_options, run, what) in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        add_options(command)
        command.set_defaults(run_command=run)


def run_trace(arguments: argparse.Namespace) -> int:
    """Run the command that was named."""
    code: int = arguments.run_command(arguments)
    return code
