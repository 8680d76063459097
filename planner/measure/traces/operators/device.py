"""Figures of a device that only a trace shows: slowdown of compute next to communication, and late launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from planner.measure.sample.samples import COLLECTIVES
from planner.measure.traces.events import UNKNOWN, Category, Integers, Message, Trace, look_up, overlap_nanoseconds
from planner.measure.traces.iterations import iteration_numbers
from planner.measure.traces.structure.records import find_launchers

BESIDE, ALONE = 0.9, 0.01

"""Share of a kernel's time above which it ran next to communication, and below which it ran alone."""

STEADY, FEWEST = 0.1, 2

"""
Largest half interquartile range over the median for kernels to count as equal work, and least number of each kind.

Persistent kernels have one grid for every size: where sizes were not recorded, only times distinguish them.
"""


Slowdown: TypeAlias = tuple[float, int]
"""
Slowdown of kernels next to communication, and the number of kernels that ran both ways.

It is the median over kinds of kernels, each weighted by its time: median next to communication over the median alone.
"""


def slowdown_beside_communication(traces: Iterable[Trace]) -> Slowdown | None:
    """
    Measure how much slower kernels of equal name, grid and inputs are while communication runs on another stream.

    Only kinds with steady times both ways count.

    Parameters
    ----------
    traces
        Traces of one kind of device; kernels are compared within a trace.

    Returns
    -------
    Slowdown or None
        None where no kind of kernel ran both ways.
    """
    ratios: list[float] = []
    weights: list[float] = []
    number = 0
    for beside, alone in (both for trace in traces for both in _both_ways(trace)):
        ratios.append(float(np.median(beside) / np.median(alone)))
        weights.append(float(beside.sum()))
        number += len(beside) + len(alone)
    if not ratios:
        return None
    return find_weighted_median(ratios, weights), number


def _both_ways(trace: Trace) -> Iterator[tuple[Integers, Integers]]:
    """Yield the nanoseconds next to communication and alone, of each kind of kernel that is steady in both."""
    events = trace.events
    is_kernel = events.category == Category.KERNEL
    computing = np.flatnonzero(is_kernel & (events.message == UNKNOWN) & (events.duration > 0))
    share = communication_overlap_nanoseconds(trace, computing) / np.maximum(events.duration[computing], 1)
    kinds: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    columns = (events.name[computing], events.blocks[computing], _operands(trace, computing))
    for place, kind in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        kinds[kind].append(place)
    for places in kinds.values():
        spent, own = events.duration[computing[places]], share[places]
        beside, alone = spent[own >= BESIDE], spent[own <= ALONE]
        if _is_steady(beside) and _is_steady(alone):
            yield beside, alone


def communication_overlap_nanoseconds(trace: Trace, rows: NDArray[np.intp]) -> Integers:
    """Return the nanoseconds of each event on a stream during which communication runs on any stream; shape (rows,)."""
    events = trace.events
    talking = np.flatnonzero((events.category == Category.KERNEL) & (events.message != UNKNOWN))
    return overlap_nanoseconds(events.start[rows], events.end[rows], events.start[talking], events.end[talking])


def _is_steady(nanoseconds: Integers) -> bool:
    if len(nanoseconds) < FEWEST:
        return False
    low, median, high = np.quantile(nanoseconds, (0.25, 0.5, 0.75))
    return bool((high - low) / 2 <= STEADY * median)


def _operands(trace: Trace, rows: NDArray[np.intp]) -> Integers:
    """Return the inputs of the operator that launched each kernel; ``UNKNOWN`` where they were not recorded."""
    events = trace.events
    operators = trace.of(Category.OPERATOR)
    operators = operators[events.external[operators] != UNKNOWN]
    return look_up(events.external[rows], events.external[operators], events.operands[operators])


def find_weighted_median(values: list[float], weights: list[float]) -> float:
    """
    Return the value below which half of the weight lies.

    >>> find_weighted_median([1.0, 3.0, 2.0], [1.0, 1.0, 5.0])
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(np.array(weights)[order])
    return float(np.array(values)[order][np.searchsorted(reached, reached[-1] / 2)])


def late_launches(trace: Trace) -> Integers:
    """
    Return nanoseconds between the calls of two consecutive kernels for which streams waited.

    A kernel is late if its call begins when its stream is already idle. Where two consecutive kernels of a stream are
    late and one thread launches both, the time between their calls is the CPU launch overhead of a kernel. Calls with
    an interruption between them, such as a wait for the device, are longer, and so is the begin of a pass: use the
    median.

    Parameters
    ----------
    trace
        Trace of one rank.
    """
    events = trace.events
    rows = trace.of(Category.KERNEL)
    call = find_launchers(trace)[rows]
    rows, call = rows[call != UNKNOWN], call[call != UNKNOWN]
    order = np.lexsort((events.start[rows], events.track[rows]))
    rows, call = rows[order], call[order]
    if len(rows) < 3:
        return np.zeros(0, dtype=np.int64)
    same = events.track[rows[1:]] == events.track[rows[:-1]]
    late = np.r_[False, same & (events.start[call[1:]] >= events.end[rows[:-1]])]
    both = late[1:] & late[:-1] & (events.track[call[1:]] == events.track[call[:-1]])
    between: Integers = (events.start[call[1:]] - events.start[call[:-1]])[both]
    return between[between > 0]


WHOLE_OUTPUT = ("all_gather", "recv")

"""Operations whose output holds the whole tensor, as in the table of samples; of all others it is the input."""

ELEMENTS: Mapping[str, tuple[str, int]] = {
    "float": ("fp32", 4),
    "c10::float": ("fp32", 4),
    "bfloat16": ("bf16", 2),
    "c10::bfloat16": ("bf16", 2),
    "half": ("fp16", 2),
    "c10::half": ("fp16", 2),
    "byte": ("fp8", 1),
    "float8_e4m3fn": ("fp8", 1),
    "float8_e5m2": ("fp8", 1),
}

"""Types in lower case as in NCCL's and Gloo's records, and bytes of an element. 8-bit tensors are recorded as bytes."""


@record(frozen=True, kw_only=True, slots=True)
class TracedMessage:
    """
    One collective, or one message from a rank to another.

    Parameters
    ----------
    kind, dtype
        As the table of samples names them.
    nbytes, num_ranks
        Bytes of the whole tensor, and ranks that take part.
    ranks
        The ranks; () where they were not recorded.
    nanoseconds
        Least time over the recorded ranks: the last rank to arrive does not wait for others.
    is_complete
        True where all ranks were recorded, so that none other arrived later.
    """

    kind: str
    dtype: str
    nbytes: int
    num_ranks: int
    ranks: tuple[int, ...]
    nanoseconds: int
    is_complete: bool


def find_messages(traces: Sequence[Trace]) -> tuple[tuple[TracedMessage, ...], Mapping[str, int]]:
    """
    Return the messages of all iterations; and the number of messages without size or kind, by their names.

    The n-th collective of a kind in a group is joined over the group's ranks. The n-th send between two ranks is joined
    with their n-th receive.

    Parameters
    ----------
    traces
        Traces of ranks of one job.
    """
    joined: dict[Hashable, list[tuple[Message, int]]] = defaultdict(list)
    unknown: dict[str, int] = {}
    for place, trace in enumerate(traces):
        count: dict[Hashable, int] = defaultdict(int)
        for row, message in _messages(trace):
            ns = int(trace.events.duration[row])
            if ns <= 0:
                continue
            if (
                message.operation not in (*COLLECTIVES, "recv")
                or message.dtype.lower() not in ELEMENTS
                or not _size(message)
            ):
                name = message.operation or trace.name_of(row)
                unknown[name] = unknown.get(name, 0) + 1
                continue
            key = _key(message, trace.rank if trace.rank is not None else place)
            joined[key, count[key]].append((message, ns))
            count[key] += 1
    return tuple(_join_messages(several) for several in joined.values() if several), unknown


def _messages(trace: Trace) -> Iterator[tuple[int, Message]]:
    """Yield rows with a message: kernels, or without a device the library's annotations on its thread."""
    of = Category.KERNEL if trace.has_device else Category.ANNOTATION
    chosen = (trace.events.message != UNKNOWN) & (trace.events.category == of) & (iteration_numbers(trace) != UNKNOWN)
    for row in np.flatnonzero(chosen).tolist():
        yield row, trace.messages[int(trace.events.message[row])]


def _size(message: Message) -> int:
    return message.elements_out if message.operation in WHOLE_OUTPUT else message.elements_in


def _key(message: Message, rank: int) -> tuple[Hashable, ...]:
    if message.operation in ("send", "recv"):
        ends = (rank, message.peer) if message.operation == "send" else (message.peer, rank)
        return ("send", message.group, *ends)
    return (message.operation, message.group, message.ranks, _size(message))


def _join_messages(several: Iterable[tuple[Message, int]]) -> TracedMessage:
    messages = [message for message, _ in several]
    first = messages[0]
    kind = "send" if first.operation in ("send", "recv") else first.operation
    dtype, element = ELEMENTS[first.dtype.lower()]
    number = 2 if kind == "send" else first.num_ranks or len(first.ranks)
    return TracedMessage(
        kind=kind,
        dtype=dtype,
        nbytes=element * _size(first),
        num_ranks=number,
        ranks=() if kind == "send" else first.ranks,
        nanoseconds=min(ns for _, ns in several),
        is_complete=len(messages) >= number,
    )
