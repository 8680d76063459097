"""Operators and kernels of small traces at other sizes; times by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from costmodel.catalog import family_models, model, model_names
from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.lowering import layer_operators
from costmodel.models.huggingface import model_from_config
from costmodel.timing.sampled_source import LearnedTimes
from costmodel.timing.work import MatmulSize
from planner.measure.traces.building import execution_graph
from planner.measure.traces.events import Category, Integers, Operands
from planner.measure.traces.graph import ExecutionGraph
from planner.measure.traces.retiming import (
    Sizes,
    Work,
    build_explainer,
    machine,
    message_factors,
    overhead_of,
    retime_tasks,
    shape_of,
    sizes_of,
    work,
)
from tests.builders import a_latent_model, a_model, a_moe_model, a_shape
from tests.builders_cluster import a_strategy
from tests.builders_operators import AUTOGRAD, GPU, NODE, Recording, a_message, one_step
from tests.cases import in_one_case

HIDDEN, FEED_FORWARD, MICROBATCH, SEQUENCE = 6, 10, 2, 4
TOKENS = MICROBATCH * SEQUENCE


def some_sizes(**changes: Any) -> Sizes:
    """Two sequences of four tokens through a linear from 6 to 10."""
    usual: dict[str, Any] = {
        "sequence_length": SEQUENCE,
        "microbatch_size": MICROBATCH,
        "tp": 1,
        "cp": 1,
        "sequence_parallel": False,
        "top_k": 1,
        "num_parameters": 60.0,
        "widths": {"hidden size": HIDDEN, "feed-forward": FEED_FORWARD},
    }
    return Sizes(**{**usual, **changes})


SIZES = some_sizes()
LONGER = some_sizes(sequence_length=2 * SEQUENCE)
WIDER = some_sizes(widths={"hidden size": HIDDEN, "feed-forward": 2 * FEED_FORWARD}, num_parameters=120.0)


def a_thread() -> Recording:
    """A linear of 1010 ns, of which its matmul takes 1002; a gradient accumulated and a sum of activations, 52 each."""
    made = one_step(2000)
    made.operator("aten::linear", 100, 1010, (TOKENS, HIDDEN), (FEED_FORWARD, HIDDEN))
    made.operator("aten::t", 101, 2, (FEED_FORWARD, HIDDEN))
    made.operator("aten::mm", 105, 1002, (TOKENS, HIDDEN), (HIDDEN, FEED_FORWARD))
    made.operator("aten::view", 1200, 2, (TOKENS, HIDDEN))
    made.operator("aten::add", 1300, 52, (TOKENS, HIDDEN), (TOKENS, HIDDEN))
    made.operator(f"{NODE}torch::autograd::AccumulateGrad", 1400, 60)
    made.operator("aten::add_", 1404, 52, (FEED_FORWARD, HIDDEN), (FEED_FORWARD, HIDDEN))
    return made


def a_device() -> Recording:
    """Kernels of a matmul, of a fused operator's backward pass without sizes, of an update, of nothing known."""
    made = one_step(9000, devices=(GPU,))
    made.operator("aten::mm", 10, 20, (TOKENS, HIDDEN), (HIDDEN, FEED_FORWARD))
    made.kernel("some_gemm", 50, 1002, call=20, number=1)
    made.operator("FusedLinear", 40, 5, (TOKENS, HIDDEN), (FEED_FORWARD, HIDDEN), sequence=7)
    made.operator("FusedLinearBackward", 60, 20, sequence=7, forward_thread=1, on=AUTOGRAD)
    made.kernel("some_gemm", 1100, 2002, call=65, number=2, thread=AUTOGRAD)
    made.add(Category.ANNOTATION, "Optimizer.step#FusedAdam.step", 100, 50)
    made.kernel("multi_tensor_apply_kernel", 3200, 102, call=110, number=3)
    for number in range(2):
        made.kernel(f"small {number}", 3400 + 10 * number, 2, call=160 + number * 5, number=4 + number)
    return made


def a_graph(made: Recording) -> ExecutionGraph:
    """The iteration of a recording."""
    return execution_graph((made.trace(),))


def by_name(graph: ExecutionGraph, durations: Integers) -> dict[str, list[int]]:
    """Nanoseconds of the tasks of each name."""
    result: dict[str, list[int]] = {}
    for name, duration in zip(graph.tasks.name, durations, strict=True):
        result.setdefault(graph.names[name], []).append(int(duration))
    return result


class TestSizes:
    """The sizes of a job on one rank."""

    def test_ranks_split_heads_feed_forward_and_vocabulary(self, workload: Workload) -> None:
        """4 heads, 2 key-value heads of 8, a gated feed-forward and 2 ranks: hidden size stays."""
        one = sizes_of(a_model(), workload, a_strategy(tp=2, mbs=3))
        model = a_model()
        attention = model.layers[0].attention
        assert one.widths["hidden size"] == model.hidden_size
        assert one.widths["vocabulary"] == -(-model.vocab_size // 2)
        assert one.whole["vocabulary"] == model.vocab_size
        assert one.widths["padded vocabulary"] % 128 == 0
        heads = attention.num_heads // 2 + 2 * attention.num_kv_heads // 2  # type: ignore[union-attr]
        assert one.widths["query, key and value heads of layers of kind 0"] == heads
        assert one.microbatch_size == 3

    @pytest.mark.parametrize("model", [a_latent_model(), a_moe_model()])
    def test_every_kind_of_layer_has_sizes(self, model: Any, workload: Workload) -> None:
        """All are at least 1, and the same names whatever the strategy."""
        one = sizes_of(model, workload, a_strategy())
        other = sizes_of(model, workload, a_strategy(tp=2, ep=2))
        assert min(other.widths.values()) >= 1
        assert one.widths.keys() == other.widths.keys()

    @in_one_case(
        ("name", "doubted"),
        [
            ("falcon-rw-1b", set()),  # a square output projection, whose hidden side is not split
            ("nemotron-h-8b", set()),  # Mamba-2
            ("falcon-mamba-7b", set()),
            ("lfm2-1.2b", set()),
            ("olmo-hybrid-7b", set()),  # linear attention
            ("mimo-v2-flash", set()),  # values of another width than keys
            ("qwen3.5-35b-a3b", {"shared_up", "shared_down"}),  # gated attention; shared experts as wide as the others
            ("kimi-linear-48b-a3b", {"shared_up", "shared_down"}),  # decays and gates of a low rank
            # compressed attention: outputs in groups, and an indexer that every rank has
            ("deepseek-v4-flash", {"shared_up", "shared_down", "output_groups", "index_query", "index_weights"}),
        ],
    )
    def test_matmuls_of_half_a_layer_are_those_of_the_cost_model(
        self, name: str, doubted: set[str], workload: Workload
    ) -> None:
        """On two ranks of tp; what is mistaken is doubted."""
        one = model(name) if name in model_names() else model_from_config(family_models()[name], name=name, source="")
        explain = build_explainer(*(sizes_of(one, workload, a_strategy(tp=tp, mbs=1)) for tp in (1, 2)))
        whole, half = (matmuls(one, workload.sequence_length, tp) for tp in (1, 2))

        found = {key: explain(tuple(map(int, sizes)), "matmul") for key, sizes in whole.items()}

        wrong = {key for key, each in found.items() if np.prod(each.after) != pytest.approx(np.prod(half[key]))}
        assert not any(found[key].is_sure for key in wrong)
        assert {operator for _, operator in wrong} == doubted

    @pytest.fixture
    def workload(self) -> Workload:
        """Sequences of 16 tokens."""
        return cast("Workload", type("Made", (), {"sequence_length": 16})())


def matmuls(one: Model, sequence_length: int, tp: int) -> dict[tuple[int, str], tuple[float, float, float]]:
    """Rows, columns and inner size of each matmul that the cost model counts, by kind of layer and name."""
    shape = a_shape(hidden_size=one.hidden_size, sequence_length=sequence_length, mbs=1, tp=tp)
    return {
        (place, operator.name): (float(size.m), float(size.n), float(size.k))
        for place, kind in enumerate(one.kinds)
        for operator in layer_operators(kind, shape)
        if isinstance(size := operator.size, MatmulSize)
    }


class TestExplanations:
    """Which sizes of a job the sizes of a tensor are."""

    def test_tokens_and_widths(self) -> None:
        """8 is two sequences of four: twice as long, 16; 10 is the feed-forward."""
        found = build_explainer(SIZES, LONGER)((TOKENS, FEED_FORWARD), "activation")
        assert found == ((16, 10), True, ())

    def test_one_of_a_matmul_is_tokens(self) -> None:
        """Hidden size and tokens are both 8; whichever is which, twice the tokens is twice the work."""
        widths = {"hidden size": 8, "feed-forward": 10}
        same = build_explainer(some_sizes(widths=widths), some_sizes(widths=widths, sequence_length=8))
        found = same((8, 10, 8), "matmul")
        assert (np.prod(found.after), found.is_sure) == (2 * 8 * 10 * 8, True)

    def test_weights_have_no_tokens(self) -> None:
        """8 x 8 of an optimizer stays, as an activation it grows."""
        widths = {"hidden size": 8}
        same = build_explainer(some_sizes(widths=widths), some_sizes(widths=widths, sequence_length=8))
        assert np.prod(same((8, 8), "weight").after) == 64
        assert np.prod(same((8, 8), "activation").after) == 128

    def test_what_may_be_two_things_is_not_sure(self) -> None:
        """Heads and hidden size are both 6, and only one of them grows."""
        two = build_explainer(
            some_sizes(widths={"hidden size": 6, "heads": 6}), some_sizes(widths={"hidden size": 12, "heads": 6})
        )
        assert two((TOKENS, 6), "activation") == ((8, 12), False, ())

    def test_of_very_many_readings_the_most_common_are_taken(self) -> None:
        """Eight sixes, each one of three widths: 6,561 readings."""
        widths = {"hidden size": 6, "heads": 6, "feed-forward": 6}
        after = {name: 12 + place for place, name in enumerate(widths)}
        found = build_explainer(some_sizes(widths=widths), some_sizes(widths=after))((6,) * 8, "weight")
        assert (found.after, found.is_sure) == ((12,) * 8, False)

    def test_unknown_sizes_stay(self) -> None:
        """7 is nothing of the job."""
        assert build_explainer(SIZES, LONGER)((TOKENS, 7), "activation") == ((16, 7), True, (7,))

    def test_ranks_that_split(self) -> None:
        """Two tensor-parallel ranks instead of one: half of the feed-forward, the same hidden size."""
        split = some_sizes(tp=2, widths={"hidden size": 6, "feed-forward": 5}, whole={"feed-forward": 10})
        one = replace(SIZES, whole={"feed-forward": 10})
        assert build_explainer(one, split)((10, 6), "weight").after == (5, 6)
        assert build_explainer(split, one)((5, 6), "weight").after == (10, 6)
        assert build_explainer(split, one)((10, 6), "weight").after == (10, 6)

    def test_attention_has_the_sequence_twice(self) -> None:
        """Two sequences of four tokens, with three heads of five: twice as long is four times the scores."""
        widths = {"heads": 3, "head": 5}
        found = build_explainer(some_sizes(widths=widths), some_sizes(widths=widths, sequence_length=8))
        assert found((2, 3, 4, 5, 4), "attention").after == (2, 3, 8, 5, 8)

    def test_models_of_other_parts(self) -> None:
        """A model with experts is none without, made larger."""
        with pytest.raises(SpecError, match="only one has 'experts'"):
            build_explainer(SIZES, some_sizes(widths={**SIZES.widths, "experts": 4}))


class TestWork:
    """FLOPs and bytes by names and sizes."""

    @in_one_case(
        ("name", "sizes", "flops", "elements"),
        [
            ("aten::mm", ((2, 3), (3, 5)), 60, 6 + 15 + 10),
            ("aten::addmm", ((5,), (2, 3), (3, 5)), 60, 6 + 15 + 10),
            ("aten::linear", ((1, 2, 3), (5, 3), (5,)), 60, 6 + 15 + 10),
            ("aten::bmm", ((7, 2, 3), (7, 3, 5)), 7 * 60, 7 * (6 + 15 + 10)),
            ("aten::_grouped_mm", ((8, 3), (4, 3, 5)), 2 * 8 * 3 * 5, 8 * 3 + 4 * 15 + 8 * 5),
            ("aten::scaled_dot_product_attention", ((2, 3, 4, 5),) * 3, 4 * 120 * 4, 4 * 120),
            ("flash_attn::_flash_attn_forward", ((2, 4, 3, 5),) * 3, 4 * 120 * 4, 4 * 120),
            ("FlashAttnVarlenFunc", ((16, 3, 5),) * 3, 4 * 240 * 9, 4 * 240),
            ("aten::add", ((2, 3), (2, 3)), 0, 3 * 6),
            # sizes of which no product follows count as moved: all inputs, and a result as large as the largest
            ("aten::mm", ((2, 3),), 0, 2 * 6),
            ("aten::mm", ((2, 3), (4, 5)), 0, 6 + 2 * 20),
            ("aten::_grouped_mm", ((8, 3), (3, 5)), 0, 2 * 24 + 15),
            ("aten::scaled_dot_product_attention", ((2, 3, 4, 5),), 0, 2 * 120),
            ("aten::embedding", ((100, 3), (2, 4)), 0, 2 * 2 * 4 * 3),
        ],
    )
    def test_counted(self, name: str, sizes: tuple[tuple[int, ...], ...], flops: float, elements: float) -> None:
        """Two FLOPs for a term; inputs read once, results written once; packed sequences are 9 long."""
        shape = shape_of(name, Operands(sizes, ("c10::BFloat16",) * len(sizes)), sequence_length=9)
        assert shape is not None
        assert work(shape, shape.sizes) == Work(flops, 2 * elements)

    @pytest.mark.parametrize(("name", "sizes"), [("aten::t", ((2, 3),)), ("aten::ones", ((), ()))])
    def test_nothing_to_count(self, name: str, sizes: tuple[tuple[int, ...], ...]) -> None:
        """A view moves nothing, and what has no tensor has no work that is known."""
        assert shape_of(name, Operands(sizes, ("float",) * len(sizes)), sequence_length=9) is None

    def test_a_kernel_that_multiplies_for_another_operator(self) -> None:
        """2 x 3 by the transposed 5 x 3, whoever launches it; another kernel of it moves its tensors."""
        operands = Operands(((3,), (2, 3), (5, 3)), ("c10::BFloat16",) * 3)
        gemm = shape_of("FusedNormLinear", operands, sequence_length=9, kernel="nvjet_tst_128")
        other = shape_of("FusedNormLinear", operands, sequence_length=9, kernel="norm_kernel")
        assert gemm is not None
        assert other is not None
        assert work(gemm, gemm.sizes).flops == 60
        assert work(other, other.sizes) == Work(0, 2 * (3 + 6 + 15 + 15))
        alone = Operands(((2, 3),), ("c10::BFloat16",))
        unread = shape_of("FusedLinear", alone, sequence_length=9, kernel="nvjet_tst_128")
        assert unread is not None
        assert unread.kind == "streaming"


class TestLaws:
    """Rates and overheads of a trace."""

    def test_rates_of_large_operators(self) -> None:
        """1000 FLOPs in 10 ns, 600 bytes in 3 ns; the small ones do not count."""
        works = [Work(1000.0, 30.0), Work(10.0, 3.0), Work(0.0, 600.0), Work(0.0, 6.0)]
        found = machine(works, np.array([10.0, 5.0, 3.0, 2.0]), np.array([2.0, 2.0]))
        assert (found.flops_per_second, found.bytes_per_second) == pytest.approx((1e11, 2e11))
        assert (found.overhead, found.largest_flops) == (2.0, 1000.0)

    def test_nothing_of_a_kind(self) -> None:
        """Without matmuls bytes alone count."""
        assert machine([Work(0.0, 8.0)], np.array([4.0]), np.array([4.0])).seconds(Work(9.0, 2e9)) == 1.0

    def test_overhead_is_not_beyond_the_smallest(self) -> None:
        """Times that fall with the work say nothing: at least what any operator takes, at most the smallest time."""
        assert overhead_of(np.array([1.0, 8.0]), np.array([9.0, 9.0]), least=2.0) == 9.0
        assert overhead_of(np.array([1.0, 8.0]), np.array([3.0, 80.0]), least=2.0) == 2.0
        assert overhead_of(np.array([1.0, 2.0]), np.array([3.0, 6.0]), least=2.0) == 2.0


class TestThreads:
    """Traces without a device."""

    @pytest.mark.parametrize("after", [SIZES, replace(SIZES, num_parameters=1.0)])
    def test_the_same_sizes_take_the_same_time(self, after: Sizes) -> None:
        """Exactly."""
        graph = a_graph(a_thread())
        duration, doubts, _ = retime_tasks(graph, SIZES, after)
        assert duration.tolist() == graph.tasks.duration.tolist()
        assert doubts == ()

    def test_longer_sequences(self) -> None:
        """2 ns of each are overhead: 2 + 2 * 1000, and 2 + 2 * 50; views, weights, and what only calls others stay."""
        graph = a_graph(a_thread())
        found = by_name(graph, retime_tasks(graph, SIZES, LONGER)[0])
        assert found["aten::linear"] == [1010 + 1000]
        assert found["aten::add"] == [102]
        assert found["aten::view"] == [2]
        assert found["aten::add_"] == [52]

    def test_a_wider_feed_forward(self) -> None:
        """The matmul and the accumulated gradient double, activations of hidden size stay."""
        graph = a_graph(a_thread())
        found = by_name(graph, retime_tasks(graph, SIZES, WIDER)[0])
        assert found["aten::linear"] == [2010]
        assert found["aten::add_"] == [102]
        assert found["aten::add"] == [52]

    def test_sizes_of_another_job_are_doubted(self) -> None:
        """Ten is nothing of this job."""
        graph = a_graph(a_thread())
        other = {"widths": {"hidden size": HIDDEN}}
        doubts = retime_tasks(graph, some_sizes(**other), some_sizes(sequence_length=8, **other))[1]
        assert len(doubts) == 1
        assert "the job does not have: these sizes are kept (aten::mm of 8x10x6" in doubts[0]

    def test_far_larger_ones_are_doubted(self) -> None:
        """Eight times the FLOPs of any that was recorded."""
        doubts = retime_tasks(a_graph(a_thread()), SIZES, some_sizes(sequence_length=8 * SEQUENCE))[1]
        assert any("more than 4 times" in doubt for doubt in doubts)


class TestDevices:
    """Kernels."""

    def test_longer_sequences(self) -> None:
        """Matmuls double but for 2 ns, one of them by the sizes of its forward pass; the host's calls stay."""
        graph = a_graph(a_device())
        found = by_name(graph, retime_tasks(graph, SIZES, LONGER)[0])
        assert found["some_gemm"] == [2002, 4002]
        assert found["multi_tensor_apply_kernel"] == [102]
        assert found["cudaLaunchKernel"] == [1] * 5

    def test_an_update_goes_with_the_parameters(self) -> None:
        """Twice as many: 2 + 2 * 100."""
        graph = a_graph(a_device())
        assert by_name(graph, retime_tasks(graph, SIZES, WIDER)[0])["multi_tensor_apply_kernel"] == [202]

    def test_samples_say_the_ratio(self) -> None:
        """Where the machine takes three times as long for twice the rows, so does the kernel."""
        graph = a_graph(a_device())
        found, *_ = retime_tasks(graph, SIZES, LONGER, samples=cast("LearnedTimes", Sampled().get))
        assert by_name(graph, found)["some_gemm"] == [3006, 6006]

    def test_samples_of_attention_are_asked_by_its_sizes(self) -> None:
        """Twice the tokens are four times the scores; others without samples double but for 2 ns."""
        made, queries = one_step(9000, devices=(GPU,)), (MICROBATCH, 3, SEQUENCE, 5)
        made.operator("aten::scaled_dot_product_attention", 10, 20, queries, queries, queries)
        made.kernel("fmha", 50, 1000, call=20, number=1)
        made.operator("aten::mm", 40, 10, (TOKENS, 7), (7, 7))
        made.kernel("gemm", 1100, 102, call=45, number=2)
        made.operator("aten::native_layer_norm", 60, 10, (TOKENS, 5))
        made.kernel("norm", 1300, 52, call=65, number=3)
        made.kernel("small", 1400, 2, call=80, number=4)
        widths = {"heads": 3, "head": 5}
        graph, sizes = a_graph(made), [some_sizes(widths=widths, sequence_length=SEQUENCE * n) for n in (1, 2)]

        found = by_name(graph, retime_tasks(graph, *sizes, samples=cast("LearnedTimes", Scores().get))[0])

        assert (found["fmha"], found["gemm"], found["norm"]) == ([4000], [202], [102])

    def test_a_long_norm_is_no_overhead_of_matmuls(self) -> None:
        """Where no kernel is short, 5 us are fixed: 5 + 2 * 995 us, not 33 us of every matmul."""
        made = one_step(9_000_000, devices=(GPU,))
        made.operator("aten::mm", 10, 20, (TOKENS, HIDDEN), (HIDDEN, FEED_FORWARD))
        made.kernel("some_gemm", 50, 1_000_000, call=20, number=1)
        made.operator("aten::native_layer_norm", 40, 20, (TOKENS, HIDDEN))
        made.kernel("norm", 1_100_000, 33_000, call=45, number=2)

        found = by_name(a_graph(made), retime_tasks(a_graph(made), SIZES, LONGER)[0])

        assert found["some_gemm"] == [5_000 + 2 * 995_000]
        assert found["norm"] == [5_000 + 2 * 28_000]

    def test_kernels_without_sizes_are_doubted(self) -> None:
        """Nothing says what they compute."""
        made = one_step(9000, devices=(GPU,))
        made.operator("aten::mm", 10, 20)
        made.kernel("some_gemm", 50, 1000, call=20, number=1)
        duration, doubts, unsized_fraction = retime_tasks(a_graph(made), SIZES, LONGER)
        assert (duration.max(), unsized_fraction) == (1000, 1.0)
        assert "100% of the time are kernels without an operator" in doubts[0]


class TestMessages:
    """Times after over before."""

    def test_more_ranks_that_split_the_sequence_send_less(self) -> None:
        """Stages send each rank's share of the hidden states; sums of these over ranks are whole."""
        made = one_step(9000, devices=(GPU,))
        elements = TOKENS * HIDDEN
        sent, summed = (
            a_message(operation, elements=number, ranks=(0, 1))
            for operation, number in (("send", elements // 2), ("all_reduce", elements))
        )
        made.kernel("ncclSend", 100, 10, call=20, number=1, message=sent)
        made.kernel("ncclAllReduce", 200, 10, call=30, number=2, message=summed)
        graph = a_graph(made)

        two, four = (some_sizes(tp=tp, sequence_parallel=True) for tp in (2, 4))
        factors = message_factors(graph, two, four, weights=0.25)

        by_operation = {
            graph.messages[number].operation: factor
            for number, factor in zip(graph.tasks.message.tolist(), factors.tolist(), strict=True)
            if number >= 0
        }
        assert by_operation == {"send": 0.5, "all_reduce": 1.0}


class Scores:
    """Samples of attention alone, whose time goes with its scores."""

    def get(self, operator: str, of_pass: str, dtype: str) -> Scores | None:
        """Itself for attention."""
        return self if (operator, of_pass, dtype) == ("attention", "forward", "bf16") else None

    def seconds(self, sizes: dict[str, float]) -> float:
        """By both lengths, and the masked heads of all sequences."""
        return sizes["sequences"] * sizes["heads"] * sizes["queries"] * sizes["keys"] * sizes["causal"]


class Sampled:
    """Samples of matmuls alone: 1 s for 8 rows, 3 s for more."""

    def get(self, operator: str, of_pass: str, dtype: str) -> Sampled | None:
        """Itself for matmuls of bf16."""
        return self if (operator, of_pass, dtype) == ("matmul", "forward", "bf16") else None

    def seconds(self, sizes: dict[str, float]) -> float:
        """By the rows."""
        return 1.0 if sizes["m"] == TOKENS else 3.0
