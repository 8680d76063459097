"""Rules and dashboards by Prometheus' grammar and Grafana's own schema."""

from __future__ import annotations

import json

import pytest
import yaml

from planner import load, plan
from planner.frameworks import export
from planner.frameworks.dashboards import list_expected_figures
from tests.planner.test_job import a_job


@pytest.fixture(scope="module")
def planned():
    """A plan of Llama-3-8B on 8 GPUs."""
    return plan(load(a_job(model="llama3-8b", cluster__num_devices=8))).plans[0]


def test_each_expression_is_promql(planned):
    """Twelve records and four alerts, with the entries that a rule file has."""
    parser = pytest.importorskip("promql_parser", reason="pip install '.[export]'")
    (group,) = yaml.safe_load(export(planned, "prometheus").files["planner.rules.yaml"])["groups"]

    records = [rule for rule in group["rules"] if set(rule) == {"record", "expr"}]
    alerts = [rule for rule in group["rules"] if set(rule) == {"alert", "expr", "for", "labels", "annotations"}]

    assert (len(records), len(alerts), len(group["rules"])) == (12, 4, 16)
    for rule in group["rules"]:
        parser.parse(rule["expr"])


def test_the_dashboard_is_one_of_grafana(planned):
    """Read by its SDK and written again, every panel, query and threshold is there."""
    schema = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="pip install '.[export]'")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    written = json.loads(export(planned, "grafana").files["planner.dashboard.json"])
    read = json.loads(json.dumps(schema.Dashboard.from_json(written), cls=JSONEncoder))

    assert len(read["panels"]) == len(list_expected_figures(planned)) == 4
    for ours, theirs in zip(written["panels"], read["panels"], strict=True):
        assert {name: theirs[name] for name in ours} == ours
    assert {name: read[name] for name in ("title", "schemaVersion", "refresh", "time", "tags")} == {
        name: written[name] for name in ("title", "schemaVersion", "refresh", "time", "tags")
    }
