"""Graphs of made traces changed to another layout, against the traces that the machine makes of that layout."""

from __future__ import annotations

import pytest

from benchmarks.traces.changed import CALLS, RingNetwork, layout_of
from benchmarks.traces.synthetic import Made, Recipe, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from costmodel.errors import SpecError
from costmodel.traces.building import execution_graph
from costmodel.traces.change import Layout, faster, rebuilt, without_launches, without_overlap
from costmodel.traces.graph import ExecutionGraph, Kind
from costmodel.traces.replay import measured, replay
from costmodel.traces.structure import parts

DURATIONS = SteadyDurations(seed=4, calls=CALLS)


def made(**layout: object) -> Made:
    """Traces of eight layers and four micro-batches in some layout."""
    entries: dict = {"num_layers": 8, "num_microbatches": 4, "annotations": True, "operators": True, "num_steps": 1}
    return make(Recipe(duration=DURATIONS, **(entries | layout)))


def changed(one: Made, to: Layout) -> ExecutionGraph:
    """The graph of traces in another layout."""
    graph = execution_graph(one.traces)
    found = [parts(trace) for trace in one.traces]
    return rebuilt(graph, found, layout_of(one), to, network=RingNetwork(DURATIONS))


class TestLayouts:
    """To the nanosecond."""

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({}, {"num_microbatches": 8}),
            ({"dp": 2}, {"dp": 4}),
            ({"pp": 2}, {"pp": 2, "num_microbatches": 7}),
            ({"pp": 2, "dp": 2}, {"pp": 4, "dp": 4}),
            ({"pp": 4, "dp": 4}, {"pp": 2, "dp": 2}),
            ({"pp": 8}, {"pp": 4}),
            ({"pp": 4}, {"pp": 2, "vpp": 2}),
            ({"pp": 2, "overlap_p2p": False}, {"pp": 4, "overlap_p2p": False}),
            ({"pp": 2, "dp": 2, "overlap_gradients": False}, {"pp": 4, "dp": 2, "overlap_gradients": False}),
        ],
        ids=str,
    )
    def test_a_changed_graph_is_the_one_of_the_wanted_layout(self, before, after):
        """The machine makes both; the change sees the first one alone."""
        wanted = made(**after)

        found = replay(changed(made(**before), layout_of(wanted)))

        assert found.iteration == measured(execution_graph(wanted.traces)).iteration

    def test_twice_the_layers_take_as_much_longer_as_those_between(self):
        """Six layers between become fourteen: each task of theirs more than twice, none of the ends."""
        one = made()
        graph = execution_graph(one.traces)

        found = changed(one, Layout(num_layers=16, num_microbatches=4))

        names = [found.names[number] for number in found.tasks.name]
        assert names.count("matmul_qkv_forward") == 16 * 4
        assert names.count("embedding_embedding_forward") == 4
        assert len(found.tasks) > 1.8 * len(graph.tasks)


class TestRefusals:
    """What traces do not show is said."""

    def test_a_layout_that_the_traces_do_not_have(self):
        """Four micro-batches were recorded, not five."""
        one = made()
        graph, found = execution_graph(one.traces), [parts(trace) for trace in one.traces]
        wrong = Layout(num_layers=8, num_microbatches=5)

        with pytest.raises(SpecError, match="4 forward passes"):
            rebuilt(graph, found, wrong, wrong, network=RingNetwork(DURATIONS))

    def test_a_stage_without_a_trace(self):
        """The second one of two is missing."""
        one = made(pp=2)
        graph, found = execution_graph(one.traces[:1]), [parts(one.traces[0])]

        with pytest.raises(SpecError, match="stages of a pipeline of 2"):
            rebuilt(graph, found, layout_of(one), layout_of(one), network=RingNetwork(DURATIONS))

    def test_more_stages_than_layers(self):
        """Eight layers on sixteen stages."""
        with pytest.raises(SpecError, match="fewer than"):
            Layout(num_layers=8, num_microbatches=16, pp=16)


class TestEdits:
    """Changes that leave the layout."""

    def test_faster_kernels(self):
        """Attention twice as fast: half of its nanoseconds, others as they were."""
        graph = execution_graph(made().traces)

        found = faster(graph, "attention_core", 2)

        chosen = [("attention_core" in found.names[number]) for number in found.tasks.name]
        assert all(2 * new in (old - 1, old, old + 1) for new, old in _pairs(found, graph, chosen))
        assert all(new == old for new, old in _pairs(found, graph, [not one for one in chosen]))

    def test_no_such_kernel(self):
        """Nothing is called so."""
        with pytest.raises(SpecError, match="no task has"):
            faster(execution_graph(made().traces), "conv", 2)

    def test_launches_taken_out(self):
        """Threads that launch for longer than kernels take: what is left is what kernels take."""
        slow = {name: 90_000 for name in CALLS}
        one = make(
            Recipe(duration=SteadyDurations(seed=4, calls=slow), num_layers=4, num_microbatches=1, annotations=True)
        )
        graph = execution_graph(one.traces)

        found = without_launches(graph)

        kernels = graph.tasks.kind != Kind.HOST
        alone = int(graph.tasks.duration[kernels].sum())
        assert alone < replay(found).iteration < 1.1 * alone
        assert (found.tasks.duration[kernels] == graph.tasks.duration[kernels]).all()

    def test_no_overlap(self):
        """Gradients that ran beside the backward pass do so no more."""
        graph = execution_graph(made(dp=2).traces)

        assert replay(without_overlap(graph)).iteration > replay(graph).iteration


def _pairs(found: ExecutionGraph, graph: ExecutionGraph, chosen: list[bool]) -> list[tuple[int, int]]:
    rows = [number for number, one in enumerate(chosen) if one]
    return list(zip(found.tasks.duration[rows].tolist(), graph.tasks.duration[rows].tolist(), strict=True))
