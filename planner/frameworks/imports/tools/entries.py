"""Import of GPT-NeoX, nanotron and llm-foundry, whose keys are entries of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any

import yaml

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.finish import degree, finished, prepared, release_assumed
from planner.frameworks.imports.named import model_named, vocabulary_of
from planner.frameworks.imports.tools.files import File, read_mapping
from planner.frameworks.imports.tools.keys import Meaning, meaning_of, text_of
from planner.frameworks.megatron.read import Imported
from planner.jobs.document import set_entry

NANOTRON = """
base: megatron-core-0.8
behaviour:
  kernels: {loss_forward_bytes: 38.0, loss_backward_bytes: 14.0}
  memory: {logit_bytes: 10.0, gathered_inputs: true, weight_gradient_bytes: 0.0}
"""
"""Framework of nanotron's costs, as for its measured runs (benchmarks/grid/nanotron.yaml, with file and line)."""

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
    return _job(file, meaning, "gpt-neox-2.0")


def _neox_width(flat: Mapping[str, Any], *, is_gated: bool) -> int:
    """
    Default width of feed-forwards, relative to four times the hidden size.

    It is a third of that for gated ones, and two thirds for ``mlp_type: llama``.

    References
    ----------
    GPT-NeoX, megatron/model/transformer.py: ``ParallelMLP`` and ``LLaMAParallelMLP``.
    """
    hidden = degree(flat.get("hidden_size"), "hidden_size")
    if flat.get("mlp_type") == "llama" and not flat.get("intermediate_size"):
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
    return _job(file, meaning, yaml.safe_load(NANOTRON))


def foundry_job(file: File) -> Imported:
    """Import llm-foundry: MPT by its sizes or a model of the hub by name, with PyTorch's FSDP or whole replicas."""
    flat = file.flat()
    meaning = meaning_of("llm_foundry", flat)
    entries = meaning.entries
    if not any(name.startswith(("fsdp_config.", "parallelism_config.")) for name in flat):
        entries["strategy.sharding"] = "none"
    if flat.get("model.name") == "hf_causal_lm":
        meaning.entries = {name: value for name, value in entries.items() if not name.startswith("model.")}
        meaning.entries["model"] = _of_hub(file, text_of(flat.get("model.pretrained_model_name_or_path")))
    else:
        learned = 0 if "given.positions" in entries else entries.get("training.sequence_length", 0)
        hidden, times = (
            degree(flat.get(f"model.{name}", 4), f"model.{name}") for name in ("d_model", "expansion_ratio")
        )
        width = flat.get("model.ffn_config.ffn_hidden_size") or hidden * times
        entries |= {"model.learned_positions": learned, "model.ffn_hidden_size": width}
    return _job(file, meaning, "llm-foundry-0.6")


def _of_hub(file: File, name: str) -> Any:
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
    document = prepared(document, file.overrides)
    strategy, training, model = document["strategy"], document["training"], document.get("model")
    if isinstance(model, dict) and "base" not in model and "model_type" not in model:
        _complete_model(model, given, meaning)
    tp, pp, cp = (degree(strategy.setdefault(name, 1), f"strategy.{name}") for name in ("tp", "pp", "cp"))
    dp = max(1, degree(document["cluster"]["num_devices"], "cluster.num_devices") // (tp * pp * cp))
    strategy.setdefault("dp", dp)
    strategy |= {"sharding": "none", "dp_overlap": False} if dp * cp == 1 else {}
    strategy |= {"sequence_parallel": tp > 1 and strategy.get("sequence_parallel", False)}
    strategy |= {"tp_overlap": False} if tp == 1 else {}
    if "mbs" in strategy:
        steps = degree(given.get("accumulation", 1), "gradient accumulation")
        training.setdefault("global_batch_size", degree(strategy["mbs"], "strategy.mbs") * steps * dp)
    _add_tokens(training, given)
    said = {*meaning.entries, *(entry.partition("=")[0] for entry in file.overrides)}
    release = release_assumed(framework if isinstance(framework, str) else "what nanotron costs", file.overrides)
    try:
        return finished(document, [*release, *meaning.notes], said=said)
    except SpecError as error:
        raise SpecError(meaning.keys.get(error.where, error.where), error.problem, error.hint) from None


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
