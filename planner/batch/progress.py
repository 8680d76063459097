"""How far a batch is, on stderr: a running line in a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from planner.batch.run import Tally

TERMINAL_SECONDS = 0.2
LOG_SECONDS = 60.0
FIRST_LOG_SECONDS = 5.0
"""How often the line is written anew, and when for the first time in a log."""

CLEAR_LINE = "\r\x1b[K"


class Progress:
    """
    Says how far a batch is.

    Parameters
    ----------
    stream
        Where to.
    clock
        Seconds that have passed since any moment.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._is_terminal = stream.isatty()
        self._begin = clock()
        self._due = self._begin + (0.0 if self._is_terminal else FIRST_LOG_SECONDS)

    def show(self, tally: Tally) -> None:
        """Write a line, if it is time for one."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + (TERMINAL_SECONDS if self._is_terminal else LOG_SECONDS)
        line = f"planner: {progress_text(tally, now - self._begin)}"
        self._write(f"{CLEAR_LINE}{line}" if self._is_terminal else f"{line}\n")

    def say(self, sentence: str) -> None:
        """Write a sentence on a line of its own."""
        self._write(f"{CLEAR_LINE if self._is_terminal else ''}planner: {sentence}\n")

    def _write(self, text: str) -> None:
        """A terminal that was closed is no reason to stop."""
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def progress_text(tally: Tally, seconds: float) -> str:
    """
    Jobs done, their rate and the time that the others will take.

    >>> progress_text(Tally(num_jobs=1000, num_before=100, num_now=400, num_without_plan=3), 20.0)
    '500 of 1,000 jobs, 20.0 per second, 25 s left; 3 without a plan'
    """
    text = f"{tally.num_done:,} of {tally.num_jobs:,} jobs"
    if tally.num_now and seconds > 0:
        rate = tally.num_now / seconds
        speed = f"{rate:.1f} per second" if rate >= 1 else f"{60 * rate:.1f} per minute"
        text += f", {speed}, {_duration((tally.num_jobs - tally.num_done) / rate)} left"
    return text + (f"; {tally.num_without_plan:,} without a plan" if tally.num_without_plan else "")


def summary_text(tally: Tally) -> str:
    """
    What there is in the end.

    >>> summary_text(Tally(num_jobs=1000, num_before=100, num_now=900, num_without_plan=3, num_lost=1))
    '1,000 of 1,000 jobs done, 100 of them before; 3 without a plan, 1 of them lost in this run'
    """
    text = f"{tally.num_done:,} of {tally.num_jobs:,} jobs done"
    text += f", {tally.num_before:,} of them before" if tally.num_before else ""
    text += f"; {tally.num_without_plan:,} without a plan" if tally.num_without_plan else ""
    return text + (f", {tally.num_lost:,} of them lost in this run" if tally.num_lost else "")


MOST_LETTERS = 200
"""Letters of a reason that are shown; its line in the results has all of it."""


def reasons_text(tally: Tally, path: str) -> str:
    """
    Where the reasons are, and the first one.

    >>> reasons_text(Tally(num_jobs=2, first_reason="job: training.tokns: no such entry."), "results.jsonl")
    "why there is no plan is in the entry 'message' of results.jsonl; job: training.tokns: no such entry."
    """
    text = f"why there is no plan is in the entry 'message' of {path}"
    first = " ".join(tally.first_reason.split())
    short = first if len(first) <= MOST_LETTERS else f"{first[:MOST_LETTERS]} ..."
    return f"{text}; {short}" if short else f"{text}."


def _duration(seconds: float) -> str:
    """
    A duration in its two largest units.

    >>> _duration(25), _duration(90), _duration(7260)
    ('25 s', '1 min 30 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
