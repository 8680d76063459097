"""
``python -m benchmarks.solver.simulated``: closed forms against simulated steps, random strategies of every model.

A search compares strategies by what their tables hold: the law of plain pipelines, or wavefronts of many strategies at
once. Here each is played alone, one block after the other. Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.inputs import job_document
from costmodel.catalog import models
from costmodel.pipelines.simulator import MOST_PASSES
from costmodel.pipelines.stages import virtual_stage_layers
from costmodel.step.estimate import simulated_seconds
from costmodel.step.layouts import strategy_seconds
from costmodel.strategy import Schedule, Strategy
from costmodel.tables import microbatches
from planner import load
from planner.jobs.problem import Problem
from planner.search.space import build_space, strategy_of

NUM_STRATEGIES = 1000
NUM_DEVICES = (16, 32, 64, 128, 256, 512, 1024)
DEVICES = ("h100-80gb-sxm", "a100-80gb-sxm", "b200")
SHARE_OTHER_SCHEDULES, SHARE_WITHOUT_PIPELINE = 0.15, 0.2

ROUNDING = 1e-9
"""Largest difference of steps that are the same but for rounding."""

MAX_EXTRAPOLATED = 0.003
"""Largest difference of long steps, of which the simulation takes an extrapolated pace."""

SHOWN = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One strategy: how much longer its closed form is than its simulated step, and whether that one is whole."""

    label: str
    kind: str
    difference: float
    num_passes: int


def main() -> int:
    """Compare and print; return 1 if a check fails, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solver.simulated", description=__doc__)
    parser.add_argument("--strategies", type=int, default=NUM_STRATEGIES, help="how many, 1,000 if not given")
    began = time.process_time()
    compared = [compare(seed) for seed in range(parser.parse_args().strategies)]
    show(compared)
    failures = list(failed(compared))
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{len(compared):,} strategies in {time.process_time() - began:.0f} s.")
    return 1 if failures else 0


def show(compared: Sequence[Compared]) -> None:
    """The quantiles of each kind of pipeline, and the strategies that differ most."""
    print(
        f"{'closed form over simulated step, less one':50}{'number':>7}"
        f"{'p50':>8}{'p90':>8}{'p99':>8}{'least':>8}{'most':>8}"
    )
    kinds = sorted({one.kind for one in compared})
    for kind in (*kinds, "all"):
        values = np.array([one.difference for one in compared if kind in (one.kind, "all")])
        quantiles = np.quantile(np.abs(values), [0.5, 0.9, 0.99])
        print(f"{kind:50}{len(values):7}", *(f"{one:7.2%}" for one in (*quantiles, values.min(), values.max())))
    for one in sorted(compared, key=lambda one: -abs(one.difference))[:SHOWN]:
        print(f"  {one.difference:8.2%}  {one.label}")


def failed(compared: Sequence[Compared]) -> Iterator[str]:
    """List the checks that do not hold."""
    for one in compared:
        most = ROUNDING if one.num_passes <= MOST_PASSES else MAX_EXTRAPOLATED
        if abs(one.difference) > most:
            yield f"{one.label}: differs by {one.difference:.2%}, more than {most:.1e}."


UNLIKE, OTHERS = "interleaved, chunks of different layers", "other schedules"


def compare(seed: int) -> Compared:
    """A random strategy both ways."""
    problem, strategy = a_random_strategy(random.Random(seed))
    facts, decisions = problem.facts, strategy.decisions()
    closed, simulated = strategy_seconds(facts, strategy), simulated_seconds(facts, strategy)
    return Compared(
        label=f"{facts.model.name} on {facts.cluster.num_devices} {facts.cluster.device.name}: pp {strategy.pp}, "
        f"vpp {strategy.vpp}, {strategy.schedule.text}, batch {facts.workload.global_batch_size}, dp {strategy.dp}, "
        f"mbs {strategy.mbs}, recompute {strategy.recompute.text} (seed {seed})",
        kind=kind_of(problem, strategy),
        difference=closed / simulated - 1,
        num_passes=2 * strategy.pp * strategy.vpp * int(microbatches(facts, decisions)),
    )


def kind_of(problem: Problem, strategy: Strategy) -> str:
    """Return the kind of a strategy's pipeline."""
    if strategy.pp == 1:
        return "no pipeline"
    if strategy.schedule != Schedule.ONE_F_ONE_B:
        return OTHERS
    if strategy.vpp == 1:
        return "plain"
    where = {"pp": strategy.pp, "vpp": strategy.vpp, "vocabulary": strategy.vocabulary}
    inner = virtual_stage_layers(problem.facts.model, **where)[1:-1]
    return "interleaved" if (inner == inner[0]).all() else UNLIKE


def a_random_strategy(chooser: random.Random) -> tuple[Problem, Strategy]:
    """A strategy that the rules but those of memory allow, of any model of the catalog."""
    while True:
        problem = load(a_random_job(chooser))
        space = build_space(problem)
        shapes = sorted(set(zip(*(space.rows[name].tolist() for name in ("pp", "vpp", "schedule")), strict=True)))
        if not shapes:
            continue
        shape = chooser.choice(shapes)
        if shape[0] == 1 and chooser.random() > SHARE_WITHOUT_PIPELINE:
            continue
        alike = [space.rows[name] == value for name, value in zip(("pp", "vpp", "schedule"), shape, strict=True)]
        row = int(chooser.choice(np.flatnonzero(np.logical_and.reduce(alike)).tolist()))
        allowed = np.argwhere(space.allowed[space.feature_class[row]])
        where = allowed[chooser.randrange(len(allowed))]
        features = {name: int(values[at]) for (name, values), at in zip(space.features.items(), where, strict=True)}
        return problem, strategy_of({name: int(values[row]) for name, values in space.rows.items()} | features)


def a_random_job(chooser: random.Random) -> dict[str, Any]:
    """Return the entries of a job file: a catalog model on some devices, mostly 1F1B, some with a framework's rules."""
    num_devices = chooser.choice(NUM_DEVICES)
    search: dict[str, Any] = {"framework_rules": chooser.random() < 0.7, "evidence": "any"}
    if chooser.random() < SHARE_OTHER_SCHEDULES:
        search = {"framework_rules": False, "evidence": "any", "allow": {"schedule": [one.text for one in Schedule]}}
    model, device = chooser.choice(models()), chooser.choice(DEVICES)
    return job_document(model, device, num_devices, num_devices * chooser.choice([1, 2, 4, 8]), 4096, search=search)


if __name__ == "__main__":
    raise SystemExit(main())
