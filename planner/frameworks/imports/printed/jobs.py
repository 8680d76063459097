"""Import of printed and saved configurations as jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.finish import newest
from planner.frameworks.imports.named import model_named
from planner.frameworks.imports.printed.container import container_job
from planner.frameworks.imports.printed.log import cluster_of, find_printed
from planner.frameworks.imports.printed.names import entries_of, whole_arguments, words_of
from planner.frameworks.imports.tools.entries import deepspeed_job, require_deepspeed
from planner.frameworks.imports.tools.keys import Meaning
from planner.frameworks.imports.torchtitan import MODES, torchtitan_job
from planner.frameworks.megatron.read import Imported
from planner.jobs.model import read

WHERE = "model_spec.model"

HINT = "Add model=NAME, one of planner catalog models, or the path of its config.json."

LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

"""Sizes of latent attention, which have the same names in a job file."""

PARTS = (
    *("attention", "attention_norm", "dim", "enable_weight_tying", "feed_forward", "ffn_norm", "layers", "lm_head"),
    *("moe", "mtp_layers", "norm", "param_init", "sharding_config", "tok_embeddings", "vocab_size"),
)

"""Parts of models and of layers that are read, or cost nothing."""

DISPATCHERS = {"non_blocking_capacity_factor": "hybridep", "cudagraphable": "deepep", "hidden_dim": "minimal_async_ep"}

"""Dispatchers of tokens by a field that only they have, the first that fits (models/common/token_dispatcher.py)."""


def model_from_layers(spec: Mapping[str, Any]) -> tuple[Any, str]:
    """
    Return the model that a specification describes, and the dispatcher of its tokens.

    A model of the catalog with the same layers has its name.

    Raises
    ------
    SpecError
        If it has a part that no size of a job file describes.
    """
    model, named = spec.get("model"), model_named(f"{spec.get('name')}/{spec.get('flavor')}")
    if not isinstance(model, Mapping):
        return named, "standard"
    try:
        entry, sent_by = _entries(model)
        described = read(entry, Path()).model
    except (KeyError, TypeError, AttributeError, IndexError):
        raise SpecError(WHERE, f"has layers of {shown(spec.get('name'))} that are not read.", HINT) from None
    known = read(named, Path()).model if named is not None else None
    is_known = known is not None and all(
        getattr(known, part) == getattr(described, part)
        for part in ("hidden_size", "vocab_size", "layers", "tied_embeddings")
    )
    return named if is_known and not model.get("mtp_layers") else entry, sent_by


def _entries(model: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the entries of a job for a model, and the dispatcher of its tokens."""
    _refuse_others(model)
    layers = [_layer(layer) for layer in model["layers"]]
    kinds: list[dict[str, Any]] = []
    for part in range(3):
        entries = [layer[part] for layer in layers if layer[part]]
        if any(one != entries[0] for one in entries):
            raise SpecError(WHERE, "has layers of several sizes, which are not read.", HINT)
        kinds.append(entries[0] if entries else {})
    attention, dense, sparse = kinds
    first = next((place for place, layer in enumerate(layers) if layer[2]), len(layers))
    if any(dense for _, dense, _ in layers[first:]):
        raise SpecError(WHERE, "has dense layers behind those with experts, which are not read.", HINT)
    sizes = {
        "hidden_size": model["dim"],
        "num_layers": len(layers),
        "vocab_size": model["vocab_size"],
        "tied_embeddings": bool(model["enable_weight_tying"]),
    }
    width = dense or {"ffn_hidden_size": sparse.get("expert_ffn_hidden_size")}
    more = {"first_dense_layers": first} if sparse and first else {}
    mtp = {"mtp_layers": len(model["mtp_layers"])} if model.get("mtp_layers") else {}
    fields = model["layers"][-1]["moe"]["routed_experts"]["token_dispatcher"] if sparse else ()
    sent_by = next((name for field, name in DISPATCHERS.items() if field in fields), "standard")
    return {**sizes, **attention, **width, **sparse, **more, **mtp}, sent_by


def _layer(layer: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the entries of attention, of a dense feed-forward, and of experts."""
    _refuse_others(layer)
    experts, routed = layer["moe"], dict[str, Any]()
    if experts:
        routed = {
            "num_experts": experts["num_experts"],
            "top_k": experts["router"]["top_k"],
            "expert_ffn_hidden_size": experts["routed_experts"]["inner_experts"]["hidden_dim"],
        }
        if experts["shared_experts"]:
            routed["shared_ffn_hidden_size"] = experts["shared_experts"]["w1"]["out_features"]
    dense = layer["feed_forward"]
    width = {"ffn_hidden_size": dense["w1"]["out_features"], "gated": "w3" in dense} if dense else {}
    return _attention(layer["attention"]), width, routed


def _attention(attention: Mapping[str, Any]) -> dict[str, Any]:
    if "kv_lora_rank" in attention:
        sizes = {name: attention[name] for name in LATENT if attention[name]}
        return {"num_heads": attention["n_heads"], **sizes}
    heads = attention["qkv_linear"]
    kv_heads, bias, normed = heads["n_kv_heads"], heads["wqkv"]["bias"], attention["qk_norm"]
    return {
        "num_heads": heads["n_heads"],
        "num_kv_heads": kv_heads if kv_heads is not None else heads["n_heads"],
        "head_dim": heads["head_dim"],
        **({"qk_norm": "per_head"} if normed else {}),
        **({"qkv_bias": True} if bias else {}),
        **({"output_bias": True} if attention["wo"]["bias"] else {}),
    }


def _refuse_others(part: Mapping[str, Any]) -> None:
    others = [name for name in part if name not in PARTS and part[name]]
    if others:
        raise SpecError(f"{WHERE}: {others[0]}", "is a part of the model that is not read.", HINT)


def arguments_job(content: Mapping[str, Any], source: str, overrides: Sequence[str], text: str = "") -> Imported:
    """
    Import arguments of Megatron-LM by name.

    Raises
    ------
    SpecError
        If some are missing, or as ``megatron_job``.
    """
    texts = whole_arguments(content, source)
    entries = entries_of(texts, text)
    imported = megatron_job(words_of(texts), [*_entry_words(entries), *overrides], {})
    return Imported(document=imported.document, notes=(*_replacement_notes(entries, overrides), *imported.notes))


OF_MODES = {"force_recompute_mm_shapes_by_fqns": "SelectiveAC", "memory_budget": "MemoryBudgetAC"}

"""Classes of activation checkpointing by a field that only they have, as their name is not saved."""


def titan_job(content: Mapping[str, Any], overrides: Sequence[str]) -> Imported:
    """
    Import the configuration that torchtitan saves: by sections, from 0.3 on with the specification of the model.

    Raises
    ------
    SpecError
        If its layers are converted to a precision that is not saved, or as ``torchtitan_job``.
    """
    said, spec = _drop_empty_entries(content), content.get("model_spec")
    if not isinstance(spec, Mapping):
        return torchtitan_job(said, overrides)
    if spec.get("converters"):
        raise SpecError(
            "model_spec.converters", "is not empty: the precision of layers is not saved.", "Give its Python."
        )
    given = said.get("activation_checkpoint") or {}
    if not isinstance(given, Mapping):
        raise SpecError("activation_checkpoint", f"expected a section, got {shown(given)}.")
    kind = next((kind for field, kind in OF_MODES.items() if field in given), "FullAC")
    recomputed = {**given, **MODES[kind]} if given else {"mode": "none"}
    model = {"name": spec.get("name"), "flavor": spec.get("flavor")}
    more = {"framework": newest("torchtitan-"), "model": model, "activation_checkpoint": recomputed}
    whole = {name: value for name, value in said.items() if name != "model_spec"} | more
    is_said = any(entry.startswith("model=") for entry in overrides)
    described, sent_by = (None, "standard") if is_said else model_from_layers(spec)
    if sent_by != "standard" and isinstance(whole.get("parallelism"), Mapping):
        whole["parallelism"] = {**whole["parallelism"], "expert_parallel_comm_backend": sent_by}
    return torchtitan_job(whole, overrides, described=described)


def import_printed(text: str, source: str, overrides: Sequence[str], run: str) -> Imported | None:
    """
    Import the configuration in a log, with the devices and the software that it names; None: it prints none.

    Raises
    ------
    SpecError
        As ``find_printed``, and as the import of the framework's configuration.
    """
    found = find_printed(text, source, run)
    if found is None:
        return None
    content, entries = found.content, dict(cluster_of(text, found.kind))
    if found.kind == "deepspeed":
        entries |= _replicas(content, text)
    given = [*_entry_words(entries), *overrides]
    match found.kind:
        case "megatron":
            imported = arguments_job(content, source, given, text)
        case "bridge":
            imported = container_job(content, given, f"{source}, line {found.line}")
        case "torchtitan":
            imported = titan_job(content, given)
        case _:
            imported = deepspeed_job(require_deepspeed(content, source), Meaning(), given)
    note = f"Read from {Path(source).name}, line {found.line}, as it was printed."
    return Imported(document=imported.document, notes=(note, *_replacement_notes(entries, overrides), *imported.notes))


def _entry_words(entries: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in entries.items()]


def _replacement_notes(printed: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Remarks on what the run printed and the command says otherwise."""
    said = {name: value for name, _, value in (entry.partition("=") for entry in overrides)}
    differing = {name for name in {*printed} & {*said} if printed[name] != said[name]}
    return [
        f"{name}: the run had {printed[name]}; the command's {said[name]} counts instead." for name in sorted(differing)
    ]


def _replicas(config: Mapping[str, Any], text: str) -> dict[str, str]:
    """Return the devices of a DeepSpeed engine, which prints its replicas as world_size."""
    said = set(re.findall(r"  world_size \.+ (\d+)", text))
    tensors = config.get("tensor_parallel")
    width = tensors.get("autotp_size", 1) if isinstance(tensors, Mapping) else 1
    return {"cluster.num_devices": str(int(said.pop()) * int(width))} if len(said) == 1 else {}


def _drop_empty_entries(content: Mapping[str, Any]) -> dict[str, Any]:
    """Drop entries without a value from a saved configuration."""
    return {
        name: _drop_empty_entries(value) if isinstance(value, Mapping) else value
        for name, value in content.items()
        if value is not None
    }
