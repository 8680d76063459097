"""``planner trace read``: what it says of traces, and how it ends."""

from __future__ import annotations

import json

import pytest

from planner import cli
from tests.builders_kineto import SENT, a_step, distributed, kernel, operator, write_file
from tests.schemas import valid


@pytest.fixture
def trace(tmp_path):
    """Rank 1 of 2: a step with a kernel of 40.125 us and a collective of 10 us on another stream."""
    sent = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1030, 10, stream=9)
    sent["args"] |= SENT
    devices = [{"id": place, "name": "NVIDIA H100", "numSms": 132} for place in range(8)]
    return write_file(tmp_path / "trace.json.gz", [*a_step(), sent], deviceProperties=devices, **distributed(1, 2))


def said(capsys, *arguments):
    """What the command prints."""
    assert cli.main(["trace", "read", *map(str, arguments)]) == 0
    return capsys.readouterr().out


class TestText:
    def test_what_is_in_it(self, trace, capsys):
        text = said(capsys, trace)

        for line in (
            "Trace of rank 1 of 2",
            "devices     8 x NVIDIA H100",
            "length      0.100 ms",
            "iterations  marked by the profiler: ProfilerStep#3 0.100 ms",
            "events      1 operator, 1 call, 2 kernel, 1 annotation",
            "nccl     all_reduce  7 DATA_PARALLEL_GROUP      4       1  0.010  2,000 bytes",
            "record_shapes=True",
        ):
            assert line in text

    def test_a_trace_of_the_host(self, tmp_path, capsys):
        text = said(capsys, write_file(tmp_path / "trace.json", [operator("aten::mm", 1, 5)]))

        assert "Trace of an unknown rank" in text
        assert "Longest operators" in text


class TestJson:
    def test_figures(self, trace, capsys):
        (one,) = valid("trace-read", json.loads(said(capsys, trace, "--format", "json")))

        assert (one["rank"], one["world_size"], one["seconds"]) == (1, 2, pytest.approx(100e-6))
        assert one["num_events"] == {"operator": 1, "call": 1, "kernel": 2, "annotation": 1}
        assert one["kernels"][0] == {"name": "gemm", "number": 1, "seconds": pytest.approx(40.125e-6)}
        assert one["communications"][0]["nbytes"] == 2000
        busy = {track["number"]: track["busy_seconds"] for track in one["tracks"]}
        assert busy == {"100": pytest.approx(20.5e-6), "7": pytest.approx(40.125e-6), "9": pytest.approx(10e-6)}

    def test_into_a_file(self, trace, tmp_path, capsys):
        assert said(capsys, trace, "--format", "json", "-o", tmp_path / "found.json") == ""
        assert json.loads((tmp_path / "found.json").read_text())[0]["rank"] == 1


class TestWrong:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["absent.json"], "absent.json: cannot be read: No such file or directory."),
            (["{trace}", "{trace}"], "is of rank 1, and so is"),
            (["{trace}", "-o", "{trace}"], "is what this command reads"),
            ([], "the following arguments are required: TRACE"),
        ],
    )
    def test_ends_with_2(self, arguments, message, trace, capsys):
        assert cli.main(["trace", "read", *(text.format(trace=trace) for text in arguments)]) == 2
        assert message in capsys.readouterr().err
