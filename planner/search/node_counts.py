"""Numbers of whole nodes below a job's own, on which plans may run where that is faster."""

from __future__ import annotations

from planner.jobs.problem import Problem


def may_leave_idle(problem: Problem) -> bool:
    """Whether plans of a job may leave whole nodes idle; jobs that say how many devices they use do not."""
    search = problem.search
    says_how_many = search.max_devices is not None or search.candidates is not None
    return search.idle_devices and not says_how_many and smaller_nodes(problem) > 0


def with_idle_nodes(problem: Problem, num_devices: int) -> Problem:
    """The job that a strategy for so many devices is judged by: where whole nodes may be idle, one of smaller size."""
    node = problem.facts.cluster.device.devices_per_node
    is_smaller = num_devices < problem.facts.cluster.num_devices and num_devices % node == 0
    return on_nodes(problem, 1, smaller_nodes(problem)) if is_smaller and may_leave_idle(problem) else problem


def smaller_nodes(problem: Problem) -> int:
    """The most whole nodes that are fewer devices than a job has."""
    cluster = problem.facts.cluster
    return (cluster.num_devices - 1) // cluster.device.devices_per_node


def on_nodes(problem: Problem, fewest: int, most: int) -> Problem:
    """The job on a number of whole nodes between two."""
    node = problem.facts.cluster.device.devices_per_node
    return problem.with_limits(num_nodes=(fewest, most), max_devices=most * node)
