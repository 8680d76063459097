"""Traces of all ranks of a job, as a reader of the profiler's files would have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.traces.synthetic.calls import AUTOGRAD, MAIN
from benchmarks.traces.synthetic.machine import Event, Lane, Machine
from benchmarks.traces.synthetic.recipe import Recipe
from benchmarks.traces.synthetic.recording import Recording
from benchmarks.traces.synthetic.steps import programs
from benchmarks.traces.synthetic.truth import Truth, span, truth_of
from planner.measure.traces.events import Device, Trace, Track

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
