"""Traces written and read again: the same columns, and what Perfetto needs."""

from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.measure.traces.reading import read_trace
from planner.measure.traces.writing import write_trace
from tests.builders_kineto import SENT, a_step, distributed, event, write_file

REAL = sorted((Path(__file__).parents[1] / "data" / "traces").glob("*.json.gz"))
"""Small traces of HolisticTraceAnalysis (NOTICE)."""

OF_THREADS = ("cpu_op", "cuda_runtime", "user_annotation", "python_function")
OF_STREAMS = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


def assert_same(one, other):
    """Every column and every table."""
    for column in fields(one.events):
        mine, theirs = getattr(one.events, column.name), getattr(other.events, column.name)
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist(), column.name
    for entry in fields(one):
        if entry.name not in ("source", "doubts", "events"):
            assert getattr(one, entry.name) == getattr(other, entry.name), entry.name


def written(trace, tmp_path, name="again.json"):
    """The trace after it has been to a file."""
    write_trace(trace, tmp_path / name)
    return read_trace(tmp_path / name)


def drawn_event(choice, place):
    """Any event, with whatever its category may say."""
    category = choice.choice((*OF_THREADS, *OF_STREAMS))
    on_stream = category in OF_STREAMS
    name = choice.choice(["a", "b\\", 'c"d', "ncclDevKernel_AllReduce", "deep_ep::internode::combine", "gloo:send"])
    on = (
        (choice.randrange(2), choice.choice([7, 20]))
        if on_stream
        else (choice.choice([5, "host"]), choice.randrange(3))
    )
    one = event(
        category,
        f"nn.Module: {name}" if category == "python_function" else name,
        f"{choice.randrange(10**6)}.{choice.randrange(1000):03d}",
        f"{choice.randrange(50)}.{choice.randrange(1000):03d}",
        on=on,
    )
    said = {
        "External id": choice.randrange(99),
        "correlation": place,
        "Sequence number": choice.randrange(99),
        "Fwd thread id": choice.randrange(3),
        "Input Dims": choice.choice([[], [[]], [[3, 4], [[5], [6]]]]),
        "Input type": choice.choice([[], ["float"], ["c10::BFloat16", "TensorList"]]),
        "grid": [choice.randrange(1, 9), 2, 1],
        "block": [128, 1, 1],
        "blocks per SM": choice.choice([0, 1.25, 31.030304]),
        "bytes": choice.randrange(10**9),
        "cuda_sync_kind": choice.choice(["Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event", "Other"]),
        "stream": on[1],
        "wait_on_stream": choice.choice([-1, 7]),
        "wait_on_cuda_event_record_corr_id": choice.choice([-1, 12]),
    }
    one["args"] = {key: value for key, value in said.items() if choice.random() < 0.7}
    if choice.random() < 0.3:
        one["args"] |= SENT | choice.choice([{}, {"Dst Rank": 3}, {"Collective name": "recv", "Src Rank": 2}])
    return one


class TestRoundTrip:
    @pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
    def test_real_traces(self, path, tmp_path):
        trace = read_trace(path)

        assert_same(trace, written(trace, tmp_path, "again.json.gz"))

    @pytest.mark.parametrize("seed", range(8))
    def test_any_trace(self, seed, tmp_path):
        choice = random.Random(seed)
        events = [drawn_event(choice, place) for place in range(150)]
        top = distributed(3, 8, groups={"7": [0, 2, 4, 6]}) | {"deviceProperties": [{"name": "H100", "numSms": 132}]}
        trace = read_trace(write_file(tmp_path / "trace.json", events, baseTimeNanoseconds=10**18, **top))

        assert len(trace.messages) > 2
        assert_same(trace, written(trace, tmp_path))

    def test_times_before_the_clock_began(self, tmp_path):
        trace = replace(read_trace(write_file(tmp_path / "trace.json", a_step())), begin=-5_500)

        assert_same(trace, written(trace, tmp_path))


class TestFile:
    def test_arrows_and_names_for_perfetto(self, tmp_path):
        trace = read_trace(write_file(tmp_path / "trace.json", a_step()))
        write_trace(trace, tmp_path / "again.json")

        events = json.loads((tmp_path / "again.json").read_text())["traceEvents"]

        arrows = [
            (one["ph"], one["id"], one["pid"], one["tid"], one["ts"]) for one in events if one.get("cat") == "ac2g"
        ]
        assert arrows == [("s", 9, 100, 100, 15.0), ("f", 9, 0, 7, 20.25)]
        names = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
        assert names == {"thread 100", "stream 7"}
        labels = {one["args"]["labels"] for one in events if one["name"] == "process_labels"}
        assert labels == {"CPU", "GPU 0"}

    def test_no_half_written_file(self, tmp_path):
        trace = read_trace(write_file(tmp_path / "trace.json", a_step()))
        (tmp_path / "folder").mkdir()

        with pytest.raises(SpecError, match="cannot be written"):
            write_trace(trace, tmp_path / "absent" / "again.json")
        with pytest.raises(SpecError, match="cannot be written"):
            write_trace(trace, tmp_path / "folder")

        assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "trace.json"]
