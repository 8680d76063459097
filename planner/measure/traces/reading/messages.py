"""Messages of communications: from the profiler's arguments, from the launching operator, or from the name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from costmodel.catalog.files import read
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Message, Operands, Trace
from planner.measure.traces.reading.arguments import ranks, text_of, whole

RULES = "communication.yaml"

"""File in the catalog."""


@cache
def _rules() -> dict[str, Any]:
    rules: dict[str, Any] = read(RULES)
    return rules


@cache
def _patterns(of: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((rule["library"], re.compile(rule["pattern"])) for rule in _rules()[of])


@cache
def _operations() -> dict[str, str]:
    """Operations by the letters of their spellings."""
    return {letters: name for name, others in _rules()["operations"].items() for letters in others}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def operation_of(name: str) -> str:
    """
    Return our name of an operation; an unknown name is returned unchanged.

    >>> operation_of("_allgather_base"), operation_of("AllReduce"), operation_of("fly")
    ('all_gather', 'all_reduce', 'fly')
    """
    return _operations().get(_letters(name), name)


def sends_nothing(name: str) -> bool:
    """
    True where PyTorch's operation on a process group sends nothing.

    >>> sends_nothing("wait"), sends_nothing("allreduce")
    (True, False)
    """
    return _letters(name) in _rules()["none"]


@cache
def _element_bytes() -> dict[str, int]:
    return {letters: nbytes for nbytes, names in _rules()["bytes"].items() for letters in names}


def element_bytes(dtype: str) -> int:
    """
    Return the bytes of an element, by the profiler's name of its type; 0 if the name is unknown.

    >>> element_bytes("c10::BFloat16"), element_bytes("Long"), element_bytes("")
    (2, 8, 0)
    """
    return _element_bytes().get(re.sub(r"[^a-z0-9]", "", dtype.lower()), 0)


@lru_cache(maxsize=2**14)
def find_communication(name: str, *, of: str) -> tuple[str, str] | None:
    """
    Return the library and the operation that a name stands for; None where it does not communicate.

    Parameters
    ----------
    name
        Name of a kernel, or of an annotation.
    of
        ``kernels`` or ``annotations``.

    >>> find_communication("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", of="kernels")
    ('nccl', 'all_reduce')
    """
    for library, pattern in _patterns(of):
        if found := pattern.search(name):
            operation = found.groupdict().get("operation")
            return library, operation_of(operation) if operation else ""
    return None


def number_messages(
    trace: Trace, said: Sequence[Mapping[str, Any]], column: Integers, peer: Integers, library: str
) -> tuple[list[Message], NDArray[np.int32]]:
    """
    Return the messages of a trace, and the place of each event's message among them.

    A kernel's message comes from its own arguments, else from those of the operator that launched it, else from the
    kernel's name. An annotation on the host has a message where its name says that it is the communication itself.

    Parameters
    ----------
    trace
        The trace; its events have no messages yet.
    said, column
        Arguments of communications that the profiler recorded, by the fields of ``COMMUNICATION`` and ``library``, None
        where they are missing; and their place for each event.
    peer
        The other rank, of an operator that sends or receives; shape (events,).
    library
        Communication library of the process groups.
    """
    events, found = trace.events, dict[Message, int]()
    places = np.full(len(events), UNKNOWN, dtype=np.int32)

    def place(row: int, message: Message) -> None:
        places[row] = found.setdefault(message, len(found))

    built = [_build_message(one, trace.groups, library) for one in said]
    has_message = np.array([*(message is not None for message in built), False])[column]
    for row in np.flatnonzero(has_message).tolist():
        is_said = said[column[row]]["library"] is not None
        place(row, _add_library(trace, row, built[column[row]], is_said=is_said))
    on_device = _rows_by_name(trace, column, ON_STREAMS, "kernels")
    operators = np.flatnonzero(has_message & (events.category == Category.OPERATOR))
    calls = trace.calls_of(on_device)
    launchers = np.where(calls == UNKNOWN, UNKNOWN, events.find_enclosing(calls, operators))
    for row, launcher in zip(on_device.tolist(), launchers.tolist(), strict=True):
        place(row, _add_library(trace, row, built[column[launcher]] if launcher != UNKNOWN else None))
    on_host = _rows_by_name(trace, column, (Category.ANNOTATION,), "annotations")
    senders = events.find_enclosing(on_host, np.flatnonzero(peer != UNKNOWN))
    for row, sender in zip(on_host.tolist(), senders.tolist(), strict=True):
        place(row, _message_by_operands(trace, row, int(peer[sender]) if sender != UNKNOWN else UNKNOWN))
    return list(found), places


def _rows_by_name(
    trace: Trace, column: Integers, categories: Sequence[Category], of: Literal["kernels", "annotations"]
) -> NDArray[np.intp]:
    """Return the rows that only their name identifies as communication."""
    name = trace.events.name
    among = np.flatnonzero(np.isin(trace.events.category, categories) & (column == UNKNOWN))
    named = [place for place in np.unique(name[among]) if find_communication(trace.names[place], of=of)]
    return among[np.isin(name[among], named)]


def _add_library(trace: Trace, row: int, message: Message | None, *, is_said: bool = False) -> Message:
    """Complete a message with the library in the kernel's name; build one from the name where there is none."""
    on_stream = trace.events.category[row] in ON_STREAMS
    by_name = find_communication(trace.name_of(row), of="kernels") if on_stream else None
    if message is None:
        return Message(operation=by_name[1], library=by_name[0]) if by_name else Message(operation="")
    return replace(message, library=by_name[0]) if by_name and not is_said else message


def _message_by_operands(trace: Trace, row: int, peer: int) -> Message:
    """Build the message of an annotation: the operation from its name, the input from its operands."""
    library, operation = find_communication(trace.name_of(row), of="annotations") or ("", "")
    place, groups = trace.events.operands[row], trace.groups
    inputs = trace.operands[place] if place != UNKNOWN else Operands((), ())
    elements = sum(prod(sizes) for sizes in inputs.sizes if sizes)
    group, members = next(iter(groups.items())) if len(groups) == 1 else ("", ())
    return Message(
        operation=operation,
        group=group,
        ranks=members,
        num_ranks=len(members),
        elements_in=elements,
        elements_out=_elements_out(operation, elements, len(members)),
        dtype=next((dtype for dtype in inputs.dtypes if dtype), ""),
        peer=peer,
        library=library,
    )


def _build_message(one: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]], library: str) -> Message | None:
    """Build the message of the profiler's arguments; None for an operation that sends nothing."""
    said, group = text_of(one["operation"]), text_of(one["group"])
    if sends_nothing(said):
        return None
    operation = operation_of(said)
    peers = (whole(one["source"]), whole(one["destination"]))
    return Message(
        operation=operation,
        group=group,
        description=text_of(one["description"]),
        ranks=_ranks(one, () if one["library"] is not None else groups.get(group, ())),
        num_ranks=max(whole(one["num_ranks"]), 0),
        elements_in=max(whole(one["elements_in"]), 0),
        elements_out=max(whole(one["elements_out"]), 0),
        dtype=text_of(one["dtype"]),
        peer=next((peer for peer in (peers if operation == "recv" else peers[::-1]) if peer >= 0), UNKNOWN),
        library=library if one["library"] is None else text_of(one["library"]),
    )


def _ranks(one: Mapping[str, Any], of_group: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks of a group; where PyTorch shortened their list, by its name, or by first rank and stride."""
    said = text_of(one["ranks"])
    found = ranks(said) or of_group
    first, stride, number = (whole(one[name]) for name in ("first", "stride", "num_ranks"))
    if found or one["library"] is not None or not said.strip("[] ") or min(first, stride - 1) < 0 or number < 1:
        return found
    return tuple(range(first, first + stride * number, stride))


def _elements_out(operation: str, elements: int, num_ranks: int) -> int:
    """Return the elements that a rank receives; 0 where that depends on the number of ranks, which is unknown."""
    if operation == "all_gather":
        return elements * num_ranks
    if operation == "reduce_scatter":
        return elements // num_ranks if num_ranks else 0
    return elements
