"""The best plan for each number of free nodes: the same as asking one by one, in a fraction of the searches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from costmodel.errors import SpecError
from planner import load, plan, plan_for_sizes
from tests.cases import in_one_case


def a_job(**entries):
    """A dense model that fits on one node, with a batch that few numbers of nodes share evenly."""
    return {
        "model": "llama3-8b",
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
        "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
        "search": {"stages": "even"},
        **entries,
    }


def alone(num_devices, job):
    """The plan for a size by a search of its own, on a cluster of that size."""
    overrides = [f"cluster.num_devices={num_devices}", f"search.max_devices={num_devices}"]
    return plan(load(job, overrides), certified=False)


@pytest.mark.slow
def test_each_size_has_the_plan_that_a_search_of_its_own_finds():
    """Steps, checkpoints and training agree, whatever the job's own number of devices."""
    found = plan_for_sizes(a_job(), num_nodes=(1, 3, 8, 9))

    for size in found.sizes:
        best = alone(size.num_devices, a_job()).fastest
        assert (size.plan.step_seconds, size.plan.cluster) == (best.step_seconds, best.cluster)
        assert size.plan.schedule.interval_steps == best.schedule.interval_steps
        assert size.plan.schedule.total_seconds == pytest.approx(best.schedule.total_seconds, rel=1e-12)
    assert found.num_searches < len(found.sizes)


@pytest.mark.slow
def test_what_a_scheduler_asks():
    """37 to 64 nodes and a batch of 512: fewer devices than are free where the batch cannot be shared by all."""
    job = a_job(training={"global_batch_size": 512, "sequence_length": 4096, "tokens": 1e12})

    found = plan_for_sizes(job, num_nodes=range(37, 65))

    assert [size.num_nodes for size in found.sizes] == list(range(37, 65))
    assert found.best.num_nodes == 64
    assert found.best.num_idle == 0
    assert found[37 * 8].num_idle == 37 * 8 - found[37 * 8].plan.cluster.num_devices
    rates = [size.tokens_per_second for size in found.sizes]
    assert rates == sorted(rates)
    assert all(size.plan.cluster.num_devices <= size.num_devices for size in found.sizes)
    assert {str(size.status) for size in found.sizes} == {"optimal"}


@pytest.mark.slow
def test_sizes_on_which_nothing_fits_have_no_plan():
    """405 billion parameters do not train on 8 GPUs; all smaller sizes follow from one answer."""
    job = a_job(model="llama3-405b", search={"pin": {"optimizer_offload": False}})

    found = plan_for_sizes(job, num_devices=[1, 2, 8])

    assert [(size.num_nodes, size.plan, size.tokens_per_second) for size in found.sizes] == [(1, None, 0.0)] * 3
    assert found.best is None
    assert found.num_searches == 1


def test_the_smallest_of_equally_fast_sizes_is_the_best():
    """Nodes beyond those that the batch can be shared by gain nothing."""
    found = plan_for_sizes(a_job(), num_nodes=[9, 8, 10])

    assert [size.num_nodes for size in found.sizes] == [8, 9, 10]
    assert (found.best.num_nodes, found.num_searches) == (8, 1)


def test_a_bound_of_the_job_holds():
    """``search.max_devices`` is respected where it is below what is free."""
    problem = load(a_job(cluster={"device": "h100-80gb-sxm", "num_devices": 64}), ["search.max_devices=16"])

    found = plan_for_sizes(problem, num_nodes=[1, 2, 4])

    assert [size.plan.cluster.num_devices for size in found.sizes] == [8, 16, 16]


@pytest.mark.slow
def test_threads_get_the_answers_that_one_thread_gets():
    """Nothing is shared between calls: two questions in two threads, and one after the other."""
    questions = [a_job(training={"global_batch_size": 8 * n, "sequence_length": 2048, "tokens": 1e9}) for n in (1, 2)]

    def steps(job):
        return [size.plan.step_seconds for size in plan_for_sizes(job, num_nodes=(1, 2)).sizes]

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(steps, questions))

    assert together == [steps(job) for job in questions]


@in_one_case(
    ("sizes", "message"),
    [
        ({}, "sizes: expected num_nodes or num_devices, one of the two."),
        ({"num_nodes": [1], "num_devices": [8]}, "sizes: expected num_nodes or num_devices, one of the two."),
        ({"num_nodes": []}, "num_nodes: expected 1 to 100,000 sizes, got 0."),
        ({"num_nodes": [0]}, "num_nodes: expected whole numbers from 1, got 0."),
        ({"num_devices": [8, -1]}, "num_devices: expected whole numbers from 1, got -1."),
        ({"num_devices": [8, 1.5]}, "num_devices: expected whole numbers from 1, got 1.5."),
        ({"num_devices": [True]}, "num_devices: expected whole numbers from 1, got true."),
    ],
)
def test_wrong_sizes_are_refused(sizes, message):
    """Each with what was seen."""
    with pytest.raises(SpecError) as refused:
        plan_for_sizes(a_job(), **sizes)

    assert message in str(refused.value)


def test_total_time_cannot_be_compared_between_sizes():
    """With fewer nodes there are fewer failures: the total time does not follow the step."""
    problem = replace(load(a_job()), objective="total_time")

    with pytest.raises(SpecError, match="objective: plans for several sizes are compared by their step"):
        plan_for_sizes(problem, num_nodes=[1])
