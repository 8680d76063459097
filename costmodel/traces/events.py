"""What the profiler recorded on one rank, as columns: a million events are a few arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
"""
Whole numbers, one for each row. Times are nanoseconds since the trace began.

Profilers record no finer, and sums of whole numbers are exact: a breakdown adds up to the iteration.
"""

UNKNOWN = -1
"""What a column holds where the profiler recorded nothing."""


class Category(IntEnum):
    """What kind of event a row is; the names of PyTorch's profiler are in brackets."""

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
    """A stretch of a thread that somebody named (``user_annotation``)."""
    DEVICE_ANNOTATION = 6
    """The same on a stream (``gpu_user_annotation``)."""
    SYNCHRONIZATION = 7
    """What a stream or a thread waited for (``cuda_sync``)."""
    MODULE = 8
    """The forward pass of a module (``python_function`` named ``nn.Module: ...``)."""


ON_STREAMS = (Category.KERNEL, Category.COPY, Category.FILL)
"""What occupies a stream."""


@dataclass(frozen=True, slots=True)
class Track:
    """
    A thread of the host, or a stream of a device: what runs one event after the other.

    Parameters
    ----------
    kind, number
        Which of both, and its number as the profiler has it.
    process
        The process of a thread, the device of a stream, as the profiler has it.
    """

    kind: Literal["thread", "stream"]
    process: str
    number: str


@dataclass(frozen=True, slots=True)
class Operands:
    """
    Inputs of an operator.

    Parameters
    ----------
    sizes
        Sizes of each input, () of what is no tensor; lists of tensors one after the other.
    dtypes
        Type of each input as the profiler names it, such as ``c10::BFloat16``.
    """

    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """
    How a kernel lies on a device.

    Parameters
    ----------
    num_blocks, threads_per_block
        Of its grid.
    blocks_per_processor
        Number of its blocks for each processor of the device, as the profiler computed it; 0: not recorded.
    """

    num_blocks: int
    threads_per_block: int
    blocks_per_processor: float


@dataclass(frozen=True, slots=True)
class Message:
    """
    What a communication sends; 0, "" and () are what was not recorded.

    Parameters
    ----------
    operation
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``send``, ``recv``,
        ``barrier``, ``reduce``, ``gather``, ``scatter``, ``dispatch``, ``combine``, ``notify`` (what experts' exchanges
        tell each other in front); "" where a rule knows that it communicates, but not how.
    group, description, ranks, num_ranks
        Name of the process group, what the framework says that it is for, its ranks and their number.
    elements_in, elements_out, dtype
        Elements that this rank puts in and gets out, and their type as the profiler names it.
    peer
        The other rank of a send or receive; ``UNKNOWN`` else.
    library
        ``nccl``, ``gloo``, ``mpi``, ``ucc``, or the name of the rule that knew it.
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


@dataclass(frozen=True, slots=True)
class Wait:
    """
    What a synchronising event waits for.

    Parameters
    ----------
    of
        ``device``, ``stream`` or ``event``: a thread waits; ``stream_event``: a stream waits for an event.
    stream
        Number of the stream that is waited for as the profiler has it; "" where it is not recorded.
    record
        Correlation of the call that recorded the event; ``UNKNOWN`` where it is not recorded.
    """

    of: Literal["device", "stream", "event", "stream_event"]
    stream: str = ""
    record: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Device:
    """
    A device as the profiler describes it.

    Parameters
    ----------
    name, num_processors, memory_bytes
        Its name, streaming multiprocessors or compute units, and memory; "" and 0 where it does not say.
    """

    name: str
    num_processors: int
    memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """
    Events of a trace in the order of their start, the longer first; arrays of shape (events,).

    Parameters
    ----------
    category, name, track
        A :class:`Category`; places in ``Trace.names`` and ``Trace.tracks``.
    start, duration
        Nanoseconds; the first event starts at 0.
    correlation, external
        Numbers that join a call with what it put on a stream, and either with its operator.
    sequence, forward_thread
        Number that joins an operator of the forward pass with that of the backward pass, and on which thread the
        forward one ran.
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

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Events:
        """Some of the events."""
        return Events(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    @property
    def end(self) -> Integers:
        """When each event ends."""
        return self.start + self.duration


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """
    What the profiler recorded on one rank.

    Parameters
    ----------
    source
        Where it comes from, for messages.
    rank, world_size
        Of the process; None where the trace does not say.
    events
        All events, as columns.
    names, tracks, operands, blocks, messages, waits
        What the columns' numbers stand for.
    devices
        The devices of the host.
    groups
        Ranks of each process group by its name.
    begin
        Nanoseconds of the first event on the recording host's clock.
    whole_until
        Nanoseconds since the trace began up to which a broken file has all events, as far as it has them in the order
        of time; None: the file is whole.
    doubts
        Sentences on what is missing, or was mended; what they mean for results.
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

    def of(self, *categories: Category) -> NDArray[np.intp]:
        """Rows of some categories."""
        return np.flatnonzero(np.isin(self.events.category, categories))

    def name_of(self, row: int) -> str:
        """Name of the event in a row."""
        return self.names[int(self.events.name[row])]

    def calls_of(self, rows: NDArray[np.intp]) -> Integers:
        """Rows of the calls that put some events on a stream, by their correlation; of two the outer one."""
        calls = self.of(Category.CALL)
        calls = calls[self.events.correlation[calls] != UNKNOWN]
        if not len(calls):
            return np.full(len(rows), UNKNOWN)
        numbers, first = np.unique(self.events.correlation[calls], return_index=True)
        wanted = self.events.correlation[rows]
        place = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
        found: Integers = np.where(numbers[place] == wanted, calls[first[place]], UNKNOWN)
        return found

    @property
    def has_device(self) -> bool:
        """Whether anything ran on a stream."""
        return bool(np.isin(self.events.category, ON_STREAMS).any())
