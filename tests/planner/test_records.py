"""The best published run beside a prediction: which one compares, when it is a doubt, what it does to the interval."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from planner import compare, compare_two, estimate, load, plan, render
from planner.results import Plan
from planner.uncertainty.intervals import Interval
from planner.uncertainty.records import best_run, reach_record, record_month, records
from planner.verbs.compare import side_of
from tests.builders_job import a_document
from tests.cases import in_one_case

PERLMUTTER = {"base": "a100-80gb-sxm", "name": "a100-80gb-sxm-perlmutter"}
"""A device of a job, called as one that no catalog has was in measured runs."""


def facts(model="llama3-70b", device="h100", *, devices=64, sequence=8192, precision="bf16", framework=None):
    """A job's facts."""
    training = {"global_batch_size": 1024, "sequence_length": sequence, "tokens": 1e12, "precision": precision}
    cluster = {"device": device, "num_devices": devices, "framework": framework}
    return load({"model": model, "cluster": cluster, "training": training}).facts


DGXC_70B = 1121.2
"""tokens/s/GPU of Llama-3-70B on 64 H100, dgxc-benchmarking v25.02, README."""


def test_the_best_run_of_model_device_bits_and_sequence():
    """1,154.836 tokens/s are 3 % above dgxc's 1,121.2."""
    best = best_run(facts(), tokens_per_second_per_device=1.03 * DGXC_70B)

    assert (best.record.label, best.record.num_devices) == ("dgxc 25.02", 64)
    assert best.above_fraction == pytest.approx(0.03)
    assert best.same_sequence
    assert not best.is_doubtful
    # 1,024 sequences of 8,192 tokens on 64 devices at 1,121.2 tokens/s each take 116.9 s
    assert best.record_step_seconds == pytest.approx(1024 * 8192 / 64 / DGXC_70B)


@pytest.mark.parametrize(("above", "is_doubtful"), [(1.09, False), (1.11, True)])
def test_more_than_a_tenth_above_is_doubtful(above, is_doubtful):
    """DeepSeek-V3 on H100 in BF16 was measured once within the year before 26.06: AutoModel, 1,002 tokens/s/GPU."""
    given = facts("deepseek-v3", devices=256, sequence=4096, framework="megatron-bridge-26.06")

    best = best_run(given, tokens_per_second_per_device=1002 * above)

    assert best.record.id == "automodel-05"
    assert best.is_doubtful == is_doubtful


@pytest.mark.parametrize(("release", "is_recent"), [("26.06", False), ("25.09", True)])
def test_records_of_old_software_are_named_without_a_doubt(release, is_recent):
    """Llama-3.1-405B on H100 in BF16 was last published in May 2025, more than a year before 26.06."""
    given = facts("llama3-405b", devices=1024, framework=f"megatron-bridge-{release}")

    best = best_run(given, tokens_per_second_per_device=300.0)

    assert best.record.tokens_per_second_per_device == 208.4
    assert best.is_recent == best.is_doubtful == is_recent


def test_a_faster_old_run_shows_what_is_possible():
    """A slower run of this year (AutoModel, 866.8) makes no doubt of what dgxc measured a year before."""
    given = facts(framework="megatron-bridge-26.06")

    best = best_run(given, tokens_per_second_per_device=1.05 * DGXC_70B)

    assert best.is_recent
    assert best.record.tokens_per_second_per_device == DGXC_70B
    assert not best.is_doubtful


def test_shorter_sequences_compare_by_their_flops():
    """
    Llama-3-8B at 4,096 tokens beside dgxc's run at 8,192 of 10,682.4 tokens/s/GPU.

    Per token 6 x 7.505e9 FLOPs of weights without the embedding, and 6 x 32 x 4096 x s of causal attention:
    (45.03 + 6.44) / (45.03 + 3.22) = 1.0667.
    """
    best = best_run(facts("llama3-8b", devices=8, sequence=4096), tokens_per_second_per_device=10000.0)

    assert best.comparable_rate / 10682.4 == pytest.approx(1.0667, abs=2e-4)
    assert not best.same_sequence


@pytest.mark.parametrize(
    "others",
    [
        {"sequence": 2048},  # a quarter of the measured 8,192
        {"device": "h200"},  # measured in 8 bits alone
        {"model": "llama2-7b"},  # as long, but another model
        {"model": "gpt-neox-20b", "sequence": 2048, "precision": "fp16", "device": PERLMUTTER},  # whose peak none knows
    ],
)
def test_the_nearest_run_stands_for_what_was_not_measured(others):
    """Other devices, lengths, models: a run of the generation's devices, compared by its share of the peak."""
    best = best_run(facts(**{"model": "llama3-8b", **others}), tokens_per_second_per_device=1e6)

    assert not best.same_model


def test_the_nearest_run_is_compared_by_its_share_of_the_peak():
    """
    Qwen3-235B in BF16 has no run on H200: that of 256 H100 stands for it, whose BF16 peak is H200's.

    Its rate is then the H100's, but for the FLOPs of sequences of another length.
    """
    given = facts("qwen3-235b-a22b", "h200", devices=256, sequence=4096)

    best = best_run(given, tokens_per_second_per_device=3000.0)

    assert (best.record.model, best.record.device, best.same_model) == ("qwen3-235b-a22b", "h100-80gb-sxm", False)
    assert best.comparable_rate == pytest.approx(best.record.tokens_per_second_per_device, rel=1e-5)


@pytest.mark.parametrize(("above", "is_doubtful"), [(1.24, False), (1.26, True)])
def test_a_quarter_above_the_nearest_run_is_doubtful(above, is_doubtful):
    """Another model's run says less: a tenth above it is no doubt. The interval reaches a run that makes one."""
    given = facts("qwen3-235b-a22b", "h200", devices=256, sequence=4096)
    rate = best_run(given, tokens_per_second_per_device=1.0).comparable_rate

    best = best_run(given, tokens_per_second_per_device=above * rate)

    assert best.is_doubtful == is_doubtful
    assert reach_record(INTERVAL, replace(best, record_step_seconds=3.0)).high_seconds == (3.0 if is_doubtful else 2.0)


def test_nothing_is_said_of_a_generation_without_runs():
    """AMD's CDNA 3 has no record of a model with experts."""
    assert best_run(facts("deepseek-v3", "mi300x"), tokens_per_second_per_device=1e6) is None


def test_any_recipe_of_as_many_bits_compares():
    """Delayed scaling beside the run of per-tensor current scaling: 14,451 tokens/s/GPU (Megatron-Bridge 25.11)."""
    best = best_run(facts("llama3-8b", devices=8, precision="fp8"), tokens_per_second_per_device=14451.0)

    assert best.record.precision == "fp8_current"
    assert best.above_fraction == pytest.approx(0)


def test_no_proxy_is_a_record_of_the_whole_model():
    """dgxc's cut-down 405B of 7 layers trains 3,645 tokens/s/GPU."""
    ours = [one for one in records({"h100-80gb-sxm"}) if one.shape.hidden_size == 16384]

    assert max(one.tokens_per_second_per_device for one in ours if one.shape.num_layers == 126) < 400


@in_one_case(
    ("framework", "date", "month"),
    [
        ("megatron-bridge-26.04.01", "2026-04", 316.0),  # 26 x 12 + 4; a patch comes later, the table in its month
        ("automodel-26.02", "2025-10-02", 310.0),  # published before that release
        ("torchtitan-0.1", "2025-06", 306.0),
        ("", "2025-11..2026-05", 317.0),
    ],
)
def test_months_of_releases_and_publications(framework, date, month):
    """The earlier of both."""
    assert record_month(framework, date) == month


# --- the interval, and the words ----------------------------------------------------------------------------------


INTERVAL = Interval(low_seconds=1.0, high_seconds=2.0, basis="runs")


def test_the_slow_end_reaches_the_record():
    """Only where the prediction is doubted, and never nearer than it was."""
    given = facts("deepseek-v3", devices=256, sequence=4096, framework="megatron-bridge-26.06")
    best = best_run(given, tokens_per_second_per_device=1400.0)
    sure = best_run(given, tokens_per_second_per_device=900.0)

    assert reach_record(INTERVAL, best).high_seconds == best.record_step_seconds
    assert reach_record(INTERVAL, best).low_seconds == 1.0
    assert reach_record(replace(INTERVAL, high_seconds=99.0), best).high_seconds == 99.0
    assert reach_record(INTERVAL, sure) == reach_record(INTERVAL, None) == INTERVAL


DEEPSEEK = a_document(
    "deepseek-v3", "256xh100", batch=2048, sequence=4096, cluster={"framework": "megatron-bridge-26.06"}
)


def test_a_doubt_is_said_first(monkeypatch):
    """2,048 x 4,096 tokens on 256 devices at 1,002 tokens/s each take 32.70 s: the interval reaches that."""
    decisions = {"pp": 4, "ep": 64, "mbs": 1, "recompute": "full", "token_dispatcher": "deepep"}
    report = estimate(load(DEEPSEEK), decisions)
    best = report.plan.record
    monkeypatch.setattr(Plan, "record", replace(best, above_fraction=0.38))

    lines = render(report, "short").splitlines()

    assert lines[2].startswith("doubt ")
    said = " ".join(lines)
    assert "predicted 38% above the best published run: 1,002 tokens/s/GPU (NeMo AutoModel" in said
    assert best.record_step_seconds == pytest.approx(32.70, abs=0.01)


@pytest.mark.slow
def test_tables_have_the_fraction_above_the_record():
    """Of a plan, and nothing where no run compares."""
    measured = estimate(load({**DEEPSEEK, "cluster": {"device": "h100", "num_devices": 256}}), {"pp": 8, "ep": 32})
    unknown = estimate(load({**DEEPSEEK, "cluster": {"device": "h200", "num_devices": 256}}), {"pp": 8, "ep": 32})

    rows = [next(csv.DictReader(render(one, "csv").splitlines())) for one in (measured, unknown)]
    cells = [row["above_record_fraction"] for row in rows]

    assert float(cells[0]) == pytest.approx(measured.plan.tokens_per_second_per_device / 1002 - 1)
    assert cells[1] == ""


def test_the_best_run_is_named_where_there_is_no_doubt():
    """With what it was measured on."""
    job = {**DEEPSEEK, "model": "llama3-405b", "cluster": {"device": "h100", "num_devices": 1024}}
    job["training"] = {**DEEPSEEK["training"], "sequence_length": 8192}

    said = " ".join(
        render(estimate(load(job), {"tp": 8, "cp": 2, "pp": 8, "vpp": 8, "mbs": 1}, searched=False), "short").split()
    )

    assert "best published run: 208 tokens/s/GPU (dgxc 24.11.1, 576 GPUs); this plan is predicted" in said


@pytest.mark.slow
def test_every_report_begins_with_the_doubt():
    """Whoever asks why, or what is gained, reads it before the answer."""
    job = load({**DEEPSEEK, "search": {"time_limit_seconds": 60}})
    doubted = plan(job, certified=False)
    assert doubted.plans[0].record.is_doubtful, "the job is one whose plan is above everything measured"
    given = {"pp": 8, "ep": 32, "mbs": 1, "recompute": "full"}
    compared = compare(job, given)
    pair = compare_two(side_of(compared.given, "ours"), side_of(doubted, "theirs"))

    texts = [render(one, "table") for one in (doubted, compared, pair)]

    assert all(text.index("\ndoubt") < text.index("\nanswer") for text in texts)
    assert "the second is predicted" in texts[2]
