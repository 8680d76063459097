"""The planner's step beside the recorded one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.strategy import Strategy
from costmodel.traces.events import Trace
from costmodel.traces.writing import write_trace
from planner.cli import main
from planner.jobs.problem import load
from planner.plan import estimate
from planner.traces.compare import IDLE, KINDS, OPTIMIZER, OTHER, compare_with_traces, group_of, kind_of
from planner.uncertainty.operators import strategy_operators
from tests.builders_operators import GPU, SENDING, Recording, a_message

JOB: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    "training": {"global_batch_size": 8, "sequence_length": 8192, "tokens": 1.0e9},
    "strategy": {"tp": 2, "dp": 4, "mbs": 1},
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job with the strategy that was recorded."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return path


def a_trace() -> Trace:
    """A step of 1 ms: the down projection, attention, something else, and two collectives."""
    made = Recording(devices=(GPU,))
    made.step(0, 1_000_000)
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

    def test_communication_by_group_exposed_and_hidden(self, job: Path) -> None:
        """60 of the 100 us run beside computation; the group of two ranks is tensor-parallel."""
        found = {one.name: one for one in compare_with_traces(load(job), [a_trace()]).parts}
        assert found["tp communication"].traced_seconds == pytest.approx(40e-6)
        assert found["tp communication"].traced_hidden_seconds == pytest.approx(60e-6)
        assert found["dp communication"].traced_seconds == pytest.approx(100e-6)

    def test_sizes_that_the_job_has_not_are_a_doubt(self, job: Path) -> None:
        """Of another job, or another strategy."""
        made = Recording()
        made.step(0, 100)
        made.operator("aten::linear", 0, 50, (8, 4), (16, 4))
        found = compare_with_traces(load(job), [made.trace()])
        assert {one.name: one.traced_seconds for one in found.parts}[OTHER] == pytest.approx(50e-9)
        assert any("1 of 1 recorded operators" in sentence for sentence in found.doubts)

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


class TestCommand:
    """``planner trace compare``."""

    def test_text_and_json(self, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A line for each part; the same as data."""
        path = tmp_path / "rank0.json"
        write_trace(a_trace(), path)
        assert main(["trace", "compare", str(job), str(path)]) == 0
        text = capsys.readouterr().out
        assert "Where they differ most: " in text
        assert OPTIMIZER in text
        assert main(["trace", "compare", str(job), str(path), "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        parts = document["parts"]
        assert sum(one["traced_seconds"] for one in parts) == pytest.approx(document["traced_seconds"])
        assert sum(one["predicted_seconds"] for one in parts) == pytest.approx(document["predicted_seconds"])
