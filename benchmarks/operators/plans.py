"""How long a plan takes with a sampled device, over what it takes with the roofline of the same device file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from planner.jobs.problem import Problem, load
from planner.measure.fit.device import fit_device
from planner.measure.sample.bench import least_flops, moved_bytes
from planner.measure.sample.samples import Machine, Point, Sample, Timing
from planner.measure.sample.shapes import job_shapes, points_to_measure
from planner.verbs.plan import plan

MOST_RATIO = 1.5
"""Processor time with sampled operators and collectives over that with a roofline."""

ROUNDS = 5
"""Plans of each, in alternation."""

NUM_SAMPLES = 900
"""Samples of ten minutes on a GPU, at 0.7 s each."""

MEMORY_BYTES = 8e10
GROUPS = ((2, 1), (4, 1), (8, 1), (8, 4), (16, 2), (16, 16), (32, 4))
"""Ranks and nodes whose collectives were sampled."""

JOB: Mapping[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 64, "framework": "megatron-lm-0.17"},
    "training": {"global_batch_size": 256, "sequence_length": 8192, "tokens": 1e12},
}
MACHINE = Machine(device="invented", driver="1", software="none", num_processors=132, devices_per_node=8)


def planned() -> Iterator[str]:
    """Print both times; say so where the ratio is too large."""
    entry = fit_device(list(_samples()), name="invented", facts={"base": "h100-80gb-sxm"}).entry
    roofline = {**entry, "calibration": {**entry["calibration"], "times": "modified_roofline"}}
    problems = {name: _problem(device) for name, device in (("samples", entry), ("roofline", roofline))}
    seconds: dict[str, list[float]] = {name: [] for name in problems}
    for _ in range(ROUNDS):
        for name, problem in problems.items():
            started = time.process_time()
            plan(problem)
            seconds[name].append(time.process_time() - started)
    medians = {name: float(np.median(own)) for name, own in seconds.items()}
    ratio = medians["samples"] / medians["roofline"]
    texts = (f"{value:.2f} s with {name}" for name, value in medians.items())
    print(f"A plan takes {', '.join(texts)} of processor time, {ratio:.2f} times as long with samples.")
    if ratio > MOST_RATIO:
        yield f"a plan with samples takes {ratio:.2f} times as long, of at most {MOST_RATIO}."


def _problem(device: Mapping[str, Any]) -> Problem:
    return load({**JOB, "cluster": {**JOB["cluster"], "device": device}})


def _samples() -> Iterator[Sample]:
    """What a machine would measure that follows a roofline, links of 300 and adapters of 45 GB/s, but for its noise."""
    draw = np.random.default_rng(0)
    for point in points_to_measure(job_shapes(load(JOB)), MEMORY_BYTES, group_sizes=GROUPS)[:NUM_SAMPLES]:
        seconds = _seconds(point) * float(np.exp(0.02 * draw.standard_normal()))
        yield Sample(point=point, timing=Timing(seconds=seconds, spread=0.02, repeats=20), machine=MACHINE)


def _seconds(point: Point) -> float:
    sizes = point.sizes
    if sizes.ranks:
        rate = 3e11 if sizes.nodes == 1 else 4.5e10 * sizes.ranks / (sizes.nodes or 1)
        return 1e-5 + 3e-6 * sizes.ranks + (sizes.nbytes or 0) / rate
    if point.operator in ("host_to_device", "device_to_host"):
        return (sizes.nbytes or 0) / 5e10
    return max(least_flops(point) / 6.5e14, moved_bytes(point) / 2.8e12) + 4e-6
