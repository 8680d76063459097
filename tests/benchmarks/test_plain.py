"""Plain jobs, and laws of the catalog that only the measured runs can judge."""

from __future__ import annotations

from collections import defaultdict

import pytest
import yaml

from benchmarks.accuracy.checks import plain_estimates, plain_job, plain_lines
from costmodel import catalog
from costmodel.strategy import TokenDispatcher
from planner import load
from planner.jobs.run_jobs import Run
from planner.measure.calibrate.cases import setting_of
from planner.measure.runs.predictions import Prediction
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.builders_runs import fitted_results, predicted, project_table
from tests.cases import in_one_case

# --- plain jobs --------------------------------------------------------------------------------------------


def test_a_plain_job_says_nothing_but_what_everybody_knows(tmp_path):
    """No settings, no sizes of nodes, no bandwidths: model, device, count, framework, batch, sequence, precision."""
    cells = {"cluster.internode_bandwidth": "2.5e10", "cluster.scale_up_size": "8", "settings.gradient_dtype": "bf16"}
    (one,) = predicted(tmp_path, cells)

    job = plain_job(one)

    assert job == {
        "model": "llama3-8b",
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 64, "framework": "megatron-core-0.16"},
        "training": {"global_batch_size": 128, "sequence_length": 8192, "precision": "bf16", "tokens": 1e12},
    }


def test_plain_jobs_have_the_rows_strategy_and_their_own_cost(tmp_path):
    """Half of the network's bandwidth is the row's to say: the plain job is faster; nothing else differs."""
    slow = {"cluster.internode_bandwidth": "1e9", "strategy.tp": "1"}
    rows = predicted(tmp_path, {"id": "plain"}, {"id": "slow", **slow})

    plain, slower = plain_estimates(rows)

    assert plain.step_seconds == rows[0].step_seconds
    assert slower.step_seconds < rows[1].step_seconds
    assert plain.fits
    assert plain.ran


def test_what_plain_jobs_are_refused_for_memory_is_listed(tmp_path):
    """A run of 70 B parameters whose optimizer was offloaded would not fit as it ran; the one that failed neither."""
    rows = (
        {"id": "fits"},
        {"id": "oom", "kind": "oom", "step_seconds": "", "strategy.tp": "1", "strategy.mbs": "2"},
        {"id": "70b", "model": "llama3-70b", "strategy.tp": "1", "step_seconds": "18", "peak_memory_gib": ""},
    )

    text = "\n".join(plain_lines(predicted(tmp_path, *rows)))

    (counts,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["all"]]
    assert counts[1:6] == ["2", "1", "(50.0%)", "1", "1"]
    assert "refused: 70b" in text
    assert "refused: oom" not in text


QWEN3 = """
model: qwen3-235b-a22b
cluster: {device: h100-80gb-sxm, num_devices: 256, framework: megatron-core-0.14}
training: {global_batch_size: 2048, sequence_length: 4096, tokens: 1e12}
strategy: {tp: 2, pp: 8, vpp: 4, ep: 32, mbs: 1, recompute: norms+expert_activation, token_dispatcher: deepep}
"""
"""Megatron-MoE-ModelZoo, best_practice/qwen3/readme.md: DeepEP, 19.7 s."""


def test_qwen3_235b_by_hand_takes_what_it_took():
    """
    19.7 s on 256 H100, within 5 %; its row says the same job in its own columns.

    All-to-all sends every token to each of its experts, not once to each node: it is slower by a tenth at least.
    """
    job = yaml.safe_load(QWEN3)
    (row,) = [row for row in project_table()[0] if isinstance(row, Run) and row.id == "mz-q-1"]

    found = estimate(load(job), {})

    assert (row.step_seconds, row.get("strategy.token_dispatcher")) == (19.7, "deepep")
    assert found.plan.step_seconds == pytest.approx(19.7, rel=0.05)
    del job["strategy"]["token_dispatcher"]
    found = estimate(load(job), {})
    assert found.plan.strategy.token_dispatcher == TokenDispatcher.ALLTOALL
    assert found.plan.step_seconds > 1.1 * 19.7


# --- the catalog of frameworks -----------------------------------------------------------------------------


def test_every_framework_of_the_table_is_in_the_catalog():
    """Rows without one get their device's; no row silently gets another's."""
    names = {str(row.get("cluster.framework")) for row in project_table()[0] if isinstance(row, Run)}

    assert {catalog.framework(name).name for name in names - {"None"}} == names - {"None"}
    assert "None" not in names


@pytest.fixture(scope="module")
def ran():
    """Architectures of the usable rows, by the release whose kernels they share."""
    found = defaultdict(set)
    for setting in (setting_of(one) for one in fitted_results() if isinstance(one, Prediction)):
        found[setting["kernels"]].add(setting["architecture"])
    return found


@pytest.mark.slow
@in_one_case("name", catalog.frameworks())
def test_a_framework_was_measured_where_rows_of_its_kernels_ran(name, ran):
    """``measured_on`` is neither more nor less than the architectures of the usable rows that share its factors."""
    framework = catalog.framework(name)

    assert set(framework.measured_on) == ran[framework.kernels_of or framework.name]
