"""Where results go: a file or stdout, never over what was read; on stderr how long it takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import get_terminal_size
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from costmodel.errors import SpecError

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

PATIENCE_SECONDS = 1.0


def check_output(path: Path | None, inputs: Sequence[Path]) -> None:
    """Refuse a file that cannot be written before the work begins, and one that was read."""
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
    """Refuse to overwrite a file that nobody asked to overwrite."""
    if path is not None and path.exists() and not force:
        raise SpecError(str(path), "exists already.", "Name another file, or add --force.")


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """What the system says against writing a file, as wrong input."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(str(path)[:200], f"cannot be written: {reason}.") from None


def real(path: Path) -> Path:
    """Where a path leads; links that lead back to themselves stay as they are."""
    return Path(os.path.realpath(path))


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def write(text: str, path: Path | None) -> None:
    """Write to a file, or to stdout where there is none."""
    text = text if text.endswith("\n") else f"{text}\n"
    if path is None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return
    with file_errors(path):
        _write_file(text, real(path))


def write_model(model: CpModel, path: Path) -> None:
    """Write a model of CP-SAT, as text where the name ends with ``txt``; beside the file first, as other files."""
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
    """Write beside the file and rename, so that nobody ever finds half of it."""
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
    """Say on stderr what takes longer than a second: one line in a log, a running clock in a terminal."""
    done = Event()
    clock = Thread(target=_show_progress, args=(task, done), daemon=True)
    clock.start()
    try:
        yield
    finally:
        done.set()
        clock.join()


class RunningLine:
    """
    How far something is: one line that is written anew in a terminal, a line now and then in a log.

    Parameters
    ----------
    stream
        Where to.
    clock
        Seconds that have passed since any moment.
    """

    LOG_SECONDS = 30.0

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._is_terminal = stream.isatty()
        self._due = clock() + (0.0 if self._is_terminal else PATIENCE_SECONDS)

    def show(self, text: str) -> None:
        """Write a line, if it is time for one."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + (0.0 if self._is_terminal else self.LOG_SECONDS)
        width = get_terminal_size().columns - 1
        self._write(f"\r\x1b[K{f'planner: {text}'[:width]}" if self._is_terminal else f"planner: {text}\n")

    def say(self, sentence: str) -> None:
        """Write a sentence on a line of its own."""
        self.clear()
        self._write(f"planner: {sentence}\n")

    def clear(self) -> None:
        """Leave no line that is not whole."""
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        """A terminal that was closed is no reason to stop."""
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def _show_progress(task: str, done: Event) -> None:
    begin = monotonic()
    if done.wait(PATIENCE_SECONDS):
        return
    if not sys.stderr.isatty():
        print(f"planner: {task} ...", file=sys.stderr, flush=True)
        return
    while True:
        print(f"\rplanner: {task} ... {monotonic() - begin:.0f} s ", end="", file=sys.stderr, flush=True)
        if done.wait(PATIENCE_SECONDS):
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            return
