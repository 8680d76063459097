"""Streams of the process that are closed, full, or without a reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from costmodel.errors import SpecError


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
