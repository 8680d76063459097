"""Graphs of made traces changed to another layout, against the traces that the machine makes of that layout."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

import pytest

from benchmarks.traces.changed import CALLS, layout_of
from benchmarks.traces.synthetic import Made, Recipe, Work, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from costmodel.errors import SpecError
from planner.measure.traces import change
from planner.measure.traces.building import execution_graph
from planner.measure.traces.events import Message
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.replay import replay, take_recorded_times
from planner.measure.traces.structure import Phase, Role, parts

DURATIONS = SteadyDurations(seed=4, calls=CALLS)


@lru_cache(maxsize=8)  # cases of one test ask for the same ones by turns
def made(**layout: object) -> Made:
    """Traces of eight layers and four micro-batches in some layout."""
    entries: dict = {"num_layers": 8, "num_microbatches": 4, "annotations": True, "operators": True, "num_steps": 1}
    return make(Recipe(**({"duration": DURATIONS} | entries | layout)))


def changed(one: Made, to: change.Layout, **messages: Message) -> ExecutionGraph:
    """The graph of traces in another layout."""
    graph = execution_graph(one.traces)
    found = [parts(trace) for trace in one.traces]
    return change.rebuild_graph(graph, found, layout_of(one), to, network=DURATIONS.nanoseconds, **messages)


class TestLayouts:
    """To the nanosecond."""

    @pytest.mark.sampled(2)
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

        assert found.iteration == take_recorded_times(execution_graph(wanted.traces)).iteration

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("after", [{"pp": 2, "overlap_p2p": False}, {"dp": 2}], ids=str)
    def test_messages_of_which_none_was_recorded(self, after):
        """One rank shows neither transfers nor reductions: they take as long as the network says, and others wait."""
        one, wanted = made(), made(**after)
        messages = {
            name: Message(operation=operation, elements_in=elements, elements_out=elements)
            for name, operation, elements in (
                ("activations", "send", 1024 * 2048),
                ("layer_gradients", "all_reduce", 12 * 1024**2),
            )
        }

        found = changed(one, layout_of(wanted), **messages)

        assert replay(found).iteration == take_recorded_times(execution_graph(wanted.traces)).iteration

    def test_twice_the_layers_take_as_much_longer_as_those_between(self):
        """Six layers between become fourteen: each task of theirs more than twice, none of the ends."""
        one = made()
        graph = execution_graph(one.traces)

        found = changed(one, change.Layout(num_layers=16, num_microbatches=4))

        names = [found.names[number] for number in found.tasks.name]
        assert names.count("matmul_qkv_forward") == 16 * 4
        assert names.count("embedding_embedding_forward") == 4
        assert len(found.tasks) > 1.8 * len(graph.tasks)


class TestTensorParallel:
    """Collectives of the ranks that layers are split over; kernels take as long on any number of them."""

    ELEMENTS = 1024 * 2048

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("layout", [{}, {"dp": 2}, {"pp": 2}], ids=str)
    @pytest.mark.parametrize("said", ["all", "ranks", "number"])
    def test_without_them_it_is_the_step_of_one_rank(self, layout, said):
        """Whatever of the group is recorded: its description, its ranks, or how many they are."""
        one = made(tp=2, **layout)
        first = [replace(trace, messages=tuple(_said(each, said) for each in trace.messages)) for trace in one.traces]
        stages = [trace for trace in first if trace.rank in range(0, 2 * layout.get("pp", 1) * layout.get("dp", 1), 2)]
        graph, found = execution_graph(stages), [parts(trace) for trace in stages]

        split = change.tensor_parallel_tasks(graph, found, tp=2, elements=self.ELEMENTS)

        wanted = take_recorded_times(execution_graph(made(**layout).traces))
        assert replay(change.remove_tasks(graph, split)).iteration == wanted.iteration

    @pytest.mark.slow
    def test_with_them_it_is_the_step_of_two(self):
        """Two sums in each layer of each pass, wherever in the layer they are."""
        one = made()
        graph, found = execution_graph(one.traces), [parts(trace) for trace in one.traces]
        message = Message(operation="all_reduce", elements_in=self.ELEMENTS, elements_out=self.ELEMENTS, num_ranks=2)
        wanted = {(phase, Role.LAYER): [message, message] for phase in (Phase.FORWARD, Phase.BACKWARD)}

        changed = change.add_tensor_parallel(graph, found, wanted, lambda each: DURATIONS.nanoseconds(each, "dp", 2))

        assert replay(changed).iteration == take_recorded_times(execution_graph(made(tp=2).traces[:1])).iteration

    def test_added_ones_are_copied_with_their_layers(self):
        """Twice the layers have twice as many."""
        one = made()
        graph, found = execution_graph(one.traces), [parts(trace) for trace in one.traces]
        message = Message(operation="all_reduce", elements_in=8, elements_out=8, num_ranks=2)
        changed = change.add_tensor_parallel(graph, found, {(Phase.FORWARD, Role.LAYER): [message]}, lambda _: 1000)

        twice = change.rebuild_graph(changed, found, layout_of(one), change.Layout(num_layers=16, num_microbatches=4))

        assert (changed.tasks.kind == Kind.COMMUNICATION).sum() == 8 * 4
        assert (twice.tasks.kind == Kind.COMMUNICATION).sum() == 16 * 4

    def test_collectives_that_do_not_say_whose_they_are(self):
        """Their names alone do not tell replicas from tensor-parallel ranks."""
        trace = made(tp=2).traces[0]
        trace = replace(trace, messages=tuple(Message(operation=each.operation) for each in trace.messages))

        with pytest.raises(SpecError, match="do not name the ranks of their group"):
            change.tensor_parallel_tasks(execution_graph([trace]), [parts(trace)], tp=2, elements=self.ELEMENTS)


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
        wrong = change.Layout(num_layers=8, num_microbatches=5)

        with pytest.raises(SpecError, match="4 forward passes"):
            change.rebuild_graph(graph, found, wrong, wrong, network=DURATIONS.nanoseconds)

    def test_a_stage_without_a_trace(self):
        """The second one of two is missing."""
        one = made(pp=2)
        graph, found = execution_graph(one.traces[:1]), [parts(one.traces[0])]

        with pytest.raises(SpecError, match="stages of a pipeline of 2"):
            change.rebuild_graph(graph, found, layout_of(one), layout_of(one), network=DURATIONS.nanoseconds)

    def test_more_stages_than_layers(self):
        """Eight layers on sixteen stages."""
        with pytest.raises(SpecError, match="fewer than"):
            change.Layout(num_layers=8, num_microbatches=16, pp=16)


class TestEdits:
    """Changes that leave the layout."""

    @pytest.mark.slow
    def test_faster_kernels(self):
        """Attention twice as fast: half of its nanoseconds, others as they were."""
        graph = execution_graph(made().traces)

        found = change.faster(graph, "attention_core", 2)

        chosen = [("attention_core" in found.names[number]) for number in found.tasks.name]
        assert all(2 * new in (old - 1, old, old + 1) for new, old in _pairs(found, graph, chosen))
        assert all(new == old for new, old in _pairs(found, graph, [not one for one in chosen]))

    def test_no_such_kernel(self):
        """Nothing is called so."""
        with pytest.raises(SpecError, match="no task has"):
            change.faster(execution_graph(made().traces), "conv", 2)

    def test_launches_taken_out(self):
        """Threads that launch for longer than kernels take: what is left is what kernels take."""
        slow = {name: 90_000 for name in CALLS}
        one = make(
            Recipe(duration=SteadyDurations(seed=4, calls=slow), num_layers=4, num_microbatches=1, annotations=True)
        )
        graph = execution_graph(one.traces)

        found = change.remove_launches(graph)

        kernels = graph.tasks.kind != Kind.HOST
        alone = int(graph.tasks.duration[kernels].sum())
        assert alone < replay(found).iteration < 1.1 * alone
        assert (found.tasks.duration[kernels] == graph.tasks.duration[kernels]).all()

    def test_no_overlap(self):
        """Gradients that ran beside the backward pass do so no more."""
        graph = execution_graph(made(dp=2).traces)

        assert replay(change.remove_overlap(graph)).iteration > replay(graph).iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """Layers that take equally long, and kernels of some name that are so many times faster."""

    name: str = " "
    factor: int = 1

    def __call__(self, work: Work) -> int:
        """Nanoseconds of a piece of work."""
        taken = DURATIONS(work._replace(layer=min(work.layer, 0)))
        return round(taken / self.factor) if self.name in work.name else taken


class TestRunsThatGoOn:
    """Stages of a pipeline begin one after the other, as they ended: neither a change nor a replay may add that up."""

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({"pp": 2}, {"pp": 2, "num_microbatches": 6}),
            ({"pp": 4}, {"pp": 2}),
            ({"pp": 2, "dp": 2}, {"pp": 4, "dp": 4}),
        ],
        ids=str,
    )
    def test_another_layout(self, before, after):
        """The third of four steps; the last stage begins it long before the first one does."""
        one, wanted = (made(**layout, num_layers=4, num_steps=4) for layout in (before, after))
        truth = take_recorded_times(execution_graph(wanted.traces)).iteration

        found = changed(one, layout_of(wanted))

        assert max(execution_graph(one.traces).begins.values()) > truth / 20
        assert replay(found).iteration == change.steady(found)[1].iteration == truth

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("ending", ["device", "none", "barrier"])
    def test_faster_kernels(self, ending):
        """The stages begin less far apart then: only the next steps show it."""
        layout = {"pp": 2, "num_layers": 4, "num_steps": 4, "ending": ending}
        one, wanted = made(**layout, duration=Alike()), made(**layout, duration=Alike(name="matmul", factor=4))

        found = change.faster(execution_graph(one.traces), "matmul", 4)

        assert change.steady(found)[1].iteration == take_recorded_times(execution_graph(wanted.traces)).iteration

    @pytest.mark.slow
    def test_a_run_without_changes_is_steady(self):
        """Its replay is that of the recorded step, with the same begins."""
        graph = execution_graph(made(pp=4, num_steps=4).traces)

        found, times = change.steady(graph)

        assert found.begins == graph.begins
        assert times.iteration == take_recorded_times(graph).iteration

    def test_events_of_which_the_last_one_counts(self):
        """An optimizer that waits for eight reductions waits for the last one: there is no lag behind the others."""
        graph = execution_graph(made(dp=2, overlap_gradients=False).traces)

        assert replay(graph).iteration == take_recorded_times(graph).iteration


BARE = {"annotations": False, "num_layers": 4, "num_steps": 3, "duration": Alike()}
"""Operators with sequence numbers, as PyTorch's profiler has them without anything done for it."""


class TestWithoutAnnotations:
    """Autograd alone says which pass is which."""

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("pp", [1, 2])
    def test_the_last_operator_of_the_last_forward_pass(self, pp):
        """It is behind it, not in front of each backward pass: as many kernels of each name as there must be."""
        wanted = made(pp=pp, num_microbatches=6, **BARE)
        graph = execution_graph(wanted.traces)

        found = changed(made(pp=pp, **BARE), layout_of(wanted))

        assert replay(found).iteration == take_recorded_times(graph).iteration
        assert _names(found) == _names(graph)

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize(
        "after", [{"dp": 2, "num_layers": 2}, {"dp": 2, "num_layers": 8}, {"dp": 8}, {"dp": 1}], ids=str
    )
    def test_gradients_that_are_reduced_behind_the_backward_pass(self, after):
        """They are no part of the optimizer, which stays."""
        wanted = made(overlap_gradients=False, **BARE | after)

        found = changed(made(dp=2, overlap_gradients=False, **BARE), layout_of(wanted))

        assert replay(found).iteration == take_recorded_times(execution_graph(wanted.traces)).iteration
        assert _names(found)["multi_tensor_apply_kernel_adam"] == wanted.recipe.num_layers


class TestReplicas:
    """What replicas send each other, gradients or not."""

    @pytest.mark.sampled(4, 5)  # a small one
    @pytest.mark.parametrize("sharded", ["optimizer", "all"])
    @pytest.mark.parametrize("described", [True, False])
    @pytest.mark.parametrize(
        "after", [{"dp": 4}, {"dp": 1}, {"dp": 2, "num_microbatches": 6}, {"dp": 2, "num_layers": 6}], ids=str
    )
    def test_weights_are_gathered_and_gradients_scattered(self, sharded, described, after):
        """Before each pass, or behind the optimizer."""
        wanted = made(sharded=sharded, **BARE | after)
        one = made(dp=2, sharded=sharded, **BARE)

        found = changed(one if described else _said_less(one, description=""), layout_of(wanted))

        assert replay(found).iteration == take_recorded_times(execution_graph(wanted.traces)).iteration

    @pytest.mark.slow
    def test_a_split_of_layers_is_none_of_replicas(self):
        """Both have two ranks here; those of tp all-reduce in forward passes."""
        wanted = made(tp=2, dp=1, **BARE)

        found = changed(_said_less(made(tp=2, dp=2, **BARE), description=""), layout_of(wanted))

        assert replay(found).iteration == take_recorded_times(execution_graph(wanted.traces)).iteration

    @pytest.mark.slow
    def test_messages_of_which_nobody_knows_the_size(self):
        """They take what they took, and that is said."""
        one = _said_less(made(dp=2, **BARE), elements_in=0, elements_out=0)
        graph = execution_graph(one.traces)

        found = changed(one, replace(layout_of(one), dp=64))

        assert replay(found).iteration == take_recorded_times(graph).iteration
        assert "Sizes of data-parallel communication were not recorded" in " ".join(found.doubts)

    @pytest.mark.slow
    def test_how_many_there_are(self):
        """Their groups say it, or the number of all ranks where nobody else communicates."""
        one = made(dp=4, **BARE)
        bare = _said_less(one, ranks=(), group="", num_ranks=0, description="")

        assert [
            change.Replicas(execution_graph(each.traces), [parts(trace) for trace in each.traces], None).size
            for each in (one, bare, made(dp=2, tp=2, **BARE))
        ] == [4, 4, 2]

    def test_an_optimizer_that_does_not_go_layer_by_layer(self):
        """One of its four kernels is missing: all take twice as long with twice the layers, and that is doubted."""
        one = made(**BARE | {"num_steps": 1})
        trace, name = one.traces[0], one.traces[0].names.index("multi_tensor_apply_kernel_adam")
        last = trace.events.correlation[trace.events.name == name].max()
        short = replace(one, traces=(replace(trace, events=trace.events[trace.events.correlation != last]),))

        found = changed(short, replace(layout_of(one), num_layers=8))

        graph = execution_graph(short.traces)
        before, after = (_nanoseconds(each, "multi_tensor") for each in (graph, found))
        assert after == 2 * before
        assert "Without a job the times of the optimizer" in " ".join(found.doubts)


def _said_less(one: Made, **entries: object) -> Made:
    """The same, whose messages say less."""
    traces = [
        replace(trace, messages=tuple(replace(message, **entries) for message in trace.messages))  # type: ignore[arg-type]
        for trace in one.traces
    ]
    return replace(one, traces=tuple(traces))


def _nanoseconds(graph: ExecutionGraph, name: str) -> int:
    chosen = [name in graph.names[number] for number in graph.tasks.name.tolist()]
    return int(graph.tasks.duration[chosen].sum())


def _names(graph: ExecutionGraph) -> Counter[str]:
    return Counter(graph.names[name] for name in graph.tasks.name.tolist())


def _pairs(found: ExecutionGraph, graph: ExecutionGraph, chosen: list[bool]) -> list[tuple[int, int]]:
    rows = [number for number, one in enumerate(chosen) if one]
    return list(zip(found.tasks.duration[rows].tolist(), graph.tasks.duration[rows].tolist(), strict=True))
