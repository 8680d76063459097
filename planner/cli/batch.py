"""``planner batch``: many jobs, one result line each, and the ranking of results files."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

from costmodel.errors import SpecError
from planner.batch.choices import BACKENDS, LOCAL, METRICS, TOP_FORMATS
from planner.cli.arguments import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    count,
    describe,
    seconds,
)
from planner.cli.output import check_output, current, note, real, screen_of, write
from planner.report.section import ENDLESS, PLAIN

EXIT_CODES = """exit codes:
  0  every job has a plan; of a ranking: some job has one
  1  some jobs have none: infeasible, wrong input, too slow, or their worker died; their lines say which; of a ranking:
     no job has one
  2  wrong input: nothing was planned, or results could not be written
  130  interrupted; the same command goes on with the rest
  143  ended by SIGTERM; the same command goes on with the rest
"""

RESULTS = ".jsonl"

PLANNING: Mapping[str, object] = {
    **dict.fromkeys(("overrides", "processes", "timeout", "scheduler")),
    **dict.fromkeys(("full", "retry_failed"), False),
    "backend": LOCAL,
    "assignments": [],
}
"""Options of jobs that are planned, with their defaults."""


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Plans many jobs in worker processes and appends one line of JSON per job as it finishes. The same "
        "command goes on where it was stopped: jobs whose line is there are not planned again. Given "
        "results files (.jsonl) alone, it prints a ranking of their jobs, each by its best plan."
    )
    describe(parser, description, EXIT_CODES)
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="+", help="job files, and folders that hold job files; or results files"
    )
    parser.add_argument(
        "--overrides", metavar="CSV", help="one variant per row: columns are dotted keys, and optionally 'name'"
    )
    help_text = "results file (JSON lines); with results files as sources: file of the ranking, instead of stdout"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=help_text)
    parser.add_argument("--table", metavar="FILE", type=Path, help="all results as .parquet or .csv, too")
    parser.add_argument("--full", action="store_true", help="each line also holds the whole JSON report")
    parser.add_argument(
        "--processes",
        metavar="N",
        type=count("--processes", least=0),
        help="jobs at once (default: cores, or what a cluster has)",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=seconds("--timeout"), help="time, such as 90 or 5min, until a worker is stopped"
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="plan jobs again that timed out, failed or lost their worker"
    )
    parser.add_argument("--backend", choices=BACKENDS, default=LOCAL, help="who runs the workers (default: local)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="address of an existing Dask or Ray cluster")
    ranking = parser.add_argument_group("a ranking")
    ranking.add_argument("--by", choices=tuple(METRICS), help="what to rank by (default: step_time)")
    ranking.add_argument("--top", metavar="K", type=count("--top"), help="how many jobs (default: 10)")
    ranking.add_argument("--format", choices=TOP_FORMATS, help="output format (default: table)")
    parser.set_defaults(assignments=[])


def run_batch(arguments: argparse.Namespace) -> int:
    """Plan the jobs, and note the number of plans and failures; or rank results."""
    sources = [source for source in arguments.sources if source.endswith(RESULTS)]
    if sources and len(sources) == len(arguments.sources):
        return _rank(arguments, [Path(source) for source in sources])
    if sources:
        raise SpecError(
            sources[0], "is a results file; the other sources are jobs.", "Rank it alone: planner batch RESULTS.jsonl."
        )
    for name in ("by", "top", "format"):
        if getattr(arguments, name) is not None:
            raise SpecError(
                f"--{name}",
                "is an option of a ranking, and the sources are jobs.",
                f"Write: planner batch FILE{RESULTS} --{name}.",
            )
    if arguments.output is None:
        raise SpecError("-o", "is needed: the results file.", "Such as: -o results.jsonl.")
    return _plan(arguments)


def _plan(arguments: argparse.Namespace) -> int:
    """Plan the jobs."""
    from planner.batch import run
    from planner.batch.jobs import JobSet
    from planner.batch.results import ResultsFile, read_results, require_writable, write_table
    from planner.batch.run import progress_text, reasons_text, summary_text

    sources, assignments = _split_arguments([*arguments.sources, *arguments.assignments])
    jobs = JobSet(sources, rows=arguments.overrides, assignments=assignments)
    inputs = [*jobs.files, *([jobs.rows] if jobs.rows else [])]
    _require_other(arguments.output, inputs)
    if arguments.table:
        _require_other(arguments.table, [*inputs, arguments.output])
        require_writable(arguments.table)
    line, begin = current(), monotonic()
    tally = run.Tally(num_jobs=len(jobs))
    plan = partial(
        run.plan_many,
        processes=arguments.processes,
        backend=arguments.backend,
        scheduler=arguments.scheduler,
        timeout_seconds=arguments.timeout,
        full=arguments.full,
    )
    with ResultsFile(arguments.output, retry_lost=arguments.retry_failed, notify=note) as results:
        try:
            with _terminable(), closing(run.run_batch(jobs, results, tally=tally, plan=plan)) as steps:
                for _ in steps:
                    line.show(progress_text(tally, monotonic() - begin))
        except KeyboardInterrupt as stop:
            note(f"interrupted: {summary_text(tally)}. The same command goes on with the rest.")
            return stop.args[0] if stop.args else EXIT_INTERRUPTED
    if arguments.table:
        write_table(lambda: read_results(arguments.output), arguments.table)
    note(f"{arguments.output}: {summary_text(tally)}.")
    if tally.num_without_plan:
        note(reasons_text(tally, str(arguments.output)))
    return 1 if tally.num_without_plan else 0


@contextmanager
def _terminable() -> Iterator[None]:
    """
    Let SIGTERM end a batch as Ctrl-C does, workers first; a process that just dies leaks their semaphores.

    A second SIGTERM ends the process at once. Only the main thread can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _split_arguments(words: list[str]) -> tuple[list[str], list[str]]:
    """Split words into sources and ``key=value``; a file whose name has ``=`` is a source."""
    from planner.jobs.cluster import exists

    sources = [word for word in words if "=" not in word or exists(Path(word))]
    return sources, [word for word in words if word not in sources]


def _require_other(path: Path, inputs: list[Path]) -> None:
    if real(path) in set(map(real, inputs)):
        problem = "is what this command reads or writes already; it is not overwritten."
        raise SpecError(str(path), problem, "Name another file.")


# --- ranking -----------------------------------------------------------------------------------------------


def _rank(arguments: argparse.Namespace, paths: list[Path]) -> int:
    """Read the results and print the ranking."""
    from planner.batch.results import read_results, write_table
    from planner.batch.top import render_top, top

    for name, default in PLANNING.items():
        if getattr(arguments, name) != default:
            raise SpecError(f"--{name.replace('_', '-')}", "is for jobs to plan; a ranking has none.", "Leave it out.")
    for path in (arguments.output, arguments.table):
        check_output(path, paths)

    def lines() -> Iterator[Mapping[str, Any]]:
        return chain.from_iterable(read_results(path, notify=note) for path in paths)

    by = arguments.by or "step_time"
    ranked = top(lines(), by=by, count=arguments.top or 10)
    screen = screen_of(arguments.output)
    screen = ENDLESS if screen is PLAIN else screen
    write(render_top(ranked, arguments.format or "table", by, screen), arguments.output)
    if arguments.table:
        write_table(lines, arguments.table)
    return 0 if ranked else 1
