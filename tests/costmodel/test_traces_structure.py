"""What each event of a trace is part of: iterations, phases, micro-batches, layers of small traces made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.measure.traces.events import UNKNOWN, Category, Trace, Track
from planner.measure.traces.iterations import iterations
from planner.measure.traces.structure import Parts, Phase, Role, parts
from planner.measure.traces.structure.finding import number_by_order
from planner.measure.traces.structure.layers import kinds, repetitions
from planner.measure.traces.structure.records import MICROBATCH, PHASES, SEVERAL_PHASES, number_in
from tests.builders_operators import Recording
from tests.cases import in_one_case

TRACKS = (Track("thread", "1", "1"), Track("thread", "1", "2"), Track("stream", "0", "7"))
MAIN, WORKER, STREAM = range(3)
NODE = "autograd::engine::evaluate_function: "
LAYER = ("aten::layer_norm", "aten::linear", "aten::scaled_dot_product_attention", "aten::add")


class Recorder:
    """Writes events down: each lasts 10 ns and begins 10 ns after the one before, unless it says when it begins."""

    def __init__(self) -> None:
        """Begin at 0 with sequence number 0."""
        self.now = 0
        self.sequence = 0
        self.rows: list[dict[str, int | str]] = []

    def add(self, name: str, category: Category = Category.OPERATOR, **columns: int) -> int:
        """Write an event down, and say when it began."""
        row = {"name": name, "category": int(category), "track": MAIN, "start": self.now, "duration": 10, **columns}
        self.rows.append(row)
        self.now = max(self.now, int(row["start"]) + 10)
        return int(row["start"])

    def begin(self) -> int:
        """When something begins that will lie around what comes."""
        self.now += 1
        return self.now - 1

    def around(self, name: str, begin: int, category: Category = Category.ANNOTATION, **columns: int) -> None:
        """Write down something that began before and ends now."""
        spanned = {"start": begin, "duration": self.now - begin, "track": MAIN}
        self.rows.append({"name": name, "category": int(category), **spanned, **columns})

    def forward(self, *names: str) -> list[int]:
        """Operators that make nodes, and the numbers of these."""
        made = []
        for name in names:
            self.add(name, sequence=self.sequence, forward_thread=0)
            made.append(self.sequence)
            self.sequence += 1
        return made

    def backward(self, made: list[int], track: int = MAIN) -> None:
        """Nodes that undo operators, the last one first."""
        for number in reversed(made):
            self.add(f"{NODE}Backward0", sequence=number, forward_thread=1, track=track)

    def trace(self) -> Trace:
        """What was written down."""
        made = Recording()
        for row in self.rows:
            event = dict(row)
            track = TRACKS[event.pop("track")]
            made.add(
                event.pop("category"), event.pop("name"), event.pop("start"), event.pop("duration"), on=track, **event
            )
        return made.trace(source="by hand", world_size=1)

    def parts(self) -> tuple[Trace, Parts]:
        """The trace with its parts."""
        trace = self.trace()
        return trace, parts(trace)


def model(num_layers: int) -> tuple[str, ...]:
    """Operators of a transformer's forward pass."""
    return ("aten::embedding", *LAYER * num_layers, "aten::layer_norm", "aten::matmul", "aten::cross_entropy_loss")


def column(trace: Trace, values: np.ndarray, *names: str) -> list[int]:
    """Values of the events with some names, in the order in which these began."""
    return [int(values[row]) for row in range(len(trace.events)) if trace.name_of(row) in names]


def recorded(num_layers: int = 3, num_microbatches: int = 2, num_steps: int = 2) -> Trace:
    """Steps without any annotation, but for the optimizer's operator."""
    recorder = Recorder()
    for _ in range(num_steps):
        for _ in range(num_microbatches):
            recorder.backward(recorder.forward(*model(num_layers)))
        recorder.add("aten::_foreach_norm")
        recorder.add("aten::_fused_adam_")
    return recorder.trace()


class TestIterations:
    """Where the iterations of a trace begin and end."""

    def test_steps_of_the_profiler_reach_from_one_to_the_next(self):
        """The last one ends where its mark does, and nothing follows it."""
        recorder = Recorder()
        recorder.add("ProfilerStep#3", Category.ANNOTATION, start=0, duration=90)
        recorder.add("ProfilerStep#4", Category.ANNOTATION, start=100, duration=70)

        found = iterations(recorder.trace())

        assert [(one.name, one.begin, one.end, one.followed) for one in found] == [
            ("ProfilerStep#3", 0, 100, True),
            ("ProfilerStep#4", 100, 170, False),
        ]
        assert {one.thread for one in found} == {MAIN}

    def test_an_update_ends_an_iteration(self):
        """16 operators and their nodes in each step, a norm and an update: 34 events of 10 ns."""
        found = iterations(recorded(num_layers=3, num_microbatches=1))

        assert [(one.begin, one.end, one.found) for one in found] == [(0, 340, "optimizer"), (340, 680, "optimizer")]

    def test_an_optimizer_of_two_parts_ends_one_iteration(self):
        """No backward pass lies between them."""
        recorder = Recorder()
        for _ in range(2):
            recorder.backward(recorder.forward(*model(2)))
            recorder.add("Optimizer.step#Muon.step", Category.ANNOTATION)
            recorder.add("Optimizer.step#AdamW.step", Category.ANNOTATION)

        assert len(iterations(recorder.trace())) == 2

    def test_what_repeats_itself_without_a_backward_pass_are_iterations(self):
        """Three passes of an inference."""
        recorder = Recorder()
        for _ in range(3):
            recorder.forward(*model(4))

        found = iterations(recorder.trace())

        assert [(one.duration, one.found) for one in found] == [(200, "repetition")] * 3

    def test_else_the_whole_trace_is_one(self):
        """And ``parts`` says so."""
        recorder = Recorder()
        recorder.backward(recorder.forward(*model(2)))
        trace = recorder.trace()

        assert [(one.begin, one.end, one.found) for one in iterations(trace)] == [(0, 240, "whole")]
        assert "Nothing marks iterations: the whole trace is taken as one." in parts(trace).doubts

    def test_a_trace_without_events_has_none(self):
        """Nor parts."""
        trace = Recorder().trace()

        assert iterations(trace) == ()
        assert parts(trace).num_layers == 0


class TestAutograd:
    """A trace of operators alone: sequence numbers join the passes, layers repeat themselves."""

    @pytest.fixture
    def trace(self) -> Trace:
        """Two steps of two micro-batches through three layers."""
        return recorded()

    @pytest.fixture
    def found(self, trace: Trace) -> Parts:
        """Its parts."""
        return parts(trace)

    def test_it_counts(self, found: Parts):
        """Layers, kinds of layers, micro-batches, iterations."""
        summary = found

        assert (summary.num_layers, summary.layer_kinds, summary.num_microbatches) == (3, (0, 0, 0), 2)
        assert (summary.layers_from, summary.microbatches_from) == ("repetition", "autograd")
        assert summary.doubts == ()

    def test_phases(self, trace: Trace, found: Parts):
        """The norm of the gradients is part of the update."""
        assert column(trace, found.phase, "aten::_foreach_norm", "aten::_fused_adam_") == [Phase.OPTIMIZER] * 4
        assert set(column(trace, found.phase, f"{NODE}Backward0")) == {Phase.BACKWARD}
        assert set(column(trace, found.phase, *model(3))) == {Phase.FORWARD}

    def test_microbatches(self, trace: Trace, found: Parts):
        """Numbered from 0 in each iteration; the update belongs to none."""
        assert column(trace, found.microbatch, "aten::embedding") == [0, 1, 0, 1]
        assert column(trace, found.microbatch, f"{NODE}Backward0") == ([0] * 16 + [1] * 16) * 2
        assert column(trace, found.microbatch, "aten::_fused_adam_") == [UNKNOWN] * 2

    def test_layers(self, trace: Trace, found: Parts):
        """The forward pass meets them in order, the backward pass the other way round."""
        assert column(trace, found.layer, "aten::linear") == [0, 1, 2] * 4
        backward = column(trace, found.layer, f"{NODE}Backward0")[:16]
        assert backward == [UNKNOWN] * 3 + [2] * 4 + [1] * 4 + [0] * 4 + [UNKNOWN]

    def test_roles(self, trace: Trace, found: Parts):
        """Embedding and head are no layers; the final norm is of the head."""
        assert set(column(trace, found.role, "aten::embedding")) == {Role.EMBEDDING}
        assert column(trace, found.role, "aten::layer_norm")[:4] == [Role.LAYER] * 3 + [Role.HEAD]
        assert column(trace, found.role, f"{NODE}Backward0")[:4] == [Role.HEAD] * 3 + [Role.LAYER]
        assert column(trace, found.role, f"{NODE}Backward0")[15] == Role.EMBEDDING


class TestOrders:
    """Micro-batches whose passes alternate, or whose backward passes have a thread of their own."""

    def test_one_forward_one_backward(self):
        """Two forward passes go ahead: F0 F1 B0 F2 B1 B2."""
        recorder = Recorder()
        first, second = recorder.forward(*model(2)), recorder.forward(*model(2))
        recorder.backward(first, track=WORKER)
        third = recorder.forward(*model(2))
        recorder.backward(second, track=WORKER)
        recorder.backward(third, track=WORKER)

        trace, found = recorder.parts()

        assert column(trace, found.microbatch, "aten::embedding") == [0, 1, 2]
        assert column(trace, found.microbatch, f"{NODE}Backward0") == [0] * 12 + [1] * 12 + [2] * 12
        assert found.num_layers == 2

    def test_a_forward_and_a_backward_pass_of_different_microbatches(self):
        """A trace of one slot: what the backward pass undoes ran before, its number is the lower one."""
        recorder = Recorder()
        recorder.sequence = 100
        recorder.forward(*model(2))
        recorder.backward(list(range(50, 62)))

        trace, found = recorder.parts()

        assert set(column(trace, found.microbatch, f"{NODE}Backward0")) == {0}
        assert set(column(trace, found.microbatch, *model(2))) == {1}

    def test_recomputation(self):
        """Operators within autograd's nodes that make nodes run again, in the layer of their node."""
        recorder = Recorder()
        made = recorder.forward(*model(2))
        recorder.backward(made[-3:])
        begin = recorder.begin()
        again = recorder.forward("aten::linear")
        recorder.around(f"{NODE}Backward0", begin, Category.OPERATOR, sequence=made[-4], forward_thread=1)
        recorder.backward(made[:-4])

        trace, found = recorder.parts()

        assert again == [12]
        assert column(trace, found.phase, "aten::linear") == [Phase.FORWARD] * 2 + [Phase.RECOMPUTE]
        assert column(trace, found.layer, "aten::linear") == [0, 1, 1]
        assert found.num_microbatches == 1


class TestAnnotations:
    """What says itself what it is."""

    def test_annotations_that_take_turns_are_layers(self):
        """DeepSeek's: a forward and a backward pass at once from one thread, four layers each."""
        recorder = Recorder()
        recorder.sequence = 100
        for last in (50, 48, 46, 44):
            for name, node in (("attn(F)", None), ("mlp(B)", last), ("mlp(F)", None), ("attn(B)", last - 1)):
                begin = recorder.begin()
                if node is None:
                    recorder.forward("aten::mm")
                else:
                    recorder.add("aten::copy_")
                    recorder.backward([node], track=WORKER)
                recorder.around(name, begin)

        trace, found = recorder.parts()

        assert column(trace, found.layer, "attn(F)") == [0, 1, 2, 3]
        assert column(trace, found.layer, "attn(B)") == [3, 2, 1, 0]
        assert column(trace, found.layer, f"{NODE}Backward0") == [3, 3, 2, 2, 1, 1, 0, 0]
        assert column(trace, found.phase, "aten::copy_") == [Phase.BACKWARD] * 8
        assert column(trace, found.microbatch, "attn(B)", "attn(F)") == [1, 0] * 4
        assert found.layers_from == "annotations"

    def test_numbered_layers_and_microbatches(self):
        """A stage that has one layer of the model, the seventh, is believed."""
        recorder = Recorder()
        for number in (4, 5):
            begin = recorder.begin()
            recorder.forward("aten::copy_")
            inner = recorder.begin()
            recorder.forward("aten::linear")
            recorder.around("layers.7", inner)
            recorder.around(f"forward microbatch {number}", begin)

        trace, found = recorder.parts()

        assert column(trace, found.layer, "aten::linear") == [0, 0]
        assert column(trace, found.microbatch, "aten::linear") == [0, 1]
        assert (found.num_layers, found.microbatches_from) == (1, "annotations")

    def test_modules(self):
        """The class whose modules run longest and never within each other: neither the root nor parts of layers."""
        recorder = Recorder()
        root = recorder.begin()
        made = recorder.forward("aten::embedding")
        for layer in range(2):
            begin = recorder.begin()
            made += recorder.forward("aten::linear")
            recorder.around(f"nn.Module: Linear_{layer}", begin, Category.MODULE)
            made += recorder.forward("aten::relu")
            recorder.around(f"nn.Module: Block_{layer}", begin, Category.MODULE)
        recorder.around("nn.Module: Model_0", root, Category.MODULE)
        recorder.backward(made)

        trace, found = recorder.parts()

        assert column(trace, found.layer, "aten::relu") == [0, 1]
        assert column(trace, found.layer, f"{NODE}Backward0") == [1, 1, 0, 0, UNKNOWN]
        assert found.layers_from == "modules"

    @in_one_case(
        ("name", "phase"),
        [
            ("DistributedDataParallel.forward", Phase.FORWARD),
            ("## backward ##", Phase.BACKWARD),
            ("mlp(W)", Phase.BACKWARD),
            ("dispatch(F)", Phase.FORWARD),
            ("Optimizer.step#AdamW.step", Phase.OPTIMIZER),
            ("FSDP::post_backward (layers.3)", Phase.BACKWARD),
            ("PP:1F0", Phase.FORWARD),
            ("bwd_microstep", Phase.BACKWARD),
            ("[pl][profile][Strategy]DDPStrategy.training_step", Phase.FORWARD),
            ("forward_backward_func", None),
            ("nccl:all_reduce", None),
        ],
    )
    def test_names_of_frameworks(self, name: str, phase: Phase | None):
        """The first pattern that fits says the phase; what is around several has none."""
        fits = (one for one, pattern in PHASES if pattern.search(name) and not SEVERAL_PHASES.search(name))

        assert next(fits, None) == phase

    @in_one_case(("name", "number"), [("micro-batch #3", 3), ("Forward 2", 2), ("PP:0B11", 11), ("forward", None)])
    def test_numbers_of_microbatches(self, name: str, number: int | None):
        """Of PyTorch's pipeline schedules, too."""
        assert number_in(name, MICROBATCH) == number


class TestDevices:
    """What runs on streams."""

    def test_kernels_are_part_of_what_launched_them(self):
        """Also when they run much later, when another phase has begun."""
        recorder = Recorder()
        made = recorder.forward(*model(2))
        recorder.rows.append(
            {"name": "launch", "category": 1, "track": MAIN, "start": 22, "duration": 5, "correlation": 9}
        )
        recorder.add("gemm", Category.KERNEL, track=STREAM, start=150, correlation=9)
        recorder.now = 120
        recorder.backward(made)

        trace, found = recorder.parts()

        assert column(trace, found.layer, "gemm") == [0]
        assert column(trace, found.phase, "launch", "gemm") == [Phase.FORWARD] * 2

    def test_kernels_alone(self):
        """By their names: two micro-batches of three layers, an update."""
        recorder = Recorder()
        for _ in range(2):
            for _ in range(2):
                recorder.add("vectorized_gather_kernel", Category.KERNEL, track=STREAM)
                for _ in range(3):
                    for name in ("norm_forward", "gemm_a", "flash_fwd_kernel", "gemm_b"):
                        recorder.add(name, Category.KERNEL, track=STREAM)
                recorder.add("cross_entropy_backward", Category.KERNEL, track=STREAM)
                for _ in range(3):
                    for name in ("gemm_c", "flash_bwd_kernel", "gemm_d", "norm_backward"):
                        recorder.add(name, Category.KERNEL, track=STREAM)
            recorder.add("multi_tensor_apply_kernel<adam>", Category.KERNEL, track=STREAM)

        trace, found = recorder.parts()

        assert [one.found for one in found.iterations] == ["optimizer", "optimizer"]
        assert (found.num_layers, found.num_microbatches) == (3, 2)
        assert column(trace, found.layer, "flash_fwd_kernel") == [0, 1, 2] * 4
        assert column(trace, found.layer, "gemm_d") == [2, 1, 0] * 4
        assert column(trace, found.microbatch, "gemm_a") == ([0] * 3 + [1] * 3) * 2
        assert any("no operators" in doubt for doubt in found.doubts)

    def test_kernels_are_what_annotations_around_their_calls_say(self):
        """Without operators, too: the names of kernels say nothing here."""
        recorder = Recorder()
        for number, name in enumerate(("PP:0F0", "PP:0F1", "PP:0B0", "PP:0B1")):
            begin = recorder.begin()
            recorder.add("launch", Category.CALL, correlation=number + 1)
            recorder.around(name, begin)
            recorder.rows.append(
                {
                    "name": "gemm",
                    "category": int(Category.KERNEL),
                    "track": STREAM,
                    "start": 200 + number * 10,
                    "duration": 10,
                    "correlation": number + 1,
                }
            )
        recorder.around("ProfilerStep#1", 0)

        trace, found = recorder.parts()

        assert column(trace, found.phase, "gemm") == [Phase.FORWARD] * 2 + [Phase.BACKWARD] * 2
        assert column(trace, found.microbatch, "gemm") == [0, 1, 0, 1]
        assert found.phases_from == "annotations"

    def test_passes_that_a_pipeline_begins_with(self):
        """F0 F1 B0 F2 B1 B2 of kernels: the shortest stretch is a pass, the first is two."""
        forward, backward = [1] * 2, [2] * 2
        phase = np.array([*forward, *forward, *backward, *forward, *backward, *backward])

        assert number_by_order(phase, np.array([7, 8] * 6)).tolist() == [0, 0, 1, 1, 0, 0, 2, 2, 1, 1, 2, 2]


class TestRepetitions:
    """Where a sequence repeats itself."""

    def test_what_lies_between_may_differ(self):
        """9 and 8 begin and end it; 5 and 6 are in some of the repetitions only."""
        tokens = np.array([9, 1, 2, 3, 1, 2, 5, 3, 1, 2, 5, 6, 3, 8])

        assert repetitions(tokens).tolist() == [1, 4, 8, 13]

    def test_a_dense_layer_before_those_with_experts(self):
        """It has fewer operators in common with them, but the attention: one layer more, of another kind."""
        dense, experts = [1, 2, 3, 4, 5], [1, 2, 3, 6, 7, 8, 9, 6]
        tokens = np.array([0, *dense, *experts, *experts, *experts, 1, 10])

        places = repetitions(tokens, once=tokens == 2)

        assert places.tolist() == [1, 6, 14, 22, 30]
        assert kinds(tokens, places) == (0, 1, 1, 1)

    def test_a_repetition_with_two_attentions_is_two(self):
        """Dense layers and those with experts in turn."""
        dense, experts = [1, 2, 3, 4], [1, 2, 3, 5, 6, 7]
        tokens = np.array([0, *(dense + experts) * 3, 10])

        places = repetitions(tokens, once=tokens == 2)

        assert places.tolist() == [1, 5, 11, 15, 21, 25, 31]
        assert kinds(tokens, places) == (0, 1) * 3

    def test_without_work_nothing_is_a_layer(self):
        """Copies of buffers before the forward pass repeat themselves, too."""
        tokens = np.array([1, 2, 1, 2, 1, 2, 1, 2])

        assert len(repetitions(tokens, needs=np.zeros(8, dtype=bool))) == 0

    def test_nothing_repeats_itself(self):
        """Then there is no place."""
        assert len(repetitions(np.arange(10))) == 0
