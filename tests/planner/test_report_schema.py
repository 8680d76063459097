"""The JSON Schema of the reports: up to date, and of one mind with what is written."""

from __future__ import annotations

import json

import jsonschema
import pytest

from planner import compare, estimate, explain, load, plan, render
from planner.schema import schema_text
from planner.schema.reports import PATH
from tests.builders_job import a_document

VALIDATOR = jsonschema.Draft202012Validator(json.loads(PATH.read_text(encoding="utf-8")))

JOB = a_document("llama3-8b", "8xh100-80gb-sxm", batch=64, sequence=8192, tokens=1e11, top=2, search={"pin": {"cp": 1}})

LAYOUT = {"layers": [7, 9, 9, 7], "full_layers": [1, 0, 0, 0]}


@pytest.mark.slow
def test_the_schema_is_up_to_date():
    """An entry of a report is new or gone: run ``python -m planner.schema``."""
    assert PATH.read_text(encoding="utf-8") == schema_text("report")
    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)


def test_every_entry_is_described():
    """In words of its own record."""
    records = VALIDATOR.schema["$defs"]

    assert {"PlanReportRecord", "EstimateReportRecord", "ExplanationRecord", "StrategyRecord"} <= records.keys()
    for record in records.values():
        assert all(entry["description"] for entry in record["properties"].values())
        assert set(record["required"]) == set(record["properties"])
        assert record["additionalProperties"] is False
    assert '"pattern"' not in PATH.read_text(encoding="utf-8"), "quantities are numbers; only input has units"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "optimal"),
        ({"search": {"stages": "free", "pin": {"pp": 4}}}, "optimal"),
        ({"variants": "all", "objective": "total_time", "reliability": {"mttr_seconds": 60}}, "optimal"),
        ({"cluster": {"device": "h100-80gb-sxm", "num_devices": 8, "memory_gib": 8}}, "infeasible"),
        ({"search": {"max_bubble_fraction": 0, "pin": {"pp": 4}}}, "infeasible"),
        ({"search": {"pin": {"tp": 3}}}, "infeasible"),
        ({"search": {"time_limit_seconds": 1e-4}}, "unknown"),
    ],
)
def test_plans_satisfy_the_schema(changes, status):
    """Plans, conflicts with all that is known of them, and nothing at all."""
    report = json.loads(render(plan(load({**JOB, **changes})), "json"))

    assert report["status"] == status
    VALIDATOR.validate(report)


def test_estimates_satisfy_the_schema():
    """Also of stages that differ, and of a strategy that rules forbid."""
    VALIDATOR.validate(
        json.loads(render(estimate(load({**JOB, "strategy": {"pp": 4, "layout": LAYOUT}}), {}, searched=False), "json"))
    )
    VALIDATOR.validate(
        json.loads(render(estimate(load(JOB), {"tp": 8, "recompute": "full", "ep": 2}, searched=False), "json"))
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("decisions", [{}, {"tp": 8}, {"tp": 3}, {"pp": 8, "mbs": 8}])
def test_explanations_satisfy_the_schema(decisions):
    """Why this plan, and why not another one."""
    VALIDATOR.validate(json.loads(render(explain(load(JOB), decisions), "json")))


@pytest.mark.parametrize("changes", [{}, {"search": {"pin": {"tp": 3}}}])
def test_comparisons_satisfy_the_schema(changes):
    """With a best plan, and where nothing fits."""
    job = load({**JOB, **changes, "strategy": {"tp": 2, "recompute": "full"}})

    VALIDATOR.validate(json.loads(render(compare(job), "json")))


def test_what_is_wrong_is_named():
    """The entry, not that the whole document is of no kind; of an unknown kind, which ones there are."""
    report = json.loads(render(estimate(load(JOB), {"tp": 2}, searched=False), "json"))

    assert not VALIDATOR.is_valid({**report, "step_time": 1.0})
    assert not VALIDATOR.is_valid({name: value for name, value in report.items() if name != "step_time_seconds"})
    [wrong] = VALIDATOR.iter_errors({**report, "mfu": "fast"})
    [inner] = VALIDATOR.iter_errors({**report, "cluster": {**report["cluster"], "num_nodes": "one"}})
    [kind] = VALIDATOR.iter_errors({**report, "kind": "guess"})

    assert (list(wrong.path), wrong.message) == (["mfu"], "'fast' is not of type 'number'")
    assert list(inner.path) == ["cluster", "num_nodes"]
    assert (list(kind.path), kind.message) == (
        ["kind"],
        "'guess' is not one of ['plan', 'estimate', 'explanation', 'comparison']",
    )
