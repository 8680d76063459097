"""Tasks that wait for each other in circles: found and broken; replays that are far off, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.measure.traces.breakdown import critical_path, difference, is_usable, wrong_waits
from planner.measure.traces.building import execution_graph
from planner.measure.traces.change import remove_overlap
from planner.measure.traces.events import UNKNOWN, Category, Track
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Tasks, Waiting
from planner.measure.traces.replay import break_circles, replay, take_recorded_times
from tests.builders_operators import AUTOGRAD, COMPUTE, GPU, SENDING, a_message, one_step

THREAD, FIRST, SECOND, OTHER_THREAD = range(4)

TRACKS = (Track("thread", "1", "1"), COMPUTE, SENDING, Track("thread", "1", "2"))


def graph_of(tasks, links) -> ExecutionGraph:
    """A graph of tasks as (track, start, duration, waiting, waits_for), and links as (before, after, dependency)."""
    track, start, duration, waiting, waits_for = np.array(tasks, dtype=np.int64).T
    before, after, dependency = np.array(links, dtype=np.int64).reshape(-1, 3).T
    unknown = np.full(len(track), UNKNOWN)
    none = np.zeros(len(track), dtype=np.int64)
    return ExecutionGraph(
        tasks=Tasks(
            track=track.astype(np.int32),
            kind=np.where(np.isin(track, (THREAD, OTHER_THREAD)), Kind.HOST, Kind.COMPUTE).astype(np.int8),
            duration=duration,
            gap=none,
            start=start,
            event=unknown,
            trace=none.astype(np.int32),
            name=np.arange(len(track), dtype=np.int32),
            waiting=waiting.astype(np.int8),
            waits_for=waits_for,
            collective=unknown,
            message=unknown.astype(np.int32),
        ),
        edges=Edges(
            before=before, after=after, lag=np.zeros(len(before), dtype=np.int64), dependency=dependency.astype(np.int8)
        ),
        tracks=tuple(replace(one, rank=0) for one in TRACKS),
        names=tuple(f"task {number}" for number in range(len(track))),
        messages=(),
        begins={0: 0},
        device_free={0: 0},
        last={},
    )


def a_task(track, start, duration, waiting=Waiting.NOTHING, waits_for=UNKNOWN):
    """A row of :func:`graph_of`."""
    return (track, start, duration, waiting, waits_for)


class TestWithoutCircles:
    """The one place where circles are broken."""

    def test_a_graph_without_one_stays_as_it_is(self):
        """A stream waits for another one, and a thread for both."""
        tasks = [a_task(THREAD, 0, 10), a_task(THREAD, 10, 5, Waiting.DEVICE), a_task(1, 5, 10), a_task(2, 15, 10)]
        graph = graph_of(tasks, [(0, 2, Dependency.LAUNCH), (0, 3, Dependency.LAUNCH), (2, 3, Dependency.EVENT)])

        assert break_circles(graph) is graph

    def test_the_one_that_ran_first_does_not_wait(self):
        """Two kernels that wait for each other: 10 from 0, and 20 from 10, which alone still waits. 30 together."""
        graph = graph_of(
            [a_task(FIRST, 0, 10), a_task(SECOND, 10, 20)], [(0, 1, Dependency.EVENT), (1, 0, Dependency.EVENT)]
        )

        found = break_circles(graph)

        assert list(zip(found.edges.before, found.edges.after, strict=True)) == [(0, 1)]
        assert replay(found).iteration == 30
        (doubt,) = found.doubts
        assert "1 of a stream for an event; such as 'task 0' for 'task 1'" in doubt

    def test_what_only_follows_a_circle_keeps_its_waits(self):
        """The third kernel waits for the second one of a circle, and is recorded in front of both."""
        tasks = [a_task(FIRST, 50, 10), a_task(FIRST, 60, 20), a_task(SECOND, 90, 5)]
        links = [(0, 2, Dependency.EVENT), (2, 0, Dependency.PROCESSORS), (1, 2, Dependency.EVENT)]

        found = break_circles(graph_of(tasks, links))

        assert list(zip(found.edges.before, found.edges.after, strict=True)) == [(0, 2), (1, 2)]
        assert "1 of a kernel for free processors" in found.doubts[0]

    def test_a_task_that_waits_for_itself(self):
        """Whoever used a number twice."""
        found = break_circles(graph_of([a_task(FIRST, 0, 10)], [(0, 0, Dependency.EVENT)]))

        assert replay(found).iteration == 10

    def test_a_thread_that_waits_for_what_it_launches_later(self):
        """The first call, of 5 ns, waits for the kernel of 10 that the second one, at 5, launches: else 15."""
        tasks = [a_task(THREAD, 0, 5, Waiting.TASK, 2), a_task(THREAD, 5, 5), a_task(FIRST, 20, 10)]

        found = break_circles(graph_of(tasks, [(1, 2, Dependency.LAUNCH)]))

        assert found.tasks.waiting[0] == Waiting.NOTHING
        assert replay(found).iteration == 15
        assert "1 of a thread for a stream; such as 'task 0' for a stream" in found.doubts[0]

    def test_ranks_that_communicate_in_opposite_orders(self):
        """Rank 0 reduces and then gathers, rank 1 gathers and then reduces: as they are joined neither could begin."""
        traces = []
        for rank, operations in enumerate((("all_reduce", "all_gather"), ("all_gather", "all_reduce"))):
            made = one_step(1000, rank=rank, devices=(GPU,))
            for number, operation in enumerate(operations):
                message = a_message(operation, elements=100, ranks=(0, 1))
                made.kernel(operation, 100 + 300 * number, 200, call=10 + number, number=number, message=message)
            traces.append(made.trace())

        graph = execution_graph(traces)

        assert any("of a collective for its other ranks" in doubt for doubt in graph.doubts)
        assert replay(graph).iteration == take_recorded_times(graph).iteration == 1000

    def test_random_graphs_end(self):
        """Each of 80 graphs with waits between any tasks replays, and its critical path ends with its iteration."""
        random = np.random.default_rng(0)
        for _ in range(80):
            number = int(random.integers(2, 12))
            track = np.sort(random.integers(0, 3, number))
            waiting = np.where(track == THREAD, random.integers(0, 4, number), 0)
            target = np.where(
                waiting == Waiting.STREAM, random.integers(1, 3, number), random.integers(0, number, number)
            )
            on_stream = np.flatnonzero(track != THREAD)
            waiting[(waiting == Waiting.TASK) & ~np.isin(target, on_stream)] = Waiting.NOTHING
            start, duration = random.integers(0, 30, number), random.integers(0, 9, number)
            links = [(*random.integers(0, number, 2), random.integers(1, 5)) for _ in range(2 * number)]
            threads = np.flatnonzero(track == THREAD)
            if len(threads):
                links += [(random.choice(threads), task, Dependency.LAUNCH) for task in on_stream]
            graph = break_circles(graph_of(np.column_stack([track, start, duration, waiting, target]), links))

            times = replay(graph)

            assert critical_path(graph, times)[-1].end == (times.iteration if len(on_stream) else times.end.max())


class TestRunningAhead:
    """A replay in which a thread is ahead of where it was."""

    def test_a_call_waits_for_nothing_that_was_launched_behind_it(self):
        """
        A thread synchronises a stream at 20; at 300 another one put a kernel there that waits for the former's next.

        Nothing in the graph holds the other thread up, so that in the replay it launches at 0: if the call, now at 5,
        waited for that, nobody could go on. The call ends at 5, the kernels at 5 + 10 and + 10.
        """
        tasks = [
            a_task(THREAD, 20, 0, Waiting.STREAM, FIRST),
            a_task(THREAD, 210, 0),
            a_task(OTHER_THREAD, 300, 0),
            a_task(FIRST, 330, 10),
            a_task(SECOND, 220, 10),
        ]
        links = [(1, 4, Dependency.LAUNCH), (2, 3, Dependency.LAUNCH), (4, 3, Dependency.EVENT)]
        graph = graph_of(tasks, links)
        graph = replace(graph, tasks=replace(graph.tasks, gap=np.array([5, 0, 0, 0, 0])))

        times = replay(break_circles(graph))

        assert times.end.tolist() == [5, 5, 0, 25, 15]


class TestVerdict:
    """Replays that are not usable."""

    def late(self, pause: int) -> ExecutionGraph:
        """Kernels of 100 ns one behind the other, the last one late for no reason."""
        made = one_step(100, devices=(GPU,))
        for number in range(4):
            made.kernel(
                f"gemm {number}", 100 + 100 * number + pause * (number > 2), 100, call=10 + number, number=number
            )
        return execution_graph([made.trace()])

    @pytest.mark.parametrize(("pause", "usable"), [(0, True), (20, True), (500, False)])
    def test_five_percent(self, pause, usable):
        """500 ns are replayed: of 520 that is -3.8 %, of 1000 -50 %."""
        graph = self.late(pause)

        assert is_usable(take_recorded_times(graph), replay(graph)) == usable

    def test_what_is_too_short_lacks_a_wait(self):
        """The last kernel begins 500 ns before it was recorded, behind the third one."""
        graph = self.late(500)

        (found,) = wrong_waits(graph, take_recorded_times(graph), replay(graph))

        assert (found.name, found.awaited, found.reason, found.nanoseconds) == ("gemm 3", "gemm 2", "order", -500)
        assert found.track == "stream 7"

    def test_what_is_too_long_has_a_wrong_one(self):
        """A kernel of another stream is made to wait for one that ended 450 ns after it began."""
        made = one_step(100, devices=(GPU,))
        made.kernel("gemm", 100, 500, call=10, number=1)
        made.kernel("send", 150, 300, call=60, number=2, on=SENDING)
        graph = execution_graph([made.trace()])
        places = {graph.names[name]: task for task, name in enumerate(graph.tasks.name.tolist())}
        wrong = Edges.build_from_rows([(places["gemm"], places["send"], 0, Dependency.EVENT)])
        graph = replace(graph, edges=Edges.join([graph.edges, wrong]))

        (found,) = wrong_waits(graph, take_recorded_times(graph), replay(graph))

        assert (found.name, found.awaited, found.reason, found.nanoseconds) == ("send", "gemm", "event", 450)

    def test_a_thread_that_goes_on_beyond_its_step_is_named(self):
        """
        A launch of 9 us in a step of 100 ns: the step's end, at 100, waits for it, until 9010.

        Another thread goes on for even longer; nothing waits for it, and the path does not lead to it.
        """
        made = one_step(100, devices=(GPU,))
        made.kernel("gemm", 20, 50, call=10, number=1)
        made.add(Category.CALL, "cudaLaunchKernel", 80, 8930, correlation=2)
        made.add(Category.KERNEL, "gemm", 90, 5, on=COMPUTE, correlation=2)
        made.add(Category.CALL, "cudaEventRecord", 50, 20_000, on=AUTOGRAD)
        graph = execution_graph([made.trace()])
        times = replay(graph)

        (found,) = wrong_waits(graph, take_recorded_times(graph), times)

        assert times.iteration == 9010
        assert critical_path(graph, times)[-1].end == 9010
        assert (found.name, found.awaited) == ("end of the iteration", "cudaLaunchKernel")
        assert (found.reason, found.nanoseconds) == ("order", 8910)

    def test_noise_is_not_named(self):
        """One kernel is 500 ns late, the one before 10, which is no twentieth of 510."""
        made = one_step(100, devices=(GPU,))
        for number, start in enumerate((100, 200, 300, 400, 510, 1110)):
            made.kernel(f"gemm {number}", start, 100, call=10 + number, number=number)
        graph = execution_graph([made.trace()])

        (found,) = wrong_waits(graph, take_recorded_times(graph), replay(graph))

        assert (found.name, found.nanoseconds) == ("gemm 5", -500)

    def test_nothing_is_named_of_one_that_is_usable(self):
        """It is as long as the recording."""
        graph = self.late(0)

        assert wrong_waits(graph, take_recorded_times(graph), replay(graph)) == ()

    def test_of_nothing_everything_is_too_long(self):
        """A recording of no time."""
        assert difference(0, 5) == 1
        assert difference(0, 0) == 0


class TestChanges:
    """Graphs that are made of others."""

    def test_communication_that_must_wait_and_already_waits_the_other_way_round(self):
        """
        The kernel launched second is recorded to wait for nobody, and the first one for it.

        Without overlap the second one waits for the first: a circle, of which one wait is left.
        """
        made = one_step(1000, devices=(GPU,))
        made.kernel("gemm", 300, 100, call=10, number=1)
        message = a_message("all_reduce", elements=100, ranks=(0,))
        made.kernel("send", 100, 100, call=20, number=2, on=SENDING, message=message)
        graph = execution_graph([made.trace()])
        places = {graph.names[name]: task for task, name in enumerate(graph.tasks.name.tolist())}
        edge = Edges.build_from_rows([(places["send"], places["gemm"], 0, Dependency.EVENT)])

        found = remove_overlap(replace(graph, edges=Edges.join([graph.edges, edge])))

        assert any("wait for each other in circles" in doubt for doubt in found.doubts)
        assert replay(found).iteration == 1000
