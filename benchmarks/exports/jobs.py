"""Random jobs on Hopper and Blackwell, as somebody would plan them for Megatron-LM."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

from benchmarks.inputs import job_document
from benchmarks.targets.jobs import MODELS, is_sound
from costmodel import catalog

DEVICES = ("h100-80gb-sxm", "h100-80gb-sxm", "h200", "gh200-96gb", "b200", "b300", "gb200", "gb300")
NODES = (1, 1, 2, 3, 4, 8, 8, 16, 32, 64, 128)
SEQUENCES = (2048, 4096, 4096, 8192, 32768)
BATCHES = (32, 60, 64, 256, 512, 1024)
PRECISIONS = ("bf16", "bf16", "fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4")

SEARCH: tuple[dict[str, Any], ...] = (
    *[{}] * 6,
    {"fastest": True},
    {"stages": "even"},
    {"stages": "layers"},
    {"pin": {"vpp": 1}},
    {"pin": {"pp": 2, "vpp": 2}},
    {"pin": {"pp": 4}},
    {"pin": {"cp": 2}},
    {"pin": {"recompute": "full"}},
    {"pin": {"activation_offload": True}},
    {"pin": {"optimizer_offload": True}},
    {"pin": {"ep_overlap": True}},
    {"pin": {"cuda_graphs": "none"}},
    {"pin": {"sharding": "weights"}},
)
"""What the job says of the search, most of it nothing."""


def random_jobs(seed: int, target: str | None) -> Iterator[dict[str, Any]]:
    """
    Draw jobs that the planner reads, without end.

    Parameters
    ----------
    seed
        What they are drawn from.
    target
        What their plans are exported to; None: no job says so.
    """
    for at in count():
        chooser = random.Random(f"{seed} {at}")
        device = chooser.choice(DEVICES)
        num_devices = chooser.choice(NODES) * catalog.device(device).devices_per_node
        search = {**chooser.choice(SEARCH), "time_limit_seconds": 25}
        job = job_document(
            chooser.choice(MODELS),
            device,
            num_devices,
            max(num_devices, chooser.choice(BATCHES)),
            chooser.choice(SEQUENCES),
            precision=chooser.choice(PRECISIONS),
            search=search if target is None else {**search, "target": target},
            top=2,
        )
        if is_sound(job):
            yield job
