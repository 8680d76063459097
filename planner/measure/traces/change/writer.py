"""Tasks of a rank, copied from recorded ones in the order of its threads, with their launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from planner.measure.traces.change.template import Tasks
from planner.measure.traces.events import UNKNOWN, Message, Track
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Kind, RankTrack, Waiting
from planner.measure.traces.graph import Tasks as Columns


@dataclass(slots=True)
class Written:
    """
    A graph under construction: rows of its tasks and edges.

    Parameters
    ----------
    source
        Recorded task that each task is a copy of; ``UNKNOWN`` for tasks that were not recorded.
    track, duration, gap, waiting, waits_for, collective, message
        As in :class:`planner.measure.traces.graph.Tasks`.
    edges
        Before, after, lag, dependency.
    """

    source: list[int] = field(default_factory=list)
    track: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    gap: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)
    collective: list[int] = field(default_factory=list)
    message: list[int] = field(default_factory=list)
    edges: list[tuple[int, int, int, int]] = field(default_factory=list)
    tracks: dict[RankTrack, int] = field(default_factory=dict)
    messages: dict[Message, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    device_free: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def add(self, *, source: int, track: int, duration: int, gap: int) -> int:
        """Add a task that waits for nothing yet; return its number."""
        self.source.append(source)
        self.track.append(track)
        self.duration.append(duration)
        self.gap.append(gap)
        self.waiting.append(Waiting.NOTHING)
        self.waits_for.append(UNKNOWN)
        self.collective.append(UNKNOWN)
        self.message.append(UNKNOWN)
        return len(self.source) - 1

    def graph(self, source: ExecutionGraph, doubts: Iterable[str]) -> ExecutionGraph:
        """Build the graph; its times are unknown until it is replayed, but its tasks are in order."""
        rows, old = np.array(self.source, dtype=np.int64), source.tasks
        known = rows != UNKNOWN
        names = (*source.names, "message between stages or replicas")
        kept = ("track", "duration", "gap", "waiting", "waits_for", "collective", "message")
        return ExecutionGraph(
            tasks=Columns.build(
                len(rows),
                kind=np.where(known, old.kind[rows], Kind.COMMUNICATION),
                start=np.arange(len(rows)),
                event=np.where(known, old.event[rows], UNKNOWN),
                trace=np.where(known, old.trace[rows], UNKNOWN),
                name=np.where(known, old.name[rows], len(names) - 1),
                **{name: np.array(getattr(self, name), dtype=np.int64) for name in kept},
            ),
            edges=Edges.build_from_rows(self.edges),
            tracks=tuple(self.tracks),
            names=names,
            messages=tuple(self.messages),
            begins=self.begins,
            device_free=self.device_free,
            last=self.last,
            traces=source.traces,
            doubts=(*source.doubts, *doubts),
        )


class RankWriter:
    """
    Writer of one rank's tasks.

    Parameters
    ----------
    written, tasks, rank
        The graph under construction, the recorded tasks, and the rank's number.
    retimed
        Function that returns the nanoseconds of a copied communication, by its recorded task.
    is_gradient
        Function that returns True for a gradient reduction: the optimizer waits for all of these, and for sends.
    """

    def __init__(
        self,
        written: Written,
        tasks: Tasks,
        rank: int,
        retimed: Callable[[int], int],
        is_gradient: Callable[[int], bool],
    ) -> None:
        self.written, self.tasks, self.rank = written, tasks, rank
        self.nanoseconds_of_copy, self.is_gradient = retimed, is_gradient
        self.on_track: dict[int, list[int]] = defaultdict(list)
        """Tasks on each track, in their order."""
        self.open: list[int] = []
        """Sends and gradient reductions that nothing waits for yet."""
        self.arrived: list[int] = []
        """Receives that the next computing task waits for."""
        self.pending: list[int] = []
        """Messages without a recorded original, for which the optimizer waits."""
        self.copies: dict[int, int] = {}
        self.last_host = UNKNOWN

    def put(self, host: Iterable[int], scale: float = 1.0) -> None:
        """
        Copy host tasks, with everything that they launch.

        Parameters
        ----------
        host
            Recorded host tasks, in order.
        scale
            Factor of the durations of launched tasks, or of the host tasks themselves where they launch nothing, and of
            gaps.
        """
        self.copies = {}
        for task in host:
            self._copy(task, scale)
            for launched in self.tasks.launched.get(task, ()):
                self._copy(launched, scale)

    def put_transfer(self, unit: Iterable[int], collective: int) -> int:
        """Copy the tasks that start a send or a receive, which joins that of another rank."""
        hosts = list(unit)
        self.put(hosts)
        started = next(each for host in hosts for each in self.tasks.launched.get(host, ()) if self.tasks.message(each))
        self.written.collective[self.copies[started]] = collective
        return self.copies[started]

    def put_message(self, message: Message, track: Track, duration: int, collective: int = UNKNOWN) -> int:
        """Add an unrecorded communication: it begins when the thread is here, after the computation before."""
        number = self.number_of(track)
        one = self.written.add(source=UNKNOWN, track=number, duration=duration, gap=0)
        self.written.message[one] = self.written.messages.setdefault(message, len(self.written.messages))
        self.written.collective[one] = collective
        tracks = list(self.written.tracks)
        for kind in ("thread", "stream"):
            before = [
                there[-1]
                for number, there in self.on_track.items()
                if there
                and tracks[number].track.kind == kind
                and (kind == "thread" or self.written.message[there[-1]] == UNKNOWN)
            ]
            if before:
                self.written.edges.append((max(before), one, 0, Dependency.ADDED))
        self.on_track[number].append(one)
        return one

    def number_of(self, track: Track) -> int:
        """Return the number of a track of this rank."""
        return self.written.tracks.setdefault(RankTrack(self.rank, track), len(self.written.tracks))

    def _copy(self, task: int, scale: float) -> int:
        columns = self.tasks.graph.tasks
        number = self.number_of(self.tasks.track(task))
        kind = self.tasks.kind[task]
        duration = self.nanoseconds_of_copy(task) if kind == Kind.COMMUNICATION else int(columns.duration[task])
        one = self.written.add(
            source=task,
            track=number,
            duration=round(duration * scale) if scale != 1.0 else duration,
            gap=self._gap(task, number, scale),
        )
        self.copies[task] = one
        self._connect(task, one)
        if kind == Kind.HOST:
            self.last_host = one
        message = self.tasks.message(task)
        if message is not None:
            self.written.message[one] = self.written.messages.setdefault(message, len(self.written.messages))
            if self.is_gradient(task):
                self.open.append(one)
        waiting = int(columns.waiting[task])
        if waiting == Waiting.STREAM:
            stream = self.tasks.tracks[int(columns.waits_for[task])]
            self.written.waiting[one], self.written.waits_for[one] = waiting, self.number_of(stream)
        elif waiting == Waiting.TASK and int(columns.waits_for[task]) in self.copies:
            self.written.waiting[one] = waiting
            self.written.waits_for[one] = self.copies[int(columns.waits_for[task])]
        elif waiting == Waiting.DEVICE:
            self.written.waiting[one] = waiting
        self.on_track[number].append(one)
        return one

    def _is_handed_over(self, number: int) -> bool:
        """Return True if another thread worked last."""
        return self.last_host != UNKNOWN and self.written.track[self.last_host] != number

    def _gap(self, task: int, number: int, scale: float) -> int:
        """Return the recorded gap; for the first task of a stream, which may now follow another, the usual gap."""
        gap = int(self.tasks.graph.tasks.gap[task])
        if self.tasks.kind[task] != Kind.HOST:
            gap = self.tasks.usual_gap if task in self.tasks.firsts else gap
            return gap if self.on_track[number] else 0
        if task in self.tasks.handed_over and not self._is_handed_over(number):
            gap = self.tasks.usual_pause[int(self.tasks.graph.tasks.track[task])]
        return round(gap * scale) if scale != 1.0 else gap

    def _connect(self, task: int, one: int) -> None:
        """Connect a copy to the copies of the tasks for which the recorded one waited, or to their replacements."""
        launcher = self.tasks.launcher.get(task)
        if launcher is not None and launcher in self.copies:
            lag = self.tasks.lag.get(task, 0)
            self.written.edges.append((self.copies[launcher], one, lag, Dependency.LAUNCH))
        if self._is_handed_over(self.written.track[one]) and self.tasks.kind[task] == Kind.HOST:
            lag = self.tasks.hand_over[int(self.tasks.graph.tasks.track[task])]
            self.written.edges.append((self.last_host, one, lag, Dependency.THREAD))
        joined = False
        for before, lag, dependency in self.tasks.waits.get(task, ()):
            message = self.tasks.message(before)
            if self.tasks.kind[before] == Kind.HOST and dependency == Dependency.THREAD:
                continue  # threads now wait for each other at other places
            if message is not None and (self.is_gradient(before) or message.operation == "send"):
                if not joined:
                    self.written.edges += [(other, one, lag, dependency) for other in self.open]
                    self.open = []
                joined = True
            elif message is not None and message.operation == "recv":
                continue  # ``arrived`` holds the receives of the next pass
            elif dependency == Dependency.PROCESSORS and before not in self.copies:
                continue  # other kernels run beside it now
            elif before in self.copies:
                self.written.edges.append((self.copies[before], one, lag, dependency))
            else:
                number = self.number_of(self.tasks.track(before))
                there = self.on_track[number]
                place = len(there) - 1 - self.tasks.put_between(before, task)
                if place >= 0:
                    self.written.edges.append((there[place], one, lag, dependency))
        computes = self.tasks.kind[task] in (Kind.COMPUTE, Kind.COPY) or not self.tasks.has_streams
        if self.arrived and computes:
            self.written.edges += [(other, one, self.tasks.usual_lag, Dependency.EVENT) for other in self.arrived]
            self.arrived = []
