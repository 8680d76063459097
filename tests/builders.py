"""Small valid models and shapes; a test names only what it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from costmodel.facts.framework import Kernels
from costmodel.facts.model import Model
from costmodel.lowering import Shape
from costmodel.models.description import model_from_description
from costmodel.models.huggingface import model_from_config
from planner.jobs import config_file


def a_model(**changes: Any) -> Model:
    """Two dense layers of grouped-query attention and a gated feed-forward."""
    return model_from_description({**_SIZES, **changes}, name="test-model")


def a_moe_model(**changes: Any) -> Model:
    """The same with four experts, two of them active, behind one dense layer."""
    return a_model(**{**_EXPERTS, **changes})


def a_latent_model(**changes: Any) -> Model:
    """The same as :func:`a_model` with latent attention."""
    return a_model(**{**_LATENT, **changes})


def read_config(path: str | Path) -> Model:
    """Read the model of a ``config.json``."""
    file = Path(path)
    return model_from_config(config_file.read_config(file), name=config_file.model_name(file), source=str(file))


def a_shape(**changes: Any) -> Shape:
    """16 tokens in two sequences of 8, hidden size 32, 2 bytes per element, full attention, one device."""
    facts: dict[str, Any] = {
        "hidden_size": 32,
        "sequence_length": 8,
        "activation_bytes": 2.0,
        "causal": False,
        "mbs": 2,
    }
    kernels = {name: changes.pop(name) for name in [*changes] if hasattr(Kernels(), name)}
    return Shape(**{"kernels": Kernels(**kernels), **facts, **changes})


_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_hidden_size": 48,
    "vocab_size": 1000,
}

_EXPERTS: dict[str, Any] = {"num_experts": 4, "top_k": 2, "expert_ffn_hidden_size": 24, "first_dense_layers": 1}

_LATENT: dict[str, Any] = {
    "num_kv_heads": None,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
