"""What tasks wait for, where no event says so; sums that one can do by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.errors import SpecError
from planner.measure.traces.breakdown import break_down, critical_path
from planner.measure.traces.building import execution_graph
from planner.measure.traces.building.all_ranks import rank_graph
from planner.measure.traces.building.streams import Streams, background_edges, find_polls, host_tasks, thread_edges
from planner.measure.traces.events import Blocks, Category, Device, Trace, length, union
from planner.measure.traces.graph import Dependency, Waiting
from planner.measure.traces.iterations import Iteration
from planner.measure.traces.replay import replay, take_recorded_times
from tests.builders_operators import GPU, a_message, one_step
from tests.builders_traces import COMPUTE, TRACKS, a_step, events_of

MS = 1_000_000


class TestThreads:
    """Threads that hand over."""

    def test_a_pause_that_another_thread_fills_is_a_wait(self):
        """The main thread pauses from 10 to 100, the other one works from 12 to 97: 2 later, 3 before."""
        edges, explained = thread_edges(
            np.array([0, 0, 1, 1]), np.array([0, 100, 12, 60]), np.array([10, 110, 50, 97]), main=0
        )

        assert edges == [(0, 2, 2), (3, 1, 3)]
        assert sorted(explained) == [1, 2]

    def test_a_thread_beside_another_waits_for_nobody(self):
        """It works for 20 of a pause of 90."""
        edges, _ = thread_edges(np.array([0, 0, 1]), np.array([0, 100, 40]), np.array([10, 110, 60]), main=0)

        assert edges == []


CALLS = ("cudaLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamSynchronize", "cudaGetDevice")
ROWS = (
    (990, 5, "cudaLaunchKernel"),
    (1000, 10, "cudaLaunchKernel"),
    (1100, 10, "cudaEventRecord"),
    (1200, 10, "cudaStreamWaitEvent"),
    (1300, 100, "cudaStreamSynchronize"),
    (1350, 10, "cudaLaunchKernel"),
    (1500, 10, "cudaGetDevice"),
    (1600, 50, "aten::mm"),
    (1610, 10, "aten::copy_"),
    (2000, 10, "cudaLaunchKernel"),
)


class TestHostTasks:
    """Tasks of a thread in an iteration from 1,000 to 2,000 ns."""

    @pytest.mark.parametrize(("has_device", "tasks"), [(True, [1000, 1100, 1200, 1300]), (False, [1600])])
    def test_calls_that_matter_to_streams_or_operators_without_any(self, has_device, tasks):
        """Launches, marks and waits, the first ns included and the last not, none inside another; else operators."""
        names = (*CALLS, "aten::mm", "aten::copy_", "kernel")
        rows = [
            {
                "start": start,
                "duration": duration,
                "name": names.index(name),
                "category": Category.CALL if name in CALLS else Category.OPERATOR,
                "track": 0,
            }
            for start, duration, name in ROWS
        ]
        kernel = {"start": 1020, "duration": 50, "name": 7, "category": Category.KERNEL, "track": COMPUTE}
        trace = replace(a_step(), events=events_of([*rows, *[kernel] * has_device]), names=names)
        launching = np.flatnonzero((trace.events.name == 0) & (trace.events.category == Category.CALL))
        iteration = Iteration(name="step", begin=1000, end=2000, thread=0, followed=True, found="")

        found = host_tasks(trace, iteration, launching)

        assert trace.events.start[found].tolist() == tasks


class TestBackground:
    """Communication in the background of a thread."""

    def test_a_pause_that_ends_behind_a_message_waits_for_it(self):
        """Asked for at 0, begun 1 ms later, done at 50 ms; the thread goes on at 50.02 ms, not at 5."""
        start, end = np.array([0, 2, 50]) * MS, np.array([1, 5, 60]) * MS
        start[2] += 20_000
        launches, waits, explained = background_edges(
            start, end, np.array([True, False, False]), np.array([1 * MS]), np.array([50 * MS])
        )

        assert launches == [(0, 0, 1 * MS)]
        assert waits == [(0, 2, 20_000)]
        assert explained == {2}

    def test_a_message_that_nobody_waits_for_ends_with_the_iteration(self):
        """It is done in the middle of a task."""
        start, end = np.array([0, 2, 60]) * MS, np.array([2, 60, 60]) * MS
        _, waits, explained = background_edges(
            start, end, np.array([True, False, False]), np.array([1 * MS]), np.array([50 * MS])
        )

        assert waits == [(0, 2, 0)]
        assert explained == set()


class TestPolls:
    """Threads that read memory until a kernel writes there."""

    def test_a_thread_goes_on_just_behind_the_kernel(self):
        """Launched by task 0, which ends at 10 us; the kernel ends at 900 us, task 1 begins at 917."""
        found = find_polls([(0, 5)], {0: 1}, {0: 0, 1: 917_000}, {0: 10_000, 5: 900_000})

        assert found == [(5, 1, 17_000)]

    def test_a_thread_that_goes_on_at_once_does_not_wait(self):
        """It begins its next task while the kernel runs."""
        assert find_polls([(0, 5)], {0: 1}, {0: 0, 1: 20_000}, {0: 10_000, 5: 900_000}) == []


def two_streams(*, blocks: int) -> Trace:
    """A kernel on one stream from 20 to 120 us, one of another stream, launched at 30, from 110 to 200."""
    rows = []
    for number, (launch, begin, end, track) in enumerate(((10, 20, 120, COMPUTE), (30, 110, 200, 2))):
        rows.append(
            {"start": launch * 1000, "duration": 5000, "name": 0, "category": Category.CALL, "track": 0}
            | {"correlation": number}
        )
        rows.append(
            {"start": begin * 1000, "duration": (end - begin) * 1000, "name": 1, "category": Category.KERNEL}
            | {"track": track, "correlation": number, "blocks": 0}
        )
    return Trace(
        source="two.json",
        rank=0,
        world_size=1,
        events=events_of(rows),
        names=("cudaLaunchKernel", "gemm"),
        tracks=TRACKS,
        blocks=(Blocks(blocks, 128, 1.0),),
        devices=(Device("H100", 10, 2**30),),
    )


class TestProcessors:
    """Kernels that find no free processors."""

    def test_two_kernels_that_fill_the_device_follow_each_other(self):
        """Ten blocks each on ten processors: the second one begins 10 us before the first one ends."""
        assert Streams(two_streams(blocks=10)).late_kernels == [(0, 1, -10_000)]

    def test_two_small_kernels_do_not(self):
        """Five blocks each fit beside each other: nothing is known of why the second one is late."""
        assert Streams(two_streams(blocks=5)).late_kernels == []


class TestStep:
    """A step made by hand, built and replayed."""

    def test_its_replay_is_what_was_recorded(self):
        """400 us; the call that waits for the device takes 10 us behind the last kernel's end."""
        graph = execution_graph([a_step()])
        times = replay(graph)

        assert times.iteration == take_recorded_times(graph).iteration == 400_000
        assert (graph.tasks.waiting == Waiting.DEVICE).sum() == 1

    def test_the_breakdown_is_the_iteration(self):
        """Kernels from 20 to 120 and 150 to 350, an all-reduce from 50 to 250: 170 both, 30 and 130 alone."""
        graph = execution_graph([a_step()])
        found = break_down(graph, take_recorded_times(graph))[0]

        assert found.total == 400_000
        assert (found.communication, found.overlapped, found.computation) == (30_000, 170_000, 130_000)

    def test_the_critical_path_ends_with_the_iteration(self):
        """Its last piece ends at 400 us."""
        graph = execution_graph([a_step()])

        assert critical_path(graph, replay(graph))[-1].end == 400_000

    def test_an_iteration_that_is_not_there_is_refused(self):
        """There is one."""
        with pytest.raises(SpecError, match="iteration"):
            execution_graph([a_step()], 3)

    def test_launches_are_edges(self):
        """Three kernels, three calls."""
        graph = execution_graph([a_step()])

        assert (graph.edges.dependency == Dependency.LAUNCH).sum() == 3

    def test_stretches_join(self):
        """From 0 to 3 and from 5 to 6: 4 in all."""
        found = union(np.array([0, 1, 5]), np.array([2, 3, 6]))

        assert found.tolist() == [[0, 3], [5, 6]]
        assert length(found) == 4

    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_kernels_alone_keep_their_pauses(self, number):
        """Three times twenty kernels of 10 us, each 3 us behind the one before: nobody knows why they pause."""
        graph = execution_graph([kernels_alone(num_iterations=3)], number)
        times = replay(graph)

        assert len(graph.tasks) == 20
        assert times.iteration == take_recorded_times(graph).iteration == 20 * 13_000 - 3_000
        assert critical_path(graph, times)[-1].end == times.iteration
        assert any("pauses of streams are kept" in doubt for doubt in graph.doubts)

    def test_an_iteration_in_which_nothing_ran_is_refused(self):
        """Its thread was not recorded, and its kernels neither."""
        trace = replace(kernels_alone(num_iterations=1), events=events_of([]))
        nothing = Iteration(name="step 7", begin=0, end=10, thread=-1, followed=False, found="steps")

        with pytest.raises(SpecError, match=r"step 7 of kernels.json holds nothing that ran"):
            rank_graph(trace, nothing)


def test_collectives_that_do_not_fit_are_doubted():
    """Eight of one rank are not one of the other, and no shift of a clock evens out ends that are 0 and 4 ms apart."""
    ends = [10_000_000 * number for number in range(1, 9)]
    drifted = [end + 4_000_000 * (number % 2) for number, end in enumerate(ends)]
    odd, apart, together = (
        " ".join(execution_graph([two_ranks(0, ends), two_ranks(1, others)]).doubts)
        for others in (ends[:1], drifted, ends)
    )

    assert "ranks recorded different numbers of all_reduce (1 to 8): they are not synchronised" in odd
    assert "clocks of ranks disagree" in apart
    assert "clocks" not in together


def two_ranks(rank: int, starts: list[int]) -> Trace:
    """A rank of two that sums at some moments."""
    made = one_step(100_000_000, rank=rank, devices=(GPU,))
    for number, start in enumerate(starts):
        message = a_message("all_reduce", elements=8, ranks=(0, 1))
        made.kernel("nccl", start, 10, call=start - 50, number=number + 1, message=message)
    return made.trace()


def kernels_alone(*, num_iterations: int) -> Trace:
    """Kernels of 20 names on a stream, one behind the other, without a host."""
    rows = [
        {"start": 13_000 * place, "duration": 10_000, "name": place % 20, "category": Category.KERNEL, "track": COMPUTE}
        for place in range(20 * num_iterations)
    ]
    return Trace(
        source="kernels.json",
        rank=0,
        world_size=1,
        events=events_of(rows),
        names=tuple(f"kernel {number}" for number in range(20)),
        tracks=TRACKS,
        devices=(Device("H100", 10, 2**30),),
    )
