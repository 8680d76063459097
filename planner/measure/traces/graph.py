"""An iteration as a graph: tasks on threads and streams, and their dependencies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from costmodel.tables import Table
from planner.measure.traces.events import UNKNOWN, Integers, Message, Trace, Track, build_table, match_names


class Kind(IntEnum):
    """Kind of a task."""

    HOST = 0
    """Work of a thread: a call of the runtime or, where there is no device, an operator."""
    COMPUTE = 1
    """A kernel that computes, a fill, or a copy inside a device."""
    COPY = 2
    """A copy between device and host."""
    COMMUNICATION = 3
    """A collective, a send, a receive, a dispatch."""


class Waiting(IntEnum):
    """Object that a host task waits for before it ends."""

    NOTHING = 0
    DEVICE = 1
    """All work that its rank has launched on any stream; see :func:`planner.measure.traces.replay.find_awaited`."""
    STREAM = 2
    """All work on one stream (``waits_for`` is the track)."""
    TASK = 3
    """One task (``waits_for``)."""


class Dependency(IntEnum):
    """Reason that one task waits for another."""

    LAUNCH = 0
    """A thread launches it on a stream."""
    EVENT = 1
    """A stream waits for an event of another stream."""
    THREAD = 2
    """A thread waits for another one."""
    ADDED = 3
    """A change of the graph added it."""
    PROCESSORS = 4
    """A kernel finds no free processor until one on another stream ends."""


@record(frozen=True, kw_only=True, slots=True)
class Tasks(Table):
    """
    Tasks in the order in which each track runs them; arrays of shape (tasks,).

    Parameters
    ----------
    track, kind
        Place in ``ExecutionGraph.tracks``, and a :class:`Kind`.
    duration
        Nanoseconds on its track; of a thread that waits, without the wait; of a collective of several ranks, from the
        moment when the last of them arrives.
    gap
        Nanoseconds that its track needs between the task before and this one: work of the thread outside of tasks.
    start
        Nanoseconds at which it started in the recording; in rebuilt graphs any numbers in the order of each rank's
        threads.
    event, trace
        Row in the events of its trace, and number of that trace; ``UNKNOWN`` for tasks that were not recorded.
    name
        Place in ``ExecutionGraph.names``.
    waiting, waits_for
        A :class:`Waiting`, and the track or the task that it refers to.
    collective
        Number shared by tasks of several ranks that begin together; ``UNKNOWN`` for tasks that wait for no other rank.
    message
        Place in ``ExecutionGraph.messages``.
    """

    track: NDArray[np.int32]
    kind: NDArray[np.int8]
    duration: Integers
    gap: Integers
    start: Integers
    event: Integers
    trace: NDArray[np.int32]
    name: NDArray[np.int32]
    waiting: NDArray[np.int8]
    waits_for: Integers
    collective: Integers
    message: NDArray[np.int32]


@record(frozen=True, kw_only=True, slots=True)
class Edges(Table):
    """
    Dependencies between tasks, besides the order of each track; arrays of shape (edges,).

    Parameters
    ----------
    before, after
        Tasks: the second starts only when the first has ended; for a launch, when the first has started.
    lag
        Nanoseconds from the one to the other.
    dependency
        A :class:`Dependency`.
    """

    before: Integers
    after: Integers
    lag: Integers
    dependency: NDArray[np.int8]

    @classmethod
    def build_from_rows(cls, rows: Sequence[tuple[int, int, int, int]]) -> Edges:
        """Build edges from rows of before, after, lag and dependency."""
        before, after, lag, dependency = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        return build_table(cls, len(rows), before=before, after=after, lag=lag, dependency=dependency)


@record(frozen=True, kw_only=True, slots=True)
class ExecutionGraph:
    """
    One iteration of all ranks that were recorded.

    Parameters
    ----------
    tasks, edges
        Tasks and their dependencies: within a track tasks run in the order of their places, one after the other.
    tracks, names, messages
        Tables for the numbers in the columns.
    begins
        Begin of the iteration on the main thread of each rank, by rank; the earliest is 0.
    device_free
        End of earlier work on the streams of each rank, by rank; the rank's begin where there was none.
    last
        Task that ends the iteration of each rank's main thread, by rank: it takes no time itself. Ranks without a
        recorded thread have none.
    traces
        Traces that the graph was built from.
    doubts
        Sentences on inferred dependencies, or omissions.
    """

    tasks: Tasks
    edges: Edges
    tracks: tuple[Track, ...]
    names: tuple[str, ...]
    messages: tuple[Message, ...]
    begins: Mapping[int, int]
    device_free: Mapping[int, int]
    last: Mapping[int, int]
    traces: tuple[Trace, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that have tasks."""
        return tuple(sorted({one.rank for one in self.tracks}))

    @property
    def task_ranks(self) -> Integers:
        """Rank of each task; shape (tasks,)."""
        return np.array([one.rank for one in self.tracks], dtype=np.int64)[self.tasks.track]

    @property
    def is_on_stream(self) -> NDArray[np.bool_]:
        """Mask of tasks on streams; shape (tasks,)."""
        return np.array([one.kind == "stream" for one in self.tracks], dtype=bool)[self.tasks.track]

    def previous(self) -> Integers:
        """Return the task before each one on its track; ``UNKNOWN`` for the first."""
        order = np.argsort(self.tasks.track, kind="stable")
        found = np.full(len(order), UNKNOWN)
        same = self.tasks.track[order[1:]] == self.tasks.track[order[:-1]]
        found[order[1:][same]] = order[:-1][same]
        return found

    def following(self) -> Integers:
        """Return the task after each one on its track; ``UNKNOWN`` for the last."""
        previous = self.previous()
        found = np.full(len(previous), UNKNOWN)
        found[previous[previous != UNKNOWN]] = np.flatnonzero(previous != UNKNOWN)
        return found

    def match_name(self, pattern: str | re.Pattern[str]) -> NDArray[np.bool_]:
        """Return a mask of tasks in whose name a pattern is found."""
        return match_names(self.names, pattern)[self.tasks.name]

    def take_event_column(self, columns: Sequence[NDArray[Any]]) -> Integers:
        """Return the entry of each task's event in a column for each trace; ``UNKNOWN`` for tasks without an event."""
        found = np.full(len(self.tasks), UNKNOWN, dtype=np.int64)
        for number, column in enumerate(columns):
            own = (self.tasks.trace == number) & (self.tasks.event != UNKNOWN)
            found[own] = column[self.tasks.event[own]]
        return found
