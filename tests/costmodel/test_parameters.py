"""Parameter counts against those of transformers' classes, to the last digit (tests/data/hf_configs)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodel.catalog.files import read
from costmodel.models.flops import (
    active_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    parameters,
    routed_parameters,
)
from costmodel.models.huggingface import model_from_config
from tests.builders import a_model, a_moe_model, read_config
from tests.cases import in_one_case

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
COUNTS = {row["model"]: row for row in csv.DictReader((CONFIGS / "param_counts.csv").open())}


def test_there_are_29_models():
    """Every config has a count and the other way round."""
    assert sorted(COUNTS) == sorted(path.stem for path in CONFIGS.glob("*.json"))
    assert len(COUNTS) == 29


@in_one_case("name", COUNTS)
def test_totals_and_parts(name: str):
    """
    Total without MTP and router score biases; active: all but the experts that a token does not visit.

    First and last layer, embedding without learned positions, head without the final norm.
    """
    model = read_config(CONFIGS / f"{name}.json")
    row = COUNTS[name]
    routed = sum(count * routed_parameters(model, layer) for layer, count in model.layer_counts.items())
    positions = model.learned_positions * model.hidden_size
    final_norm = model.hidden_size * {"rms": 1, "layer": 2, "none": 0}[model.final_norm]

    assert parameters(model) == int(row["total"])
    assert active_parameters(model) == int(row["active_per_token"])
    assert routed == int(row["routed_experts"])
    assert model.num_layers == int(row["n_layers"])
    assert layer_parameters(model, model.layers[0]) == int(row["layer_first"])
    assert layer_parameters(model, model.layers[-1]) == int(row["layer_last"])
    assert embedding_parameters(model) - positions == int(row["input_embedding"])
    assert head_parameters(model) - final_norm == int(row["lm_head"])
    assert str(model.tied_embeddings) == row["tied"]


def test_multi_token_prediction_of_deepseek_v3():
    """The last layer (11,507,286,016), 2 h h, and the norms of embedding, hidden state and output (3 h), h = 7168."""
    model = read_config(CONFIGS / "deepseek-v3.json")

    assert mtp_parameters(model) == 11_507_286_016 + 2 * 7168 * 7168 + 3 * 7168


@pytest.mark.parametrize(("name", "card"), [("deepseek-v3", 685e9), ("glm-4.5", 358e9), ("glm-4.5-air", 110e9)])
def test_model_cards_count_multi_token_prediction_with_its_copies(name: str, card: float):
    """The files on the hub hold MTP layers with their own copies of embedding and head."""
    model = read_config(CONFIGS / f"{name}.json")
    copies = 2 * model.vocab_size * model.hidden_size

    assert parameters(model) + mtp_parameters(model) + copies == pytest.approx(card, rel=0.005)


def test_a_dense_model_is_all_active():
    """Embedding 32000, head 32000, final norm 32, two layers of 7744."""
    model = a_model()

    assert parameters(model) == active_parameters(model) == 32000 + 32000 + 32 + 2 * 7744


def test_idle_experts_are_not_active():
    """Two of four experts of 3 * 32 * 24 parameters rest."""
    model = a_moe_model()

    assert parameters(model) - active_parameters(model) == 2 * 2304


FAMILIES = read("families.yaml")

PUBLISHED = {
    "falcon-40b": 41_303_293_952,
    "falcon-180b": 179_522_565_120,
    "bloom-176b": 176_247_271_424,
    "gpt-j-6b": 6_050_882_784,
    "phi-4": 14_659_507_200,
    "phi-3-mini": 3_821_079_552,
    "phi-2": 2_779_683_840,
    "hunyuan-a13b": 80_393_183_232,
    "smollm3-3b": 3_075_098_624,
    "granite-3.1-8b": 8_170_848_256,
    "bamba-9b": 9_780_235_392,
}
"""Counts that the models' pages state."""


@in_one_case("name", FAMILIES)
def test_a_model_of_each_further_family(name: str):
    """Trained parameters of the classes of transformers 5.24, on the meta device (tests/oracle counts them anew)."""
    assert parameters(model_from_config(FAMILIES[name]["config"])) == FAMILIES[name]["parameters"]


@in_one_case("name", PUBLISHED)
def test_published_counts_of_further_families(name: str):
    """To the last digit."""
    assert parameters(model_from_config(FAMILIES[name]["config"])) == PUBLISHED[name]


@in_one_case(
    ("name", "active"),
    [("llama-4-scout", 17e9), ("llama-4-maverick", 17e9), ("hunyuan-a13b", 13e9), ("dots.llm1", 14e9),
     ("ernie-4.5-21b-a3b", 3e9), ("qwen3.5-35b-a3b", 3e9), ("granite-3.1-3b-a800m", 0.8e9)],
)  # fmt: skip
def test_active_parameters_are_those_of_the_names(name: str, active: float):
    """Names and model cards round them; embeddings are counted here."""
    assert active_parameters(model_from_config(FAMILIES[name]["config"])) == pytest.approx(active, rel=0.2)
