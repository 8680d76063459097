"""
Output of results to a file or a terminal, never over an input, and messages on stderr: notes, mistakes, progress.

With ``-v`` log records are messages, too; all of them are text or JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from shutil import get_terminal_size
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from costmodel.errors import SpecError, printable
from costmodel.events import LEVELS, NOTICE
from planner.report.section import PLAIN, Screen

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel


PATIENCE_SECONDS = 1.0
"""Seconds after which a command reports its progress."""

PACKAGES = ("planner", "costmodel", "constraints")
"""Packages whose log records become messages."""

LOG = logging.getLogger(__name__)


def note(text: str, **fields: Any) -> None:
    """Print a note besides the result."""
    say(text, NOTICE, **fields)


def complain(text: str, **fields: Any) -> None:
    """Print a mistake."""
    say(text, logging.ERROR, **fields)


def say(text: str, level: int, **fields: Any) -> None:
    """Log a message; file names in it may hold bytes that are no text."""
    LOG.log(level, "%s", text.encode("utf-8", "backslashreplace").decode(), extra={"fields": fields})


MESSAGE_OPTIONS = ("-v", "--verbose", "-q", "--quiet", "--log-json")


def add_message_options(parser: argparse.ArgumentParser) -> None:
    """Add the options on the amount and the form of messages, which stand anywhere in a command."""
    group = parser.add_argument_group("messages on stderr, of every command")
    either = group.add_mutually_exclusive_group()
    either.add_argument("-v", "--verbose", action="store_true", help="say what is done, and when")
    either.add_argument("-q", "--quiet", action="store_true", help="say nothing but mistakes")
    group.add_argument("--log-json", action="store_true", help="one JSON object a line: time, level, event, fields")


@contextmanager
def show_messages(argv: Sequence[str]) -> Iterator[None]:
    """Print log records as messages while a command runs, as its arguments ask."""
    is_json = "--log-json" in argv
    wanted = [level for word, level in _LEVEL_OF.items() if word in argv]
    handler = Messages(sys.stderr, least=wanted[0] if wanted else logging.INFO if is_json else NOTICE, is_json=is_json)
    loggers = [logging.getLogger(name) for name in PACKAGES]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


_LEVEL_OF = {"-q": logging.ERROR, "--quiet": logging.ERROR, "-v": logging.INFO, "--verbose": logging.INFO}


def current() -> Messages:
    """Return the handler of messages; by default one that writes to stderr."""
    handlers = logging.getLogger(PACKAGES[0]).handlers
    return next((one for one in handlers if isinstance(one, Messages)), None) or Messages(sys.stderr)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields of a log record: numbers and names."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def plain_text(text: str) -> str:
    """Format a message as a line of text."""
    return f"planner: {printable(text)}\n"


def json_text(text: str, level: int = logging.INFO, fields: Mapping[str, Any] | None = None) -> str:
    """Format a message as a line of JSON."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "level": LEVELS.get(level, "info"), "event": text, "fields": dict(fields or {})}
    return f"{json.dumps(entry, default=str)}\n"


class Messages(logging.Handler):
    """
    Handler that prints log records on a stream, and progress: one line in a terminal, a line now and then in a log.

    Parameters
    ----------
    stream
        Stream to write to.
    least
        Least level of the records that are printed.
    is_json
        True if each message is an object of JSON.
    clock
        Seconds that have passed since any moment.
    """

    LOG_SECONDS, TERMINAL_SECONDS = 30.0, 0.1

    def __init__(
        self, stream: TextIO, *, least: int = NOTICE, is_json: bool = False, clock: Callable[[], float] = monotonic
    ) -> None:
        super().__init__(least)
        self._stream, self._is_json, self._clock, self._begin = stream, is_json, clock, clock()
        self._is_terminal = stream.isatty() and not is_json
        self._due = self._begin + (0.0 if self._is_terminal else PATIENCE_SECONDS)

    def show(self, text: str) -> None:
        """Show progress, if it is due; nothing if only mistakes are printed."""
        if self.level > NOTICE or (now := self._clock()) < self._due:
            return
        self._due = now + (self.TERMINAL_SECONDS if self._is_terminal else self.LOG_SECONDS)
        if self._is_terminal:
            width = get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{printable(f'planner: {text}')[:width]}")
        else:
            self._write(json_text(text) if self._is_json else plain_text(text))

    def clear(self) -> None:
        """Erase a line that is not complete."""
        if self._is_terminal and self.level <= NOTICE:
            self._due = float("-inf")
            self._write("\r\x1b[K")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record on a line of its own."""
        text, level, fields = record.getMessage(), record.levelno, fields_of(record)
        self.clear()
        if self._is_json:
            self._write(json_text(text, level, fields))
            return
        if level < NOTICE:
            said = "".join(f" {name}={short(value)}" for name, value in fields.items())
            text = f"{self._clock() - self._begin:.2f} s: {text}{said}"
        self._write(plain_text(text))

    def _write(self, text: str) -> None:
        """Write text as it is; errors of a closed terminal are ignored."""
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def short(value: Any) -> str:
    """Write the value of a field in few digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


PHRASES = {
    "best_seconds": "best step {:,.3f} s",
    "gap": "at most {:.1%} above the optimum",
    "bound_seconds": "nothing below {:,.3f} s so far",
    "below_seconds": "is any step below {:,.3f} s?",
    "strategies": "{:,} strategies",
    "rows": "",
    "even_groups": "",
}
"""Phrases for the fields of a search on the progress line; an empty one hides its field, others show their names."""

TICK_SECONDS = 0.25
"""Seconds between two updates of the progress line."""


def check_output(path: Path | None, inputs: Sequence[Path]) -> None:
    """Refuse, before the work begins, a file that cannot be written or that is an input."""
    if path is None:
        return
    with file_errors(path):
        if path.is_dir():
            raise SpecError(str(path), "is a directory, expected a file to write to.")
        if not path.parent.is_dir():
            fix = "Make it, or name another file."
            raise SpecError(str(path), f"there is no folder '{path.parent}' to write to.", fix)
        if any(_same_file(path, source) for source in inputs):
            raise SpecError(str(path), "is what this command reads; it is not overwritten.", "Name another file.")


def require_new(path: Path | None, *, force: bool) -> None:
    """Refuse to overwrite a file without ``--force``."""
    if path is not None and path.exists() and not force:
        raise SpecError(str(path), "exists already.", "Name another file, or add --force.")


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn errors of writing a file into wrong input."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(str(path)[:200], f"cannot be written: {reason}.") from None


def real(path: Path) -> Path:
    """Resolve a path; links that lead back to themselves stay as they are."""
    return Path(os.path.realpath(path))


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def screen_of(path: Path | None) -> Screen:
    """Return the width and colours of the terminal, or of a file or pipe."""
    if path is not None:
        return PLAIN
    from rich.console import Console

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        return PLAIN
    has_color = console.color_system is not None and not console.no_color and not console.legacy_windows
    return Screen(width=get_terminal_size().columns, has_color=has_color)


def write(text: str, path: Path | None) -> None:
    """Write to a file, or to stdout where there is none."""
    text = text if text.endswith("\n") else f"{text}\n"
    if path is None:
        encoding = sys.stdout.encoding or "utf-8"
        with stdout_errors():
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return
    with file_errors(path):
        _write_file(text, real(path))


def write_model(model: CpModel, path: Path) -> None:
    """Write a model of CP-SAT, as text if the name ends with ``txt``; a draft next to it is renamed in the end."""
    whole = real(path)
    draft = whole.with_name(f".{os.getpid()}.{whole.name[-100:]}")
    with file_errors(path):
        try:
            if not model.export_to_file(str(draft)):
                raise OSError(None, "OR-Tools cannot write there")
            draft.replace(whole)
        finally:
            draft.unlink(missing_ok=True)


def _write_file(text: str, path: Path) -> None:
    """Write next to the file and rename, so that nobody ever reads half of it."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        return
    draft = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def progress(task: str) -> Iterator[None]:
    """Report tasks over a second on stderr: a line now and then in a log, a running clock in a terminal."""
    done, watch = Event(), Watch(task)
    loggers = [logging.getLogger(name) for name in PACKAGES]
    clock = Thread(target=_show_progress, args=(watch, current(), done), daemon=True)
    for logger in loggers:
        logger.addHandler(watch)
    clock.start()
    try:
        yield
    finally:
        done.set()
        clock.join()
        for logger in loggers:
            logger.removeHandler(watch)


def _show_progress(watch: Watch, messages: Messages, done: Event) -> None:
    if done.wait(PATIENCE_SECONDS):
        return
    messages.show(f"{watch.task} ...")
    while not done.wait(TICK_SECONDS):
        messages.show(watch.text())
    messages.clear()


class Watch(logging.Handler):
    """
    The current task of a command and the time that it may still take, from its log records.

    Records may have the fields ``done`` and ``total``, which count, and ``time_limit_seconds``, an upper bound.

    Parameters
    ----------
    task
        Description of the command's task.
    clock
        Seconds that have passed since any moment.
    """

    def __init__(self, task: str, *, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(logging.DEBUG)
        self.task, self._clock = task, clock
        self._begin = self._stage_begin = clock()
        self._limit: float | None = None
        self._doing, self._fields = "", dict[str, Any]()

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the last record."""
        if record.levelno >= NOTICE:
            return
        doing, fields = record.getMessage(), dict(fields_of(record))
        self._limit = fields.pop("time_limit_seconds", self._limit)
        if doing != self._doing:
            self._stage_begin = self._clock()
        self._doing, self._fields = doing, fields

    def text(self) -> str:
        """Return the task, its time so far, the time left, and its current stage."""
        now, fields = self._clock(), dict(self._fields)
        done, total = fields.pop("done", 0), fields.pop("total", 0)
        time = f"{now - self._begin:.0f} s"
        if self._limit is not None and (left := self._begin + self._limit - now) > 0:
            time += f", at most {left:.0f} s left"
        said = [f"{done:,} of {total:,}"] if total else []
        if 0 < done < total:
            said.append(f"{(now - self._stage_begin) * (total - done) / done:.0f} s left")
        said += [_phrase(name, value) for name, value in fields.items()]
        doing = ": ".join(filter(None, (self._doing, ", ".join(filter(None, said)))))
        return f"{time}; {doing} ({self.task})" if doing else f"{time}; {self.task}"


def _phrase(name: str, value: Any) -> str:
    """Word a field of a log record."""
    return PHRASES[name].format(value) if name in PHRASES else f"{name.replace('_', ' ')} {short(value)}"


# --- streams -----------------------------------------------------------------------------------------------


def open_streams() -> None:
    """
    Replace streams that were closed before the start: stdin is empty, stderr is lost, writing to stdout fails.

    The lowest comes first, since the system gives the lowest free number and no other file may get that of a stream.
    """
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open(encoding="utf-8")
    sys.stdout = sys.stdout or nothing.open(encoding="utf-8")  # to read, so that writing to it is an error
    sys.stderr = sys.stderr or nothing.open("w", encoding="utf-8")


@contextmanager
def stdout_errors() -> Iterator[None]:
    """Turn errors of writing to stdout into wrong input; a broken pipe stays as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        silence_stdout()
        problem = f"cannot be written: {error.strerror or 'it is closed'}."
        raise SpecError("standard output", problem, "Send it elsewhere, such as > FILE.") from None


def silence_stdout() -> None:
    """Keep the interpreter from complaining when it flushes to a closed stdout."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None
