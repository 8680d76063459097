"""Architecture of a model as options of Megatron-LM, written and read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, groupby
from typing import Any

from constraints.rules.exports import LETTERS, NORMS, linears_have_bias, qkv_has_bias
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, Mamba, Mlp, Model
from costmodel.models.description import model_from_description
from costmodel.models.huggingface import model_from_config
from costmodel.validation import shown
from planner.frameworks.megatron.options import WHERE
from planner.frameworks.megatron.stages import CHUNKS, LAST, LAYOUT, layout_text

MOST_LAYERS = 4096
"""Most layers of a model, as in :mod:`costmodel.models.description`."""

PATTERN, STAGED_PATTERN = "--hybrid-override-pattern", "--hybrid-layer-pattern"
"""Options for the blocks of all layers; the second, from core 0.17 on, has a bar after each stage."""

MAMBA_STACK = ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]
"""Value of ``--spec`` for a hybrid."""


SIZES: Mapping[type, tuple[tuple[str, str, int | None], ...]] = {
    LatentAttention: (
        ("q_lora_rank", "--q-lora-rank", None),
        ("kv_lora_rank", "--kv-lora-rank", 32),
        ("qk_nope_head_dim", "--qk-head-dim", 128),
        ("qk_rope_head_dim", "--qk-pos-emb-head-dim", 64),
        ("v_head_dim", "--v-head-dim", 128),
    ),
    Mamba: (
        ("num_heads", "--mamba-num-heads", None),
        ("head_dim", "--mamba-head-dim", 64),
        ("state_size", "--mamba-state-dim", 128),
        ("num_groups", "--mamba-num-groups", 8),
    ),
}
"""
Sizes of blocks, written and read: the block's field, the option, and its default (transformer_config.py).

A ``q_lora_rank`` of None is no low rank; heads of Mamba blocks are twice the hidden size without the option.
"""


def write_sizes(block: LatentAttention | Mamba) -> dict[str, Any]:
    """Return the options for the sizes of a block."""
    sizes = ((option, getattr(block, name)) for name, option, _ in SIZES[type(block)])
    return {option: size for option, size in sizes if size is not None}


def read_sizes(kind: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a block by field."""
    return {name: arguments.get(option, default) for name, option, default in SIZES[kind]}


def model_entries(model: Model, sequence_length: int) -> dict[str, Any]:
    """
    Return the options of a model that Megatron-LM has options for.

    >>> from costmodel import catalog
    >>> model_entries(catalog.model("llama3-8b"), 8192)["--num-query-groups"]
    8
    """
    attention = _first_attention(model)
    return {
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        **_feed_forward(model),
        **(_latent(attention) if isinstance(attention, LatentAttention) else _softmax(model)),
        **_positions(model, sequence_length),
        "--normalization": NORMS[model.final_norm],
        **_biases(model),
        "--vocab-size": model.vocab_size,
        **({} if model.tied_embeddings else {"--untie-embeddings-and-output-weights": True}),
        **_experts(model),
        **({"--mtp-num-layers": len(model.mtp_layers)} if model.mtp_layers else {}),
        **(_hybrid(model) if model.has_single_blocks else {}),
    }


def _first_attention(model: Model) -> Attention | LatentAttention:
    """Return the attention of all layers that have one; they are alike but for their windows."""
    mixers = (layer.attention for layer in model.kinds)
    return next(one for one in mixers if isinstance(one, Attention | LatentAttention))


def frequency_text(flags: Sequence[bool]) -> str:
    """
    Write a list of flags by layer in Megatron-LM's syntax.

    >>> frequency_text([False, False, False, True, True]), frequency_text([True, False, True, False])
    ('([0]*3+[1]*2)', '([1,0]*2)')
    """
    pair = list(flags[:2])
    if len(flags) % 2 == 0 and len(set(pair)) == 2 and pair * (len(flags) // 2) == list(flags):
        return f"([{int(pair[0])},{int(pair[1])}]*{len(flags) // 2})"
    runs = (f"[{int(value)}]*{len(list(run))}" for value, run in groupby(flags))
    return f"({'+'.join(runs)})"


def frequency_flags(text: str, where: str) -> tuple[bool, ...]:
    """
    Read sums and products of lists of 0 and 1, with or without parentheses.

    >>> frequency_flags("([0]*3+[1]*2)", "--moe-layer-freq")
    (False, False, False, True, True)
    >>> frequency_flags("([1]+[0]*1)*2", "--linear-attention-freq")
    (True, False, True, False)

    Raises
    ------
    SpecError
        If the text is no such list, or longer than a model can be.
    """
    pieces = re.findall(r"\[[01](?:,[01])*\]|\d{1,4}|[()+*]", text)
    problem = f"expected a number or a list such as ([0]*3+[1]*58), got {shown(text)}."
    if "".join(pieces) != text:
        raise SpecError(where, problem)
    flags, rest = _sum_of_lists(pieces, SpecError(where, problem), where)
    if rest:
        raise SpecError(where, problem)
    return flags


def _sum_of_lists(pieces: Sequence[str], error: SpecError, where: str) -> tuple[tuple[bool, ...], Sequence[str]]:
    """Read a sum at the beginning, and return it with the pieces after it."""
    flags: tuple[bool, ...] = ()
    while True:
        if not pieces:
            raise error
        first, pieces = pieces[0], pieces[1:]
        if first == "(":
            part, pieces = _sum_of_lists(pieces, error, where)
            if not pieces or pieces[0] != ")":
                raise error
            pieces = pieces[1:]
        elif first.startswith("["):
            part = tuple(flag == "1" for flag in first[1:-1].split(","))
        else:
            raise error
        while len(pieces) > 1 and pieces[0] == "*" and pieces[1].isdecimal():
            if len(part) * int(pieces[1]) > MOST_LAYERS:
                raise SpecError(where, f"is of more than {MOST_LAYERS} layers.")
            part, pieces = part * int(pieces[1]), pieces[2:]
        flags += part
        if len(flags) > MOST_LAYERS:
            raise SpecError(where, f"is of more than {MOST_LAYERS} layers.")
        if not pieces or pieces[0] != "+":
            return flags, pieces
        pieces = pieces[1:]


# --- attention ---------------------------------------------------------------------------------------------


def _softmax(model: Model) -> dict[str, Any]:
    attentions = [layer.attention for layer in model.layers if isinstance(layer.attention, Attention)]
    one, windows = attentions[0], [attention.window for attention in attentions]
    grouped = {"--group-query-attention": True, "--num-query-groups": one.num_kv_heads}
    return {
        "--num-attention-heads": one.num_heads,
        **(grouped if one.num_kv_heads != one.num_heads else {}),
        "--kv-channels": one.head_dim,
        **({"--qk-layernorm": True} if one.qk_norm == "per_head" else {}),
        **({"--attention-output-gate": True} if one.output_gate else {}),
        **({"--softmax-type": "learnable"} if one.sinks else {}),
        **_windows(windows),
    }


def _windows(windows: Sequence[int | None]) -> dict[str, Any]:
    """Return the options of a window: tokens to the left and right, and a flag of 1 for each layer that has it."""
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return {}
    flags = [window is not None for window in windows]
    some = {} if all(flags) else {"--window-attn-skip-freq": frequency_text(flags)}
    return {"--window-size": f"{sizes.pop()},0", **some}


def _latent(attention: LatentAttention) -> dict[str, Any]:
    """Return the options of latent attention; Megatron-LM has norms of the latents only with ``--qk-layernorm``."""
    return {
        "--num-attention-heads": attention.num_heads,
        "--multi-latent-attention": True,
        **write_sizes(attention),
        "--qk-layernorm": True,
    }


def _positions(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the options of positions; base and scaling of rotary ones are facts of :mod:`numerics`."""
    attention = _first_attention(model)
    rotary = isinstance(attention, LatentAttention) or (isinstance(attention, Attention) and attention.rotary)
    kind = "learned_absolute" if model.learned_positions else "rope" if rotary else "none"
    return {
        "--position-embedding-type": kind,
        "--max-position-embeddings": model.learned_positions or sequence_length,
    }


# --- feed-forward ------------------------------------------------------------------------------------------


def _feed_forwards(model: Model) -> Iterable[Mlp | Experts]:
    return (kind.feed_forward for kind in model.kinds if kind.feed_forward is not None)


def _feed_forward(model: Model) -> dict[str, Any]:
    """Return the options of feed-forwards; without dense layers ``--ffn-hidden-size`` is the width of an expert."""
    blocks = list(_feed_forwards(model))
    widths = [block.ffn_hidden_size for block in blocks if isinstance(block, Mlp)]
    return {
        "--ffn-hidden-size": (widths or [block.ffn_hidden_size for block in blocks])[0],
        **(_clamp_options(model) if model.family == "gpt_oss" else {"--swiglu": True} if blocks[0].gated else {}),
        **({"--squared-relu": True} if blocks[0].squared_relu else {}),
    }


def _clamp_options(model: Model) -> dict[str, Any]:
    """
    Return the options of gpt-oss's activation.

    It is g sigmoid(1.702 g) (u + 1) of gate g and other half u, both clamped at ``swiglu_limit``.

    References
    ----------
    transformers, GptOssExperts; megatron/core/transformer/mlp.py:217 and megatron/core/fusions/fused_bias_geglu.py:185
    (megatron-core 0.16.1).
    """
    return {
        "--quick-geglu": True,
        "--glu-linear-offset": 1.0,
        "--activation-func-clamp-value": model.numerics.activation_limit or CLAMP,
    }


CLAMP = 7.0
"""``swiglu_limit`` of gpt-oss."""


def _biases(model: Model) -> dict[str, Any]:
    """Return the options of biases: one for all linears with the router, one for queries, keys and values."""
    without = {} if True in linears_have_bias(model) else {"--disable-bias-linear": True}
    return {**without, **({"--add-qkv-bias": True} if qkv_has_bias(model) and without else {})}


def _experts(model: Model) -> dict[str, Any]:
    blocks = [block for block in _feed_forwards(model) if isinstance(block, Experts)]
    if not blocks:
        return {}
    one, routed = blocks[0], [isinstance(layer.feed_forward, Experts) for layer in model.layers]
    shared = {"--moe-shared-expert-intermediate-size": one.shared_ffn_hidden_size}
    return {
        "--num-experts": one.num_experts,
        "--moe-router-topk": one.top_k,
        "--moe-ffn-hidden-size": one.ffn_hidden_size,
        "--moe-grouped-gemm": True,
        **({} if all(routed) or model.has_single_blocks else {"--moe-layer-freq": frequency_text(routed)}),
        **(shared if one.shared_ffn_hidden_size else {}),
        **({"--moe-shared-expert-gate": True} if one.shared_gate else {}),
        **({} if one.latent_size is None else {"--moe-latent-size": one.latent_size}),
    }


# --- hybrids -----------------------------------------------------------------------------------------------


def split_pattern(pattern: str, layers: Sequence[int]) -> str:
    """
    Write a pattern with a bar after the layers of each stage but the last.

    >>> split_pattern("M-M*-M", [2, 3, 1])
    'M-|M*-|M'
    """
    ends = accumulate(layers)
    return "|".join(pattern[end - count : end] for count, end in zip(layers, ends, strict=True))


def _hybrid(model: Model) -> dict[str, Any]:
    """Return the options of a hybrid: the block of each layer, and the sizes of Mamba blocks."""
    blocks = [layer.blocks[0] for layer in model.layers]
    mamba = next(block for block in blocks if isinstance(block, Mamba))
    return {
        "--is-hybrid-model": True,
        PATTERN: "".join(LETTERS[type(block)] for block in blocks),
        **write_sizes(mamba),
        "--spec": MAMBA_STACK,
    }


REQUIRED = ("--num-layers", "--hidden-size", "--num-attention-heads")

REFUSED = {
    "--heterogeneous-layers-config-path": "describes layers of different sizes",
    "--heterogeneous-layers-config-encoded-json": "describes layers of different sizes",
    "--enable-mhc-connections": "describes other residual connections",
    "--mtp-use-repeated-layer": "describes layers that share weights",
}
"""Options of models that are not imported; such a model can be written into a job file by hand."""


BY_HAND = "Write the job file by hand."

PREDICTIONS = "--mtp-num-layers"
"""Layers of multi-token prediction; the pattern of a hybrid has each after a slash of its own."""


PREDICTED = "--mtp-hybrid-override-pattern"
"""Option of older releases for the blocks of one such layer."""


def translate_pattern(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    Translate the pattern of a hybrid from core 0.17 on to options of older releases, with notes on overruled options.

    The pattern sets the number of layers, their stages and multi-token prediction (Megatron-LM 0.17.1,
    megatron/training/arguments.py:634 and 711).

    Raises
    ------
    SpecError
        If its layers of multi-token prediction differ, or its stages are no multiple of the pipeline ranks.
    """
    if STAGED_PATTERN not in arguments and PATTERN not in arguments:
        return dict(arguments), ()
    given = {name: value for name, value in arguments.items() if name != STAGED_PATTERN}
    main, *predictions = str(arguments.get(STAGED_PATTERN, arguments.get(PATTERN))).split("/")
    if len(set(predictions)) > 1:
        problem = f"has layers of multi-token prediction that differ: {', '.join(predictions)}."
        raise SpecError(f"{WHERE}.{STAGED_PATTERN}", problem)
    stages = main.split("|")
    layers = [len(stage) for stage in stages]
    said = {"--num-layers": sum(layers)}
    said |= {PREDICTIONS: len(predictions)} if predictions else {}
    overruled = [name for name, value in said.items() if given.get(name, value) != value]
    notes = tuple(
        f"{name} {given[name]}: overruled by the pattern, which has {said[name]} layers (from Megatron Core 0.17 on)."
        for name in overruled
    )
    blocks = {PREDICTED: predictions[0]} if predictions else {}
    dealt = _stages(layers, arguments.get("--pipeline-model-parallel-size", 1))
    return {**dealt, **given, **said, **blocks, PATTERN: "".join(stages)}, notes


def _stages(layers: Sequence[int], pp: int) -> dict[str, Any]:
    """Return the options of older releases for stages with these numbers of layers."""
    if len(layers) == 1 or pp < 1:
        return {}
    if len(layers) % pp:
        raise SpecError(f"{WHERE}.{STAGED_PATTERN}", f"has {len(layers)} stages, no multiple of {pp} pipeline ranks.")
    chunks = len(layers) // pp
    if len(set(layers)) == 1:
        return {CHUNKS: chunks} if chunks > 1 else {}
    is_last = len(set(layers[:-1])) == 1 and chunks == 1
    return {LAST: layers[-1]} if is_last else {LAYOUT: layout_text(layers, mtp_layers=0)}


def read_model(arguments: Mapping[str, Any]) -> tuple[str | dict[str, Any], tuple[str, ...]]:
    """
    Return the entry ``model`` of a job, and notes on assumptions.

    Raises
    ------
    SpecError
        If an option is missing, or if the model is not in the catalog and a job file cannot describe it.
    """
    for name, what in REFUSED.items():
        if name in arguments:
            raise SpecError(f"{WHERE}.{name}", f"{what}, which is not imported.", BY_HAND)
    for name in REQUIRED:
        if name not in arguments:
            raise SpecError(f"{WHERE}.{name}", "is required but missing.", f"Add {name}.")
    entry = {
        **_sizes(arguments),
        **_attention(arguments),
        **_linear_attention(arguments),
        **_read_experts(arguments),
        **_read_hybrid(arguments),
    }
    vocabulary = arguments.get("--padded-vocab-size", arguments.get("--vocab-size"))
    model = _add_details(model_from_description({**entry, "vocab_size": vocabulary or 1}, "model"), arguments)
    twins = _twins(model, vocabulary)
    if twins:
        sizes = {twin.vocab_size for twin in twins}
        if vocabulary is None and len(sizes) > 1:
            raise SpecError(f"{WHERE}.--vocab-size", f"is required: {_names(twins)} differ in nothing else.")
        note = () if vocabulary else (f"The vocabulary is that of {twins[0].name}, {twins[0].vocab_size:,} entries.",)
        return twins[0].name, note
    if vocabulary is None:
        raise SpecError(f"{WHERE}.--vocab-size", "is required but missing: no model of the catalog is like this one.")
    described = {**entry, "vocab_size": vocabulary}
    if _core(model_from_description(described, "model"), vocabulary) != _core(model, vocabulary):
        config = _gpt_oss_config(model, vocabulary)
        if config is not None:
            return config, ("The model is described as gpt-oss, whose router and experts have biases.",)
        raise SpecError(
            "model",
            "is not in the catalog, and descriptions have no words for its windows, sinks or experts.",
            "Name its config.json in the job file.",
        )
    return described, ()


def _twins(model: Model, vocabulary: int | None) -> list[Model]:
    """Return equal models of the catalog; a window may be given with the token itself or without."""
    for one in (model, _widen_windows(model)):
        core = _core(one, vocabulary)
        twins = [catalog.model(name) for name, known in _catalog_cores(sized=bool(vocabulary)).items() if known == core]
        if twins:
            return twins
    return []


@cache
def _catalog_cores(*, sized: bool) -> Mapping[str, Model]:
    """Return the facts to compare of each model of the catalog, by its name."""
    return {name: _core(catalog.model(name), int(sized)) for name in catalog.models()}


def _widen_windows(model: Model) -> Model:
    """Add the token itself to the windows of a model (``127,0`` for gpt-oss, whose windows are 128)."""
    return replace(model, layers=tuple(map(_wider, model.layers)))


def _wider(layer: Layer) -> Layer:
    attention = layer.attention
    if not isinstance(attention, Attention) or attention.window is None:
        return layer
    return replace(layer, attention=replace(attention, window=attention.window + 1))


def _gpt_oss_config(model: Model, vocabulary: int) -> dict[str, Any] | None:
    """Return the ``config.json`` of gpt-oss that equals a model but for biases of router and experts; None: no."""
    attention, experts = model.layers[0].attention, model.layers[0].feed_forward
    if not isinstance(attention, Attention) or not isinstance(experts, Experts) or not attention.sinks:
        return None
    windows = [layer.attention.window if isinstance(layer.attention, Attention) else None for layer in model.layers]
    config = {
        "model_type": "gpt_oss",
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "attention_bias": attention.qkv_bias,
        "intermediate_size": experts.ffn_hidden_size,
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.top_k,
        "vocab_size": vocabulary,
        "sliding_window": next((window for window in windows if window is not None), None),
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "tie_word_embeddings": model.tied_embeddings,
    }
    known = model_from_config(config, "model", "inline", "arguments")
    same = _core(_drop_expert_biases(known), vocabulary) == _core(_drop_expert_biases(model), vocabulary)
    return config if same else None


def _drop_expert_biases(model: Model) -> Model:
    return replace(model, layers=tuple(map(_drop_biases, model.layers)))


def _drop_biases(layer: Layer) -> Layer:
    experts = layer.feed_forward
    return (
        replace(layer, feed_forward=replace(experts, bias=False, router_bias=False))
        if isinstance(experts, Experts)
        else layer
    )


def _names(models: list[Model]) -> str:
    return " and ".join(one.name for one in models)


def _core(model: Model, vocabulary: int | None) -> Model:
    """Reduce a model to the facts to compare: no name, no multi-token prediction, no vocabulary where none is given."""
    size = model.vocab_size if vocabulary else 1
    return replace(model, name="", source="", family="", vocab_size=size, mtp_layers=(), is_text_part=False)


# --- what every model says ---------------------------------------------------------------------------------


def _sizes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    hidden, gated = arguments["--hidden-size"], "--swiglu" in arguments or "--quick-geglu" in arguments
    has_bias = "--disable-bias-linear" not in arguments
    rotary = _read_positions(arguments) in ("rope", "yarn", "mrope")
    learned = arguments.get("--max-position-embeddings", arguments.get("--seq-length", 0))
    return {
        "hidden_size": hidden,
        "num_layers": arguments["--num-layers"],
        "ffn_hidden_size": arguments.get("--ffn-hidden-size", _default_width(hidden, gated=gated)),
        "gated": gated,
        "squared_relu": "--squared-relu" in arguments,
        "mlp_bias": has_bias,
        "output_bias": has_bias,
        "qkv_bias": has_bias or "--add-qkv-bias" in arguments,
        "rotary": rotary,
        "learned_positions": learned if _read_positions(arguments) == "learned_absolute" else 0,
        "tied_embeddings": "--untie-embeddings-and-output-weights" not in arguments,
        "norm": "rms" if arguments.get("--normalization") == "RMSNorm" else "layer",
        "mtp_layers": 0 if PATTERN in arguments else arguments.get(PREDICTIONS, 0),
    }


def _read_positions(arguments: Mapping[str, Any]) -> str:
    if "--use-rotary-position-embeddings" in arguments:
        return "rope"
    return str(arguments.get("--position-embedding-type", "learned_absolute"))


def _default_width(hidden_size: int, *, gated: bool) -> int:
    """
    Default width of feed-forwards: four times the hidden size, for gated ones two thirds of that in steps of 64.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args.
    """
    return int(4 * hidden_size * 2 / 3 / 64) * 64 if gated else 4 * hidden_size


# --- attention ---------------------------------------------------------------------------------------------


def _attention(arguments: Mapping[str, Any]) -> dict[str, Any]:
    heads = {"num_heads": arguments["--num-attention-heads"]}
    grouped = "--group-query-attention" in arguments
    if "--multi-latent-attention" in arguments:
        if grouped:
            problem = "is given with --multi-latent-attention, which has no query groups."
            raise SpecError(f"{WHERE}.--group-query-attention", problem)
        if "--disable-bias-linear" not in arguments:
            problem = "is required with --multi-latent-attention: its biases are not described here."
            raise SpecError(f"{WHERE}.--disable-bias-linear", problem)
        return {**heads, **read_sizes(LatentAttention, arguments)}
    return {
        **heads,
        **({"output_gate": True} if "--attention-output-gate" in arguments else {}),
        **({"num_kv_heads": arguments.get("--num-query-groups", 1)} if grouped else {}),
        **({"head_dim": arguments["--kv-channels"]} if "--kv-channels" in arguments else {}),
        **({"qk_norm": "per_head"} if "--qk-layernorm" in arguments else {}),
        **({"window": _window(arguments["--window-size"])} if _windows_everywhere(arguments) else {}),
    }


def _windows_everywhere(arguments: Mapping[str, Any]) -> bool:
    return "--window-size" in arguments and "--window-attn-skip-freq" not in arguments


def _add_details(model: Model, arguments: Mapping[str, Any]) -> Model:
    """Add facts that no description has: windows and sinks of some layers, and experts in any layers."""
    windows = _flags(arguments, "--window-attn-skip-freq", model.num_layers) or (True,) * model.num_layers
    layers = tuple(
        _add_attention_details(layer, arguments, has_window=has_window)
        for layer, has_window in zip(_place_experts(model, arguments), windows, strict=True)
    )
    return replace(model, layers=layers, mtp_layers=(layers[-1],) * len(model.mtp_layers))


def _add_attention_details(layer: Layer, arguments: Mapping[str, Any], *, has_window: bool) -> Layer:
    attention = layer.attention
    if not isinstance(attention, Attention):
        return layer
    text = arguments.get("--window-size") if has_window else None
    details = replace(
        attention,
        window=None if text is None else _window(text),
        sinks=arguments.get("--softmax-type") == "learnable",
    )
    return replace(layer, attention=details)


VARIANT, LINEAR = "--experimental-attention-variant", "--linear-attention-freq"

DELTA_SIZES = {"num_key_heads": 16, "num_value_heads": 32, "key_head_dim": 128, "value_head_dim": 128}
"""Defaults of Megatron-LM's parser (``--linear-num-key-heads`` and others)."""

DELTA_NETS = ("gated_delta_net", "gdn")
"""Names of the gated delta net up to 0.19 and in main (gpt/experimental_attention_variant_module_specs.py:61)."""


def _linear_attention(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the entries of the gated delta net, with the interval of layers with softmax attention.

    References
    ----------
    Megatron-LM 0.17.1, megatron/core/transformer/transformer_config.py:1080 and
    gpt/experimental_attention_variant_module_specs.py, get_linear_attention_pattern; defaults of its parser.

    Raises
    ------
    SpecError
        If it is another attention, or if its layers or heads are ones that Megatron-LM refuses.
    """
    variant = arguments.get(VARIANT)
    if variant is None:
        return {}
    if variant not in DELTA_NETS:
        what = {"dsa": "sparse attention (DSA)", "gdn2": "the second gated delta net"}.get(variant, "another attention")
        raise SpecError(f"{WHERE}.{VARIANT}", f"is {variant}, {what}, which has no costs here.", BY_HAND)
    flags = _flags(arguments, LINEAR, arguments["--num-layers"])
    if flags is None:
        problem = f"is required with {VARIANT} {variant}: every how many layers softmax attention takes its place."
        raise SpecError(f"{WHERE}.{LINEAR}", problem)
    if "--disable-bias-linear" not in arguments:
        problem = f"is required with {VARIANT}: biases of the gated delta net are not described here."
        raise SpecError(f"{WHERE}.--disable-bias-linear", problem)
    sizes = {name: arguments.get(f"--linear-{name.replace('_', '-')}", size) for name, size in DELTA_SIZES.items()}
    if sizes["num_key_heads"] < 1 or sizes["num_value_heads"] % sizes["num_key_heads"]:
        problem = f"is {sizes['num_value_heads']}, must be a multiple of --linear-num-key-heads "
        raise SpecError(f"{WHERE}.--linear-num-value-heads", f"{problem}{sizes['num_key_heads']}.")
    kernel = {"linear_conv_kernel": arguments.get("--linear-conv-kernel-dim", 4)}
    return {
        "full_attention_interval": _interval(flags),
        **{f"linear_{name}": size for name, size in sizes.items()},
        **kernel,
    }


def _interval(flags: Sequence[bool]) -> int:
    """Interval of layers with softmax attention; larger than the number of layers where all are linear."""
    found = len(flags) + 1 if all(flags) else [*flags].index(False) + 1
    if any(flag != bool((index + 1) % found) for index, flag in enumerate(flags)):
        text = "".join(str(int(flag)) for flag in flags)
        problem = f"is {text[:80]}: layers with softmax attention that are no equal distance apart have no word here."
        raise SpecError(f"{WHERE}.{LINEAR}", problem, "Name its config.json in the job file.")
    return found


def _window(text: str) -> int:
    found = re.fullmatch(r"\(?\s*(\d{1,9})\s*,\s*0\s*\)?", text)
    if not found or int(found.group(1)) < 1:
        raise SpecError(f"{WHERE}.--window-size", f"expected tokens before and after such as 128,0, got {shown(text)}.")
    return int(found.group(1))


# --- hybrids -----------------------------------------------------------------------------------------------


def _read_hybrid(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return pattern and Mamba blocks of a hybrid (defaults: megatron/core/transformer/transformer_config.py)."""
    if PATTERN not in arguments:
        if "--is-hybrid-model" in arguments:
            problem = f"is given without {STAGED_PATTERN}, which has the block of each layer."
            raise SpecError(f"{WHERE}.--is-hybrid-model", problem)
        return {}
    pattern, sizes, letters = arguments[PATTERN], read_sizes(Mamba, arguments), LETTERS.values()
    if not pattern or not set(pattern) <= set(letters):
        problem = f"expected letters of {' '.join(letters)}, got"
        raise SpecError(f"{WHERE}.{STAGED_PATTERN}", f"{problem} {shown(pattern)}.", BY_HAND)
    if sizes["head_dim"] < 1:
        raise SpecError(f"{WHERE}.--mamba-head-dim", f"is {sizes['head_dim']}, must be at least 1.")
    if sizes["num_heads"] is None:
        sizes["num_heads"] = 2 * arguments["--hidden-size"] // sizes["head_dim"]
    return {
        "pattern": pattern,
        **_hybrid_prediction(arguments),
        **{f"mamba_{name}": size for name, size in sizes.items()},
    }


def _hybrid_prediction(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return multi-token prediction of a hybrid, whose layers are two blocks each of the pattern."""
    depth, blocks = arguments.get(PREDICTIONS, 0), arguments.get(PREDICTED)
    if not depth:
        return {}
    if blocks is None:
        problem = f"is {depth}; the pattern says of which blocks: {STAGED_PATTERN} M*-/*E."
        raise SpecError(f"{WHERE}.{PREDICTIONS}", problem)
    if len(blocks) != 2 or not set(blocks) <= set(LETTERS.values()):
        problem = f"has a layer of multi-token prediction of {shown(blocks)}; two blocks of it have costs here."
        raise SpecError(f"{WHERE}.{STAGED_PATTERN}", problem, BY_HAND)
    return {"mtp_layers": depth, "mtp_pattern": blocks}


# --- experts -----------------------------------------------------------------------------------------------


def _read_experts(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if "--num-experts" not in arguments:
        return {}
    has_bias = "--disable-bias-linear" not in arguments
    flags = _flags(arguments, "--moe-layer-freq", arguments["--num-layers"])
    return {
        "num_experts": arguments["--num-experts"],
        "top_k": arguments.get("--moe-router-topk", 2),
        "expert_ffn_hidden_size": arguments.get("--moe-ffn-hidden-size") or _sizes(arguments)["ffn_hidden_size"],
        "shared_ffn_hidden_size": arguments.get("--moe-shared-expert-intermediate-size", 0),
        "shared_gate": "--moe-shared-expert-gate" in arguments,
        "router_bias": has_bias,
        **({"expert_latent_size": arguments["--moe-latent-size"]} if "--moe-latent-size" in arguments else {}),
        **(_pattern(flags) if flags else {}),
    }


def _pattern(flags: tuple[bool, ...]) -> dict[str, int]:
    """Return the number of dense layers in front and the interval of MoE layers; empty where flags are irregular."""
    for interval in range(1, len(flags) + 1):
        for first in range(len(flags)):
            dealt = tuple(index >= first and (index - first + 1) % interval == 0 for index in range(len(flags)))
            if dealt == flags:
                return {"first_dense_layers": first, "moe_layer_interval": interval}
    return {}


def _place_experts(model: Model, arguments: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Return the layers of a model with experts where the arguments place them, also irregularly."""
    flags = _flags(arguments, "--moe-layer-freq", model.num_layers) if "--num-experts" in arguments else None
    if flags is None or _pattern(flags):
        return model.layers
    plain = {**_sizes(arguments), **_attention(arguments), "vocab_size": model.vocab_size, "mtp_layers": 0}
    dense, routed = model_from_description(plain, "model").layers[0], model.layers[0]
    return tuple(
        replace(layer, feed_forward=(routed if flag else dense).feed_forward)
        for layer, flag in zip(model.layers, flags, strict=True)
    )


def _flags(arguments: Mapping[str, Any], name: str, num_layers: int) -> tuple[bool, ...] | None:
    """
    Read the layers of an option, given as every n-th or as a list such as ``([0]*3+[1]*58)``.

    References
    ----------
    Megatron-LM, megatron/core/models/gpt/gpt_layer_specs.py and megatron/core/transformer/utils.py:452.
    """
    text = arguments.get(name)
    if text is None:
        return None
    plain = re.sub(r"\s", "", str(text))
    if plain.isdigit() and int(plain):
        every = int(plain)
        if name == "--moe-layer-freq":
            return tuple(index % every == 0 for index in range(num_layers))
        return tuple((index + 1) % every != 0 for index in range(num_layers))
    flags = frequency_flags(plain, f"{WHERE}.{name}")
    if len(flags) != num_layers:
        raise SpecError(f"{WHERE}.{name}", f"is of {len(flags)} layers, the model has {num_layers}: {shown(text)}.")
    return flags
