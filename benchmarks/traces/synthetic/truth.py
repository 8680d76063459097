"""True facts of made traces: begin and end of steps, breakdown of their time, and waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from benchmarks.traces.synthetic.machine import Event, Lane, Machine, Reason
from benchmarks.traces.synthetic.recipe import Recipe
from benchmarks.traces.synthetic.recording import Recording
from benchmarks.traces.synthetic.steps import AUTOGRAD, MAIN, programs
from planner.measure.traces.events import ON_STREAMS, Category, Device, Integers, Trace, Track

NOT_TASKS = (Category.ANNOTATION, Category.OPERATOR, Category.SYNCHRONIZATION)

"""Events that stand for others, or for a stretch of them."""


class Place(NamedTuple):
    """An event of the traces: its rank, and its row there."""

    rank: int
    row: int


class Dependence(NamedTuple):
    """One event waits for another one; the order of a thread or a stream is among the reasons."""

    before: Place
    after: Place
    reason: Reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """
    One step of one rank; nanoseconds.

    Parameters
    ----------
    begin
        When its annotation begins on the main thread, by the time of its trace.
    host
        From there to the beginning of the next one; of the last one, to its own end.
    device_free, last
        End of what earlier steps put on the streams, 0 if that was before the step began; end of the last thing that it
        put there itself. Both from its beginning.
    shares
        Breakdown of the time from ``device_free`` on, for as long as the iteration takes: streams that only compute,
        only communicate, do both, do nothing. Copies and fills compute.
    """

    begin: int
    host: int
    device_free: int
    last: int
    shares: tuple[int, int, int, int]

    @property
    def duration(self) -> int:
        r"""
        Nanoseconds that the iteration takes, :math:`T = \max(H, L - C)`.

        The host's own time, or what its kernels add to those before.
        """
        return max(self.host, self.last - self.device_free)


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """
    True facts of a job's traces.

    Parameters
    ----------
    iterations
        By rank and step.
    dependences
        Pairs of events, one of which waits for the other.
    critical
        Events that the end of each step depends on, one after the other: no kernel of them could be longer without
        the step being longer. A call that launches counts by its begin alone.
    begins
        Nanoseconds at which each rank's trace begins, by one clock for all of them.
    durations
        Nanoseconds of each event of a rank by itself, without waiting; shape (events,).
    """

    iterations: Mapping[tuple[int, int], Iteration]
    dependences: tuple[Dependence, ...]
    critical: tuple[tuple[Place, ...], ...]
    begins: Mapping[int, int]
    durations: Mapping[int, Integers]


def truth_of(by_rank: Mapping[int, Sequence[Event]]) -> Truth:
    """
    Return the true facts of events that a machine made.

    Parameters
    ----------
    by_rank
        All of each rank, in the order of its trace.
    """
    events = [event for own in by_rank.values() for event in own]
    places = {id(one): Place(rank, row) for rank, own in by_rank.items() for row, one in enumerate(own)}
    begins = {rank: span(own[0])[0] for rank, own in by_rank.items()}
    steps = sorted({event.step for event in events})
    return Truth(
        iterations={key: _iteration(own, begins[key[0]]) for key, own in _by_rank_and_step(events).items()},
        dependences=tuple(
            Dependence(places[id(other)], places[id(event)], reason)
            for event in events
            for other, reason in event.after
        ),
        critical=tuple(tuple(places[id(one)] for one in critical_path(events, step)) for step in steps),
        begins=begins,
        durations={rank: np.array([one.duration for one in own], dtype=np.int64) for rank, own in by_rank.items()},
    )


def span(event: Event) -> tuple[int, int]:
    """Start and end of an event of a machine that has run."""
    if event.start is None or event.end is None:
        raise RuntimeError(f"{event.name} has not ended.")
    return event.start, event.end


# --- iterations --------------------------------------------------------------------------------------------
class _Step(NamedTuple):
    """A step of a rank: its annotation, that of the next one, what it put on streams, when they were free before."""

    annotation: Event
    following: Event | None
    kernels: list[Event]
    free: int


def _by_rank_and_step(events: Sequence[Event]) -> dict[tuple[int, int], _Step]:
    annotations = {(one.lane.rank, one.step): one for one in events if one.name.startswith("ProfilerStep#")}
    kernels: dict[tuple[int, int], list[Event]] = {key: [] for key in annotations}
    for event in events:
        if event.category in ON_STREAMS:
            kernels[event.lane.rank, event.step].append(event)
    found, free = {}, dict.fromkeys({rank for rank, _ in annotations}, 0)
    for rank, step in sorted(annotations):
        own = kernels[rank, step]
        found[rank, step] = _Step(annotations[rank, step], annotations.get((rank, step + 1)), own, free[rank])
        free[rank] = max([free[rank], *(span(one)[1] for one in own)])
    return found


def _iteration(step: _Step, trace_begins: int) -> Iteration:
    begin, end = span(step.annotation)
    if step.following is not None:
        end = span(step.following)[0]
    free = max(step.free, begin)
    last = max((span(one)[1] for one in step.kernels), default=begin)
    stop = free + max(end - begin, last - free)
    busy = {
        communicates: [span(one) for one in step.kernels if (one.message is not None) == communicates]
        for communicates in (False, True)
    }
    return Iteration(
        begin=begin - trace_begins,
        host=end - begin,
        device_free=free - begin,
        last=last - begin,
        shares=_shares(busy[False], busy[True], free, stop),
    )


def _shares(
    compute: Iterable[tuple[int, int]], communication: Iterable[tuple[int, int]], start: int, stop: int
) -> tuple[int, int, int, int]:
    """Return the times with only the one, only the other, both and neither, from start to stop."""
    changes = [(start, 0, 0), (stop, 0, 0)]
    for which, spans in enumerate((compute, communication)):
        for first, last in spans:
            changes += [(min(max(first, start), stop), which, 1), (min(max(last, start), stop), which, -1)]
    changes.sort()
    active, total = [0, 0], {(True, False): 0, (False, True): 0, (True, True): 0, (False, False): 0}
    for (now, which, change), (then, _, _) in pairwise(changes):
        active[which] += change
        total[active[0] > 0, active[1] > 0] += then - now
    return total[True, False], total[False, True], total[True, True], total[False, False]


# --- the critical path -------------------------------------------------------------------------------------
def critical_path(events: Iterable[Event], step: int) -> list[Event]:
    """
    Return the events that the end of a step depends on, from its beginning.

    Walked backwards from the event that ends last: to what its end waited for where that ended after it had begun, else
    to what its start waited for that was latest.
    """
    tasks = [one for one in events if one.step == step and one.category not in NOT_TASKS]
    path = [max(tasks, key=lambda one: span(one)[1])]
    while (before := _binding(path[-1])) is not None and before.step == step:
        path.append(before)
    return path[::-1]


def _binding(event: Event) -> Event | None:
    """The latest of what an event waits for; None at the beginning."""
    start, _ = span(event)
    ends = [(span(other)[0], other) for other, why in event.after if why == "collective"]
    ends += [(span(other)[1], other) for other, why in event.after if why == "synchronize"]
    late = [one for one in ends if one[0] > start]
    if late:
        return max(late, key=lambda one: one[0])[1]
    starts = [(event.earliest, other) for other, why in event.after if why == "launch"]
    starts += [(span(other)[1], other) for other, why in event.after if why in ("stream", "event", "thread", "handoff")]
    return max(starts, key=lambda one: one[0])[1] if starts else None


DEVICES_PER_NODE = 8

DEVICE = Device("NVIDIA H100 80GB HBM3", 132, 85_899_345_920)

BEGIN = 1_000_000_000_000

"""Nanoseconds of right clocks when the job begins."""

FIRST_PROCESS, AUTOGRAD_THREAD = 10_000, 500_000

"""Process of rank 0, which is also its main thread; what autograd's thread has more."""

COLUMNS = ("correlation", "external", "sequence", "forward_thread", "operands", "message", "wait", "nbytes")

"""Columns of the profiler's events that those of the machine have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """
    Traces, one of each rank, and their true facts.

    Parameters
    ----------
    recipe
        Recipe of the traces.
    traces
        As a reader of the profiler's files would have them, by rank.
    truth
        Facts that a replay must reproduce.
    """

    recipe: Recipe
    traces: tuple[Trace, ...]
    truth: Truth


def make(recipe: Recipe) -> Made:
    """
    Make the traces of a job.

    Parameters
    ----------
    recipe
        The job.

    Raises
    ------
    SpecError
        If there is no such job.
    """
    events = Machine(programs(recipe), recipe.lags).run()
    by_rank: dict[int, list[Event]] = {rank: [] for rank in range(recipe.world_size)}
    for event in events:
        by_rank[event.lane.rank].append(event)
    for own in by_rank.values():
        own.sort(key=lambda one: (span(one)[0], -span(one)[1]))
    return Made(
        recipe=recipe,
        traces=tuple(_trace(recipe, rank, own) for rank, own in by_rank.items()),
        truth=truth_of(by_rank),
    )


def _trace(recipe: Recipe, rank: int, events: Sequence[Event]) -> Trace:
    made, begin = Recording(rank, (DEVICE,) * min(DEVICES_PER_NODE, recipe.world_size)), span(events[0])[0]
    for one in events:
        start, end = span(one)
        columns = {name: getattr(one, name) for name in COLUMNS}
        made.add(one.category, one.name, start - begin, end - start, on=_track(one.lane), **columns)
    trace = made.trace(
        source=f"rank {rank}",
        world_size=recipe.world_size,
        begin=BEGIN + begin + (recipe.clocks[rank] if rank < len(recipe.clocks) else 0),
    )
    return replace(trace, groups={one.group: one.ranks for one in trace.messages})


def _track(lane: Lane) -> Track:
    """The track of a thread, or of a stream of the rank's device."""
    if lane.name in (MAIN, AUTOGRAD):
        process = FIRST_PROCESS + lane.rank
        return Track("thread", str(process), str(process + (lane.name == AUTOGRAD) * AUTOGRAD_THREAD))
    return Track("stream", str(lane.rank % DEVICES_PER_NODE), lane.name)
