"""Messages of communications: from the profiler's arguments, from the launching operator, or from the name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Message, Operands
from planner.measure.traces.reading.arguments import Arguments, ranks
from planner.measure.traces.reading.communication import Known, known, operation_of, sends_nothing

Places: TypeAlias = NDArray[np.intp]


class Rows(NamedTuple):
    """
    Columns of a trace that identify communications; arrays of shape (events,).

    Parameters
    ----------
    category, name, track, start, duration, correlation, operands
        As in :class:`~planner.measure.traces.events.Events`.
    message
        Places among the arguments that the profiler recorded.
    peer
        The other rank, of an operator that sends or receives.
    """

    category: NDArray[np.int8]
    name: NDArray[np.int32]
    track: NDArray[np.int32]
    start: Integers
    duration: Integers
    correlation: Integers
    operands: NDArray[np.int32]
    message: Integers
    peer: Integers


class Tables(NamedTuple):
    """
    Tables behind the numbers in the columns.

    Parameters
    ----------
    names, operands
        As in :class:`~planner.measure.traces.events.Trace`.
    said
        Arguments of communications that the profiler recorded.
    groups, library
        Process groups and communication library of the trace.
    """

    names: Sequence[str]
    operands: Sequence[Operands]
    said: Sequence[Arguments]
    groups: Mapping[str, tuple[int, ...]]
    library: str


def messages(rows: Rows, tables: Tables) -> tuple[NDArray[np.int32], tuple[Message, ...]]:
    """
    Return the place of each event's message, and the messages.

    A kernel's message comes from its own arguments, else from those of the operator that launched it, else from the
    kernel's name. An annotation on the host has a message where its name says that it is the communication itself.
    """
    found: dict[Message, int] = {}
    column = np.full(len(rows.start), UNKNOWN, dtype=np.int32)
    by_place = [_build_message(one, tables) for one in tables.said]

    def place(row: int, message: Message) -> None:
        column[row] = found.setdefault(message, len(found))

    has_message = np.array([*(message is not None for message in by_place), False])[rows.message]
    for row in np.flatnonzero(has_message).tolist():
        place(row, _add_library(by_place[rows.message[row]], rows, tables, row))
    on_device = _rows_by_name(rows, tables, ON_STREAMS, "kernels")
    for row, launcher in zip(on_device.tolist(), _launchers(rows, on_device, has_message), strict=True):
        message = by_place[rows.message[launcher]] if launcher != UNKNOWN else None
        place(row, _add_library(message, rows, tables, row))
    on_host = _rows_by_name(rows, tables, (Category.ANNOTATION,), "annotations")
    senders = _find_enclosing(rows, on_host, np.flatnonzero(rows.peer != UNKNOWN))
    for row, sender in zip(on_host.tolist(), senders, strict=True):
        place(row, _message_by_operands(rows, tables, row, int(rows.peer[sender]) if sender != UNKNOWN else UNKNOWN))
    return column, tuple(found)


# --- which rows, and who launched them -----------------------------------------------------------------------


def _rows_by_name(
    rows: Rows, tables: Tables, categories: Sequence[Category], of: Literal["kernels", "annotations"]
) -> Places:
    """Return the rows that only their name identifies as communication."""
    among = np.flatnonzero(np.isin(rows.category, categories) & (rows.message == UNKNOWN))
    named = [place for place in np.unique(rows.name[among]) if known(tables.names[place], of=of)]
    return among[np.isin(rows.name[among], named)]


def _launchers(rows: Rows, kernels: Places, has_message: NDArray[np.bool_]) -> Integers:
    """Return the operator with recorded arguments around the launch of each kernel; ``UNKNOWN`` where there is none."""
    calls = np.flatnonzero((rows.category == Category.CALL) & (rows.correlation != UNKNOWN))
    calls = calls[np.argsort(rows.correlation[calls], kind="stable")]
    launchers = np.full(len(kernels), UNKNOWN)
    if len(calls) and len(kernels):
        wanted = rows.correlation[kernels]
        near = calls[np.searchsorted(rows.correlation[calls], wanted).clip(max=len(calls) - 1)]
        launched = (rows.correlation[near] == wanted) & (wanted != UNKNOWN)
        operators = np.flatnonzero(has_message & (rows.category == Category.OPERATOR))
        launchers[launched] = _find_enclosing(rows, near[launched], operators)
    return launchers


def _find_enclosing(rows: Rows, inner: Places, outer: Places) -> Integers:
    """Return, for each inner row, the last outer row on its track that is still running, else ``UNKNOWN``."""
    found = np.full(len(inner), UNKNOWN)
    if not len(inner) or not len(outer):
        return found
    moments, rank = np.unique(rows.start[np.concatenate((outer, inner))], return_inverse=True)
    key = rows.track[np.concatenate((outer, inner))] * np.int64(len(moments)) + rank
    order = np.argsort(key[: len(outer)], kind="stable")
    before = np.searchsorted(key[: len(outer)][order], key[len(outer) :], side="right") - 1
    candidates = outer[order[before.clip(min=0)]]
    is_around = (before >= 0) & (rows.track[candidates] == rows.track[inner])
    is_around &= rows.start[candidates] + rows.duration[candidates] >= rows.start[inner]
    found[is_around] = candidates[is_around]
    return found


# --- what they say ---------------------------------------------------------------------------------------------


def _build_message(one: Arguments, tables: Tables) -> Message | None:
    """Build the message of the profiler's arguments; None for an operation that sends nothing."""
    if sends_nothing(one.operation):
        return None
    operation = operation_of(one.operation)
    peers = (one.source, one.destination) if operation == "recv" else (one.destination, one.source)
    return Message(
        operation=operation,
        group=one.group,
        description=one.description,
        ranks=_ranks(one, tables.groups),
        num_ranks=max(one.num_ranks, 0),
        elements_in=max(one.elements_in, 0),
        elements_out=max(one.elements_out, 0),
        dtype=one.dtype,
        peer=next((peer for peer in peers if peer >= 0), UNKNOWN),
        library=tables.library if one.library is None else one.library,
    )


def _ranks(one: Arguments, groups: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the ranks of a group; where PyTorch shortened their list, by its name, or by first rank and stride."""
    found = ranks(one.ranks)
    if one.library is not None:
        return found
    found = found or groups.get(one.group, ())
    if found or not one.ranks.strip("[] ") or min(one.first, one.stride - 1) < 0 or one.num_ranks < 1:
        return found
    return tuple(range(one.first, one.first + one.stride * one.num_ranks, one.stride))


def _add_library(message: Message | None, rows: Rows, tables: Tables, row: int) -> Message:
    """Complete a message with the library in the kernel's name; build one from the name alone where there is none."""
    by_name = known(tables.names[rows.name[row]], of="kernels") if rows.category[row] in ON_STREAMS else None
    if message is None:
        return Message(operation=by_name.operation, library=by_name.library) if by_name else Message(operation="")
    is_said = rows.message[row] != UNKNOWN and tables.said[rows.message[row]].library is not None
    return replace(message, library=by_name.library) if by_name and not is_said else message


def _message_by_operands(rows: Rows, tables: Tables, row: int, peer: int) -> Message:
    """Build the message of an annotation: the operation from its name, the input from its operands."""
    by_name = known(tables.names[rows.name[row]], of="annotations") or Known("", "")
    inputs = tables.operands[rows.operands[row]] if rows.operands[row] != UNKNOWN else Operands((), ())
    elements = sum(prod(sizes) for sizes in inputs.sizes if sizes)
    group, members = next(iter(tables.groups.items())) if len(tables.groups) == 1 else ("", ())
    return Message(
        operation=by_name.operation,
        group=group,
        ranks=members,
        num_ranks=len(members),
        elements_in=elements,
        elements_out=_elements_out(by_name.operation, elements, len(members)),
        dtype=next((dtype for dtype in inputs.dtypes if dtype), ""),
        peer=peer,
        library=by_name.library,
    )


def _elements_out(operation: str, elements: int, num_ranks: int) -> int:
    """Return the elements that a rank receives; 0 where that depends on the number of ranks, which is unknown."""
    if operation == "all_gather":
        return elements * num_ranks
    if operation == "reduce_scatter":
        return elements // num_ranks if num_ranks else 0
    return elements
