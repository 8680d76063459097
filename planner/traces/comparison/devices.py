"""Whether traces are of the device that a job runs on, as far as names and sizes tell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from costmodel.facts.device import Device
from costmodel.traces.events import Trace

HOST = "host processors"
"""What a machine without a device is called, as in the table of samples."""

MODEL = re.compile(r"\b[a-z]{1,3}\d{2,4}[a-z]{0,2}\b")
"""A product's number in the name of a device: ``h100`` of both ``NVIDIA H100 80GB HBM3`` and ``h100-80gb-sxm``."""

MOST_MEMORY = 1.2
"""Factor between the memory of one device as its driver says it and as a job does."""


def traced_device_name(traces: Sequence[Trace]) -> str:
    """The device that traces are of."""
    first = traces[0]
    if not first.has_device:
        return HOST
    return first.devices[0].name or "a device without a name" if first.devices else "a device without a name"


def device_doubt(traces: Sequence[Trace], device: Device) -> str:
    """A sentence if the traces are of another device than the job; "" where nothing says so."""
    name, samples = traced_device_name(traces), device.calibration.samples
    machine = samples.machine.partition(",")[0] if samples else ""
    job = f"{device.name} {machine}".lower()
    if name == HOST:
        differs = HOST not in job and (device.architecture is not None or bool(MODEL.findall(job)))
    else:
        differs = HOST in job or _is_another(traces[0], job, device)
    if not differs:
        return ""
    return (
        f"The device differs: the traces are of {name}, the job is of {device.name}. The differences are those of the "
        "devices in the first place."
    )


def _is_another(trace: Trace, job: str, device: Device) -> bool:
    """By the numbers in both names, the processors, and the memory; what is not known says nothing."""
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
