"""Commands on traces in which something is wrong: an answer with its doubts or a refusal, never a traceback."""

from __future__ import annotations

import json
from random import Random

import pytest

from planner.cli import main
from tests.builders_broken_traces import KINDS, broken, two_threads
from tests.builders_kineto import write_file
from tests.schemas import valid

COMMANDS = (
    ("read",),
    ("replay",),
    ("replay", "--iteration", "0"),
    ("what-if", "--faster", "gemm=2"),
    ("what-if", "--anyway", "--no-overlap"),
    ("what-if", "--anyway", "--cuda-graphs"),
    ("what-if", "--anyway", "layers=2"),
)


def codes(file, capsys):
    """Exit codes of all commands; the replay's answer is held against its schema."""
    found = []
    for command, *options in COMMANDS:
        found.append(main(["trace", command, str(file), *options, "--format", "json"]))
        printed = capsys.readouterr()
        if found[-1] == 2:
            assert printed.err.startswith("planner: ")
        elif command == "replay":
            one = valid("trace-replay", json.loads(printed.out))
            assert one["usable"] == (found[-1] == 0)
            assert one["usable"] == (not one["wrong_waits"])
            parts = sum(part["nanoseconds"] for part in one["critical_path"]["parts"])
            assert parts == one["critical_path"]["nanoseconds"]
    return found


@pytest.fixture
def write(tmp_path):
    """Write events to a file."""
    return lambda events: write_file(tmp_path / "trace.json", events)


class TestOneThing:
    """Traces in which one thing is wrong."""

    def test_the_step_itself_is_right(self, write, capsys):
        """It replays within 5 %, and can be changed."""
        assert codes(write(two_threads()), capsys) == [0] * len(COMMANDS)

    @pytest.mark.sampled(7)
    @pytest.mark.parametrize("kind", KINDS)
    def test_each_kind_ends(self, kind, write, capsys):
        """With an answer, or with a refusal."""
        found = codes(write(kind(two_threads(), Random(0))), capsys)

        assert set(found) <= {0, 1, 2}

    def test_a_replay_that_is_not_usable_is_refused(self, write, capsys):
        """The all-reduce of the second step begins 1.5 ms late for no reason: what-if says so, and what can be done."""
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        late = [{**one, "ts": one["ts"] + 1500 * (one["name"] == name and one["ts"] == 1560)} for one in two_threads()]
        file = str(write(late))

        assert main(["trace", "what-if", file, "--faster", "gemm=2"]) == 2
        refused = capsys.readouterr().err
        assert "is not usable: 'ncclDevKernel_AllReduce_Sum_bf16_RING_LL' (stream 20) waits for" in refused
        assert "go on with --anyway" in refused
        assert main(["trace", "what-if", file, "--faster", "gemm=2", "--anyway", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["usable"] is False


class TestSeveralThings:
    """Traces in which several things are wrong at once, some of them cut."""

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("seed", range(10))
    def test_each_ends(self, seed, tmp_path, capsys):
        """With an answer, or with a refusal."""
        file = tmp_path / "trace.json"
        file.write_text(broken(seed, 2 + seed % 4))

        assert set(codes(file, capsys)) <= {0, 1, 2}
