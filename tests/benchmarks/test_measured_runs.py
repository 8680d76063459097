"""What is known about the published runs themselves."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from benchmarks.accuracy.metrics import FOLDER
from planner.jobs.run_jobs import Run, read

ROUNDING_SECONDS = 2e-6
"""The times have six digits behind the point, or six digits in all."""

PEAK_FLOPS, PEAK_FLOPS_WITHOUT_TENSOR_CORES, BYTES_PER_SECOND = 312e12, 78e12, 2039e9
"""Of an A100 80 GB in FP16 (NVIDIA's data sheet and white paper)."""

BEST_MATMUL_FLOPS = 271e12
"""The best published matmul of an A100 (ml-engineering)."""

LOGIT_BYTES = 52
"""What Megatron-LM's loss reads and writes per logit (``costmodel/lowering/embedding.py``)."""

NARROW_LOGIT_BYTES = 20
"""The same on 16-bit logits (``costmodel/lowering/framework.py``)."""


@pytest.fixture(scope="module")
def vtrain_on_one_node() -> list[Run]:
    """What the source calls measured on one node."""
    runs = [one for one in read(FOLDER / "runs.csv") if isinstance(one, Run)]
    return [run for run in runs if run.id.startswith("vtrain-single") and run.step_seconds is not None]


def test_vtrain_on_one_node_is_composed(vtrain_on_one_node: list[Run]) -> None:
    """Each further micro-batch adds the same: nobody measures that; profiled parts were added."""
    groups: defaultdict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    for run in vtrain_on_one_node:
        tp, pp, mbs = layout(run)
        replicas = run.num_devices // (tp * pp)
        num_microbatches = batch(run) // (replicas * mbs)
        groups[run.model, tp, pp, replicas, mbs][num_microbatches] = run.step_seconds
    checked = 0
    for seconds in groups.values():
        points = sorted(seconds.items())
        slopes = [(after - before) / (more - fewer) for (fewer, before), (more, after) in pairwise(points)]
        for one, other in pairwise(slopes):
            assert one == pytest.approx(other, abs=ROUNDING_SECONDS)
            checked += 1
    assert checked > 50


def test_vtrain_on_one_node_was_not_recomputed(vtrain_on_one_node: list[Run]) -> None:
    """
    What a layer takes longer for being twice as wide is too short for four passes, and long enough for three.

    On one rank; the wide layer from two depths, the narrow one from a single depth, whose head is taken as long as
    without Tensor Cores: the shorter the head, the shorter the difference.
    """
    wide = sequence_seconds(vtrain_on_one_node, num_layers=16, hidden_size=2048)
    wide = (wide - sequence_seconds(vtrain_on_one_node, num_layers=12, hidden_size=2048)) / 4
    tokens, vocab = 1024, 50257
    head = 6 * tokens * vocab * 1024 / PEAK_FLOPS_WITHOUT_TENSOR_CORES + LOGIT_BYTES * tokens * vocab / BYTES_PER_SECOND
    narrow = (sequence_seconds(vtrain_on_one_node, num_layers=24, hidden_size=1024) - head) / 24
    flops = 24 * tokens * (2048**2 - 1024**2) + 4 * tokens**2 * (2048 - 1024)

    assert 4 * flops / (wide - narrow) > PEAK_FLOPS
    assert 3 * flops / (wide - narrow) < BEST_MATMUL_FLOPS


def test_vtrain_on_one_node_has_no_loss_in_single_precision(vtrain_on_one_node: list[Run]) -> None:
    """
    What two ranks take beyond their layers is too short for matmuls and a loss in FP32, both at the best rates.

    Layers from two depths; what a step takes once from micro-batches of 4, of which there are two numbers.
    """
    each = {}
    for num_layers in (12, 20):
        fewer, more = narrow_seconds(vtrain_on_one_node, num_layers=num_layers, mbs=4)
        (wide,) = narrow_seconds(vtrain_on_one_node, num_layers=num_layers, mbs=8)
        once = fewer - (more - fewer)
        each[num_layers] = (wide - once) / 2
    tokens, columns = 8 * 1024, 50432 // 2
    head = each[12] - 12 * (each[20] - each[12]) / 8
    matmuls = 6 * tokens * 1024 * columns / BEST_MATMUL_FLOPS

    assert head < matmuls + LOGIT_BYTES * tokens * columns / BYTES_PER_SECOND
    assert head > matmuls + NARROW_LOGIT_BYTES * tokens * columns / BYTES_PER_SECOND


def layout(run: Run) -> tuple[int, int, int]:
    """Tensor-parallel and pipeline ranks, and the micro-batch."""
    return run.get("strategy.tp"), run.get("strategy.pp"), run.get("strategy.mbs")


def batch(run: Run) -> int:
    """Sequences of a step."""
    return run.get("training.global_batch_size")


def narrow_seconds(runs: list[Run], *, num_layers: int, mbs: int) -> list[float]:
    """Steps 1,024 wide on two replicas of two ranks, the last ones twice as many sequences as those before."""
    found = [
        one
        for one in runs
        if one.model == f"gpt-l{num_layers}-h1024-a16-v50257" and (*layout(one), one.num_devices) == (2, 1, mbs, 4)
    ]
    return [run.step_seconds or 0.0 for run in sorted(found, key=batch)]


def sequence_seconds(runs: list[Run], *, num_layers: int, hidden_size: int) -> float:
    """Seconds per sequence of further micro-batches of 4 on one rank."""
    seconds = {
        batch(run) // run.num_devices: run.step_seconds
        for run in runs
        if run.model == f"gpt-l{num_layers}-h{hidden_size}-a16-v50257" and layout(run) == (1, 1, 4)
    }
    fewer, more = min(seconds), max(seconds)
    return (seconds[more] - seconds[fewer]) / (more - fewer)


def test_v_half_gains_from_longer_sequences_and_1f1b_does_not() -> None:
    """
    Layers of one width on as many ranks: what attention takes is not the same code's.

    1F1B has an overhead per micro-batch too, so that its sequences would have to gain as well.
    """
    seconds = {run.id: run.step_seconds for run in read(FOLDER / "runs.csv") if isinstance(run, Run)}

    def longer(job: str) -> float:
        return (seconds[f"vp-{job}-n16-s4096-vocab1-v32k"] or 0) / (seconds[f"vp-{job}-n16-s2048-vocab1-v32k"] or 1)

    assert longer("V-Half-7b") < 1.95
    assert longer("1F1B-10b") > 2.05
