"""The comment that the GitHub Action writes on a change, and the steps of the action."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION = ROOT / ".github/actions/plan"
LAUNCHES = ROOT / "tests/data/launches"
DEVICE = "cluster.device=h100-80gb-sxm"


@pytest.fixture
def repository(tmp_path):
    """An empty repository, and what commits its files."""

    def git(*words):
        of = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(("git", *of, *words), cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    def commit(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.sh").write_text(text, encoding="utf-8")
        git("add", "-A")
        git("commit", "-qm", "a change", "--allow-empty")
        return git("rev-parse", "HEAD").strip()

    git("init", "-q")
    return tmp_path, commit


def comment_on(place, base, *words):
    """Run the script in a repository, and return what it prints."""
    command = (sys.executable, str(ACTION / "comment.py"), "--base", base, *words)
    found = subprocess.run(
        command, cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow
def test_a_wider_tp_is_seen_beside_what_it_was(repository):
    """TP2 PP2 of 16 devices leaves DP4, TP4 leaves DP2; a new file that leaves its batch open is named."""
    place, commit = repository
    script = (LAUNCHES / "dense.sh").read_text(encoding="utf-8")
    base = commit(dense=script)
    wider = script.replace("TP=2", "TP=4").replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 4")
    assert wider != script
    commit(dense=wider, experts=(LAUNCHES / "experts.sh").read_text(encoding="utf-8"))

    text = comment_on(place, base, "--words", DEVICE)

    assert "`TP4 PP2 DP2" in text
    assert "(was `TP2 PP2 DP4" in text
    step = next(line for line in text.splitlines() if line.startswith("| step"))
    before, after, change = (cell.strip() for cell in step.split("|")[2:5])
    assert float(after.split()[0]) > float(before.split()[0])
    assert change.startswith("+")
    assert "It is not costed: " in text
    assert "--set GBS=VALUE" in text


@pytest.mark.slow
def test_a_new_file_is_costed_alone_and_what_was_not_read_is_listed(repository):
    """The script's own switch has no meaning to the planner; words of the file are text in the comment."""
    place, commit = repository
    base = commit()
    script = (LAUNCHES / "dense.sh").read_text(encoding="utf-8")
    commit(dense=script.replace("--my-own-switch", "--my-own-switch '--<b>bold</b>'"))

    text = comment_on(place, base, "--words", DEVICE)

    assert "| | new | after | |" in text
    assert "--my-own-switch" in text
    assert "<b>" not in text


def test_a_change_of_other_files_has_no_comment(repository):
    """Nothing is printed, so that nothing is posted."""
    place, commit = repository
    base = commit()
    commit(notes="echo")

    assert comment_on(place, base, "--files", "launch/*.sh") == ""


def test_the_steps_of_the_action_are_bash_and_take_inputs_by_environment():
    """An input inside of a script would be code that a pull request writes."""
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))

    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
        assert subprocess.run(("bash", "-n"), input=step["run"], text=True).returncode == 0
