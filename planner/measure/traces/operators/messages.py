"""Collectives and messages in traces: their sizes, and their times without waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.measure.traces.events import UNKNOWN, Category, Message, Trace
from planner.measure.traces.iterations import iteration_numbers

WHOLE = {
    "all_reduce": "elements_in",
    "reduce_scatter": "elements_in",
    "all_gather": "elements_out",
    "all_to_all": "elements_in",
    "broadcast": "elements_in",
    "send": "elements_in",
}
"""Side of each collective that holds the whole tensor, as in the table of samples."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
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
            if message.operation not in (*WHOLE, "recv") or message.dtype.lower() not in ELEMENTS or not _size(message):
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
    return int(getattr(message, WHOLE.get(message.operation, "elements_out")))


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
