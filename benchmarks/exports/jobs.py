"""Random jobs on Hopper and Blackwell, as somebody would plan them for Megatron-LM."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

from benchmarks.inputs import job_document, read_yaml
from benchmarks.targets.jobs import MODELS, is_sound
from costmodel import catalog

DRAWN = read_yaml(__file__)


def random_jobs(seed: int, target: str | None) -> Iterator[dict[str, Any]]:
    """
    Draw jobs that the planner reads, without end.

    Parameters
    ----------
    seed
        Seed of the draws.
    target
        Target that their plans are exported to; None: no job names one.
    """
    for at in count():
        chooser = random.Random(f"{seed} {at}")
        device = chooser.choice(DRAWN["devices"])
        num_devices = chooser.choice(DRAWN["nodes"]) * catalog.device(device).devices_per_node
        search = {**chooser.choice(DRAWN["search"]), "time_limit_seconds": 25}
        job = job_document(
            chooser.choice(MODELS),
            device,
            num_devices,
            max(num_devices, chooser.choice(DRAWN["batches"])),
            chooser.choice(DRAWN["sequences"]),
            precision=chooser.choice(DRAWN["precisions"]),
            search=search if target is None else {**search, "target": target},
            top=2,
        )
        if is_sound(job):
            yield job
