"""
The smallest cluster on which a job fits: the same devices, rules and batch, but another number of devices.

Sizes are whole nodes, or any number of devices below one node. All strategies for a range of sizes are rows of one
space, in which the number of devices follows from the degrees. They are searched in ascending order of that number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.conflict import Size
from constraints.rule import Holds, Ints, Rule
from constraints.rules import physics
from costmodel.models.flops import parameters
from costmodel.strategy import Strategy
from costmodel.tables import Facts, tabulate
from planner.jobs.problem import Problem
from planner.search.candidates import MemoryFunction, memory_only
from planner.search.domains import (
    ROW_DECISIONS,
    Columns,
    Rules,
    default_domains,
    default_microbatch_groups,
    feature_values,
    job_choices,
    most_tp,
    needs,
    row_domains,
)
from planner.search.solver import Clock, OutOfTimeError
from planner.search.space import Space, grow, space_of
from planner.verbs.memory_gap import first_that_fits, least_lacking

MOST_TIMES = 16
"""Largest size that is tried, as a multiple of the job's own."""

MOST_NODES, GROWTH = 32, 1 / 16
"""Nodes of a range of sizes whose rows grow together, at least and as a part of its first; affects memory only."""


def smallest_cluster(problem: Problem, rules: Rules, memory: MemoryFunction, clock: Clock) -> Size:
    """Search the smallest cluster, of at most ``MOST_TIMES`` the job's devices, on which a strategy fits."""
    tried, half = 0, Clock(seconds=clock.seconds_left / 2)
    enough_for_states = _fewest_devices(problem) if memory is memory_only else 1
    for fewest, most in _ranges(problem, MOST_TIMES * problem.facts.cluster.num_devices):
        if most < enough_for_states:
            tried = most
            continue
        try:
            found = _smallest_of(problem, rules, memory, (fewest, most), half)
        except OutOfTimeError:
            enough = _enough(problem, rules, memory, clock)
            return Size(num_devices=None, strategy=None, num_tried=tried, is_cut=True, num_enough=enough)
        if found:
            size = found.num_devices
            within = _largest_within(problem, rules, memory, size, clock)
            return Size(num_devices=size, strategy=found, num_tried=size, num_within=within)
        tried = most
    return Size(num_devices=None, strategy=None, num_tried=tried)


def _fewest_devices(problem: Problem) -> int:
    """
    Return a lower bound of the devices on which the job fits.

    Derivation: weights and gradients never leave the devices, and each lies on one of them at least. Optimizer states
    may be on the host.
    """
    device = problem.facts.cluster.device
    precision = problem.facts.workload.precision.on(device.silicon)
    of_weight = min(precision.weight_bytes, precision.wide_weight_bytes)
    nbytes = parameters(problem.facts.model) * (of_weight + precision.gradient_bytes)
    return ceil(nbytes / max(device.memory_bytes - problem.search.memory_headroom_bytes, 1.0))


def _largest_within(problem: Problem, rules: Rules, memory: MemoryFunction, smallest: int, clock: Clock) -> int | None:
    """Return the largest size below the job's own on which a strategy fits; None where time runs out."""
    ranges = [span for span in _ranges(problem, problem.facts.cluster.num_devices - 1) if span[1] >= smallest]
    with suppress(OutOfTimeError):
        for fewest, most in reversed(ranges):
            found = _smallest_of(problem, rules, memory, (fewest, most), clock, largest=True)
            if found:
                return found.num_devices
    return None


def _enough(problem: Problem, rules: Rules, memory: MemoryFunction, clock: Clock) -> int | None:
    """Return the first doubling of the job's devices on which a strategy fits; None without one or without time."""
    node, size = problem.facts.cluster.device.devices_per_node, problem.facts.cluster.num_devices
    with suppress(OutOfTimeError):
        while (size := 2 * size) <= MOST_TIMES * problem.facts.cluster.num_devices:
            is_whole = size < node or size % node == 0
            if is_whole and _smallest_of(problem, rules, memory, (size, size), clock):
                return size
    return None


def _smallest_of(
    problem: Problem,
    rules: Rules,
    memory: MemoryFunction,
    sizes: tuple[int, int],
    clock: Clock,
    *,
    largest: bool = False,
) -> Strategy | None:
    """Return a strategy that fits on the smallest (or ``largest``) possible size of a range; None without one."""
    clock.require()
    problem = problem.change_cluster(num_devices=sizes[1])
    space = _space(problem, rules, *sizes)
    num_devices = np.prod([space.rows[name] for name in ("tp", "cp", "pp", "dp")], axis=0)
    hopeful = _hopeful(problem, space, memory, clock)
    order = np.argsort(num_devices[hopeful] * (-1 if largest else 1), kind="stable")
    return first_that_fits(problem, space, memory, hopeful[order], clock)


def _hopeful(problem: Problem, space: Space, memory: MemoryFunction, clock: Clock) -> NDArray[np.int64]:
    """
    Return the rows that a lower bound of their memory does not exclude.

    Rows that differ in ``dp`` alone are excluded together with the largest ``dp``. More replicas share states and have
    fewer micro-batches each, so memory falls with ``dp``.
    """
    key = np.zeros(space.num_rows, dtype=np.int64)
    for name in (name for name in ROW_DECISIONS if name != "dp"):
        values, index = np.unique(space.rows[name], return_inverse=True)
        key = key * max(len(values), 1) + index
    order = np.lexsort([-space.rows["dp"], key])
    _, first, family = np.unique(key[order], return_index=True, return_inverse=True)
    largest = order[first]
    may_fit = least_lacking(problem, space, largest, memory, clock) == 0
    if len(largest) == space.num_rows:
        return np.asarray(largest[may_fit])
    left = order[may_fit[family]]
    return np.asarray(left[least_lacking(problem, space, left, memory, clock) == 0])


def _ranges(problem: Problem, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the smallest and largest size of each range up to a limit: single devices, then more and more nodes."""
    node = problem.facts.cluster.device.devices_per_node
    for size in range(1, min(node, limit + 1)):
        yield size, size
    first, nodes = 1, 1
    while first * node <= limit:
        last = min(first + nodes - 1, limit // node)
        yield first * node, last * node
        first, nodes = last + 1, min(2 * nodes, max(MOST_NODES, int(last * GROWTH)))


def _space(problem: Problem, rules: Rules, fewest: int, most: int) -> Space:
    """Build the space of strategies for whole numbers of nodes in a range; below a node, for one size."""
    sized = (_fills_whole_nodes(problem.facts, fewest, most), _leaves_devices(most))
    of_rows = [*sized, *(rule for rule in rules.rows if rule is not physics.degrees_multiply_to_the_devices)]
    domains = _domains(problem, of_rows, most)
    grown, _ = grow(problem.facts, domains, of_rows, tolerate=(), replicas=domains["dp"].tolist())
    rows = {name: grown[name] for name in ROW_DECISIONS}
    return space_of(problem.facts, rules, rows, feature_values(problem), raw_size=0).keep_largest_sets()


def _fills_whole_nodes(facts: Facts, fewest: int, most: int) -> Rule:
    step = min(facts.cluster.device.devices_per_node, most)

    def holds(*, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Holds:
        """The strategy fills a whole number of nodes within the searched range."""
        size = tp * cp * pp * dp
        return (fewest <= size) & (size <= most) & (size % step == 0)

    return holds


def _leaves_devices(most: int) -> Rule:
    def holds(*, tp: Ints, cp: Ints, pp: Ints) -> Holds:
        """The degrees take at most the devices that there are."""
        return tp * cp * pp <= most

    return holds


def _domains(problem: Problem, rules: Sequence[Rule], most: int) -> Columns:
    """Return the values of each degree that some rules allow, for any number of devices up to the largest."""
    sizes = np.arange(1, most + 1)
    scale_up = sizes[: most_tp(problem)]
    has_experts = len(default_domains(problem.facts)["etp"]) > 1
    free = {"tp": scale_up, "cp": sizes, "pp": sizes, "dp": sizes, **({"etp": scale_up} if has_experts else {})}
    domains = row_domains(problem)
    others = {name: domains[name] for name in ("mbs", "vpp")}
    left = {name: _filter_values(problem.facts, rules, name, values, others) for name, values in free.items()}
    return domains | left | ({} if "group" in job_choices(problem) else default_microbatch_groups(left["pp"]))


def _filter_values(
    facts: Facts, rules: Sequence[Rule], name: str, values: NDArray[np.int64], others: Columns
) -> NDArray[Any]:
    """Filter values of a degree by rules that need nothing else, or one more decision with few values."""
    for rule in rules:
        other_names = needs(rule) - {name}
        if other_names <= set(others) and len(other_names) < 2 and name in needs(rule):
            grid = {name: values[:, None]} | {other: others[other][None, :] for other in other_names}
            shape = np.broadcast_shapes(*(column.shape for column in grid.values()))
            holds = np.broadcast_to(np.asarray(tabulate(rule, facts, grid)), shape)
            values = values[holds.any(axis=1)]
    return values
