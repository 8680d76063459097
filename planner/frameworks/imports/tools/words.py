"""Import of NeMo 1, FlagScale and Primus, whose keys are Megatron-LM's options, with the files that they name."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.bridge.overrides import architecture_words
from planner.frameworks.imports.documents import (
    MOST_FOLDERS,
    File,
    flat_entries,
    flatten,
    read_mapping,
    read_rows,
    resolve,
)
from planner.frameworks.imports.finish import (
    assumption_notes,
    degree,
    devices_contradicted,
    entries_set_by,
    newest,
    release_assumed,
)
from planner.frameworks.imports.named import model_named
from planner.frameworks.imports.refused import refuse_entries
from planner.frameworks.imports.tools.entries import foundry_job, nanotron_job, neox_job, torchtitan_job
from planner.frameworks.imports.tools.keys import Meaning, is_on, meaning_of, text_of
from planner.frameworks.megatron.read import Imported
from planner.jobs.model import read
from planner.jobs.problem import load


def _job(file: File, meaning: Meaning, variables: Mapping[str, str], whose: str = "Megatron-LM's defaults") -> Imported:
    """Import options of Megatron-LM and entries, overridden by those of the command; errors name the tool's key."""
    own = [f"{name}={text_of(value)}" for name, value in meaning.entries.items() if file.says(name) is None]
    try:
        imported = megatron_job(meaning.words, [*own, *file.overrides], variables)
    except SpecError as error:
        key = meaning.keys.get(error.where.removeprefix("arguments."), error.where)
        raise SpecError(key, error.problem, error.hint) from None
    has_experts = load(imported.document).facts.model.has_experts
    said = entries_set_by({word for word in meaning.words if word.startswith("--")}, [*own, *file.overrides])
    notes = assumption_notes(imported.document, said, has_experts=has_experts, whose=whose)
    framework = meaning.entries.get("cluster.framework")
    release = release_assumed(str(framework), file.overrides) if framework else ()
    other = devices_contradicted(meaning.entries.get("cluster.num_devices"), file.overrides)
    keyed = [re.sub(r"--[\w-]+", lambda found: meaning.keys.get(found[0], found[0]), note) for note in imported.notes]
    return Imported(document=imported.document, notes=(*release, *other, *notes, *meaning.notes, *keyed))


def _say_devices(meaning: Meaning, one: Any, many: Any) -> None:
    """Set the number of devices of all nodes, where the file has both numbers."""
    if isinstance(one, int) and isinstance(many, int):
        meaning.entries["cluster.num_devices"] = one * many


def nemo_job(file: File) -> Imported:
    """Import NeMo 1: a trainer, and a model with its sizes, degrees and batches."""
    flat = file.flat()
    meaning = meaning_of("nemo1", flat, section="model.")
    _say_devices(meaning, flat.get("trainer.devices"), flat.get("trainer.num_nodes"))
    meaning.entries["cluster.framework"] = newest("nemo-")
    return _job(file, meaning, {}, whose="NeMo's defaults")


# --- FlagScale ---------------------------------------------------------------------------------------------

ENVIRONMENT = "experiment.envs."


def flagscale_job(file: File) -> Imported:
    """Import FlagScale: Hydra's outer file with the inner one of the training, or the inner one alone."""
    outer, inner = _hydra(file)
    refuse_entries(inner, str(file.path))
    whole = file.flat({**inner, **outer})
    flat = {
        name.rpartition(".")[2].replace("-", "_"): value for name, value in whole.items() if name.split(".")[0] in inner
    }
    if "experiment.task.entrypoint" in whole:
        flat["entrypoint"] = whole["experiment.task.entrypoint"]
    meaning = meaning_of("flagscale", flat, section="")
    if "multiple_of" in flat and "--ffn-hidden-size" in meaning.words:
        meaning.notes.append("multiple_of: without effect beside ffn_hidden_size.")
    elif "multiple_of" in flat:
        meaning.words += ["--ffn-hidden-size", str(_round_width(flat))]
    _say_devices(meaning, *(whole.get(f"experiment.runner.{name}") for name in ("nproc_per_node", "nnodes")))
    variables = {name: text_of(value) for name, value in whole.items() if name.startswith(ENVIRONMENT)}
    return _job(file, meaning, {name.removeprefix(ENVIRONMENT): value for name, value in variables.items()})


def _hydra(file: File) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the outer and the inner file; each is searched from the other."""
    if "system" in file.content:
        outer = file.path.parent.with_suffix(".yaml")
        return (read_mapping(outer) if os.path.isfile(outer) else {}), file.content
    defaults = file.content.get("defaults")
    named = [one["train"] for one in (defaults if isinstance(defaults, list) else []) if _names_a_file(one)]
    inner = file.named(f"train/{named[0].removesuffix('.yaml')}.yaml") if named else None
    if inner is None:
        problem = f"names {shown(named[0])} of conf/train, which is not beside it." if named else "names no file."
        raise SpecError(f"{file.path}: defaults", problem, "Import the file of conf/train itself.")
    return file.content, read_mapping(inner)


def _names_a_file(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("train"), str)


def _round_width(flat: Mapping[str, Any]) -> int:
    """
    Default width of feed-forwards: two thirds of four times the hidden size, rounded up to ``multiple_of``.

    References
    ----------
    FlagScale, flagscale/train/arguments.py: ``multiple_of`` and ``hidden_dim_multiplier``.
    """
    step, hidden = (degree(flat.get(name), name) for name in ("multiple_of", "hidden_size"))
    more = flat.get("hidden_dim_multiplier") or 1
    if not isinstance(more, (int, float)) or not 0 < more < 1024:
        raise SpecError("hidden_dim_multiplier", f"expected a number above 0, got {shown(more)}.")
    return step * -(-int(int(4 * hidden * 2 / 3) * more) // step)


# --- Primus ------------------------------------------------------------------------------------------------

PRIMUS = ("primus/configs", "configs", ".")
"""Folders with the files of trainers and models."""


def primus_job(file: File) -> Imported:
    """Import Primus: a trainer's file, a model's file and overrides, each with the files that it extends."""
    module = file.content["modules"]["pre_trainer"]
    module = {name: resolve(module[name], name, file.content, file.given) for name in module}
    framework, own = text_of(module.get("framework", "megatron")), module.get("overrides") or {}
    if framework not in ("megatron", "torchtitan"):
        raise SpecError("modules.pre_trainer.framework", f"is {shown(framework)}; megatron and torchtitan are read.")
    if not isinstance(own, Mapping):
        raise SpecError("modules.pre_trainer.overrides", f"expected a mapping, got {shown(own)}.")
    refuse_entries(own, str(file.path))
    trainer = _read_extended(file, f"modules/{framework}/{text_of(module.get('config', 'pre_trainer.yaml'))}", ())
    model = _read_extended(file, f"models/{framework}/{text_of(module.get('model'))}", ())
    notes = (
        [] if trainer else ["config: Primus' file of its trainer is not beside it: what it says is as in Megatron-LM."]
    )
    whole = _merge(_merge(trainer, model), own)
    if framework == "torchtitan":
        return torchtitan_job(whole, file.overrides).add_notes(*notes)
    flat = file.flat(whole)
    usual = {**trainer, **_read_extended(file, f"models/{framework}/language_model.yaml", ())}
    changed = [name for name, value in model.items() if name not in usual or usual[name] != value]
    meaning = meaning_of("primus", flat, section="", own={*flat_entries(own, {}), *changed})
    meaning.notes += notes
    if not model:
        meaning.words += _model_words(file, text_of(module.get("model")), flat.get("seq_length"))
    _deal_padded(flat, meaning)
    listed = flat.get("recompute_layer_ids")
    if not is_on(listed):
        return _job(file, meaning, {})
    meaning.words += ["--recompute-method", "block", "--recompute-num-layers", "1"]
    return _recompute_layers(_job(file, meaning, {}), text_of(listed).strip("[]").split(","))


def _read_extended(file: File, name: str, above: tuple[str, ...]) -> dict[str, Any]:
    """Read a file with those that it extends, the last of which counts; empty: not found."""
    found = file.named(name, PRIMUS)
    if found is None or len(above) > MOST_FOLDERS or name in above:
        return {}
    content, whole = read_mapping(found), dict[str, Any]()
    for key in ("bases", "extends"):
        bases = content.pop(key, None) or []
        for base in bases if isinstance(bases, list) else [bases]:
            whole |= _read_extended(file, f"{name.rpartition('/')[0]}/{text_of(base)}", (*above, name))
    return {**whole, **content}


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; the second has precedence."""
    inner = {name for name in over if isinstance(over[name], Mapping) and isinstance(under.get(name), Mapping)}
    return {**under, **over, **{name: _merge(under[name], over[name]) for name in inner}}


def _model_words(file: File, named: str, length: Any) -> list[str]:
    """Return the architecture of the command's model, where the model's file is not found."""
    entry, known = file.says("model"), model_named(named.removesuffix(".yaml").replace("_", "-"))
    if entry is None:
        hint = f"Put it there, or add model={known if isinstance(known, str) else 'NAME'}."
        raise SpecError("modules.pre_trainer.model", f"names {shown(named)}, which is not beside it.", hint)
    return architecture_words(read(model_named(entry) or entry, Path()).model, length if isinstance(length, int) else 0)


def _deal_padded(flat: Mapping[str, Any], meaning: Meaning) -> None:
    """Place layers that do not divide, which Primus pads: the last rank has fewer (``allow_padding_num_layers``)."""
    layers, ranks = flat.get("num_layers"), flat.get("pipeline_model_parallel_size")
    dealt = ("pipeline_model_parallel_layout", "decoder_last_pipeline_num_layers", "decoder_first_pipeline_num_layers")
    if not is_on(flat.get("allow_padding_num_layers")) or any(is_on(flat.get(name)) for name in dealt):
        return
    if isinstance(layers, int) and isinstance(ranks, int) and ranks > 1 and layers % ranks:
        last = layers - (ranks - 1) * -(-layers // ranks)
        if last > 0:
            meaning.words += ["--decoder-last-pipeline-num-layers", str(last)]
            meaning.notes.append(f"allow_padding_num_layers: {layers} layers on {ranks} ranks, the last has {last}.")


def _recompute_layers(imported: Imported, listed: Sequence[str]) -> Imported:
    """Recompute numbered layers in full, each on the rank that holds it."""
    strategy = imported.document["strategy"]
    ends = [*accumulate(strategy["layout"]["layers"])]
    if not all(one.strip().isdecimal() and int(one) < ends[-1] for one in listed):
        raise SpecError("recompute_layer_ids", f"expected numbers of layers below {ends[-1]}, got {shown(listed)}.")
    stages = Counter(bisect_right(ends, int(one)) % strategy["pp"] for one in {*listed})
    layout = {**strategy["layout"], "full_layers": [stages[rank] for rank in range(strategy["pp"])]}
    document = {**imported.document, "strategy": {**strategy, "layout": layout}}
    load(document)
    return Imported(document=document, notes=imported.notes)


TOOLS = Path(__file__).parent / "tools.csv"
"""
Table of tools by keys that mark their files; the first row whose marks all match counts.

``marks`` are patterns of dotted names, with ``=`` also of values; ``import:NAME`` is a module that a file of Python
imports. ``reader`` is the name in the table of keys; empty: the tool is not imported, and the last column describes it.
"""

HINT = (
    "Write the job by hand (planner init), or give what Megatron-LM, a fork of it, NeMo, Megatron-Bridge, torchtitan, "
    "DeepSpeed, Accelerate, GPT-NeoX, FlagScale, Primus, nanotron or llm-foundry starts with."
)


def tool_of(content: Mapping[Any, Any]) -> Mapping[str, str] | None:
    """
    Return the row of the tool whose keys a configuration has; None: unknown.

    >>> tool_of({"pipe-parallel-size": 4, "num-layers": 8})["name"], tool_of({"model": "llama3-8b"})
    ('GPT-NeoX', None)
    """
    flat = {key if "." in key else key.replace("-", "_"): value for key, value in flatten(content).items()}
    return next((tool for tool in read_rows(TOOLS) if all(_has(flat, mark) for mark in tool["marks"].split())), None)


def refuse_other_tool(content: Mapping[Any, Any], where: str) -> None:
    """
    Refuse a configuration of a tool that is not imported.

    Raises
    ------
    SpecError
        Names and describes the tool, and the inputs that are accepted.
    """
    tool = tool_of(content)
    if tool is not None and not tool["reader"]:
        raise _refusal(tool, where)


def refuse_other_program(text: str, where: str) -> None:
    """
    Refuse a file of Python that is a configuration of a tool that is not imported.

    Raises
    ------
    SpecError
        As :func:`refuse_other_tool`.
    """
    for tool in read_rows(TOOLS):
        package = tool["marks"].removeprefix("import:")
        if package != tool["marks"] and re.search(rf"(?m)^\s*(from|import)\s+{package}\b", text):
            raise _refusal(tool, where)


READERS: Mapping[str, Callable[[File], Imported]] = {
    "nemo1": nemo_job,
    "flagscale": flagscale_job,
    "primus": primus_job,
    "gpt_neox": neox_job,
    "nanotron": nanotron_job,
    "llm_foundry": foundry_job,
}
"""Import function of each tool, by its name in the table of keys."""


def _refusal(tool: Mapping[str, str], where: str) -> SpecError:
    return SpecError(where, f"is a configuration of {tool['name']}, which is not read: {tool['what']}.", HINT)


def _has(flat: Mapping[str, Any], mark: str) -> bool:
    name, equals, value = mark.partition("=")
    return any(fnmatchcase(key, name) and (not equals or fnmatchcase(text_of(one), value)) for key, one in flat.items())
