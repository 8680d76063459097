"""A replayed iteration beside the measured one: text, JSON, Perfetto, and a page that trusts no name."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.page import BROWSERS, OPTIONS
from costmodel.errors import SpecError
from planner.cli import main
from planner.measure.traces.events import UNKNOWN, Category
from planner.measure.traces.reading import read_trace
from planner.measure.traces.report import page
from planner.measure.traces.report.page import CRITICAL, replay_page, side_by_side, timeline_of
from planner.measure.traces.report.replay import replay_json, replay_report, replay_text
from planner.measure.traces.structure import parts
from planner.measure.traces.writing import write_trace
from tests.builders_kineto import graph_steps, write_file
from tests.builders_operators import GPU, one_step
from tests.builders_traces import a_step
from tests.schemas import valid

ATTACK = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\x1b[2J"
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def report():
    """Of a step of 400 us."""
    return replay_report([a_step()])


def as_read(report):
    """JSON for programs."""
    return json.loads(replay_json(report))


def data_of(page):
    """What the page's plots show."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text)


def column(text, kind="<u4"):
    """Numbers of a packed column."""
    return np.frombuffer(base64.b64decode(text), dtype=kind).tolist()


class TestDocument:
    """The same as programs read it."""

    def test_breakdown_by_hand(self, report):
        """
        Of 400 us, 50 to 120 and 150 to 250 are both at once, 120 to 150 only communication.

        Only computation: 20 to 50 and 250 to 350. Neither: 0 to 20 and 350 to 400.
        """
        (rank,) = valid("trace-replay", as_read(report))["ranks"]

        for side in ("measured", "replayed"):
            assert rank[side]["breakdown_nanoseconds"] == {
                "computation": 130_000,
                "communication": 30_000,
                "overlapped": 170_000,
                "idle": 70_000,
            }
            assert sum(rank[side]["breakdown_nanoseconds"].values()) == rank[side]["nanoseconds"] == 400_000

    def test_simpler_predictions(self, report):
        """The tasks on streams take 500 us together; there are no events."""
        (rank,) = valid("trace-replay", as_read(report))["ranks"]

        assert rank["sum_of_tasks_nanoseconds"] == 500_000
        assert rank["without_events_nanoseconds"] == 400_000

    def test_the_critical_path_is_the_iteration(self, report):
        """Its parts add up to it, the longest first."""
        path = as_read(report)["critical_path"]

        assert path["parts"][0] == {
            "name": "gemm",
            "kind": "computation",
            "num_tasks": 1,
            "nanoseconds": 200_000,
            "fraction": 0.5,
        }
        assert sum(part["nanoseconds"] for part in path["parts"]) == path["nanoseconds"] == 400_000

    def test_processors(self, report):
        """A hundred shares, of 4 us each: nothing at first, then half, then half and a fifth."""
        processors = as_read(report)["ranks"][0]["measured"]["processors"]

        assert processors["num_kernels_left_out"] == 1
        assert [processors["fractions"][place] for place in (0, 6, 20, 40, 80)] == [0, 0.5, 0.7, 0.2, 0]

    def test_each_rank_has_its_own(self):
        """Two ranks with the same step."""
        document = valid("trace-replay", as_read(replay_report([a_step(rank=0), a_step(rank=1)])))

        assert [one["rank"] for one in document["ranks"]] == [0, 1]
        assert [one["measured"]["nanoseconds"] for one in document["ranks"]] == [400_000, 400_000]


class TestText:
    """What people read."""

    def test_the_answer_stands_first(self, report):
        """Both times and the difference."""
        text = replay_text(report)

        assert "0.400 ms replayed, 0.400 ms measured: +0.00%." in text
        assert "stream 20" in text
        assert "1 of 3 kernels, 0.200 ms, have no recorded blocks" in text

    def test_waits_of_an_unusable_replay_are_named(self):
        """A kernel that begins 500 ns late for no reason is replayed early; nothing says how many blocks it has."""
        recorded = one_step(1300, devices=(GPU,))
        for number in range(4):
            recorded.kernel("gemm", 100 + 100 * number + 500 * (number > 2), 100, call=10 + number, number=1 + number)
        recorded.add(Category.CALL, "cudaDeviceSynchronize", 20, 1200, correlation=9)
        report = replay_report([replace(recorded.trace(), doubts=("The file is broken.",))])

        text = replay_text(report)

        assert "Not usable: more than 5% off." in text
        assert re.search(r"Waits that make the replay too short\n(.*\n)*.*gemm.* -0\.001", text)
        assert "no kernel's blocks were recorded" in text
        assert re.search(r"Missing or inferred\n.*\n.*The file is broken\.", text)

    def test_other_iterations_are_listed(self):
        """By default the last one that another follows is replayed."""
        text = replay_text(replay_report([a_step(num_steps=3)]))
        rows = [line.split() for line in text.splitlines() if re.match(r" *\d +ProfilerStep#", line)]

        assert rows == [
            ["0", "ProfilerStep#0", "0.400"],
            ["1", "ProfilerStep#1", "0.400", "replayed"],
            ["2", "ProfilerStep#2", "0.400"],
        ]

    def test_a_terminal_obeys_no_name(self):
        """Escape sequences of a name are not printed."""
        assert "\x1b" not in replay_text(replay_report([a_step(kernel=ATTACK)]))


class TestSideBySide:
    """Both sides as a trace for Perfetto."""

    def test_both_sides_and_the_path(self, report, tmp_path):
        """Three kernels and four calls twice, the end of the step twice, and six pieces of the path."""
        write_trace(side_by_side(report), tmp_path / "both.json.gz")
        trace = read_trace(tmp_path / "both.json.gz")
        processes = [trace.tracks[track].process for track in trace.events.track.tolist()]

        assert processes.count("measured rank 0 device 0") == processes.count("replayed rank 0 device 0") == 3
        assert trace.tracks[trace.events.track[trace.find_rows(Category.ANNOTATION)[0]]].number == "critical path"
        assert int(trace.events.duration[trace.find_rows(Category.ANNOTATION)].sum()) == 400_000

    def test_launches_keep_their_kernels(self, report):
        """Each side has correlations of its own."""
        trace = side_by_side(report)
        calls, kernels = trace.find_rows(Category.CALL), trace.find_rows(Category.KERNEL)
        of_kernels = trace.events.correlation[kernels].tolist()

        assert len(set(of_kernels)) == 6
        assert set(of_kernels) <= set(trace.events.correlation[calls].tolist())

    @pytest.mark.parametrize("number", [2**31 - 2, 2**32 - 2, 2**62])
    def test_correlations_may_be_large(self, number):
        """CUPTI counts to 2^32: launches keep their kernels on either side, whatever their numbers."""
        trace = a_step()
        correlation = trace.events.correlation
        moved = np.where(correlation == UNKNOWN, UNKNOWN, correlation + number - correlation.max())
        both = side_by_side(replay_report([replace(trace, events=replace(trace.events, correlation=moved))]))
        calls, kernels = both.find_rows(Category.CALL), both.find_rows(Category.KERNEL)

        assert len(set(both.events.correlation[kernels].tolist())) == 6
        assert set(both.events.correlation[kernels].tolist()) <= set(both.events.correlation[calls].tolist())


class TestUnmarkedSteps:
    """Steps that nothing marks, of CUDA graphs: they begin where a thread launches them, not inside of its waits."""

    @pytest.mark.parametrize("number", [0, 1, 2])
    @pytest.mark.parametrize("last", ["gemm", "multi_tensor_apply_kernel_adam"])
    def test_steps_begin_with_their_launch(self, last, number, tmp_path):
        """By repetition, or by updates: 882 us from launch to launch; the last one ends with its kernels, at 879 us."""
        trace = read_trace(write_file(tmp_path / "trace.json", graph_steps(last=last)))
        found = replay_report([trace], number)

        assert found.measured.iteration == (882_000 if number < 2 else 879_000)
        assert abs(found.difference_fraction) < 0.01
        assert not any("CUDA graphs pause" in doubt for doubt in found.doubts)

    @pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch", "cudaGraphLaunch_ptsz"])
    def test_graphs_of_every_library_are_doubted(self, call, tmp_path):
        """CUDA's driver launches graphs as its runtime does: their kernels belong to one place."""
        steps = [one | {"name": call} if one["name"] == "cudaGraphLaunch" else one for one in graph_steps()]
        trace = read_trace(write_file(tmp_path / "trace.json", steps))

        doubt = "Kernels that were launched as a graph all belong to where it was launched."
        assert doubt in parts(trace).doubts

    def test_launches_far_ahead(self, tmp_path):
        """The host launches all three graphs at once: the second one takes the device 882 us all the same."""
        trace = read_trace(write_file(tmp_path / "trace.json", graph_steps(ahead=True)))
        found = replay_report([trace], 1)

        assert found.measured.iteration == 882_000
        assert found.usable


class TestTimeline:
    """The tasks, packed."""

    def test_columns(self, report):
        """Streams first, the busier before the other; the thread's calls and the end of its step."""
        found = timeline_of(report, report.ranks[0])
        names = [found["names"][place] for place in column(found["name"], "<u2")]

        assert found["rows"] == [["stream 7", 2], ["stream 20", 1], ["thread 1", 5]]
        assert column(found["measured"]["start"])[:3] == [20_000, 150_000, 50_000]
        assert column(found["measured"]["length"])[:3] == [100_000, 200_000, 200_000]
        assert names[:3] == ["first", "gemm", "all-reduce"]
        assert found["end"] == pytest.approx(400e-6)

    def test_the_critical_path_is_marked(self, report):
        """All but the all-reduce and its launch, and the launch of the second kernel, which waits for the first."""
        found = timeline_of(report, report.ranks[0])
        critical = [bool(code & CRITICAL) for code in column(found["code"], "<u1")]

        assert critical == [True, True, False, True, False, False, True, True]

    def test_long_iterations_fit(self):
        """Starts beyond 2^32 ns are in longer ticks."""
        trace = a_step()
        for name in ("start", "duration"):
            getattr(trace.events, name)[:] *= 100_000
        report = replay_report([trace])
        found = timeline_of(report, report.ranks[0])

        assert found["tick"] == pytest.approx(10e-9)
        assert column(found["measured"]["start"])[1] * found["tick"] == pytest.approx(15.0)

    def test_only_the_longest_are_drawn(self, report, monkeypatch):
        """Of eight tasks three, and it says how many and how much the others are."""
        monkeypatch.setattr(page, "MOST_DRAWN", 3)
        found = timeline_of(report, report.ranks[0])

        assert found["left_out"] == [5, pytest.approx((100 + 30) * 1e-6)]
        assert len(column(found["code"], "<u1")) == 3


class TestPage:
    """One file for a browser."""

    def test_names_stay_text(self):
        """Whatever a kernel is called, the page has its own two scripts and no image."""
        page = replay_page(replay_report([a_step(kernel=ATTACK)]))

        assert page.count("<script") == page.count("</script>") == 2
        assert "<img" not in page
        assert "&lt;img src=x" in page

    def test_the_policy_allows_the_own_script_and_style(self, report):
        """By the hashes that a browser computes of what stands between the tags; nothing else is loaded."""
        page = replay_page(report)

        assert "default-src 'none'" in page
        for tag, name in (("style", "style-src"), ("script", "script-src")):
            (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{name} 'sha256-{digest}'" in page

    def test_bars_are_the_breakdowns(self, report):
        """Measured and replayed, in milliseconds."""
        rows = data_of(replay_page(report))["charts"]["breakdown"]["rows"]

        assert [row["label"] for row in rows] == ["Rank 0, measured", "Rank 0, replayed"]
        for row in rows:
            assert {part["name"]: part["value"] for part in row["parts"]} == {
                "computation": 0.13,
                "overlapped": 0.17,
                "communication": 0.03,
                "idle": 0.07,
            }

    def test_ranks_are_chosen(self):
        """A time line for each of two ranks, and a control."""
        page = replay_page(replay_report([a_step(rank=0), a_step(rank=5)]))

        assert set(data_of(page)["timelines"]) == {"1", "2"}
        assert "<option value=2>5</option>" in page

    @pytest.mark.skipif(CHROMIUM is None, reason="no browser")
    @pytest.mark.slow
    def test_a_browser_draws_it(self, report, tmp_path):
        """The time line has its canvas, so that no script stopped before the end."""
        (tmp_path / "page.html").write_text(replay_page(report), encoding="utf-8")
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
        done = subprocess.run(
            [*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120, check=True
        )

        assert "data-drawn-milliseconds" in done.stdout
        assert '<canvas tabindex="0" role="img"' in done.stdout


class TestCommand:
    """``planner trace replay``."""

    @pytest.fixture
    def file(self, tmp_path):
        """The step as the profiler would write it."""
        write_trace(a_step(), tmp_path / "step.json.gz")
        return str(tmp_path / "step.json.gz")

    def test_text(self, file, capsys):
        """To stdout."""
        assert main(["trace", "replay", file]) == 0
        assert "0.400 ms replayed" in capsys.readouterr().out

    def test_page_and_perfetto(self, file, tmp_path):
        """A format each; a trace is a file."""
        page, both = tmp_path / "page.html", tmp_path / "both.json.gz"

        assert main(["trace", "replay", file, "--format", "html", "-o", str(page)]) == 0
        assert main(["trace", "replay", file, "--format", "perfetto", "-o", str(both)]) == 0
        assert main(["trace", "replay", file, "--format", "perfetto"]) == 2
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
        assert len(read_trace(both).events) > 16

    @pytest.mark.parametrize("number", ["-1", "x", "1e3", ""])
    def test_numbers_are_whole(self, file, number, capsys):
        """And not negative."""
        assert main(["trace", "replay", file, f"--iteration={number}"]) == 2
        assert "--iteration: expected a whole number" in capsys.readouterr().err

    def test_there_is_no_such_iteration(self):
        """The message says which there are."""
        with pytest.raises(SpecError, match=r"is 7, but step.json has 1: 0 to 0"):
            replay_report([a_step()], 7)

    def test_a_trace_is_not_overwritten(self, file, capsys):
        """Neither by the page nor by the trace for Perfetto."""
        assert main(["trace", "replay", file, "--format", "perfetto", "-o", file]) == 2
        assert "is what this command reads" in capsys.readouterr().err
