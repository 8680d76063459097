"""Small traces made by hand."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from planner.measure.traces.events import UNKNOWN, Blocks, Category, Device, Events, Message, Trace, Track, build_table

THREAD, COMPUTE, COMMUNICATION = range(3)
TRACKS = (Track("thread", "1", "1"), Track("stream", "0", "7"), Track("stream", "0", "20"))


def events_of(rows: list[dict[str, int]]) -> Events:
    """Columns of events, in the order of their start; what they do not say is unknown."""
    columns = {
        one.name: np.array([row.get(one.name, 0 if one.name == "nbytes" else UNKNOWN) for row in rows], dtype=np.int64)
        for one in fields(Events)
    }
    return build_table(Events, len(rows), **columns).sort_by_time()


def a_step(*, kernel: str = "gemm", rank: int | None = 0, num_steps: int = 1) -> Trace:
    """
    Steps of 400 us on a device with 10 processors: two kernels on a stream, an all-reduce on another.

    In each, launches at 0, 30 and 60 us, of 10 us. A kernel from 20 to 120 with 5 blocks, an all-reduce from 50 to 250
    with 2, then ``kernel`` from 150 to 350 with unknown blocks. The thread waits for the device from 100 to 360.
    """
    names = ["ProfilerStep#0", "cudaLaunchKernel", "first", "all-reduce", kernel, "cudaDeviceSynchronize"]
    names += [f"ProfilerStep#{number}" for number in range(1, num_steps)]
    step, launch, first, reduce, last, wait = range(6)
    rows: list[dict[str, int]] = []

    def add(begin: int, end: int, name: int, category: Category, track: int = THREAD, **columns: int) -> None:
        row = {"start": 1000 * begin, "duration": 1000 * (end - begin), "name": name, "category": category}
        rows.append({**row, "track": track, **columns})

    for number in range(num_steps):
        at, launched = 400 * number, 10 * number
        add(at, at + 400, step if number == 0 else 5 + number, Category.ANNOTATION)
        for place, begin in enumerate((0, 30, 60)):
            add(at + begin, at + begin + 10, launch, Category.CALL, correlation=launched + place)
        add(at + 20, at + 120, first, Category.KERNEL, COMPUTE, correlation=launched, blocks=0)
        add(at + 50, at + 250, reduce, Category.KERNEL, COMMUNICATION, correlation=launched + 1, blocks=1, message=0)
        add(at + 150, at + 350, last, Category.KERNEL, COMPUTE, correlation=launched + 2)
        add(at + 100, at + 360, wait, Category.CALL, correlation=launched + 3)
    return Trace(
        source="step.json",
        rank=rank,
        world_size=None if rank is None else 1,
        events=events_of(rows),
        names=tuple(names),
        tracks=TRACKS,
        blocks=(Blocks(5, 128, 0.5), Blocks(2, 512, 0.2)),
        messages=(Message("all_reduce", group="0", num_ranks=1, library="nccl"),),
        devices=(Device("H100", 10, 80 * 2**30),),
    )
