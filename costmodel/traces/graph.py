"""An iteration as a graph: tasks on threads and streams, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.traces.events import UNKNOWN, Integers, Message, Trace, Track


class Kind(IntEnum):
    """What a task does."""

    HOST = 0
    """Work of a thread: a call of the runtime or, where there is no device, an operator."""
    COMPUTE = 1
    """A kernel that computes, a fill, or a copy inside a device."""
    COPY = 2
    """A copy between device and host."""
    COMMUNICATION = 3
    """A collective, a send, a receive, a dispatch."""


class Waiting(IntEnum):
    """For what a task of a thread waits before it ends."""

    NOTHING = 0
    DEVICE = 1
    """For everything that its rank has put on any stream; see :func:`costmodel.traces.awaited.awaited`."""
    STREAM = 2
    """For everything on one stream (``waits_for`` is the track)."""
    TASK = 3
    """For one task (``waits_for``)."""


class Dependency(IntEnum):
    """Why one task waits for another."""

    LAUNCH = 0
    """A thread puts it on a stream."""
    EVENT = 1
    """A stream waits for an event that another one recorded."""
    THREAD = 2
    """A thread waits for another one."""
    ADDED = 3
    """Somebody asked for it."""
    PROCESSORS = 4
    """A kernel finds no free processor until another stream's ends."""


class RankTrack(NamedTuple):
    """A track and the rank that it belongs to."""

    rank: int
    track: Track


@dataclass(frozen=True, kw_only=True, slots=True)
class Tasks:
    """
    Tasks in the order in which each track runs them; arrays of shape (tasks,).

    Parameters
    ----------
    track, kind
        Place in ``ExecutionGraph.tracks``, and a :class:`Kind`.
    duration
        Nanoseconds on its track; of a thread that waits, without the wait; of a collective of several ranks, from
        the moment when the last of them has come.
    gap
        Nanoseconds that its track needs between the task before and this one: work of the thread that is no task.
    start
        Nanoseconds at which it started when it was measured; of graphs that were written anew any numbers in the order
        in which each rank's threads work.
    event, trace
        Row in the events of its trace, and which trace that is; ``UNKNOWN`` for tasks that nobody recorded.
    name
        Place in ``ExecutionGraph.names``.
    waiting, waits_for
        A :class:`Waiting`, and the track or the task that it is about.
    collective
        Tasks of several ranks with the same number begin together; ``UNKNOWN``: nobody else is needed.
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

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.track)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Tasks:
        """Some of the tasks."""
        return Tasks(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    @staticmethod
    def together(several: Sequence[Tasks]) -> Tasks:
        """Tasks of several tables one after the other."""
        return Tasks(
            **{one.name: np.concatenate([getattr(each, one.name) for each in several]) for one in fields(Tasks)}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """
    Which task waits for which, besides the order of each track; arrays of shape (edges,).

    Parameters
    ----------
    before, after
        Tasks: the latter starts only when the former has ended; where it is a launch, when it has started.
    lag
        Nanoseconds that it takes from the one to the other.
    dependency
        A :class:`Dependency`.
    """

    before: Integers
    after: Integers
    lag: Integers
    dependency: NDArray[np.int8]

    def __len__(self) -> int:
        """Number of edges."""
        return len(self.before)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Edges:
        """Some of the edges."""
        return Edges(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    @staticmethod
    def together(several: Sequence[Edges]) -> Edges:
        """Edges of several tables one after the other."""
        return Edges(
            **{one.name: np.concatenate([getattr(each, one.name) for each in several]) for one in fields(Edges)}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionGraph:
    """
    One iteration of all ranks that were recorded.

    Parameters
    ----------
    tasks, edges
        What is done, and in which order: within a track tasks run in the order of their places, one after the other.
    tracks, names, messages
        What the numbers stand for.
    begins
        When the iteration begins on the main thread of each rank, by rank; of the earliest at 0.
    device_free
        When what was on the streams of each rank before has ended, by rank; its begin where nothing was.
    last
        The task that ends the iteration of each rank's main thread, by rank: it takes no time itself. Ranks of which no
        thread was recorded have none.
    traces
        The traces that it was made of.
    doubts
        Sentences on what was inferred, or left out.
    """

    tasks: Tasks
    edges: Edges
    tracks: tuple[RankTrack, ...]
    names: tuple[str, ...]
    messages: tuple[Message, ...]
    begins: Mapping[int, int]
    device_free: Mapping[int, int]
    last: Mapping[int, int]
    traces: tuple[Trace, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose tasks it has."""
        return tuple(sorted({one.rank for one in self.tracks}))

    @property
    def task_ranks(self) -> Integers:
        """The rank of each task; shape (tasks,)."""
        return np.array([one.rank for one in self.tracks], dtype=np.int64)[self.tasks.track]

    @property
    def on_stream(self) -> NDArray[np.bool_]:
        """Which tasks run on streams; shape (tasks,)."""
        return np.array([one.track.kind == "stream" for one in self.tracks], dtype=bool)[self.tasks.track]

    def previous(self) -> Integers:
        """The task before on the same track; ``UNKNOWN`` for the first one."""
        order = np.argsort(self.tasks.track, kind="stable")
        found = np.full(len(order), UNKNOWN)
        same = self.tasks.track[order[1:]] == self.tasks.track[order[:-1]]
        found[order[1:][same]] = order[:-1][same]
        return found
