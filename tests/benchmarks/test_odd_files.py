"""Measured runs of other files: software, networks, systems and architectures that the project's own have not."""

from __future__ import annotations

import json

import pytest
import yaml

from benchmarks.accuracy.__main__ import FOLDER, main
from costmodel import catalog
from costmodel.strategy import Sharding
from planner.runs.facts import facts_of
from planner.runs.layouts import strategy_of
from planner.runs.predictions import Prediction
from planner.runs.software import SOFTWARE, software_of
from tests.benchmarks.test_accuracy import a_file, a_run, known, results_of

HEADER, *LINES = (FOLDER / "runs.csv").read_text(encoding="utf-8").splitlines()


def report_of(folder, lines, *arguments: str) -> dict:
    """What the command writes of some lines of the project's own file."""
    path, written = folder / "some.csv", folder / "some.json"
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    assert main(["--runs", str(path), "--json", str(written), *arguments]) == 0
    return json.loads(written.read_text())


def test_a_file_of_one_group(tmp_path):
    """Nothing is left to make an interval of; the rest is told."""
    report = report_of(tmp_path, LINES[:1])

    assert report["left_out"]["rows"] == 1
    assert report["left_out"]["coverage"] == {}


def test_a_row_that_was_changed_is_not_judged_by_what_was_predicted_for_another(tmp_path):
    """Its id is known, but not what it measured."""
    changed = LINES[0].replace(",fp8_current,", ",bf16,")

    assert changed != LINES[0]
    assert report_of(tmp_path, [changed, *LINES[1:2]])["left_out"]["rows"] == 1


@pytest.mark.parametrize(
    ("framework", "date", "stack"),
    [
        ("Megatron-LM", "2021-04", "bigscience-2021"),
        ("Megatron-LM", "2022-05", "megatron-lm-2022"),
        ("Megatron-LM (Megatron-Core r0.8)", "2024-07", "nemo-2024"),
        ("Megatron-LM core_v0.15", "2025-10", "nemo-2025"),
        ("megatron-lm main", "", "nemo"),
        ("MEGATRON-BRIDGE (Megatron-Core)", "2026-06", "nemo"),
        ("NeMo Framework 25.04 (Megatron-Core)", "2025-04", "nemo-2025"),
    ],
)
def test_a_framework_is_what_its_date_says(tmp_path, framework, date, stack):
    """Megatron-LM of 2023 and later has Transformer Engine's attention; case says nothing."""
    assert software_of(a_run(tmp_path, framework=framework, date=date)).stack == stack


def test_megatron_lm_of_today_fits_where_it_ran(tmp_path):
    """With scores in memory, 8,192 tokens would take more than twice of the device."""
    old, new = results_of(
        tmp_path,
        *(
            {"id": date, "framework": "Megatron-LM", "date": date, "peak_memory_gib": ""}
            for date in ("2022-05", "2025-01")
        ),
    )

    assert not old.fits
    assert new.fits


@pytest.mark.parametrize("software", SOFTWARE, ids=lambda one: f"{one.stack}-{one.until}")
def test_rows_keep_what_jobs_on_the_same_stack_keep(software):
    """Of scores and dropout; the catalog has them for jobs, this table for rows."""
    of_jobs = catalog.software(software.stack).settings.get("retention") or {}

    for name in ("attention_score_bytes", "dropout_mask_bytes"):
        assert getattr(software.retention, name) in (of_jobs.get(name, 0.0), *FLASH_WITH_SCORES.get(software.stack, ()))


FLASH_WITH_SCORES = {"zero-bubble": (5.0, 1.0), "v-half": (5.0, 1.0)}
"""Stacks whose rows have kernels of FlashAttention, which keep no scores, and the retention of kernels that do."""


def test_gradients_shared_in_a_pipeline_are_reduced_once(tmp_path):
    """As of ZeRO-1; without a pipeline after every micro-batch."""

    def sharding(**cells: str) -> Sharding:
        run = a_run(tmp_path, optimizer="zero2", **cells)
        return strategy_of(run, facts_of(run, known())).sharding

    assert sharding(pp="4") == Sharding.OPTIMIZER
    assert sharding(pp="1") == Sharding.GRADIENTS


def test_experts_of_megatron_bridge_are_whole(tmp_path):
    """On twice as many devices, too, where Megatron-LM would split them."""
    moe = {"model": "qwen3-235b-a22b", "gpu": "gb200", "nvlink_domain": "72", "tp": "2", "ep": "64", "n_gpus": "128"}

    def expert_tp(framework: str) -> int:
        run = a_run(tmp_path, **moe, framework=framework, gbs="1024", step_time_s="10")
        return strategy_of(run, facts_of(run, known())).etp

    assert (expert_tp("Megatron-Bridge (Megatron-Core)"), expert_tp("Megatron-Core")) == (1, 2)


@pytest.mark.parametrize("cells", [{"gpus_per_node": "8"}, {"gpus_per_node": ""}])
def test_links_of_a_node_are_shared_by_its_devices(tmp_path, cells):
    """4 x 100 Gbit/s for eight: 6.25 GB/s each, as nominal as the 50 of the catalog's."""
    here = facts_of(a_run(tmp_path, notes="4x100Gb RoCE per node", **cells), known()).cluster.device.networks[-1]
    usual = facts_of(a_run(tmp_path), known()).cluster.device.networks[-1]

    assert here.bandwidth / usual.bandwidth == pytest.approx(6.25 / 50)


def test_a_sites_network_is_of_its_rows_alone(tmp_path):
    """Perlmutter's collectives crawl; other nodes of four A100 do not."""
    four = {"gpu": "a100-80g-sxm", "gpus_per_node": "4", "nvlink_domain": "4"}
    there = facts_of(a_run(tmp_path, id="gm25-perlmutter-x", **four), known()).cluster.device.networks[-1]
    elsewhere = facts_of(a_run(tmp_path, id="x", **four), known()).cluster.device.networks[-1]

    assert there.bandwidth < elsewhere.bandwidth / 10


def test_what_measured_operators_do_not_cover_is_said(tmp_path):
    """The paper's device B has its own operators only."""
    (row,) = results_of(tmp_path, {"gpu": "mofa-b", "step_time_s": "", "peak_memory_gib": "30", "dtype": "bf16"})

    assert not isinstance(row, Prediction)
    assert "do not cover" in row.reason


def test_overlaps_and_offloads_without_a_formula_are_named(tmp_path):
    """Commas are as good as semicolons."""
    (row,) = results_of(tmp_path, {"overlaps": "TP, dp_grad, everything", "offload": "optimizer:cpu"})

    assert row.strategy.tp_overlap
    assert row.strategy.dp_overlap
    assert {"overlap of everything: as none", "offload: as none"} <= set(row.missing)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"ffn_hidden": ...}, "models.llama3-8b.ffn_hidden: is required but missing."),
        ({"head_dim": ...}, "models.llama3-8b.head_dim: is required but missing."),
        ({"n_heads": None}, "unknown architecture: the sources do not give the sizes of 'llama3-8b'"),
        (
            {"vocab": "many", "padded_vocab": None},
            "models.llama3-8b.vocab: expected a whole number from 1 on, got 'many'.",
        ),
        ({"moe": {"n_experts": 8}}, "models.llama3-8b.moe.top_k: is required but missing."),
        ({"moe": True}, "models.llama3-8b.moe: expected a mapping, got true."),
    ],
)
def test_an_architecture_that_lacks_something_costs_its_rows_alone(tmp_path, entry, problem):
    """The others are predicted."""
    models = yaml.safe_load((FOLDER / "models.yaml").read_text(encoding="utf-8"))
    changed = {**models["llama3-8b"], **entry}
    models["llama3-8b"] = {name: value for name, value in changed.items() if value is not ...}

    assert reasons(tmp_path, {"id": "a"}, {"id": "b", "model": "llama2-7b"}, models=models) == [problem, ""]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"hbm_gb": ...}, "systems.GH200-144GB.hbm_gb: is required but missing."),
        ({"hbm_gb": -1}, "systems.GH200-144GB.hbm_gb: expected a number above 0, got -1."),
        ({"hbm_gbps": "fast"}, "systems.GH200-144GB.hbm_gbps: expected a number above 0, got 'fast'."),
        ({"peak_dense_tflops": [1]}, "systems.GH200-144GB.peak_dense_tflops: expected a mapping, got [1]."),
        ({"gpus_per_node": 0}, "systems.GH200-144GB.gpus_per_node: expected a whole number from 1 on, got 0."),
    ],
)
def test_a_system_that_lacks_something_costs_its_rows_alone(tmp_path, entry, problem):
    """The others are predicted."""
    systems = yaml.safe_load((FOLDER / "systems.yaml").read_text(encoding="utf-8"))
    changed = {**systems["GH200-96GB"], "profile_of": "h100-80gb-sxm", **entry}
    systems["GH200-144GB"] = {name: value for name, value in changed.items() if value is not ...}

    found = reasons(tmp_path, {"id": "a", "gpu": "gh200-144gb"}, {"id": "b"}, systems=systems)

    assert found == [problem, ""]


def reasons(folder, *rows: dict[str, str], **files: dict) -> list[str]:
    """Why rows are not predicted, with other files than the project's own."""
    arguments = []
    for name, document in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
        arguments += [f"--{name}", str(folder / f"{name}.yaml")]
    written = folder / "rows.csv"
    main(["--runs", str(a_file(folder, *rows)), "--rows", str(written), *arguments])
    return [line.split(",", 6)[6].strip('"') for line in written.read_text().splitlines()[1:]]
