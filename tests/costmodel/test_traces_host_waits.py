"""Calls that wait for copies, streams and events that the profiler did not record; sums that one can do by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.measure.traces.breakdown import critical_path, path_parts
from planner.measure.traces.building import execution_graph
from planner.measure.traces.building.streams import background_edges
from planner.measure.traces.change import faster
from planner.measure.traces.events import Category, Message, Track, Wait
from planner.measure.traces.graph import Waiting
from planner.measure.traces.replay import replay, take_recorded_times
from tests.builders_operators import COMPUTE, GPU, SENDING, Recording, one_step

COPIES = Track("stream", "0", "21")
GLOO = Message("all_reduce", library="gloo")
TO_HOST = "Memcpy DtoH (Device -> Pageable)"


def a_recording(duration: int = 3000) -> Recording:
    """A step on a device with streams."""
    return one_step(duration, devices=(GPU,))


def a_copy(made: Recording, name: str, start: int, duration: int, call: tuple[int, int], number: int) -> None:
    """A copy on its stream, and the call that asked for it."""
    made.add(Category.CALL, "cudaMemcpyAsync", *call, correlation=number)
    made.add(Category.COPY, name, start, duration, on=COPIES, correlation=number)


def wait_of(made: Recording, name: str):
    """What a call waits for: its kind, and the number of the stream or the name of the task."""
    graph = execution_graph([made.trace()])
    (task,) = [task for task, one in enumerate(graph.tasks.name.tolist()) if graph.names[one] == name]
    waiting, target = Waiting(graph.tasks.waiting[task]), int(graph.tasks.waits_for[task])
    if waiting == Waiting.STREAM:
        return waiting, graph.tracks[target].number
    return waiting, graph.names[graph.tasks.name[target]] if waiting == Waiting.TASK else None


def off(made: Recording) -> float:
    """Nanoseconds by which the replay is longer than the recording."""
    graph = execution_graph([made.trace()])
    return replay(graph).iteration - take_recorded_times(graph).iteration


class TestStreams:
    """Calls on a stream that is not recorded."""

    def test_the_copy_in_front_says_which_stream_is_synchronised(self):
        """
        While the call runs, a kernel of another stream ends by chance, and that stream goes on for 1900 ns.

        To wait for that stream would take 400 + 1900 instead of 5.
        """
        made = a_recording()
        for number in range(5):
            made.kernel("gemm", 100 + 500 * number, 500 if number < 4 else 300, call=10 + number, number=1 + number)
        a_copy(made, "Memcpy DtoH (Device -> Pinned)", 580, 12, (490, 107), 8)
        made.add(Category.CALL, "cudaStreamSynchronize", 598, 5, correlation=9)

        assert wait_of(made, "cudaStreamSynchronize") == (Waiting.STREAM, "21")
        assert off(made) == 0

    def test_a_stream_with_more_to_do_is_not_synchronised(self):
        """A kernel of it ends while the call runs, but the next one was launched before the call, and ends later."""
        made = a_recording()
        made.kernel("gemm", 100, 500, call=10, number=1)
        made.kernel("gemm", 600, 500, call=12, number=2)
        made.add(Category.CALL, "cudaStreamSynchronize", 598, 5, correlation=9)

        assert wait_of(made, "cudaStreamSynchronize") == (Waiting.NOTHING, None)

    def test_a_stream_that_became_empty_is_synchronised(self):
        """Its last kernel ends while the call runs; the other stream goes on."""
        made = a_recording()
        made.kernel("gemm", 100, 500, call=10, number=1)
        made.kernel("send", 100, 800, call=12, number=2, on=SENDING)
        made.kernel("send", 900, 800, call=14, number=3, on=SENDING)
        made.add(Category.CALL, "cudaStreamSynchronize", 598, 5, correlation=9)

        assert wait_of(made, "cudaStreamSynchronize") == (Waiting.STREAM, "7")

    def test_a_copy_to_pageable_memory_returns_when_it_is_done(self):
        """
        Behind a kernel from 100 to 600 on its stream the copy takes 10: the call of 590 ns is a wait but for 5.

        Without the wait it would end 588 ns after it began, whatever the kernel takes.
        """
        made = a_recording(800)
        made.kernel("gemm", 100, 500, call=10, number=1, on=COPIES)
        a_copy(made, TO_HOST, 600, 10, (25, 590), 2)
        graph = execution_graph([made.trace()])

        half = replay(faster(graph, "gemm", 2))

        assert wait_of(made, "cudaMemcpyAsync") == (Waiting.STREAM, "21")
        assert replay(graph).iteration == 800
        assert half.iteration == 800 - 250

    def test_a_copy_to_pinned_memory_does_not(self):
        """The call may last by chance until the copy is done."""
        made = a_recording()
        made.kernel("gemm", 100, 500, call=10, number=1, on=COPIES)
        a_copy(made, "Memcpy DtoH (Device -> Pinned)", 600, 10, (25, 590), 2)

        assert wait_of(made, "cudaMemcpyAsync") == (Waiting.NOTHING, None)


class TestEvents:
    """Calls on an event that is not recorded, or recorded wrongly."""

    @pytest.mark.parametrize(("record", "awaited"), [(15, "first"), (25, "second")])
    def test_an_event_is_behind_what_was_launched_when_it_was_recorded(self, record, awaited):
        """Both kernels end during the call; the event is recorded behind one of them."""
        made = a_recording()
        made.kernel("first", 100, 100, call=10, number=1)
        made.kernel("second", 200, 100, call=20, number=2)
        made.add(Category.CALL, "cudaEventRecord", record, 1, correlation=3)
        made.add(Category.CALL, "cudaEventSynchronize", 50, 300, correlation=4)

        assert wait_of(made, "cudaEventSynchronize") == (Waiting.TASK, awaited)

    def test_nobody_waits_for_an_event_that_is_recorded_later(self):
        """The profiler names the last record of an event that is used again: behind the call, of another kernel."""
        made = a_recording()
        made.kernel("first", 100, 100, call=10, number=1)
        made.add(Category.CALL, "cudaEventRecord", 15, 1, correlation=3)
        made.add(Category.CALL, "cudaEventSynchronize", 50, 160, correlation=4)
        made.add(Category.SYNCHRONIZATION, "Event Sync", 51, 1, wait=Wait("event", "7", 6), correlation=4)
        made.kernel("second", 400, 100, call=300, number=5)
        made.add(Category.CALL, "cudaEventRecord", 310, 1, correlation=6)

        assert wait_of(made, "cudaEventSynchronize") == (Waiting.TASK, "first")

    def test_nor_does_a_stream(self):
        """A stream that is said to wait for a kernel launched behind its own would wait for ever."""
        made = a_recording()
        made.add(Category.CALL, "cudaStreamWaitEvent", 5, 1, correlation=3)
        row = {"on": SENDING, "wait": Wait("stream_event", "7", 6), "correlation": 3}
        made.add(Category.SYNCHRONIZATION, "Stream Wait Event", 6, 1, **row)
        made.kernel("send", 100, 100, call=10, number=1, on=SENDING)
        made.kernel("gemm", 400, 100, call=300, number=5)
        made.add(Category.CALL, "cudaEventRecord", 310, 1, correlation=6)

        assert off(made) == 0


class TestCudaGraphs:
    """Kernels that one call puts on a stream."""

    def test_pauses_inside_are_its_own(self):
        """
        Kernels of 100 ns at 100, 400 and 900, of one graph launched at 10: what it did between them was not recorded.

        Without these 200 and 400 ns the replay would end at 400 instead of 1000.
        """
        made = a_recording(500)
        made.add(Category.CALL, "cudaGraphLaunch", 10, 5, correlation=1)
        for start in (100, 400, 900):
            made.add(Category.KERNEL, "gemm", start, 100, on=COMPUTE, correlation=1)

        assert take_recorded_times(execution_graph([made.trace()])).iteration == 1000
        assert off(made) == 0

    def test_pauses_of_other_kernels_are_not(self):
        """Those were launched one by one: what held the last one up is not known; 500 ns remain of 1000."""
        made = a_recording(400)
        for number, start in enumerate((100, 200, 300, 900)):
            made.kernel("gemm", start, 100, call=10 + 2 * number, number=1 + number)

        assert off(made) == 500 - 1000


class TestBackground:
    """Communication that a library runs in the background of a thread."""

    def test_a_message_before_the_first_task_is_started_by_none(self):
        """It ends at 50; the only task, at 60, waits for it and did not begin it."""
        launches, waits, _ = background_edges(
            np.array([60]), np.array([60]), np.array([False]), np.array([10]), np.array([50])
        )

        assert launches == []
        assert waits == [(0, 0, 0)]

    def test_such_a_message_begins_when_it_began(self):
        """Two messages of a step without operators, as a rank of 300 recorded it: 20 to 170 and 30 to 180 of 200."""
        made = one_step(200)
        for start in (20, 30):
            made.add(Category.ANNOTATION, "gloo:all_reduce", start, 150, message=GLOO)

        assert off(made) == 0


class TestCalls:
    """Calls that copy and wait."""

    def test_the_critical_path_goes_twice_through_a_call_that_copies_and_waits(self):
        """
        It starts its copy and ends with it: 10 until the call, 20 until the copy, 30 of it, 5 until the call returns.

        Behind that the thread works for 35 more.
        """
        made = a_recording(100)
        made.add(Category.CALL, "hipMemcpyWithStream", 10, 55, correlation=1)
        made.add(Category.COPY, "Memcpy HtoD (Host -> Device)", 30, 30, on=COMPUTE, correlation=1)
        graph = execution_graph([made.trace()])
        times = replay(graph)

        path = critical_path(graph, times)

        names = [graph.names[graph.tasks.name[one.task]] for one in path]
        call, copy = "hipMemcpyWithStream", "Memcpy HtoD (Host -> Device)"
        assert names == [call, copy, call, "end of the iteration"]
        assert [(one.begin, one.end) for one in path] == [(0, 10), (10, 60), (60, 65), (65, 100)]
        assert sum(part.nanoseconds for part in path_parts(graph, times, path)) == times.iteration == 100


class TestClocks:
    """Host and device with two clocks."""

    def doubts(self, ahead: int) -> str:
        """Of a kernel of 100 us launched at 50 us, and a call that waits for it, on a device whose clock is ahead."""
        made = a_recording(400_000)
        made.kernel("gemm", 60_000 + ahead, 100_000, call=50_000, number=1)
        made.add(Category.CALL, "cudaDeviceSynchronize", 60_000, 105_000, correlation=2)
        return " ".join(execution_graph([made.trace()]).doubts)

    def test_one_clock(self):
        """Nothing is said."""
        assert self.doubts(0) == ""

    def test_a_device_that_is_behind(self):
        """The kernel begins 40 us before its launch."""
        assert "1 kernels begin before their launch, by up to 0.040 ms: host and device have two" in self.doubts(
            -50_000
        )

    def test_a_device_that_is_ahead(self):
        """The call returns 45 us before the kernel ends."""
        assert "1 calls that synchronise return before the awaited task ends" in self.doubts(50_000)
