"""
The verb ``plan_for_sizes``: the best plan for each number of devices that may be free.

The plan for a size may use fewer devices: a batch that 37 nodes cannot divide evenly trains on 32 of them. So the best
plan for a size is also the best for every smaller size that still holds it. One search at the largest size answers all
of these. The next search begins below the devices of its plan.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown
from planner.jobs.problem import Problem, load
from planner.results import Displayed, Plan, PlanReport
from planner.verbs.plan import plan

if TYPE_CHECKING:
    from planner.search.branch_and_bound import Status

MAX_SIZES = 100_000
"""Largest number of sizes in one question."""


@record(frozen=True, kw_only=True, slots=True)
class SizedPlan:
    """
    Plan for a number of free devices.

    Parameters
    ----------
    num_devices, num_nodes
        Free devices; nodes, the last of which may be partial.
    plan
        Fastest plan on at most so many devices; None where there is none.
    status
        Status of the search: ``optimal`` and ``infeasible`` are proven.
    """

    num_devices: int
    num_nodes: int
    plan: Plan | None
    status: Status

    @property
    def num_idle(self) -> int:
        """Number of free devices that the plan does not use."""
        return self.num_devices - (self.plan.cluster.num_devices if self.plan else 0)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all devices of the plan; 0 without a plan."""
        return self.plan.tokens_per_second if self.plan else 0.0


@record(frozen=True, kw_only=True, slots=True)
class PlansBySize(Displayed):
    """
    The best plan for each size.

    Parameters
    ----------
    sizes
        Plans in ascending order of devices.
    num_searches
        Number of searches.
    """

    sizes: tuple[SizedPlan, ...]
    num_searches: int

    @property
    def best(self) -> SizedPlan | None:
        """Smallest size with the highest throughput; None where no strategy fits on any."""
        best = max(self.sizes, key=lambda size: (size.tokens_per_second, -size.num_devices))
        return best if best.plan else None

    def __getitem__(self, num_devices: int) -> SizedPlan:
        """Return the answer for one of the sizes, by its number of devices."""
        return {size.num_devices: size for size in self.sizes}[num_devices]


def plan_for_sizes(
    job: Problem | str | os.PathLike[str] | Mapping[str, Any],
    *,
    num_nodes: Iterable[int] | None = None,
    num_devices: Iterable[int] | None = None,
) -> PlansBySize:
    """
    Choose the fastest plan for each number of nodes or devices that may be free.

    Parameters
    ----------
    job
        The job; its own numbers of devices and plans are not used.
    num_nodes, num_devices
        Sizes, either in nodes or in devices.

    Raises
    ------
    SpecError
        If the job or a size is wrong, or the job's objective is not ``step_time``.

    Examples
    --------
    >>> job = {
    ...     "model": "llama3-8b",
    ...     "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    ...     "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
    ... }
    >>> found = plan_for_sizes(job, num_nodes=[8, 9])
    >>> [(size.num_nodes, size.plan.cluster.num_devices) for size in found.sizes]
    [(8, 64), (9, 64)]
    >>> found.best.num_nodes, found.num_searches
    (8, 1)
    """
    problem = job if isinstance(job, Problem) else load(job)
    if problem.objective != "step_time":
        raise SpecError("objective", "plans for several sizes are compared by their step.", "Set objective: step_time.")
    sizes = _sizes(problem, num_nodes, num_devices)
    problem = _enlarge(problem, sizes[-1]).change_limits(simplest=False)
    answers: list[SizedPlan] = []
    report: PlanReport | None = None
    num_searches = 0
    for size in reversed(sizes):
        if report is None or not _holds(report, size):
            report = plan(_limit_devices(problem, size), certified=False)
            num_searches += 1
        found = report.plans[0] if report.plans else None
        nodes = -(-size // problem.facts.cluster.device.devices_per_node)
        answers.append(SizedPlan(num_devices=size, num_nodes=nodes, plan=found, status=report.outcome.status))
    return PlansBySize(sizes=tuple(reversed(answers)), num_searches=num_searches)


def _sizes(problem: Problem, num_nodes: Iterable[int] | None, num_devices: Iterable[int] | None) -> list[int]:
    """Return the numbers of devices, ascending."""
    if (num_nodes is None) == (num_devices is None):
        raise SpecError("sizes", "expected num_nodes or num_devices, one of the two.")
    name, given = ("num_nodes", num_nodes) if num_devices is None else ("num_devices", num_devices)
    assert given is not None
    per_size = problem.facts.cluster.device.devices_per_node if num_devices is None else 1
    numbers = set(given)
    if not 1 <= len(numbers) <= MAX_SIZES:
        raise SpecError(name, f"expected 1 to {MAX_SIZES:,} sizes, got {len(numbers):,}.")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SpecError(name, f"expected whole numbers from 1, got {shown(number)}.")
    return sorted(number * per_size for number in numbers)


def _enlarge(problem: Problem, num_devices: int) -> Problem:
    """Return the job on so many devices."""
    return replace(problem.change_cluster(num_devices=num_devices), top=1)


def _limit_devices(problem: Problem, num_devices: int) -> Problem:
    """Return the job with at most so many devices, or with its own limit."""
    given = problem.search.max_devices
    most = num_devices if given is None else min(given, num_devices)
    return problem.change_limits(max_devices=most)


def _holds(report: PlanReport, num_devices: int) -> bool:
    """Tell whether a larger size's answer holds here, too: its plan fits, or it is proven that there is none."""
    if report.plans:
        return report.plans[0].cluster.num_devices <= num_devices
    return report.exit_code == 1
