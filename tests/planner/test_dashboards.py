"""Expected figures of a plan beside those of a run: bounds, alerts, names of frameworks."""

from __future__ import annotations

import json

import pytest
import yaml

from planner import load, plan
from planner.cli import main
from planner.frameworks import DASHBOARDS, export
from planner.frameworks.dashboards import WRITERS, list_expected_figures
from planner.report import render
from tests.planner.test_job import a_job


@pytest.fixture(scope="module")
def report():
    """A plan of Llama-3-8B on 8 GPUs, by Megatron-LM."""
    return plan(load(a_job(model="llama3-8b", cluster__num_devices=8, cluster__framework="megatron-lm-0.18")))


def test_tokens_and_mfu_fall_as_the_step_grows(report):
    """The slow end of the step is the low end of both: tokens of a step over seconds and devices."""
    planned = report.plans[0]
    step, tokens, mfu, memory = list_expected_figures(planned)
    workload = planned.facts.workload

    assert tokens.value * step.value * 8 == pytest.approx(workload.global_batch_size * workload.sequence_length)
    assert tokens.low * step.high == pytest.approx(tokens.value * step.value)
    assert mfu.low / mfu.value == pytest.approx(step.value / step.high)
    assert memory.value == planned.memory_bytes - planned.headroom_bytes
    assert all(one.low <= one.value <= one.high for one in (step, tokens, mfu))


def test_alerts_are_due_on_the_bad_side_only(report):
    """A step may be faster than the interval, and memory lower, without an alert."""
    rules = yaml.safe_load(export(report.plans[0], "prometheus").files["planner.rules.yaml"])
    alerts = {rule["alert"]: rule["expr"] for rule in rules["groups"][0]["rules"] if "alert" in rule}

    assert alerts["PlannerStepSeconds"].startswith("training_step_seconds > ")
    assert alerts["PlannerTokensPerSecondPerDevice"].startswith("training_tokens_per_second_per_device < ")
    assert alerts["PlannerDeviceMemoryBytes"].startswith("max(DCGM_FI_DEV_FB_USED) * 1048576 > ")


def test_each_dashboard_has_a_writer():
    """The command names what the table has."""
    assert WRITERS.keys() == set(DASHBOARDS)


class Run:
    """A run of W&B that keeps what it is told."""

    def __init__(self):
        self.logged, self.alerts = {}, []

    def log(self, metrics, commit):
        assert not commit
        self.logged |= metrics

    def alert(self, title, text, wait_duration):
        self.alerts.append(title)


def test_a_watched_run_logs_the_bounds_and_alerts_beyond_the_bad_one(report, tmp_path, monkeypatch):
    """Megatron-LM's name of a step is 'iteration-time'; a name that a run does not log is left out."""
    files = export(report.plans[0], "wandb").files
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import wandb_planned

    planned = json.loads(files["wandb.planned.json"])["step_seconds"]
    run = Run()
    wandb_planned.watch(run, {"iteration-time": planned["low"] / 2})
    assert run.alerts == []
    assert run.logged["planned/step_seconds/expected"] == planned["expected"]
    wandb_planned.watch(run, {"iteration-time": planned["high"] * 1.01, "loss": 2.0})

    assert planned["logged_as"] == "iteration-time"
    assert run.alerts == ["step_seconds outside of the plan"]
    assert {name.split("/")[1] for name in run.logged} == {"step_seconds"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--target", "grafana"], 0, "DCGM_FI_DEV_FB_USED"),
        (["--target", "grafana", "--launch", "slurm"], 2, "--launch: grafana starts no training."),
        (
            ["--target", "prometheus", "--framework-version", "1"],
            2,
            "version: prometheus has none.",
        ),
        (["--target", "grafanna"], 2, "Did you mean 'grafana'?"),
    ],
)
def test_the_command_writes_dashboards_as_it_writes_targets(report, tmp_path, capsys, words, code, said):
    """Launchers and releases have no meaning for them."""
    file = tmp_path / "plan.json"
    file.write_text(render(report, "json"), encoding="utf-8")

    assert main(["export", str(file), *words, "-o", str(tmp_path / "files")]) == code
    assert said in capsys.readouterr().err
