"""Files that are broken, of another kind, or hostile: a clear message, or what is left with a sentence on the loss."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
from functools import cache

import pytest

from costmodel.errors import SpecError
from planner.measure.traces.reading import columns, document, read_trace, read_traces
from tests.builders_kineto import a_step, distributed, event, kernel, launch, operator, write_file
from tests.cases import in_one_case


@cache
def text_of(num_events):
    """A document of some operators."""
    return json.dumps({"traceEvents": [operator("aten::mm", place, 1) for place in range(num_events)]})


def read(folder, content):
    """The trace in a file of some bytes or text."""
    path = folder / "trace.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_trace(path)


class TestRefused:
    @in_one_case(
        ("content", "problem"),
        [
            (b"", "is empty"),
            (b"   \n", "ends before its first event, or is no JSON"),
            (b"hello", "is no JSON"),
            (b"\x80\x04\x95", "is a pickle, which could run code and is never loaded"),
            (b"SQLite format 3\x00" + bytes(100), "is a database, as NVIDIA Nsight Systems exports it"),
            (b"\x0a\x05hello", "is a protocol buffer, such as an XPlane"),
            (b"PK\x03\x04", "is a ZIP archive"),
            (b"<html>", "is a page"),
            (b"{}", "holds no events"),
            (b"[]", "holds no events"),
            (b'{"traceEvents": []}', "holds no events"),
            (b'{"traceEvents": {}}', "holds no events"),
            (b'{"schema": "1.0.2-chakra.0.0.4", "nodes": []}', "is an execution trace, which holds no times"),
            (b'{"traceEvents"', "ends before its first event, or is no JSON"),
            (b'{"traceEvents" 3}', "is no JSON: expected ':' before '3}'"),
            (b'[{"ph": "X", "cat": "tf_op"}]', "only of other categories: 'tf_op'"),
            (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN}]', "holds 1 events, none of which has times"),
            (b"[" * 100_000, "is nested too deeply"),
            (b'{"a":' * 100_000, "is nested too deeply"),
            (b"\x1f\x8b", "is broken before its first event: the gzip data end too early"),
            (b"\x1f\x8b" + bytes(50), "is broken before its first event: the gzip data are broken"),
            (gzip.compress(b"", mtime=0), "ends before its first event"),
        ],
    )
    def test_content(self, content, problem, tmp_path):
        with pytest.raises(SpecError, match=r"trace\.json") as refused:
            read(tmp_path, content)

        assert problem in refused.value.problem

    def test_what_is_not_there_and_a_folder(self, tmp_path):
        with pytest.raises(SpecError, match="No such file"):
            read_trace(tmp_path / "absent.json")
        with pytest.raises(SpecError, match="Is a directory"):
            read_trace(tmp_path)
        with pytest.raises(SpecError, match="cannot be read"):
            read_trace("a\0b")
        with pytest.raises(SpecError, match="standard input is not read"):
            read_trace("-")

    def test_a_database_and_a_pickle_of_real_life(self, tmp_path):
        database, pickled = tmp_path / "report.sqlite", tmp_path / "trace.pkl"
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE kernels (start INTEGER)")
        pickled.write_bytes(pickle.dumps(a_step()))

        with pytest.raises(SpecError, match="is a database"):
            read_trace(database)
        with pytest.raises(SpecError, match="is a pickle"):
            read_trace(pickled)

    @pytest.mark.parametrize(("begin", "filling"), [(b"[", b" "), (b'[{"name": "', b"a")], ids=["spaces", "in a text"])
    def test_a_bomb(self, begin, filling, tmp_path, monkeypatch):
        """A file of some kilobytes that unpacks to gigabytes without an event."""
        monkeypatch.setattr(document, "MOST_CHARACTERS", 1 << 22)

        with pytest.raises(SpecError, match="without an event"):
            read(tmp_path, gzip.compress(begin + filling * (1 << 23)))

    def test_more_events_than_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr(columns, "MOST_EVENTS", 1000)

        with pytest.raises(SpecError, match=r"holds more than 1,000 events.*Record fewer iterations"):
            read(tmp_path, text_of(5000))


class TestBroken:
    """What stands before the place where a file is broken is kept."""

    @pytest.mark.parametrize(
        ("num_events", "share"), [(10, 0.2), (10, 0.9999), (15_000, 0.2), (15_000, 0.99), (15_000, 0.9999)]
    )
    def test_text_that_ends_too_early(self, num_events, share, tmp_path):
        """The longer one is more than is read at once."""
        text = text_of(num_events)

        trace = read(tmp_path, text[: int(len(text) * share)])

        assert share * num_events - 2 <= len(trace.events) <= num_events
        assert trace.doubts[0].startswith("The file is broken")

    @pytest.mark.parametrize("share", [0.3, 0.9])
    def test_gzip_that_ends_too_early(self, share, tmp_path):
        packed = gzip.compress(text_of(5_000).encode())

        trace = read(tmp_path, packed[: int(len(packed) * share)])

        assert 0 < len(trace.events) < 5_000
        assert "the gzip data end too early" in trace.doubts[0]

    @pytest.mark.slow
    def test_gzip_that_is_broken_inside(self, tmp_path):
        packed = bytearray(gzip.compress(json.dumps(a_step() * 5_000).encode(), compresslevel=1))
        packed[len(packed) // 2] ^= 0xFF

        trace = read(tmp_path, bytes(packed))

        assert 0 < len(trace.events) <= 20_000
        assert "broken" in trace.doubts[0]

    def test_gzip_whose_check_is_wrong(self, tmp_path):
        """All of the text is there; what was broken on the way is not known."""
        packed = bytearray(gzip.compress(text_of(5000).encode()))
        packed[-6] ^= 0xFF

        trace = read(tmp_path, bytes(packed))

        assert len(trace.events) == 5000
        assert "CRC check failed" in trace.doubts[0]

    @pytest.mark.parametrize("name", [None, 5, ["mm"]])
    def test_a_name_that_is_no_text(self, name, tmp_path):
        """The event is left out, the others are read."""
        path = tmp_path / "trace.json"
        events = [operator("aten::mm", place, 1) for place in range(10)]
        path.write_text(json.dumps([*events[:4], {**events[4], "name": name}, *events[5:]]))

        trace = read_trace(path)

        assert len(trace.events) == 9
        assert "1 event was left out whose names" in trace.doubts[0]

    def test_gzip_of_several_members(self, tmp_path):
        text = text_of(10)
        path = tmp_path / "trace.json.gz"
        path.write_bytes(gzip.compress(text[:100].encode()) + gzip.compress(text[100:].encode()) + bytes(512))

        assert len(read_trace(path).events) == 10

    @pytest.mark.parametrize(("num_events", "place"), [(3, 0), (3, 1), (3, -1), (15_000, 1)])
    def test_an_event_that_is_no_json(self, num_events, place, tmp_path):
        """One event lacks a colon; the others are read."""
        texts = [json.dumps(operator("aten::mm", number, 1)) for number in range(num_events)]
        texts[place] = texts[place].replace('"ts":', '"ts"')

        trace = read(tmp_path, f"[{', '.join(texts)}]")

        assert len(trace.events) == num_events - 1

    @pytest.mark.parametrize("num_events", [1, 2_000])  # more than a batch
    def test_a_rate_without_end(self, num_events, tmp_path):
        """Kineto writes the bandwidth of a copy that took no time as inf, and a ratio without a base as nan."""
        copies = [
            event(
                "gpu_memcpy", "Memcpy DtoD", number, 0, on=(0, 7), bytes=8, memory_bandwidth=1e999, other=float("nan")
            )
            for number in range(num_events)
        ]

        trace = read(tmp_path, json.dumps({"traceEvents": copies}).replace("Infinity", "inf").replace("NaN", "-nan"))

        assert trace.events.nbytes.tolist() == [8] * num_events

    @in_one_case(
        "wrong",
        [
            None,
            3,
            "event",
            ["event"],
            {"ph": "X", "cat": "kernel"},
            operator("late", 2**63, 1),
            operator("long", 1, 2**63),
            operator("never", "soon", 1),
            operator("nan", float("nan"), 1),
            operator("nothing", None, 1),
            operator(["list"], 1, 1),
            event("kernel", "nowhere", 1, 1, on=([], {})),
            {**operator("arguments", 1, 1), "args": [1, 2]},
        ],
    )
    def test_events_of_the_wrong_kind_are_left_out(self, wrong, tmp_path):
        trace = read_trace(write_file(tmp_path / "trace.json", [*a_step(), wrong, launch(1030, 1, 10)]))

        assert len(trace.events) == 5
        assert any(doubt.startswith("1 event was left out") for doubt in trace.doubts)

    def test_a_correlation_of_64_bits_is_not_known(self, tmp_path):
        trace = read_trace(write_file(tmp_path / "trace.json", [launch(1, 1, 2**64 - 1)]))

        assert trace.events.correlation.tolist() == [-1]

    def test_bytes_that_are_no_text(self, tmp_path):

        with pytest.raises(SpecError):
            read(tmp_path, json.dumps([operator("name", 1, 1)]).encode().replace(b'name"', b'n\xff"', 2))


class TestDoubts:
    def doubts(self, tmp_path, events, **top):
        """Sentences on a trace of some events."""
        return " ".join(read_trace(write_file(tmp_path / "trace.json", events, **top)).doubts)

    def test_a_whole_trace_has_none(self, tmp_path):
        events = [*a_step(), operator("AddmmBackward0", 1050, 1, Input_Dims=[[2]], Input_type=["float"])]

        assert self.doubts(tmp_path, events, **distributed(0, 1)) == ""

    @in_one_case(
        ("events", "sentence"),
        [
            ([operator("a", 1, 1)], "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"),
            ([operator("a", 1, 1)], "schedule=torch.profiler.schedule"),
            ([operator("a", 1, 1)], "record_shapes=True"),
            ([operator("a", 1, 1)], "this is inference"),
            ([operator("a", 1, 1)], "does not record its rank"),
            ([kernel("k", 1, 1)], "The host was not recorded"),
            ([*a_step(), kernel("k", 1, 1, correlation=99)], "1 of 2 kernels and copies have no launch"),
            ([event("cuda_runtime", "cudaStreamWaitEvent", 1, 1, correlation=3)], "enable_cuda_sync_events=True"),
            ([kernel("ncclDevKernel_Generic", 1, 1)], "1 of 1 communications have no recorded size or group (nccl)"),
        ],
    )
    def test_what_is_missing_and_how_to_record_it(self, events, sentence, tmp_path):
        assert sentence in self.doubts(tmp_path, events)

    def test_ranks_without_communication(self, tmp_path):
        assert "nothing in the trace communicates" in self.doubts(tmp_path, a_step(), **distributed(0, 8))


class TestRanks:
    def files(self, tmp_path, *ranks, names=None, world_sizes=None):
        """A file of each rank."""
        names = names or [f"trace{place}.json" for place in range(len(ranks))]
        sizes = world_sizes or [4] * len(ranks)
        return [
            write_file(tmp_path / name, a_step(), **({} if rank is None else distributed(rank, size)))
            for rank, name, size in zip(ranks, names, sizes, strict=True)
        ]

    def test_in_the_order_of_the_ranks(self, tmp_path):
        traces = read_traces(self.files(tmp_path, 2, 0, 3, 1))

        assert [trace.rank for trace in traces] == [0, 1, 2, 3]

    def test_missing_ranks_are_said(self, tmp_path):
        traces = read_traces(self.files(tmp_path, 3, 0))

        assert "Traces of 2 of 4 ranks were read, not of rank 1, 2:" in traces[0].doubts[-1]

    def test_names_of_files_say_the_rank(self, tmp_path):
        names = ["rank1.json", "step_Rank-0.json"]

        assert [trace.rank for trace in read_traces(self.files(tmp_path, None, None, names=names))] == [0, 1]

    def test_one_file_needs_no_rank(self, tmp_path):
        assert read_traces(self.files(tmp_path, None))[0].rank is None

    @in_one_case(
        ("ranks", "world_sizes", "problem"),
        [
            ((1, 1), None, "is of rank 1, and so is"),
            ((0, 1), [2, 4], "different runs"),
            ((0, 9), None, "is of rank 9, but its job has 4 ranks"),
            ((None, 0), None, "does not record its rank"),
        ],
    )
    def test_files_of_different_runs(self, ranks, world_sizes, problem, tmp_path):
        with pytest.raises(SpecError, match=problem):
            read_traces(self.files(tmp_path, *ranks, world_sizes=world_sizes))

    def test_no_files(self):
        with pytest.raises(SpecError, match="there are none"):
            read_traces([])
