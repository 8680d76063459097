"""``planner catalog support``: its cells are the answers that jobs get."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.models.families import FAMILIES, UNMODELLED
from planner import estimate, load, plan
from planner.cli import main
from planner.frameworks import TARGETS, export
from planner.report import support
from planner.report.support import ANY_EVIDENCE, OUT_OF_TIME, ask, support_sections
from tests.cases import read_table
from tests.oracle import in_step
from tests.schemas import valid

MODELS = ("llama3-8b", "qwen3-30b-a3b", "gemma-2-27b", "gpt2-xl", "minimax-m2", "nemotron-3-nano-30b-a3b")
SOLD = [name for name in catalog.devices() if not name.startswith("mofa")]
CLUSTER = {"device": "gb300", "num_devices": 64}
TRAINING = {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9}
CELLS = random.Random(53).sample(
    [(one, device, target) for one in MODELS for device in SOLD for target in TARGETS], in_step(50)
)


@cache
def every_section():
    """The tables of all families and devices."""
    return support_sections()


def can_export(model: str, device: str, target: str) -> bool:
    """Answer by making a plan of one device for the target and exporting it, whatever its memory."""
    length = 1024 if model == "gpt2-xl" else 4096
    precision = "bf16" if "bf16" in catalog.device(device).peak_flops else "fp16"
    training = {"global_batch_size": 1, "sequence_length": length, "tokens": 1e9, "precision": precision}
    cluster = {"device": device, "num_devices": 1}
    try:
        problem = load({"model": model, "cluster": cluster, "training": training, "search": {"target": target}})
        decisions = {"tp": 1, "mbs": 1, "recompute": "none"}
        return export(estimate(problem, decisions).plans[0], target).target.lower() == target
    except SpecError:
        return False


@pytest.mark.sampled(10)
@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_cells_are_the_answers_that_jobs_get(cell):
    """Fifty random ones, against an estimate for the target and its export."""
    reason = ask(*cell).reason
    assert (reason == "" or reason.startswith("memory: ")) == can_export(*cell), cell


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "device", "target", "evidence", "is_planned"),
    [
        ("deepseek-v3", "rtx-4090", "accelerate", "any", False),
        ("kimi-k2", "a100-40gb-sxm", "accelerate", "any", False),
        ("deepseek-v3", "gh200-96gb", "deepspeed", "proven", False),
        ("deepseek-v3", "gh200-96gb", "deepspeed", "any", True),
        ("llama3-8b", "mofa-b-deepseek", "accelerate", "proven", True),
    ],
)
def test_memory_is_what_the_planner_says(model: str, device: str, target: str, evidence: str, is_planned: bool):
    """The cells of a whole page's kind, against plans on 2,048 devices."""
    job = {
        "model": model,
        "cluster": {"device": device, "num_devices": 2048},
        "training": {"global_batch_size": 4096, "sequence_length": 4096, "tokens": 1e12},
        "search": {"target": target, "evidence": evidence},
    }
    answer = ask(model, device, target)

    assert bool(plan(load(job), certified=False, explained=False).plans) == is_planned
    assert (not answer.reason and (evidence == "any" or ANY_EVIDENCE not in answer.conditions)) == is_planned
    assert answer.reason == "" or answer.reason.startswith("memory: the closest plan needs ")


def test_the_precision_of_old_devices_is_said():
    """A V100 has no BF16: the job of the cell is one in FP16."""
    (table,) = support_sections("llama3-8b", "v100-16gb-sxm")

    row = dict(zip(table.header, table.rows[0], strict=True))
    assert (row["planned"], row["megatron-lm"], row["deepspeed"]) == ("yes, fp16", "yes, fp16", "no")


@pytest.mark.slow
def test_tables_leave_out_no_lack_of_memory():
    """Random rows of the page, which ask the memory of large layers alone, equal those that ask it always."""
    families, _, devices = every_section()
    cells = [(row[1], "h100-80gb-sxm", row[4:9]) for row in families.rows]
    cells += [("llama3-8b", row[0], row[3:8]) for row in devices.rows]
    for model, device, said in random.Random(0).sample(cells, min(in_step(50), len(cells))):
        assert tuple(ask(model, device, target).cell for target in TARGETS) == tuple(said), (model, device)


@pytest.mark.parametrize(("cell", "reason"), read_table("support")["reasons"])
def test_reasons(cell, reason):
    """The target's own, or that none of its releases runs there."""
    said = ask(*cell).reason
    assert said.startswith(reason)
    assert bool(said) == bool(reason)


def test_a_search_out_of_time_is_said(monkeypatch: pytest.MonkeyPatch):
    """The cell is unknown and has its reason; others, whose plain strategies fit, are answered."""
    monkeypatch.setattr(support, "MOST_SECONDS", 0.0)

    answer = ask("kimi-k2", "a100-40gb-sxm", "accelerate")
    assert (answer.cell, answer.reason) == ("unknown", OUT_OF_TIME)
    assert ask("llama3-8b", "h100-80gb-sxm", "accelerate").cell == "yes"


@pytest.mark.slow
def test_every_family_and_device_has_a_row():
    """Families that are read, those that are refused, and all devices."""
    families, refused, devices = every_section()

    assert [row[0] for row in families.rows] == sorted(FAMILIES)
    assert [row[0] for row in refused.rows] == sorted(UNMODELLED)
    assert [row[0] for row in devices.rows] == list(catalog.devices())
    assert next(row for row in families.rows if row[0] == "mixtral")[3] == "1"  # counts.yaml: one run of Mixtral
    assert {cell for row in families.rows for cell in row[4:9]} >= {"yes", "no", "own model"}


@pytest.mark.parametrize(
    ("model", "cell"), [("deepseek-v4-flash", "own model"), ("llama3-8b", "yes"), ("kimi-linear-48b-a3b", "own model")]
)
def test_a_recipe_without_its_model_says_so(model: str, cell: str):
    """torchtitan has a recipe of Llama 3 8B; of the others the export begins with the user's own."""
    (table,) = support_sections(model, "gb300")

    assert dict(zip(table.header, table.rows[0], strict=True))["torchtitan"] == cell


@pytest.mark.slow
def test_every_model_of_the_table_is_planned_by_its_name():
    """Models that stand for their families are no files; plan, support and schema know them."""
    families, *_ = every_section()
    known = catalog.model_names()

    assert {row[1] for row in families.rows} <= set(known)
    assert catalog.model("deepseek-v4-flash").family == "deepseek_v4"
    assert load({"model": "trinity-mini", "cluster": CLUSTER, "training": TRAINING}).facts.model.family == "afmoe"


def test_a_family_is_asked_by_its_name():
    """The first column's words, a text part's too; a refused one is refused with the reason."""
    assert [one.title for one in support_sections("qwen3_moe", "h100")] == ["Devices with qwen3-235b-a22b"]
    assert support_sections("qwen3_vl_moe", "h100")[0].rows == support_sections("qwen3_moe", "h100")[0].rows
    with pytest.raises(SpecError, match="'zamba' has one attention block shared across layers, which is not modelled"):
        support_sections("zamba")


def test_the_tables_are_data_too(capsys: pytest.CaptureFixture[str]):
    """Title, header and rows, as the schema says."""
    assert main(["catalog", "support", "llama3-8b", "gb300", "--format", "json"]) == 0

    tables = json.loads(capsys.readouterr().out)
    valid("support", tables)
    assert [table["rows"][0][:2] for table in tables] == [["gb300", "yes"]]


def test_a_config_json_on_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A model of one's own on the device that a short name means."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "helium", "num_key_value_heads": 8, "vocab_size": 1000, **sizes}))

    assert main(["catalog", "support", str(path), "trn3"]) == 0
    text = capsys.readouterr().out
    assert "trainium3" in text
    assert "no release of the catalog runs on trainium3" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama3-8b", "h101"], "support: 'h101' is not in the catalog."),
        (["llama3-8b", "h100", "b200"], "catalog support: takes at most 2 words, got 3."),
        (["llama-3-8"], "'llama-3-8' is neither in the catalog nor a file."),
    ],
)
def test_unknown_names_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    """With exit code 2 and the nearest names."""
    assert main(["catalog", "support", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
