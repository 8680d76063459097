"""Rows that contradict physics, their model or themselves: refused by id and column, and never fitted."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from benchmarks.accuracy.__main__ import main as accuracy
from costmodel import catalog
from planner.jobs.run_jobs import RejectedRow
from planner.measure.calibrate import advice
from planner.measure.runs.predictions import Prediction
from tests.builders_runs import a_file, results_of
from tests.planner.test_calibrate_command import FEW, command, runs_of

MIXTRAL = {"model": "mixtral-8x7b", "strategy.ep": "8", "cluster.framework": "megatron-bridge-26.06"}
GRAPHED = {"cluster.framework": "megatron-bridge-26.06", "strategy.cuda_graphs": "attn+moe_router"}

BAD = {
    # 128 x 8,192 tokens of 8.03 B parameters on 64 H100: 6 x 8.03e9 x 16,384 FLOPs are 0.8 s at 989 TFLOP/s.
    "faster than the roofline": ({"step_seconds": "0.7"}, "step_seconds: 0.7 s would use 1."),
    "more tokens than the roofline": (
        {"step_seconds": "", "tokens_per_second_per_device": "24000"},
        "tokens_per_second_per_device: 24000 would use 1.",
    ),
    "16 bits at the rate of 8": ({"step_seconds": "0.5", "training.precision": "bf16"}, "of the devices' peak in bf16"),
    "more memory than there is": (
        {"peak_memory_gib": "82"},
        "peak_memory_gib: 82 would be 1.03 of the memory of h100-80gb-sxm; allowed: up to 81.2 GiB.",
    ),
    # 70.6 B weights of 2 bytes are 131 GiB, a 64th of which is 2.05 GiB.
    "less memory than the weights": (
        {"model": "llama3-70b", "strategy.tp": "8", "step_seconds": "19", "peak_memory_gib": "1.9"},
        "peak_memory_gib: 1.9 is less than the weights alone, shared by all devices: 2.05.",
    ),
    "throughput against time": (
        {"tokens_per_second_per_device": "9000"},
        "tokens_per_second_per_device: 9000 does not",
    ),
    "FLOP/s against time": ({"tflops_per_device": "900"}, "tflops_per_device: 900 does not agree with step_seconds"),
    "FLOP/s far below time": ({"tflops_per_device": "200"}, "tflops_per_device: 200 does not agree"),
    "a batch that does not divide": (
        {"strategy.mbs": "3"},
        "strategy.mbs: is impossible with training.global_batch_size = 128, dp = 32, mbs = 3.",
    ),
    "heads that do not divide": (
        {"strategy.tp": "64"},
        "strategy.tp: is impossible with model = llama3-8b, tp = 64.",
    ),
    "experts of a dense model": ({"strategy.ep": "8"}, "strategy.ep: is impossible with model = llama3-8b, ep = 8"),
    "a dispatcher of a dense model": (
        {"strategy.token_dispatcher": "alltoall"},
        "strategy.token_dispatcher: 'alltoall' contradicts model = llama3-8b: it has no experts.",
    ),
    "a dispatcher of one rank": (
        {**MIXTRAL, "strategy.ep": "1", "strategy.token_dispatcher": "hybridep"},
        "strategy.token_dispatcher: 'hybridep' contradicts strategy.ep = 1: no token leaves its device.",
    ),
    "overlap of one rank's experts": (
        {**MIXTRAL, "strategy.ep": "1", "strategy.ep_overlap": "true"},
        "strategy.ep_overlap: true contradicts strategy.ep = 1",
    ),
    "exchanges of a dense model": (
        {"strategy.ep_overlap": "true"},
        "strategy.ep_overlap: true contradicts model = llama3-8b: it has no experts.",
    ),
    "processors for nothing": (
        {**MIXTRAL, "strategy.ep": "1", "settings.communication_sms": "16"},
        "settings.communication_sms: 16 contradicts strategy.ep = 1",
    ),
    "shared experts that there are not": (
        {**MIXTRAL, "settings.shared_expert_overlap": "true"},
        "settings.shared_expert_overlap: true contradicts model = mixtral-8x7b: it has no shared experts.",
    ),
    "8-bit weights of 16 bits": (
        {"settings.fp8_param_gather": "true"},
        "settings.fp8_param_gather: true contradicts training.precision = 'bf16'",
    ),
    "graphs of modules that there are not": (
        GRAPHED,
        "strategy.cuda_graphs: 'attn+moe_router' contradicts model = llama3-8b: it has no moe_router. It has: attn",
    ),
    "graphs of what is recomputed whole": (
        {"strategy.cuda_graphs": "attn", "strategy.recompute": "full"},
        "strategy.cuda_graphs: 'attn' contradicts strategy.recompute = 'full'",
    ),
    "virtual stages of one stage": ({"strategy.vpp": "4"}, "strategy.vpp: 4 contradicts strategy.pp = 1"),
    "masters offloaded where nothing is": (
        {"settings.offloaded_masters": "true", "strategy.optimizer_offload": "false"},
        "settings.offloaded_masters: true contradicts strategy.optimizer_offload = false",
    ),
    "8 bits that the device has not": ({"cluster.device": "a100-80gb-sxm", "training.precision": "fp8"}, "fp8"),
}
"""Cells over those of a good row of llama3-8b on 64 H100, and how its reason begins or what it says."""


@pytest.mark.parametrize(("cells", "reason"), BAD.values(), ids=BAD)
def test_a_bad_row_is_refused_by_its_column(tmp_path, cells, reason):
    """With what was seen and what is allowed; the rows around it are predicted."""
    first, bad, last = results_of(tmp_path, {"id": "first"}, {"id": "bad", **cells}, {"id": "last"})

    assert isinstance(first, Prediction)
    assert isinstance(last, Prediction)
    assert isinstance(bad, RejectedRow)
    assert (bad.id, bad.is_refused) == ("bad", True)
    assert reason in bad.reason


GOOD = {
    "slow": {"step_seconds": "20"},
    "near the roofline": {"step_seconds": "0.95"},
    "its own FLOP/s": {"tflops_per_device": "400"},
    "FLOP/s with recomputation": {"tflops_per_device": "540", "strategy.recompute": "full"},
    "all of the memory": {"peak_memory_gib": "79.6"},
    "an all-to-all of one rank": {
        **MIXTRAL,
        "strategy.ep": "1",
        "strategy.token_dispatcher": "alltoall",
        "step_seconds": "3",
    },
    "shared experts beside": {
        "model": "deepseek-v3",
        "cluster.device": "gb200",
        "strategy.pp": "8",
        "strategy.tp": "1",
        "strategy.ep": "8",
        "settings.shared_expert_overlap": "true",
        "cluster.framework": "megatron-bridge-26.06",
        "step_seconds": "10",
    },
}


@pytest.mark.parametrize("cells", GOOD.values(), ids=GOOD)
def test_what_is_odd_but_possible_is_predicted(tmp_path, cells):
    """Slow runs, full devices, FLOPs of another convention."""
    (row,) = results_of(tmp_path, cells)

    assert isinstance(row, Prediction), row


UNKNOWN = "megatron-core-9.9"

OF_THE_GOOD_ROW = {
    "cluster.num_devices": "64",
    "strategy.tp": "2",
    "strategy.recompute": "",
    "peak_memory_gib": "60",
    "step_seconds": "2.1",
}
"""Cells that the layouts of a calibration have otherwise."""


def bad_rows() -> list[dict[str, str]]:
    """All of them, each with the row's sentence as its id."""
    return [{"id": name, **cells} for name, (cells, _) in BAD.items()]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory) -> tuple[int, str]:
    """Exit code and report of a calibration on good runs, one of an unknown release, and every bad row."""
    folder, odd = tmp_path_factory.mktemp("calibrated"), {"id": "odd", "cluster.framework": UNKNOWN}
    rows = ({**OF_THE_GOOD_ROW, **row} for row in bad_rows())
    with (folder / "out.txt").open("w") as file, redirect_stdout(file), pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice, "MOST_CANDIDATES", 4)
        code = command(runs_of(folder, 0.60, odd, *rows, layouts=FEW), folder / "mine.yaml")
    return code, (folder / "out.txt").read_text()


@pytest.mark.slow
def test_nothing_is_fitted_to_bad_rows(calibrated):
    """``planner calibrate`` names each with its reason, and fits the good ones alone."""
    code, out = calibrated

    assert code == 1
    assert f"{len(FEW) + 1} runs of h100-80gb-sxm fitted" in out
    told = [line for line in out.splitlines() if line.startswith("  refused: ")]
    assert len(told) == len(BAD)
    for line, (name, (_, reason)) in zip(told, BAD.items(), strict=True):
        assert line.startswith(f"  refused: {name}: ")
        assert reason in line


@pytest.mark.slow
def test_doubts_of_rows_are_told_by_calibrate(calibrated):
    """A release that no file knows is fitted as its nearest relative, and counted among the doubts."""
    assert UNKNOWN not in catalog.framework_names()
    assert f"  1 doubtful: {UNKNOWN} is not known: costed as megatron-core-0.16, its nearest release" in calibrated[1]


def test_the_benchmark_refuses_them_by_name(tmp_path: Path, capsys):
    """``python -m benchmarks.accuracy``: the good row is predicted, each other one listed with its reason."""
    path = a_file(tmp_path, {}, *bad_rows())

    code = accuracy(["--runs", str(path), "--json", str(tmp_path / "out.json")])

    refused = {one["id"]: one["reason"] for one in json.loads((tmp_path / "out.json").read_text())["refusals"]}
    assert code == 1
    assert "predicted: 1" in capsys.readouterr().out
    assert [name for name, (_, reason) in BAD.items() if reason not in refused[name]] == []
