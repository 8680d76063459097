"""No smaller number of whole nodes is faster than a job's plan: a handful of the benchmark's random jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.counts import checks_of, random_job, violations
from tests.oracle import in_step

SEEDS = (1006, 1181, 1005)[: max(2, in_step(3))]
"""Jobs that the benchmark itself does not draw, on 5, 6 and 19 nodes."""


@pytest.fixture(scope="module")
def checks():
    """Every smaller number of nodes of some jobs."""
    return [one for seed in SEEDS for one in checks_of(seed)]


@pytest.mark.slow
def test_no_smaller_number_is_faster(checks):
    """Each number planned alone."""
    assert len({one.job.name for one in checks}) == len(SEEDS)
    assert sum(one.alone is not None for one in checks) >= 4 * len(SEEDS)
    assert violations(checks) == []


@pytest.mark.slow
def test_a_faster_number_is_found(checks):
    """A check whose job takes a thousandth longer than one of the numbers is a violation."""
    best = min((one for one in checks if one.alone), key=lambda one: one.alone.step_seconds / one.seconds)
    slower = replace(best, seconds=best.alone.step_seconds * 1.001)

    assert violations([slower, *checks]) == [slower]


def test_batches_do_not_divide():
    """Of forty jobs none has a batch that is a multiple of its devices."""
    jobs = [random_job(seed) for seed in range(40)]

    assert all(job["training"]["global_batch_size"] % job["cluster"]["num_devices"] for job in jobs)
