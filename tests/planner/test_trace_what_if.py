"""``planner trace what-if``: a recorded step after a change."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from benchmarks.traces.changed import CALLS
from benchmarks.traces.synthetic import Recipe, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from costmodel.errors import SpecError
from planner.cli import main
from planner.measure.traces.events import Category, Message
from planner.measure.traces.report.what_if import (
    read_changed_jobs,
    tensor_parallel_messages,
    tensor_parallel_nanoseconds,
    what_if,
    what_if_text,
)
from planner.measure.traces.structure import Phase, Role, parts
from planner.measure.traces.writing import write_trace
from tests.builders_operators import GPU, NODE, Recording, one_step
from tests.schemas import valid

JOB = """
model: {num_layers: 4, hidden_size: 1024, num_heads: 8, ffn_hidden_size: 4096, vocab_size: 32768}
cluster: {device: h100-80gb-sxm, num_devices: 8}
training: {global_batch_size: 4, sequence_length: 2048, tokens: 1.0e+9}
strategy: {tp: 1, cp: 1, pp: 2, dp: 1, ep: 1, mbs: 1, vpp: 1}
"""


def made(duration=None, **entries: object):
    """Traces of a job with four layers and operators, of one step by default."""
    given = {"num_layers": 4, "operators": True, "num_steps": 1, **entries}
    return make(Recipe(duration=duration or SteadyDurations(seed=4, calls=CALLS), **given)).traces


def write_first(folder, **entries: object):
    """A file of the first rank's trace."""
    path = folder / "rank0.json.gz"
    write_trace(made(**entries)[0], path)
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A file with a step of four layers and four micro-batches on one rank."""
    return write_first(tmp_path_factory.mktemp("traces"), num_microbatches=4, annotations=True)


@pytest.fixture(scope="module")
def batched(tmp_path_factory):
    """Both stages of a pipeline whose kernels send and receive in batches, of which the profiler says nothing."""
    folder, files = tmp_path_factory.mktemp("traces"), []
    for trace in made(num_microbatches=4, pp=2, annotations=True):
        names = tuple("ncclDevKernel_SendRecv" if name.startswith("nccl") else name for name in trace.names)
        silent = replace(trace, names=names, messages=(Message(operation="", library="nccl"),) * len(trace.messages))
        files.append(folder / f"rank{trace.rank}.json.gz")
        write_trace(silent, files[-1])
    return files


@pytest.fixture(scope="module")
def split_trace(tmp_path_factory):
    """The first of two tensor-parallel ranks."""
    return write_first(tmp_path_factory.mktemp("traces"), num_microbatches=4, tp=2, annotations=True)


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    """A file of the first of two replicas, which reduce gradients behind the backward pass."""
    folder = tmp_path_factory.mktemp("traces")
    return write_first(folder, num_microbatches=2, dp=2, overlap_gradients=False, num_steps=3)


@pytest.fixture(scope="module")
def unlike():
    """Traces of two replicas, of which the second one takes three times as long for every kernel that computes."""
    steady = SteadyDurations(seed=4, calls=CALLS)

    def duration(work):
        slow = work.rank == 1 and not work.ranks and not work.name.startswith("cuda")
        return steady(work) * (3 if slow else 1)

    return made(duration, num_microbatches=2, dp=2, num_steps=3)


def answer(capsys, *arguments: object) -> dict:
    """What the command prints as JSON."""
    assert main(["trace", "what-if", *map(str, arguments), "--format", "json"]) == 0
    return valid("trace-what-if", json.loads(capsys.readouterr().out))


class TestAnswers:
    """By the trace alone."""

    def test_nothing_changed_is_the_step(self, trace, capsys):
        """As it was recorded."""
        found = answer(capsys, trace)

        assert found["seconds"] == found["traced_seconds"] == found["replayed_seconds"]

    def test_twice_the_micro_batches_take_nearly_twice_as_long(self, trace, capsys):
        """All but the optimizer and the begin."""
        found = answer(capsys, trace, "microbatches=8")

        assert 1.9 < found["seconds"] / found["traced_seconds"] < 2.0

    def test_faster_kernels_and_more_layers_at_once(self, trace, capsys):
        """Eight layers of kernels that take no time are faster than four that do."""
        found = answer(capsys, trace, "layers=8", "--faster", "matmul|attention|norm|gelu=1000", "--cuda-graphs")

        assert found["seconds"] < found["traced_seconds"]

    def test_the_parts_are_the_step(self, trace, capsys):
        """In nanoseconds."""
        found = answer(capsys, trace, "layers=2")

        assert sum(found["after"]["0"].values()) == round(found["seconds"] * 1e9)

    def test_text(self, trace, capsys):
        """Recorded and changed, and the layout of both."""
        assert main(["trace", "what-if", str(trace), "layers=2"]) == 0

        out = capsys.readouterr().out
        assert "4 layers, pp 1, dp 1, 4 micro-batches; changed: 2 layers, pp 1, dp 1, 4 micro-batches" in out


def write_job(folder, **strategy: object):
    """The job as a file."""
    path = folder / "job.yaml"
    given = {"tp": 1, "cp": 1, "pp": 1, "dp": 1, "ep": 1, "mbs": 1, "vpp": 1, "sequence_parallel": False, **strategy}
    path.write_text(JOB.replace("strategy: {tp: 1, cp: 1, pp: 2, dp: 1, ep: 1, mbs: 1, vpp: 1}", f"strategy: {given}"))
    return path


class TestTensorParallel:
    """Ranks that layers are split over, by the job."""

    @pytest.mark.slow
    def test_one_rank_reduces_nothing(self, split_trace, tmp_path, capsys):
        """What two sum in each layer is gone."""
        found = answer(capsys, split_trace, "--job", write_job(tmp_path, tp=2), "tp=1")

        assert found["before"]["0"]["communication"] > 1_000_000
        assert found["after"]["0"]["communication"] == 0

    def test_two_ranks_sum_twice_in_each_layer_and_pass(self, trace, tmp_path, capsys):
        """Four layers, four micro-batches, two passes: 64 sums; one more behind the embedding, one before the head."""
        found = answer(capsys, trace, "--job", write_job(tmp_path), "tp=2", "sequence_parallel=false")

        planned = job_of(tmp_path / "job.yaml", ["tp=2", "sequence_parallel=false"])
        one = Message(operation="all_reduce", elements_in=1024 * 2048, elements_out=1024 * 2048, dtype="BFloat16")
        sums = found["after"]["0"]["communication"] / tensor_parallel_nanoseconds(*planned, one)
        assert sums == pytest.approx((2 * 4 * 2 + 2) * 4, rel=1e-4)

    def test_four_ranks_take_what_the_network_says_of_four(self, split_trace, tmp_path, capsys):
        """By its ratio to what it says of two; an all-reduce's bytes are the same."""
        job = write_job(tmp_path, tp=2)
        found = answer(capsys, split_trace, "--job", job, "tp=4")

        one = Message(operation="all_reduce", elements_in=1024 * 2048, elements_out=1024 * 2048, dtype="BFloat16")
        two, four = (tensor_parallel_nanoseconds(*job_of(job, given), one) for given in ([], ["tp=4"]))
        ratio = found["after"]["0"]["communication"] / found["before"]["0"]["communication"]
        assert ratio == pytest.approx(four / two, rel=1e-4)
        assert any("network model" in doubt for doubt in found["doubts"])


class TestJobs:
    """Other sizes, and layouts whose messages one rank does not show: the network model times them."""

    def test_half_as_many_micro_batches_of_twice_the_size(self, trace, tmp_path, capsys):
        """As much work, with half as many kernels, whose fixed part of at most 5 us is saved."""
        found = answer(capsys, trace, "--job", write_job(tmp_path), "mbs=2")

        assert 0.8 < found["seconds"] / found["traced_seconds"] < 1

    def test_a_model_whose_sizes_only_fit_together(self, trace, tmp_path, capsys):
        """1,020 channels are no multiple of 8 heads, but of 10: some 0.4 % fewer."""
        found = answer(capsys, trace, "--job", write_job(tmp_path), "model.hidden_size=1020", "model.num_heads=10")

        assert 0.99 < found["seconds"] / found["traced_seconds"] < 1

    def test_recomputation_repeats_the_collectives_of_the_forward_pass(self, tmp_path):
        """Two in each layer, and none of the backward pass."""
        given = tensor_parallel_messages(*job_of(write_job(tmp_path, tp=2, recompute="full"), []))

        assert given[Phase.RECOMPUTE, Role.LAYER] == given[Phase.FORWARD, Role.LAYER]
        assert len(given[Phase.RECOMPUTE, Role.LAYER]) == 2

    def test_two_stages_send_and_wait_for_each_other(self, trace, tmp_path, capsys):
        """Four micro-batches on two stages take five eighths of one rank's time; none of its computation is lost."""
        found = answer(capsys, trace, "--job", write_job(tmp_path), "pp=2")

        before, after = ([one["computation"] + one["overlapped"] for one in found[side].values()] for side in SIDES)
        assert sum(after) == pytest.approx(sum(before), rel=0.01)
        assert all(one["communication"] > 0 for one in found["after"].values())
        assert 5 / 8 < found["seconds"] / found["traced_seconds"] < 1.1 * 5 / 8

    @pytest.mark.parametrize(("dtype", "nbytes"), [("bf16", 2), ("fp32", 4)])
    def test_two_replicas_reduce_gradients(self, trace, tmp_path, capsys, dtype, nbytes):
        """
        Each sends the 16.8 million gradients of each of four layers once, over 450 GB/s of NVLink.

        Attention has 4 x 1024 x 1024 weights, the gated feed-forward 3 x 1024 x 4096.
        """
        job = write_job(tmp_path)
        job.write_text(f"{job.read_text()}settings: {{gradient_dtype: {dtype}}}\n")

        found = answer(capsys, trace, "--job", job, "dp=2")["after"]["0"]

        least = nbytes * (4 * 1024 * 1024 + 3 * 1024 * 4096) * 4 / 450
        assert least < found["communication"] + found["overlapped"] < 1.4 * least


SIDES = ("before", "after")


def job_of(path, assignments):
    """Facts and strategy of a job with some decisions."""
    plan = read_changed_jobs(path, assignments)[1].plan
    return plan.facts, plan.strategy


class TestDoubts:
    """What traces lack and how far their replay is off is said, as by the other commands."""

    def test_of_the_file(self, trace, tmp_path, capsys):
        """It ends early."""
        text = gzip.decompress(trace.read_bytes())
        broken = tmp_path / "broken.json"
        broken.write_bytes(text[: len(text) * 9 // 10])

        found = answer(capsys, broken)

        assert any(doubt.startswith("The file is broken") for doubt in found["doubts"])

    def test_of_ranks_without_a_trace(self, split_trace, capsys):
        """One of two was read."""
        assert any("1 of 2 ranks" in doubt for doubt in answer(capsys, split_trace)["doubts"])

    def test_of_the_replay(self):
        """A kernel that begins 500 ns late for no reason is replayed early: 800 of 1300 are left, which is refused."""
        recorded = one_step(1300, devices=(GPU,))
        for number in range(4):
            recorded.kernel("gemm", 100 + 100 * number + 500 * (number > 2), 100, call=10 + number, number=1 + number)
        recorded.add(Category.CALL, "cudaDeviceSynchronize", 20, 1200, correlation=9)

        with pytest.raises(SpecError, match=r"-38\.5% off the recording: more than 5% is not usable: 'gemm"):
            what_if((recorded.trace(),))
        found, _ = what_if((recorded.trace(),), anyway=True)

        assert not found.usable
        assert found.replayed_seconds < 0.9 * found.traced_seconds
        assert any("replay of the unchanged step is -" in doubt for doubt in found.doubts)


class TestSides:
    """The recorded step and the changed one, side by side."""

    def test_without_any_change_both_are_the_same(self, capsys):
        """
        A run that goes on is compared with one: in it each step takes the 700 ns of its kernel.

        The recorded one took 850, since the short kernel of the step before left the stream idle for its first 150.
        """
        recorded = Recording(devices=(GPU,))
        for number, (start, duration) in enumerate(((100, 100), (750, 700), (1500, 100))):
            recorded.step(600 * number, 600, number)
            recorded.kernel("gemm", start, duration, call=600 * number + 50, number=number)
        found, layouts = what_if([recorded.trace()], speedups=(("gemm", 1.0),))

        assert found.before == found.after
        assert found.after[0].total == 700
        assert found.seconds == pytest.approx(found.traced_seconds) == pytest.approx(850e-9)
        text = what_if_text(found, layouts)
        assert "+0.0%" in text
        assert "-0.0%" not in text


class TestReplicas:
    """A job of two replicas, of which the first one was recorded, without a word on the job."""

    def test_reductions_stay(self, replica, capsys):
        """Twice the layers have twice the gradients to reduce."""
        found = answer(capsys, replica, "layers=8")

        assert found["after"]["0"]["communication"] == 2 * found["before"]["0"]["communication"] > 0

    def test_text(self, replica, capsys):
        """The number of replicas, and nothing guessed: this optimizer goes layer by layer."""
        assert main(["trace", "what-if", str(replica), "layers=8"]) == 0

        out = capsys.readouterr().out
        assert "4 layers, pp 1, dp 2, 2 micro-batches; changed: 8 layers, pp 1, dp 2, 2 micro-batches" in out
        assert "Without a job" not in out


class TestUnlikeReplicas:
    """Two replicas, of which one is slow."""

    def test_the_slow_one_is_the_step(self, unlike):
        """The fast one waits for it: twice the layers take twice as long, but for embedding, head, launches."""
        found, _ = what_if(unlike, layers=8)
        alone, _ = what_if(unlike[1:], layers=8)

        assert found.seconds == pytest.approx(alone.seconds, rel=0.02)
        assert 1.6 * found.traced_seconds < found.seconds < 2 * found.traced_seconds

    def test_it_is_said(self, unlike):
        """Of both; nothing of a single one."""
        said = "The changed step is that of rank 1, which waits least"

        assert any(said in doubt for doubt in what_if(unlike, layers=8)[0].doubts)
        assert not any(said in doubt for doubt in what_if(unlike[1:], layers=8)[0].doubts)


def step_of_the_host():
    """Yield two iterations of an operator each, without a device."""
    for number in range(2):
        begin = {"ph": "X", "pid": 1, "tid": 1, "ts": 1000 * number}
        yield {**begin, "dur": 900, "cat": "user_annotation", "name": f"ProfilerStep#{number}"}
        yield {**begin, "ts": 1000 * number + 10, "dur": 800, "cat": "cpu_op", "name": "aten::mm"}


class TestRefusals:
    """Each says where, what was seen, what is allowed."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["pp=2"], "pass --job with the recorded job"),
            (["layer=8"], "did you mean 'layers'"),
            (["foo=3"], "foo: is no entry of a job"),
            (["layers=x"], "expected a whole number"),
            (["layers=0"], "expected a whole number"),
            (["--faster", "gemm"], "expected PATTERN=FACTOR"),
            (["--faster", "gemm=0"], "expected PATTERN=FACTOR"),
            (["--faster", "(=2"], "not a regular expression"),
            (["--faster", "no such kernel=2"], "no task has"),
            (["--iteration", "7"], "iteration"),
            (["--iteration", "x"], "expected a whole number"),
        ],
        ids=str,
    )
    def test_wrong_changes(self, trace, capsys, arguments, said):
        """Exit code 2."""
        assert main(["trace", "what-if", str(trace), *arguments]) == 2
        assert said.lower() in capsys.readouterr().err.lower()

    @pytest.mark.parametrize(
        ("assignment", "said"),
        [
            ("recompute=full", "is full, but none in the recorded job"),
            ("sharding=optimizer", "is optimizer, but none"),
            ("cp=2", "is 2, but 1"),
            ("training.precision=fp8", "is fp8, but not given"),
            ("cluster.device=a100-80gb-sxm", "is a100-80gb-sxm, but h100-80gb-sxm"),
            ("settings.fp8_param_gather=true", "settings.fp8_param_gather"),
            ("model.tied_embeddings=true", "neither a size"),
        ],
    )
    def test_what_no_changed_step_shows(self, trace, tmp_path, capsys, assignment, said):
        """It is refused, with what can be changed: a step that stays as it is would be no answer."""
        job = write_job(tmp_path)

        assert main(["trace", "what-if", str(trace), "--job", str(job), assignment]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert "A trace can be changed in layers and microbatches" in err

    @pytest.mark.parametrize(
        ("recorded", "assignments", "said"),
        [
            (
                {"tp": 2},
                ["tp=1"],
                "tp: is 2 in the recorded job, but the traces show no collectives of such a group. Pass",
            ),
            ({"tp": 2}, ["sequence_parallel=true"], "sequence_parallel: is true, but false in the recorded job"),
            ({}, ["pp=2", "vpp=2", "microbatches=3"], "microbatches: 1f1b has no order of 3 micro-batches on pp = 2"),
            ({}, ["pp=2", "schedule=zb_h1"], "schedule: is zb_h1; traces are changed to 1F1B and GPipe alone"),
        ],
    )
    def test_jobs_that_the_trace_does_not_fit(self, trace, tmp_path, capsys, recorded, assignments, said):
        """Named by their decision."""
        job = write_job(tmp_path, **recorded)
        job.write_text(f"{job.read_text()}search: {{framework_rules: false}}\n")

        assert main(["trace", "what-if", str(trace), "--job", str(job), *assignments]) == 2
        assert f"planner: {said}" in capsys.readouterr().err

    def test_a_pipeline_without_its_job(self):
        """Its messages say that it is one."""
        with pytest.raises(SpecError, match="--job: is needed: the traces are of a pipeline"):
            what_if(made(num_microbatches=4, pp=2, annotations=True), layers=8)

    def test_replicas_that_do_not_communicate(self, trace, tmp_path, capsys):
        """The job has two, of which the trace shows nothing."""
        job = write_job(tmp_path, dp=2)
        job.write_text(job.read_text().replace("global_batch_size: 4", "global_batch_size: 8"))

        doubts = answer(capsys, trace, "--job", job, "dp=4")["doubts"]

        assert "The job has dp = 2, but no communication of replicas was found in the traces." in doubts

    @pytest.mark.parametrize(
        ("device", "said"), [(False, "the traces have no device"), (True, "layers were not found in the traces")]
    )
    def test_collectives_without_a_place(self, tmp_path, device, said):
        """They are put on streams, into layers."""
        recorded = one_step(1000, devices=(GPU,) * device)
        recorded.operator("aten::mm", 10, 500, (2048, 1024), (1024, 1024))
        if device:
            recorded.kernel("gemm", 100, 800, call=30, number=1)

        with pytest.raises(SpecError, match=f"tp: cannot grow from 1: {said}"):
            what_if([recorded.trace()], read_changed_jobs(write_job(tmp_path), ["tp=2"]), anyway=True)

    def test_transfers_that_do_not_say_to_whom(self, batched, tmp_path, capsys):
        """Both stages are there, but nothing joins them: that is said, not that one were missing."""
        job = write_job(tmp_path, pp=2)

        assert main(["trace", "what-if", *map(str, batched), "--job", str(job), "microbatches=8"]) == 2
        assert "do not name the other rank" in capsys.readouterr().err

    def test_one_stage_is_not_taken_for_the_model(self, batched, capsys):
        """Kernels that send and receive may be a pipeline's: two layers of four were recorded."""
        assert main(["trace", "what-if", str(batched[0]), "layers=8"]) == 2
        assert "send and receive without recorded arguments" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("device", "asked", "said"), [(False, "addmm", "'aten::linear'."), (True, "aten::", "'sgemm<float>'.")]
    )
    def test_operators_inside_of_tasks_or_that_launch_them(self, device, asked, said):
        """On a CPU the outermost operators are tasks, with a device its kernels: others are named by these."""
        recorded = one_step(1000, devices=(GPU,) * device)
        recorded.operator("aten::linear", 10, 100)
        recorded.operator("aten::addmm", 20, 50)
        if device:
            recorded.kernel("void sgemm<float>", 100, 50, call=30, number=1)
            recorded.kernel("other", 200, 50, call=130, number=2)

        with pytest.raises(SpecError) as refused:
            what_if([recorded.trace()], speedups=((asked, 2.0),))

        assert str(refused.value).endswith(f"Operators with such names are part of these tasks, or launch them: {said}")

    def test_layers_that_were_compiled_together(self):
        """Four layers inside of one operator, the only task, which counts as one: the message contradicts nothing."""
        recorded = one_step(1000)
        recorded.operator("CompiledFunction", 10, 500, sequence=0)
        for layer in range(4):
            for place, name in enumerate(("aten::layer_norm", "aten::linear", "aten::scaled_dot_product_attention")):
                recorded.operator(name, 20 + 100 * layer + 20 * place, 10, sequence=3 * layer + place, forward_thread=0)
        recorded.operator(f"{NODE}CompiledFunctionBackward", 600, 300, sequence=0, forward_thread=1)
        recorded.operator("CompiledFunctionBackward", 605, 290, sequence=0, forward_thread=1)
        recorded.operator("aten::mm", 610, 200)

        with pytest.raises(SpecError, match="is 4, of which 1 have their own tasks: the others share theirs"):
            what_if([recorded.trace()], layers=8)

    def test_without_a_job_none_is_spoken_of(self):
        """Of two micro-batches the forward pass of one was recorded, as where a pipeline's passes overlap."""
        whole = made(num_microbatches=2)[0]
        found = parts(whole)
        one = replace(whole, events=whole.events[(found.phase != Phase.FORWARD) | (found.microbatch != 0)])

        with pytest.raises(SpecError, match="found in the traces") as error:
            what_if((one,), layers=8, anyway=True)
        assert "in a job" not in str(error.value)

    def test_other_sizes_without_recorded_ones(self, tmp_path, capsys):
        """Kernels alone say nothing of sizes: all would stay."""
        path = write_first(tmp_path, num_microbatches=4, annotations=True, operators=False)

        assert main(["trace", "what-if", str(path), "--job", str(write_job(tmp_path)), "mbs=2"]) == 2
        assert "has no recorded sizes" in capsys.readouterr().err

    def test_graphs_without_launches(self, tmp_path, capsys):
        """A trace of the host alone has nothing that a graph could hold."""
        path = tmp_path / "host.json"
        path.write_text(json.dumps({"traceEvents": [*step_of_the_host()]}))

        assert main(["trace", "what-if", str(path), "--cuda-graphs"]) == 2
        assert "--cuda-graphs: the traces have no launched kernels" in capsys.readouterr().err

    def test_no_trace(self, capsys):
        """Only changes."""
        assert main(["trace", "what-if", "layers=8"]) == 2
        assert "no file" in capsys.readouterr().err

    def test_a_job_that_was_not_recorded(self, trace, tmp_path, capsys):
        """The trace has one rank, the job two stages."""
        job = tmp_path / "job.yaml"
        job.write_text(JOB)

        assert main(["trace", "what-if", str(trace), "--job", str(job), "pp=4"]) == 2
        assert "stages of a pipeline" in capsys.readouterr().err
