"""Faster hardware, an overlap or less work never make a predicted step longer: a share of the benchmark's checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.monotone.__main__ import host_is_late, is_cited, run, violations
from benchmarks.monotone.checks import FASTER, SLOWER
from tests.oracle import in_step

pytestmark = pytest.mark.slow  # thousands of checks are made once

NUM_STRATEGIES = max(24, in_step(45))
FIRST_SEED = 20_000
"""Jobs that the benchmark itself does not draw."""


@pytest.fixture(scope="module")
def checks():
    """Every change of random strategies."""
    return list(run(NUM_STRATEGIES, first_seed=FIRST_SEED))


def is_late(one):
    """Whether the host is late before a change, or after it."""
    return host_is_late(one.case) or host_is_late(one.other)


def test_no_step_gets_longer(checks):
    """Eleven checks of each strategy at least, a quarter of them with offloaded activations, of every property."""
    assert len(checks) >= 11 * NUM_STRATEGIES
    assert sum(one.case.strategy.activation_offload for one in checks) >= len(checks) / 4
    assert {one.name for one in checks} == {*FASTER, *SLOWER}
    assert violations(checks) == []


def test_a_step_that_gets_longer_is_found(checks):
    """A check whose step is a millionth longer is one."""
    on_time = next(one for one in checks if not is_late(one))
    longer = replace(on_time, after=on_time.before * (1 + 1e-6), shown=0.0)

    assert violations([longer, *checks]) == [longer]


def test_only_pieces_of_matmuls_may_cost_more_than_they_hide(checks):
    """Where PyTorch overlaps single matmuls, at most a third; no other change, and no other release."""
    overlapping = replace(next(one for one in checks if one.name == "tp_overlap"), before=1.0, after=1.05, shown=0.0)

    assert is_cited(overlapping) == (
        overlapping.case.facts.cluster.device.behaviour.communication.tp_overlaps_single_matmuls
    )
    assert not is_cited(replace(overlapping, after=1.4))
    assert not is_cited(replace(overlapping, name="ep_overlap"))


def test_only_a_late_host_in_a_pipeline_may_lead_a_little(checks):
    """By half a percent of the step, whatever is changed."""
    late = [one for one in checks if is_late(one)]
    pipelined = replace(next(one for one in late if one.case.strategy.pp > 1), name="peak", before=1.0)
    single = replace(next(one for one in late if one.case.strategy.pp == 1), name="peak", before=1.0)
    on_time = replace(next(one for one in checks if not is_late(one)), name="peak", before=1.0)

    assert is_cited(replace(pipelined, after=1 + 4e-3))
    assert is_cited(replace(on_time, case=pipelined.case, other=late[0].other, after=1 + 4e-3))
    assert not is_cited(replace(pipelined, after=1 + 6e-3))
    assert not is_cited(replace(single, after=1 + 4e-3))
    assert not is_cited(replace(on_time, after=1 + 4e-3))


def test_only_what_passes_no_longer_hide_may_make_a_pipeline_longer(checks):
    """By two thousandths, and by no more than what more is exposed of data-parallel communication."""
    on_time = [one for one in checks if not is_late(one)]
    pipelined, single = (
        replace(next(one for one in on_time if (one.case.strategy.pp > 1) == many), name="peak", before=1.0, shown=5e-5)
        for many in (True, False)
    )

    assert is_cited(replace(pipelined, after=1 + 4e-5))
    assert not is_cited(replace(pipelined, after=1 + 6e-5))
    assert not is_cited(replace(pipelined, after=1 + 3e-3, shown=1.0))
    assert not is_cited(replace(single, after=1 + 4e-5))
