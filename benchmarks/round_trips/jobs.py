"""Random jobs whose pipelines do not divide the layers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

from benchmarks.inputs import job_document, read_yaml
from benchmarks.targets.jobs import DRAWN as OF_TARGETS
from benchmarks.targets.jobs import MODELS
from costmodel import catalog
from costmodel.errors import PlanningError
from planner import load
from planner.frameworks import TARGETS
from planner.search.runnable import require_runnable

DRAWN = read_yaml(__file__)
SETTINGS = {**OF_TARGETS["settings"], **DRAWN["settings"]}


def random_jobs(seed: int, number: int, seconds: float) -> Iterator[dict[str, Any]]:
    """
    Jobs that the planner takes, of pinned pipelines most of which divide no layers.

    Parameters
    ----------
    seed
        Beginning of the draws.
    number
        Number of jobs.
    seconds
        Time limit of each search.
    """
    drawn = (_draw_job(random.Random(f"{seed} {at}"), seconds) for at in count())
    yield from islice((job for job in drawn if _is_sound(job)), number)


def _draw_job(chooser: random.Random, seconds: float) -> dict[str, Any]:
    model = chooser.choice(MODELS) if chooser.random() < 0.5 else _small_model(chooser)
    device = chooser.choice(DRAWN["devices"])
    per_node = catalog.device(device).devices_per_node
    pp = chooser.choice((3, 5, 6, 7, 4, 8, 12))
    num_devices = chooser.choice(DRAWN["nodes"]) * per_node * (pp if pp in (3, 5, 6, 7) else 1)
    num_layers = load(job_document(model, device, num_devices, 64, 4096)).facts.model.num_layers
    job = job_document(
        model,
        device,
        num_devices,
        chooser.choice((2, 3, 4)) * num_devices,
        chooser.choice((1024, 4096, 8192)),
        precision=chooser.choice(OF_TARGETS["precisions"]),
    )
    vpp = chooser.choice((None, None, 1, 2, 3))
    pins = {"pp": pp} if vpp is None or pp * vpp > num_layers else {"pp": pp, "vpp": vpp}
    job["search"] = {"time_limit_seconds": seconds, "pin": pins, "stages": chooser.choice(("even", "layers", "free"))}
    job["top"] = chooser.choice((1, 3))
    if chooser.random() < 0.3:
        job["search"]["preferences"] = False
    if chooser.random() < 0.15:
        job["search"]["allow"] = {"vocabulary": ["ends", "redistributed"]}
    if chooser.random() < 0.15:
        job["strategy"] = {"tp": 2, "recompute": "full", "tp_overlap": True, "layout": f"{num_layers}"}
        job["strategy"] = {name: own for name, own in job["strategy"].items() if chooser.random() < 0.6}
    for name in chooser.sample(sorted(SETTINGS), k=chooser.choice((0, 0, 1, 2))):
        job.setdefault("settings", {})[name] = chooser.choice(SETTINGS[name])
    target = chooser.choice((None, *TARGETS, "megatron-lm", "megatron-bridge"))
    stack = chooser.choice(DRAWN["stacks"])
    if target is not None:
        job["search"]["target"] = target
        if target in ("deepspeed", "accelerate"):
            job["search"]["pin"] = {}
    elif stack is not None:
        job["cluster"]["framework"] = stack
    return job


def _small_model(chooser: random.Random) -> dict[str, Any]:
    """A made-up model of an odd number of layers: dense, with experts behind dense layers, or of a known base."""
    base = chooser.choice(DRAWN["bases"])
    most = load(job_document(base, "h100-80gb-sxm", 8, 64, 4096)).facts.model.num_layers
    return {"base": base, "num_layers": chooser.choice([own for own in DRAWN["layers"] if own < most])}


def _is_sound(job: dict[str, Any]) -> bool:
    try:
        require_runnable(load(job))
    except PlanningError:
        return False
    return True
