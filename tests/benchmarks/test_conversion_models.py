"""Collected architectures become what a job file's model takes."""

from __future__ import annotations

import pytest
import yaml

from benchmarks.measured_runs import convert
from benchmarks.measured_runs.__main__ import FOLDER
from benchmarks.measured_runs.architectures import CATALOG_NAMES, architectures
from costmodel import catalog
from costmodel.models.description import model_from_description
from costmodel.models.flops import parameters
from tests.benchmarks.test_conversion import CASES, ROW, explicit
from tests.cases import in_one_case

LLAMA = CASES["llama"]
GPT = {**LLAMA, "ffn_hidden": None, "n_kv_heads": 32, "vocab": 50257, "activation": "gelu", "tied_embeddings": None}


def entry(key: str = "mine", **said: object) -> dict[str, object]:
    """What becomes of a Llama with changes; ``...`` takes a key away."""
    collected = {name: value for name, value in {**LLAMA, **said}.items() if value is not ...}
    return dict(architectures({key: collected})[key].entry)


def test_a_model_of_the_catalog_is_named():
    """The same sizes under the same key; under another one they are described."""
    assert entry("llama3-8b") == {"base": "llama3-8b"}
    assert entry("mine")["hidden_size"] == 4096


def test_a_model_that_differs_from_the_catalog_says_where():
    """A comment in the file; the description is the collected one."""
    converted = convert([], {"llama3-8b": {**LLAMA, "vocab": 128000}})

    assert converted.models["llama3-8b"]["vocab_size"] == 128000
    assert converted.comments == {"llama3-8b": "not the catalog's llama3-8b: vocab_size 128000, not 128256"}


def test_descriptions_say_what_is_not_usual():
    """A Llama needs six sizes; the vocabulary is not padded."""
    assert entry(padded_vocab=131072) == {
        "hidden_size": 4096,
        "num_layers": 32,
        "vocab_size": 128256,
        "num_heads": 32,
        "ffn_hidden_size": 14336,
        "num_kv_heads": 8,
        "source": "a paper",
    }


def test_a_gpt_has_biases_learned_positions_and_a_tied_head():
    """Width four times the hidden size; the row says how many positions there are."""
    models = {"gpt": GPT}
    described = dict(convert([], models).models["gpt"])
    described.pop("source")

    model = model_from_description({**described, "learned_positions": 2048})

    # 12 L h^2 + 13 L h, vocabulary and positions, the last norm.
    assert parameters(model) == 12 * 32 * 4096**2 + 13 * 32 * 4096 + (50257 + 2048) * 4096 + 2 * 4096
    assert explicit(models, model="gpt")["model.learned_positions"] == "8192"
    assert explicit({"mine": LLAMA}, model="mine")["model.learned_positions"] == ""


def test_rows_say_how_their_model_differs():
    """Layers of a proxy, other key-value heads, a head of its own; the same heads are no difference."""
    notes = "PROXY: n_layers=7 (full model 32); num_query_groups=16; untied embeddings"
    row = explicit({"mine": LLAMA}, model="mine", kind="proxy", notes=notes, vp="", pp="1", dp="32")

    assert [row[f"model.{name}"] for name in ("num_layers", "num_kv_heads", "tied_embeddings")] == ["7", "16", "false"]
    assert explicit({"mine": LLAMA}, model="mine", notes="num_query_groups=8")["model.num_kv_heads"] == ""


def test_zero_bubbles_fork_does_not_tie():
    """Its runs of 2023, whose notes are silent."""
    fork = {"framework": "Megatron-LM fork (sail-sg)"}

    assert explicit(**fork, date="2023-11")["model.tied_embeddings"] == "false"
    assert explicit(**fork, date="2024-11")["model.tied_embeddings"] == ""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"hidden": None}, "unknown architecture: the sources do not give the sizes of 'mine'"),
        ({"vocab": None}, "unknown architecture: the sources do not give the vocabulary of 'mine'"),
        (
            {"sliding_window": "every 2nd layer"},
            "unknown architecture: the layers of 'mine' are neither described here",
        ),
    ],
)
def test_what_no_source_says_is_unknown(said, reason):
    """Nothing is wrong with the rows."""
    assert str(entry(**said)["unknown"]).startswith(reason)
    assert explicit({"mine": {**LLAMA, **said}}, model="mine")["refused"] == ""


@in_one_case(
    ("said", "problem"),
    [
        ({"ffn_hidden": ...}, "models.mine.ffn_hidden: is required but missing."),
        ({"head_dim": ...}, "models.mine.head_dim: is required but missing."),
        ({"hidden": "wide", "ffn_hidden": None}, "models.mine.hidden: expected a whole number from 1 on, got 'wide'."),
        ({"vocab": "many"}, "models.mine.vocab_size: "),
        ({"moe": {"n_experts": 8}}, "models.mine.moe.top_k: is required but missing."),
        ({"moe": True}, "models.mine.moe: expected a mapping, got true."),
        ({"mla": 3}, "models.mine.mla: expected a mapping, got 3."),
    ],
)
def test_a_wrong_architecture_costs_its_rows_alone(said, problem):
    """They are refused with what is wrong; rows of other models are not."""
    wrong = {name: value for name, value in {**LLAMA, **said}.items() if value is not ...}
    rows = [{**ROW, "model": "mine"}, {**ROW, "id": "b", "model": "llama2-7b"}]

    first, second = convert(rows, {"mine": wrong}).rows

    assert first["refused"].startswith(problem)
    assert second["refused"] == ""


def test_names_of_the_catalog_are_there():
    """Every key that the catalog calls something else is collected, and becomes the catalog's model."""
    collected = yaml.safe_load((FOLDER / "collected" / "models.yaml").read_text(encoding="utf-8"))
    known = architectures(collected)

    assert set(CATALOG_NAMES.values()) <= set(catalog.models())
    assert {key: known[key].entry["base"] for key in CATALOG_NAMES} == CATALOG_NAMES
