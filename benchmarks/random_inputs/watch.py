"""A process that runs commands one after the other, and what watches it: time, tracebacks, and what they may not do."""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.random_inputs.trials import OUTPUT, Trial, trial_of
from benchmarks.random_inputs.values import CANARY

SECONDS = 20.0
"""Limit of an input's processor time, which other programs on the machine do not lengthen."""

HANGING_SECONDS = 180.0
"""After which an input waits for something, however busy the machine is."""

LOOK_SECONDS = 0.5
"""Between two looks at a process that has not answered."""

MEMORY_BYTES = 12 * 2**30
"""Address space of a process; beyond it Python raises MemoryError, which is a traceback."""

MOST_TRIALS = 1000
"""Inputs of one process, so that what caches keep stays small."""

EXIT_CODES = range(5)

EXECUTED = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.", "socket.connect")
CHANGES = "remove rename rmdir mkdir truncate chmod link symlink"
CHANGED = tuple(f"os.{verb}" for verb in CHANGES.split())
"""Names with which audit events begin (PEP 578) that reading an input never raises."""

STARTS_PROCESSES = ("overrides",)
"""Kinds whose commands start workers."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """
    Outcome of an input.

    Parameters
    ----------
    number, kind
        Number and kind of the input.
    exit_code
        Exit code of the command; None: it had none.
    seconds
        Seconds of processor time that it took.
    complaint
        Fault of the planner; empty: none.
    """

    number: int
    kind: str
    exit_code: int | None
    seconds: float
    complaint: str = ""


# --- inside the process ----------------------------------------------------------------------------------------


class Audit:
    """Notes what a command does to others than itself."""

    def __init__(self) -> None:
        self.is_on = False
        self.named: frozenset[str] = frozenset()
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    @contextmanager
    def of(self, trial: Trial) -> Iterator[list[str]]:
        """Watch the events of a command; files that the command line names may be written."""
        self.seen, self.named = [], frozenset((OUTPUT, *(Path(word).name for word in trial.words)))
        self.is_on = trial.kind not in STARTS_PROCESSES
        try:
            yield self.seen
        finally:
            self.is_on = False

    def _note(self, event: str, details: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event.startswith(EXECUTED) and not _stops_workers(event, details):
            self.seen.append(f"{event} {details!r:.200}")
        changes = (event == "open" and _writes(details)) or event.startswith(CHANGED)
        if changes and not self._is_named(str(details[0])) and "__pycache__" not in str(details[0]):
            self.seen.append(f"{event} {details!r:.200}")

    def _is_named(self, path: str) -> bool:
        """Tell whether a path is a file of the command line, or the draft beside one."""
        name = os.path.basename(path)
        return path == os.devnull or any(name == word or (word and word[:100] in name) for word in self.named)


def _stops_workers(event: str, details: tuple[Any, ...]) -> bool:
    """Tell whether joblib asks pgrep for the processes of a worker, as it does before it kills them."""
    return event == "subprocess.Popen" and list(details[1][:2]) == ["pgrep", "-P"]


def _writes(details: tuple[Any, ...]) -> bool:
    path, _, flags = details
    return not isinstance(path, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def run_trial(number: int, trial: Trial, audit: Audit) -> Outcome:
    """Run the command of an input in a folder of its own."""
    from planner.cli import main

    home, folder = os.getcwd(), Path(tempfile.mkdtemp(prefix="random-input-"))
    streams = sys.stdin, sys.stdout, sys.stderr
    begin, code, complaint = time.process_time(), None, ""
    try:
        _write(folder, trial)
        os.chdir(folder)
        sys.stdin = io.TextIOWrapper(io.BytesIO(trial.stdin), encoding="utf-8")
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with audit.of(trial) as seen:
            try:
                code = main(trial.words)
            except BaseException:
                complaint = _last_lines(traceback.format_exc())
        said = _said(sys.stderr)
        complaint = complaint or "; ".join(seen) or _complaint(code, said, folder)
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        os.chdir(home)
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(
        number=number, kind=trial.kind, exit_code=code, seconds=time.process_time() - begin, complaint=complaint
    )


def _write(folder: Path, trial: Trial) -> None:
    for name, data in trial.files.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")


def _said(stream: Any) -> str:
    stream.flush()
    return str(stream.buffer.getvalue().decode("utf-8", "replace"))


def _complaint(code: int | None, said: str, folder: Path) -> str:
    if code not in EXIT_CODES:
        return f"exit code {code}"
    if "Traceback (most recent call last)" in said:
        return _last_lines(said)
    if '"status":"failed"' in _text(folder / OUTPUT):
        return "a job of the batch failed: " + _text(folder / OUTPUT)[:2000]
    if code == 2 and not said.strip():
        return "wrong input without a word"
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in said):
        return f"control characters on the terminal: {said[:300]!r}"
    return f"{CANARY} was written" if (folder / CANARY).exists() else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-14:])[:4000]


def _serve(channel: Connection, seed: int) -> None:
    """Run inputs by their numbers until there is none."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    faulthandler.register(signal.SIGUSR1)
    trial_of(seed, 0)
    audit = Audit()
    channel.send("ready")
    while (number := channel.recv()) is not None:
        channel.send(run_trial(number, trial_of(seed, number), audit))


# --- outside of it ---------------------------------------------------------------------------------------------


def outcomes(seed: int, numbers: Sequence[int]) -> Iterator[Outcome]:
    """
    Run inputs in a process that is ended where one of them takes too long.

    Parameters
    ----------
    seed
        Seed of all inputs.
    numbers
        Numbers of the inputs.
    """
    served, channel, process = 0, None, None
    try:
        for number in numbers:
            if process is None or served >= MOST_TRIALS:
                _stop(process, channel)
                channel, process = _start(seed)
                served = 0
            assert channel is not None
            outcome = _ask(channel, process, seed, number)
            served += 1
            if outcome.exit_code is None and not outcome.complaint.startswith("Traceback"):
                process.kill()
                process.join()
                process = None
            yield outcome
    finally:
        _stop(process, channel)


def _ask(channel: Connection, process: Any, seed: int, number: int) -> Outcome:
    begin, used = time.monotonic(), processor_seconds(process.pid)
    channel.send(number)
    seconds = 0.0
    while True:
        try:
            if channel.poll(LOOK_SECONDS):
                outcome: Outcome = channel.recv()
                return outcome
            seconds = processor_seconds(process.pid) - used
            complaint = f"took longer than {SECONDS:g} s" if seconds > SECONDS else ""
            complaint = complaint or ("hangs" if time.monotonic() - begin > HANGING_SECONDS else "")
        except (EOFError, OSError):
            complaint = "its process died"
        if complaint:
            _show_stack(process)
            kind = trial_of(seed, number).kind
            return Outcome(number=number, kind=kind, exit_code=None, seconds=seconds, complaint=complaint)


def _show_stack(process: Any) -> None:
    """Let a process that does not answer say on stderr where it is."""
    with suppress(OSError):
        os.kill(process.pid, signal.SIGUSR1)
        process.join(LOOK_SECONDS)


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far (proc(5): fields 14 and 15 of its stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _start(seed: int) -> tuple[Connection, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, seed), daemon=False)
    process.start()
    theirs.close()
    ours.recv()
    return ours, process


def _stop(process: Any, channel: Connection | None) -> None:
    if process is not None and channel is not None:
        with suppress(OSError):
            channel.send(None)
        process.join(SECONDS)
        process.kill()
