"""Parameter counts against those of transformers' classes, to the last digit (tests/data/hf_configs)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodel.models.huggingface import read_config
from costmodel.models.parameters import (
    active_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    parameters,
    routed_parameters,
)
from tests.builders import a_model, a_moe_model

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
COUNTS = {row["model"]: row for row in csv.DictReader((CONFIGS / "param_counts.csv").open())}


def test_there_are_29_models():
    """Every config has a count and the other way round."""
    assert sorted(COUNTS) == sorted(path.stem for path in CONFIGS.glob("*.json"))
    assert len(COUNTS) == 29


@pytest.mark.parametrize("name", COUNTS)
def test_totals(name: str):
    """Total without MTP and router score biases; active: all but the experts that a token does not visit."""
    model = read_config(CONFIGS / f"{name}.json")
    row = COUNTS[name]

    assert parameters(model) == int(row["total"])
    assert active_parameters(model) == int(row["active_per_token"])
    assert sum(routed_parameters(model, layer) for layer in model.layers) == int(row["routed_experts"])


@pytest.mark.parametrize("name", COUNTS)
def test_parts(name: str):
    """First and last layer, embedding without learned positions, head without the final norm."""
    model = read_config(CONFIGS / f"{name}.json")
    row = COUNTS[name]
    positions = model.learned_positions * model.hidden_size
    final_norm = model.hidden_size * {"rms": 1, "layer": 2, "none": 0}[model.final_norm]

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
