"""
``python -m benchmarks.counts``: jobs whose devices do not divide; no smaller number of whole nodes is faster.

Random jobs of the catalog's models and devices, on numbers of nodes such as 11, 63 or 97, with batches that they do not
divide. Each is planned once, and then on every smaller number of whole nodes alone, with ``search.idle_devices`` off.
Exits with 1 if one of those plans is faster than the first.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.inputs import job_document
from costmodel import catalog
from planner.jobs.problem import Problem, load
from planner.results import Plan
from planner.verbs.plan import plan

MODELS = (
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "qwen3-30b-a3b",
    "mixtral-8x7b",
    "gpt3-175b",
    "gemma-2-27b",
    "llama2-13b",
)
DEVICES = ("h100-80gb-sxm", "a100-80gb-sxm", "b200", "h200", "gb200")
NODES = (3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 19, 21, 22, 23, 25, 27, 29, 31, 37, 63, 97)

UNEVEN = 4
"""One job of so many may have uneven stages, whose search takes ten times as long."""

TOLERANCE = 1e-6
"""Relative difference that rounding to the solver's ticks may make."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """
    One smaller number of nodes.

    Parameters
    ----------
    job
        Name of the planned job.
    num_nodes
        The smaller number.
    seconds
        The step of the job's plan; infinite without one.
    alone
        The plan on so many nodes; None where no strategy fits.
    """

    job: Problem
    num_nodes: int
    seconds: float
    alone: Plan | None

    @property
    def excess(self) -> float:
        """By which fraction the job's plan is slower than the plan on so many nodes."""
        if self.alone is None:
            return 0.0
        return self.seconds / self.alone.step_seconds - 1


def random_job(seed: int) -> dict[str, Any]:
    """A job on a number of nodes that does not divide its batch."""
    chooser = random.Random(seed)
    device, nodes = chooser.choice(DEVICES), chooser.choice(NODES)
    num_devices = nodes * catalog.device(device).devices_per_node
    batch = chooser.choice([chooser.randrange(24, 2048), 8 * chooser.randrange(4, 256), 1024])
    batch += batch % num_devices == 0
    return job_document(
        chooser.choice(MODELS),
        device,
        num_devices,
        batch,
        chooser.choice([2048, 4096, 8192]),
        search={
            "stages": "even" if chooser.randrange(UNEVEN) else "layers",
            "time_limit_seconds": 600,
            "evidence": chooser.choice(["proven", "any"]),
        },
    )


def checks_of(seed: int) -> Iterator[Check]:
    """One random job against every smaller number of nodes."""
    job = load(random_job(seed), name=f"job {seed}")
    found = plan(job, certified=False).plans
    seconds = found[0].step_seconds if found else float("inf")
    node = job.facts.cluster.device.devices_per_node
    for num_nodes in range(1, job.facts.cluster.num_nodes + 1):
        alone = plan(
            job.change_cluster(num_devices=num_nodes * node).change_limits(idle_devices=False), certified=False
        )
        plans = alone.plans
        yield Check(job=job, num_nodes=num_nodes, seconds=seconds, alone=plans[0] if plans else None)


def violations(checks: list[Check]) -> list[Check]:
    """Numbers of nodes whose plan is faster than the job's, the worst first."""
    return sorted((one for one in checks if one.excess > TOLERANCE), key=lambda one: -one.excess)


def main() -> int:
    """Print each job's plan, how many leave devices idle, and the violations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40, help="number of random jobs")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    given = parser.parse_args()
    every, num_idle = list[Check](), 0
    for seed in range(given.first_seed, given.first_seed + given.jobs):
        checks = list(checks_of(seed))
        every += checks
        last = checks[-1]
        num_idle += last.alone is None or last.excess < 0
        facts = last.job.facts
        all_devices = f"{last.alone.step_seconds:.4f} s" if last.alone else "no plan"
        print(
            f"{seed:3} {facts.model.name:16} {facts.cluster.device.name:14} {last.num_nodes:3} nodes, batch "
            f"{facts.workload.global_batch_size:5}: {last.seconds:9.4f} s; on all devices {all_devices}; "
            f"{len(violations(checks))} of {len(checks)} numbers faster",
            flush=True,
        )
    found = violations(every)
    print(f"{len(every)} checks of {given.jobs} jobs, {num_idle} of which leave devices idle; {len(found)} violations")
    for one in found[:20]:
        assert one.alone is not None
        print(f"  {one.job.name}: {one.excess:.4%} slower than on {one.num_nodes} nodes: {one.alone.strategy}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
