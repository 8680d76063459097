"""Options that several commands take, and exit codes that several end with."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from planner.cli.output import MESSAGE_OPTIONS, check_output, progress, screen_of, write
from planner.report.section import Asked

if TYPE_CHECKING:
    from planner.jobs.document import Document, Place
    from planner.jobs.problem import Problem
    from planner.jobs.strategy_file import StrategyFile
    from planner.report.records.reports import AnyReport

STDIN = "standard input"
"""The name of stdin in messages."""

EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143
EXIT_CODES: Mapping[int, str] = {
    0: "a plan was found and proven optimal; of other commands: what they were asked for is printed or written",
    1: "infeasible: no strategy satisfies all rules; study: at any point; batch: jobs have no plan (a ranking: all of "
    "them); advise: nothing meets the wish; calibrate: a device was written, but rows were refused or nothing was "
    "learned of some operators; sample: nothing could be measured; trace: a replay is not usable, or most of a "
    "trace is unknown or of another job",
    EXIT_WRONG_INPUT: "wrong input; batch: results could not be written",
    3: "the time limit came before the proof",
    4: "calibrate: too few or contradictory runs, nothing was fitted (the order of planned runs is printed); sample: "
    "another process failed",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
    EXIT_BROKEN_PIPE: "whoever read the output closed it",
    EXIT_TERMINATED: "batch: ended by SIGTERM, its workers before it",
}
"""The meaning of each exit code, of all commands; each command's own help is about it alone."""


def write_exit_codes() -> str:
    """Write the exit codes of all commands, folded for a terminal."""
    below = " " * len("  000  ")
    lines = (fill(said, initial_indent=f"  {code:<5}", subsequent_indent=below) for code, said in EXIT_CODES.items())
    return "\n".join(("exit codes:", *lines, ""))


COMPARISON_FORMATS = ("table", "json", "markdown", "csv", "html")
TEXT_FORMATS = ("table", "json")


LONGEST_COMMAND = 14
"""Columns of a command's name and its indent, which argparse does not count."""


class Help(argparse.HelpFormatter):
    """Help as wide as the terminal; exit codes keep a line each."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = LONGEST_COMMAND

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("exit codes:") else super()._fill_text(text, width, indent)


def describe(parser: argparse.ArgumentParser, description: str, exit_codes: str = "") -> None:
    """Set a command's description, and its exit codes if it has others than 0 and 2."""
    parser.description = description
    parser.epilog = exit_codes or None


def add_job(parser: argparse.ArgumentParser, assignments_help: str = "") -> None:
    """Add the job, as a file or in one line, and ``key=value``, whose help is ``assignments_help`` if given."""
    decisions = "a word of a line such as TP8 or recompute=full, or a job entry such as training.sequence_length=8192"
    parser.add_argument("job", metavar="JOB.yaml|-", help="the job file; -: standard input")
    parser.add_argument("assignments", metavar="WORD|key=value", nargs="*", help=assignments_help or decisions)
    add_one_line(parser)
    parser.set_defaults(takes_line=True)
    parser.usage = (
        f"{parser.prog} [options] JOB.yaml|- [WORD|key=value ...]\n"
        f"       {parser.prog} [options] MODEL CLUSTER --batch N --sequence N --tokens N [WORD|key=value ...]"
    )


def add_one_line(parser: argparse.ArgumentParser) -> None:
    """Add the options that a job in one line needs besides a model and a cluster."""
    group = parser.add_argument_group(
        "a job in one line",
        "MODEL: a name of 'planner catalog models' or on the Hugging Face hub, or the path of a config.json. CLUSTER: "
        "devices and device such as 512xh100, or nodes, devices of each and device: 64x8xh100.",
    )
    group.add_argument("--batch", metavar="N", help="sequences per optimizer step, such as 1024 or 1k (1,000)")
    group.add_argument("--sequence", metavar="N", help="tokens per sequence, such as 8192 or 8k (8,192)")
    group.add_argument("--tokens", metavar="N", help="tokens of the whole training, such as 15T")
    parser.set_defaults(takes_words=True)


def add_time_limit(parser: argparse.ArgumentParser, until: str) -> None:
    """Add the time limit of a search."""
    help_text = f"time, such as 90 or 5min, until {until}"
    parser.add_argument("--time-limit", metavar="S", type=seconds("--time-limit"), help=help_text)


def seconds(option: str) -> Callable[[str], float]:
    """Return the reader of an option in seconds, such as ``90``, ``5min`` or ``2h``."""

    def read(text: str) -> float:
        from costmodel.quantities import SECONDS, finite

        found = finite(text, SECONDS, option)
        if found <= 0:
            raise SpecError(option, f"must be more than 0, got {text}.", "Such as 90 or 5min.")
        return found

    return read


def count(option: str, *, least: int = 1) -> Callable[[str], int]:
    """Return the reader of an option that counts, such as ``512`` or ``20k``."""

    def read(text: str) -> int:
        from dataclasses import replace

        from costmodel.quantities import COUNT, whole

        return whole(text, replace(COUNT, example="8"), option, least=least)

    return read


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    """Add a format, by default the first one, and an output file."""
    help_text = f"output format (default: {formats[0]})"
    parser.add_argument("--format", choices=formats, default=formats[0], help=help_text)
    add_output_file(parser)


def add_output_file(parser: argparse.ArgumentParser) -> None:
    """Add the file that is written instead of stdout."""
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to a file instead of stdout")


def add_force(parser: argparse.ArgumentParser, what: str = "the output file") -> None:
    """Add ``--force``, which overwrites existing files."""
    parser.add_argument("--force", action="store_true", help=f"overwrite {what}")


def all_overrides(overrides: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """Return all overrides of a job, including its time limit."""
    limit = getattr(arguments, "time_limit", None)
    return [*overrides, *([] if limit is None else [f"search.time_limit_seconds={limit!r}"])]


def read_job(arguments: argparse.Namespace, assignments: Sequence[str]) -> tuple[Document, list[str]]:
    """
    Read the job that the command line names, and the overrides of its entries.

    Parameters
    ----------
    arguments
        Arguments with the options of :func:`add_job`.
    assignments
        ``key=value``, and a cluster where the job is one line.
    """
    from planner.jobs.document import read_document
    from planner.jobs.entries import OPTIONS
    from planner.jobs.line import is_line, unknown_word

    is_file = arguments.job == "-" or arguments.job.endswith((".yaml", ".yml"))
    words = [word for word in assignments if "=" not in word and not is_line(word) and not is_file]
    overrides = [word for word in assignments if word not in words]
    numbers = {option: text for option in OPTIONS if (text := getattr(arguments, option)) is not None}
    if words:
        from planner.jobs.one_line import CLUSTER, one_line

        if len(words) > 1:
            for word in words:
                if not CLUSTER.fullmatch(word):
                    raise unknown_word(word)
            raise SpecError(words[1], "one cluster was given already.", "An entry is changed by key=value.")
        return one_line(arguments.job, words[0], numbers), overrides
    overrides = [*(f"{OPTIONS[option]}={text}" for option, text in numbers.items()), *overrides]
    if arguments.job == "-":
        return _read_stdin(), overrides
    document = None if os.path.isdir(arguments.job) else _read_json_job(Path(arguments.job))
    if document is None:
        _require_job_file(arguments.job)
        document = read_document(Path(arguments.job))
    return document, overrides


def load_pinned(arguments: argparse.Namespace) -> Problem:
    """
    Load the job that the command line names, with the decisions of its words pinned.

    The arguments then hold entries in place of these words, for the next commands: words of ``planner explain`` are
    a strategy to compare.
    """
    from planner.jobs.line import PIN, pin_words, read_words, require_parts
    from planner.jobs.problem import load, split_overrides

    document, assignments = read_job(arguments, arguments.assignments)
    overrides, words = split_overrides(assignments)
    pins = pin_words(words, overrides)
    problem = load(document, all_overrides([*overrides, *pins], arguments))
    require_parts(problem.facts.model, read_words(words), PIN)
    others = [one for one in arguments.assignments if one not in assignments or not split_overrides([one])[1]]
    arguments.assignments = [*others, *pins]
    return problem


def _read_json_job(path: Path) -> Document | None:
    """Return the job of a JSON file; None where it holds none, such as a model's ``config.json``; refuse a report."""
    from planner.jobs.document import read_document, refuse_report

    if path.suffix.lower() != ".json" or not path.exists():
        return None
    try:
        document = read_document(path)
    except SpecError:
        return None
    refuse_report(document.entries, path, "job")
    return document if "cluster" in document.entries else None


def _read_stdin() -> Document:
    from planner.jobs.document import Document, decode_file, mapping_of

    places: dict[str, Place] = {}
    text = decode_file(sys.stdin.buffer, STDIN)
    return Document(entries=mapping_of(text, STDIN, places=places), places=places)


def _require_job_file(name: str) -> None:
    """Refuse a model without a cluster."""
    path = Path(name)
    if path.suffix.lower() == ".json" or os.path.isdir(name) or not (path.suffix or os.path.exists(name)):
        from planner.jobs.one_line import CLUSTER

        model = "llama3-70b" if CLUSTER.fullmatch(name) else name
        fix = f"such as: {model} 512xh100 --batch 1024 --sequence 8k --tokens 15T."
        raise SpecError(name, "is no job file.", f"After a model a cluster and three numbers are needed, {fix}")


def report_text(report: AnyReport, arguments: argparse.Namespace) -> str:
    """Format a report as the command line asks, for its file or the terminal."""
    from planner.report import render

    return render(report, arguments.format, screen=screen_of(arguments.output), asked=read_asked(arguments))


def read_asked(arguments: argparse.Namespace) -> Asked:
    """Return the command line without its options on output, so that the next commands can be made from it."""
    from planner.jobs.entries import OPTIONS as ONE_LINE

    of_job = [arguments.job, *arguments.assignments]
    for option in ONE_LINE:
        of_job += [f"--{option}", text] if (text := getattr(arguments, option)) is not None else []
    waiting, command = iter(arguments.words), ["planner"]
    for word in waiting:
        if word in OUTPUT_OPTIONS:
            next(waiting, None)
        elif word not in MESSAGE_OPTIONS and word.partition("=")[0] not in OUTPUT_OPTIONS:
            command.append(word)
    return Asked(command=shlex.join(command), job=shlex.join(of_job))


OUTPUT_OPTIONS = ("--format", "-o", "--output", "--write-model")
"""Options on the place and the form of the output, each with a value."""


def report_on_job(
    arguments: argparse.Namespace, doing: str, report_of: Callable[[Problem, StrategyFile], AnyReport]
) -> int:
    """Print the report on the job and its decisions, and return the report's exit code."""
    with progress(f"{doing} {arguments.job}"):
        from planner.jobs.line import read_asked
        from planner.jobs.problem import load, split_overrides

        document, assignments = read_job(arguments, arguments.assignments)
        overrides, decisions = split_overrides(assignments)
        problem = load(document, all_overrides(overrides, arguments))
        asked = read_asked(decisions, overrides)
        check_output(arguments.output, problem.sources)
        report = report_of(problem, asked)
        text = report_text(report, arguments)
    write(text, arguments.output)
    return int(report.exit_code)
