"""Small traces of operators, written event by event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planner.measure.traces.events import UNKNOWN, Blocks, Category, Device, Events, Message, Operands, Trace, Track

MAIN = Track("thread", "1", "1")
AUTOGRAD = Track("thread", "1", "2")
COMPUTE = Track("stream", "0", "7")
SENDING = Track("stream", "0", "20")

GPU = Device(name="GPU X", num_processors=100, memory_bytes=10**11)

NODE = "autograd::engine::evaluate_function: "


@dataclass
class Recording:
    """Events of one rank, which become a trace."""

    rank: int = 0
    devices: tuple[Device, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, category: Category, name: str, start: int, duration: int, *, on: Track = MAIN, **more: Any) -> None:
        """One event: numbers as columns have them, operands, blocks and messages as records."""
        self.rows.append(
            {"category": category, "name": name, "start": start, "duration": duration, "track": on, **more}
        )

    def operator(self, name: str, start: int, duration: int, *sizes: tuple[int, ...], **more: Any) -> None:
        """An operator with inputs of bf16."""
        operands = Operands(sizes, ("c10::BFloat16",) * len(sizes)) if sizes else UNKNOWN
        self.add(Category.OPERATOR, name, start, duration, operands=more.pop("operands", operands), **more)

    def kernel(
        self, name: str, start: int, duration: int, *, call: int = UNKNOWN, number: int = 0, **more: Any
    ) -> None:
        """A kernel, and the call that launched it, if it is said when."""
        if call != UNKNOWN:
            thread = more.pop("thread", MAIN)
            self.add(Category.CALL, "cudaLaunchKernel", call, 1, on=thread, correlation=number)
            more["correlation"] = number
        self.add(Category.KERNEL, name, start, duration, **{"on": COMPUTE, **more})

    def step(self, start: int, duration: int, number: int = 1) -> None:
        """An iteration as the profiler marks it."""
        self.add(Category.ANNOTATION, f"ProfilerStep#{number}", start, duration)

    def trace(self) -> Trace:
        """The trace of all that was added."""
        rows = sorted(self.rows, key=lambda row: (row["start"], -row["duration"]))
        tables: dict[str, dict[Any, int]] = {
            name: {} for name in ("name", "track", "operands", "blocks", "message", "wait")
        }

        def column(name: str, default: Any, kind: type) -> Any:
            values = []
            for row in rows:
                value = row.get(name, default)
                known = tables.get(name)
                values.append(value if known is None or value == UNKNOWN else known.setdefault(value, len(known)))
            return np.array(values, dtype=kind)

        kinds = {"category": np.int8, **dict.fromkeys(tables, np.int32)}
        names = (*Events.__dataclass_fields__,)
        columns = {name: column(name, UNKNOWN, kinds.get(name, np.int64)) for name in names}
        return Trace(
            source=f"rank{self.rank}.json",
            rank=self.rank,
            world_size=None,
            events=Events(**columns),
            names=tuple(tables["name"]),
            tracks=tuple(tables["track"]),
            operands=tuple(tables["operands"]),
            blocks=tuple(tables["blocks"]),
            messages=tuple(tables["message"]),
            waits=tuple(tables["wait"]),
            devices=self.devices,
        )


def a_linear_step(*, at: int = 0, number: int = 1, rank: int = 0) -> Recording:
    """
    One step of a thread: a linear of 8 rows from 4 to 16, its backward pass and an update, in 100 ns.

    The forward pass takes 20 ns, the weight's gradient 25, the input's 15, 3 of the node are its own; the update 10.
    """
    made = Recording(rank=rank)
    made.step(at, 100, number)
    sequence = 10 * number
    made.operator("aten::linear", at + 5, 20, (8, 4), (16, 4), sequence=sequence)
    made.operator("aten::mm", at + 8, 15, (8, 4), (4, 16), sequence=sequence + 1)
    made.operator(f"{NODE}MmBackward0", at + 30, 43, sequence=sequence + 1, forward_thread=1)
    made.operator("MmBackward0", at + 31, 42, (8, 16), sequence=sequence + 1, forward_thread=1)
    made.operator("aten::mm", at + 32, 25, (16, 8), (8, 4))
    made.operator("aten::mm", at + 58, 15, (8, 16), (16, 4))
    made.add(Category.ANNOTATION, "Optimizer.step#AdamW.step", at + 80, 15)
    made.operator("aten::_fused_adamw_", at + 82, 10, operands=Operands(((16, 4),) * 4, ("TensorList",) * 4))
    return made


def a_message(operation: str, *, elements: int, ranks: tuple[int, ...], peer: int = UNKNOWN, **more: Any) -> Message:
    """What a collective of floats says."""
    return Message(
        operation=operation,
        ranks=ranks,
        num_ranks=len(ranks),
        elements_in=elements,
        elements_out=elements,
        dtype="Float",
        peer=peer,
        library="nccl",
        **more,
    )


def a_grid(num_blocks: int) -> Blocks:
    """A grid of blocks with 128 threads."""
    return Blocks(num_blocks, 128, 0.0)
