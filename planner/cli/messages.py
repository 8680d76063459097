"""Messages on stderr: notes and mistakes, with -v also log records, as text or JSON; and the progress line."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from shutil import get_terminal_size
from time import monotonic
from typing import Any, TextIO

from costmodel.errors import printable
from costmodel.events import LEVELS, NOTICE

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


class RunningLine:
    """
    The progress line: one line that is rewritten in a terminal, a line now and then in a log.

    Parameters
    ----------
    stream
        Stream to write to.
    clock
        Seconds that have passed since any moment.
    form
        Formats a line of a log; a terminal gets plain text.
    """

    LOG_SECONDS, TERMINAL_SECONDS = 30.0, 0.1

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float] = monotonic,
        form: Callable[[str], str] = plain_text,
    ) -> None:
        self._stream, self._clock, self._form = stream, clock, form
        self._is_terminal = stream.isatty() and form is plain_text
        self._due = clock() + (0.0 if self._is_terminal else PATIENCE_SECONDS)

    def show(self, text: str) -> None:
        """Write a line, if it is time for one."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + (self.TERMINAL_SECONDS if self._is_terminal else self.LOG_SECONDS)
        width = get_terminal_size().columns - 1
        self.write(f"\r\x1b[K{printable(f'planner: {text}')[:width]}" if self._is_terminal else self._form(text))

    def say(self, sentence: str) -> None:
        """Write a sentence on a line of its own."""
        self.clear()
        self.write(self._form(sentence))

    def clear(self) -> None:
        """Erase a line that is not complete."""
        if self._is_terminal:
            self._due = float("-inf")
            self.write("\r\x1b[K")

    def write(self, text: str) -> None:
        """Write text as it is; errors of a closed terminal are ignored."""
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


class Messages(logging.Handler):
    """
    Handler that prints log records on a stream.

    Parameters
    ----------
    stream
        Stream to write to.
    least
        Least level of the records that are printed.
    is_json
        True if each message is an object of JSON.
    """

    def __init__(self, stream: TextIO, *, least: int = NOTICE, is_json: bool = False) -> None:
        super().__init__(least)
        self._is_json, self._begin = is_json, monotonic()
        self._line = RunningLine(stream, form=json_text if is_json else plain_text)

    def show(self, text: str) -> None:
        """Show progress, if it is due; nothing if only mistakes are printed."""
        if self.level <= NOTICE:
            self._line.show(text)

    def clear(self) -> None:
        """Erase a line that is not complete."""
        if self.level <= NOTICE:
            self._line.clear()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record on a line of its own."""
        text, level, fields = record.getMessage(), record.levelno, fields_of(record)
        self.clear()
        if self._is_json:
            self._line.write(json_text(text, level, fields))
            return
        if level < NOTICE:
            said = "".join(f" {name}={short(value)}" for name, value in fields.items())
            text = f"{monotonic() - self._begin:.2f} s: {text}{said}"
        self._line.write(plain_text(text))


def short(value: Any) -> str:
    """Write the value of a field in few digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
