"""
``python -m benchmarks.solver``: how long a proof takes, whether enumeration agrees, how fast strategies are costed.

Each case runs in a process of its own, so that its peak memory is its own. Then the certificates
(``benchmarks/solver/certificates.py``) and the same with stages that differ (``benchmarks/solver/stages.py``).
``--certificates`` runs the second part alone. Exits with 1 if a check fails. ``--jobs`` adds a thousand jobs in a pool
of two processes, which takes minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.inputs import job_document
from benchmarks.output import conclude
from benchmarks.solver.ablation import run_ablation
from benchmarks.solver.certificates import run_certificates
from benchmarks.solver.growth import run_growth
from benchmarks.solver.stages import run_explanations, run_jobs, run_proofs, run_tight, run_top
from constraints import MEMORY_RULES
from costmodel.step.step import cost
from costmodel.strategy import DECISIONS, ENUMS, FLAGS
from costmodel.tables import tabulate
from planner import load
from planner.jobs.problem import Problem
from planner.search.domains import cheap_recompute
from planner.search.questions import search
from planner.search.space import Space, build_space, spread

DEVICE = "h100-80gb-sxm"
SEQUENCE_LENGTHS = {"llama3-405b": 8192, "deepseek-v3": 4096}
NUM_DEVICES = (64, 2048, 8192, 65536)
MIN_BATCH = 16

MAX_SECONDS = 2.0
MAX_RESIDENT_MB = 500
MIN_STRATEGIES_PER_SECOND = 2e5
MAX_ENUMERATED = 8e6
"""Strategies that are enumerated as well; more take minutes, as their pipelines are simulated."""
RELATIVE_TOLERANCE = 1e-12
"""Between the table path and the scalar path: the same formulas, summed in the same order."""

CHUNK_ROWS = 512
NUM_COMPARED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Times and results of one search and one enumeration of the same job; NaN of an enumeration that is left out."""

    model: str
    num_devices: int
    num_rows: int
    num_strategies: int
    build_seconds: float
    solve_seconds: float
    status: str
    gap: float
    step_seconds: float
    resident_mb: float
    enumeration_seconds: float
    enumerated_seconds: float
    rounding_bound_seconds: float
    rate: float

    @property
    def failures(self) -> list[str]:
        """List the checks that do not hold."""
        searched = self.build_seconds + self.solve_seconds
        differ = abs(self.step_seconds - self.enumerated_seconds) > self.rounding_bound_seconds
        checks = {
            f"status is {self.status}, gap {self.gap}": self.status != "optimal" or self.gap != 0,
            f"search took {searched:.2f} s of {MAX_SECONDS:g} s": searched > MAX_SECONDS,
            f"peak memory is {self.resident_mb:.0f} MB of {MAX_RESIDENT_MB} MB": self.resident_mb > MAX_RESIDENT_MB,
            f"enumeration finds {self.enumerated_seconds:.6f} s, the search {self.step_seconds:.6f} s": differ,
        }
        return [f"{self.model} on {self.num_devices}: {text}." for text, failed in checks.items() if failed]


def main() -> int:
    """Run all cases and print them; return 1 if a check fails, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solver", description=__doc__)
    parser.add_argument("--case", nargs=2, metavar=("MODEL", "NUM_DEVICES"), help="one case alone, as JSON")
    parser.add_argument("--jobs", action="store_true", help="a thousand jobs, too")
    parser.add_argument("--certificates", action="store_true", help="the certificates alone")
    parser.add_argument("--ablation", action="store_true", help="what rules and memory decide, alone")
    parser.add_argument("--growth", action="store_true", help="growth with devices, layers and features, alone")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(asdict(run_case(arguments.case[0], int(arguments.case[1])))))
        return 0
    if arguments.ablation:
        return conclude(run_ablation())
    if arguments.growth:
        return conclude(run_growth())
    if arguments.certificates:
        return conclude(run_certificates(a_job, enumerate_table))
    cases = [_in_a_process(model, num_devices) for model in _announced() for num_devices in NUM_DEVICES]
    failures = [failure for case in cases for failure in case.failures]
    failures += compare_paths(cases)
    failures += run_certificates(a_job, enumerate_table)
    failures += [*run_proofs(a_job), *run_tight(), *run_top(a_job), *run_explanations(a_job)]
    failures += run_jobs() if arguments.jobs else []
    return conclude(failures)


def _announced() -> list[str]:
    print(f"Jobs: {DEVICE}, bf16, global batch = max({MIN_BATCH}, devices), ", end="")
    print(", ".join(f"{model} at {length:,} tokens" for model, length in SEQUENCE_LENGTHS.items()) + ".")
    print("Table path: all strategies of all rows, allowed or not. Best steps by CP-SAT and by the table path;")
    print(f"more than {MAX_ENUMERATED:,.0f} strategies are not enumerated.")
    print(
        f"{'model':12}{'devices':>8}{'rows':>9}{'strategies':>12}{'build s':>9}{'CP-SAT s':>9}{'status':>9}"
        f"{'best step s':>13}{'peak MB':>9}{'enumerate s':>13}{'best step s':>13}{'M/s':>7}"
    )
    return list(SEQUENCE_LENGTHS)


def _in_a_process(model: str, num_devices: int) -> Case:
    command = [sys.executable, "-m", "benchmarks.solver", "--case", model, str(num_devices)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    case = Case(**json.loads(finished.stdout))
    print(
        f"{case.model:12}{case.num_devices:8}{case.num_rows:9}{case.num_strategies:12}{case.build_seconds:9.2f}"
        f"{case.solve_seconds:9.3f}{case.status:>9}{case.step_seconds:13.6f}{case.resident_mb:9.0f}"
        f"{case.enumeration_seconds:13.2f}{case.enumerated_seconds:13.6f}{case.rate / 1e6:7.1f}",
        flush=True,
    )
    return case


def a_job(model: str, num_devices: int) -> Problem:
    """
    The benchmark's job: the one fastest plan in all of the memory; its recomputation none, all, or the cheap modules.

    Every set of modules makes 27 times as many strategies, too many to enumerate; ``tests/oracle`` has small jobs with
    all of them.
    """
    search = {"stages": "even", "memory_headroom_gib": 0, "evidence": "any"}
    batch, length = max(MIN_BATCH, num_devices), SEQUENCE_LENGTHS[model]
    problem = load(job_document(model, DEVICE, num_devices, batch, length, search=search, top=1))
    chosen = tuple(map(int, cheap_recompute(problem.facts.model, problem.facts.cluster.framework)))
    return replace(problem, search=replace(problem.search, allow={**problem.search.allow, "recompute": chosen}))


def run_case(model: str, num_devices: int) -> Case:
    """Search first, so that the peak memory is the search's, then enumerate."""
    problem = a_job(model, num_devices)
    outcome = search(problem)
    resident_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    enumerated_seconds, num_tabulated, enumeration_seconds = np.nan, 0, np.nan
    if outcome.effort.size <= MAX_ENUMERATED:
        started = time.perf_counter()
        enumerated_seconds, num_tabulated = enumerate_table(problem, build_space(problem))
        enumeration_seconds = time.perf_counter() - started
    return Case(
        model=model,
        num_devices=num_devices,
        num_rows=outcome.effort.num_rows,
        num_strategies=outcome.effort.size,
        build_seconds=outcome.effort.build_seconds,
        solve_seconds=outcome.effort.solve_seconds,
        status=str(outcome.status),
        gap=outcome.gap,
        step_seconds=outcome.step_seconds[0] if outcome.step_seconds else np.inf,
        resident_mb=resident_mb,
        enumeration_seconds=enumeration_seconds,
        enumerated_seconds=enumerated_seconds,
        rounding_bound_seconds=outcome.rounding_bound_seconds,
        rate=num_tabulated / enumeration_seconds,
    )


def enumerate_table(problem: Problem, space: Space) -> tuple[float, int]:
    """The fastest strategy that fits, by numpy over every row and feature, and how many strategies were tabulated."""
    best, num_tabulated = np.inf, 0
    rows = np.lexsort([space.rows[name] for name in ("group", "mbs", "dp", "vpp", "pp", "schedule")])  # one order
    for start in range(0, space.num_rows, CHUNK_ROWS):
        block = space.block(rows[start : start + CHUNK_ROWS])
        costs = cost(problem.facts, block.decisions)
        resources = {
            "device_bytes": costs.device_bytes,
            "host_bytes": costs.host_bytes,
            "memory_headroom_bytes": problem.search.memory_headroom_bytes,
        }
        fits = block.allowed
        for rule in MEMORY_RULES:
            fits = fits & tabulate(rule, problem.facts, resources)
        best = min(best, float(np.min(costs.step_seconds, where=fits, initial=np.inf)))
        num_tabulated += block.allowed.size
    return best, num_tabulated


# --- the two paths -----------------------------------------------------------------------------------------


def compare_paths(cases: list[Case]) -> list[str]:
    """Rates of the table path and of the scalar path, and whether both give the same on random strategies."""
    cases = [case for case in cases if case.num_strategies <= MAX_ENUMERATED]
    slowest = min(case.rate for case in cases)
    failures = []
    for model in SEQUENCE_LENGTHS:
        rate, difference = compare_with_scalars(a_job(model, NUM_DEVICES[1]), NUM_COMPARED // len(SEQUENCE_LENGTHS))
        print(
            f"{model}: table path {min(case.rate for case in cases if case.model == model):,.0f}, scalar path "
            f"{rate:,.0f} strategies per second and core; largest relative difference {difference:.1e}."
        )
        if difference > RELATIVE_TOLERANCE:
            failures.append(f"{model}: table and scalars differ by {difference:.1e}.")
    if slowest < MIN_STRATEGIES_PER_SECOND:
        failures.append(
            f"the table path costs {slowest:,.0f} of {MIN_STRATEGIES_PER_SECOND:,.0f} strategies per second."
        )
    return failures


def compare_with_scalars(problem: Problem, count: int) -> tuple[float, float]:
    """Rate of the scalar path, and the largest relative difference of random strategies to the table path."""
    chooser = random.Random(0)
    space = build_space(problem)
    rows = np.array(sorted(chooser.sample(range(space.num_rows), min(count, space.num_rows))))
    costs = cost(problem.facts, spread(space.degrees(rows), space.features))
    chosen = [(row, tuple(chooser.randrange(len(v)) for v in space.features.values())) for row in range(len(rows))]
    strategies = [_strategy(space, int(rows[row]), indices) for row, indices in chosen]
    started = time.perf_counter()
    alone = [cost(problem.facts, strategy) for strategy in strategies]
    rate = len(strategies) / (time.perf_counter() - started)
    shape = (len(rows), *(len(values) for values in space.features.values()))
    difference = 0.0
    for name in ("step_seconds", "device_bytes", "host_bytes"):
        table = np.broadcast_to(getattr(costs, name), shape)
        tabulated = np.array([table[(row, *indices)] for row, indices in chosen])
        scalars = np.array([float(getattr(one, name)) for one in alone])
        difference = max(difference, _relative_difference(tabulated, scalars))
    return rate, difference


def _strategy(space: Space, row: int, indices: tuple[int, ...]) -> dict[str, Any]:
    features = {name: values[i] for (name, values), i in zip(space.features.items(), indices, strict=True)}
    values = {name: values[row] for name, values in space.rows.items()} | features
    kinds = {**ENUMS, **dict.fromkeys(FLAGS, bool)}
    return {name: kinds.get(name, int)(values[name]) for name in DECISIONS}


def _relative_difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float((np.abs(one - other) / np.maximum(np.abs(other), np.finfo(float).tiny)).max())


if __name__ == "__main__":
    sys.exit(main())
