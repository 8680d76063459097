"""Times of a graph's tasks at other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from costmodel.timing.sampled_source import SampledPasses
from planner.measure.traces.events import UNKNOWN, Integers, Trace
from planner.measure.traces.graph import ExecutionGraph, Kind, Waiting
from planner.measure.traces.shapes.doubts import Notes, sentences, unsized_fraction
from planner.measure.traces.shapes.explaining import Explanations
from planner.measure.traces.shapes.kinds import Alike, alike
from planner.measure.traces.shapes.laws import Machine, machine, overhead_of
from planner.measure.traces.shapes.pieces import pieces_of
from planner.measure.traces.shapes.sampling import find_sampled_ratio
from planner.measure.traces.shapes.sizes import Sizes


class Rule(IntEnum):
    """Source of a task's time at other sizes."""

    KEPT = 0
    """Recorded time: no operator with tensors is behind the task, or it communicates."""
    SCALED = 1
    """Scaled by the work of the operators behind the task, with rates and overhead of this trace."""
    SAMPLED = 2
    """Ratio of sampled times at both sizes."""
    PARAMETERS = 3
    """Scaled by the number of parameters: the task updates them, and has no tensors with sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retimed:
    """
    Times of a graph's tasks at other sizes; arrays of shape (tasks,).

    Parameters
    ----------
    duration
        Nanoseconds.
    how
        A :class:`Rule`; for a task of several operators that of the longest.
    doubts
        Sentences on sizes that are unexplained or ambiguous, on kept times, and on extrapolated ones.
    unsized_fraction
        Share of the total time that is kept because its operators have no sizes.
    """

    duration: Integers
    how: NDArray[np.int8]
    doubts: tuple[str, ...]
    unsized_fraction: float = 0.0


def retime_tasks(
    graph: ExecutionGraph, before: Sizes, after: Sizes, *, samples: SampledPasses | None = None
) -> Retimed:
    r"""
    Time the tasks of a graph at other sizes.

    The time of an operator is a fixed part and a part in proportion to its work. The fixed part is on threads the time
    of the smallest operator of its name, on devices at most the shortest kernel.

    .. math:: t' = t_0 + (t - t_0) \frac{w(\text{after})}{w(\text{before})}, \qquad w = \max(F / R, Q / B)

    F and Q are its FLOPs and bytes by the sizes of its inputs, R and B the rates of large operators in this trace. On
    threads each operator inside a task is timed by itself; its own time is work only where it is most of its time.
    Collectives and gaps between tasks are kept.

    Parameters
    ----------
    graph
        As recorded, or with other passes and messages.
    before, after
        Sizes of the recorded job, and of the other one.
    samples
        Samples of the same machine: sampled matmuls and attention use the ratio of their sampled times instead.

    Raises
    ------
    SpecError
        If the models of both jobs have different parts.
    """
    explanations = Explanations(before, after)
    tasks, notes = graph.tasks, list[Notes]()
    duration, how = tasks.duration.copy(), np.zeros(len(tasks), dtype=np.int8)
    for number, trace in enumerate(graph.traces):
        timed = _find_timed(graph, number)
        if not len(timed):
            continue
        rows, place = np.unique(tasks.event[timed], return_inverse=True)
        found, note = _time_rows(trace, rows, explanations, before.sequence_length, samples)
        notes.append(note)
        measured = trace.events.duration[rows]
        same = tasks.duration[timed] == measured[place]
        share = found.duration / np.maximum(measured, 1)
        duration[timed] = np.where(same, found.duration[place], np.rint(tasks.duration[timed] * share[place]))
        how[timed] = found.how[place]
    return Retimed(duration=duration, how=how, doubts=sentences(notes), unsized_fraction=unsized_fraction(notes))


def _find_timed(graph: ExecutionGraph, number: int) -> NDArray[np.intp]:
    """Return tasks of a trace that neither communicate nor wait; tasks of threads only where there is no device."""
    tasks = graph.tasks
    works = (tasks.message == UNKNOWN) & (tasks.collective == UNKNOWN) & (tasks.waiting == Waiting.NOTHING)
    if graph.traces[number].has_device:
        works &= np.isin(tasks.kind, (Kind.COMPUTE, Kind.COPY))
    has_event = (tasks.trace == number) & (tasks.event != UNKNOWN)
    found: NDArray[np.intp] = np.flatnonzero(works & has_event)
    return found


def _time_rows(
    trace: Trace,
    rows: NDArray[np.intp],
    explanations: Explanations,
    sequence_length: int,
    samples: SampledPasses | None,
) -> tuple[Retimed, Notes]:
    """Time events that are not nested in each other, and note uncertain times."""
    pieces = pieces_of(trace, rows)
    kinds, kind = alike(trace, pieces, explanations, sequence_length=sequence_length)
    here = _machine(kinds, on_device=trace.has_device)
    overheads = [here.overhead] * len(kinds) if trace.has_device else _overheads(kinds, here)
    changes = [
        _change(one, overhead, here, explanations, samples) for one, overhead in zip(kinds, overheads, strict=True)
    ]
    overhead, factor, rule = (np.array(column) for column in zip(*changes, strict=True))
    taken = np.minimum(overhead[kind], pieces.nanoseconds)
    other = np.rint(taken + (pieces.nanoseconds - taken) * factor[kind]).astype(np.int64)
    longest = np.lexsort((pieces.nanoseconds, pieces.place))
    how = np.zeros(len(rows), dtype=np.int8)
    how[pieces.place[longest]] = rule[kind[longest]]
    total = np.zeros(len(rows), dtype=np.int64)
    np.add.at(total, pieces.place, other)
    return Retimed(duration=total, how=how, doubts=()), (kinds, here)


def _change(
    one: Alike, overhead: float, here: Machine, explanations: Explanations, samples: SampledPasses | None
) -> tuple[float, float, Rule]:
    """Return the overhead of an operator, the factor of the rest of its time, and the reason."""
    if one.shape is None and one.on_weights and one.kernel:
        return overhead, explanations.parameters, Rule.PARAMETERS
    if one.shape is None or not one.changes or not one.works:
        return 0.0, 1.0, Rule.KEPT
    sampled = find_sampled_ratio(one, samples) if samples else None
    if sampled is not None:
        return 0.0, sampled, Rule.SAMPLED
    before, after = here.seconds(one.before), here.seconds(one.after)
    return overhead, after / before if before else 1.0, Rule.SCALED


def _machine(kinds: Sequence[Alike], *, on_device: bool) -> Machine:
    working = [one for one in kinds if one.shape is not None and one.works]
    return machine(
        [one.before for one in working],
        np.array([one.nanoseconds for one in working]),
        np.array([one.nanoseconds for one in kinds]),
        on_device=on_device,
    )


def _overheads(kinds: Sequence[Alike], here: Machine) -> list[float]:
    """Return the overhead of each operator of threads, from operators of the same name."""
    by_name: dict[str, list[Alike]] = {}
    for one in kinds:
        by_name.setdefault(one.kernel or one.operator, []).append(one)
    found = {
        name: overhead_of(
            np.array([here.seconds(one.before) for one in several]),
            np.array([one.nanoseconds for one in several]),
            least=here.overhead,
        )
        for name, several in by_name.items()
    }
    return [found[one.kernel or one.operator] for one in kinds]
