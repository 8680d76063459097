"""
A machine of threads and streams, run one call after the other: the oracle of whoever learns from traces.

Threads and streams go on until they wait for something, and again when that has happened, until all is done. It knows
no graph and no formula, only these rules:

- A thread runs its calls one after the other.
- A stream runs its kernels in the order in which they were put on it, ``gap`` after the one before, no earlier than
  ``launch_lag`` after the start of the call that put it there.
- A kernel behind a stream's wait for an event begins no earlier than the end of all that was on the recording stream.
- A collective ends on all of its ranks together, its duration after the last of them has begun.
- A synchronising call ends its own duration after all that its rank had put on the stream, or on any stream.
- A thread that awaits another one goes on ``handoff_lag`` after its signal.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from planner.measure.traces.events import UNKNOWN, Category, Message, Operands, Wait

Reason: TypeAlias = Literal["launch", "stream", "event", "collective", "synchronize", "thread", "handoff"]
"""Reasons why one event waits for another."""


class Lane(NamedTuple):
    """A thread (``main``, ``autograd``) or a stream (its number) of a rank."""

    rank: int
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lags:
    """
    Nanoseconds that pass between two things and belong to neither.

    Parameters
    ----------
    launch
        From the start of a call to the earliest start of what it puts on a stream.
    gap
        Between two kernels of a stream that runs without a break.
    handoff
        From one thread's signal until the other one goes on.
    """

    launch: int = 4_000
    gap: int = 0
    handoff: int = 10_000


@dataclass(eq=False, kw_only=True, slots=True)
class Event:
    """
    Event that the profiler would record: a call, a kernel, an operator, an annotation, a wait.

    Parameters
    ----------
    lane, category, name
        Thread or stream that it runs on; its kind and name.
    duration
        Nanoseconds by itself: without waiting for a device or for other ranks.
    step
        Iteration that it belongs to.
    correlation, external, sequence, forward_thread, operands, message, wait, nbytes
        As in :class:`planner.measure.traces.events.Events`.
    collective
        Identifier shared by all members of a collective; None where nobody else is needed.
    members
        Number of events of the collective.
    after
        Events that it waits for, with the reasons.
    begin
        Event and reason that it began no earlier; None where nothing was before.
    start, end
        Nanoseconds; None until they are known.
    """

    lane: Lane
    category: Category
    name: str
    duration: int
    step: int = 0
    correlation: int = UNKNOWN
    external: int = UNKNOWN
    sequence: int = UNKNOWN
    forward_thread: int = UNKNOWN
    operands: Operands | None = None
    message: Message | None = None
    wait: Wait | None = None
    nbytes: int = UNKNOWN
    collective: tuple[str, int] | None = None
    members: int = 1
    after: list[tuple[Event, Reason]] = field(default_factory=list)
    earliest: int = 0
    start: int | None = None
    end: int | None = None


# --- running it --------------------------------------------------------------------------------------------


Instruction: TypeAlias = tuple[Any, ...]
"""A method of the machine from :meth:`Machine.pause` on, and its arguments; False of it means that it must wait."""


@dataclass(eq=False, slots=True)
class Thread:
    """A program, how far it has come, and when."""

    lane: Lane
    program: Sequence[Instruction]
    place: int = 0
    clock: int = 0
    before: tuple[Event, Reason] | None = None
    """The event that this thread ended last, or that another one ended before it handed over."""
    open: list[Event] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Stream:
    """Work put on a stream, its ended part, and the events that the next kernel will have to wait for."""

    kernels: list[Event] = field(default_factory=list)
    num_ended: int = 0
    pending: list[Event] = field(default_factory=list)

    def contents(self) -> list[Event]:
        """Return the events after which all work that is on the stream by now has ended."""
        return self.kernels[-1:] + self.pending


class Machine:
    """
    Threads and streams of all ranks.

    Parameters
    ----------
    programs
        Instructions of each thread, in order.
    lags
        Nanoseconds between things.
    """

    def __init__(self, programs: Mapping[Lane, Sequence[Instruction]], lags: Lags) -> None:
        self.lags = lags
        self.threads = [Thread(lane, program) for lane, program in programs.items()]
        self.streams: dict[Lane, _Stream] = defaultdict(_Stream)
        self.records: dict[tuple[int, int], list[Event]] = {}
        self.signals: dict[tuple[int, int], tuple[int, tuple[Event, Reason] | None]] = {}
        self.collectives: dict[tuple[str, int], list[Event]] = defaultdict(list)
        self.events: list[Event] = []
        self.ready: deque[Thread | _Stream] = deque(self.threads)
        self.blocked: dict[Event | tuple[int, int], list[Thread | _Stream]] = defaultdict(list)
        """Threads and streams that go on when an event has ended, or when a thread of a rank got a signal."""

    def run(self) -> list[Event]:
        """
        Run every program to its end.

        Returns
        -------
        list
            All events, with start and end.

        Raises
        ------
        RuntimeError
            If ranks wait for each other for ever.
        """
        while self.ready:
            one = self.ready.popleft()
            if isinstance(one, Thread):
                while one.place < len(one.program):
                    method, *arguments = one.program[one.place]
                    if method(self, one, *arguments) is False:
                        break
                    one.place += 1
            else:
                while one.num_ended < len(one.kernels) and self._start(one, one.kernels[one.num_ended]):
                    one.num_ended += 1
        stuck = [thread.lane for thread in self.threads if thread.place < len(thread.program)]
        stuck += [lane for lane, stream in self.streams.items() if stream.num_ended < len(stream.kernels)]
        if stuck:
            raise RuntimeError(f"These wait for ever: {stuck}.")
        return self.events

    def _has_happened(self, what: Event | tuple[int, int]) -> None:
        self.ready.extend(self.blocked.pop(what, ()))

    def _start(self, stream: _Stream, kernel: Event) -> bool:
        """Start the next kernel of a stream, if all that it waits for has ended; whether it has ended."""
        if kernel.start is None:
            begins = [kernel.earliest]
            for other, why in kernel.after:
                if why == "launch":
                    continue
                if other.end is None:
                    self.blocked[other].append(stream)
                    return False
                begins.append(other.end + (self.lags.gap if why == "stream" else 0))
            kernel.start = max(begins)
            if kernel.collective is not None:
                self._join(self.collectives[kernel.collective], kernel)
            else:
                kernel.end = kernel.start + kernel.duration
                self._has_happened(kernel)
        if kernel.end is None:
            self.blocked[kernel].append(stream)
        return kernel.end is not None

    def _join(self, others: list[Event], kernel: Event) -> None:
        """One more member of a collective has begun; the last one ends it."""
        others.append(kernel)
        if len(others) == kernel.members:
            starts = [one.start for one in others if one.start is not None]
            for one in others:
                one.end = max(starts) + one.duration
                one.after += [(other, "collective") for other in others if other is not one]
                self._has_happened(one)

    # --- what a thread does

    def pause(self, thread: Thread, duration: int) -> None:
        """Work that nobody records, in nanoseconds."""
        thread.clock += duration

    def begin(self, thread: Thread, event: Event) -> None:
        """Begin a stretch of the thread: an annotation or an operator."""
        event.start = thread.clock
        thread.open.append(event)

    def end(self, thread: Thread) -> None:
        """End the stretch that was begun last."""
        event = thread.open.pop()
        event.end = thread.clock
        self.events.append(event)

    def signal(self, thread: Thread, token: int) -> None:
        """Let threads go on that await a signal."""
        key = thread.lane.rank, token
        self.signals[key] = thread.clock, thread.before
        self._has_happened(key)

    def await_signal(self, thread: Thread, token: int) -> bool:
        """Wait for a signal of another thread."""
        key = thread.lane.rank, token
        if key not in self.signals:
            self.blocked[key].append(thread)
            return False
        clock, before = self.signals[key]
        thread.clock = max(thread.clock, clock + self.lags.handoff)
        thread.before = (before[0], "handoff") if before else None
        return True

    def launch(self, thread: Thread, event: Event, kernel: Event) -> None:
        """Put a kernel, a copy or a fill on its stream."""
        stream = self.streams[kernel.lane]
        kernel.earliest = thread.clock + self.lags.launch
        kernel.after = [(event, "launch")]
        kernel.after += [(one, "stream") for one in stream.kernels[-1:]]
        kernel.after += [(one, "event") for one in stream.pending]
        stream.pending = []
        stream.kernels.append(kernel)
        self.events.append(kernel)
        self._call(thread, event)
        if stream.num_ended == len(stream.kernels) - 1:
            self.ready.append(stream)

    def record(self, thread: Thread, event: Event, stream: str) -> None:
        """Record an event on a stream: all that is on it by now; the correlation of the call stands for it."""
        rank = thread.lane.rank
        self.records[rank, event.correlation] = self.streams[Lane(rank, stream)].contents()
        self._call(thread, event)

    def wait_for(self, thread: Thread, event: Event, stream: str, record: int, shown: Event) -> None:
        """Let the next kernel of a stream wait for a recorded event; ``shown`` is the profiler's event of it."""
        rank = thread.lane.rank
        self.streams[Lane(rank, stream)].pending += self.records[rank, record]
        self._call(thread, event)
        self._show(event, shown)

    def synchronize(self, thread: Thread, event: Event, stream: str | None, shown: Event) -> bool:
        """Wait for a stream of the rank, or for all of them (None)."""
        rank = thread.lane.rank
        lanes = [Lane(rank, stream)] if stream else [lane for lane in self.streams if lane.rank == rank]
        awaited = [one for lane in lanes for one in self.streams[lane].contents()]
        ends = [one.end for one in awaited if one.end is not None]
        if len(ends) < len(awaited):
            self.blocked[next(one for one in awaited if one.end is None)].append(thread)
            return False
        event.after = [(one, "synchronize") for one in awaited]
        self._call(thread, event, until=ends)
        self._show(event, shown)
        return True

    def _call(self, thread: Thread, event: Event, until: Iterable[int] = ()) -> None:
        """Record a call, which begins now and ends its duration after it has begun and what it waits for has ended."""
        event.after += [thread.before] if thread.before else []
        event.start = thread.clock
        event.end = thread.clock = max([thread.clock, *until]) + event.duration
        thread.before = event, "thread"
        self.events.append(event)

    def _show(self, call: Event, shown: Event) -> None:
        """The profiler's event of a wait takes as long as the call."""
        shown.start, shown.end = call.start, call.end
        self.events.append(shown)
