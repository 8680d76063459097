"""Records of one measurement: operator, pass, dtype and sizes; seconds, and the machine."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError, install_hint
from costmodel.record import record
from costmodel.validation import shown

PASSES = ("forward", "dgrad", "wgrad", "backward")

"""
Forward; gradient of a matmul's input or weight alone; gradients of all inputs. Operators without backward are forward.
"""

DTYPES = ("bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4")

"""Dtypes of the cost model, and that of optimizer states. Copies have one, too."""

TRACED = "profiler trace"

"""Beginning of the software of a machine whose samples come from a training step, instead of separate measurements."""


@record(frozen=True, kw_only=True, slots=True)
class Sizes:
    """
    Sizes of an operator on one device, by the names of the table's columns; None where one does not apply.

    Parameters
    ----------
    batch, m, n, k
        Matmuls: rows and columns of the result and inner dimension, as in ``costmodel.timing.work.MatmulSize``;
        grouped matmuls count the rows of all groups. ``n`` alone: entries of a vocabulary, parameters, kernels of a
        chain.
    sequences, queries, keys
        Sequences; queries and keys of each.
    heads, kv_heads, qk_head_dim, v_head_dim
        Query heads, key-value heads, widths of a head.
    causal, window
        True where a query reads only earlier tokens; largest number of tokens that it reads.
    rows, width
        Tokens, and elements of each in the result.
    experts, top_k
        Experts, and experts per token.
    nbytes
        Bytes that are copied. For collectives those of the whole tensor: gathered output, scattered input, or all that
        a rank sends in an all-to-all, its own share included; as in ``costmodel.timing.work.Communication``.
    ranks, nodes
        Devices that take part in a collective, and their hosts, with equally many on each.
    """

    batch: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    sequences: int | None = None
    queries: int | None = None
    keys: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    qk_head_dim: int | None = None
    v_head_dim: int | None = None
    causal: bool | None = None
    window: int | None = None
    rows: int | None = None
    width: int | None = None
    experts: int | None = None
    top_k: int | None = None
    nbytes: int | None = None
    ranks: int | None = None
    nodes: int | None = None

    @property
    def applicable(self) -> dict[str, int]:
        """Sizes that apply."""
        named = {name: getattr(self, name) for name in SIZE_COLUMNS}
        return {name: value for name, value in named.items() if value is not None}


SIZE_COLUMNS = tuple(one.name for one in fields(Sizes))


@record(frozen=True, slots=True)
class Point:
    """
    An operator to measure; equal points are measured once.

    Parameters
    ----------
    operator
        Its name in ``OPERATORS``.
    pass_
        One of ``PASSES``.
    dtype
        Dtype of its inputs.
    sizes
        Sizes of the operator.
    beside
        Operator that runs on the device at the same time; "" for none.
    """

    operator: str
    pass_: str
    dtype: str
    sizes: Sizes
    beside: str = ""

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in self.sizes.applicable.items())
        beside = f" overlapped with {self.beside}" if self.beside else ""
        return f"{self.operator} {self.pass_} {self.dtype} {sizes}{beside}"


@record(frozen=True, kw_only=True, slots=True)
class Machine:
    """
    Machine of a measurement.

    Parameters
    ----------
    device, driver, software
        Name of the device; version of its driver, empty if it has none; versions of the libraries, and threads.
    clock_mhz
        Clock of the device when it is busy but far from its power limit, in MHz; None where it is unknown.
    memory_bytes, num_processors
        Bytes of the device's memory, free or not; number of its processors (SMs of a GPU, threads on a host). None
        where it is unknown.
    devices_per_node
        Number of such devices in the host; None where it is unknown.
    """

    device: str
    driver: str
    software: str
    clock_mhz: float | None = None
    memory_bytes: int | None = None
    num_processors: int | None = None
    devices_per_node: int | None = None

    def __str__(self) -> str:
        return ", ".join(text for text in (self.device, self.driver, self.software) if text)


NOTHING = 1e-9

"""Seconds below the resolution of all clocks."""


@record(frozen=True, slots=True)
class Timing:
    """
    Measured time.

    Parameters
    ----------
    seconds
        Median over the repeats.
    spread
        Half the interquartile range, as a fraction of the median.
    repeats
        Number of repeats.
    """

    seconds: float
    spread: float
    repeats: int

    @classmethod
    def summarize(cls, seconds: Sequence[float]) -> Timing:
        """Summarise some repeats."""
        if len(seconds) == 1:
            return cls(seconds[0], 0.0, 1)
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, (high - low) / 2 / max(median, NOTHING), len(seconds))


@record(frozen=True, slots=True)
class Sample:
    """
    One row of the table.

    Parameters
    ----------
    point, timing, machine
        The measured point, its time, and the machine.
    """

    point: Point
    timing: Timing
    machine: Machine


@record(frozen=True, kw_only=True, slots=True)
class Kind:
    """
    Columns and passes of an operator in the table.

    Parameters
    ----------
    needs, may
        Sizes that each of its rows must have, and may have.
    passes
        Its passes.
    """

    needs: tuple[str, ...]
    may: tuple[str, ...] = ()
    passes: tuple[str, ...] = ("forward", "backward")


_LINEAR = ("forward", "dgrad", "wgrad")

_ALONE = ("forward",)

_ROWS = Kind(needs=("rows", "width"))

_COLLECTIVE = Kind(needs=("nbytes", "ranks", "nodes"), passes=_ALONE)

OPERATORS: Mapping[str, Kind] = {
    "matmul": Kind(needs=("m", "n", "k"), passes=_LINEAR),
    "batched_matmul": Kind(needs=("batch", "m", "n", "k"), passes=_LINEAR),
    "grouped_matmul": Kind(needs=("batch", "m", "n", "k"), passes=_LINEAR),
    "attention": Kind(
        needs=("sequences", "queries", "keys", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "causal"),
        may=("window",),
    ),
    "rms_norm": _ROWS,
    "layer_norm": _ROWS,
    "rotary": Kind(needs=("rows", "heads", "qk_head_dim")),
    "swiglu": _ROWS,
    "gelu": _ROWS,
    "squared_relu": _ROWS,
    "softmax": _ROWS,
    "cross_entropy": _ROWS,
    "embedding": Kind(needs=("rows", "width", "n")),
    "top_k": Kind(needs=("rows", "experts", "top_k")),
    "permutation": Kind(needs=("rows", "width", "experts", "top_k")),
    "residual": Kind(needs=("rows", "width"), passes=_ALONE),
    "adam": Kind(needs=("n",), passes=_ALONE),
    "host_adam": Kind(needs=("n",), passes=_ALONE),
    "copy": Kind(needs=("nbytes",), passes=_ALONE),
    "host_to_device": Kind(needs=("nbytes",), passes=_ALONE),
    "device_to_host": Kind(needs=("nbytes",), passes=_ALONE),
    "launch": Kind(needs=("n",), passes=_ALONE),
    "graph_launch": Kind(needs=("n",), passes=_ALONE),
    "all_gather": _COLLECTIVE,
    "reduce_scatter": _COLLECTIVE,
    "all_reduce": _COLLECTIVE,
    "broadcast": _COLLECTIVE,
    "all_to_all": _COLLECTIVE,
    "send": _COLLECTIVE,
}

"""
Every operator of the table.

Seconds of ``launch`` and ``graph_launch`` are those of one of ``n`` kernels; seconds of ``send`` are one way of a
message that is sent back.
"""

COLLECTIVES = tuple(name for name, kind in OPERATORS.items() if kind is _COLLECTIVE)

"""Operators in which several devices take part."""


DEVICES = ("cuda", "cpu")

UNKNOWN_CACHE_BYTES = 64 * 2**20

"""Last-level cache of a device that does not report its own: a common size."""

BUSY_CYCLES = 4_000_000_000

"""Cycles for which a GPU is kept busy while its clock is read: some two seconds."""

SMI_SECONDS = 20

"""Seconds that the driver's tool has to answer."""


def require_torch() -> Any:
    """
    Import torch.

    Raises
    ------
    SpecError
        If it is not installed.
    """
    try:
        import torch
    except (ImportError, OSError):  # the latter of libraries that it does not find
        raise SpecError(
            "", "Measuring operators needs torch, which cannot be imported.", install_hint("sample")
        ) from None
    return torch


def device_of(torch: Any, device: str = "") -> str:
    """
    Return the device to measure, ``cuda`` or ``cpu``: the given one, else the GPU if there is one.

    Raises
    ------
    SpecError
        If it cannot be measured, or is not there.
    """
    if not device:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in DEVICES:
        raise SpecError("device", f"is {shown(device)}; expected cuda or cpu.")
    if device == "cuda" and not torch.cuda.is_available():
        raise SpecError(
            "device", f"is 'cuda', but torch {torch.__version__} sees no GPU.", "Use cpu, or another torch."
        )
    return device


def machine_of(torch: Any, device: str) -> Machine:
    """Describe this machine for the table."""
    software = f"torch {torch.__version__}, python {platform.python_version()}, {torch.get_num_threads()} threads"
    if device == "cpu":
        return Machine(
            device=_processor_name(),
            driver="",
            software=software,
            clock_mhz=_processor_clock(),
            memory_bytes=_host_memory(),
            num_processors=torch.get_num_threads(),
            devices_per_node=1,
        )
    runtime = f"cuda {torch.version.cuda}" if torch.version.cuda else f"hip {getattr(torch.version, 'hip', None)}"
    driver, clock = _ask_driver(torch)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Machine(
        device=torch.cuda.get_device_name(),
        driver=driver,
        software=f"{software}, {runtime}{_collectives_library(torch)}",
        clock_mhz=clock,
        memory_bytes=int(properties.total_memory),
        num_processors=int(properties.multi_processor_count),
        devices_per_node=torch.cuda.device_count(),
    )


def _collectives_library(torch: Any) -> str:
    """Return the version of NCCL or its replacement; "" where the library was built without."""
    with suppress(AttributeError, ImportError, RuntimeError):
        return f", nccl {'.'.join(str(one) for one in torch.cuda.nccl.version())}"
    return ""


def _host_memory() -> int:
    """Return the bytes of the host's memory, or of its control group's if that is less."""
    limit = _read(Path("/sys/fs/cgroup/memory.max"))
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, int(limit)) if limit.isdigit() else whole


def cache_bytes(torch: Any, device: str) -> int:
    """Return the bytes of the last-level cache."""
    if device == "cuda":
        return (
            int(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0))
            or UNKNOWN_CACHE_BYTES
        )
    sizes = [_read(path) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    found = [int(size[:-1]) * 1024 for size in sizes if re.fullmatch(r"\d+K", size)]
    return max(found, default=UNKNOWN_CACHE_BYTES)


def free_bytes(torch: Any, device: str) -> int:
    """Return the bytes of free memory: of the device, or of the host within its control group."""
    if device == "cuda":
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # kept by the library for reuse
        return int(torch.cuda.mem_get_info()[0] + kept)
    free = re.search(r"MemAvailable: +(\d+) kB", _read(Path("/proc/meminfo")))
    whole = int(free[1]) * 1024 if free else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    limit, used = (_read(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    return min(whole, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else whole


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _processor_name() -> str:
    found = re.search(r"^model name\s*: (.+)$", _read(Path("/proc/cpuinfo")), flags=re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine() or "cpu"


def _processor_clock() -> float | None:
    kilohertz = _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"))
    return int(kilohertz) / 1000 if kilohertz.isdigit() else None


def _ask_driver(torch: Any) -> tuple[str, float | None]:
    """Return the driver's version and the clock of a busy GPU; nothing where the driver's tool is missing."""
    asked = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm", "--format=csv,noheader,nounits"]
    uuid = str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))
    torch.cuda._sleep(BUSY_CYCLES)
    try:
        command = [*asked, f"--id=GPU-{uuid.removeprefix('GPU-')}"] if uuid else asked
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SMI_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return "", None
    finally:
        torch.cuda.synchronize()
    driver, _, clock = (answer.splitlines() or [""])[0].partition(", ")
    return driver.strip(), float(clock) if re.fullmatch(r" *[\d.]+ *", clock) else None
