"""Events that the profiler recorded on one rank, as columns: a million events are a few arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import IntEnum
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from costmodel.tables import Table

Integers: TypeAlias = NDArray[np.int64]

"""
Whole numbers, one for each row. Times are nanoseconds since the trace began.

Profilers record no finer, and sums of whole numbers are exact: a breakdown adds up to the iteration.
"""

UNKNOWN = -1

"""Value of a column where the profiler recorded nothing."""


class Category(IntEnum):
    """Category of an event; names of PyTorch's profiler are in brackets."""

    OPERATOR = 0
    """An operator on a thread (``cpu_op``)."""
    CALL = 1
    """A call of the device's runtime or driver (``cuda_runtime``, ``cuda_driver``; of ROCm, too)."""
    KERNEL = 2
    """A kernel on a stream (``kernel``)."""
    COPY = 3
    """A copy on a stream (``gpu_memcpy``)."""
    FILL = 4
    """Memory set on a stream (``gpu_memset``)."""
    ANNOTATION = 5
    """A named interval of a thread (``user_annotation``)."""
    DEVICE_ANNOTATION = 6
    """A named interval of a stream (``gpu_user_annotation``)."""
    SYNCHRONIZATION = 7
    """Synchronisation of a stream or a thread (``cuda_sync``)."""
    MODULE = 8
    """The forward pass of a module (``python_function`` named ``nn.Module: ...``)."""


ON_STREAMS = (Category.KERNEL, Category.COPY, Category.FILL)

"""Categories that occupy a stream."""


def match_names(names: Iterable[str], pattern: str | re.Pattern[str]) -> NDArray[np.bool_]:
    """Return a mask of names in which a pattern is found; one more at the end is False, for unknown names."""
    search = re.compile(pattern).search
    return np.array([*(search(name) is not None for name in names), False])


def look_up(wanted: Integers, keys: Integers, values: NDArray[Any]) -> Integers:
    """
    Return the value of the first key that equals each wanted number; ``UNKNOWN`` where there is none.

    >>> look_up(np.array([7, 5, 6]), np.array([5, 7, 5]), np.array([10, 20, 30])).tolist()
    [20, 10, -1]
    """
    if not len(keys):
        return np.full(len(wanted), UNKNOWN)
    order = np.argsort(keys, kind="stable")
    place = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    return np.where(keys[place] == wanted, values[place], UNKNOWN)


Built = TypeVar("Built", bound=Table)


def build_table(table: type[Built], number: int, /, **columns: NDArray[Any] | int) -> Built:
    """Build a table of whole numbers with a number of rows; columns that are not given are ``UNKNOWN``."""
    types = {name: get_args(get_args(hint)[1])[0] for name, hint in get_type_hints(table).items()}
    given = {name: columns.get(name, UNKNOWN) for name in types}
    return table(
        **{
            name: np.asarray(given[name], kind) if np.ndim(given[name]) else np.full(number, given[name], kind)
            for name, kind in types.items()
        }
    )


@record(frozen=True, slots=True)
class Track:
    """
    A thread of the host, or a stream of a device: it runs one event after the other.

    Parameters
    ----------
    kind, number
        Thread or stream, and its number in the profiler's output.
    process
        Process of a thread, device of a stream, in the profiler's output.
    rank
        Rank that it belongs to in a graph of several; ``UNKNOWN`` in a trace, which is of one.
    """

    kind: Literal["thread", "stream"]
    process: str
    number: str
    rank: int = UNKNOWN


@record(frozen=True, slots=True)
class Operands:
    """
    Inputs of an operator.

    Parameters
    ----------
    sizes
        Sizes of each input, () for inputs that are not tensors; lists of tensors one after the other.
    dtypes
        Type of each input as the profiler names it, such as ``c10::BFloat16``.
    """

    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@record(frozen=True, slots=True)
class Blocks:
    """
    Launch dimensions of a kernel.

    Parameters
    ----------
    num_blocks, threads_per_block
        Blocks of its grid, and threads of a block.
    blocks_per_processor
        Number of its blocks per processor of the device, as the profiler computed it; 0 where it was not recorded.
    """

    num_blocks: int
    threads_per_block: int
    blocks_per_processor: float


@record(frozen=True, slots=True)
class Message:
    """
    Message of a communication; 0, "" and () mark unrecorded values.

    Parameters
    ----------
    operation
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``send``, ``recv``,
        ``barrier``, ``reduce``, ``gather``, ``scatter``, ``dispatch``, ``combine``, ``notify`` (counts sent ahead of an
        MoE all-to-all). Empty where the operation is unknown.
    group, description, ranks, num_ranks
        Name of the process group, the framework's description of it, its ranks and their number.
    elements_in, elements_out, dtype
        Elements that this rank sends and receives, and their type by the profiler's name.
    peer
        The other rank of a send or receive; ``UNKNOWN`` else.
    library
        ``nccl``, ``gloo``, ``mpi``, ``ucc``, or the name of the rule that matched.
    """

    operation: str
    group: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    num_ranks: int = 0
    elements_in: int = 0
    elements_out: int = 0
    dtype: str = ""
    peer: int = UNKNOWN
    library: str = ""


@record(frozen=True, slots=True)
class Wait:
    """
    Object that a synchronising event waits for.

    Parameters
    ----------
    of
        ``device``, ``stream`` or ``event``: a thread waits; ``stream_event``: a stream waits for an event.
    stream
        Number of the awaited stream in the profiler's output; "" where it was not recorded.
    record
        Correlation of the call that recorded the event; ``UNKNOWN`` where it was not recorded.
    """

    of: Literal["device", "stream", "event", "stream_event"]
    stream: str = ""
    record: int = UNKNOWN


@record(frozen=True, slots=True)
class Device:
    """
    A device as the profiler describes it.

    Parameters
    ----------
    name, num_processors, memory_bytes
        Name, streaming multiprocessors or compute units, and memory; "" and 0 where they were not recorded.
    """

    name: str
    num_processors: int
    memory_bytes: int


@record(frozen=True, kw_only=True, slots=True)
class Events(Table):
    """
    Events of a trace in the order of their start, the longer first; arrays of shape (events,).

    Parameters
    ----------
    category, name, track
        A :class:`Category`; places in ``Trace.names`` and ``Trace.tracks``.
    start, duration
        Nanoseconds; the first event starts at 0.
    correlation, external
        Numbers that join a call with its task on a stream, and either with its operator.
    sequence, forward_thread
        Number that joins an operator of the forward pass with that of the backward pass, and the thread of the forward
        one.
    operands, blocks, message, wait
        Places in the tables of the same name.
    nbytes
        Bytes copied or set.
    """

    category: NDArray[np.int8]
    name: NDArray[np.int32]
    track: NDArray[np.int32]
    start: Integers
    duration: Integers
    correlation: Integers
    external: Integers
    sequence: Integers
    forward_thread: Integers
    operands: NDArray[np.int32]
    blocks: NDArray[np.int32]
    message: NDArray[np.int32]
    wait: NDArray[np.int32]
    nbytes: Integers

    @property
    def end(self) -> Integers:
        """End of each event."""
        return self.start + self.duration

    def sort_by_time(self) -> Events:
        """Return the events in the order of their start, the longer first."""
        return self[np.lexsort((-self.duration, self.start))]

    def find_enclosing(self, inner: NDArray[np.intp], outer: NDArray[np.intp]) -> Integers:
        """Return, for each inner row, the last outer row on its track that is still running, else ``UNKNOWN``."""
        found = np.full(len(inner), UNKNOWN)
        if not len(inner) or not len(outer):
            return found
        both = np.concatenate((outer, inner))
        moments, rank = np.unique(self.start[both], return_inverse=True)
        key = self.track[both] * np.int64(len(moments)) + rank
        order = np.argsort(key[: len(outer)], kind="stable")
        before = np.searchsorted(key[: len(outer)][order], key[len(outer) :], side="right") - 1
        candidates = outer[order[before.clip(min=0)]]
        is_around = (before >= 0) & (self.track[candidates] == self.track[inner])
        is_around &= self.end[candidates] >= self.start[inner]
        return np.where(is_around, candidates, UNKNOWN)


@record(frozen=True, kw_only=True, slots=True)
class Trace:
    """
    Events that the profiler recorded on one rank, and the tables for their columns.

    Parameters
    ----------
    source
        Name of its file, for messages.
    rank, world_size
        Rank of the process, and size of its job; None where they were not recorded.
    events
        All events, as columns.
    names, tracks, operands, blocks, messages, waits
        Tables for the numbers in the columns.
    devices
        The devices of the host.
    groups
        Ranks of each process group by its name.
    begin
        Nanoseconds of the first event on the recording host's clock.
    whole_until
        Nanoseconds since the trace began up to which a broken file has all events, if they are in the order of time.
        None if the file is whole.
    doubts
        Sentences on missing or repaired information, and its effect on results.
    """

    source: str
    rank: int | None
    world_size: int | None
    events: Events
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    operands: tuple[Operands, ...] = ()
    blocks: tuple[Blocks, ...] = ()
    messages: tuple[Message, ...] = ()
    waits: tuple[Wait, ...] = ()
    devices: tuple[Device, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    begin: int = 0
    whole_until: int | None = None
    doubts: tuple[str, ...] = ()

    def find_rows(self, *categories: Category) -> NDArray[np.intp]:
        """Return the rows of some categories."""
        return np.flatnonzero(np.isin(self.events.category, categories))

    def name_of(self, row: int) -> str:
        """Return the name of the event in a row."""
        return self.names[int(self.events.name[row])]

    def calls_of(self, rows: NDArray[np.intp]) -> Integers:
        """Return the calls that launched some events, by their correlation; of two nested calls the outer one."""
        calls, correlation = self.find_rows(Category.CALL), self.events.correlation
        calls = calls[correlation[calls] != UNKNOWN]
        return look_up(correlation[rows], correlation[calls], calls)

    def match_name(self, pattern: str | re.Pattern[str]) -> NDArray[np.bool_]:
        """Return a mask of events in whose name a pattern is found."""
        return match_names(self.names, pattern)[self.events.name]

    @property
    def has_device(self) -> bool:
        """True where anything ran on a stream."""
        return bool(np.isin(self.events.category, ON_STREAMS).any())


def union(starts: Integers, ends: Integers) -> Integers:
    """
    Return the begin and end of each stretch that some intervals cover, in order, without contact; shape (stretches, 2).

    >>> union(np.array([5, 0, 1]), np.array([6, 2, 3])).tolist()
    [[0, 3], [5, 6]]
    """
    if not len(starts):
        return np.zeros((0, 2), dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    opens = np.r_[True, starts[1:] > ends[:-1]]
    return np.column_stack([starts[opens], ends[np.r_[opens[1:], True]]])


def length(stretches: Integers) -> int:
    """Return the nanoseconds of intervals that do not overlap."""
    return int((stretches[:, 1] - stretches[:, 0]).sum())


def overlap_nanoseconds(start: Integers, end: Integers, begins: Integers, ends: Integers) -> Integers:
    """
    Return the nanoseconds of each interval that other intervals cover, which may overlap each other.

    >>> one = np.array([0, 10, 20]), np.array([10, 20, 30])
    >>> overlap_nanoseconds(*one, np.array([5, 8]), np.array([12, 18])).tolist()
    [5, 8, 0]
    """
    if not len(begins):
        return np.zeros_like(start)
    begins, ends = union(begins, ends).T
    before = np.r_[0, np.cumsum(ends - begins)]

    def find_covered(time: Integers) -> Integers:
        place = np.searchsorted(begins, time, side="right") - 1
        inside = np.minimum(time - begins[np.maximum(place, 0)], (ends - begins)[np.maximum(place, 0)])
        return np.where(place < 0, 0, before[np.maximum(place, 0)] + inside)

    found: Integers = find_covered(end) - find_covered(start)
    return found
