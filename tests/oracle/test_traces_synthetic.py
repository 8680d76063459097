"""Traces that a machine of threads and streams made: written, read, built and replayed to the nanosecond."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.traces.synthetic import Lags, Made, Recipe, Work, make
from benchmarks.traces.synthetic.comparison import differences
from benchmarks.traces.synthetic.drawn import SteadyDurations, drawn_recipe, with_other_durations
from benchmarks.traces.synthetic.machine import Event, Instruction, Lane, Machine
from benchmarks.traces.synthetic.recipe import parts_of
from benchmarks.traces.synthetic.truth import Place
from costmodel.errors import SpecError
from costmodel.pipelines.simulator import simulate
from costmodel.strategy import Schedule
from planner.measure.traces.breakdown import critical_path
from planner.measure.traces.building import execution_graph
from planner.measure.traces.events import UNKNOWN, Category
from planner.measure.traces.reading import read_trace
from planner.measure.traces.replay import replay
from planner.measure.traces.writing import write_trace
from tests.oracle import in_step

JOBS, MOST_LAYERS = in_step(40), 24
"""Number of random jobs, and their size; ``python -m benchmarks.traces --only made`` makes larger ones."""

NOTHING = Lags(launch=0, gap=0, handoff=0)


def an_event(name: str, lane: Lane, duration: int, **entries: object) -> Event:
    """A call on a thread, or a kernel on a stream."""
    category = Category.CALL if lane.name == "main" else Category.KERNEL
    return Event(lane=lane, category=category, name=name, duration=duration, **entries)


def a_launch(name: str, stream: str, duration: int, *, rank: int = 0, **entries: object) -> Instruction:
    """A call of 10 ns that puts a kernel on a stream."""
    call = an_event("launch", Lane(rank, "main"), 10)
    return Machine.launch, call, an_event(name, Lane(rank, stream), duration, **entries)


def kernels_alone(work: Work) -> int:
    """Kernels of passes take a time by their name; nothing else takes any."""
    is_pass = "_" in work.name and not work.ranks and not work.name.startswith(("cuda", "multi_tensor"))
    return 1_000 + 37 * sum(work.name.encode()) if is_pass else 0


class TestMachine:
    """The rules of the machine, by sums that one can do by hand."""

    def test_kernels_follow_their_launches_and_each_other(self):
        """The first begins 5 after its launch at 0; the second 3 behind the first, the third 5 after its launch."""
        program = [a_launch("a", "7", 40), a_launch("b", "7", 10), (Machine.pause, 100), a_launch("c", "7", 10)]

        found = {
            one.name: (one.start, one.end) for one in Machine({Lane(0, "main"): program}, Lags(launch=5, gap=3)).run()
        }

        assert (found["a"], found["b"], found["c"]) == ((5, 45), (48, 58), (125, 135))

    def test_an_event_is_behind_what_its_stream_waits_for(self):
        """Stream 9 waits for an event of 8, on which nothing runs but which waits for the 100 ns on 7."""
        main = Lane(0, "main")
        calls = [an_event("call", main, 10, correlation=number) for number in range(4)]
        shown = [an_event("wait", main, 0) for _ in range(2)]
        program = [
            a_launch("long", "7", 100),
            (Machine.record, calls[0], "7"),
            (Machine.wait_for, calls[1], "8", 0, shown[0]),
            (Machine.record, calls[2], "8"),
            (Machine.wait_for, calls[3], "9", 2, shown[1]),
            a_launch("late", "9", 1),
        ]

        found = {one.name: one.start for one in Machine({main: program}, NOTHING).run()}

        assert found["late"] == 100

    def test_a_collective_ends_everywhere_after_the_last_rank_has_come(self):
        """Rank 1 comes at 500, so that both end at 530; rank 0 was there at 0."""
        together = {"collective": ("group", 0), "members": 2}
        programs = {
            Lane(0, "main"): [a_launch("reduce 0", "8", 30, **together)],
            Lane(1, "main"): [(Machine.pause, 500), a_launch("reduce 1", "8", 30, rank=1, **together)],
        }

        found = {one.name: (one.start, one.end) for one in Machine(programs, NOTHING).run()}

        assert (found["reduce 0"], found["reduce 1"]) == ((0, 530), (500, 530))

    def test_a_thread_that_synchronizes_waits_for_its_stream(self):
        """It ends 10 after the kernel's 200; the other stream's 900 do not matter."""
        call, shown = an_event("synchronize", Lane(0, "main"), 10), an_event("wait", Lane(0, "main"), 0)
        program = [a_launch("other", "9", 900), a_launch("own", "7", 190), (Machine.synchronize, call, "7", shown)]

        Machine({Lane(0, "main"): program}, NOTHING).run()

        assert (call.start, call.end) == (20, 210)

    def test_ranks_that_wait_for_ever_are_named(self):
        """A collective of two of which one never comes."""
        program = [a_launch("reduce", "8", 30, collective=("group", 0), members=2)]

        with pytest.raises(RuntimeError, match="for ever"):
            Machine({Lane(0, "main"): program}, NOTHING).run()


class TestJobs:
    """What is true of made jobs, beside what is known otherwise."""

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize(
        ("schedule", "pp", "vpp"),
        [
            (Schedule.GPIPE, 4, 1),
            (Schedule.ONE_F_ONE_B, 4, 1),
            (Schedule.ONE_F_ONE_B, 3, 2),
            (Schedule.ZB_H1, 4, 1),
            (Schedule.ZB_H2, 3, 1),
            (Schedule.ZB_V, 3, 2),
            (Schedule.V_HALF, 4, 2),
        ],
    )
    def test_a_step_is_as_long_as_the_simulated_pipeline(self, schedule, pp, vpp):
        """With hosts and networks that take no time, the passes are all that is left."""
        recipe = Recipe(
            duration=kernels_alone,
            schedule=schedule,
            pp=pp,
            vpp=vpp,
            num_microbatches=9,
            num_layers=pp * vpp + 1,
            pause=0,
            lags=NOTHING,
        )
        stages = [[part for _, part in parts_of(recipe, stage)] for stage in range(recipe.num_stages)]
        sums = {
            which: [
                sum(kernels_alone(Work(f"{one.kind}_{one.name}_{which}", 0, 0, 0)) for one in parts if kinds(one.kind))
                for parts in stages
            ]
            for which, kinds in {
                "forward": lambda kind: True,
                "dgrad": lambda kind: kind == "matmul",
                "wgrad": lambda kind: kind == "matmul",
                "backward": lambda kind: kind != "matmul",
            }.items()
        }

        made = make(recipe)
        simulated = simulate(
            schedule,
            forward=sums["forward"],
            backward=[one + other for one, other in zip(sums["dgrad"], sums["backward"], strict=True)],
            weight=sums["wgrad"],
            pp=pp,
            vpp=vpp,
            num_microbatches=9,
        )

        assert max(one.last for (_, step), one in made.truth.iterations.items() if step == 0) == simulated.seconds

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("seed", range(4))
    def test_the_critical_path_is_what_a_step_is_as_long_as(self, seed):
        """A nanosecond more in any of its kernels is at least one more in the step."""
        recipe = replace(drawn_recipe(seed, most_layers=20), num_steps=1, ending="none")
        made = make(recipe)
        end = max(trace.events.end.max() for trace in made.traces)
        categories = [trace.events.category for trace in made.traces]
        kernels = [one for one in made.truth.critical[0] if categories[one.rank][one.row] == Category.KERNEL]

        for place in kernels[:: math.ceil(len(kernels) / 8)]:
            longer = make(replace(recipe, duration=_with_one_more(recipe, made, place)))

            assert max(trace.events.end.max() for trace in longer.traces) > end

    def test_parts_of_a_step_are_the_step(self):
        """Exposed computation, exposed communication, both and neither."""
        made = make(drawn_recipe(3, most_layers=MOST_LAYERS))

        for one in made.truth.iterations.values():
            assert sum(one.shares) == one.duration

    @pytest.mark.slow
    def test_the_same_work_on_more_ranks_takes_as_long(self):
        """From dp 8, pp 4 to dp 16, pp 8: as many micro-batches and layers, and so as much time of matmuls."""
        before = Recipe(
            duration=SteadyDurations(seed=0),
            pp=4,
            dp=8,
            num_microbatches=8,
            num_layers=8,
            num_steps=1,
            annotations=True,
        )
        totals = []
        for recipe in (before, replace(before, pp=8, dp=16, num_microbatches=4)):
            made = make(recipe)
            names = [np.array([name.startswith("matmul") for name in trace.names]) for trace in made.traces]
            spent = [
                trace.events.duration[(trace.events.category == Category.KERNEL) & matmul[trace.events.name]].sum()
                for trace, matmul in zip(made.traces, names, strict=True)
            ]
            totals.append((len(made.traces), int(sum(spent))))

        assert [ranks for ranks, _ in totals] == [32, 128]
        assert totals[0][1] == totals[1][1]

    def test_what_no_schedule_orders_is_refused(self):
        """DualPipe runs on even numbers of ranks."""
        with pytest.raises(SpecError, match="no order"):
            Recipe(duration=kernels_alone, schedule=Schedule.DUALPIPE, pp=3, num_microbatches=8)
        with pytest.raises(SpecError, match="fewer than the 4 stages"):
            Recipe(duration=kernels_alone, pp=4, num_microbatches=8, num_layers=3)


def _with_one_more(recipe: Recipe, made: Made, place: Place) -> Callable[[Work], int]:
    """Durations of which one is longer; those of all communications of a rank, as they are counted by groups."""
    trace = made.traces[place.rank]
    number, communicates = int(trace.events.correlation[place.row]), trace.events.message[place.row] != UNKNOWN

    def duration(work: Work) -> int:
        is_it = place.rank in work.ranks if communicates else (work.rank, work.number) == (place.rank, number)
        return recipe.duration(work) + (is_it and work.name == trace.name_of(place.row))

    return duration


class TestFiles:
    """Traces written as the profiler writes them."""

    @pytest.mark.parametrize("seed", range(2))
    def test_what_is_read_is_what_was_written(self, seed, tmp_path):
        """Columns, tables, groups and devices."""
        for trace in make(drawn_recipe(seed, most_layers=MOST_LAYERS)).traces[:2]:
            write_trace(trace, tmp_path / "trace.json.gz")

            found = read_trace(tmp_path / "trace.json.gz")

            columns = [one.name for one in fields(trace.events)]
            assert [
                one for one in columns if not np.array_equal(getattr(found.events, one), getattr(trace.events, one))
            ] == []
            tables = [one.name for one in fields(trace) if one.name not in ("events", "source")]
            assert {one: getattr(found, one) for one in tables} == {one: getattr(trace, one) for one in tables}


class TestReplay:
    """Graphs and replays of made traces."""

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("seed", range(JOBS))
    def test_every_task_is_replayed_when_it_ran(self, seed):
        """Each step: starts and ends of tasks, iterations, breakdowns."""
        made = make(drawn_recipe(seed, most_layers=MOST_LAYERS))

        assert [one for step in range(made.recipe.num_steps) if (one := differences(made, step))] == []

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("seed", range(JOBS))
    def test_other_durations_are_replayed_as_they_would_run(self, seed):
        """The graph of one job with the durations of another: only right dependencies give its times."""
        recipe = drawn_recipe(seed, most_layers=MOST_LAYERS)

        assert not differences(make(recipe), other=make(with_other_durations(recipe)))

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("seed", range(6))
    def test_the_critical_path_is_as_long_as_the_step(self, seed):
        """From the begin to the end of what ends last on the slowest rank, without a break."""
        made = make(replace(drawn_recipe(seed, most_layers=MOST_LAYERS), ending="barrier"))
        graph = execution_graph(made.traces, 0)
        times = replay(graph)

        path = critical_path(graph, times)

        assert all(one.end == other.begin for one, other in pairwise(path))
        assert sum(one.end - one.begin for one in path) == times.iteration
