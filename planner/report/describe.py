"""Descriptions for people and programs: a model as it was read, and the catalog with its sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from costmodel import GIB_BYTES, catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.model import Layer, Model
from costmodel.models.flops import (
    AttentionConvention,
    active_parameters,
    model_flops_per_token,
    mtp_parameters,
    parameters,
)
from costmodel.strategy import Recompute
from costmodel.validation import build, shown
from planner.jobs.cluster import read
from planner.jobs.entries import TrainingSection
from planner.jobs.line import recompute_text
from planner.jobs.run_jobs import plain, recipe, recipes, select_recipes

Plain: TypeAlias = dict[str, Any]

RECIPES = "recipes"
"""The list of the catalog that words filter."""


# --- a model -----------------------------------------------------------------------------------------------


def describe_model(name: str, sequence_length: object, attention: AttentionConvention) -> Plain:
    """
    Describe the architecture as it was read, with its parameters and its FLOPs.

    Parameters
    ----------
    name
        Name in the catalog, or path of a ``config.json`` or of its folder.
    sequence_length
        Tokens per sequence for the FLOPs.
    attention
        ``full``: scores that the causal mask hides are counted; ``causal``: they are not.
    """
    model = read(name, Path())
    length = _sequence_length(sequence_length)
    return {
        **describe_architecture(model),
        **_counts(model),
        "flops_per_token": model_flops_per_token(model, length, attention),
        "flops_per_token_counts": "forward and backward pass, multi-token prediction included, without recompute",
        "sequence_length": length,
        "attention_convention": attention,
    }


def describe_architecture(model: Model) -> Plain:
    """Describe a model and its distinct layers."""
    return {
        **_model_facts(model),
        "layers": _layer_kinds(model.layers),
        "mtp_layers": _layer_kinds(model.mtp_layers),
    }


def model_rows(described: Plain) -> list[tuple[str, str]]:
    """Return the rows of a description of :func:`describe_model`."""
    whole = {key: value for key, value in described.items() if isinstance(value, (str, int, bool))}
    causal = described["attention_convention"] == "causal"
    convention = "half of the scores, as causal attention needs" if causal else "all scores, also the masked half"
    return [
        *((key, _text(value)) for key, value in whole.items() if key in MODEL_FACTS and value != ""),
        *layer_rows(described),
        *((key, f"{described[key]:,}") for key in MODEL_COUNTS),
        ("flops_per_token", f"{described['flops_per_token']:.6g}"),
        ("", described["flops_per_token_counts"]),
        ("", f"sequences of {described['sequence_length']:,} tokens; {convention}"),
    ]


def layer_rows(described: Plain) -> list[tuple[str, str]]:
    """Return the distinct layers of a description, one row each."""
    return [(name, _layer_text(layer)) for name in ("layers", "mtp_layers") for layer in described[name]]


MODEL_FACTS = (
    "name",
    "family",
    "source",
    "hidden_size",
    "vocab_size",
    "num_layers",
    "tied_embeddings",
    "learned_positions",
    "final_norm",
    "head_bias",
    "embedding_norm",
    "extras",
    "is_text_part",
    "doubts",
)
"""Entries of a model's description, by the names of :class:`costmodel.facts.model.Model`."""

MODEL_COUNTS: Mapping[str, str] = {
    "parameters": "Parameters, without multi-token prediction.",
    "active_parameters": "Parameters that a token uses.",
    "mtp_parameters": "Parameters of multi-token prediction.",
}
"""Parameter counts of a description."""


def _model_facts(model: Model) -> Plain:
    return {name: getattr(model, name) for name in MODEL_FACTS}


def _counts(model: Model) -> Plain:
    counts = (parameters(model), active_parameters(model), mtp_parameters(model))
    return dict(zip(MODEL_COUNTS, counts, strict=True))


def _layer_kinds(layers: Sequence[Layer]) -> list[Plain]:
    """Return the distinct layers with their numbers, in order of first appearance."""
    return [
        {
            "num_layers": layers.count(layer),
            "attention": _block(layer.attention),
            **({"beside": _block(layer.beside)} if layer.beside else {}),
            "feed_forward": _block(layer.feed_forward),
            "num_norms": layer.num_norms,
            "norm": layer.norm,
            "parallel_blocks": layer.parallel_blocks,
            "streams": layer.streams,
            "snapshots": layer.snapshots,
            "is_wide": layer.is_wide,
        }
        for layer in dict.fromkeys(layers)
    ]


def _block(block: Any) -> Plain | None:
    return None if block is None else {"kind": type(block).__name__, **asdict(block)}


def _layer_text(layer: Plain) -> str:
    blocks = "; ".join(_block_text(layer[name]) for name in ("attention", "feed_forward") if layer[name])
    parallel = "; blocks in parallel" if layer["parallel_blocks"] else ""
    parallel += f"; {layer['streams']} residual streams (hyper-connections)" if layer["streams"] > 1 else ""
    parallel += f"; {layer['snapshots']} residual snapshots" if layer["snapshots"] else ""
    return f"{layer['num_layers']} x {blocks}; {layer['num_norms']} {layer['norm']} norms{parallel}"


def _block_text(block: Plain) -> str:
    """
    Write one block with its entries that are not off.

    >>> _block_text({"kind": "Mlp", "ffn_hidden_size": 14336, "gated": True, "bias": False})
    'Mlp ffn_hidden_size=14336 gated'
    """
    given = {name: value for name, value in block.items() if value not in (None, False, 0, "none") and name != "kind"}
    words = [name if value is True else f"{name}={_entry_text(value)}" for name, value in given.items()]
    return " ".join([block["kind"], *words])


def _entry_text(value: object) -> str:
    """Write an entry of a block; an indexer's entries in brackets."""
    return f"({_block_text({'kind': '', **value}).lstrip()})" if isinstance(value, dict) else str(value)


def _sequence_length(value: object) -> int:
    """Check a sequence length as one of a job."""
    rest = {"global_batch_size": 1, "tokens": 1}
    return build(TrainingSection, {**rest, "sequence_length": value}, "").sequence_length


# --- the catalog -------------------------------------------------------------------------------------------


def describe_catalog(entry: str | None, words: Sequence[str] = (), also: Sequence[str] = ()) -> Plain:
    """
    Describe the catalog, one of its lists, or one entry.

    Parameters
    ----------
    entry
        Name of a list (``devices``, ``aliases``, ``calibrations``, ``frameworks``, ``models``, ``precisions``,
        ``recipes``) or of an entry; None for all lists except the recipes, which are many.
    words
        Models, devices, precisions and releases that filter the recipes.
    also
        Other words that the command takes, which a misspelt one may mean.
    """
    if entry == RECIPES:
        return {RECIPES: [_recipe(one.id) for one in select_recipes(words)]}
    if words:
        raise SpecError("catalog", f"takes no further words, got {shown(words[0])}.", f"Words select only {RECIPES}.")
    if entry is None:
        return {name: _list(name) for name in LISTS if name != RECIPES}
    if entry in LISTS:
        return {entry: _list(entry)}
    for names, described, _ in LISTS.values():
        if entry in names():
            return described(entry)
    if entry in catalog.framework_names():
        return asdict(catalog.framework(entry))
    if (found := catalog.find_unique_device(entry)) is not None:
        return asdict(catalog.device(entry)) | ({"note": found.note} if found.note else {})
    if catalog.means_several(entry):
        catalog.find_device(entry, "catalog")
    known = [*also, *LISTS, *(known for names, _, _ in LISTS.values() for known in names()), *catalog.framework_names()]
    raise SpecError("catalog", f"{shown(entry)} is not in it.", did_you_mean(entry, known))


def catalog_tables(described: Plain) -> Iterator[tuple[str, list[Plain]]]:
    """Yield the lists of a description of :func:`describe_catalog`, each with its rows; none for one entry."""
    if set(described) <= set(LISTS):
        for name in described:
            yield name, [LISTS[name][2](entry) for entry in described[name]]


def catalog_text(described: Plain) -> str:
    """Write a description of :func:`describe_catalog` as tables, or one entry as lines."""
    tables = "\n\n".join(_table(name, rows) for name, rows in catalog_tables(described))
    return tables or align_rows(leaves(_spell_recompute(described)))


def _list(name: str) -> list[Plain]:
    names, described, _ = LISTS[name]
    return [described(entry) for entry in names()]


def _model(name: str) -> Plain:
    model = catalog.model(name)
    return {**_model_facts(model), **_counts(model)}


def _precision(name: str) -> Plain:
    return {**asdict(catalog.precision(name)), "source": catalog.precision_source(name)}


RECIPE_TEXTS: Mapping[str, str] = {
    "id": "Unique name.",
    "source": "Project that publishes it.",
    "source_ref": "Tag, file and line there, of the newest release.",
    "recipe": "Its name there.",
    "model": "Model: a name of the catalog, or the source's.",
    "refused": "Reason why it cannot run or be read; empty: it can.",
    "not_modelled": "Parts for which the cost model has no formula.",
}
"""Entries of a recipe's description."""

RECOMPUTE = "strategy.recompute"

RECIPE_COLUMNS = {
    "batch": "training.global_batch_size",
    "sequence": "training.sequence_length",
    **{name: f"strategy.{name}" for name in ("tp", "cp", "pp", "vpp", "ep", "mbs", "sharding")},
    "recompute": RECOMPUTE,
    "CUDA graphs": "strategy.cuda_graphs",
}
"""Headings of a table of recipes, with their keys of a job."""


def _recipe_names() -> tuple[str, ...]:
    return tuple(one.id for one in recipes())


def _recipe(name: str) -> Plain:
    """Describe a recipe by its id: its own texts, and its keys of a job."""
    one = recipe(name)
    texts = {column: one.cells.get(column, "") for column in RECIPE_TEXTS}
    job = {key: plain(cell, key) for key, cell in one.cells.items() if "." in key and cell}
    return {**texts, "releases": list(one.releases), "scales": list(one.scales), **job}


def _spell_recompute(one: Plain) -> Plain:
    """Write a recipe's modules to recompute by Megatron-LM's names, as reports do; other entries have none."""
    modules = one.get(RECOMPUTE)
    return one if modules is None else one | {RECOMPUTE: recompute_text(None, Recompute.named(modules))}


def _recipe_row(one: Plain) -> Plain:
    one = _spell_recompute(one)
    return {
        "name": one["id"],
        "GPUs": ", ".join(map(str, one["scales"])),
        **{heading: str(one.get(key, "-")) for heading, key in RECIPE_COLUMNS.items()},
        "releases": ", ".join(one["releases"]),
        "source": f"{one['source']} {one['source_ref']}",
        "note": one["refused"],
    }


def _device_row(device: Plain) -> Plain:
    peaks = device["peak_flops"]
    return {
        "name": device["name"],
        "maker": device["silicon"]["maker"],
        "W": "-" if device["power_watts"] is None else f"{device['power_watts']:.0f}",
        "GiB": f"{device['memory_bytes'] / GIB_BYTES:.0f}",
        "TB/s": f"{device['memory_bandwidth'] / 1e12:.2f}",
        "dense peak, TFLOP/s": ", ".join(f"{dtype} {peak / 1e12:.0f}" for dtype, peak in peaks.items()),
        "per node": str(device["devices_per_node"]),
        "networks (devices: GB/s)": ", ".join(
            f"{network['name']} {network['num_peers']}: {network['bandwidth'] / 1e9:.0f}"
            for network in device["networks"]
        ),
        "source of the peak": device["sources"].get("peak_flops", ""),
    }


def _aliases() -> tuple[str, ...]:
    return tuple(spelled for spelled, _ in catalog.spellings())


ALIAS: Mapping[str, str] = {
    "name": "Spelling of clouds, drivers or people.",
    "device": "Device of the catalog.",
    "GB/s to other nodes": "Bandwidth of each device, if the name determines it; else empty.",
    "note": "Ambiguity of the name; empty: none.",
}
"""Entries of an alias."""


def _alias(name: str) -> Plain:
    meant = dict(catalog.spellings())[name]
    bandwidth = meant.internode_bandwidth
    outwards = "" if bandwidth is None else f"{bandwidth / 1e9:.3g}"
    return dict(zip(ALIAS, (name, meant.device, outwards, meant.note), strict=True))


def _calibration_row(calibration: Plain) -> Plain:
    constants = calibration["constants"]
    return {
        "name": calibration["name"],
        "matmuls, of the peak": ", ".join(
            f"{dtype} {share:.2f}" for dtype, share in constants["matmul_efficiency"].items()
        )
        or "measured",
        "attention": f"{constants['attention_efficiency']:.2f}",
        "links, of the nominal bandwidth": ", ".join(
            f"{level} {share:.2f}" for level, share in constants["link_efficiency"].items()
        ),
        "what": calibration["description"],
    }


def _architecture_row(architecture: Plain) -> Plain:
    return {
        "name": architecture["name"],
        "heads that exponentials slow down, width": f"{architecture['exponential_width']:.0f}",
        "older attention kernels, of the peak": f"{architecture['older_kernels_fraction']:.2f}",
        "8-bit matmuls of any layout": "yes" if architecture["multiplies_any_layout"] else "no",
        "source": architecture["sources"]["multiplies_any_layout"],
    }


def _framework_row(framework: Plain) -> Plain:
    features, settings, others = framework["features"], framework["settings"], ", ".join(framework["releases"])
    return {
        "name": framework["name"],
        "since": framework["since"],
        "on": ", ".join(framework["architectures"]) or "all",
        "token dispatchers": ", ".join(features.get("token_dispatcher", ("any",))),
        "CUDA graphs": ", ".join(features.get("cuda_graphs", ("any",))),
        "gradients": str(settings["gradient_dtype"] or "recipe's"),
        "what": f"{framework['description']}; also {others}" if others else str(framework["description"]),
    }


def _model_row(model: Plain) -> Plain:
    return {
        "name": model["name"],
        "family": model["family"],
        "layers": str(model["num_layers"]),
        "parameters": f"{model['parameters']:,}",
        "active": f"{model['active_parameters']:,}",
        "source": model["source"],
    }


def _precision_row(precision: Plain) -> Plain:
    return {
        "name": precision["name"],
        "compute": precision["compute"],
        "bytes: weight": f"{precision['weight_bytes']:g}",
        "copies": f"{precision['copy_bytes']:g}",
        "gradient": f"{precision['gradient_bytes']:g}",
        "optimizer": f"{precision['optimizer_bytes']:g}",
        "gather": f"{precision['parameter_gather_bytes']:g}",
        "activation": f"{precision['activation_bytes']:g}",
        "source": precision["source"],
    }


LISTS: Mapping[str, tuple[Callable[[], Sequence[str]], Callable[[str], Plain], Callable[[Plain], Plain]]] = {
    "devices": (catalog.devices, lambda name: asdict(catalog.device(name)), _device_row),
    "aliases": (_aliases, _alias, lambda alias: {name: str(text) for name, text in alias.items()}),
    "calibrations": (catalog.calibrations, lambda name: asdict(catalog.calibration(name)), _calibration_row),
    "architectures": (catalog.architectures, lambda name: asdict(catalog.silicon(name, "catalog")), _architecture_row),
    "frameworks": (catalog.frameworks, lambda name: asdict(catalog.framework(name)), _framework_row),
    "models": (catalog.models, _model, _model_row),
    "precisions": (catalog.precisions, _precision, _precision_row),
    RECIPES: (_recipe_names, _recipe, _recipe_row),
}
"""Lists of the catalog, each with its names, the description of one entry, and its row in a table."""


# --- text --------------------------------------------------------------------------------------------------


def json_text(described: Plain) -> str:
    """Write a description as JSON."""
    return json.dumps(described, indent=2, ensure_ascii=False)


def leaves(value: object, path: str = "") -> Iterable[tuple[str, str]]:
    """Yield the leaves of a description by dotted path."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{index}")
    else:
        yield path, _text(value)


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def align_rows(rows: Iterable[tuple[str, str]]) -> str:
    """Write facts in aligned lines."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {text}".rstrip() for name, text in rows)


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Write columns as wide as their widest cell; the last one is not padded."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(["  ".join(line).rstrip() for line in cells])
