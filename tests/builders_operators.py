"""Small traces of operators, written event by event."""

from __future__ import annotations

from typing import Any

from benchmarks.traces.synthetic.recording import COMPUTE, MAIN, Recording
from planner.measure.traces.events import UNKNOWN, Blocks, Category, Device, Message, Operands, Track

__all__ = [
    "AUTOGRAD",
    "COMPUTE",
    "GPU",
    "MAIN",
    "NODE",
    "SENDING",
    "Recording",
    "a_grid",
    "a_linear_step",
    "a_message",
    "one_step",
]

AUTOGRAD = Track("thread", "1", "2")
SENDING = Track("stream", "0", "20")

GPU = Device(name="GPU X", num_processors=100, memory_bytes=10**11)

NODE = "autograd::engine::evaluate_function: "


def one_step(length: int, **entries: Any) -> Recording:
    """A recording of one step of so many nanoseconds."""
    made = Recording(**entries)
    made.step(0, length)
    return made


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
