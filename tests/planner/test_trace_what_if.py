"""``planner trace what-if``: a recorded step after a change."""

from __future__ import annotations

import json

import pytest

from benchmarks.traces.changed import CALLS
from benchmarks.traces.synthetic import Recipe, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from costmodel.traces.writing import write_trace
from planner.cli import main

JOB = """
model: {num_layers: 4, hidden_size: 1024, num_heads: 8, ffn_hidden_size: 4096, vocab_size: 32768}
cluster: {device: h100-80gb-sxm, num_devices: 8}
training: {global_batch_size: 4, sequence_length: 2048, tokens: 1.0e+9}
strategy: {tp: 1, cp: 1, pp: 2, dp: 1, ep: 1, mbs: 1, vpp: 1}
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A file with a step of four layers and four micro-batches on one rank."""
    durations = SteadyDurations(seed=4, calls=CALLS)
    recipe = Recipe(duration=durations, num_layers=4, num_microbatches=4, annotations=True, operators=True, num_steps=1)
    path = tmp_path_factory.mktemp("traces") / "rank0.json.gz"
    write_trace(make(recipe).traces[0], path)
    return path


def answer(capsys, *arguments: object) -> dict:
    """What the command prints as JSON."""
    assert main(["trace", "what-if", *map(str, arguments), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


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


class TestRefusals:
    """Each says where, what was seen, what is allowed."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["pp=2"], "--job says which job was recorded"),
            (["layer=8"], "did you mean 'layers'"),
            (["layers=x"], "expected a whole number"),
            (["layers=0"], "expected a whole number"),
            (["--faster", "gemm"], "expected PATTERN=FACTOR"),
            (["--faster", "gemm=0"], "expected PATTERN=FACTOR"),
            (["--faster", "(=2"], "no regular expression"),
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
