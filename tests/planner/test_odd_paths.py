"""Paths that lead nowhere, and reports that lack what reports have: a sentence and exit code 2, found at random."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from planner import cli
from tests.cases import read_table

LONG = "a" * 5000

JOB = """
model: {hidden_size: 256, num_layers: 2, num_heads: 4, ffn_hidden_size: 512, vocab_size: 1000}
cluster: {device: h100-80gb-sxm, num_devices: 8}
training: {global_batch_size: 8, sequence_length: 1024, tokens: 1e9}
"""

COMMANDS = read_table("odd_paths")["commands"]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("command", COMMANDS)
def test_links_to_themselves_and_long_names(command, tmp_path, monkeypatch, capsys):
    """The system refuses them in ways of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("loop", "loop.csv"):
        Path(name).symlink_to(name)
    Path("job.yaml").write_text(JOB)
    Path("train.sh").write_text(
        f"torchrun train.py --job.config_file {LONG}\ntorchrun -m torchtitan.train --job.config_file {LONG}\n"
    )

    assert cli.main([word.replace("LONG", LONG) for word in shlex.split(command)]) == 2

    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"plans": None}, "is no complete report: expected a list of plans, got null."),
        ({"plans": {"a": 1}}, "is no complete report: expected a list of plans, got {'a': 1}."),
        ({"step_time_seconds": 0}, "is no complete report: the step time is 0."),
        ({"job": [1]}, "is no complete report: name is [1], expected text."),
        ({"model": None}, "is no complete report: name is null, expected text."),
        ({"step_time_seconds": 10**400}, "is no complete report: "),
    ],
)
def test_reports_that_lack_what_reports_have(changes, complaint, tmp_path, capsys):
    """A list of plans, and a step that takes time."""
    (tmp_path / "job.yaml").write_text(JOB)
    path = tmp_path / "plan.json"
    assert cli.main(["plan", str(tmp_path / "job.yaml"), "--format", "json", "-o", str(path)]) == 0
    report = json.loads(path.read_text())
    for name in changes.keys() & {"job", "model"}:
        report[name]["name"] = changes[name]
    for plan in report["plans"]:
        plan.update({name: value for name, value in changes.items() if name == "step_time_seconds"})
    path.write_text(json.dumps({**report, "plans": changes.get("plans", report["plans"])}))

    assert cli.main(["export", str(path), "--target", "megatron-lm"]) == 2

    assert complaint in capsys.readouterr().err
