"""Stages that differ: time to the proof and gain, tight pipelines, top k, explanations, a thousand jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np

from benchmarks.inputs import job_document
from costmodel.facts.model import Model
from costmodel.step.estimate import estimate
from costmodel.step.step import cost
from planner import load
from planner.jobs.limits import StageChoice
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import Outcome
from planner.search.questions import search
from planner.search.space import build_space
from planner.verbs.explain import explain

MAX_SECONDS = {"llama3-405b": 3.0, "deepseek-v3": 10.0}
NUM_DEVICES = (64, 2048, 8192, 65536)

NUM_TIGHT, MAX_TIGHT_MEDIAN, MAX_TIGHT_P95 = 40, 1.0, 8.0
MAX_TOP_10, MAX_EXPLAIN = 15.0, 1.0
NUM_JOBS, MAX_JOBS = 1000, {"even": 60.0, "free": 600.0}
NUM_PROCESSES = 2

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One figure and what it must not exceed."""

    name: str
    seconds: float
    limit: float

    @property
    def failures(self) -> list[str]:
        """The figure, if it is too large."""
        return [] if self.seconds <= self.limit else [f"{self.name}: {self.seconds:.2f} s of {self.limit:g} s."]


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds and result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def with_stages(problem: Problem, stages: StageChoice, *, offload: bool = True) -> Problem:
    """The problem with another choice of stages, with or without offloaded activations."""
    pin = dict(problem.search.pin) | ({} if offload else {"activation_offload": 0})
    return replace(problem, search=replace(problem.search, stages=stages, pin=pin))


# --- proofs ------------------------------------------------------------------------------------------------


def run_proofs(a_job: Callable[[str, int], Problem]) -> Iterator[str]:
    """Everything free, offload allowed and not: seconds to the proof, and the gain over the best even strategy."""
    print(
        f"{'stages free':12}{'devices':>8}{'offload':>9}{'seconds':>9}{'status':>9}{'pipelines':>10}{'solved':>8}"
        f"{'best step s':>13}{'gain':>8}{'as played':>11}"
    )
    for model, limit in MAX_SECONDS.items():
        for num_devices in NUM_DEVICES:
            for offload in (True, False):
                yield from _prove(a_job(model, num_devices), model, num_devices, offload, limit)


def _prove(problem: Problem, model: str, num_devices: int, offload: bool, limit: float) -> Iterator[str]:
    free = with_stages(problem, "free", offload=offload)
    seconds, outcome = timed(lambda: search(free))
    even = search(with_stages(problem, "even", offload=offload))
    gain, played = gains(problem, outcome, even)
    print(
        f"{model:12}{num_devices:8}{'yes' if offload else 'no':>9}{seconds:9.2f}{outcome.status:>9}"
        f"{outcome.effort.num_pipelines:10}{outcome.effort.num_pipelines_solved:8}{outcome.step_seconds[0]:13.6f}"
        f"{gain:8.2%}{played:11.2%}",
        flush=True,
    )
    name = f"stages of {model} on {num_devices}, offload {'allowed' if offload else 'not allowed'}"
    yield from Check(name=name, seconds=seconds, limit=limit).failures
    if outcome.status != "optimal" or outcome.gap:
        yield f"{name}: status is {outcome.status}, gap {outcome.gap}."


def gains(problem: Problem, outcome: Outcome, even: Outcome) -> tuple[float, float]:
    """Return how much shorter the step is than the best even strategy's, by the closed form and as simulated."""
    one, other = outcome.strategies[0], even.strategies[0]
    played = [estimate(problem.facts, strategy).step_seconds for strategy in (one, other)]
    return 1 - outcome.step_seconds[0] / even.step_seconds[0], 1 - min(played) / played[1]


# --- tight pipelines ---------------------------------------------------------------------------------------


def run_tight() -> Iterator[str]:
    """Random interleaved pipelines on devices of which hardly any strategy fits."""
    seconds, uneven = [], 0
    for seed in range(NUM_TIGHT):
        problem = tight_problem(random.Random(seed))
        taken, outcome = timed(partial(search, problem))
        seconds.append(taken)
        uneven += bool(outcome.strategies and outcome.strategies[0].layout)
        if outcome.status not in ("optimal", "infeasible"):
            yield f"tight problem {seed}: status is {outcome.status}."
    p95 = float(np.quantile(seconds, 0.95))
    print(
        f"{NUM_TIGHT} tight problems with interleaving: median {median(seconds):.2f} s, p95 {p95:.2f} s, longest "
        f"{max(seconds):.2f} s; {uneven} have uneven stages."
    )
    yield from Check(name="tight problems, median", seconds=median(seconds), limit=MAX_TIGHT_MEDIAN).failures
    yield from Check(name="tight problems, p95", seconds=p95, limit=MAX_TIGHT_P95).failures


def tight_problem(chooser: random.Random) -> Problem:
    """A dense or MoE model of 24 to 96 layers on 16 to 512 H100 with less memory than most strategies take."""
    num_devices = chooser.choice([16, 32, 64, 128, 256, 512])
    name = chooser.choice(["llama3-70b", "llama3-405b", "mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3"])
    batch, length = max(64, num_devices * chooser.choice([1, 2])), chooser.choice([4096, 8192])
    search = {
        "stages": "free",
        "evidence": "any",
        "limits": ["vpp >= 2"],
        "pin": {"optimizer_offload": False},
        "memory_headroom_gib": 0,
    }
    problem = load(job_document(name, "h100-80gb-sxm", num_devices, batch, length, search=search, top=1))
    model = with_layers(problem.facts.model, chooser.randint(24, 96))
    problem = replace(problem, facts=replace(problem.facts, model=model))
    space = build_space(with_stages(problem, "even"))
    if not space.num_rows:
        return problem
    rows = np.array(sorted(chooser.sample(range(space.num_rows), min(200, space.num_rows))))
    taken = cost(problem.facts, space.block(rows).decisions).device_bytes
    memory = float(np.quantile(taken, chooser.choice([0.01, 0.03, 0.1])))
    device = replace(problem.facts.cluster.device, memory_bytes=memory)
    cluster = replace(problem.facts.cluster, device=device)
    return replace(problem, facts=replace(problem.facts, cluster=cluster))


def with_layers(model: Model, num_layers: int) -> Model:
    """The model with another number of layers of its last kind."""
    leading = [layer for layer in model.layers if layer != model.layers[-1]]
    return replace(model, layers=(*leading, *(model.layers[-1],) * max(1, num_layers - len(leading))))


# --- reports -----------------------------------------------------------------------------------------------


def run_top(a_job: Callable[[str, int], Problem]) -> Iterator[str]:
    """The ten best plans of different degrees, stages uneven in their layers."""
    for model in MAX_SECONDS:
        problem = replace(with_stages(a_job(model, 2048), "layers"), top=10)
        seconds, outcome = timed(partial(search, problem))
        groups = {(one.tp, one.cp, one.pp, one.dp, one.ep) for one in outcome.strategies}
        print(f"{model}: {len(groups)} best of different degrees in {seconds:.2f} s, {outcome.status}.")
        yield from Check(name=f"top 10 of {model}", seconds=seconds, limit=MAX_TOP_10).failures


def run_explanations(a_job: Callable[[str, int], Problem]) -> Iterator[str]:
    """Time the answer to "why not this strategy?", beyond the searches that the answer needs."""
    for model in MAX_SECONDS:
        problem = with_stages(a_job(model, 2048), "even")
        pinned = replace(problem, search=replace(problem.search, pin={"tp": 8, "pp": 8}))
        needed = sum(timed(partial(search, one))[0] for one in (problem, pinned))
        seconds, _ = timed(partial(explain, problem, {"tp": 8, "pp": 8}))
        print(f"{model}: why not tp=8 pp=8 in {seconds:.2f} s, of which its searches {needed:.2f} s.")
        name = f"explanation of {model}, beyond its searches"
        yield from Check(name=name, seconds=max(0.0, seconds - needed), limit=MAX_EXPLAIN).failures


# --- many jobs ---------------------------------------------------------------------------------------------


def run_jobs() -> Iterator[str]:
    """A thousand random jobs in one pool of two processes, even stages and free ones."""
    for stages, limit in MAX_JOBS.items():
        started = time.perf_counter()
        with ProcessPoolExecutor(NUM_PROCESSES) as pool:
            jobs = ((stages, seed) for seed in range(NUM_JOBS))
            statuses = list(pool.map(_run_job, jobs, chunksize=5))
        seconds = time.perf_counter() - started
        kinds = ", ".join(f"{statuses.count(one)} {one}" for one in sorted(set(statuses)))
        print(f"{NUM_JOBS} jobs, stages {stages}, {NUM_PROCESSES} processes: {seconds:.0f} s ({kinds}).", flush=True)
        yield from Check(name=f"{NUM_JOBS} jobs, stages {stages}", seconds=seconds, limit=limit).failures


SIZES = {
    "llama3-8b": (8, 16, 32, 64, 128, 256),
    "llama3-70b": (32, 64, 128, 256, 512, 1024),
    "llama3-405b": (256, 512, 1024, 2048),
    "mixtral-8x7b": (32, 64, 128, 256, 512),
    "qwen3-235b-a22b": (64, 128, 256, 512, 1024),
}
"""GPUs on which one trains a model."""


def random_job(stages: StageChoice, seed: int) -> dict[str, Any]:
    """Return the entries of the job file of one of a thousand jobs."""
    chooser = random.Random(seed)
    name, sizes = chooser.choice(list(SIZES.items()))
    num_devices = chooser.choice(sizes)
    device = chooser.choice(["h100-80gb-sxm", "a100-80gb-sxm", "b200"])
    batch, length = num_devices * chooser.choice([1, 2, 4]), chooser.choice([2048, 4096, 8192])
    search = {"stages": str(stages), "framework_rules": chooser.random() < 0.8, "evidence": "any"}
    return job_document(name, device, num_devices, batch, length, search=search)


def _run_job(job: tuple[StageChoice, int]) -> str:
    return str(search(load(random_job(*job))).status)
