"""Random inputs: a small share of them as a test, and whether what is looked for would be found."""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random

import pytest

from benchmarks.random_inputs.__main__ import main, run, summary
from benchmarks.random_inputs.trials import KINDS, Trial, trial_of
from benchmarks.random_inputs.watch import Audit, Outcome, run_trial
from tests.oracle import in_step

SEED, COUNT = 20261127, in_step(400)


@cache
def audit() -> Audit:
    """Watch this process, from now on and for good: Python takes no audit hook back."""
    return Audit()


@pytest.mark.slow
def test_a_share_of_them():
    """No traceback, nothing that hangs, nothing executed; most are refused."""
    found = run(SEED, range(COUNT), 1)

    assert [one for one in found if one.complaint] == []
    assert sum(one.exit_code == 2 for one in found) > COUNT / 2
    assert len({one.kind for one in found}) > len(KINDS) / 2


@pytest.mark.slow
def test_inputs_are_those_of_their_number():
    """A failure can be made again."""
    assert [trial_of(1, number) for number in range(300)] == [trial_of(1, number) for number in range(300)]
    assert trial_of(1, 0) != trial_of(2, 0)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_inputs_differ_from_what_they_are_made_of(make):
    """Of a kind nearly every input is another one."""
    seen = Counter(repr(make(Random(number))) for number in range(40))

    assert len(seen) > 20


def replaced(monkeypatch, command):
    """An outcome of a trial that reads nothing, whose command is another one."""
    monkeypatch.setattr("planner.cli.main", command)
    return run_trial(0, Trial(kind="options", words=("schema",)), audit())


def test_what_must_not_be_is_found(monkeypatch):
    """A traceback, an odd exit code, a process, a file, a folder, silence, and control characters."""

    def fails(_):
        raise KeyError("plans")

    def prints(text, code=2):
        def command(_):
            print(text, file=sys.stderr)
            return code

        return command

    def writes(_):
        Path("made").write_text("x")
        return 0

    assert "KeyError: 'plans'" in replaced(monkeypatch, fails).complaint
    assert replaced(monkeypatch, prints("odd", 77)).complaint == "exit code 77"
    assert "os.system" in replaced(monkeypatch, lambda _: os.system("true")).complaint
    assert "open" in replaced(monkeypatch, writes).complaint
    assert "os.mkdir" in replaced(monkeypatch, lambda _: os.mkdir("made") or 0).complaint
    assert replaced(monkeypatch, prints("", 2)).complaint == "wrong input without a word"
    assert "control characters" in replaced(monkeypatch, prints("\x1b[2J")).complaint
    assert replaced(monkeypatch, prints("planner: wrong")).complaint == ""


def test_the_summary_counts(monkeypatch, capsys):
    """By kind and exit code; the exit code of the benchmark says whether all is well."""
    good = Outcome(number=0, kind="job", exit_code=2, seconds=0.5)
    bad = Outcome(number=1, kind="job", exit_code=None, seconds=1.5, complaint="hangs")

    text = summary([good, bad])

    assert "2 inputs, half of them within 1.00 s, all within 1.5 s." in text
    assert "1 with a traceback" in text
    for found, code in (([good], 0), ([good, bad], 1)):
        monkeypatch.setattr("benchmarks.random_inputs.__main__.run", lambda *_, found=found: found)
        assert main(["--count", "3"]) == code
        assert f"{len(found)} inputs" in capsys.readouterr().out
