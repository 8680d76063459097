"""Options of forks whose meaning depends on other options, as options of Megatron-LM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from costmodel.errors import SpecError
from costmodel.lowering.framework import balance_stages
from costmodel.validation import shown
from planner.frameworks.megatron.options import WHERE
from planner.frameworks.megatron.stages import CHUNK_LAYERS, CHUNKS, LAYOUT, MOST_STAGES, layout_text
from planner.frameworks.shell.text import unknown_names, write_unknowns

Given: TypeAlias = Mapping[str, list[str]]
Words: TypeAlias = dict[str, list[str]]
"""Options that replace others; an empty name has a note."""

DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--deepspeed-config", "--moe-expert-parallel-size")
"""Options that only Megatron-DeepSpeed has; its scripts need one of them."""

STAGES, METHOD = "--pipeline-model-parallel-size", "--pp-partition-method"
METHODS = {"type:transformer": 0, "type:transformer|embedding": 1}
"""Weight of an embedding in layers, by method of partition."""

MOST_DIGITS = 18

MOST_SPARSE = 4
"""
Largest ratio of sequence length to ``--index-topk`` at which sparse attention is costed as dense.

For DeepSeek V3.2 at 4,096 tokens core attention takes a twentieth of a step; the scores of the indexer offset a fifth
of that.
"""


def translate_to_megatron(pairs: Sequence[tuple[str, list[str]]]) -> Iterator[tuple[str, list[str]]]:
    """
    Yield options, with those of forks that depend on other options translated to Megatron-LM's.

    Raises
    ------
    SpecError
        If they describe a feature without options in Megatron-LM.
    """
    given = dict(pairs)
    taken: set[str] = set()
    more = list[tuple[str, list[str]]]()
    for names, read in MEANINGS:
        if names[0] in given and (words := read(given)) is not None:
            taken |= {*names}
            more += words.items() or [("", [f"{names[0]} {' '.join(given[names[0]])}: nothing changes by it."])]
    yield from ((name, values) for name, values in pairs if name not in taken)
    yield from more


def _number(given: Given, name: str, default: int | None = None) -> int:
    """Return the whole number of an option, or refuse a variable without a value and anything else."""
    words = given.get(name, [])
    if not words and default is not None:
        return default
    if not words:
        raise SpecError(f"{WHERE}.{name}", "is required but missing.")
    if names := unknown_names(" ".join(words)):
        hint = f"Say it: {' '.join(f'--set {one}=VALUE' for one in names if one.isidentifier() or one.isdecimal())}."
        raise SpecError(f"{WHERE}.{name}", f"is {write_unknowns(' '.join(words))}, which the script leaves open.", hint)
    if len(words) != 1 or not words[0].lstrip("-").isdecimal():
        raise SpecError(f"{WHERE}.{name}", f"expected a whole number, got {shown(' '.join(words))}.")
    if len(words[0]) > MOST_DIGITS or (name == "--num-layers" and int(words[0]) > MOST_STAGES):
        raise SpecError(f"{WHERE}.{name}", f"is {shown(words[0])}, more than any model has.")
    return int(words[0])


def _deepspeed_experts(given: Given) -> Words | None:
    """
    Translate experts, by default in every second layer with top-1 routing.

    Without ``--enable-expert-tensor-parallelism`` tensor-parallel ranks do not split an expert (Megatron-DeepSpeed,
    megatron/arguments.py and model/transformer.py).
    """
    if not any(name in given for name in DEEPSPEED):
        return None
    numbers = given["--num-experts"]
    if len(set(numbers)) > 1:
        problem = f"is {' '.join(numbers)}: a pyramid of experts (PR-MoE); the planner knows experts of one number."
        raise SpecError(f"{WHERE}.--num-experts", problem)
    if _number({"--num-experts": numbers[:1]}, "--num-experts") == 1:
        return {"": [f"{', '.join(name for name in EXPERTS if name in given)}: one expert is a dense feed-forward."]}
    every = _number(given, "--expert-interval", 2)
    assumed = {"--expert-interval": "2", "--topk": "1"}
    silent = " ".join(f"{name} {value}" for name, value in assumed.items() if name not in given)
    flags = ",".join("1" if (layer + 1) % every == 0 else "0" for layer in range(_number(given, "--num-layers")))
    tensor = given.get("--tensor-model-parallel-size", ["1"])
    return {
        "--num-experts": numbers[:1],
        "--moe-router-topk": given.get("--topk", ["1"]),
        "--moe-layer-freq": [f"([{flags}])"],
        "--expert-model-parallel-size": given.get("--moe-expert-parallel-size", ["1"]),
        "--expert-tensor-parallel-size": tensor if "--enable-expert-tensor-parallelism" in given else ["1"],
        "--moe-token-dispatcher-type": ["alltoall"],
        "--moe-grouped-gemm": [],
        "": [f"Megatron-DeepSpeed's defaults count: {silent}."] if silent else [],
    }


def _zero(given: Given) -> Words | None:
    """
    Translate ZeRO's stage to sharding; stage 0 in BF16 uses BF16_Optimizer, which shards states as stage 1.

    References
    ----------
    DeepSpeed, runtime/engine.py, _configure_optimizer and _configure_bf16_optimizer.
    """
    stage = _number(given, "--zero-stage", 0)
    strategies = {2: "optim_grads", 3: "optim_grads_params"}
    if stage in strategies:
        return {"--use-megatron-fsdp": [], "--data-parallel-sharding-strategy": [strategies[stage]]}
    if stage not in (0, 1):
        raise SpecError(f"{WHERE}.--zero-stage", f"is {stage}, expected 0, 1, 2 or 3.")
    if stage == 0 and "--bf16" in given:
        note = "ZeRO stage 0 in BF16: DeepSpeed's BF16_Optimizer shards the states all the same."
        return {"--use-distributed-optimizer": [], "": [note]}
    return {"--use-distributed-optimizer": []} if stage == 1 else {}


def _translate_gates(given: Given) -> Words | None:
    """Translate gated feed-forwards; the default width stays four times the hidden size (BigScience)."""
    width = given.get("--ffn-hidden-size") or [str(4 * _number(given, "--hidden-size"))]
    return {"--swiglu": [], "--ffn-hidden-size": width}


def _dense_in_front(given: Given) -> Words | None:
    """Translate dense layers in front: -1 is none, and layers without computation do not count (MindSpeed)."""
    first, every = _number(given, "--first-k-dense-replace"), _number(given, "--moe-layer-freq", 1)
    every = every if every > 0 else 1
    layers = [number for number in range(_number(given, "--num-layers")) if number not in _noops(given)]
    flags = ",".join("1" if number >= first and number % every == 0 else "0" for number in layers)
    return {"--moe-layer-freq": [f"([{flags}])"]}


def _translate_shared_experts(given: Given) -> Words | None:
    """Translate the number of shared experts of a routed expert's width to the width of one."""
    number = _number(given, "--n-shared-experts")
    names = ("--moe-ffn-hidden-size", "--moe-intermediate-size", "--ffn-hidden-size")
    width = _number(given, next((name for name in names if name in given), names[0]))
    return {"--moe-shared-expert-intermediate-size": [str(number * width)]}


def _noops(given: Given) -> set[int]:
    words = [word for word in ",".join(given.get("--noop-layers", [])).split(",") if word]
    if not all(word.isdecimal() for word in words):
        problem = f"expected numbers of layers such as 1,47, got {shown(' '.join(given['--noop-layers']))}."
        raise SpecError(f"{WHERE}.--noop-layers", problem)
    return {int(word) for word in words}


def _remove_noops(given: Given) -> Words | None:
    """Remove layers without computation, and place the remaining ones by a custom pipeline layout."""
    noops, total = _noops(given), _number(given, "--num-layers")
    stages = _number(given, STAGES, 1)
    size = _number(given, CHUNK_LAYERS, -(-total // stages))
    if size < 1 or total % size or (total // size) % stages:
        problem = f"is {size}; {total} layers are no such chunks on {stages} pipeline ranks."
        raise SpecError(f"{WHERE}.{CHUNK_LAYERS}", problem)
    chunks = [sum(layer not in noops for layer in range(start, start + size)) for start in range(0, total, size)]
    more = {LAYOUT: [layout_text(chunks, mtp_layers=_number(given, "--mtp-num-layers", 0))]} if len(chunks) > 1 else {}
    return {"--num-layers": [str(sum(chunks))], **more}


def _translate_recomputation(given: Given) -> Words | None:
    """
    Layers that are recomputed of a whole rank, one of each chunk in turn, where Megatron-LM counts those of a chunk.

    References
    ----------
    MindSpeed, mindspeed/core/transformer/transformer.py, should_recompute_activation.
    """
    stages, size = _number(given, STAGES, 1), _number(given, CHUNK_LAYERS, 0)
    chunks = _number(given, "--num-layers") // (stages * size) if stages * size > 0 else _number(given, CHUNKS, 1)
    if given.get("--recompute-method") != ["block"] or "--recompute-num-layers" not in given or chunks < 2:
        return None
    number = _number(given, "--recompute-num-layers")
    if number % chunks:
        problem = f"is {number} for a rank of {chunks} chunks, which recompute unlike numbers of layers then."
        raise SpecError(f"{WHERE}.--recompute-num-layers", problem, f"Give a multiple of {chunks}.")
    return {"--recompute-num-layers": [str(number // chunks)]}


def _deal_piped_layers(given: Given) -> Words | None:
    """
    Layers as DeepSpeed deals them where they do not divide; embeddings count with ``type:transformer|embedding``.

    References
    ----------
    Megatron-DeepSpeed, megatron/model/gpt_model.py, GPTModelPipe; DeepSpeed, runtime/pipe/module.py, _partition_layers.
    """
    method = " ".join(given.get(METHOD, ["type:transformer"])).lower()
    is_piped = not {"--deepspeed", METHOD}.isdisjoint(given) and "--no-pipeline-parallel" not in given
    if method not in METHODS or not is_piped or unknown_names(" ".join(given[STAGES])):
        return None
    stages, layers, end = _number(given, STAGES), _number(given, "--num-layers"), METHODS[method]
    if stages < 2 or layers + 2 * end < stages or (layers + 2 * end) % stages == 0:
        return None
    bounds = balance_stages([end, *[1] * layers, end], stages)
    dealt = [min(last, layers + 1) - max(first, 1) for first, last in pairwise(bounds)]
    note = (
        f"{layers} layers do not divide over {stages} pipeline ranks: dealt as {', '.join(map(str, dealt))}, as "
        f"DeepSpeed's PipelineModule does by {method} since 0.12; strategy.layout says otherwise."
    )
    return {STAGES: given[STAGES], LAYOUT: [layout_text(dealt, mtp_layers=0)], "": [note]}


def _translate_layer_list(given: Given) -> Words | None:
    """Translate the numbers of layers of all stages to a custom pipeline layout."""
    layers = [int(word) for word in ",".join(given["--num-layer-list"]).split(",") if word.isdecimal()]
    if sum(layers) != _number(given, "--num-layers"):
        problem = f"is {' '.join(given['--num-layer-list'])}, which are not the layers of the model."
        raise SpecError(f"{WHERE}.--num-layer-list", problem)
    return {LAYOUT: [layout_text(layers, mtp_layers=_number(given, "--mtp-num-layers", 0))]} if layers[1:] else {}


def _experts_on_tensor_ranks(given: Given) -> Words | None:
    """Translate experts placed over tensor-parallel ranks to etp, which holds as many weights on each device."""
    note = "--moe-tp-extend-ep deals experts over TP ranks: costed as expert-tensor parallelism, which holds as much."
    return {"--expert-tensor-parallel-size": given.get("--tensor-model-parallel-size", ["1"]), "": [note]}


def _overlap_of_experts(given: Given) -> Words | None:
    """Translate the overlap of MoE communication, which Megatron-LM excludes with full recomputation."""
    if given.get("--recompute-granularity") != ["full"]:
        return {"--overlap-moe-expert-parallel-comm": []}
    return {"": ["--moe-fb-overlap beside full recomputation: costed as if communication of experts were exposed."]}


def _levels_of_context(given: Given) -> Words | None:
    """Translate MindSpeed's hybrid of all-to-all and ring: the ranks of each (context_parallel_algo)."""
    if given.get("--context-parallel-algo") != ["hybrid_cp_algo"]:
        return None
    inner, ranks = _number(given, "--ulysses-degree-in-cp"), _number(given, "--context-parallel-size", 1)
    if inner < 1 or ranks % inner:
        raise SpecError(f"{WHERE}.--ulysses-degree-in-cp", f"is {inner}, which does not divide {ranks} context ranks.")
    return {"--hierarchical-context-parallel-sizes": [str(inner), str(ranks // inner)]}


def _tokens(given: Given) -> Words | None:
    """Translate the length of the training in tokens, where no other option sets it."""
    if "--train-iters" in given or "--train-samples" in given:
        return {}
    return {"--train-samples": [str(_number(given, "--train-tokens") // max(_number(given, "--seq-length"), 1))]}


def _sparse(given: Given) -> Words | None:
    """Cost sparse attention of short sequences as dense, or refuse it."""
    length, kept = _number(given, "--seq-length"), _number(given, "--index-topk", 2048)
    if "--enable-mhc" in given:
        return None
    if length > MOST_SPARSE * kept:
        problem = f"is sparse attention (DSA) over {length:,} tokens of which {kept:,} count; it has no costs here."
        raise SpecError(f"{WHERE}.--enable-dsa-indexer", problem)
    return {
        "": [f"--enable-dsa-indexer, sparse attention: costed as dense over {length:,} tokens, without its indexer."]
    }


def model_entries(given: Given) -> dict[str, str]:
    """
    Return entries of the job for layers that have no options in Megatron-LM.

    MindSpeed's ``--post-norm`` adds norms behind attention and feed-forward; its ``--interleave-sliding-window`` is
    Gemma 2's window in every other layer.
    """
    if "--interleave-sliding-window" not in given:
        return {"model.num_norms": "4"} if "--post-norm" in given else {}
    sizes = {
        "hidden_size": "--hidden-size",
        "num_hidden_layers": "--num-layers",
        "num_attention_heads": "--num-attention-heads",
        "intermediate_size": "--ffn-hidden-size",
        "sliding_window": "--interleave-sliding-window",
        "head_dim": "--kv-channels",
        "num_key_value_heads": "--num-query-groups",
        "vocab_size": "--padded-vocab-size" if "--padded-vocab-size" in given else "--vocab-size",
    }
    config = {name: _number(given, option) for name, option in sizes.items()}
    entry = {"config": {"model_type": "gemma2", **config}, "name": "gemma2", "source": "arguments of MindSpeed-LLM"}
    return {"model": json.dumps(entry)}


EXPERTS = ("--num-experts", "--topk", "--expert-interval", "--moe-expert-parallel-size")

MEANINGS: tuple[tuple[tuple[str, ...], Callable[[Given], Words | None]], ...] = (
    ((*EXPERTS, "--enable-expert-tensor-parallelism"), _deepspeed_experts),
    (("--zero-stage",), _zero),
    (("--glu-activation",), _translate_gates),
    (("--first-k-dense-replace", "--moe-layer-freq"), _dense_in_front),
    (("--n-shared-experts",), _translate_shared_experts),
    (("--noop-layers", "--num-layers", "--num-layers-per-virtual-pipeline-stage"), _remove_noops),
    (("--num-layer-list",), _translate_layer_list),
    ((STAGES, METHOD), _deal_piped_layers),
    (("--enable-recompute-layers-per-pp-rank", "--recompute-num-layers"), _translate_recomputation),
    (("--moe-tp-extend-ep", "--expert-tensor-parallel-size"), _experts_on_tensor_ranks),
    (("--moe-fb-overlap",), _overlap_of_experts),
    (("--ulysses-degree-in-cp",), _levels_of_context),
    (("--train-tokens",), _tokens),
    (("--enable-dsa-indexer", "--index-topk"), _sparse),
)
"""Options that are translated together, with the function; it applies where the first of them is given."""
