"""
Defaults of a family's classes for facts that its ``config.json`` leaves out.

They are those of the configuration and model classes of transformers 5.24.0; the oracle compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from costmodel.facts.numerics import Numerics, Rotary, Routing

GELU, GELU_TANH, SQUARED_RELU = "gelu", "gelu_pytorch_tanh", "relu2"

_PLAIN = Numerics(
    norm_epsilon=1e-6,
    initializer_range=0.02,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    embedding_dropout=0.0,
    activation="silu",
    rotary=Rotary(base=10000.0, fraction=1.0),
)
"""Llama's defaults, which the code of most families follows."""

_LARGER_EPSILON = replace(_PLAIN, norm_epsilon=1e-5)


def _rotary(base: float, fraction: float = 1.0) -> Rotary:
    return Rotary(base=base, fraction=fraction)


def _routing(
    score_function: Literal["softmax", "sigmoid"] = "softmax",
    *,
    normalizes: bool,
    aux: float | None = None,
    scaling: float = 1.0,
) -> Routing:
    """Return the routing of a family; sigmoids come with a bias that balances the load."""
    return Routing(
        score_function=score_function,
        normalizes=normalizes,
        expert_bias=score_function == "sigmoid",
        scaling_factor=scaling,
        aux_loss_coefficient=aux,
    )


_DEEPSEEK_V3 = replace(
    _PLAIN, routing=replace(_routing("sigmoid", normalizes=True, scaling=2.5), num_groups=8, group_topk=4)
)
_GEMMA = replace(_PLAIN, activation=GELU_TANH, norm_weights_from_one=True)
_GEMMA_2 = replace(_GEMMA, attention_softcap=50.0, logit_softcap=30.0, score_scale=256**-0.5)
_GEMMA_3 = replace(
    _GEMMA, score_scale=256**-0.5, rotary=_rotary(1_000_000.0), windowed_rotary=_rotary(10000.0)
)  # fmt: skip
_GPT_2 = replace(_PLAIN, norm_epsilon=1e-5, activation="gelu_new")
_GRANITE = replace(_PLAIN, score_scale=1.0)
_GRANITE_MOE = replace(_GRANITE, routing=_routing(normalizes=True, aux=0.001))
_QWEN_3_5 = replace(_PLAIN, rotary=_rotary(10000.0, 0.25), norm_weights_from_one=True)

CLASS_DEFAULTS: Mapping[str, Numerics] = {
    "bamba": replace(_LARGER_EPSILON, rotary=_rotary(10000.0, 0.5)),
    "bloom": replace(_LARGER_EPSILON, activation=GELU, rotary=None),
    "deepseek_v2": replace(_PLAIN, routing=_routing(normalizes=False)),
    "deepseek_v3": _DEEPSEEK_V3,
    "dots1": replace(_PLAIN, routing=_routing("sigmoid", normalizes=False)),
    "ernie4_5": replace(_LARGER_EPSILON, rotary=_rotary(500_000.0)),
    "ernie4_5_moe": replace(
        _LARGER_EPSILON,
        rotary=_rotary(500_000.0),
        routing=replace(_routing(normalizes=True, aux=0.001), expert_bias=True),
    ),
    "falcon": replace(_LARGER_EPSILON, activation=GELU),
    "gemma": _GEMMA,
    "gemma2": _GEMMA_2,
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "glm": replace(_PLAIN, norm_epsilon=1.5625e-07, rotary=_rotary(10000.0, 0.5)),
    "glm4": replace(_PLAIN, norm_epsilon=1.5625e-07, rotary=_rotary(10000.0, 0.5)),
    "glm4_moe": replace(_LARGER_EPSILON, rotary=_rotary(10000.0, 0.5), routing=_routing("sigmoid", normalizes=True)),
    "glm4_moe_lite": replace(_LARGER_EPSILON, routing=_routing("sigmoid", normalizes=True, scaling=1.8)),
    "gpt2": replace(_GPT_2, attention_dropout=0.1, hidden_dropout=0.1, embedding_dropout=0.1, rotary=None),
    "gpt_neox": replace(_LARGER_EPSILON, activation=GELU, rotary=_rotary(10000.0, 0.25)),
    "gpt_oss": replace(
        _LARGER_EPSILON,
        activation_limit=7.0,
        rotary=Rotary(
            base=150_000.0,
            fraction=1.0,
            scaling="yarn",
            parameters=(
                ("beta_fast", 32.0),
                ("beta_slow", 1.0),
                ("factor", 32.0),
                ("original_max_position_embeddings", 4096.0),
                ("truncate", 0.0),
            ),
        ),
        routing=_routing(normalizes=True, aux=0.001),
    ),
    "gptj": _GPT_2,
    "granite": _GRANITE,
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "hunyuan_v1_dense": _LARGER_EPSILON,
    "hunyuan_v1_moe": replace(_LARGER_EPSILON, routing=_routing(normalizes=True)),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": _PLAIN,
    "llama4_text": replace(
        _LARGER_EPSILON,
        rotary=_rotary(500_000.0),
        routing=replace(_routing("sigmoid", normalizes=False, aux=0.001), expert_bias=False),
    ),
    "mamba2": replace(_LARGER_EPSILON, initializer_range=0.1, rotary=None),
    "minimax": replace(_LARGER_EPSILON, rotary=_rotary(1_000_000.0), routing=_routing(normalizes=True, aux=0.001)),
    "minimax_m2": replace(_PLAIN, rotary=_rotary(5_000_000.0), routing=_routing("sigmoid", normalizes=True, aux=0.001)),
    "mistral": _PLAIN,
    "mixtral": replace(_LARGER_EPSILON, rotary=_rotary(1_000_000.0), routing=_routing(normalizes=True, aux=0.001)),
    "nemotron": replace(
        _LARGER_EPSILON,
        initializer_range=0.0134,
        activation=SQUARED_RELU,
        rotary=_rotary(10000.0, 0.5),
        norm_weights_from_one=True,
    ),
    "nemotron_h": replace(
        _LARGER_EPSILON, activation=SQUARED_RELU, rotary=None, routing=_routing("sigmoid", normalizes=True)
    ),
    "olmo": _LARGER_EPSILON,
    "olmo2": _LARGER_EPSILON,
    "olmo3": replace(_LARGER_EPSILON, rotary=_rotary(500_000.0), windowed_rotary=_rotary(500_000.0)),
    "olmoe": replace(_LARGER_EPSILON, routing=_routing(normalizes=False, aux=0.01)),
    "opt": replace(_LARGER_EPSILON, activation="relu", hidden_dropout=0.1, embedding_dropout=0.1, rotary=None),
    "phi": replace(_GPT_2, rotary=_rotary(10000.0, 0.5)),
    "phi3": _LARGER_EPSILON,
    "phi4_multimodal": _LARGER_EPSILON,
    "qwen2": _PLAIN,
    "qwen2_moe": replace(_PLAIN, routing=_routing(normalizes=False, aux=0.001)),
    "qwen3": _PLAIN,
    "qwen3_5_moe_text": replace(_QWEN_3_5, routing=_routing(normalizes=True, aux=0.001)),
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_moe": replace(_PLAIN, routing=_routing(normalizes=False, aux=0.001)),
    "qwen3_next": replace(
        _PLAIN,
        rotary=_rotary(10000.0, 0.25),
        norm_weights_from_one=True,
        routing=_routing(normalizes=True, aux=0.001),
    ),
    "seed_oss": replace(_PLAIN, attention_dropout=0.1, hidden_dropout=0.1),
    "smollm3": replace(_PLAIN, rotary=_rotary(2_000_000.0)),
}
"""Defaults by family, including constants of the code such as the epsilon of OPT's norms and a router's function."""
