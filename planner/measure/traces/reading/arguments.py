"""Numbers and records from the ``args`` of the profiler's events."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import prod
from typing import Any, Literal

from planner.measure.traces.events import UNKNOWN, Blocks, Device, Operands, Wait

MOST = 2**63

NANOSECONDS_PER_MICROSECOND = 1000


def nanoseconds(microseconds: int | str) -> int:
    """
    Return a time of the profiler in nanoseconds, exactly.

    >>> nanoseconds("1740461679479712.345"), nanoseconds(85), nanoseconds("2.5")
    (1740461679479712345, 85000, 2500)

    Raises
    ------
    ValueError, ArithmeticError, OverflowError
        If it is not a number, or does not fit into 63 bits.
    """
    if type(microseconds) is str:
        if microseconds[-4:-3] == ".":
            return int(microseconds[:-4] + microseconds[-3:])
        return int((Decimal(microseconds) * NANOSECONDS_PER_MICROSECOND).to_integral_value())
    return int(microseconds) * NANOSECONDS_PER_MICROSECOND


def whole(number: object) -> int:
    """
    Return a whole number from a number or its text; ``UNKNOWN`` if it is none, or does not fit into 63 bits.

    >>> whole("12"), whole(12), whole("12.0"), whole(None), whole(2**64)
    (12, 12, 12, -1, -1)
    """
    try:
        found = int(number) if isinstance(number, int) else int(Decimal(str(number)))
    except (ValueError, ArithmeticError):
        return UNKNOWN
    return found if -MOST <= found < MOST else UNKNOWN


def operands(sizes: object, dtypes: object) -> Operands:
    """
    Build the operands of an operator; a list of tensors counts as one operand per tensor.

    >>> operands([[8, 4], [], [[2], [3]]], ["float", "Scalar", "TensorList"]).dtypes
    ('float', 'Scalar', 'TensorList', 'TensorList')
    """
    of_inputs = sizes if isinstance(sizes, list) else []
    types = dtypes if isinstance(dtypes, list) else []
    flat = [
        (tensor, str(types[place]) if place < len(types) else "")
        for place, one in enumerate(of_inputs)
        for tensor in _tensors(one)
    ]
    return Operands(tuple(tensor for tensor, _ in flat), tuple(dtype for _, dtype in flat))


def _tensors(sizes: object) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of each tensor of one input; the sizes of a list of tensors may be lists, too."""
    if not isinstance(sizes, list):
        yield ()
    elif sizes and all(isinstance(one, list) for one in sizes):
        for one in sizes:
            yield from _tensors(one)
    else:
        yield tuple(max(whole(size), 0) for size in sizes)


def blocks(grid: object, block: object, per_processor: object) -> Blocks:
    """
    Read the launch dimensions of a kernel: blocks, threads per block, and blocks per processor.

    >>> blocks([8, 16, 5], [128, 1, 1], "5.925926")
    Blocks(num_blocks=640, threads_per_block=128, blocks_per_processor=5.925926)
    """
    try:
        share = float(str(per_processor))
    except ValueError:
        share = 0.0
    return Blocks(_product(grid), _product(block), share if 0 <= share < MOST else 0.0)


def _product(sizes: object) -> int:
    return prod(max(whole(size), 0) for size in sizes) if isinstance(sizes, list) else 0


WAIT = "cuda_sync_kind"

WAITS: Mapping[str, Literal["device", "stream", "event", "stream_event"]] = {
    "Context Sync": "device",
    "Device Sync": "device",
    "Stream Sync": "stream",
    "Event Sync": "event",
    "Stream Wait Event": "stream_event",
}

"""Scope of a synchronisation, by the name that the profiler gives it."""


def wait(arguments: Mapping[str, Any]) -> Wait | None:
    """Return the object that an event of ``cuda_sync`` waits for; None where its kind is unknown."""
    of = WAITS.get(str(arguments.get(WAIT)))
    if of is None:
        return None
    stream = whole(arguments.get("stream" if of == "stream" else "wait_on_stream"))
    record = whole(arguments.get("wait_on_cuda_event_record_corr_id"))
    return Wait(of, "" if of == "device" or stream in NO_STREAM else str(stream), record)


NO_STREAM = (UNKNOWN, 2**32 - 1)

"""Both mean that no stream is named: the second is -1 as an unsigned number of 32 bits."""


OPERATION = "Collective name"

LIBRARY = "Communication library"

COMMUNICATION: Mapping[str, str] = {
    "operation": OPERATION,
    "group": "Process Group Name",
    "description": "Process Group Description",
    "ranks": "Process Group Ranks",
    "num_ranks": "Group size",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "dtype": "dtype",
    "source": "Src Rank",
    "destination": "Dst Rank",
    "first": "Global rank start",
    "stride": "Global rank stride",
}

"""Names of these arguments in the JSON of the profiler."""


def text_of(seen: object) -> str:
    """Return an argument as text, "" where it is missing."""
    return "" if seen is None else str(seen)


def ranks(text: str) -> tuple[int, ...]:
    """
    Read the ranks of a group; () where the profiler shortened the list.

    >>> ranks("[0, 1]"), ranks("[0, 1, ..., 63]"), ranks("")
    ((0, 1), (), ())
    """
    found = tuple(whole(rank) for rank in text.strip("[] ").split(",") if rank.strip())
    return found if all(rank >= 0 for rank in found) else ()


def peer_of(name: str, concrete: object) -> int:
    """
    Return the other rank of PyTorch's send or receive, which is the input after its tensors and its group.

    >>> peer_of("c10d::send", ["", "", "1", "0"]), peer_of("c10d::send", [])
    (1, -1)
    """
    has_it = name in POINT_TO_POINT and isinstance(concrete, Sequence) and len(concrete) > PEER
    return whole(concrete[PEER]) if has_it else UNKNOWN  # type: ignore[index]


POINT_TO_POINT, PEER = ("c10d::send", "c10d::recv_"), 2

"""Operators whose third input is the other rank."""

MOST_CHARACTERS = 1 << 20

"""Longest text of a list that is parsed."""

LIBRARIES = ("nccl", "gloo", "mpi", "ucc")


def read_description(top: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """
    Read the entries besides the events: those of :class:`Trace`, and the communication library of the process groups.

    ``begin`` is what the profiler subtracted from all times. Entries of an unexpected type are ignored.
    """
    distributed = _plain(top.get("distributedInfo"))
    distributed = distributed if isinstance(distributed, dict) else {}
    world_size = _count(distributed.get("world_size"))
    backend = str(distributed.get("backend", "")).lower()
    known = {
        "rank": _count(distributed.get("rank")),
        "world_size": world_size or None,
        "devices": tuple(_device(one) for one in _dicts(top.get("deviceProperties"))),
        "groups": {
            str(one.get("pg_name", "")): _ranks(one, world_size) for one in _dicts(distributed.get("pg_config"))
        },
        "begin": max(whole(top.get("baseTimeNanoseconds")), 0),
    }
    return known, next((library for library in LIBRARIES if library in backend), "")


def _ranks(group: Mapping[str, Any], world_size: int | None) -> tuple[int, ...]:
    """Return the ranks of a group; PyTorch does not list those of the group of all ranks."""
    found = ranks(str(group.get("ranks", "")))
    size = _count(group.get("pg_size"))
    return found or (tuple(range(world_size)) if world_size and size == world_size else ())


def _device(one: Mapping[str, Any]) -> Device:
    processors = one.get("numSms", one.get("multiProcessorCount", 0))
    return Device(str(one.get("name", "")), max(whole(processors), 0), max(whole(one.get("totalGlobalMem")), 0))


def _count(number: object) -> int | None:
    """Return a number that is not negative, else None."""
    found = whole(number) if number is not None else -1
    return found if found >= 0 else None


def _dicts(entry: object) -> list[dict[str, Any]]:
    plain = _plain(entry)
    return [one for one in plain if isinstance(one, dict)] if isinstance(plain, list) else []


def _plain(entry: object) -> object:
    """Return an entry, parsed if it is text that holds JSON, or a list or dictionary of Python."""
    if not isinstance(entry, str) or len(entry) > MOST_CHARACTERS:
        return entry
    for parse in (json.loads, literal_eval):
        try:
            return parse(entry)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None
