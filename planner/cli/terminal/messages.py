"""What is said on stderr: notes and mistakes, with -v also what is done, as text or as JSON; and a running line."""

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
"""After which a command says that it is at work."""

PACKAGES = ("planner", "costmodel", "constraints")
"""Whose loggers are listened to."""

LOG = logging.getLogger(__name__)


def note(text: str, **fields: Any) -> None:
    """Say what one should know besides the result."""
    say(text, NOTICE, **fields)


def complain(text: str, **fields: Any) -> None:
    """Say what is wrong."""
    say(text, logging.ERROR, **fields)


def say(text: str, level: int, **fields: Any) -> None:
    """Log a message, whatever the names of files in it are made of."""
    LOG.log(level, "%s", text.encode("utf-8", "backslashreplace").decode(), extra={"fields": fields})


def add_message_options(parser: argparse.ArgumentParser) -> None:
    """Take how much is said, and how."""
    group = parser.add_argument_group("messages on stderr")
    either = group.add_mutually_exclusive_group()
    either.add_argument("-v", "--verbose", action="store_true", help="say what is done, and when")
    either.add_argument("-q", "--quiet", action="store_true", help="say nothing but mistakes")
    group.add_argument("--log-json", action="store_true", help="one JSON object a line: time, level, event, fields")


@contextmanager
def messages(argv: Sequence[str]) -> Iterator[None]:
    """Listen to what is logged while a command runs, as its arguments want it."""
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
    """Where messages go; to stderr where nobody said anything."""
    handlers = logging.getLogger(PACKAGES[0]).handlers
    return next((one for one in handlers if isinstance(one, Messages)), None) or Messages(sys.stderr)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """What a record says in numbers and names."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def plain_text(text: str) -> str:
    """A message on a line of its own."""
    return f"planner: {printable(text)}\n"


def json_text(text: str, level: int = logging.INFO, fields: Mapping[str, Any] | None = None) -> str:
    """A message as JSON."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "level": LEVELS.get(level, "info"), "event": text, "fields": dict(fields or {})}
    return f"{json.dumps(entry, default=str)}\n"


class RunningLine:
    """
    How far something is: one line that is written anew in a terminal, a line now and then in a log.

    Parameters
    ----------
    stream
        Where to.
    clock
        Seconds that have passed since any moment.
    form
        How a line of a log is written; a terminal gets text alone.
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
        """Leave no line that is not whole."""
        if self._is_terminal:
            self._due = float("-inf")
            self.write("\r\x1b[K")

    def write(self, text: str) -> None:
        """Write as it is; a terminal that was closed is no reason to stop."""
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


class Messages(logging.Handler):
    """
    Writes what is logged.

    Parameters
    ----------
    stream
        Where to.
    least
        Level from which on something is said.
    is_json
        Whether each message is an object of JSON.
    """

    def __init__(self, stream: TextIO, *, least: int = NOTICE, is_json: bool = False) -> None:
        super().__init__(least)
        self._is_json, self._begin = is_json, monotonic()
        self._line = RunningLine(stream, form=json_text if is_json else plain_text)

    def show(self, text: str) -> None:
        """How far something is, if it is time to say so; nothing where only mistakes are said."""
        if self.level <= NOTICE:
            self._line.show(text)

    def clear(self) -> None:
        """Leave no line that is not whole."""
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
    """A value of a field in few digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
