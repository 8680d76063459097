"""Processors that kernels occupy, what simpler predictions say, and what the critical path consists of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.measure.traces.breakdown import (
    BETWEEN_CALLS,
    LAUNCH_OR_GAP,
    critical_path,
    path_parts,
    processor_shares,
    processor_use,
    replay_without_events,
    sums_of_tasks,
)
from planner.measure.traces.building import execution_graph
from planner.measure.traces.events import UNKNOWN, Blocks, Device, Track
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Tasks
from planner.measure.traces.replay import replay, take_recorded_times
from tests.builders_traces import a_step


def shares_of(trace):
    """Four parts of the measured step."""
    graph = execution_graph([trace])
    return processor_shares(graph, take_recorded_times(graph), 0, num_parts=4)


def use_of(trace):
    """Of the measured step."""
    graph = execution_graph([trace])
    return processor_use(graph, take_recorded_times(graph), 0)


class TestProcessors:
    """Shares of a step of 400 us in four parts."""

    def test_shares_add_up_over_streams(self):
        """First part: 0.5 for 80 us and 0.2 for 50 of 100 us; second: 0.5 for 20, 0.2 for all; third: 0.2 for 50."""
        assert shares_of(a_step()) == pytest.approx([0.5, 0.3, 0.1, 0])
        assert use_of(a_step()).mean_fraction == pytest.approx(0.225)

    def test_what_is_not_recorded_is_said(self):
        """The last kernel, 200 us, does not say how many blocks it has."""
        use = use_of(a_step())

        assert (use.num_kernels, use.num_kernels_left_out, use.nanoseconds_left_out) == (3, 1, 200_000)

    def test_no_more_than_all_are_occupied(self):
        """Between 50 and 100 us kernels have 80% and all of the processors: together all, for 50 of 100 us."""
        shares = shares_of(replace(a_step(), blocks=(Blocks(8, 128, 0.8), Blocks(70, 512, 7.0))))

        assert shares[0] == pytest.approx(0.8 * 0.3 + 1.0 * 0.5)

    def test_without_blocks_there_is_no_share(self):
        """Nothing is better than a curve of zeros."""
        trace = a_step()
        blocks = np.full(len(trace.events), UNKNOWN, dtype=np.int32)

        assert use_of(replace(trace, events=replace(trace.events, blocks=blocks))) is None

    @pytest.mark.parametrize("devices", [(), (Device("H100", 0, 0),)])
    def test_the_profiler_may_have_computed_the_share(self, devices):
        """Blocks for each processor, where the trace does not describe the device."""
        assert shares_of(replace(a_step(), devices=devices)) == pytest.approx([0.5, 0.3, 0.1, 0])

    def test_a_stream_has_its_own_device(self):
        """Device 1 has 20 processors, so that the same blocks are half the share."""
        trace = a_step()
        tracks = tuple(replace(one, process="1") if one.kind == "stream" else one for one in trace.tracks)
        devices = (*trace.devices, Device("H100", 20, 0))

        assert shares_of(replace(trace, tracks=tracks, devices=devices)) == pytest.approx([0.25, 0.15, 0.05, 0])


class TestComparisons:
    """What a replay is compared with."""

    def test_sum_of_tasks(self):
        """100 + 200 + 200 us on streams, although the step takes 400."""
        graph = execution_graph([a_step()])

        assert sums_of_tasks(graph, take_recorded_times(graph)) == {0: 500_000}

    def test_without_events_streams_do_not_wait(self):
        """One of 20 ns waits for another of 10, 5 later: 35 ns together, 20 if it does not wait."""
        graph = two_streams()

        assert replay(graph).iteration == 35
        assert replay_without_events(graph).iteration == 20


class TestPathParts:
    """What the critical path of a step consists of."""

    def test_parts_by_hand(self):
        """
        Launch 10, lag 10 until 20, first 100, gap 30, gemm 200, the call that waited 10, the thread 40 more.

        Of the lag of 20 us between the launch's start and its kernel, 10 are the launch's own.
        """
        graph = execution_graph([a_step()])
        times = replay(graph)
        found = path_parts(graph, times, critical_path(graph, times))

        assert {(part.name, part.kind): part.nanoseconds for part in found} == {
            ("gemm", "computation"): 200_000,
            ("first", "computation"): 100_000,
            (BETWEEN_CALLS, "host"): 40_000,
            (LAUNCH_OR_GAP, "gap"): 40_000,
            ("cudaLaunchKernel", "host"): 10_000,
            ("cudaDeviceSynchronize", "host"): 10_000,
        }
        assert sum(part.nanoseconds for part in found) == times.iteration == 400_000

    def test_what_the_host_did_ahead_does_not_count(self):
        """The device is busy until 15 ns: of a path of 35 ns the last 20 are the iteration."""
        graph = replace(two_streams(), device_free={0: 15})
        times = replay(graph)

        found = path_parts(graph, times, critical_path(graph, times))

        assert [(part.name, part.nanoseconds) for part in found] == [("after", 20)]


def two_streams():
    """A task of 10 ns on a stream, and one of 20 ns on another that waits for it."""
    numbers = {"name": [0, 1], "duration": [10, 20], "start": [0, 15], "track": [0, 1]}
    same = {"kind": Kind.COMPUTE, "gap": 0, "trace": 0, "waiting": 0}
    unknown = dict.fromkeys(("event", "waits_for", "collective", "message"), UNKNOWN)
    columns = numbers | {name: [entry] * 2 for name, entry in (same | unknown).items()}
    return ExecutionGraph(
        tasks=Tasks(**{name: np.array(column) for name, column in columns.items()}),
        edges=Edges.build_from_rows([(0, 1, 5, Dependency.EVENT)]),
        tracks=tuple(Track("stream", "0", number, rank=0) for number in "78"),
        names=("before", "after"),
        messages=(),
        begins={0: 0},
        device_free={0: 0},
        last={},
    )
