"""Graphs of made traces changed to another layout, against the traces that the machine makes of that layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.traces.changed import CALLS, RingNetwork, layout_of
from benchmarks.traces.synthetic import Made, Recipe, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from costmodel.errors import SpecError
from costmodel.traces.building import execution_graph
from costmodel.traces.change import (
    Layout,
    faster,
    rebuilt,
    tensor_parallel_tasks,
    with_tensor_parallel,
    without_launches,
    without_overlap,
    without_tasks,
)
from costmodel.traces.events import Message
from costmodel.traces.graph import ExecutionGraph, Kind
from costmodel.traces.replay import measured, replay
from costmodel.traces.structure import Phase, Role, parts

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


class TestTensorParallel:
    """Collectives of the ranks that layers are split over; kernels take as long on any number of them."""

    ELEMENTS = 1024 * 2048

    @pytest.mark.parametrize("layout", [{}, {"dp": 2}, {"pp": 2}], ids=str)
    @pytest.mark.parametrize("said", ["all", "ranks", "number"])
    def test_without_them_it_is_the_step_of_one_rank(self, layout, said):
        """Whatever of the group is recorded: its description, its ranks, or how many they are."""
        one = made(tp=2, **layout)
        first = [replace(trace, messages=tuple(_said(each, said) for each in trace.messages)) for trace in one.traces]
        stages = [trace for trace in first if trace.rank in range(0, 2 * layout.get("pp", 1) * layout.get("dp", 1), 2)]
        graph, found = execution_graph(stages), [parts(trace) for trace in stages]

        split = tensor_parallel_tasks(graph, found, tp=2, elements=self.ELEMENTS)

        wanted = measured(execution_graph(made(**layout).traces))
        assert replay(without_tasks(graph, split)).iteration == wanted.iteration

    def test_with_them_it_is_the_step_of_two(self):
        """Two sums in each layer of each pass, wherever in the layer they are."""
        one = made()
        graph, found = execution_graph(one.traces), [parts(trace) for trace in one.traces]
        message = Message(operation="all_reduce", elements_in=self.ELEMENTS, elements_out=self.ELEMENTS, num_ranks=2)
        wanted = {(phase, Role.LAYER): [message, message] for phase in (Phase.FORWARD, Phase.BACKWARD)}

        changed = with_tensor_parallel(
            graph, found, wanted, lambda each: RingNetwork(DURATIONS).nanoseconds(each, purpose="dp", ranks=2)
        )

        assert replay(changed).iteration == measured(execution_graph(made(tp=2).traces[:1])).iteration

    def test_added_ones_are_copied_with_their_layers(self):
        """Twice the layers have twice as many."""
        one = made()
        graph, found = execution_graph(one.traces), [parts(trace) for trace in one.traces]
        message = Message(operation="all_reduce", elements_in=8, elements_out=8, num_ranks=2)
        changed = with_tensor_parallel(graph, found, {(Phase.FORWARD, Role.LAYER): [message]}, lambda _: 1000)

        twice = rebuilt(changed, found, layout_of(one), Layout(num_layers=16, num_microbatches=4), network=None)

        assert (changed.tasks.kind == Kind.COMMUNICATION).sum() == 8 * 4
        assert (twice.tasks.kind == Kind.COMMUNICATION).sum() == 16 * 4

    def test_collectives_that_do_not_say_whose_they_are(self):
        """Their names alone do not tell replicas from tensor-parallel ranks."""
        trace = made(tp=2).traces[0]
        trace = replace(trace, messages=tuple(Message(operation=each.operation) for each in trace.messages))

        with pytest.raises(SpecError, match="do not say whose ranks"):
            tensor_parallel_tasks(execution_graph([trace]), [parts(trace)], tp=2, elements=self.ELEMENTS)


def _said(message: Message, what: str) -> Message:
    """A message of which only a part was recorded."""
    if what == "all" or not message.description.startswith("TP"):
        return message
    ranks = message.ranks if what == "ranks" else ()
    return replace(message, description="", group=str(message.ranks[0]), ranks=ranks)


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
