"""Traces of all ranks of a job, as a reader of the profiler's files would have them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.traces.synthetic.calls import AUTOGRAD, MAIN
from benchmarks.traces.synthetic.machine import Event, Lane, Machine
from benchmarks.traces.synthetic.recipe import Recipe
from benchmarks.traces.synthetic.steps import programs
from benchmarks.traces.synthetic.truth import Truth, span, truth_of
from planner.measure.traces.events import UNKNOWN, Device, Events, Integers, Message, Operands, Trace, Track, Wait

DEVICES_PER_NODE = 8
DEVICE = Device("NVIDIA H100 80GB HBM3", 132, 85_899_345_920)

BEGIN = 1_000_000_000_000
"""Nanoseconds of right clocks when the job begins."""

FIRST_PROCESS, AUTOGRAD_THREAD = 10_000, 500_000
"""Process of rank 0, which is also its main thread; what autograd's thread has more."""

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """
    Traces, one of each rank, and what is true of them.

    Parameters
    ----------
    recipe
        What they were made of.
    traces
        As a reader of the profiler's files would have them, by rank.
    truth
        What a replay must say.
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


class _Table(Generic[T]):
    """Values by the order in which they first come."""

    def __init__(self) -> None:
        self.places: dict[T, int] = {}

    def place(self, value: T | None) -> int:
        return UNKNOWN if value is None else self.places.setdefault(value, len(self.places))

    def column(self, values: Iterable[T | None]) -> NDArray[np.int32]:
        return np.array([self.place(one) for one in values], dtype=np.int32)


def _trace(recipe: Recipe, rank: int, events: Sequence[Event]) -> Trace:
    names, tracks, operands = _Table[str](), _Table[Track](), _Table[Operands]()
    messages, waits = _Table[Message](), _Table[Wait]()
    begin = span(events[0])[0]
    columns = Events(
        category=np.array([one.category for one in events], dtype=np.int8),
        name=names.column(one.name for one in events),
        track=tracks.column(_track(one.lane) for one in events),
        start=_integers(span(one)[0] - begin for one in events),
        duration=_integers(span(one)[1] - span(one)[0] for one in events),
        correlation=_integers(one.correlation for one in events),
        external=_integers(one.external for one in events),
        sequence=_integers(one.sequence for one in events),
        forward_thread=_integers(one.forward_thread for one in events),
        operands=operands.column(one.operands for one in events),
        blocks=np.full(len(events), UNKNOWN, dtype=np.int32),
        message=messages.column(one.message for one in events),
        wait=waits.column(one.wait for one in events),
        nbytes=_integers(one.nbytes for one in events),
    )
    return Trace(
        source=f"rank {rank}",
        rank=rank,
        world_size=recipe.world_size,
        events=columns,
        names=tuple(names.places),
        tracks=tuple(tracks.places),
        operands=tuple(operands.places),
        messages=tuple(messages.places),
        waits=tuple(waits.places),
        devices=(DEVICE,) * min(DEVICES_PER_NODE, recipe.world_size),
        groups=_groups(messages.places),
        begin=BEGIN + begin + (recipe.clocks[rank] if rank < len(recipe.clocks) else 0),
    )


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, dtype=np.int64)


def _track(lane: Lane) -> Track:
    """The track of a thread, or of a stream of the rank's device."""
    if lane.name in (MAIN, AUTOGRAD):
        process = FIRST_PROCESS + lane.rank
        return Track("thread", str(process), str(process + (lane.name == AUTOGRAD) * AUTOGRAD_THREAD))
    return Track("stream", str(lane.rank % DEVICES_PER_NODE), lane.name)


def _groups(messages: Iterable[Message]) -> dict[str, tuple[int, ...]]:
    return {one.group: one.ranks for one in messages}
