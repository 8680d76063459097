"""The certificate: its time on the named problems; on random ones what enumeration says of it and of wrong answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

from benchmarks.solver.stages import NUM_DEVICES, SIZES, Check, random_job, timed
from constraints.cp_sat import seconds_to_ticks
from costmodel.step.step import cost
from costmodel.strategy import Strategy
from planner import load
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import Outcome
from planner.search.certificate import Certificate, certify
from planner.search.questions import search
from planner.search.solver import Clock
from planner.search.space import Space, build_space

MODELS = ("llama3-405b", "deepseek-v3")
MAX_SECONDS, MAX_MEDIAN_SECONDS = 5.0, 0.1
NUM_RANDOM, MAX_CELLS = 200, 2 * 10**7
"""Random jobs; strategies that one of them may have at most, allowed or not, so that they are enumerated in seconds."""


def run_certificates(
    a_job: Callable[[str, int], Problem], enumerate_table: Callable[[Problem, Space], tuple[float, int]]
) -> Iterator[str]:
    """The eight named problems, then random jobs."""
    print(
        f"{'certificate':12}{'devices':>8}{'seconds':>9}{'of processor':>14}  {'verdict':14}{'rules':>6}{'rows':>8}"
        f"{'in bound':>9}{'combinations':>13}{'strategies':>11}"
    )
    for model in MODELS:
        for num_devices in NUM_DEVICES:
            yield from _named(a_job(model, num_devices), model, num_devices)
    yield from _random(enumerate_table)


def _named(problem: Problem, model: str, num_devices: int) -> Iterator[str]:
    outcome, processor = search(problem), time.process_time()
    seconds, answer = timed(partial(_certified, problem, outcome))
    processor = time.process_time() - processor
    print(
        f"{model:12}{num_devices:8}{seconds:9.2f}{processor:14.3f}  {answer.verdict:14}{answer.num_rules:6}"
        f"{answer.num_rows:8}{answer.num_rows - answer.num_rows_bounded:9}{answer.num_combinations:13}"
        f"{answer.num_strategies:11}",
        flush=True,
    )
    name = f"certificate of {model} on {num_devices}"
    yield from Check(name=name, seconds=seconds, limit=MAX_SECONDS).failures
    if answer.verdict != "certified":
        yield f"{name}: {answer.verdict}. {answer.reason}"


def _random(enumerate_table: Callable[[Problem, Space], tuple[float, int]]) -> Iterator[str]:
    """Answers that enumeration confirms must be certified, and one that is a tick too slow refuted by the optimum."""
    seconds: list[float] = []
    seed = -1
    while len(seconds) < NUM_RANDOM:
        seed += 1
        problem = load(random_job("even", seed))
        space = build_space(problem)
        if space.num_rows * space.allowed[:1].size > MAX_CELLS:
            continue
        outcome = search(problem)
        if not outcome.strategies:
            continue
        enumerated = int(seconds_to_ticks(np.array(enumerate_table(problem, space)[0])))
        began = time.process_time()
        right = _certified(problem, outcome)
        seconds.append(time.process_time() - began)
        wrong = _certified(problem, replace(outcome, ticks=outcome.ticks + 1))
        if enumerated != outcome.ticks or right.verdict != "certified":
            yield f"job {seed}: enumeration finds {enumerated}, the search {outcome.ticks} ticks; {right.verdict}."
        if wrong.better is None or _ticks(problem, wrong) != enumerated:
            yield f"job {seed}: an answer that is a tick too slow is {wrong.verdict}."
    print(
        f"{NUM_RANDOM} random jobs of {', '.join(SIZES)} with up to {MAX_CELLS:,} strategies: certificates take "
        f"{median(seconds) * 1e3:.0f} ms of processor time in the median, {np.mean(seconds) * 1e3:.0f} in the mean, "
        f"{max(seconds) * 1e3:.0f} at most."
    )
    yield from Check(name="certificates, median", seconds=median(seconds), limit=MAX_MEDIAN_SECONDS).failures


def _certified(problem: Problem, outcome: Outcome) -> Certificate[Strategy]:
    certificate = certify([(problem, outcome)], outcome, Clock(seconds=problem.search.time_limit_seconds))
    assert certificate is not None
    return certificate


def _ticks(problem: Problem, certificate: Certificate[Strategy]) -> int:
    assert certificate.better is not None
    return int(seconds_to_ticks(np.asarray(cost(problem.facts, certificate.better.decisions()).step_seconds)))
