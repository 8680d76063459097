"""The smallest cluster that fits: none smaller does, and the bounds that skip strategies skip none that fits."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from planner.report.conflicts import conflict_sections, size_text
from planner.report.records.reports import report_record
from planner.report.records.setting import ClusterRecord
from planner.search.branch_and_bound import Status
from planner.search.candidates import least_memory, memory_only, mode_memory
from planner.search.domains import problem_rules
from planner.search.questions import search
from planner.search.solver import Clock, OutOfTimeError
from planner.search.space import build_space
from planner.verbs import repairs as sizes
from planner.verbs.plan import plan
from planner.verbs.repairs import MOST_TIMES, smallest_cluster
from tests.builders import a_model, a_moe_model
from tests.builders_cluster import GB
from tests.builders_problem import a_problem, a_timed_device

BIG = {"num_layers": 6, "hidden_size": 1024, "ffn_hidden_size": 4096, "vocab_size": 16000, "num_heads": 8}
ENDLESS = Clock(seconds=np.inf)


def resized(problem, num_devices):
    """The problem on another number of devices."""
    facts = replace(problem.facts, cluster=replace(problem.facts.cluster, num_devices=num_devices))
    return replace(problem, facts=facts)


def smallest_of(problem):
    """What the search for the smallest cluster says."""
    return smallest_cluster(problem, problem_rules(problem), memory_only, ENDLESS)


def a_tight_problem(seed):
    """A model on a few devices with little memory, sometimes with a degree pinned."""
    chooser = random.Random(seed)
    model = a_moe_model(**BIG, expert_ffn_hidden_size=1024) if chooser.random() < 0.5 else a_model(**BIG)
    pin = {name: chooser.choice((1, 2, 3)) for name in chooser.sample(("tp", "pp", "cp", "dp", "sharding"), 1)}
    features = {"recompute": chooser.choice((0, 2)), "activation_offload": 0, "optimizer_offload": 0}
    return a_problem(
        model,
        num_devices=chooser.choice((2, 3, 4)),
        device=a_timed_device(memory_bytes=chooser.choice((0.3, 0.5, 0.8)) * GB, devices_per_node=4),
        workload={"global_batch_size": chooser.choice((12, 16)), "sequence_length": 64},
        pin={**pin, **features},
        framework_rules=chooser.random() < 0.5,
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(16))
def test_no_smaller_cluster_fits(seed):
    """Devices one by one below a node, whole nodes above, each size searched as a job of its own."""
    problem = a_tight_problem(seed)
    most = MOST_TIMES * problem.facts.cluster.num_devices
    every = [1, 2, 3, *range(4, most + 1, 4)]

    size = smallest_of(problem)

    fits = cache(lambda one: search(resized(problem, one)).status == Status.OPTIMAL)
    assert size.num_devices == next(filter(fits, every), None)
    assert not size.time_ran_out
    within = [one for one in every if one < problem.facts.cluster.num_devices and fits(one)]
    assert size.num_devices_within == max(within, default=None)


def test_degrees_that_are_pinned_say_how_large_the_cluster_is():
    """2 * 3 * 1 is 6, below a node of eight; with four replicas it is 24, three whole nodes."""
    pin = {"tp": 2, "pp": 3, "cp": 1}
    problem = a_problem(a_model(num_layers=6), num_devices=8, pin=pin, workload={"global_batch_size": 16})

    size = smallest_of(problem)

    assert (size.num_devices, size.strategy.dp) == (6, 1)
    assert smallest_of(replace(problem, search=replace(problem.search, pin={**pin, "dp": 4}))).num_devices == 24


def test_fewer_devices_than_there_are_may_fit():
    """Of 32 devices 2 * 3 * dp in whole nodes are 24 at most; where all must be used, the advice is to use fewer."""
    limits = {"pin": {"tp": 2, "pp": 3, "cp": 1}, "idle_devices": False}
    problem = a_problem(a_model(num_layers=6), num_devices=32, workload={"global_batch_size": 16}, **limits)

    size = smallest_of(problem)
    whole = report_record(plan(problem))
    sections = conflict_sections(whole, whole.conflict)

    assert (size.num_devices, size.num_devices_within) == (6, 24)
    advice = {name: text for section in sections for name, text in section.rows}["search.max_devices"]
    assert advice == "32: plans may then use fewer GPUs; the largest number that fits is 24"
    assert search(replace(problem, search=replace(problem.search, max_devices=32))).status == Status.OPTIMAL


def test_nothing_fits_on_any_cluster():
    """Three ranks cannot share four heads, however many there are."""
    size = smallest_of(a_problem(pin={"tp": 3}))

    assert (size.num_devices, size.strategy, size.num_devices_tried, size.time_ran_out) == (None, None, 16 * 8, False)


def test_without_time_the_sizes_are_said_to_be_cut():
    """No size is claimed, none is excluded."""
    size = smallest_cluster(a_problem(pin={"tp": 3}), problem_rules(a_problem()), memory_only, Clock(seconds=0))

    assert (size.num_devices, size.num_devices_tried, size.time_ran_out) == (None, 0, True)


def test_where_the_smallest_is_not_known_a_doubling_that_fits_is(monkeypatch):
    """2 * 4 * 4 is 32 devices: eight are too few, sixteen too, 32 are enough."""
    problem = a_problem(a_model(num_layers=6), num_devices=8, pin={"tp": 2, "pp": 4, "cp": 4})
    original = sizes._smallest_of

    def none_in_ascending_order(problem, rules, memory, fewest, clock):
        if clock.seconds_left < 1e9:
            raise OutOfTimeError
        return original(problem, rules, memory, fewest, clock)

    monkeypatch.setattr(sizes, "_smallest_of", none_in_ascending_order)
    size = smallest_cluster(problem, problem_rules(problem), memory_only, Clock(seconds=1.5e9))

    assert (size.num_devices, size.time_ran_out, size.num_devices_enough) == (None, True, 32)
    assert "32 GPUs are enough" in size_text(ClusterRecord.read(problem), size)


@pytest.mark.parametrize("model", [a_model(**BIG), a_moe_model(**BIG, expert_ffn_hidden_size=1024)])
@pytest.mark.parametrize("device", [{}, {"memory_bytes": GB}])
def test_the_bound_of_memory_is_below_every_mode(model, device):
    """Of each row the smallest memory in any mode, device and host, is no less than the bound's smallest."""
    problem = a_problem(model, num_devices=16, device=a_timed_device(**device), framework_rules=False)
    space = build_space(problem)
    degrees = space.degrees(slice(None))

    bound = least_memory(problem.facts, degrees, space.features)

    exact, _ = mode_memory(problem.facts, degrees, space.features, memory_only)
    assert space.num_rows > 100
    for name in ("device_bytes", "host_bytes"):
        assert (getattr(bound, name).min(axis=1) <= getattr(exact, name).min(axis=1)).all()
    # A host too small for any offload leaves the modes without: there, too, the bound is below.
    without_host = np.where(exact.host_bytes == 0, exact.device_bytes, np.inf).min(axis=1)
    assert (np.where(bound.host_bytes == 0, bound.device_bytes, np.inf).min(axis=1) <= without_host).all()
    assert (bound.device_bytes.min(axis=1) > 0.4 * exact.device_bytes.min(axis=1)).mean() > 0.5, "else it is useless"


@pytest.mark.parametrize("model", [a_model(**BIG), a_moe_model(**BIG, expert_ffn_hidden_size=1024)])
def test_more_replicas_never_take_more_memory(model):
    """They share states and have fewer micro-batches in flight: what the largest dp excludes, smaller ones do."""
    problem = a_problem(model, num_devices=16)
    space = build_space(problem)
    degrees = space.degrees(slice(None))
    bounds = [
        least_memory(problem.facts, {**degrees, "dp": np.full_like(degrees["dp"], dp)}, space.features)
        for dp in (1, 2, 4, 8, 16)
    ]

    for fewer, more in pairwise(bounds):
        assert (more.device_bytes <= fewer.device_bytes).all()
        assert (more.host_bytes <= fewer.host_bytes).all()
