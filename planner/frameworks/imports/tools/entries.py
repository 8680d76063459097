"""Import of GPT-NeoX, nanotron and llm-foundry, whose keys are entries of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from costmodel.errors import SpecError
from costmodel.lowering.framework import balance_stages
from costmodel.validation import shown
from planner.frameworks.imports.finish import complete_job, degree, devices_contradicted, prepare_job, release_assumed
from planner.frameworks.imports.named import model_named, vocabulary_of
from planner.frameworks.imports.tools.keys import Meaning, meaning_of, text_of
from planner.frameworks.imports.tools.references import File, read_mapping
from planner.frameworks.megatron.read import Imported
from planner.jobs.document import set_entry

GPT2 = "GPT2BPETokenizer"
"""Tokenizer whose vocabulary needs no file."""

LOCAL = "local_setup.yml"
"""GPT-NeoX's second file of a run, with the paths of data and tokenizer."""


def neox_job(file: File) -> Imported:
    """Import GPT-NeoX: its own keys with dashes or underscores, and ZeRO by DeepSpeed."""
    beside = file.path.parent / LOCAL
    other = read_mapping(beside) if os.path.isfile(beside) and file.path.name != LOCAL else {}
    flat = file.flat({name.replace("-", "_"): value for name, value in {**other, **file.content}.items()})
    if "num_layers" not in flat:
        problem = "is a part of a run of GPT-NeoX, which merges several files: it has no num_layers."
        raise SpecError(str(file.path), problem, "Import the file with num_layers, with this one's keys in it.")
    meaning = meaning_of("gpt_neox", flat)
    meaning.notes += [f"{LOCAL} beside it counts for what it alone says, as in a run with both."] if other else []
    meaning.entries["model.ffn_hidden_size"] = _neox_width(flat, is_gated=meaning.entries.pop("given.gated", False))
    entries = meaning.entries
    number = [flat.get(name) for name in ("num_nodes", "num_gpus")]
    if all(isinstance(one, int) and one > 0 for one in number):
        entries["cluster.num_devices"] = prod(number)
    if not {"strategy.mbs", "training.global_batch_size"} <= {*entries}:
        entries.setdefault("given.accumulation", 1)
    newer = [name for name in NEWER if text_of(entries.get(name)) not in ("null", "false", "1")]
    meaning.notes += [f"{meaning.keys[name]}: a key since 2024, costed on gpt-neox-2.0." for name in newer]
    features = {name.partition(".")[2]: NEWER[name] for name in newer}
    return _job(file, meaning, {"base": NEOX, "features": features} if newer else NEOX)


NEOX = "gpt-neox-2.0"
MOST_LAYERS = 10_000
NEWER = {"strategy.sequence_parallel": ["false", "true"], "strategy.cp": ["1", "many"]}
"""Decisions that GPT-NeoX has learnt after that release, with their values."""


def _deal_layers(method: str, num_layers: int, pp: int) -> list[int]:
    """
    Layers of each stage as DeepSpeed cuts GPT-NeoX's list of modules.

    References
    ----------
    GPT-NeoX, megatron/model/gpt2_model.py, init_specs; DeepSpeed, runtime/pipe/module.py, _partition_layers: functions
    have names, too.
    """
    if not pp <= num_layers <= MOST_LAYERS:
        raise SpecError("pipe_parallel_size", f"is {pp}, of {num_layers} layers; expected at most one for each layer.")
    names = ["EmbeddingPipe", "_pre_transformer_block", *["ParallelTransformerLayerPipe"] * num_layers]
    names += ["_post_transformer_block", "NormPipe", "ParallelLinearPipe"]
    kind, _, pattern = method.lower().partition(":")
    if kind == "uniform":
        size, more = divmod(len(names), pp)
        bounds: Sequence[int] = [*accumulate([0, *(size + (stage < more) for stage in range(pp))])]
    elif kind == "type" and re.fullmatch(r"[\w|]+", pattern):
        bounds = balance_stages([int(bool(re.search(pattern, name.lower()))) for name in names], pp)
    else:
        problem = f"is {shown(method)}; type:NAME|NAME and uniform are read."
        raise SpecError("pipe_partition_method", problem, "Add strategy.layout='{layers: [...]}'.")
    return [min(end, num_layers + 2) - min(max(begin, 2), num_layers + 2) for begin, end in pairwise(bounds)]


def _neox_width(flat: Mapping[str, Any], *, is_gated: bool) -> int:
    """
    Default width of feed-forwards, relative to four times the hidden size.

    It is a third of that for gated ones, and two thirds for ``mlp_type: llama``.

    References
    ----------
    GPT-NeoX, megatron/model/transformer.py: ``ParallelMLP`` and ``LLaMAParallelMLP``.
    """
    hidden = degree(flat.get("hidden_size"), "hidden_size")
    is_llama = flat.get("mlp_type") == "llama"
    if is_llama and not flat.get("intermediate_size"):
        return 256 * -(-int(2 * hidden * 4 / 3) // 256)
    times = degree(flat.get("expansion_factor") or 4, "expansion_factor")
    width = degree(flat.get("intermediate_size") or hidden * times, "intermediate_size")
    step = degree(flat.get("mlp_multiple_of") or 1, "mlp_multiple_of")
    return step * -(-(width * 2 // 3 // 2 if is_gated else width) // step)


def nanotron_job(file: File) -> Imported:
    """Import nanotron: degrees, tokens and a model in the hub's keys; the product of all degrees is the devices."""
    meaning = meaning_of("nanotron", file.flat())
    names = ("given.dp", "strategy.tp", "strategy.pp", "strategy.cp")
    sizes = [degree(meaning.entries.get(name, 1), meaning.keys.get(name, name)) for name in names]
    meaning.entries["cluster.num_devices"] = prod(sizes)
    return _job(file, meaning, "nanotron-0.4")


def foundry_job(file: File) -> Imported:
    """Import llm-foundry: MPT by its sizes or a model of the hub by name, with PyTorch's FSDP or whole replicas."""
    flat = file.flat()
    meaning = meaning_of("llm_foundry", flat)
    entries = meaning.entries
    if not any(name.startswith(("fsdp_config.", "parallelism_config.")) for name in flat):
        entries["strategy.sharding"] = "none"
    if flat.get("model.name") == "hf_causal_lm":
        meaning.entries = {name: value for name, value in entries.items() if not name.startswith("model.")}
        meaning.entries["model"] = _find_hub_model(file, text_of(flat.get("model.pretrained_model_name_or_path")))
    else:
        learned = 0 if "given.positions" in entries else entries.get("training.sequence_length", 0)
        hidden, times = (
            degree(flat.get(f"model.{name}", 4), f"model.{name}") for name in ("d_model", "expansion_ratio")
        )
        width = flat.get("model.ffn_config.ffn_hidden_size") or hidden * times
        entries |= {"model.learned_positions": learned, "model.ffn_hidden_size": width}
    return _job(file, meaning, "llm-foundry-0.6")


def _find_hub_model(file: File, name: str) -> Any:
    known = model_named(name)
    if known is None and file.says("model") is None:
        hint = "Add model=NAME, one of planner catalog models, or the path of its config.json."
        raise SpecError("model.pretrained_model_name_or_path", f"{shown(name)} is no model that is known here.", hint)
    return known or ""


# --- what is common ----------------------------------------------------------------------------------------


COUNTS = ("training.sequence_length", "training.global_batch_size", "strategy.mbs")
"""Entries that are multiplied before a job checks them, and are checked here."""


def _job(file: File, meaning: Meaning, framework: Any) -> Imported:
    """Complete entries to a job, overridden by those of the command; dp takes the remaining devices."""
    document: dict[str, Any] = {"cluster": {"framework": framework}}
    for name, value in meaning.entries.items():
        set_entry(document, name, degree(value, meaning.keys[name]) if name in COUNTS else value)
    given = document.pop("given", {})
    document = prepare_job(document, file.overrides)
    strategy, training, model = document["strategy"], document["training"], document.get("model")
    if isinstance(model, dict) and "base" not in model and "model_type" not in model:
        _complete_model(model, given, meaning)
    tp, pp, cp = (degree(strategy.setdefault(name, 1), f"strategy.{name}") for name in ("tp", "pp", "cp"))
    dp = max(1, degree(document["cluster"]["num_devices"], "cluster.num_devices") // (tp * pp * cp))
    strategy.setdefault("dp", dp)
    lonely = {"sharding": "none", "dp_overlap": False} if dp * cp == 1 else {}
    lonely |= {"sequence_parallel": False, "tp_overlap": False} if tp == 1 else {}
    idle = [
        meaning.keys.get(f"strategy.{name}", name) for name in lonely if strategy.get(name) not in (None, lonely[name])
    ]
    strategy |= {"sequence_parallel": False, **strategy, **lonely}
    remarks = [f"Ignored (one rank has nobody to share with): {', '.join(idle)}."] if idle else []
    if "partition" in given and pp > 1 and isinstance(model, dict) and "layout" not in strategy:
        layers = degree(model.get("num_layers"), "num_layers")
        strategy["layout"] = {"layers": _deal_layers(text_of(given["partition"]), layers, pp)}
    said = {*meaning.entries, *(entry.partition("=")[0] for entry in file.overrides)}
    release = release_assumed(framework if isinstance(framework, str) else framework["base"], file.overrides)
    other = devices_contradicted(meaning.entries.get("cluster.num_devices"), file.overrides)
    try:
        _settle_batches(file, strategy, training, given)
        _add_tokens(training, given)
        return complete_job(document, [*release, *other, *meaning.notes, *remarks], said=said)
    except SpecError as error:
        raise SpecError(meaning.keys.get(error.where, error.where), error.problem, error.hint) from None


def _settle_batches(file: File, strategy: dict[str, Any], training: dict[str, Any], given: Mapping[str, Any]) -> None:
    """
    Derive the third of batch, micro-batch and steps of accumulation, unless the command says one of them.

    References
    ----------
    DeepSpeed, runtime/config.py, _set_batch_related_parameters.
    """
    steps, dp = degree(given.get("accumulation", 1), "gradient accumulation"), degree(strategy["dp"], "strategy.dp")
    batch = training.get("global_batch_size")
    if "mbs" not in strategy and "accumulation" in given and isinstance(batch, int):
        strategy["mbs"] = max(1, batch // (steps * dp))
    if "mbs" not in strategy:
        return
    if batch is None and "accumulation" not in given:
        raise SpecError("training.global_batch_size", "is not said.", "Add training.global_batch_size=1024.")
    product = degree(strategy["mbs"], "strategy.mbs") * steps * dp
    free = any(file.says(name) for name in ("strategy.mbs", "training.global_batch_size"))
    if training.setdefault("global_batch_size", product) != product and "accumulation" in given and not free:
        problem = f"is {batch}; micro-batch {strategy['mbs']} x {steps} steps x {dp} replicas are {product}."
        raise SpecError("training.global_batch_size", problem)


def _complete_model(model: dict[str, Any], given: Mapping[str, Any], meaning: Meaning) -> None:
    """Add entries that several keys determine: widths of experts, and the tokenizer's vocabulary."""
    if "num_experts" in model:
        width = model.get("ffn_hidden_size")
        own = {
            "top_k": given.get("top_k", 1),
            "expert_ffn_hidden_size": width,
            "moe_layer_interval": given.get("interval", 1),
        }
        model |= {**own, **model}
        if given.get("shared"):
            model.setdefault("shared_ffn_hidden_size", model["expert_ffn_hidden_size"])
    if "vocab_size" not in model:
        kind, vocabulary = (text_of(given.get(name, "")) for name in ("tokenizer_type", "vocab_file"))
        key = "vocab_file" if vocabulary and kind != GPT2 else "tokenizer_type"
        known = vocabulary_of({f"--{key.replace('_', '-')}": [vocabulary if key == "vocab_file" else kind]})
        if known is None:
            raise SpecError("model.vocab_size", "is not said.", "Add model.vocab_size=50304.")
        model["vocab_size"] = known.entries
        source = f"{known.entries:,} entries ({known.source})"
        meaning.notes.append(f"{key}: assumed to be of {source}; model.vocab_size=N says another number.")


def _add_tokens(training: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Add the length of the training, from steps, batches (``100ba``) or tokens (``1000tok``)."""
    batch, length = training.get("global_batch_size"), training.get("sequence_length")
    steps, tokens = (
        text_of(given.get(name, "")).removesuffix(end) for name, end in (("steps", "ba"), ("tokens", "tok"))
    )
    if tokens.isdecimal() and int(tokens):
        training.setdefault("tokens", int(tokens))
    elif steps.isdecimal() and int(steps) and isinstance(batch, int) and isinstance(length, int):
        training.setdefault("tokens", int(steps) * batch * length)
