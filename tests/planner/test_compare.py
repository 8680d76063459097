"""The verb ``compare``: a given strategy against the best plan."""

from __future__ import annotations

import json

import pytest

from costmodel.errors import SpecError
from planner import compare, estimate, load, plan, render
from planner.cli import main

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    "training": {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e11},
    "strategy": {"tp": 4, "recompute": "full"},
}


@pytest.fixture(scope="module")
def comparison():
    """A slow strategy, which fits."""
    return compare(load(JOB))


@pytest.mark.slow
def test_both_sides_are_those_of_the_other_verbs(comparison):
    """What is given costs what ``estimate`` says, the best plan is the fastest of ``plan``'s."""
    given, best = estimate(load(JOB), {}).plan, plan(load(JOB), certified=False).fastest

    assert comparison.given.plan == given
    assert comparison.best == best
    assert comparison.saved_seconds == given.step_seconds - best.step_seconds > 0
    assert comparison.saved_days == given.schedule.days - best.schedule.days > 0
    assert comparison.saved_gpu_hours == pytest.approx(24 * 8 * comparison.saved_days)
    assert comparison.exit_code == 0


def test_lines_add_up_to_the_gain(comparison):
    """The breakdown is of the whole step; what is recomputed costs most."""
    assert sum(line.difference_seconds for line in comparison.differences) == pytest.approx(comparison.saved_seconds)
    assert comparison.differences[0].name in ("recompute", "tp")


def test_decisions_come_before_the_jobs(comparison):
    """So that one can vary what is given."""
    varied = compare(load(JOB), {"recompute": "none"})

    assert (varied.given.plan.strategy.tp, varied.given.plan.strategy.recompute) == (4, 0)
    assert varied.saved_seconds < comparison.saved_seconds


@pytest.mark.slow
def test_the_best_plan_gains_nothing_over_itself():
    """And is within its own noise."""
    job = load({**JOB, "search": {"stages": "even"}})
    best = plan(job, certified=False).fastest.strategy

    same = compare(job, best.decisions())

    assert same.saved_seconds == pytest.approx(0, abs=1e-9)
    assert same.is_within_noise
    assert "no plan is faster" in render(same)


def test_a_forbidden_strategy_says_why():
    """The rules that it breaks come first."""
    text = render(compare(load(JOB), {"tp_overlap": True, "sequence_parallel": False}))

    assert "Forbidden: this strategy breaks" in text
    assert "Tensor-parallel communication is overlapped only together with sequence parallelism." in text


def test_nothing_to_compare_with():
    """Where the best plan does not fit, what is given is costed all the same."""
    comparison = compare(
        load({**JOB, "cluster": {"device": "h100-80gb-sxm", "num_devices": 1, "memory_gib": 10}}), {"tp": 1}
    )

    assert comparison.best is None
    assert comparison.exit_code == 1
    assert "no strategy fits" in render(comparison)
    assert json.loads(render(comparison, "json"))["saved_days"] is None


def test_a_strategy_is_asked_for():
    """There is nothing to compare otherwise."""
    with pytest.raises(SpecError, match=r"strategy: is required"):
        compare(load({**JOB, "strategy": {}}))


def test_formats(comparison):
    """A table, Markdown with the same figures, JSON with units in the names; no short answer."""
    document = json.loads(render(comparison, "json"))

    assert document["kind"] == "comparison"
    assert document["saved_seconds_per_step"] == comparison.saved_seconds
    assert document["given"]["step_time_seconds"] == comparison.given.plan.step_seconds
    assert f"{comparison.saved_gpu_hours:,.0f} GPU-hours less" in " ".join(render(comparison).split())
    assert "| step, s" in render(comparison, "markdown")
    with pytest.raises(SpecError, match="no short answer"):
        render(comparison, "short")


def test_the_command(tmp_path, capsys):
    """Decisions and entries of the job may be mixed; the format is an option."""
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(JOB))

    assert main(["explain", str(job), "tp=2", "training.global_batch_size=32", "--format", "json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["given"]["strategy"]["tp"] == 2
    assert document["training"]["global_batch_size"] == 32
