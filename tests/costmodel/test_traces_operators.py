"""Operators of traces, found by names and by autograd's numbers, timed by threads and kernels."""

from __future__ import annotations

import pytest

from planner.measure.sample.samples import OPERATORS, SIZE_COLUMNS, Point, Sizes
from planner.measure.traces.events import Category, Operands
from planner.measure.traces.iterations import iterations
from planner.measure.traces.operators import (
    LONG_LIST,
    TracedOperators,
    find_messages,
    find_operators,
    late_launches,
    operator_patterns,
    shares,
    slowdown_beside_communication,
)
from tests.builders_operators import AUTOGRAD, GPU, NODE, SENDING, Recording, a_grid, a_linear_step, a_message, one_step

LINEAR = {"m": 8, "n": 16, "k": 4}


def times(found: TracedOperators) -> dict[tuple[str, str], list[int]]:
    """Nanoseconds of each time that a pass ran."""
    result: dict[tuple[str, str], list[int]] = {}
    for one in found.operators:
        result.setdefault((one.operator, one.of_pass), []).append(one.nanoseconds)
    return result


class TestNames:
    """The file of names."""

    def test_operators_and_sizes_are_those_of_the_table_of_samples(self) -> None:
        """A row of the table can be made of each pattern."""
        for pattern in operator_patterns():
            kind = OPERATORS[pattern.operator]
            assert set(kind.needs) - {"causal"} == set(pattern.sizes)
            assert set(pattern.sizes) <= set(SIZE_COLUMNS)
            assert pattern.at < len(pattern.sequence)

    @pytest.mark.parametrize(
        ("sizes", "causal"), [(((2, 4, 64, 32),) * 3 + ((),), 1), (((2, 4, 64, 32),) * 3 + ((64, 64),), 0)]
    )
    def test_attention_is_causal_without_a_mask(self, sizes: tuple[tuple[int, ...], ...], causal: int) -> None:
        """As many queries as keys and no mask: a decoder."""
        (pattern,) = (one for one in operator_patterns() if "aten::scaled_dot_product_attention" in one.sequence[0])
        found = pattern.sizes_of(Operands(sizes, ("float",) * len(sizes)))
        assert found is not None
        assert found["causal"] == causal
        assert (found["sequences"], found["heads"], found["queries"], found["v_head_dim"]) == (2, 4, 64, 32)

    def test_heads_are_what_the_angles_are_repeated_along(self) -> None:
        """Tokens by heads by width, times tokens by one by width; in either order."""
        patterns = [one for one in operator_patterns() if one.operator == "rotary"]
        for sizes in (((9, 4, 8), (9, 1, 8)), ((1, 4, 9, 8), (1, 1, 9, 8)), ((1, 9, 4, 8), (9, 1, 8))):
            found = patterns[-1].sizes_of(Operands(sizes, ("float", "float")))
            assert found == {"rows": 9, "heads": 4, "qk_head_dim": 8}


class TestThreads:
    """Where nothing runs on a device."""

    def test_passes_of_a_linear_with_their_times(self) -> None:
        """Forward by its own duration, the gradients by the sizes of the products in its node."""
        found = find_operators(a_linear_step().trace())
        assert times(found) == {
            ("matmul", "forward"): [20],
            ("matmul", "wgrad"): [25],
            ("matmul", "dgrad"): [15],
            ("adam", "forward"): [10],
        }
        assert all(one.sizes == LINEAR for one in found.operators if one.operator == "matmul")
        assert [one.sizes for one in found.operators if one.operator == "adam"] == [{"n": 64}]

    def test_all_of_the_computation_is_operators_or_others(self) -> None:
        """The node's own 3 ns are neither gradient."""
        found = find_operators(a_linear_step().trace())
        known = sum(one.nanoseconds for one in found.operators)
        assert found.nanoseconds == 20 + 43 + 10
        assert known + sum(one.nanoseconds for one in found.others) == found.nanoseconds
        assert sum(one.nanoseconds for one in found.others) == 3

    def test_sequences_with_views_between(self) -> None:
        """Gate and up: a chunk, an activation and a product are one operator, whose nodes are its backward pass."""
        made = one_step(100)
        made.operator("aten::chunk", 0, 2, (8, 32), sequence=1)
        made.operator("aten::silu", 3, 5, (8, 16), sequence=2)
        made.operator("aten::view", 9, 1, (8, 16), sequence=3)
        made.operator("aten::mul", 11, 4, (8, 16), (8, 16), sequence=4)
        for start, number, name in ((20, 4, "Mul"), (30, 2, "Silu"), (40, 1, "Split")):
            made.operator(f"{NODE}{name}Backward0", start, 7, sequence=number, forward_thread=1)
        found = find_operators(made.trace())
        assert times(found) == {("swiglu", "forward"): [12], ("swiglu", "backward"): [21]}
        assert found.operators[0].sizes == {"rows": 8, "width": 16}

    def test_products_in_a_node_of_attention_are_its_backward_pass(self) -> None:
        """Attention by plain matmuls on a CPU: its node multiplies too, inside the function that the node calls."""
        made = one_step(100)
        made.operator("aten::scaled_dot_product_attention", 0, 20, *((2, 4, 64, 32),) * 3, (), sequence=1)
        made.operator(f"{NODE}BmmBackward0", 30, 40, sequence=1, forward_thread=0)
        made.operator("BmmBackward0", 31, 38, sequence=1, forward_thread=0)
        made.operator("aten::bmm", 32, 25, (8, 64, 64), (8, 64, 32))
        assert times(find_operators(made.trace())) == {("attention", "forward"): [20], ("attention", "backward"): [40]}

    def test_what_a_node_computes_again_is_a_forward_pass(self) -> None:
        """Recomputation runs inside of a node, but its operators have numbers of their own."""
        made = one_step(100)
        made.operator("aten::gelu", 0, 5, (8, 16), sequence=1)
        made.operator(f"{NODE}GeluBackward0", 10, 20, sequence=1, forward_thread=1)
        made.operator("aten::gelu", 12, 6, (8, 16), sequence=2)
        found = find_operators(made.trace())
        assert times(found) == {("gelu", "forward"): [5, 6], ("gelu", "backward"): [14]}

    def test_gradients_that_autograd_adds_up_are_residuals(self) -> None:
        """The sum behind a node is no part of the node's operator, if the forward pass adds tensors of this size."""
        made = one_step(100)
        made.operator("aten::add", 0, 3, (8, 16), (8, 16), sequence=1)
        made.operator("aten::gelu", 5, 5, (8, 16), sequence=2)
        made.operator(f"{NODE}GeluBackward0", 10, 20, sequence=2, forward_thread=1)
        made.operator("aten::add_", 24, 4, (8, 16), (8, 16))
        found = find_operators(made.trace())
        assert times(found) == {("residual", "forward"): [3, 4], ("gelu", "forward"): [5], ("gelu", "backward"): [16]}

    def test_numbers_of_other_threads_are_others(self) -> None:
        """The autograd thread counts its own operators; the forward ones are on the thread that explains most."""
        made = one_step(100)
        made.operator("aten::gelu", 0, 5, (8, 16), sequence=7)
        made.operator("aten::gelu", 5, 5, (8, 32), sequence=8)
        made.operator("aten::softmax", 11, 2, (8, 8), sequence=7, on=AUTOGRAD)
        for start, number in ((20, 8), (30, 7)):
            made.operator(f"{NODE}GeluBackward0", start, 6, sequence=number, forward_thread=1, on=AUTOGRAD)
        backward = [one.sizes["width"] for one in find_operators(made.trace()).operators if one.of_pass == "backward"]
        assert sorted(backward) == [16, 32]

    def test_without_shapes_the_reason_says_how_to_record_them(self) -> None:
        """Its name alone makes no sample."""
        made = one_step(100)
        made.operator("aten::mm", 0, 5)
        (other,) = find_operators(made.trace()).others
        assert "record_shapes=True" in other.reason
        assert (other.name, other.count, other.nanoseconds) == ("aten::mm", 1, 5)

    @pytest.mark.parametrize(
        ("sent", "parameters", "elements"),
        [
            pytest.param((), None, [80], id="those that got a gradient"),
            pytest.param(("all_reduce",), None, [80], id="replicas update all"),
            pytest.param(("reduce_scatter",), None, [], id="shards are not what got a gradient"),
            pytest.param(("reduce_scatter",), 40, [40], id="the job knows"),
        ],
    )
    def test_updates_of_long_lists(self, sent: tuple[str, ...], parameters: int | None, elements: list[int]) -> None:
        """Two calls of 10 ns are one update of all parameters; lists of more than 30 tensors have no sizes."""
        made = one_step(100)
        for start, sizes in ((10, (16, 4)), (20, (16,))):
            made.operator("torch::autograd::AccumulateGrad", start, 2, sizes)
        for operation in sent:
            made.kernel("nccl", 40, 5, message=a_message(operation, elements=80, ranks=(0, 1)))
        for start in (60, 80):
            empty = Operands(((),) * 4, ("TensorList",) * 4)
            made.operator("aten::_fused_adamw_", start, 10, operands=empty)
            made.kernel("multi_tensor", start + 5, 10, call=start + 1, number=start)
        found = find_operators(made.trace(), parameters=parameters)
        assert [one.sizes["n"] for one in found.operators] == elements
        assert [one.nanoseconds for one in found.operators] == [20] * len(elements)
        assert [one.reason for one in found.others] == [LONG_LIST] * (1 - len(elements))

    def test_events_outside_of_iterations_do_not_count(self) -> None:
        """What the profiler recorded before its first step."""
        made = a_linear_step(at=1000)
        made.operator("aten::linear", 0, 500, (8, 4), (16, 4))
        assert times(find_operators(made.trace()))["matmul", "forward"] == [20]


class TestDevices:
    """Where kernels run on streams."""

    def test_the_time_of_an_operator_is_that_of_its_kernels(self) -> None:
        """Two kernels of one operator, one that nobody launched in one."""
        made = one_step(100, devices=(GPU,))
        made.operator("aten::linear", 0, 10, (8, 4), (16, 4), sequence=1)
        made.kernel("gemm", 20, 30, call=2, number=1)
        made.kernel("splitKreduce", 50, 5, call=4, number=2)
        made.kernel("something", 60, 7, call=15, number=3)
        found = find_operators(made.trace())
        assert times(found) == {("matmul", "forward"): [35]}
        assert [(one.name, one.nanoseconds) for one in found.others] == [("something", 7)]
        assert found.nanoseconds == 42

    @pytest.mark.parametrize(
        "inputs",
        [
            pytest.param(((16, 4), (2, 4, 4), ()), id="weight, input, no bias"),
            pytest.param(((16, 4), (2, 4, 4), (16,)), id="weight, input, bias"),
            pytest.param(((16, 4), (), (2, 4, 4), (16,)), id="weight, no copy, input, bias: version 1"),
            pytest.param(((16, 4), (16, 4), (2, 4, 4), ()), id="weight, copy in 8 bits, input: version 1"),
        ],
    )
    def test_two_products_in_a_node_without_operators(self, inputs: tuple[tuple[int, ...], ...]) -> None:
        """Transformer Engine's function multiplies twice: the input's gradient, then the weight's."""
        made = one_step(200, devices=(GPU,))
        made.operator("_Linear", 0, 10, *inputs, sequence=1)
        made.kernel("cast", 15, 3, call=1, number=1)
        made.kernel("nvjet_tst_128x256", 20, 30, call=2, number=2)
        made.operator(f"{NODE}_LinearBackward", 60, 30, sequence=1, forward_thread=1)
        made.kernel("nvjet_tst_a", 70, 31, call=62, number=3)
        made.kernel("nvjet_tst_b", 101, 32, call=65, number=4)
        found = find_operators(made.trace())
        assert times(found) == {("matmul", "forward"): [30], ("matmul", "dgrad"): [31], ("matmul", "wgrad"): [32]}
        assert all(one.sizes == LINEAR for one in found.operators)
        assert sum(one.nanoseconds for one in found.others) == 3

    def test_kernels_of_8_bits_are_no_samples_of_16(self) -> None:
        """The recipe casts inside, and does not say to what."""
        made = one_step(200, devices=(GPU,))
        made.operator("_Linear", 0, 10, (16, 4), (8, 4), sequence=1)
        made.kernel("sm90_xmma_gemm_e4m3bf16_e4m3f32", 20, 30, call=2, number=2)
        found = find_operators(made.trace())
        assert not [one for one in found.operators if one.nanoseconds]
        assert [one.nanoseconds for one in found.others] == [30]
        assert "8-bit" in found.others[0].reason

    def test_communication_is_no_computation(self) -> None:
        """Kernels that carry a message are left out."""
        made = one_step(100, devices=(GPU,))
        made.kernel("ncclDevKernel_AllReduce", 10, 20, message=a_message("all_reduce", elements=8, ranks=(0, 1)))
        assert find_operators(made.trace()).nanoseconds == 0

    def test_slowdown_of_kernels_of_the_same_work(self) -> None:
        """Alone 10 ns, beside communication 12; the other kind is not steady, and does not count."""
        made = Recording(devices=(GPU,))
        message = a_message("all_reduce", elements=8, ranks=(0, 1))
        made.kernel("ncclDevKernel_AllReduce", 100, 100, on=SENDING, message=message)
        for start, duration in ((0, 10), (10, 10), (110, 12), (130, 12)):
            made.kernel("norm", start, duration, blocks=a_grid(4))
        for start, duration in ((20, 10), (30, 30), (145, 50)):
            made.kernel("persistent", start, duration, blocks=a_grid(100))
        found = slowdown_beside_communication([made.trace()])
        assert found == (pytest.approx(1.2), 4)

    def test_no_slowdown_without_communication(self) -> None:
        """Nothing ran beside anything."""
        made = Recording(devices=(GPU,))
        made.kernel("norm", 0, 10)
        assert slowdown_beside_communication([made.trace()]) is None

    def test_late_launches_are_those_that_the_stream_waits_for(self) -> None:
        """Calls at 0, 20, 40 and 60 for kernels of 5 ns; the last one waits behind a long kernel."""
        made = Recording(devices=(GPU,))
        for number, (call, start, duration) in enumerate(((0, 2, 5), (20, 22, 5), (40, 42, 50), (60, 92, 5))):
            made.kernel("k", start, duration, call=call, number=number + 1)
        assert late_launches(made.trace()).tolist() == [20]


class TestMessages:
    """What ranks send each other."""

    def test_the_last_rank_to_come_does_not_wait(self) -> None:
        """30 and 12 ns of the same collective: 12 without waiting."""
        traces = []
        for rank, duration in enumerate((30, 12)):
            made = one_step(100, rank=rank, devices=(GPU,))
            message = a_message("all_reduce", elements=1000, ranks=(0, 1))
            made.kernel("ncclDevKernel_AllReduce", 10, duration, message=message)
            traces.append(made.trace())
        found, unknown = find_messages(traces)
        assert found == [(Point("all_reduce", "forward", "fp32", Sizes(nbytes=4000, ranks=2, nodes=1)), 12, True)]
        assert not unknown

    def test_one_rank_alone_is_not_all(self) -> None:
        """The other one may have come later."""
        made = one_step(100, devices=(GPU,))
        made.kernel("nccl", 10, 30, message=a_message("all_reduce", elements=1000, ranks=(0, 1)))
        ((_, _, is_complete),), _ = find_messages([made.trace()])
        assert not is_complete

    def test_a_send_and_its_receive_are_one_message(self) -> None:
        """The receive waits for the sender."""
        traces = []
        for rank, (operation, duration) in enumerate((("send", 8), ("recv", 40))):
            made = one_step(100, rank=rank, devices=(GPU,))
            message = a_message(operation, elements=10, ranks=(0, 1), peer=1 - rank)
            made.kernel("nccl", 10, duration, message=message)
            traces.append(made.trace())
        found, _ = find_messages(traces)
        assert found == [(Point("send", "forward", "fp32", Sizes(nbytes=40, ranks=2, nodes=1)), 8, True)]

    def test_messages_without_size_are_counted(self) -> None:
        """Custom communication says neither bytes nor ranks."""
        made = one_step(100, devices=(GPU,))
        made.kernel("dispatch", 10, 30, message=a_message("dispatch", elements=0, ranks=()))
        assert find_messages([made.trace()]) == ([], {"dispatch": 1})


class TestShares:
    """Iterations by what they are spent on."""

    def test_a_device_computes_first_then_sends(self) -> None:
        """40 ns of computation of which 10 overlap, 20 exposed communication, 30 hidden, the rest idle."""
        made = one_step(100, devices=(GPU,))
        made.kernel("a", 0, 20)
        made.kernel("b", 10, 20)
        message = a_message("all_reduce", elements=8, ranks=(0, 1))
        made.kernel("nccl", 10, 20, on=SENDING, message=message)
        made.kernel("nccl", 40, 20, on=SENDING, message=message)
        trace = made.trace()
        _, exposed, hidden, idle = shares(trace, iterations(trace)[0])
        assert sorted(exposed.tolist()) == [0, 10, 20, 20]
        assert hidden.sum() == 20
        assert idle == 50
        assert exposed.sum() + idle == 100

    def test_a_thread_sends_in_the_background(self) -> None:
        """Its operators count without those inside of them; what is sent meanwhile is hidden."""
        made = a_linear_step()
        message = a_message("all_reduce", elements=8, ranks=(0, 1))
        made.add(Category.ANNOTATION, "gloo:all_reduce", 60, 20, on=AUTOGRAD, message=message)
        trace = made.trace()
        _, exposed, hidden, idle = shares(trace, iterations(trace)[0])
        assert int(exposed.sum()) + idle == 100
        assert int(hidden.sum()) == 13
        assert idle == 100 - (20 + 43 + 10) - 7
