"""
``python -m benchmarks.solver --growth``: how the price of a plan grows with devices, layers and what is left open.

Each plan runs in a process of its own, in which another job was planned before, so that neither imports nor the first
use of a module count. Processor time and peak memory are those of ``planner.plan`` with its certificate; the median of
three. Features are pinned to the values of the job's own plan; then each alone is left open, then all of them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks.inputs import job_document
from benchmarks.solver.stages import with_layers
from costmodel.strategy import ENUMS, FLAGS
from planner import load, plan
from planner.jobs.strategy_file import strategy_entries
from planner.search.branch_and_bound import Status

DEVICE = "h100-80gb-sxm"
LENGTH, LEAST_BATCH = 4096, 1024
REPEATS = 3

MODELS = ("llama3-8b", "llama3-70b", "qwen3-30b-a3b", "deepseek-v3")
NUM_DEVICES = (64, 256, 1024, 4096, 16384, 65536, 131072)
FEWEST = {"deepseek-v3": 1024}
"""Devices on which a model fits at all."""

NUM_LAYERS = (16, 32, 64, 96, 128, 160)
OF_LAYERS, OF_FEATURES = ("llama3-70b", 1024), ("qwen3-235b-a22b", 512)
FEATURES = (*ENUMS, *FLAGS)

MAX_EXPONENT = 0.15
"""Power of the number of devices with which processor time may grow."""
MAX_RESIDENT_MB = 220

WARM_UP = job_document("llama3-8b", DEVICE, 8, 128, LENGTH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """
    The price of one plan.

    Parameters
    ----------
    seconds
        Processor time.
    resident_mb
        Peak memory of the process.
    proven
        True where the plan is the proven and certified optimum.
    strategy
        The plan's features, as in a job file.
    """

    seconds: float
    resident_mb: float
    proven: bool
    strategy: dict[str, Any]


def run_growth() -> Iterator[str]:
    """Print the three tables; sentences about what grows too much."""
    print(f"{'devices':40}{'processor s':>12}{'peak MB':>9}")
    for model in MODELS:
        numbers = [number for number in NUM_DEVICES if number >= FEWEST.get(model, 0)]
        found = []
        for number in numbers:
            job = job_document(model, DEVICE, number, max(LEAST_BATCH, number), LENGTH)
            found.append((yield from _price(f"{model} on {number:,}", job)).seconds)
        exponent = fitted_exponent(numbers, found)
        print(f"{model}: devices^{exponent:.3f}", flush=True)
        if exponent > MAX_EXPONENT:
            yield f"processor time of {model} grows as devices^{exponent:.3f}, at most {MAX_EXPONENT:g} is allowed."
    name, number = OF_LAYERS
    found = []
    for layers in NUM_LAYERS:
        job = job_document(name, DEVICE, number, LEAST_BATCH, LENGTH)
        found.append((yield from _price(f"{name} with {layers} layers on {number:,}", job, layers)).seconds)
    print(f"layers^{fitted_exponent(NUM_LAYERS, found):.3f}", flush=True)
    yield from _features(*OF_FEATURES)


def fitted_exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent of the power law through times, by least squares of logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _features(name: str, number: int) -> Iterator[str]:
    def job(pins: dict[str, Any]) -> dict[str, Any]:
        return job_document(name, DEVICE, number, LEAST_BATCH, LENGTH, search={"pin": pins})

    everything = yield from _price(f"{name} on {number}, features open", job({}))
    pins = everything.strategy
    pinned = yield from _price("features pinned", job(pins))
    for feature in pins:
        others = {one: value for one, value in pins.items() if one != feature}
        one = yield from _price(f"{feature} open", job(others))
        print(f"{'':40}{one.seconds / pinned.seconds:12.2f}", flush=True)
    print(f"{'all of them':40}{everything.seconds / pinned.seconds:12.2f}", flush=True)


def _price(name: str, job: dict[str, Any], layers: int = 0) -> Generator[str, None, Price]:
    """Price a plan in processes of its own, print it; sentences about what does not hold."""
    command = [sys.executable, "-m", "benchmarks.solver.growth", json.dumps(job), str(layers)]
    runs = [
        Price(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        for _ in range(REPEATS)
    ]
    seconds, memory = (median(getattr(run, field) for run in runs) for field in ("seconds", "resident_mb"))
    print(f"{name:40}{seconds:12.3f}{memory:9.0f}", flush=True)
    if not all(run.proven for run in runs):
        yield f"{name}: not proven or not certified."
    if memory > MAX_RESIDENT_MB:
        yield f"{name}: peak memory is {memory:.0f} MB of {MAX_RESIDENT_MB} MB."
    return replace(runs[0], seconds=seconds, resident_mb=memory)


def price(job: dict[str, Any], layers: int = 0) -> Price:
    """Plan a job, with another number of layers if one is given, after another job in this process."""
    plan(load(WARM_UP))
    began = time.process_time()
    problem = load(job)
    if layers:
        problem = replace(problem, facts=replace(problem.facts, model=with_layers(problem.facts.model, layers)))
    report = plan(problem)
    seconds = time.process_time() - began
    assert report.certificate is not None
    entries = strategy_entries(problem.facts, report.plans[0].strategy)
    return Price(
        seconds=seconds,
        resident_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        proven=report.outcome.status == Status.OPTIMAL and report.certificate.verdict == "certified",
        strategy={name: value for name, value in entries.items() if name in FEATURES},
    )


if __name__ == "__main__":
    print(json.dumps(asdict(price(json.loads(sys.argv[1]), int(sys.argv[2])))))
