"""Events of a document, one after the other into columns: what is done for each of them is what reading takes."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping
from marshal import dumps
from typing import Any

from costmodel.errors import SpecError
from costmodel.traces.events import ON_STREAMS, UNKNOWN, Category, Wait
from costmodel.traces.reading import arguments as said

CATEGORIES: Mapping[str, int] = {
    "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR,
    "cuda_runtime": Category.CALL,
    "cuda_driver": Category.CALL,
    "hip_runtime": Category.CALL,
    "hip_driver": Category.CALL,
    "xpu_runtime": Category.CALL,
    "xpu_driver": Category.CALL,
    "privateuse1_runtime": Category.CALL,
    "privateuse1_driver": Category.CALL,
    "runtime": Category.CALL,
    "driver": Category.CALL,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.COPY,
    "memcpy": Category.COPY,
    "gpu_memset": Category.FILL,
    "memset": Category.FILL,
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "cuda_sync": Category.SYNCHRONIZATION,
    "python_function": Category.MODULE,
}
"""Categories by the names that releases of PyTorch give them, in small letters."""

OF_STREAMS = frozenset((*ON_STREAMS, Category.DEVICE_ANNOTATION, Category.SYNCHRONIZATION))

LISTED = ("correlation", "sequence", "forward_thread", "operands", "blocks", "message", "wait", "nbytes", "peer")
"""Columns in which many rows have no entry: only those that have one are kept."""

MODULE = "nn.Module: "

MOST_EVENTS = 50_000_000
BYTES_PER_EVENT = 200
"""Of memory: columns, and their copies while they are sorted."""

WITHOUT_REFERENCES = 2
"""Version of marshal that writes equal lists as equal bytes."""

NUMBERS = ("External id", "external id", "correlation", "Sequence number", "Fwd thread id", "bytes")
"""Arguments that have been seen as text."""

WRONG = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What entries of the wrong kind raise."""


class Columns:
    """
    Events as they come.

    Parameters
    ----------
    where
        For messages.

    Attributes
    ----------
    category, name, track, start, duration, external
        Of each event; starts are those of the profiler.
    rows, entries
        Of each column of ``LISTED``: which rows have an entry, and the entry.
    names, tracks, operands, blocks, messages, waits
        What the columns' numbers stand for, as the profiler wrote it, by number.
    seen
        Numbers of events of each category that the profiler wrote and nobody needs.
    num_left_out
        Events whose entries are no numbers, or none of 63 bits.
    """

    def __init__(self, where: str) -> None:
        self.category, self.name, self.track = array("b"), array("i"), array("i")
        self.start, self.duration, self.external = array("q"), array("q"), array("q")
        self.rows = {column: array("q") for column in LISTED}
        self.entries = {column: array("q") for column in LISTED}
        self.names: dict[str, int] = {}
        self.tracks: dict[tuple[bool, Hashable, Hashable], int] = {}
        self.operands: dict[bytes, int] = {}
        self.blocks: dict[bytes, int] = {}
        self.messages: dict[said.Arguments, int] = {}
        self.waits: dict[Wait, int] = {}
        self.seen: dict[str, int] = {}
        self.num_left_out = 0
        self._where = where
        self._categories: dict[Any, int] = dict(CATEGORIES)
        self._add_arguments = {
            Category.OPERATOR: self._add_operator,
            Category.CALL: self._add_call,
            Category.KERNEL: self._add_kernel,
            Category.COPY: self._add_copy,
            Category.FILL: self._add_copy,
            Category.ANNOTATION: self._add_annotation,
            Category.DEVICE_ANNOTATION: self._add_annotation,
            Category.SYNCHRONIZATION: self._add_wait,
            Category.MODULE: self._add_annotation,
        }

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start)

    def add(self, events: Iterable[Any]) -> None:
        """
        Add the events of use.

        Raises
        ------
        SpecError
            If they become too many.
        """
        for event in events:
            row = len(self.start)
            try:
                self._add(event, row)
            except WRONG:
                self._undo(row)
                self._add_mended(event, row)
        if len(self) > MOST_EVENTS:
            gigabytes = MOST_EVENTS * BYTES_PER_EVENT / 1e9
            raise SpecError(
                self._where,
                f"holds more than {MOST_EVENTS:,} events, for which {gigabytes:.0f} GB of memory do not suffice.",
                "Record fewer iterations: one or two are enough.",
            )

    def _add(self, event: dict[str, Any], row: int) -> None:
        """Times first: what is no time is found before anything is written."""
        named = event.get("cat")
        category = self._categories.get(named)
        if category is None:
            category = self._category(named)
        if category < 0 or event["ph"] != "X":
            self.seen[named] = self.seen.get(named, 0) + 1  # type: ignore[index]
            return
        name = event["name"]
        if category == Category.MODULE and not name.startswith(MODULE):
            return
        start, duration = said.nanoseconds(event["ts"]), said.nanoseconds(event.get("dur", 0))
        self.start.append(start)
        self.duration.append(duration)
        arguments = event.get("args") or {}
        process, number = event["pid"], event["tid"]
        if category in ON_STREAMS:
            process, number = arguments.get("device", process), arguments.get("stream", number)
        self.external.append(arguments.get("External id", UNKNOWN))
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.track.append(self.tracks.setdefault((category in OF_STREAMS, process, number), len(self.tracks)))
        self.category.append(category)
        self._add_arguments[category](row, name, arguments)

    def _category(self, named: object) -> int:
        """A category that is written differently; below 0 if it is none."""
        category = CATEGORIES.get(str(named).lower(), UNKNOWN)
        self._categories[named] = category
        return category

    def _undo(self, row: int) -> None:
        """Take the last event back, of which only some columns may be written."""
        for column in (self.category, self.name, self.track, self.start, self.duration, self.external):
            del column[row:]
        for name, rows in self.rows.items():
            while rows and rows[-1] >= row:
                rows.pop()
            del self.entries[name][len(rows) :]

    def _add_mended(self, event: Any, row: int) -> None:
        """Add an event whose numbers are written as text, or leave it out."""
        try:
            arguments = event.get("args") or {}
            numbers = {name: said.whole(arguments[name]) for name in NUMBERS if name in arguments}
            self._add({**event, "args": {**arguments, **numbers}}, row)
        except WRONG:
            self._undo(row)
            self.num_left_out += 1

    # --- what is written of each category --------------------------------------------------------------------

    def _list(self, column: str, row: int, entry: int) -> None:
        """Append first what may be no number of 63 bits."""
        self.entries[column].append(entry)
        self.rows[column].append(row)

    def _add_operator(self, row: int, name: str, arguments: Mapping[str, Any]) -> None:
        if "Sequence number" in arguments:
            self._list("sequence", row, arguments["Sequence number"])
            self._list("forward_thread", row, arguments.get("Fwd thread id", UNKNOWN))
        self._add_annotation(row, name, arguments)
        if name in said.POINT_TO_POINT:
            self._list("peer", row, said.peer_of(name, arguments.get("Concrete Inputs")))

    def _add_annotation(self, row: int, name: str, arguments: Mapping[str, Any]) -> None:
        sizes = arguments.get("Input Dims")
        if sizes is not None:
            key = dumps((sizes, arguments.get("Input type")), WITHOUT_REFERENCES)
            self._list("operands", row, self.operands.setdefault(key, len(self.operands)))
        self._add_message(row, arguments)

    def _add_call(self, row: int, name: str, arguments: Mapping[str, Any]) -> None:
        if "correlation" in arguments:
            self._list("correlation", row, arguments["correlation"])

    def _add_kernel(self, row: int, name: str, arguments: Mapping[str, Any]) -> None:
        self._add_call(row, name, arguments)
        grid = arguments.get("grid")
        if grid is not None:
            key = dumps((grid, arguments.get("block"), arguments.get("blocks per SM")), WITHOUT_REFERENCES)
            self._list("blocks", row, self.blocks.setdefault(key, len(self.blocks)))
        self._add_message(row, arguments)

    def _add_copy(self, row: int, name: str, arguments: Mapping[str, Any]) -> None:
        self._add_call(row, name, arguments)
        if "bytes" in arguments:
            self._list("nbytes", row, arguments["bytes"])
        self._add_message(row, arguments)

    def _add_wait(self, row: int, name: str, arguments: Mapping[str, Any]) -> None:
        self._add_call(row, name, arguments)
        wait = said.wait(arguments)
        if wait:
            self._list("wait", row, self.waits.setdefault(wait, len(self.waits)))

    def _add_message(self, row: int, arguments: Mapping[str, Any]) -> None:
        if said.OPERATION in arguments:
            message = said.communication(arguments)
            self._list("message", row, self.messages.setdefault(message, len(self.messages)))
