"""FLOPs of models against published and counted values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costmodel import catalog
from costmodel.models.description import model_from_description
from costmodel.models.flops import forward_attention_flops, forward_matmul_flops, model_flops_per_token
from tests.builders import a_model, read_config

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"


def test_two_layers_of_llama_3_8b():
    """What torch's FlopCounterMode counts for transformers' class, 2 layers, 4096 tokens, without scores."""
    model = read_config(CONFIGS / "llama-3-8b.json")
    short = replace(model, layers=model.layers[:2])

    assert forward_matmul_flops(short, tokens=4096) == 7_876_970_020_864


def test_equation_15_of_mofa():
    """2.69264e12 per token for MoFa's LLaMA3-405B at s = 8192: 128 layer slots, full attention (equations.md)."""
    model = model_from_description(
        {
            "hidden_size": 16384, "num_layers": 128, "num_heads": 128, "num_kv_heads": 16,
            "ffn_hidden_size": 53248, "vocab_size": 128000, "norm": "none",
        }
    )  # fmt: skip

    assert model_flops_per_token(model, 8192, "full") == pytest.approx(2.69264e12, abs=5e6)


def test_causal_attention_is_half_of_full_attention():
    """12 L h s per token against 6 L h s."""
    model = a_model()
    matmuls = 3 * forward_matmul_flops(model, tokens=8) / 8

    assert model_flops_per_token(model, 8, "full") - matmuls == 12 * 2 * 32 * 8
    assert model_flops_per_token(model, 8, "causal") - matmuls == 6 * 2 * 32 * 8


def test_a_window_counts_in_both_conventions():
    """8 tokens, window 4, 32 wide, 2 layers: 4 or 3 keys each, 4 FLOPs per element and key."""
    model = a_model(window=4)

    assert forward_attention_flops(model, sequence_length=8, attention="full") == 4 * 8 * 4 * 32 * 2
    assert forward_attention_flops(model, sequence_length=8, attention="causal") == 4 * 8 * 3 * 32 * 2


def test_published_rate_of_nemotron_h_56b():
    """
    559 TFLOP/s at 1,625.5 tokens/s (dgxc-benchmarking README, 32 H100, 8,192 tokens, full attention).

    That counts 7 d N for the scan of a token, more than the matmuls of the chunks: 0.4 % of the whole.
    """
    model = catalog.model("nemotron-h-56b")

    assert model_flops_per_token(model, 8192, "full") == pytest.approx(559e12 / 1625.5, rel=0.006)


def test_multi_token_prediction_adds_a_layer_a_projection_and_a_head():
    """Per token: layer 2 * (7744 - 64), projection 2 * 2 * 32 * 32, head 2 * 32 * 1000."""
    added = forward_matmul_flops(a_model(mtp_layers=1), tokens=1) - forward_matmul_flops(a_model(), tokens=1)

    assert added == 2 * 7680 + 4096 + 64000
