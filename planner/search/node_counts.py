"""Numbers of whole nodes below a job's own, on which plans may run where that is faster, and how few can be."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from constraints.rule import Holds, Ints, Rule
from costmodel.step.step import least_layer_device_seconds, least_layers_seconds
from planner.jobs.problem import Problem
from planner.search.domains import Columns, row_domains


def may_leave_idle(problem: Problem) -> bool:
    """Whether plans of a job may leave whole nodes idle; jobs that say how many devices they use do not."""
    return problem.search.idle_devices and not says_how_many(problem) and smaller_nodes(problem) > 0


def says_how_many(problem: Problem) -> bool:
    """Return true for a job that says how many devices its plans use; each strategy of a list that is whole does."""
    candidate_list = problem.search.candidates
    return problem.search.max_devices is not None or (candidate_list is not None and bool(candidate_list.rows))


def num_held(problem: Problem) -> int:
    """Devices that a job holds for its plans, whether they use them or not: as many as one may use at most."""
    search, given = problem.search, problem.facts.cluster.num_devices
    if search.max_devices is None or search.num_nodes is not None:  # with numbers of nodes it is not the job's own
        return given
    return search.max_devices


def num_spares(problem: Problem) -> int:
    """Devices of the nodes that a job keeps as spares."""
    spare_nodes = problem.machine.section.spare_nodes if problem.machine else 0
    return spare_nodes * problem.facts.cluster.device.devices_per_node


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
    return problem.with_limits(num_nodes=range(fewest, most + 1), max_devices=most * node)


def least_nodes(problem: Problem, seconds: float) -> int:
    """Nodes on which a step can take no longer than some seconds, by what its layers take where nothing splits them."""
    one_device = {name: np.ones(1, dtype=np.int64) for name in ("tp", "cp", "pp", "dp")}
    work = min(_least_seconds(one, one_device).item() for one in problem.each)
    return max(1, math.floor(work / seconds / problem.facts.cluster.device.devices_per_node))


def fast_enough(problem: Problem) -> tuple[Rule, ...]:
    """What degrees hold whose step can undercut another one, by what its layers take; nothing where none is named."""
    limit = problem.search.faster_than_seconds
    if limit is None or math.isinf(limit):
        return ()

    def holds(*, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Holds:
        """What the layers of a rank take is no longer than a step that is known."""
        degrees = {"tp": np.asarray(tp), "cp": np.asarray(cp), "pp": np.asarray(pp), "dp": np.asarray(dp)}
        return np.asarray(_least_seconds(problem, degrees) <= limit)

    return (holds,)


def _least_seconds(problem: Problem, degrees: Columns) -> NDArray[np.float64]:
    """Lower bound of the steps with some degrees, by their layers; 0 where measured times lack some."""
    domains = row_domains(problem)
    (tp, cp), where = np.unique(np.stack([degrees["tp"], degrees["cp"]]), axis=1, return_inverse=True)
    mbs = int(domains["mbs"].max())
    of_layer = least_layer_device_seconds(problem.facts, tp=tp, cp=cp, ep=domains["ep"].tolist(), mbs=mbs)
    return np.asarray(least_layers_seconds(problem.facts, np.nan_to_num(of_layer, posinf=0.0)[where], degrees))
