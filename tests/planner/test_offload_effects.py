"""Offloaded optimizer states: what they cost and free beside runs that differ in nothing else."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from planner import load, render
from planner.results import Plan
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.builders_job import a_document

DATA = Path(__file__).parent.parent / "data" / "optimizer_offload.csv"

RUNS = list(csv.DictReader(line for line in DATA.read_text(encoding="utf-8").splitlines() if line[0] != "#"))
"""The first one offloads nothing."""

JOB = a_document(
    "qwen3-30b-a3b",
    "16xh100-80gb-sxm",
    batch=8,
    sequence=4096,
    tokens=1e9,
    cluster={"framework": "megatron-bridge-26.06"},
)
LAYOUT = {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 1, "mbs": 1, "sequence_parallel": True, "sharding": "optimizer"}


def predicted(run: dict[str, str]) -> Plan:
    """What a run should have taken; its FP32 weights stay on the device, as the freed bytes say."""
    if not run["offloaded_states"]:
        return estimate(load(JOB), LAYOUT).plan
    settings = {
        "offloaded_states": float(run["offloaded_states"]),
        "offload_overlap": run["offload_overlap"] == "true",
        "offloaded_masters": False,
    }
    return estimate(load({**JOB, "settings": settings}), {**LAYOUT, "optimizer_offload": True}).plan


@pytest.mark.parametrize("run", RUNS[1:], ids=lambda run: f"{run['offloaded_states']} {run['offload_overlap']}")
def test_offloading_costs_what_was_measured(run):
    """Within 15 % of the seconds that a step takes longer, 0.9 to 3.2; nothing is fitted to them."""
    longer = predicted(run).step_seconds - predicted(RUNS[0]).step_seconds

    assert longer == pytest.approx(float(run["step_seconds"]) - float(RUNS[0]["step_seconds"]), rel=0.15)


@pytest.mark.parametrize("run", RUNS[1:], ids=lambda run: f"{run['offloaded_states']} {run['offload_overlap']}")
def test_offloading_frees_what_was_measured(run):
    """8 bytes of each of 1.9e9 parameters, 15.2 GB, or a quarter of them, within 6 %: fragments are not allocated."""
    before, after = (predicted(one).estimate.ranks[0].bytes_by_part["optimizer"] for one in (RUNS[0], run))

    freed = 1e9 * (float(RUNS[0]["allocated_gb"]) - float(run["allocated_gb"]))
    assert before - after == pytest.approx(freed, rel=0.06)


def test_a_report_says_what_crosses_the_port():
    """4 bytes of each of 1.9e9 gradients are 7.1 GiB, most with the final norm; else nothing crosses."""
    texts = [render(estimate(load(JOB), {**LAYOUT, "optimizer_offload": is_on})) for is_on in (True, False)]

    assert "A GPU copies 7.1 GiB to its host in a step, and as much back (rank 1)." in " ".join(texts[0].split())
    assert "to its host in a step" not in texts[1]


def test_a_host_without_enough_memory_is_named():
    """16 bytes of half of 1.9e9 parameters, 14.2 GiB of 8; the step is priced regardless."""
    cluster = {**JOB["cluster"], "host_memory_gib": 8}
    job = {**JOB, "cluster": cluster, "settings": {"offloaded_states": 0.5}}

    text = render(estimate(load(job), {**LAYOUT, "optimizer_offload": True}))

    assert "Offloaded activations and optimizer states fit in each GPU's share of the host memory." in text
    assert "6.2 GiB of it are missing on the fullest rank." in text
