"""Numbers of whole nodes below the job's own, on which plans may run where that is faster."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from constraints.rule import Holds, Ints, Rule
from costmodel.step.step import least_layer_device_seconds, least_layers_seconds
from planner.jobs.problem import Problem
from planner.search.domains import Columns, row_domains


def may_leave_idle(problem: Problem) -> bool:
    """Tell whether plans may leave whole nodes idle; they may not where the job gives the number of devices itself."""
    return problem.search.idle_devices and not says_how_many(problem) and smaller_nodes(problem) > 0


def says_how_many(problem: Problem) -> bool:
    """Tell whether a job gives the number of devices of its plans; each row of a candidate list needs one."""
    candidate_list = problem.search.candidates
    return problem.search.max_devices is not None or (candidate_list is not None and bool(candidate_list.rows))


def num_held(problem: Problem) -> int:
    """Return the number of devices reserved for a job's plans: the most that one plan may use."""
    search, given = problem.search, problem.facts.cluster.num_devices
    if search.max_devices is None or search.num_nodes is not None:  # with numbers of nodes it is not the job's own
        return given
    return search.max_devices


def num_spares(problem: Problem) -> int:
    """Return the number of devices of spare nodes."""
    spare_nodes = problem.machine.section.spare_nodes if problem.machine else 0
    return spare_nodes * problem.facts.cluster.device.devices_per_node


def allow_idle_nodes(problem: Problem, num_devices: int) -> Problem:
    """Return the job that judges a strategy on so many devices: with idle nodes allowed, a job on fewer nodes."""
    node = problem.facts.cluster.device.devices_per_node
    is_smaller = num_devices < problem.facts.cluster.num_devices and num_devices % node == 0
    return limit_nodes(problem, 1, smaller_nodes(problem)) if is_smaller and may_leave_idle(problem) else problem


def smaller_nodes(problem: Problem) -> int:
    """Return the largest number of whole nodes with fewer devices than the job has."""
    cluster = problem.facts.cluster
    return (cluster.num_devices - 1) // cluster.device.devices_per_node


def limit_nodes(problem: Problem, fewest: int, most: int) -> Problem:
    """Return the job on a number of whole nodes between two."""
    node = problem.facts.cluster.device.devices_per_node
    return problem.change_limits(num_nodes=range(fewest, most + 1), max_devices=most * node)


def least_nodes(problem: Problem, seconds: float) -> int:
    """Return a lower bound of the nodes for a step of some seconds, from the time of all layers on one device."""
    one_device = {name: np.ones(1, dtype=np.int64) for name in ("tp", "cp", "pp", "dp")}
    work = min(_least_seconds(one, one_device).item() for one in problem.each)
    return max(1, math.floor(work / seconds / problem.facts.cluster.device.devices_per_node))


def fast_enough(problem: Problem) -> tuple[Rule, ...]:
    """Make the rule that the layers of a rank take no longer than a known step; no rule where none is known."""
    limit = problem.search.faster_than_seconds
    if limit is None or math.isinf(limit):
        return ()

    def holds(*, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Holds:
        """The layers of a rank take no longer than the known step."""
        degrees = {"tp": np.asarray(tp), "cp": np.asarray(cp), "pp": np.asarray(pp), "dp": np.asarray(dp)}
        return np.asarray(_least_seconds(problem, degrees) <= limit)

    return (holds,)


def _least_seconds(problem: Problem, degrees: Columns) -> NDArray[np.float64]:
    """Return a lower bound of the steps with some degrees, by their layers; 0 where measured times lack some."""
    domains = row_domains(problem)
    (tp, cp), where = np.unique(np.stack([degrees["tp"], degrees["cp"]]), axis=1, return_inverse=True)
    mbs = int(domains["mbs"].max())
    of_layer = least_layer_device_seconds(problem.facts, tp=tp, cp=cp, ep=domains["ep"].tolist(), mbs=mbs)
    return np.asarray(least_layers_seconds(problem.facts, np.nan_to_num(of_layer, posinf=0.0)[where], degrees))
