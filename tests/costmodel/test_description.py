"""Models described in place, and entries of the catalog."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.errors import SpecError, mistakes_of
from costmodel.facts.model import Attention, Experts, Mamba, Mlp
from costmodel.models.description import model_from_description, model_from_entry
from costmodel.models.flops import parameters
from tests.cases import in_one_case, read_table

SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_layers": 4, "num_heads": 8, "ffn_hidden_size": 256, "vocab_size": 1000,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_num_heads": 4, "mamba_head_dim": 8, "mamba_state_size": 16, "mamba_num_groups": 2,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "top_k": 2, "expert_ffn_hidden_size": 16}


def test_gpt3():
    """Narayanan et al. (arXiv 2104.04473): P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)), and a final norm."""
    layers, hidden, vocabulary, positions = 96, 12288, 51200, 2048
    model = model_from_description(
        {
            "hidden_size": hidden, "num_layers": layers, "num_heads": 96, "ffn_hidden_size": 4 * hidden,
            "vocab_size": vocabulary, "learned_positions": positions, "tied_embeddings": True, "gated": False,
            "norm": "layer", "qkv_bias": True, "output_bias": True, "mlp_bias": True,
        }
    )  # fmt: skip

    published = 12 * layers * hidden**2 + 13 * layers * hidden + (vocabulary + positions) * hidden
    assert parameters(model) == published + 2 * hidden


def test_experts_start_behind_the_dense_layers_and_recur():
    """One dense layer in front, then every second layer."""
    model = model_from_description(
        {**SIZES, **EXPERTS, "num_layers": 5, "first_dense_layers": 1, "moe_layer_interval": 2}
    )

    assert [isinstance(layer.feed_forward, Experts) for layer in model.layers] == [False, False, True, False, True]


def test_a_pattern_names_the_block_of_each_layer():
    """Mamba, dense feed-forward, attention, experts; multi-token prediction joins an attention and experts."""
    model = model_from_description({**SIZES, **EXPERTS, **MAMBA, "pattern": "M-*E", "mtp_layers": 1})
    (mtp,) = model.mtp_layers

    assert [type(layer.attention or layer.feed_forward) for layer in model.layers] == [Mamba, Mlp, Attention, Experts]
    assert (mtp.attention, mtp.feed_forward) == (model.layers[2].attention, model.layers[3].feed_forward)
    assert [layer.num_norms for layer in (*model.layers, mtp)] == [1, 1, 1, 1, 2]


def test_latent_attention_is_gated_and_turned_as_described():
    """The gate has a weight of the values' width; without rotation the sizes stay."""
    latent = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    plain, changed = (
        model_from_description({**SIZES, **latent, **more}) for more in ({}, {"output_gate": True, "rotary": False})
    )

    assert parameters(changed) - parameters(plain) == 4 * 64 * 8 * 8
    assert [model.layers[0].attention.rotary for model in (plain, changed)] == [True, False]


@in_one_case("row", read_table("configurations")["described"], ids=lambda row: row["says"])
def test_refusals(row: dict[str, Any]):
    """Dotted path, what was seen, what is allowed."""
    parts = {"experts": EXPERTS, "mamba": MAMBA}.get(row.get("of", ""), {})
    with pytest.raises(SpecError) as refused:
        model_from_description({**SIZES, **parts, **row["with"]})

    assert str(refused.value).startswith(row["says"])


def test_an_entry_describes_a_model_in_one_of_three_ways():
    """Hugging Face's spelling, ours, or ours without a heading."""
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
        "intermediate_size": 256, "vocab_size": 1000,
    }  # fmt: skip
    entries = [{"config": config}, {"description": SIZES}, SIZES]

    models = [model_from_entry({"source": "a paper", **entry}, "model", "mine") for entry in entries]

    assert {parameters(model) for model in models} == {128000 + 64 + 4 * (4 * 64 * 64 + 3 * 64 * 256 + 128)}
    assert {(model.name, model.source) for model in models} == {("mine", "a paper")}


@in_one_case(
    ("entry", "message"),
    [
        ({"config": {}, "description": {}}, "models.x: has both 'config' and 'description'"),
        ({"configs": {}, "description": SIZES}, "models.x.configs: no such entry. Did you mean 'config'?"),
        ({"description": {**SIZES, "num_heads": 0}}, "models.x.description.num_heads: must be at least 1, got 0."),
        ({"config": {"model_type": "llama"}}, "models.x.config."),
        ({"config": None}, "models.x.config: expected a mapping, got null."),
        ({"name": 3, "description": SIZES}, "models.x.name: expected text, got 3."),
        ({}, "models.x.hidden_size: is required but missing."),
        ([], "models.x: expected a mapping, got []."),
    ],
)
def test_refused_entries(entry: Any, message: str):
    """The path tells the catalog's file from the entry in it."""
    with pytest.raises(SpecError) as refused:
        model_from_entry(entry, "models.x", "x")

    assert str(mistakes_of(refused.value)[0]).startswith(message)


LINEAR = {
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
PLAIN = {"hidden_size": 64, "num_layers": 4, "num_heads": 4, "ffn_hidden_size": 256, "vocab_size": 1000}


def test_every_other_layer_is_a_gated_delta_net():
    """
    Their sizes are its own.

    Parameters of such a mixer: 64 x (2 x 2 x 8 + 2 x 4 x 16 + 2 x 4) in, 4 x (2 x 2 x 8 + 4 x 16) of the convolution,
    4 + 4 of decays and steps, 16 of the norm, 4 x 16 x 64 out: 10,752 + 384 + 8 + 16 + 4,096 = 15,256; softmax
    attention has 4 x 64 x 64 = 16,384.
    """
    model = model_from_description({**PLAIN, **LINEAR})
    plain = model_from_description(PLAIN)

    kinds = [type(layer.attention).__name__ for layer in model.layers]
    assert kinds == ["LinearAttention", "Attention"] * 2
    assert parameters(plain) - parameters(model) == 2 * (16_384 - 15_256)


@in_one_case(
    ("changes", "message"),
    [
        ({"full_attention_interval": None}, "full_attention_interval: is required with 'linear_num_key_heads'"),
        ({"linear_key_head_dim": None}, "linear_key_head_dim: is required with 'linear_num_key_heads'"),
        ({"linear_num_value_heads": 5}, "linear_num_value_heads: must be a multiple of the 2 key heads, got 5"),
        ({"pattern": "M*M*"}, "full_attention_interval: needs layers with an attention each"),
    ],
)
def test_a_gated_delta_net_is_whole(changes, message):
    """Sizes and the interval, or none."""
    with pytest.raises(SpecError, match=message):
        model_from_description({**PLAIN, **LINEAR, **changes})


def test_an_interval_alone_is_refused():
    """It says of which layers, not what they are."""
    with pytest.raises(SpecError, match="linear_num_key_heads: is required with 'full_attention_interval'"):
        model_from_description({**PLAIN, "full_attention_interval": 4})
