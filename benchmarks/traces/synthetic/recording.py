"""Events of one rank, written one by one, which become a trace."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from planner.measure.traces.events import (
    UNKNOWN,
    Blocks,
    Category,
    Device,
    Events,
    Message,
    Operands,
    Trace,
    Track,
    Wait,
    build_table,
)

MAIN = Track("thread", "1", "1")
COMPUTE = Track("stream", "0", "7")

TABLES = {
    "name": "names",
    "track": "tracks",
    "operands": "operands",
    "blocks": "blocks",
    "message": "messages",
    "wait": "waits",
}
"""Columns whose numbers are places in a table of the trace."""


@dataclass
class Recording:
    """
    Events of one rank.

    Parameters
    ----------
    rank, devices
        As in :class:`planner.measure.traces.events.Trace`.
    rows
        Columns of each event; names, tracks, operands and so on are not numbered yet.
    """

    rank: int = 0
    devices: tuple[Device, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        category: Category,
        name: str,
        start: int,
        duration: int,
        *,
        on: Track = MAIN,
        **more: int | Operands | Blocks | Message | Wait | None,
    ) -> None:
        """Add an event; None in a column is unknown."""
        known = {column: value for column, value in more.items() if value is not None}
        self.rows.append(
            {"category": category, "name": name, "start": start, "duration": duration, "track": on, **known}
        )

    def operator(self, name: str, start: int, duration: int, *sizes: tuple[int, ...], **more: Any) -> None:
        """Add an operator with inputs of bf16."""
        operands = Operands(sizes, ("c10::BFloat16",) * len(sizes)) if sizes else None
        self.add(Category.OPERATOR, name, start, duration, **{"operands": operands, **more})

    def kernel(
        self, name: str, start: int, duration: int, *, call: int = UNKNOWN, number: int = 0, **more: Any
    ) -> None:
        """Add a kernel, and the call that launched it where its time is given."""
        if call != UNKNOWN:
            thread = more.pop("thread", MAIN)
            self.add(Category.CALL, "cudaLaunchKernel", call, 1, on=thread, correlation=number)
            more["correlation"] = number
        self.add(Category.KERNEL, name, start, duration, **{"on": COMPUTE, **more})

    def step(self, start: int, duration: int, number: int = 1) -> None:
        """Add an iteration as the profiler marks it."""
        self.add(Category.ANNOTATION, f"ProfilerStep#{number}", start, duration)

    def trace(self, **entries: Any) -> Trace:
        """Build the trace of all events; tables are in the order of their first use."""
        rows = sorted(self.rows, key=lambda row: (row["start"], -row["duration"]))
        tables: dict[str, dict[Any, int]] = {column: {} for column in TABLES}
        columns = {}
        for one in fields(Events):
            values, table = [row.get(one.name, UNKNOWN) for row in rows], tables.get(one.name)
            if table is not None:
                values = [one if one == UNKNOWN else table.setdefault(one, len(table)) for one in values]
            columns[one.name] = np.array(values, dtype=np.int64)
        known = {TABLES[column]: tuple(table) for column, table in tables.items()}
        return Trace(
            **{
                "source": f"rank{self.rank}.json",
                "rank": self.rank,
                "world_size": None,
                "events": build_table(Events, len(rows), **columns),
                "devices": self.devices,
                **known,
                **entries,
            }
        )
