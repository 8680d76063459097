"""The critical path: the chain of tasks and waits that a replayed iteration is as long as."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.traces.events import UNKNOWN
from costmodel.traces.graph import ExecutionGraph
from costmodel.traces.replay import Replayed


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """
    A piece of the critical path.

    Parameters
    ----------
    task
        The task.
    begin, end
        Nanoseconds from when what it waited for let it go to when it lets the next one go: gaps and launch lags
        included.
    """

    task: int
    begin: int
    end: int


def critical_path(graph: ExecutionGraph, times: Replayed) -> tuple[Step, ...]:
    """
    The tasks that the iteration of the slowest rank is as long as, from the first to the last.

    Each task began when another one let it: that chain, walked back from the last task. Shortening any other task does
    not shorten the iteration.

    Parameters
    ----------
    graph, times
        A graph and its replay; measured times do not say what held a task up.
    """
    rank = max(times.iterations, key=lambda one: times.iterations[one])
    of_rank = np.array([one.rank == rank for one in graph.tracks])[graph.tasks.track]
    rows = np.flatnonzero(of_rank)
    task, until = int(rows[np.argmax(times.end[rows])]), None
    found: list[Step] = []
    while task != UNKNOWN:
        end = int(times.end[task]) if until is None else until
        cause = int(times.cause[task])
        begin = int(times.end[cause]) if cause != UNKNOWN else 0
        if cause != UNKNOWN and begin > end:  # a launch lets a kernel go when it begins
            begin = int(times.start[cause])
        begin = min(begin, end)
        found.append(Step(task=task, begin=begin, end=end))
        task, until = cause, begin
    return tuple(reversed(found))
