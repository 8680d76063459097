"""Rules that decide alone: what the model finds without one of them is forbidden by that rule and no other."""

from __future__ import annotations

from benchmarks.solver.alone import a_job, find_alone, negate
from constraints.limits import devices_rule
from constraints.rules import physics


def test_a_rule_that_no_other_implies_decides_alone():
    """Chunks without a pipeline; of a dense model nothing is split over ep, as its values have no other than 1."""
    problem = a_job("llama3-8b", num_devices=8, batch=16)
    asked = [physics.interleaving_needs_a_pipeline, physics.ep_overlap_needs_ep, physics.experts_split_over_ep]

    found = list(find_alone(problem, asked))

    assert found == [physics.interleaving_needs_a_pipeline, physics.ep_overlap_needs_ep]


def test_a_negated_rule_holds_where_the_rule_does_not():
    """Three devices of two are too many."""
    rule = devices_rule(2)

    assert bool(negate(rule)(tp=3, cp=1, pp=1, dp=1))
    assert not negate(rule)(tp=2, cp=1, pp=1, dp=1)
