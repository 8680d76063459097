"""Small transformers: what is measured is what the planner costs, and what a comparison says of both."""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from benchmarks.small_transformers import composition
from benchmarks.small_transformers.configurations import Configuration, configurations, job_of, weight_shapes
from benchmarks.small_transformers.measure import COLUMNS, Step, read_steps
from benchmarks.small_transformers.transformer import Training, random_batch
from costmodel.errors import SpecError
from costmodel.models.flops import forward_attention_flops, forward_matmul_flops, parameters
from planner.jobs.problem import load
from planner.measure.sample.samples import Machine, Point, Sample, Sizes, Timing
from tests.cases import in_one_case

T = TypeVar("T")

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the extra 'sample' is not installed"
)

ANY = "h100-80gb-sxm"

DENSE = Configuration(
    name="dense",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    ffn_hidden_size=48,
    vocab_size=64,
    sequence_length=16,
    mbs=2,
)
EXPERTS = replace(DENSE, name="experts", num_experts=4, top_k=2)

HERE = Machine(device="a processor", driver="", software="torch, 1 threads")


def sample(seconds: float, operator: str = "adam", **sizes: int) -> Sample:
    """A row of a table."""
    point = Point(operator=operator, pass_="forward", dtype="fp32", sizes=Sizes(**sizes))
    return Sample(point=point, timing=Timing(seconds=seconds, spread=0.0, repeats=3), machine=HERE)


def step(seconds: float, spread: float = 0.02) -> Step:
    """A measured step."""
    return Step(seconds=seconds, spread=spread, processor_seconds=seconds / 2, repeats=9)


class TestConfigurations:
    def test_they_cover_what_they_should(self):
        """At least 28 models: dense and with experts, with and without recomputation, of one rank and two."""
        every = configurations()

        assert len(every) >= 28
        assert {one.dp for one in every} == {1, 2}
        assert {one.recompute for one in every} == {"none", "full"}
        assert {one.num_experts for one in every} == {0, 4, 8}
        assert {one.num_microbatches for one in every} >= {1, 2, 4}

    @pytest.mark.slow
    def test_no_operator_of_the_sampled_models_is_one_of_the_measured_steps(self):
        """A prediction from samples has seen no size of what it predicts."""
        assert not set(composition.points_of(configurations())) & set(composition.points_of(configurations("sampled")))

    @pytest.mark.slow
    @in_one_case("one", [*configurations(), *configurations("sampled")], ids=lambda one: one.name)
    def test_each_is_a_job_of_the_planner_with_as_many_parameters(self, one):
        """Its step has a price, too."""
        assert parameters(load(job_of(one, ANY)).facts.model) == one.num_parameters
        assert composition.planned(one, ANY, precision="bf16") > 0

    def test_parameters_are_those_counted_by_hand(self):
        """
        Ends 2 x 64 x 32, last norm 32; a layer: norms 2 x 32, qkv 64 x 32, output 32 x 32, up 96 x 32, down 32 x 48.

        4096 + 32 + 2 (64 + 2048 + 1024 + 3072 + 1536) = 19616.
        """
        assert DENSE.num_parameters == 19616

    def test_experts_need_a_choice(self, tmp_path):
        """Experts without a number of them for each token are refused by name."""
        path = tmp_path / "some.yaml"
        entry = {name: getattr(DENSE, name) for name in ("name", "num_layers", "hidden_size", "num_heads")}
        entry |= {name: getattr(DENSE, name) for name in ("num_kv_heads", "ffn_hidden_size", "vocab_size")}
        path.write_text(f"measured: [{entry | {'sequence_length': 16, 'mbs': 1, 'num_experts': 4}}]", encoding="utf-8")

        with pytest.raises(SpecError, match=r"dense\.top_k"):
            configurations(path=path)


@needs_torch
class TestTransformer:
    @pytest.mark.parametrize("one", [DENSE, EXPERTS], ids=lambda one: one.name)
    def test_flops_are_those_that_the_planner_counts(self, one):
        """Matmuls and all scores of a forward pass, by torch's own counter."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        def grouped(rows, weights, *_, **__):  # which torch's counter does not know
            return 2 * rows[0] * rows[1] * weights[2]

        training = Training(one)
        known = {torch.ops.aten._grouped_mm: grouped}
        with FlopCounterMode(display=False, custom_mapping=known) as counter, sdpa_kernel([SDPBackend.MATH]):
            training.loss(*training.batch[0])
        model = load(job_of(one, ANY)).facts.model
        scores = one.mbs * forward_attention_flops(model, sequence_length=one.sequence_length, attention="full")

        assert counter.get_total_flops() == forward_matmul_flops(model, tokens=one.rows) + scores

    @pytest.mark.parametrize("one", [DENSE, EXPERTS], ids=lambda one: one.name)
    def test_every_weight_has_a_gradient_that_recomputation_does_not_change(self, one):
        """Bit for bit."""
        import torch

        kept, again = Training(one), Training(replace(one, recompute="full"))
        assert kept.gradients() == again.gradients()
        for name in weight_shapes(one):
            assert kept.weights[name].grad.abs().sum() > 0
            assert torch.equal(kept.weights[name].grad, again.weights[name].grad)

    def test_causal_tokens_see_nothing_behind_them(self):
        """Changing the last token changes no loss but its own: the gradient of earlier rows' logits stays."""
        import torch

        one = replace(DENSE, mbs=1)
        training = Training(one)
        tokens, _ = training.batch[0]
        others = tokens.clone()
        others[-1] = (others[-1] + 1) % one.vocab_size
        first, second = (training.logits(each) for each in (tokens, others))

        assert torch.equal(first[:-1], second[:-1])
        assert not torch.equal(first[-1], second[-1])

    def test_micro_batches_add_up_to_a_larger_one(self):
        """Two of one sequence have the gradients of one of two."""
        import torch

        whole, parts = Training(DENSE), Training(replace(DENSE, mbs=1, num_microbatches=2))
        tokens, targets = whole.batch[0]
        half = DENSE.sequence_length
        parts.batch = [(tokens[:half], targets[:half]), (tokens[half:], targets[half:])]
        whole.gradients(), parts.gradients()

        for name in weight_shapes(DENSE):
            assert torch.allclose(whole.weights[name].grad, parts.weights[name].grad, atol=1e-6)

    def test_two_ranks_have_the_gradients_of_one_with_both_batches(self, tmp_path):
        """Over gloo; one rank has the batches of both as micro-batches."""
        import torch

        by_rank = on_two_ranks(gradients_of_a_rank, str(tmp_path / "store"), replace(DENSE, dp=2))
        alone = Training(replace(DENSE, num_microbatches=2))
        alone.gradients()

        for found in by_rank:
            for name, gradient in found.items():
                assert torch.allclose(alone.weights[name].grad, torch.tensor(gradient), atol=1e-6)

    def test_steps_train(self):
        """Ten steps on one batch make its loss smaller."""
        training = Training(DENSE)
        first = training.gradients()
        for _ in range(10):
            training.step()

        assert training.gradients() < first


def on_two_ranks(function: Callable[..., T], *given: object) -> list[T]:
    """Call a function with each rank, in processes forked from one that has imported torch once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "torch.nn.parallel", __name__])
    with context.Pool(2) as pool:
        return pool.starmap(function, [(rank, *given) for rank in (0, 1)], chunksize=1)


def gradients_of_a_rank(rank: int, store: str, one: Configuration) -> dict[str, list]:
    """Its gradients after the sum over ranks, as numbers, which processes can hand over."""
    from torch import distributed

    distributed.init_process_group("gloo", rank=rank, world_size=2, store=distributed.FileStore(store, 2))
    training = Training(one, rank=rank)
    training.gradients()
    distributed.destroy_process_group()
    return {name: weight.grad.tolist() for name, weight in training.weights.items()}


class TestComposition:
    def test_a_dense_step_has_each_operator_as_often_as_layers_and_micro_batches_say(self):
        """Two layers, three micro-batches: six times qkv, twelve norms, three heads; its gradients are two matmuls."""
        one = replace(DENSE, num_microbatches=3)
        times = {(part.operator, part.pass_, part.point.pass_): part.times for part in composition.parts_of(one)}

        assert times["qkv", "forward", "forward"] == times["qkv", "backward", "dgrad"] == 6
        assert times["norms", "backward", "backward"] == 12
        assert times["head", "backward", "wgrad"] == 3
        assert times["optimizer", "forward", "forward"] == 1

    def test_gradients_of_further_micro_batches_are_added_and_those_of_ranks_summed(self):
        """Two sums of all 19,616 gradients for three micro-batches; one copy and one all-reduce of 4 bytes each."""
        parts = {part.point.operator: part for part in composition.parts_of(replace(DENSE, num_microbatches=3, dp=2))}
        (added,) = [
            part
            for part in composition.parts_of(replace(DENSE, num_microbatches=3))
            if part.operator == composition.WEIGHT_GRADIENTS
        ]

        assert added.times == 2
        assert (added.point.sizes.rows or 0) * (added.point.sizes.width or 0) == 19616
        assert parts["copy"].point.sizes.nbytes == parts["all_reduce"].point.sizes.nbytes == 4 * 19616

    def test_recomputation_ends_with_what_the_backward_pass_reads(self):
        """The layer's last matmul and the sum behind it are not computed again, the one in the middle is."""
        again = {
            part.operator: part.times
            for part in composition.parts_of(replace(DENSE, recompute="full"))
            if part.pass_ == "recompute"
        }

        assert again["qkv"] == again["up"] == again["residuals"] == 2
        assert again["down"] == 0
        assert "head" not in again

    def test_unknown_operators_make_a_step_unknown(self):
        """NaN, not a step without them."""
        assert math.isnan(
            composition.composed(DENSE, composition.exactly([sample(1.0, n=DENSE.num_parameters)]), "fp32")
        )

    def test_few_samples_are_a_roofline(self):
        """Updates of 1 to 4 million parameters at 4 us per thousand: of 8 million 32 ms."""
        samples = [sample(4e-9 * number, n=number) for number in (1_000_000, 2_000_000, 4_000_000)]
        point = Point(operator="adam", pass_="forward", dtype="fp32", sizes=Sizes(n=8_000_000))

        assert composition.by_learning(samples)(point) == pytest.approx(0.032, rel=0.01)


class TestComparison:
    def test_errors_and_their_mean(self):
        """1.1 s for 1 s, 1.8 s for 2 s: +10 % and -10 %, in the mean 10 % without and 0 % with their signs."""
        other = replace(DENSE, name="other")
        steps = {"dense": step(1.0), "other": step(2.0, 0.04)}
        rows = composition.compared([DENSE, EXPERTS, other], steps, {"dense": 1.1, "experts": 9.0, "other": 1.8})

        assert [round(row.error, 9) for row in rows] == [0.1, -0.1]
        assert composition.mean_error(rows) == pytest.approx(0.1)
        last = list(composition.lines(rows))[-1]
        assert "mean error 10.0%" in last
        assert "spread by 3.0%" in last

    def test_nothing_measured_is_no_success(self):
        """A mean of nothing holds no limit."""
        assert math.isnan(composition.mean_error(composition.compared([DENSE], {}, {})))
        assert not composition.mean_error(()) <= 0.1


class TestTableOfSteps:
    def test_medians_of_all_rounds(self, tmp_path):
        """1, 2, 3, 4 and 10 s: 3 s, half of 4 - 2 over it."""
        path = tmp_path / "steps.csv"
        rows = [f"{number},dense,{seconds},0.5,here,torch" for number, seconds in enumerate((10, 1, 3, 2, 4))]
        path.write_text("\n".join((",".join(COLUMNS), *rows)), encoding="utf-8")

        assert read_steps(path) == {
            "dense": Step(seconds=3.0, spread=pytest.approx(1 / 3), processor_seconds=0.5, repeats=5)
        }

    @in_one_case("seconds", ["", "fast", "-1", "nan", "0"])
    def test_what_is_no_time_is_named_by_row_and_column(self, tmp_path, seconds):
        """As in the table of samples; another table is refused by its columns."""
        path = tmp_path / "steps.csv"
        for header, problem in ((COLUMNS, "row 2, seconds"), (("a", *COLUMNS[1:]), "lacks the columns round")):
            path.write_text(f"{','.join(header)}\n1,dense,{seconds},0.5,here,torch\n", encoding="utf-8")
            with pytest.raises(SpecError, match=problem):
                read_steps(path)


@needs_torch
def test_batches_of_ranks_are_different_parts_of_one():
    """Two ranks of two micro-batches draw four."""
    one = replace(DENSE, num_microbatches=2, dp=2)

    assert len(random_batch(one)) == 4
    first, second = (Training(one, rank=rank).batch for rank in (0, 1))
    assert (first[0][0] != second[0][0]).any()
