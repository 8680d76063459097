"""Plans read back from JSON reports, and strategies that a job gives."""

from __future__ import annotations

import json
import re

import pytest

from costmodel.errors import SpecError
from costmodel.strategy import Recompute
from planner import estimate, load, plan, render
from planner.jobs.strategy_file import read_given
from planner.verbs.plan import read_plan
from tests.builders_job import a_document
from tests.cases import in_one_case

JOB = a_document("llama3-8b", "8xh100-80gb-sxm", batch=64, sequence=8192, tokens=1e11)


@pytest.fixture(scope="module")
def report():
    """Two plans for eight devices."""
    return plan(load({**JOB, "top": 2}))


@pytest.fixture
def written(report, tmp_path):
    """The report as a file."""
    path = tmp_path / "plan.json"
    path.write_text(render(report, "json"), encoding="utf-8")
    return path


def changed(path, **entries):
    """The file with other entries."""
    path.write_text(json.dumps(json.loads(path.read_text()) | entries), encoding="utf-8")
    return path


# --- reading back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_a_plan_comes_back_whole(report, written, number):
    """The job inside the report is enough to cost the same strategy to the same figures."""
    recorded = read_plan(written, number)

    assert recorded.plan == report.plans[number - 1]
    assert recorded.drift_fraction == 0


def test_contents_of_files_come_along(tmp_path, written):
    """A report needs neither the config.json nor the device file that it was made with."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32000, "num_hidden_layers": 8}
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps({"model_type": "llama", "num_attention_heads": 16, **sizes}))
    report = plan(load({**JOB, "model": str(config)}, ["cluster.num_devices=4"]))
    written.write_text(render(report, "json"), encoding="utf-8")
    config.unlink()

    recorded = read_plan(written)

    assert recorded.problem.facts == report.problem.facts
    assert recorded.plan == report.plans[0]


def test_an_estimate_comes_back(tmp_path):
    """Also one of a strategy whose stages differ."""
    layout = {"layers": [7, 9, 9, 7], "recompute": ["full", "none", "none", "none"]}
    report = estimate(load({**JOB, "strategy": {"tp": 2, "pp": 4, "layout": layout}}), {"mbs": 2}, searched=False)
    path = tmp_path / "estimate.json"
    path.write_text(render(report, "json"), encoding="utf-8")

    assert read_plan(path).plan == report.plan
    assert report.plan.strategy.layout.recompute == (Recompute.FULL, *(Recompute.NONE,) * 3)


@pytest.mark.parametrize(
    ("entries", "number", "message"),
    [
        ({"format_version": 99}, 1, "has format version 99; this planner reads 1."),
        ({"kind": "catalog"}, 1, "is a report of kind 'catalog', expected plan or estimate."),
        ({"plans": [], "status": "infeasible"}, 1, "holds no plan: its status is 'infeasible'."),
        ({}, 3, "has plans 1 to 2, not 3."),
        ({"plans": [{"strategy": {"tp": 2}}]}, 1, "is no complete report: 'step_time_seconds'."),
        ({"job": {}}, 1, "is no complete report: 'document'."),
    ],
)
def test_what_is_no_plan_is_refused(written, entries, number, message):
    """With the file's name and what was seen."""
    with pytest.raises(SpecError, match=re.escape(message)):
        read_plan(changed(written, **entries), number)


@in_one_case("text", ["", "{", "[1]", '{"a": 1}', "model: llama3-8b", "[" * 100_000])
def test_what_is_no_report_says_how_to_make_one(tmp_path, text):
    """Job files are the usual mistake."""
    path = tmp_path / "job.yaml"
    path.write_text(text)

    with pytest.raises(SpecError, match="planner plan JOB"):
        read_plan(path)


# --- a given strategy --------------------------------------------------------------------------------------


def test_the_job_may_give_the_strategy():
    """What is estimated is the job's strategy, with what the call adds; it comes before pins."""
    problem = load({**JOB, "search": {"pin": {"tp": 4}}, "strategy": {"tp": 2, "recompute": "full"}})

    strategy = estimate(problem, {"pp": 2}).plan.strategy

    assert (strategy.tp, strategy.pp, strategy.dp, strategy.recompute) == (2, 2, 2, Recompute.FULL)


@in_one_case(
    ("entries", "message"),
    [
        ({"tpp": 2}, "strategy.tpp: no such decision. Did you mean 'tp'?"),
        ({"layout": [1]}, "strategy.layout: expected a mapping"),
        ({"layout": {}}, "strategy.layout.layers: is required but missing."),
        ({"layout": {"layer": [1]}}, "strategy.layout.layer: no such entry. Did you mean 'layers'?"),
        ({"layout": {"layers": []}}, "strategy.layout.layers: expected a list"),
        ({"layout": {"layers": [-1]}}, "strategy.layout.layers.0: expected a number of layers, got -1."),
        ({"layout": {"layers": [1], "recompute": ["ful"]}}, "strategy.layout.recompute.0: expected one of"),
    ],
)
def test_wrong_entries_are_refused(entries, message):
    """With the dotted path."""
    with pytest.raises(SpecError, match=re.escape(message)):
        read_given(entries)


def test_layouts_need_the_usual_schedule():
    """Nothing else is costed with stages that differ."""
    given = {"pp": 2, "schedule": "gpipe", "layout": {"layers": [15, 17]}}
    cluster = {**JOB["cluster"], "framework": "torchtitan-0.1"}

    with pytest.raises(SpecError, match="schedule 1f1b"):
        estimate(load({**JOB, "cluster": cluster, "strategy": given}), {}, searched=False)
