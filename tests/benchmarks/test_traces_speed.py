"""The long trace on which the speed of reading is measured."""

from __future__ import annotations

import gzip
import json

import pytest

from benchmarks.traces.__main__ import main
from benchmarks.traces.speed import read_alone, write_long_trace
from planner.measure.traces.reading import read_trace
from tests.builders_kineto import a_step, document


class TestLongTrace:
    @pytest.mark.slow
    def test_holds_the_events_again_and_again_each_time_a_second_later(self, tmp_path):
        text = json.dumps({**document(a_step()), "traceEvents": []}).replace("[]", "[\n  EVENTS\n  ]")
        events = json.dumps(a_step())[1:-1].replace('"1010.000"', "1010.000").replace('"1020.250"', "1020.250")
        source, target = tmp_path / "short.json.gz", tmp_path / "long.json.gz"
        source.write_bytes(gzip.compress(text.replace("EVENTS", events).encode()))

        json_bytes = write_long_trace(source, target, 20_000)
        trace = read_trace(target)
        num_events, _, _ = read_alone(target)

        assert len(gzip.decompress(target.read_bytes())) == json_bytes
        first = [0, 10_000, 15_000, 20_250]
        assert trace.events.start[:8].tolist() == first + [10**9 + start for start in first]
        assert num_events == len(trace.events)
        assert target.stat().st_size >= 20_000


class TestParts:
    """Parts of the benchmark that lack what they need."""

    def test_another_part_does_not_hide_what_lacks_its_traces(self, monkeypatch, capsys):
        """No made job differs where none is made, but the real traces were asked for, too."""
        command = ["benchmarks.traces", "--only", "made", "replay", "--jobs", "0"]
        monkeypatch.setattr("sys.argv", command)

        assert main() == 1
        assert "Not checked: replay." in capsys.readouterr().out
