"""
Megatron-LM's own parser without GPUs: ``python -m benchmarks.exports.parse_arguments SOURCES < cases > answers``.

The first line of stdout has the options of the parser with their choices. Each line of stdin is a case (``world_size``,
``architecture``, ``environment``, ``arguments``), each further line of stdout its verdict: ``error`` is empty where
``parse_args``, ``validate_args`` and the transformer's configuration take the arguments, ``model`` holds facts of
the model that they make of them, and ``printed`` what they print. A process can import one release only, so
:mod:`benchmarks.exports.releases` runs one for each.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import typing
import warnings
from typing import Any

from benchmarks.exports.releases import Finder


def count_parameters(arguments: Any, config: Any) -> int:
    """
    Count the parameters of a parsed model, without multi-token prediction and without the padding of the vocabulary.

    Parameters
    ----------
    arguments, config
        Results of ``parse_args`` and ``core_transformer_config_from_args``.
    """
    hidden, vocabulary = config.hidden_size, arguments.vocab_size
    tables = vocabulary * hidden * (2 if arguments.untie_embeddings_and_output_weights else 1)
    if arguments.position_embedding_type == "learned_absolute":
        tables += arguments.max_position_embeddings * hidden
    pattern = getattr(arguments, "hybrid_override_pattern", None) or getattr(arguments, "hybrid_layer_pattern", None)
    if pattern:
        letters = pattern.replace("|", "")
        blocks = {"M": _mamba, "*": _attention, "-": _dense, "E": _experts}
        layers = sum(blocks[letter](config) + _norm(config) for letter in letters)
    else:
        routed = _routed(config)
        layers = sum(_attention(config) + 2 * _norm(config) + (_experts if one else _dense)(config) for one in routed)
    return int(tables + layers + _norm(config))


def _routed(config: Any) -> list[bool]:
    if not config.num_moe_experts:
        return [False] * config.num_layers
    frequency = config.moe_layer_freq
    if isinstance(frequency, int):
        return [index % frequency == 0 for index in range(config.num_layers)]
    return [bool(one) for one in frequency]


def _norm(config: Any, width: int | None = None) -> Any:
    return (width or config.hidden_size) * (1 if config.normalization == "RMSNorm" else 2)


def _attention(config: Any) -> Any:
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.multi_latent_attention:
        width = heads * (config.qk_head_dim + config.qk_pos_emb_head_dim)
        rank, latent = config.q_lora_rank, config.kv_lora_rank
        queries = hidden * width if rank is None else hidden * rank + rank * width + _norm(config, rank)
        keys = hidden * (latent + config.qk_pos_emb_head_dim) + _norm(config, latent)
        return (
            queries
            + keys
            + latent * heads * (config.qk_head_dim + config.v_head_dim)
            + heads * config.v_head_dim * hidden
        )
    queries, keys = heads * config.kv_channels, config.num_query_groups * config.kv_channels
    inputs = queries * (2 if getattr(config, "attention_output_gate", False) else 1) + 2 * keys
    biases = (inputs if config.add_bias_linear or config.add_qkv_bias else 0) + (
        hidden if config.add_bias_linear else 0
    )
    norms = 2 * _norm(config, config.kv_channels) if config.qk_layernorm else 0
    sinks = heads if getattr(config, "softmax_type", "vanilla") == "learnable" else 0
    return hidden * inputs + queries * hidden + biases + norms + sinks


def _linears(config: Any, inputs: int, width: int) -> Any:
    first = width * (2 if config.gated_linear_unit else 1)
    return inputs * first + width * inputs + (first + inputs if config.add_bias_linear else 0)


def _dense(config: Any) -> Any:
    return _linears(config, config.hidden_size, config.ffn_hidden_size)


def _experts(config: Any) -> Any:
    hidden, number = config.hidden_size, config.num_moe_experts
    latent = getattr(config, "moe_latent_size", None)
    routed = number * _linears(config, latent or hidden, config.moe_ffn_hidden_size)
    router = number * hidden + (number if config.add_bias_linear else 0)
    width = config.moe_shared_expert_intermediate_size
    shared = _linears(config, hidden, width) if width else 0
    gate = hidden if width and getattr(config, "moe_shared_expert_gate", False) else 0
    return routed + router + shared + gate + (2 * hidden * latent if latent else 0)


def _mamba(config: Any) -> Any:
    """Both projections, the convolution with its bias, the norm behind it; A, D and the bias of steps per head."""
    heads, width = config.mamba_num_heads, config.mamba_num_heads * config.mamba_head_dim
    groups = config.mamba_num_groups * config.mamba_state_dim
    convolved = width + 2 * groups
    inputs = config.hidden_size * (width + convolved + heads)
    return inputs + convolved * (4 + 1) + 3 * heads + width + width * config.hidden_size


ABSENT = ("triton", "transformer_engine", "flash_attn", "apex", "mamba_ssm", "causal_conv1d", "nvidia_resiliency_ext")
"""Packages that need CUDA: modules that have whatever is asked of them."""

TRAINING = (
    *("--tokenizer-type", "NullTokenizer", "--vocab-size", "32000", "--mock-data"),
    *("--lr", "1e-4", "--lr-decay-style", "constant"),
)
"""Arguments that exports leave to the user."""

CAPABILITIES = {"volta": (7, 0), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0), "blackwell": (10, 0)}
VARIABLES = ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER")


class Device:
    """Properties of the device that a case is for."""

    major, minor = CAPABILITIES["hopper"]
    total_memory = 80 << 30
    multi_processor_count = 132
    name = "H100"


def stand_in_for_cuda() -> None:
    """Make torch and Transformer Engine say that they have a device, of the case's architecture."""
    import torch
    import torch._dynamo
    import torch._functorch.aot_autograd
    import torch._inductor.config
    import torch.utils._triton
    import torch.utils.flop_counter

    sys.meta_path.insert(0, Finder(ABSENT))
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (Device.major, Device.minor)
    torch.cuda.get_device_properties = lambda *_: Device
    torch.cuda.get_rng_state = lambda *_: None


def with_every_package() -> Any:
    """Return the module of the arguments, whose checks of packages and their versions all hold."""
    import megatron.core.utils
    from packaging.version import Version

    megatron.core.utils.is_te_min_version = lambda *_, **__: True
    megatron.core.utils.get_te_version = lambda: Version("99.0")
    import megatron.core.models.common.embeddings.rope_utils as rotations
    import megatron.core.transformer.transformer_config as configuration
    import megatron.training.arguments as arguments

    for module in (configuration, arguments):
        for name in ("is_te_min_version", "is_torch_min_version"):
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: True)
        for name in ("HAVE_TE", "HAVE_PACKAGING"):
            if hasattr(module, name):
                setattr(module, name, True)
    for name in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
        if getattr(rotations, name, None) is None:
            setattr(rotations, name, lambda *_: None)
    for name in ("fused_mla_rope_inplace", "fused_apply_mla_rope_for_q", "fused_apply_mla_rope_for_kv"):
        if getattr(rotations, name, None) is None:
            setattr(rotations, name, lambda *_: None)
    return arguments


def verdict(module: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a case, or facts of its model."""
    Device.major, Device.minor = CAPABILITIES.get(case["architecture"], CAPABILITIES["hopper"])
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(case["environment"], WORLD_SIZE=str(case["world_size"]), RANK="0", LOCAL_RANK="0")
    sys.argv = ["pretrain_gpt.py", *TRAINING, *case["arguments"]]
    try:
        from megatron.training.arguments import core_transformer_config_from_args
    except ImportError:
        from megatron.training.argument_utils import core_transformer_config_from_args
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            arguments = module.parse_args()
            arguments.world_size, arguments.rank = case["world_size"], 0
            module.validate_args(arguments)
            config = core_transformer_config_from_args(arguments)
            return {"error": "", "model": facts(arguments, config), "printed": said.getvalue()}
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def facts(arguments: Any, config: Any) -> dict[str, float]:
    """Return facts of a parsed model by the names of :class:`costmodel.facts.model.Numerics`."""
    return {
        "rotary_base": float(arguments.rotary_base),
        "rotary_fraction": float(arguments.rotary_percent),
        "norm_epsilon": config.layernorm_epsilon,
        "attention_dropout": config.attention_dropout,
        "hidden_dropout": config.hidden_dropout,
        "initializer_range": config.init_method_std,
        "parameters": count_parameters(arguments, config),
    }


def options(module: Any) -> dict[str, list[str]]:
    """Return the choices of each option, by each of its spellings; no choices: any value, or none."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    module.add_megatron_arguments(parser)
    return {
        spelling: [str(getattr(choice, "name", choice)) for choice in action.choices or ()]
        for action in parser._actions
        for spelling in action.option_strings
        if spelling.startswith("--")
    }


def main() -> None:
    """Answer the cases, a line each."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    vars(typing).setdefault("override", lambda function: function)
    sys.path.insert(0, sys.argv[1])
    stand_in_for_cuda()
    with contextlib.redirect_stdout(io.StringIO()):
        module = with_every_package()
    print(json.dumps(options(module)), flush=True)
    for line in sys.stdin:
        print(json.dumps(verdict(module, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
