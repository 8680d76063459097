"""How long the tasks of a graph would take at other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.operators.sampled_source import SampledPasses
from costmodel.traces.events import UNKNOWN, Integers, Trace
from costmodel.traces.graph import ExecutionGraph, Kind, Waiting
from costmodel.traces.shapes.doubts import Notes, sentences, unsized_fraction
from costmodel.traces.shapes.explaining import Explanations
from costmodel.traces.shapes.kinds import Alike, alike
from costmodel.traces.shapes.laws import Machine, machine, overhead_of
from costmodel.traces.shapes.pieces import pieces_of
from costmodel.traces.shapes.sampling import sampled_ratio
from costmodel.traces.shapes.sizes import Sizes


class Rule(IntEnum):
    """How a task's time at other sizes was found."""

    KEPT = 0
    """As it was: no operator with tensors is behind it, or it communicates."""
    SCALED = 1
    """By the work of the operators behind it, with the rates and the overhead that this trace shows."""
    SAMPLED = 2
    """By sampled times of both sizes."""
    PARAMETERS = 3
    """By the number of parameters: it updates them, and has no tensors that say how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retimed:
    """
    Times of a graph's tasks at other sizes; arrays of shape (tasks,).

    Parameters
    ----------
    duration
        Nanoseconds.
    how
        A :class:`Rule`; of a task of several operators that of the longest.
    doubts
        Sentences on sizes that nothing explains, or several things; on what was kept; on what is extrapolated.
    unsized_fraction
        Share of all time that stays because its operators have no sizes.
    """

    duration: Integers
    how: NDArray[np.int8]
    doubts: tuple[str, ...]
    unsized_fraction: float = 0.0


def retimed(graph: ExecutionGraph, before: Sizes, after: Sizes, *, samples: SampledPasses | None = None) -> Retimed:
    r"""
    Time the tasks of a graph at other sizes.

    Each operator's time is a fixed part, on threads what the smallest of its name takes, on devices at most the
    shortest kernel, and a rest that goes with its work:

    .. math:: t' = t_0 + (t - t_0) \frac{w(\text{after})}{w(\text{before})}, \qquad w = \max(F / R, Q / B)

    F and Q are its FLOPs and bytes by the sizes of its inputs, R and B the rates that large operators achieve in this
    trace. On threads every operator inside a task is timed by itself; what it takes beside the operators inside it is
    work only where it is most of its time. Collectives and the gaps between tasks stay.

    Parameters
    ----------
    graph
        As it was recorded, or with other passes and messages.
    before, after
        Sizes of the job that was recorded, and of the other one.
    samples
        Of the same machine: sampled matmuls and attention take the ratio of their sampled times instead.

    Raises
    ------
    SpecError
        If the models of both jobs are made of different parts.
    """
    explanations = Explanations(before, after)
    tasks, notes = graph.tasks, list[Notes]()
    duration, how = tasks.duration.copy(), np.zeros(len(tasks), dtype=np.int8)
    for number, trace in enumerate(graph.traces):
        timed = _timed(graph, number)
        if not len(timed):
            continue
        rows, place = np.unique(tasks.event[timed], return_inverse=True)
        found, note = _of_rows(trace, rows, explanations, before.sequence_length, samples)
        notes.append(note)
        measured = trace.events.duration[rows]
        same = tasks.duration[timed] == measured[place]
        share = found.duration / np.maximum(measured, 1)
        duration[timed] = np.where(same, found.duration[place], np.rint(tasks.duration[timed] * share[place]))
        how[timed] = found.how[place]
    return Retimed(duration=duration, how=how, doubts=sentences(notes), unsized_fraction=unsized_fraction(notes))


def _timed(graph: ExecutionGraph, number: int) -> NDArray[np.intp]:
    """Tasks of a trace that neither communicate nor wait; of threads only where there is no device."""
    tasks = graph.tasks
    works = (tasks.message == UNKNOWN) & (tasks.collective == UNKNOWN) & (tasks.waiting == Waiting.NOTHING)
    if graph.traces[number].has_device:
        works &= np.isin(tasks.kind, (Kind.COMPUTE, Kind.COPY))
    has_event = (tasks.trace == number) & (tasks.event != UNKNOWN)
    found: NDArray[np.intp] = np.flatnonzero(works & has_event)
    return found


def _of_rows(
    trace: Trace,
    rows: NDArray[np.intp],
    explanations: Explanations,
    sequence_length: int,
    samples: SampledPasses | None,
) -> tuple[Retimed, Notes]:
    """Times of events that lie in none of each other, and what is not sure of them."""
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
    return Retimed(duration=total, how=how, doubts=()), Notes(kinds=kinds, here=here)


class _Change(NamedTuple):
    """What is overhead of an operator's time, by what the rest is multiplied, and why."""

    overhead: float
    factor: float
    rule: Rule


def _change(
    one: Alike, overhead: float, here: Machine, explanations: Explanations, samples: SampledPasses | None
) -> _Change:
    if one.shape is None and one.on_weights and one.kernel:
        return _Change(overhead, explanations.parameters, Rule.PARAMETERS)
    if one.shape is None or not one.changes or not one.works:
        return _Change(0.0, 1.0, Rule.KEPT)
    sampled = sampled_ratio(one, samples) if samples else None
    if sampled is not None:
        return _Change(0.0, sampled, Rule.SAMPLED)
    before, after = here.seconds(one.before), here.seconds(one.after)
    return _Change(overhead, after / before if before else 1.0, Rule.SCALED)


def _machine(kinds: Sequence[Alike], *, on_device: bool) -> Machine:
    working = [one for one in kinds if one.shape is not None and one.works]
    return machine(
        [one.before for one in working],
        np.array([one.nanoseconds for one in working]),
        np.array([one.nanoseconds for one in kinds]),
        on_device=on_device,
    )


def _overheads(kinds: Sequence[Alike], here: Machine) -> list[float]:
    """Of threads: nanoseconds of each that do not go with its work, by what those of the same name take."""
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
