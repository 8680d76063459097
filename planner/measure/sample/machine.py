"""The machine: torch and its device, with name, versions and clock, caches and free memory."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.measure.sample.samples import Machine

INSTALL = "pip install 'pretraining-planner[sample]'"

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
        raise SpecError("", "Measuring operators needs torch, which cannot be imported.", INSTALL) from None
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
