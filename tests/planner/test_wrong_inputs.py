"""Wrong inputs: each message names the place, what was seen, what is allowed and what to do; nothing is written."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from planner import cli
from tests.cases import read_table

INPUTS: list[dict[str, Any]] = read_table("wrong_inputs")

JOB = """\
model: {model}
cluster: {{device: {device}, num_devices: {num_devices}}}
training: {{global_batch_size: {global_batch_size}, sequence_length: {sequence_length}, tokens: {tokens}}}
{more}
"""
ENTRIES = {
    "model": "llama3-8b",
    "device": "h100-80gb-sxm",
    "num_devices": 8,
    "global_batch_size": 64,
    "sequence_length": 4096,
    "tokens": "1e9",
    "more": "",
}

FEWEST, FEWEST_WITH_SEVERAL = 60, 8
"""Inputs of the table, and those of them with several mistakes."""

PARTS = ("place", "value", "allowed", "fix")


@pytest.mark.parametrize("wrong", INPUTS, ids=[wrong["name"] for wrong in INPUTS])
def test_a_wrong_input_is_explained(wrong, tmp_path, monkeypatch, capsys):
    """Exit code 2, one line for each mistake with all that one needs, no traceback, nothing written."""
    monkeypatch.chdir(tmp_path)
    files = {"job.yaml": JOB.format(**ENTRIES | wrong.get("job", {}))} | wrong.get("files", {})
    for name, text in files.items():
        Path(name).write_bytes(text.encode("latin-1"))

    code = cli.main(shlex.split(wrong.get("command", "plan job.yaml")))

    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if not line.startswith(("usage:", "       "))]
    mistakes = [line for line in lines if not line.endswith((" mistakes:", " ..."))]
    assert code == 2
    assert "Traceback" not in said.err
    assert said.out == ""
    assert len(mistakes) == len(wrong["mistakes"])
    for line, parts in zip(mistakes, wrong["mistakes"], strict=True):
        assert parts.keys() == {*PARTS}
        assert [part for part in PARTS if not parts[part] or parts[part] not in line] == [], line
    assert {path.name for path in tmp_path.iterdir()} == files.keys()
    assert {name: Path(name).read_bytes() for name in files} == {n: t.encode("latin-1") for n, t in files.items()}


def test_the_table_is_large():
    """Sixty inputs of all kinds; some have several mistakes."""
    several = [wrong for wrong in INPUTS if len(wrong["mistakes"]) > 1]
    commands = {shlex.split(wrong.get("command", "plan"))[0] for wrong in INPUTS}

    assert len(INPUTS) >= FEWEST
    assert len(several) >= FEWEST_WITH_SEVERAL
    assert len({wrong["name"] for wrong in INPUTS}) == len(INPUTS)
    assert commands >= {"plan", "estimate", "init", "catalog", "import", "export", "calibrate", "batch", "serve"}
