"""Files as PyTorch's profiler writes them, small enough to check by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

SENT = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "7",
    "Process Group Description": "DATA_PARALLEL_GROUP",
    "Process Group Ranks": "[0, 2, 4, 6]",
}
"""What the profiler says of a collective."""


def event(category: str, name: str, ts: Any, dur: Any, *, on: tuple[Any, Any] = (100, 100), **arguments: Any) -> dict:
    """An event on a thread, or on a stream: ``on`` has the process and the thread."""
    process, thread = on
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": ts,
        "dur": dur,
        "args": {key.replace("_", " "): value for key, value in arguments.items()},
    }


def operator(name: str, ts: Any, dur: Any, **arguments: Any) -> dict:
    """An operator on the first thread."""
    return event("cpu_op", name, ts, dur, **arguments)


def kernel(name: str, ts: Any, dur: Any, *, stream: int = 7, **arguments: Any) -> dict:
    """A kernel on the first device."""
    return event("kernel", name, ts, dur, on=(0, stream), device=0, stream=stream, **arguments)


def launch(ts: Any, dur: Any, correlation: int, **arguments: Any) -> dict:
    """A launch on the first thread."""
    return event("cuda_runtime", "cudaLaunchKernel", ts, dur, correlation=correlation, **arguments)


def a_step() -> list[dict]:
    """An iteration with one kernel."""
    return [
        event("user_annotation", "ProfilerStep#3", 1000, 100),
        operator("aten::mm", "1010.000", "20.500", External_id=5),
        launch(1015, 3, 9, External_id=5),
        kernel("gemm", "1020.250", "40.125", correlation=9, External_id=5),
    ]


def graph_steps(num_steps: int = 3, *, last: str = "gemm", ahead: bool = False) -> list[dict]:
    """
    Steps of 882 us that nothing marks: a CUDA graph of 40 kernels of 20 us, 1 us apart, and a synchronisation.

    The graph is launched at the begin of a step, begins 40 us later, and its kernels end after 859 us. Where the host
    is ahead, it launches all graphs in the first step and synchronises at the end of all.
    """
    found = []
    for number in range(num_steps):
        at, correlation = 1000 + 882 * number, 2 * number
        here = 1000 + 35 * number if ahead else at
        found.append(event("cuda_runtime", "cudaGraphLaunch", here, 30, correlation=correlation))
        names = [("norm", "attention", "gemm")[place % 3] for place in range(39)]
        found += [kernel(name, at + 40 + 21 * k, 20, correlation=correlation) for k, name in enumerate([*names, last])]
        if not ahead or number == num_steps - 1:
            begin = here + 30
            dur = at + 882 - begin
            found.append(event("cuda_runtime", "cudaDeviceSynchronize", begin, dur, correlation=correlation + 1))
    return found


def document(events: list[Any], **top: Any) -> dict[str, Any]:
    """A file's content."""
    return {"schemaVersion": 1, **top, "traceEvents": events, "traceName": "trace.json"}


def write_file(path: Path, events: list[Any], *, indent: int | None = None, **top: Any) -> Path:
    """Write a file, packed where its name says so."""
    text = json.dumps(document(events, **top), indent=indent)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def distributed(rank: int, world_size: int, *, groups: dict[str, list[int]] | None = None) -> dict[str, Any]:
    """What the profiler says of the ranks."""
    listed = [
        {"pg_name": name, "pg_desc": "", "pg_size": len(ranks), "ranks": ranks}
        for name, ranks in (groups or {}).items()
    ]
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_config": listed}}
