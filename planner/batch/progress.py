"""Texts on the progress of a batch."""

from __future__ import annotations

from planner.batch.run import Tally


def progress_text(tally: Tally, seconds: float) -> str:
    """
    Word the jobs done, their rate, and the time that the others will take.

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
    Summarize a batch at its end.

    >>> summary_text(Tally(num_jobs=1000, num_before=100, num_now=900, num_without_plan=3, num_lost=1))
    '1,000 of 1,000 jobs done, 100 of them before; 3 without a plan, 1 of them lost in this run'
    """
    text = f"{tally.num_done:,} of {tally.num_jobs:,} jobs done"
    text += f", {tally.num_before:,} of them before" if tally.num_before else ""
    text += f"; {tally.num_without_plan:,} without a plan" if tally.num_without_plan else ""
    return text + (f", {tally.num_lost:,} of them lost in this run" if tally.num_lost else "")


MOST_LETTERS = 200
"""Letters of a reason that are shown; its line in the results has the whole text."""


def reasons_text(tally: Tally, path: str) -> str:
    """
    Name the entry with the reasons, and quote the first reason.

    >>> reasons_text(Tally(num_jobs=2, first_reason="job: training.tokns: no such entry."), "results.jsonl")
    "why there is no plan is in the entry 'message' of results.jsonl; job: training.tokns: no such entry."
    """
    text = f"why there is no plan is in the entry 'message' of {path}"
    first = " ".join(tally.first_reason.split())
    short = first if len(first) <= MOST_LETTERS else f"{first[:MOST_LETTERS]} ..."
    return f"{text}; {short}" if short else f"{text}."


def _duration(seconds: float) -> str:
    """
    Write a duration in its two largest units.

    >>> _duration(25), _duration(90), _duration(7260)
    ('25 s', '1 min 30 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
