"""The planner's step beside the traced one."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from costmodel.errors import SpecError
from costmodel.step.data_parallel import update_seconds
from costmodel.step.estimate import stages_of
from costmodel.strategy import Strategy
from costmodel.timing.sampled_source import size_of_operator
from costmodel.timing.source import operator_times
from costmodel.timing.work import KernelSize
from planner.cli import main
from planner.jobs.problem import load
from planner.measure.traces.events import Category, Device, Trace
from planner.measure.traces.reading import read_trace
from planner.measure.traces.report.compare import (
    COPIES,
    IDLE,
    KINDS,
    OPTIMIZER,
    OTHER,
    OTHER_JOB,
    compare_with_traces,
    device_doubt,
    group_of,
    kind_of,
    write_comparison_text,
)
from planner.measure.traces.writing import write_trace
from planner.report.section import PLAIN
from planner.results import Plan
from planner.uncertainty.intervals import strategy_operators
from tests.builders_cluster import a_device
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.builders_job import a_document
from tests.builders_operators import GPU, NODE, SENDING, Recording, a_message, one_step
from tests.builders_samples import a_sampled
from tests.schemas import valid

JOB: dict[str, Any] = a_document(
    "llama3-8b", "8xh100-80gb-sxm", batch=8, sequence=8192, tokens=1.0e9, strategy={"tp": 2, "dp": 4, "mbs": 1}
)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job with the strategy that was traced."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return path


def a_trace() -> Trace:
    """A step of 1 ms: the down projection, attention, something else, and two collectives."""
    made = one_step(1_000_000, devices=(GPU,))
    made.operator("aten::linear", 0, 1000, (8192, 7168), (4096, 7168), sequence=1)
    made.kernel("gemm", 10_000, 300_000, call=5, number=1)
    heads = (1, 16, 8192, 128), (1, 4, 8192, 128), (1, 4, 8192, 128), ()
    made.operator("aten::scaled_dot_product_attention", 2000, 1000, *heads, sequence=2)
    made.kernel("flash_fwd", 310_000, 200_000, call=2005, number=2)
    made.operator("aten::conv2d", 4000, 1000, (1, 8192, 4096))
    made.kernel("convolution", 510_000, 50_000, call=4005, number=3)
    tensor = a_message("all_reduce", elements=1000, ranks=(0, 1))
    made.kernel("nccl", 500_000, 100_000, on=SENDING, message=tensor)
    gradients = a_message("reduce_scatter", elements=1000, ranks=(0, 2, 4, 6), description="DATA_PARALLEL_GROUP")
    made.kernel("nccl", 700_000, 100_000, on=SENDING, message=gradients)
    return made.trace()


class TestParts:
    """Parts of both steps."""

    def test_they_sum_to_both_steps(self, job: Path) -> None:
        """The planner's to its estimate, the trace's to its iteration."""
        problem = load(job)
        found = compare_with_traces(problem, [a_trace()])
        assert found.predicted_seconds == pytest.approx(estimate(problem, {}).plan.step_seconds)
        assert found.traced_seconds == pytest.approx(1e-3)

    def test_operators_are_known_by_their_sizes(self, job: Path) -> None:
        """Kernels of the job's sizes are in its parts, others are not."""
        traced = {one.name: one.traced_seconds for one in compare_with_traces(load(job), [a_trace()]).parts}
        assert traced["feed-forward"] == pytest.approx(300e-6)
        assert traced["attention"] == pytest.approx(200e-6)
        assert traced[OTHER] == pytest.approx(50e-6)
        assert traced[IDLE] == pytest.approx(1e-3 - 690e-6)

    @pytest.mark.parametrize("shapes", [((64, 3, 224, 224),), ()])
    def test_a_trace_of_an_image_model_is_not_compared(
        self, job: Path, tmp_path: Path, capsys: Any, shapes: Any
    ) -> None:
        """A ResNet's step beside a language model's was 3,604 % off without a word; so it is without recorded sizes."""
        made = one_step(1_000_000, devices=(GPU,))
        made.operator("aten::conv2d", 0, 1000, *shapes)
        made.kernel("cudnn::convolve", 10_000, 300_000, call=5, number=1)
        trace = made.trace()
        found = compare_with_traces(load(job), [trace])
        assert found.is_other_job
        assert found.doubts[0].startswith("The trace is of another job: ")
        assert not any("Most of the difference comes from" in one for one in found.doubts)

        write_trace(trace, tmp_path / "trace.json")
        assert main(["trace", "compare", str(job), str(tmp_path / "trace.json")]) == 1
        assert "traced: not comparable, the trace is of another job" in " ".join(capsys.readouterr().out.split())

    def test_a_trace_of_a_multimodal_model_is_compared(self, job: Path) -> None:
        """A vision encoder beside the language model has convolutions, too."""
        assert OTHER_JOB not in compare_with_traces(load(job), [a_trace()]).doubts

    @pytest.mark.parametrize(("milliseconds", "is_other"), [(150, True), (400, False)])
    def test_a_step_that_no_device_is_fast_enough_for_is_of_another_job(
        self, job: Path, milliseconds: int, is_other: bool
    ) -> None:
        """Another language model's trace without sizes: 6 x 7.5e9 x 65,536 / 8 FLOPs take an H100's 1,979e12 0.19 s."""
        made = one_step(milliseconds * 1_000_000, devices=(H100,))
        made.operator("aten::linear", 0, 1000)
        made.kernel("gemm", 10_000, milliseconds * 900_000, call=5, number=1)
        found = compare_with_traces(load(job), [made.trace()])
        assert found.is_other_job == is_other
        assert found.doubts[0].startswith("The trace is of another job, or of a part of a step: h100") == is_other

    def test_communication_by_group_exposed_and_hidden(self, job: Path) -> None:
        """60 of the 100 us run beside computation; the group of two ranks is tensor-parallel."""
        found = {one.name: one for one in compare_with_traces(load(job), [a_trace()]).parts}
        assert found["tp communication"].traced_seconds == pytest.approx(40e-6)
        assert found["tp communication"].traced_hidden_seconds == pytest.approx(60e-6)
        assert found["dp communication"].traced_seconds == pytest.approx(100e-6)

    def test_sizes_that_the_job_has_not_are_a_doubt(self, job: Path) -> None:
        """Of another job, or another strategy."""
        made = one_step(100)
        made.operator("aten::linear", 0, 50, (8, 4), (16, 4))
        found = compare_with_traces(load(job), [made.trace()])
        assert {one.name: one.traced_seconds for one in found.parts}[OTHER] == pytest.approx(50e-9)
        assert any("1 of 1 traced operators" in sentence for sentence in found.doubts)

    def test_every_operator_of_a_job_has_a_kind(self, job: Path) -> None:
        """Nothing that the cost model knows is in 'other'."""
        plan = estimate(load(job), {}).plan
        kinds = {kind_of(operator.name) for operator, _ in strategy_operators(plan.facts, plan.strategy)}
        assert OTHER not in kinds
        assert {"feed-forward", "attention", "embedding", "head and loss"} <= kinds <= set(KINDS)

    @pytest.mark.parametrize(
        ("operation", "ranks", "description", "group"),
        [
            ("all_reduce", (0, 1), "", "tp"),
            ("all_gather", (0, 2, 4, 6), "", "dp"),
            ("send", (0, 1), "", "pp"),
            ("dispatch", (), "", "ep"),
            ("all_reduce", (0, 1), "TENSOR_MODEL_PARALLEL_GROUP", "tp"),
            ("all_gather", (0, 1), "mesh_dp_shard", "dp"),
            ("all_reduce", (0, 1, 2), "", ""),
        ],
    )
    def test_groups(self, operation: str, ranks: tuple[int, ...], description: str, group: str, job: Path) -> None:
        """By description, by what is sent, by the degree that fits."""
        strategy: Strategy = estimate(load(job), {}).plan.strategy
        message = a_message(operation, elements=8, ranks=ranks, description=description)
        assert group_of(message, strategy) == group


PIPELINE: dict[str, Any] = {
    "model": {
        "name": "small",
        "num_layers": 6,
        "hidden_size": 4096,
        "num_heads": 32,
        "num_kv_heads": 32,
        "vocab_size": 32000,
        "ffn_hidden_size": 11008,
    },
    "cluster": {
        "device": "h100-80gb-sxm",
        "framework": {"base": "torchtitan-0.3", "behaviour": {"kernels": {"fused_projections": True}}},
    },
    "training": {"global_batch_size": 4, "sequence_length": 4096, "tokens": 1.0e9},
    "settings": {"kernels": "eager"},
}
"""Every operator of an eager step has sizes that traces know, and is so large that no host is late."""

H100 = Device(name="NVIDIA H100 80GB HBM3", num_processors=132, memory_bytes=85_000_000_000)


def a_pipeline(pp: int) -> dict[str, Any]:
    """A job of so many stages; of six layers four stages have 1, 2, 2 and 1."""
    strategy = {"pp": pp, "dp": 1, "tp": 1, "mbs": 1, "sharding": "none", "sequence_parallel": False}
    return PIPELINE | {"cluster": PIPELINE["cluster"] | {"num_devices": pp}, "strategy": strategy}


def called_as(size: KernelSize) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    """What PyTorch runs for an operator, one behind the other, and the sizes of the inputs."""
    one = {name: int(value) for name, value in size.sizes.items()}
    if size.kernel == "matmul":
        return [("aten::linear", ((one["m"], one["k"]), (one["n"], one["k"])))]
    if size.kernel == "attention":
        queries = (one["sequences"], one["heads"], one["queries"], one["qk_head_dim"])
        keys = (one["sequences"], one["kv_heads"], one["keys"], one["v_head_dim"])
        return [("aten::scaled_dot_product_attention", (queries, keys, keys, ()))]
    if size.kernel == "rotary":
        turned = tuple((one["rows"], heads, one["qk_head_dim"]) for heads in (one["heads"], 1))
        return [(f"aten::{name}", turned) for name in ("mul", "neg", "cat", "mul", "add")]
    if size.kernel == "embedding":
        return [("aten::embedding", ((one["n"], one["width"]), (one["rows"],)))]
    rows = (one["rows"], one["width"])
    if size.kernel == "swiglu":
        return [("aten::silu", (rows,)), ("aten::mul", (rows, rows))]
    names = {"rms_norm": "rms_norm", "cross_entropy": "cross_entropy_loss", "residual": "add"}
    return [(f"aten::{names[size.kernel]}", (rows, rows))]


def a_stage(plan: Plan, stage: int, layers: int) -> Trace:
    """
    One step of a pipeline rank that takes what the planner says of the job's operators.

    Each kernel is an operator in both passes of all micro-batches. Which ones a rank has is written here: so many
    layers, the embedding in front of all, the head behind them. The update follows; the host's constants are left idle,
    and the rest of the planner's step is a receive.
    """
    facts, found, made = plan.facts, plan.estimate, Recording(rank=stage, devices=(H100,))
    times = operator_times(facts.cluster.device, "bf16", num_devices=1, cuda_graphs=plan.strategy.cuda_graphs)
    free = start = number = 0
    for operator, _ in strategy_operators(facts, plan.strategy):
        is_end = operator.name in ("embedding", "final_norm", "head", "loss")
        there = stage == (0 if operator.name == "embedding" else plan.strategy.pp - 1) if is_end else layers
        seconds = float(times.forward_seconds(operator)) + float(times.backward_seconds(operator))
        for _ in range(int(there)):
            size = size_of_operator(operator)
            assert size is not None
            for name, sizes in called_as(size):
                made.operator(name, start, 90, *sizes, sequence=start)
                start += 100
            number += 1
            made.kernel("kernel", free, round(1e9 * found.num_microbatches * seconds), call=start - 50, number=number)
            free += made.rows[-1]["duration"]
    constants, ranks = facts.cluster.device.constants, stages_of(facts, plan.strategy)
    update = round(1e9 * update_seconds(facts, plan.strategy.decisions(), ranks)[stage])
    made.add(Category.ANNOTATION, "Optimizer.step#AdamW.step", start, 100)
    made.kernel("update", free, update, call=start + 10, number=number + 1)
    free += update
    step = round(1e9 * found.step_seconds)
    once = constants.step_seconds * (1 + np.log(plan.strategy.num_devices))  # the last of all hosts
    idle = round(1e9 * (once + found.num_microbatches * constants.microbatch_seconds))
    received = a_message("recv", elements=1000, ranks=(0, 1), peer=0)
    made.kernel("ncclRecv", free, step - idle - free, on=SENDING, message=received)
    made.step(0, step)
    return made.trace()


class TestStages:
    """The planner's side is that of the pipeline ranks that were traced."""

    @pytest.mark.parametrize(
        ("pp", "ranks"),
        [(1, (0,)), (2, (0,)), (2, (1,)), (2, (0, 1)), (4, (0,)), (4, (1,)), (4, (3,)), (4, (0, 1, 2, 3)), (4, (1, 3))],
    )
    def test_a_step_as_planned_differs_in_nothing(self, pp: int, ranks: tuple[int, ...]) -> None:
        """First, middle and last stage, alone and together: neither a part nor the step is off."""
        problem = load(a_pipeline(pp))
        plan, layers = estimate(problem, {}).plan, {1: [6], 2: [3, 3], 4: [1, 2, 2, 1]}[pp]
        found = compare_with_traces(problem, [a_stage(plan, one, layers[one]) for one in ranks])
        step = plan.step_seconds
        assert found.predicted_seconds == pytest.approx(step, rel=1e-12)
        assert found.traced_seconds == pytest.approx(step, abs=1e-9)
        assert {one.name: one.difference_seconds for one in found.parts} == pytest.approx(
            {one.name: 0.0 for one in found.parts}, abs=1e-6 * step
        )
        names = {one.name for one in found.parts}
        assert ("embedding" in names, "head and loss" in names) == (0 in ranks, pp - 1 in ranks)
        assert OTHER not in names
        assert [one.stage for one in found.ranks] == list(ranks)

    def test_ranks_of_a_stage_are_next_to_each_other(self) -> None:
        """With tp = 2 and pp = 2 ranks 2 and 3 are the last stage."""
        job = a_pipeline(2) | {"cluster": PIPELINE["cluster"] | {"num_devices": 4}}
        problem = load(job | {"strategy": job["strategy"] | {"tp": 2}})
        made = one_step(100, rank=3, devices=(H100,))
        assert compare_with_traces(problem, [made.trace()]).ranks[0].stage == 1

    @pytest.mark.parametrize(
        ("rank", "world_size", "problem"),
        [(None, None, "does not record its rank"), (3, 4, ""), (4, None, "does not fit the job's 2"), (1, 3, "1 of 3")],
    )
    def test_ranks_without_a_stage(self, rank: int | None, world_size: int | None, problem: str) -> None:
        """Of a pipeline nobody is taken for the first stage; a job of more replicas has as many stages."""
        made = one_step(100)
        trace = replace(made.trace(), rank=rank, world_size=world_size)
        if problem:
            with pytest.raises(SpecError, match=problem):
                compare_with_traces(load(a_pipeline(2)), [trace])
        else:
            found = compare_with_traces(load(a_pipeline(2)), [trace])
            assert found.ranks[0].stage == 1
            assert any("has 4 ranks, the strategy 2" in sentence for sentence in found.doubts)


class TestIterations:
    """Which iteration is compared."""

    def test_the_same_on_all_ranks(self) -> None:
        """Of median mean length: 20, 30 and 40 ns on one rank, 90, 30 and 31 on the other; the last one, 35.5."""
        traces = []
        for rank, lengths in enumerate([(20, 30, 40), (90, 30, 31)]):
            made, start = Recording(rank=rank, devices=(H100,)), 0
            for number, length in enumerate(lengths):
                made.step(start, length, number)
                start += length
            traces.append(made.trace())
        found = compare_with_traces(load(a_pipeline(2)), traces)
        assert [one.iteration for one in found.ranks] == ["ProfilerStep#2", "ProfilerStep#2"]
        assert found.traced_seconds == pytest.approx(35.5e-9)

    def test_one_in_which_the_file_ends_is_left_out(self, job: Path) -> None:
        """And said; of several sentences on a file none is lost."""
        made = Recording(devices=(H100,))
        made.step(0, 100, 1)
        made.step(100, 50, 2)
        cut = replace(made.trace(), whole_until=140, doubts=("The file is broken: ...",))
        found = compare_with_traces(load(job), [cut])
        assert found.ranks[0].iteration == "ProfilerStep#1"
        assert "The file is broken: ..." in found.doubts
        assert any("ends inside of ProfilerStep#2" in sentence for sentence in found.doubts)

    def test_none_that_takes_time(self, job: Path) -> None:
        """All events are taken as without duration: nothing is divided by that."""
        made = one_step(0)
        with pytest.raises(SpecError, match="has no iteration that takes any time"):
            compare_with_traces(load(job), [made.trace()])

    def test_none_that_is_whole(self, job: Path) -> None:
        """Its only iteration is cut: there is nothing to compare."""
        made = one_step(100)
        with pytest.raises(SpecError, match="ends inside of ProfilerStep#1"):
            compare_with_traces(load(job), [replace(made.trace(), whole_until=60)])

    def test_a_broken_file_says_up_to_where_it_is_whole(self, job: Path, tmp_path: Path) -> None:
        """Two steps of 1 ms, the text cut off behind the first operator of the second one."""
        made = Recording(devices=(H100,))
        for number in range(2):
            made.step(1_000_000 * number, 1_000_000, number)
            made.operator("aten::linear", 1_000_000 * number + 10_000, 500_000, (8, 4), (16, 4))
        made.operator("aten::add", 1_900_000, 1_000, (8, 4), (8, 4))
        whole = tmp_path / "whole.json"
        write_trace(made.trace(), whole)
        text = whole.read_text()
        broken = tmp_path / "broken.json"
        broken.write_text(text[: text.index('"aten::add"')])
        wrong_check = tmp_path / "check.json.gz"
        wrong_check.write_bytes(gzip.compress(text.encode())[:-8] + bytes(8))
        assert read_trace(wrong_check).whole_until is None
        assert read_trace(whole).whole_until is None
        assert read_trace(broken).whole_until == 1_010_000
        assert [one.iteration for one in compare_with_traces(load(job), [read_trace(broken)]).ranks] == [
            "ProfilerStep#0"
        ]


class TestDoubts:
    """What the reader has to know."""

    @pytest.mark.parametrize(
        ("device", "traced", "is_said"),
        [
            ("h100-80gb-sxm", H100, False),
            ("h800", H100, True),
            (
                "a100-80gb-sxm",
                Device(name="NVIDIA A100-SXM4-40GB", num_processors=108, memory_bytes=42_297_524_224),
                True,
            ),
            ("h100-80gb-sxm", Device(name="", num_processors=0, memory_bytes=0), False),
            ("h100-80gb-sxm", None, True),
        ],
    )
    def test_another_device(self, device: str, traced: Device | None, is_said: bool) -> None:
        """By names, processors and memory; a trace of a thread is of no GPU."""
        made = one_step(100, devices=(traced,) if traced else ())
        if traced:
            made.kernel("gemm", 10, 20)
        found = compare_with_traces(load(JOB | {"cluster": {"device": device, "num_devices": 8}}), [made.trace()])
        assert any("The device differs" in sentence for sentence in found.doubts) == is_said

    def test_most_of_the_difference_is_the_device(self) -> None:
        """Operators of the job's sizes, on an H100 where the job has A100."""
        made = one_step(2_000_000_000, devices=(H100,))
        made.operator("aten::linear", 0, 1000, (8192, 7168), (4096, 7168), sequence=1)
        made.kernel("gemm", 10_000, 1_900_000_000, call=5, number=1)
        job = load(JOB | {"cluster": {"device": "a100-80gb-sxm", "num_devices": 8}})
        found = compare_with_traces(job, [made.trace()])
        assert any(
            "The device differs" in doubt and doubt.endswith("Most of the difference comes from that.")
            for doubt in found.doubts
        )

    def test_ranks_and_stages_are_named(self) -> None:
        """A rank that was not recorded; two stages, whose iterations have no common name."""
        alone = compare_with_traces(load(JOB), [replace(a_trace(), rank=None)])
        assert "one, whose number was not recorded; both columns are of it" in write_comparison_text(alone, PLAIN)
        made = [Recording(rank=rank, devices=(H100,)) for rank in (0, 1)]
        for rank, one in enumerate(made):
            for number in range(3):
                one.step(1000 * number, 1000, number + 10 * rank)
                one.kernel("gemm", 1000 * number + 100, 100 + 100 * number, number=number + 1)
        both = compare_with_traces(load(a_pipeline(2)), [one.trace() for one in made])
        assert "0, 1, on pipeline stages 0, 1 of 0 to 1; both columns are means over them" in write_comparison_text(
            both, PLAIN
        )
        assert [one.iteration for one in both.ranks] == ["ProfilerStep#1", "ProfilerStep#11"]

    def test_host_processors_against_a_gpu(self) -> None:
        """A device learned from samples of a thread is none that kernels ran on."""
        samples = replace(a_sampled(), machine="host processors, profiler trace")
        plain = a_device(name="core", memory_bytes=85e9)
        device = replace(plain, calibration=replace(plain.calibration, samples=samples))
        made, thread = Recording(devices=(H100,)), Recording()
        made.kernel("gemm", 10, 20)
        thread.operator("aten::add", 10, 20)
        assert "the job is of core" in device_doubt([made.trace()], device)
        assert device_doubt([thread.trace()], device) == ""

    def test_routed_rows_are_no_other_job(self) -> None:
        """A router sends 32,000 rows where the planner deals 32,768: their kernel is the experts' all the same."""
        job = a_document(
            {"base": "qwen3-30b-a3b", "num_layers": 4},
            "8xh100-80gb-sxm",
            batch=8,
            sequence=4096,
            tokens=1.0e9,
            strategy={"dp": 8, "ep": 8, "mbs": 1},
        )
        made = one_step(1000, devices=(H100,))
        made.operator("aten::_grouped_mm", 10, 100, (32000, 2048), (16, 2048, 1536))
        made.kernel("gemm", 20, 70, call=15, number=1)
        found = compare_with_traces(load(job), [made.trace()])
        traced = {one.name: one.traced_seconds for one in found.parts}
        assert traced["experts"] == pytest.approx(70e-9)
        assert any("1 of 1 traced operators are assigned to MoE" in sentence for sentence in found.doubts)
        assert not any("same job" in sentence for sentence in found.doubts)

    def test_another_number_of_layers(self, job: Path) -> None:
        """Three named layers in one pass are not 32 in each of two micro-batches."""
        made = one_step(1000)
        made.add(Category.ANNOTATION, "forward", 10, 400)
        for number in range(3):
            made.add(Category.ANNOTATION, f"layer {number}", 20 + 100 * number, 90)
            made.operator("aten::linear", 25 + 100 * number, 80, (8, 4), (16, 4))
        found = compare_with_traces(load(job), [made.trace()])
        assert any("shows 3 x 1 layers" in sentence and "has 32 x 2" in sentence for sentence in found.doubts)

    def test_sentences_of_one_rank_say_so(self) -> None:
        """Others lack it."""
        traces = []
        for rank, doubts in enumerate([(), ("3 events were taken as without duration.",)]):
            made = one_step(100, rank=rank, devices=(H100,))
            traces.append(replace(made.trace(), doubts=doubts))
        found = compare_with_traces(load(a_pipeline(2)), traces)
        assert "Rank 1: 3 events were taken as without duration." in found.doubts

    def test_copies_of_the_host_are_named(self, job: Path) -> None:
        """Data for the next step; copies on the device are of the kernels that ask for them."""
        made = one_step(1000, devices=(H100,))
        made.add(Category.COPY, "Memcpy HtoD (Pinned -> Device)", 100, 30, on=SENDING)
        parts = {one.name: one.traced_seconds for one in compare_with_traces(load(job), [made.trace()]).parts}
        assert parts[COPIES] == pytest.approx(30e-9)


class TestThreads:
    """Where threads compute."""

    def test_gradients_are_added_up_beside_the_update(self, job: Path) -> None:
        """The planner's line of the optimizer has both: 30 ns of autograd's node, 20 of the update."""
        made = one_step(100)
        made.operator(f"{NODE}torch::autograd::AccumulateGrad", 10, 30)
        made.operator("aten::add_", 20, 10, (8, 4), (8, 4))
        made.operator("aten::_fused_adamw_", 50, 20)
        parts = {one.name: one.traced_seconds for one in compare_with_traces(load(job), [made.trace()]).parts}
        assert parts[OPTIMIZER] == pytest.approx(50e-9)

    def test_operators_that_send_are_communication(self) -> None:
        """What a thread hands to its library, 15 ns, is of the pipeline, not of what nobody knows."""
        made = one_step(100)
        made.operator("c10d::send", 10, 15)
        found = compare_with_traces(load(a_pipeline(2)), [made.trace()])
        parts = {one.name: one.traced_seconds for one in found.parts}
        assert parts["pp communication and bubble"] == pytest.approx(15e-9)
        assert OTHER not in parts


class TestCommand:
    """``planner trace compare``."""

    def test_text_and_json(self, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A line for each part; the same as data; exit code 1, as a millisecond is no step of the job."""
        path = tmp_path / "rank0.json"
        write_trace(a_trace(), path)
        assert main(["trace", "compare", str(job), str(path)]) == 1
        text = capsys.readouterr().out
        assert "They differ most in " in text
        assert "0; both columns are of it" in text
        assert OPTIMIZER in text
        assert main(["trace", "compare", str(job), str(path), "--format", "json"]) == 1
        document = valid("trace-compare", json.loads(capsys.readouterr().out))
        parts = document["parts"]
        assert sum(one["traced_seconds"] for one in parts) == pytest.approx(document["traced_seconds"])
        assert sum(one["predicted_seconds"] for one in parts) == pytest.approx(document["predicted_seconds"])

    def test_a_job_without_a_strategy(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Something ran: it is not guessed."""
        path, job = tmp_path / "rank0.json", tmp_path / "open.yaml"
        write_trace(a_trace(), path)
        job.write_text(yaml.safe_dump({name: value for name, value in JOB.items() if name != "strategy"}))

        assert main(["trace", "compare", str(job), str(path)]) == 2
        assert "strategy: is required but missing: the runs had one" in capsys.readouterr().err
