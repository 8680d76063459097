"""Comparison of the traces' device with that of a job, by names and sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from costmodel.facts.device import Device
from planner.measure.traces.events import Trace

HOST = "host processors"
"""Name of a machine without a device, as in the table of samples."""

MODEL = re.compile(r"\b[a-z]{1,3}\d{2,4}[a-z]{0,2}\b")
"""Model number in the name of a device: ``h100`` of both ``NVIDIA H100 80GB HBM3`` and ``h100-80gb-sxm``."""

MOST_MEMORY = 1.2
"""Largest ratio between a device's memory in its driver's report and in a job."""


def name_device(traces: Sequence[Trace]) -> str:
    """Return the name of the traces' device."""
    first = traces[0]
    if not first.has_device:
        return HOST
    return first.devices[0].name or "a device without a name" if first.devices else "a device without a name"


def device_doubt(traces: Sequence[Trace], device: Device) -> str:
    """Return a sentence if the traces' device differs from the job's; "" where nothing shows it."""
    name, samples = name_device(traces), device.calibration.samples
    machine = samples.machine.partition(",")[0] if samples else ""
    job = f"{device.name} {machine}".lower()
    if name == HOST:
        differs = HOST not in job and (device.architecture is not None or bool(MODEL.findall(job)))
    else:
        differs = HOST in job or _is_another(traces[0], job, device)
    if not differs:
        return ""
    return (
        f"The device differs: the traces are of {name}, the job is of {device.name}. Most of the difference comes "
        "from that."
    )


def _is_another(trace: Trace, job: str, device: Device) -> bool:
    """Compare the model numbers in both names, the processors and the memory; unknown values are ignored."""
    if not trace.devices:
        return False
    one = trace.devices[0]
    traced, known = MODEL.findall(one.name.lower()), MODEL.findall(job)
    if traced and known and not any(a in b or b in a for a in traced for b in known):
        return True
    if one.num_processors and device.num_processors and one.num_processors != device.num_processors:
        return True
    ratio = one.memory_bytes / device.memory_bytes
    return bool(one.memory_bytes) and not 1 / MOST_MEMORY < ratio < MOST_MEMORY
