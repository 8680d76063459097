"""
Import of configurations of other tools by the table of keys, and recognition of a configuration's tool.

Keys of DeepSpeed, Accelerate, torchtitan, GPT-NeoX, nanotron and llm-foundry are entries of a job; those of NeMo 1,
FlagScale and Primus are Megatron-LM's options, with the files that they name.

Keys and defaults are those of DeepSpeed 0.19.8 (deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py), and of
Accelerate 1.15.0 (accelerate/commands/launch.py, accelerate/utils/dataclasses.py). TOML is that of torchtitan 0.1.0 to
0.2.2 (torchtitan/config_manager.py, config/job_config.py); from 0.3.0 on its configuration is a Python function.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.lowering.framework import balance_stages
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.bridge.overrides import architecture_words
from planner.frameworks.imports.bridge.python_source import Thing, is_known, public_functions, read_module, result_of
from planner.frameworks.imports.documents import (
    MOST_FOLDERS,
    File,
    degree,
    flat_entries,
    flatten,
    model_named,
    read_mapping,
    read_overrides,
    read_plain,
    read_rows,
    read_words,
    read_yaml,
    require_mapping,
    require_model,
    resolve,
    text_of,
    vocabulary_of,
)
from planner.frameworks.imports.finish import (
    assumption_notes,
    cluster_notes,
    complete_job,
    entries_set_by,
    newest,
    prepare_job,
)
from planner.frameworks.imports.refused import refuse_entries
from planner.frameworks.imports.tools.keys import Meaning, is_on, is_read, meaning_of
from planner.frameworks.megatron.options import split_options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.words import refuse_unknown, strip_unknown, unknown_names
from planner.jobs.cluster import read
from planner.jobs.document import set_entry
from planner.jobs.problem import load

DATA = read_words("tools.readers")

GPT2 = "GPT2BPETokenizer"
"""Tokenizer whose vocabulary needs no file."""


def neox_job(file: File) -> Imported:
    """Import GPT-NeoX: its own keys with dashes or underscores, and ZeRO by DeepSpeed."""
    local = file.path.parent / DATA.local
    other = read_mapping(local) if os.path.isfile(local) and file.path.name != DATA.local else {}
    flat = file.flat({name.replace("-", "_"): value for name, value in {**other, **file.content}.items()})
    if "num_layers" not in flat:
        problem = "is a part of a run of GPT-NeoX, which merges several files: it has no num_layers."
        raise SpecError(str(file.path), problem, "Import the file with num_layers, with this one's keys in it.")
    meaning = meaning_of("gpt_neox", flat)
    beside = f"{DATA.local} in the same folder gives the keys that this file lacks, as in a run with both."
    meaning.notes += [beside] if other else []
    entries = meaning.entries
    if not {"strategy.mbs", "training.global_batch_size"} <= {*entries}:
        entries.setdefault("given.accumulation", 1)
    newer = [name for name in DATA.newer if text_of(entries.get(name)) not in ("null", "false", "1")]
    meaning.notes += [f"{meaning.keys[name]}: a key since 2024, costed on gpt-neox-2.0." for name in newer]
    features = {name.partition(".")[2]: list(DATA.newer[name]) for name in newer}
    return entries_job(meaning, {"base": DATA.neox, "features": features} if newer else DATA.neox, file.overrides)


MOST_LAYERS = 10_000


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
    if kind != "type" or not re.fullmatch(r"[\w|]+", pattern):
        problem = f"is {shown(method)}; type:NAME|NAME is read."
        raise SpecError("pipe_partition_method", problem, "Add strategy.layout='{layers: [...]}'.")
    bounds = balance_stages([int(bool(re.search(pattern, name.lower()))) for name in names], pp)
    return [min(end, num_layers + 2) - min(max(begin, 2), num_layers + 2) for begin, end in pairwise(bounds)]


def foundry_job(file: File) -> Imported:
    """Import llm-foundry: MPT by its sizes or a model of the hub by name, with PyTorch's FSDP or whole replicas."""
    flat = file.flat()
    meaning = meaning_of("llm_foundry", flat)
    entries = meaning.entries
    if not any(name.startswith(("fsdp_config.", "parallelism_config.")) for name in flat):
        entries["strategy.sharding"] = "none"
    if flat.get("model.name") == "hf_causal_lm":
        meaning.entries = {name: value for name, value in entries.items() if not name.startswith("model.")}
        name = "model.pretrained_model_name_or_path"
        meaning.entries["model"] = file.says("model") or require_model(text_of(flat.get(name)), name)
    return entries_job(meaning, "llm-foundry-0.6", file.overrides)


# --- DeepSpeed ---------------------------------------------------------------------------------------------


def require_deepspeed(config: Any, source: str) -> dict[str, Any]:
    """
    Return a configuration, or refuse one without keys of DeepSpeed.

    Raises
    ------
    SpecError
        If it has none.
    """
    if not isinstance(config, dict):
        raise SpecError(source, f"expected an object of DeepSpeed's keys, got {shown(config)}.")
    if "architectures" in config or "model_type" in config:
        raise SpecError(source, "describes a model: name it in a job file (model: PATH).")
    if not any(is_read("deepspeed", key) for key in flatten(config)):
        names = shown(sorted(config)[:5])
        raise SpecError(source, f"has no key of DeepSpeed such as zero_optimization; it has {names}.")
    return config


def deepspeed_job(config: Mapping[str, Any], trainer: Meaning, overrides: Sequence[str]) -> Imported:
    """
    Import a configuration of DeepSpeed with the arguments of its script, which replace ``auto``.

    The code of the model decides recomputation, not the section of the JSON (DeepSpeed 0.19.8,
    deepspeed/runtime/activation_checkpointing/checkpointing.py, ``configure`` and ``checkpoint``).

    Raises
    ------
    SpecError
        If a feature has no costs here, the batch sizes contradict each other, or a required value is missing.
    """
    flat = flatten(config)
    own, half, given = meaning_of("deepspeed", flat), trainer.entries.get("given.half"), read_overrides(overrides)
    entries = {**DATA.single, **DATA.usual, **trainer.entries, **own.entries}
    halves = {name: value for name, value in flat.items() if name.startswith(("bf16", "bfloat16", "fp16"))}
    if half and (not halves or "auto" in (halves.get(f"{half}.enabled"), halves.get("bfloat16.enabled"))):
        entries.setdefault("training.precision", half)
    if not {"training.precision", "training"} & {*entries, *given}:
        problem = "is not on, and fp16.enabled neither: training in FP32 is not costed."
        raise SpecError("bf16.enabled", problem, "Or say training.precision=bf16, where the script adds it.")
    if not {"strategy.mbs", "training.global_batch_size"} <= {*entries}:
        entries.setdefault("given.accumulation", 1)
    if "strategy.recompute" in trainer.entries:
        entries["strategy.recompute"] = trainer.entries["strategy.recompute"]
    elif "strategy.recompute" not in given:
        what = "none: no layer is" if entries["strategy.recompute"] == "none" else "full: all layers are"
        own.notes.insert(0, f"Recomputation is assumed to be {what} checkpointed. {DATA.recompute_of_deepspeed}")
    entries["strategy.etp"] = entries["strategy.tp"] if entries["strategy.ep"] == 1 else 1
    meaning = Meaning(entries=entries, notes=own.notes + trainer.notes, keys={**trainer.keys, **own.keys})
    return entries_job(meaning, newest("deepspeed-"), overrides)


# --- Accelerate --------------------------------------------------------------------------------------------


TYPES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "use_megatron_lm": "MEGATRON_LM", "multi_gpu": "MULTI_GPU"}


def accelerate_job(config: Mapping[str, Any], trainer: Meaning, overrides: Sequence[str]) -> Imported:
    """
    Import a configuration of Accelerate with the arguments of its script.

    Raises
    ------
    SpecError
        If a feature has no costs here, the degrees do not fit the devices, or a required value is missing.
    """
    flat, kind = flatten(config), config.get("distributed_type")
    own = meaning_of("accelerate", flat)
    half = own.entries.pop("given.precision", trainer.entries.get("given.half"))
    if kind == "DEEPSPEED":
        return deepspeed_job(_rename_for_deepspeed(flat), trainer, overrides).add_notes(*own.notes)
    entries = {**DATA.single, **DATA.usual, **trainer.entries, **own.entries}
    recomputes = [one.entries.get("strategy.recompute") for one in (own, trainer)]
    if kind == "MEGATRON_LM":
        entries["strategy.recompute"] = recomputes[0] or "none"
        entries["given.accumulation"] = own.entries.get("given.accumulation", 1)
    else:
        entries |= {name: trainer.entries[name] for name in ("given.accumulation",) if name in trainer.entries}
        entries["strategy.recompute"] = "full" if "full" in recomputes else "none"
        if recomputes == [None, None] and "strategy.recompute" not in read_overrides(overrides):
            own.notes.append(DATA.recompute_of_accelerate)
    if half in ("bf16", "fp16"):
        entries["training.precision"] = half
    elif not {"training.precision", "training"} & {*read_overrides(overrides)}:
        problem = f"is {shown(half)}; bf16 and fp16 are read, training in FP32 is not costed."
        raise SpecError("mixed_precision", problem, "Or add training.precision=NAME.")
    if any(name.startswith("parallelism_config.") for name in flat):
        entries.setdefault("given.shards", 1)
    entries.setdefault("given.accumulation", 1)
    entries["strategy.etp"] = entries["strategy.tp"]
    meaning = Meaning(entries=entries, notes=own.notes + trainer.notes, keys={**trainer.keys, **own.keys})
    return entries_job(meaning, newest("megatron-lm-" if kind == "MEGATRON_LM" else "accelerate-"), overrides)


def _rename_for_deepspeed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of ``deepspeed_config`` as DeepSpeed's own."""
    half = {f"{flat.get('mixed_precision')}.enabled": True} if flat.get("mixed_precision") in ("bf16", "fp16") else {}
    given = {name: flat.get(f"deepspeed_config.{name}") for name in DATA.renamed}
    return {**{DATA.renamed[name]: value for name, value in given.items() if value is not None}, **half}


def apply_launch_options(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """
    Override a configuration by the options of ``accelerate launch``.

    >>> apply_launch_options({}, ["--use_fsdp", "--fsdp_sharding_strategy=1", "--mixed_precision", "bf16"])
    {'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_sharding_strategy': 1}, 'mixed_precision': 'bf16'}
    """
    whole: dict[str, Any] = dict(config)
    for option, text in switches_of(words).items():
        name = option.removeprefix("--").replace("-", "_")
        section = next((section for start, section in DATA.sections.items() if name.startswith(start)), None)
        if name in TYPES:
            whole["distributed_type"] = TYPES[name]
        elif section is not None and isinstance(whole.get(section) or {}, Mapping):
            whole[section] = {**(whole.get(section) or {}), name: read_yaml(text, option)}
        elif name in DATA.own:
            whole[name] = text if name == "mixed_precision" else read_yaml(text, option)
    return whole


def switches_of(words: Sequence[str]) -> dict[str, str]:
    """
    Return options with their values; one without a value is true.

    >>> switches_of(["--bf16", "--max_steps", "100", "--lr=-1"])
    {'--bf16': 'true', '--max_steps': '100', '--lr': '-1'}
    """
    return {name: values[0] if values else "true" for name, values in split_options(words)}


def read_trainer_fsdp(text: str) -> dict[str, Any]:
    """
    Return the configuration that ``--fsdp`` of Hugging Face's Trainer means.

    >>> read_trainer_fsdp("hybrid_shard auto_wrap")
    {'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_sharding_strategy': 'HYBRID_SHARD'}}

    Raises
    ------
    SpecError
        If it keeps weights in host memory.
    """
    words = text.upper().split()
    if "OFFLOAD" in words:
        raise SpecError("--fsdp", "keeps weights in host memory (offload), which has no costs here.")
    name = next((word for word in words if "SHARD" in word), "FULL_SHARD")
    return {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": name}}


def trainer_of(words: Sequence[str]) -> Meaning:
    """
    Read the arguments of a script in the style of Hugging Face's Trainer.

    >>> trainer_of(["--model_name_or_path", "Qwen/Qwen3-8B", "--bf16", "True", "--max_seq_length=4096"]).entries
    {'training.sequence_length': 4096, 'given.half': 'bf16', 'model': 'qwen3-8b'}

    Raises
    ------
    SpecError
        If a value that is read is left open.
    """
    flat = {name.removeprefix("--").replace("-", "_"): read_plain(text) for name, text in switches_of(words).items()}
    meaning = meaning_of("trainer", flat)
    meaning.keys = {entry: f"--{key}" for entry, key in meaning.keys.items()}
    model = model_named(str(meaning.entries.pop("given.model", "")))
    meaning.entries |= {} if model is None else {"model": model}
    return meaning


# --- completion --------------------------------------------------------------------------------------------


def entries_job(meaning: Meaning, framework: Any, overrides: Sequence[str]) -> Imported:
    """
    Complete entries to a job, overridden by those of the command; dp takes the remaining devices.

    Entries ``given.NAME`` are values that only together with others make an entry.

    Raises
    ------
    SpecError
        If the degrees do not fit the devices, or if a required value is missing or wrong.
    """
    document: dict[str, Any] = {"cluster": {"framework": framework}}
    for name, value in meaning.entries.items():
        set_entry(document, name, degree(value, meaning.keys.get(name, name)) if name in DATA.counts else value)
    given = document.pop("given", {})
    document = prepare_job(document, overrides)
    strategy, training, model = document["strategy"], document["training"], document.get("model")
    if isinstance(model, dict) and "model" not in meaning.entries and "base" not in model and "model_type" not in model:
        _complete_model(model, given, meaning)
    keys = {name: meaning.keys.get(f"strategy.{name}", f"strategy.{name}") for name in ("tp", "pp", "cp")}
    tp, pp, cp = (degree(strategy.setdefault(name, 1), keys[name]) for name in keys)
    dp = _replicas(document, given, tp * pp * cp)
    remarks = _share(document, given, meaning)
    if "partition" in given and pp > 1 and isinstance(model, dict) and "layout" not in strategy:
        layers = degree(model.get("num_layers"), "num_layers")
        strategy["layout"] = {"layers": _deal_layers(text_of(given["partition"]), layers, pp)}
    if given.get("may_replicate") is False and strategy.get("sharding") == "none" and dp > 1:
        document["search"] = {"framework_rules": False, **document.get("search", {})}
        remarks.append("Whole replicas (DDP), which the catalog's framework with FSDP2 has not: no rules of its own.")
    said = {*meaning.entries, *read_overrides(overrides)}
    name = framework if isinstance(framework, str) else framework["base"]
    notes = [*cluster_notes(name, meaning.entries.get("cluster.num_devices"), overrides), *meaning.notes, *remarks]
    every = None if "strategy.recompute" in read_overrides(overrides) else int(given.get("full_every", 0)) or None
    try:
        _settle_batches(overrides, strategy, training, given)
        if "mbs" in strategy and ("given.accumulation" in meaning.keys or "given.accumulation" not in meaning.entries):
            said.add("strategy.mbs")  # it follows from what is said
        _add_tokens(training, given)
        notes += _note_batch(strategy, training, meaning.keys)
        return complete_job(document, notes, said=said, full_every=every)
    except SpecError as error:
        raise SpecError(meaning.keys.get(error.where, error.where), error.problem, error.hint) from None


def _replicas(document: dict[str, Any], given: Mapping[str, Any], ranks: int) -> int:
    """Return dp: replica groups of so many ranks that shard, or of all remaining ones (-1)."""
    devices = degree(document["cluster"]["num_devices"], "cluster.num_devices")
    copies, shards = degree(given.get("copies", 1), "data_parallel_replicate"), given.get("shards", -1)
    if shards == -1 and ("copies" in given or "local" in given) and devices % (ranks * copies):
        problem = f"is {devices}, no multiple of tp * cp * pp * replicas = {ranks * copies}."
        raise SpecError("cluster.num_devices", problem)
    rest = max(1, devices // ranks) if shards == -1 else copies * degree(shards, "data_parallel_shard")
    return degree(document["strategy"].setdefault("dp", rest), "strategy.dp")


def _share(document: dict[str, Any], given: Mapping[str, Any], meaning: Meaning) -> list[str]:
    """Settle what ranks share: groups of optimizer states, and features that need several ranks."""
    strategy, settings = document["strategy"], document["settings"]
    ranks, named = strategy["dp"] * strategy["cp"], catalog.find_unique_device(text_of(document["cluster"]["device"]))
    group = ranks // given.get("copies", 1)
    if given.get("hybrid") and named is not None:
        per_node = catalog.device(named.device).devices_per_node
        group = per_node if ranks > per_node and ranks % per_node == 0 else ranks
    if 1 < group < ranks:
        settings.setdefault("optimizer_group", group)
    lonely: dict[str, Any] = {"sharding": "none"} if group == 1 else {}
    lonely |= {"dp_overlap": False} if ranks == 1 else {}
    lonely |= {"sequence_parallel": False, "tp_overlap": False} if strategy["tp"] == 1 else {}
    keys = [(meaning.keys.get(f"strategy.{one}"), strategy.get(one), value) for one, value in lonely.items()]
    idle = [key for key, value, alone in keys if key is not None and value not in (None, alone)]
    strategy |= {"sequence_parallel": False, **strategy, **lonely}
    return [f"Ignored (one rank has nobody to share with): {', '.join(idle)}."] if idle else []


def _settle_batches(
    overrides: Sequence[str], strategy: dict[str, Any], training: dict[str, Any], given: Mapping[str, Any]
) -> None:
    """
    Derive the third of batch, micro-batch and steps of accumulation, unless the command says one of them.

    References
    ----------
    DeepSpeed, runtime/config.py, _set_batch_related_parameters.
    """
    steps, dp = degree(given.get("accumulation", 1), "gradient accumulation"), degree(strategy["dp"], "strategy.dp")
    if "local" in given:
        training.setdefault("global_batch_size", given["local"] * dp)
    batch = training.get("global_batch_size")
    if "mbs" not in strategy and "accumulation" in given and isinstance(batch, int):
        strategy["mbs"] = max(1, batch // (steps * dp))
    if "mbs" not in strategy:
        return
    if batch is None and "accumulation" not in given:
        raise SpecError("training.global_batch_size", "is not said.", "Add training.global_batch_size=1024.")
    product = degree(strategy["mbs"], "strategy.mbs") * steps * dp
    free = {"strategy.mbs", "training.global_batch_size"} & {*read_overrides(overrides)}
    if training.setdefault("global_batch_size", product) != product and "accumulation" in given and not free:
        problem = f"is {batch}; micro-batch {strategy['mbs']} x {steps} steps x {dp} replicas are {product}."
        raise SpecError("training.global_batch_size", problem)


def _note_batch(strategy: Mapping[str, Any], training: Mapping[str, Any], keys: Mapping[str, str]) -> list[str]:
    """Return a note on a batch that replicas cannot share in whole micro-batches; frameworks refuse it."""
    name = "training.global_batch_size"
    batch, mbs, dp = training.get("global_batch_size"), strategy.get("mbs"), strategy["dp"]
    if not isinstance(batch, int) or not isinstance(mbs, int) or batch % (mbs * dp) == 0:
        return []
    fits = f"{name}={max(1, batch // (mbs * dp)) * mbs * dp} fits"
    problem = f"is {batch}, no multiple of micro-batch {mbs} x {dp} replicas"
    return [f"{keys.get(name, name)} {problem}: the framework does not run this as it is; {fits}."]


def _complete_model(model: dict[str, Any], given: Mapping[str, Any], meaning: Meaning) -> None:
    """Add entries that several keys determine: widths of experts, and the tokenizer's vocabulary."""
    if "num_experts" in model:
        own = {"top_k": given.get("top_k", 1), "expert_ffn_hidden_size": model.get("ffn_hidden_size")}
        model |= {**own, "moe_layer_interval": given.get("interval", 1), **model}
        if given.get("shared"):
            model.setdefault("shared_ffn_hidden_size", model["expert_ffn_hidden_size"])
    if "vocab_size" not in model:
        kind, vocabulary = (text_of(given.get(name, "")) for name in ("tokenizer_type", "vocab_file"))
        key = "vocab_file" if vocabulary and kind != GPT2 else "tokenizer_type"
        known = vocabulary_of({f"--{key.replace('_', '-')}": [vocabulary if key == "vocab_file" else kind]})
        if known is None:
            raise SpecError("model.vocab_size", "is not said.", "Add model.vocab_size=50304.")
        size, source = known
        model["vocab_size"] = size
        meaning.notes.append(
            f"{key}: assumed to be of {size:,} entries ({source}); model.vocab_size=N says another number."
        )


def _add_tokens(training: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Add the length of the training, from steps, batches (``100ba``) or tokens (``1000tok``)."""
    batch, length = training.get("global_batch_size"), training.get("sequence_length")
    steps = text_of(given.get("steps", "")).removesuffix("ba")
    tokens = text_of(given.get("tokens", "")).removesuffix("tok")
    if tokens.isdecimal() and int(tokens):
        training.setdefault("tokens", int(tokens))
    elif steps.isdecimal() and int(steps) and isinstance(batch, int) and isinstance(length, int):
        training.setdefault("tokens", int(steps) * batch * length)


PER_STAGE_RANK = 2

"""VPP of schedules with several chunks, where no number of layers per stage is given."""


def read_torchtitan(text: str, source: str) -> dict[str, Any]:
    """
    Read a configuration as plain data.

    Raises
    ------
    SpecError
        If it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = TWICE.search(str(error))
        if found is None:
            raise SpecError(source, f"is not TOML: {error}.") from None
    key = text.splitlines()[int(found[1]) - 1].partition("=")[0].strip()
    raise SpecError(f"{source}, line {found[1]}", f"{shown(key)} is written twice.", "Keep one.")


TWICE = re.compile(r"(?:Cannot overwrite a value|Cannot declare .* twice) \(at line (\d+),")
"""Messages of ``tomllib`` on keys and tables that are there already."""


def apply_options(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """
    Override a configuration by options such as ``--training.steps=10``; a switch has no value.

    >>> apply_options({"training": {"steps": 1}}, ["--training.steps", "5", "--compile.enable"])
    {'training': {'steps': 5}, 'compile': {'enable': True}}

    Raises
    ------
    SpecError
        If an option that is read has an unknown value.
    """
    changed = {name: dict(section) if isinstance(section, Mapping) else section for name, section in config.items()}
    for name, text in switches_of(words).items():
        section, dot, key = name.removeprefix("--").replace("-", "_").partition(".")
        if not dot:
            continue
        if is_read("torchtitan", f"{section}.{key}"):
            refuse_unknown(text, name)
        place = changed.setdefault(section, {})
        if isinstance(place, dict) and not unknown_names(text):
            place[key] = yaml.safe_load(strip_unknown(text)) if re.fullmatch(r"[\w.+-]*", text) else text
    return changed


def torchtitan_job(
    config: Mapping[str, Any], overrides: Sequence[str], described: Mapping[str, Any] | None = None
) -> Imported:
    """
    Import a configuration.

    Parameters
    ----------
    config
        Values by section and key.
    overrides
        Entries of the job as ``key=value``.
    described
        Entry ``model`` of the job, where the configuration describes the model; None: it names it.

    Raises
    ------
    SpecError
        If the model is unknown, the degrees do not fit the devices, or a required value is missing.
    """
    flat = flatten(config)
    is_numbered = "experimental.pipeline_parallel_degree" in flat
    moved = [name for name in flat if name.startswith(DATA.places) and f"parallelism.{name.rpartition('.')[2]}" in flat]
    flat = {name: value for name, value in flat.items() if name not in moved and value is not None}
    meaning = meaning_of("torchtitan", flat)
    entries, framework = meaning.entries, str(config.get("framework", DATA.framework))
    given = prepare_job({"cluster": {"framework": framework}}, overrides)
    name = str(flat.get("model.name", "")).rsplit(".", 1)[-1]  # extensions call it simple_fsdp.llama3
    label = "/".join(filter(None, (name, str(flat.get("model.flavor", "")))))
    model = given["model"] if "model" in given else described or require_model(label)
    local = degree(entries.setdefault("given.local", 8), "training.local_batch_size")
    degree(entries["given.steps"], "training.steps")
    is_eager = entries.setdefault("settings.kernels", "eager") == "eager"
    meaning.notes += ["Layers are not compiled: costed as eager kernels."] if is_eager else []
    degrees = {name: entries.get(name, 1) for name in ("strategy.tp", "strategy.pp", "strategy.ep")}
    tp, pp, ep = (degree(value, meaning.keys.get(name, name)) for name, value in degrees.items())
    places = (*DATA.places, "parallelism.")
    pipeline = {key.rpartition(".")[2]: value for key, value in flat.items() if key.startswith(places)}
    usual = {**DATA.single, **DATA.of_torchtitan, "model": model, "strategy.dp_overlap": pp == 1}
    usual["strategy.etp"] = 1 if ep > 1 else tp
    staged = _pipeline(pipeline, model, pp, local, is_numbered)
    meaning.entries = {**usual, **entries, **staged, **_precision(flat, meaning)}
    meaning.entries |= {"strategy.cp_overlap": False} if "framework" in config else {}
    meaning.entries |= {"strategy.sharding": "optimizer"} if pp > 1 else {}
    return entries_job(meaning, framework, overrides)


PREFIX = "pipeline_parallel_"


def _pipeline(given: Mapping[str, Any], model: Any, pp: int, local: int, is_numbered: bool) -> dict[str, Any]:
    """
    Return VPP, schedule, micro-batch and layout; weights of a pipeline's stages stay gathered and gradients whole.

    Up to early 2025 the number of micro-batches was said, by default one for each pipeline rank (torchtitan of
    January 2025, torchtitan/parallelisms/pipelining_utils.py, build_pipeline_schedule).

    References
    ----------
    torchtitan 0.2.2 and 0.3.0, torchtitan/distributed/pipeline_parallel.py, and fsdp.py,
    get_fsdp_reshard_after_forward_policy.
    """
    if pp == 1:
        return {"strategy.vpp": 1, "strategy.pp_overlap": False, "strategy.mbs": local}
    name = given.get(f"{PREFIX}schedule", "1F1B")
    if name not in DATA.schedules:
        problem = f"expected one of {', '.join(DATA.schedules)}, got {shown(name)}."
        raise SpecError(f"parallelism.{PREFIX}schedule", problem)
    number = given.get(f"{PREFIX}microbatches", pp if is_numbered else None)
    size, rest = degree(given.get(f"{PREFIX}microbatch_size", 1), f"{PREFIX}microbatch_size"), 0
    if number is not None:
        size, rest = divmod(local, degree(number, f"{PREFIX}microbatches"))
    if rest:
        raise SpecError(f"{PREFIX}microbatches", f"is {number}, which does not divide {local} sequences.")
    layers = _stage_layers(given, model)
    stages, per_stage = len(layers), given.get(f"{PREFIX}layers_per_stage")
    if not layers and per_stage is not None:
        less = [given.get(f"{PREFIX}{end}_stage_less_layers", 1) for end in ("first", "last")]
        whole = read(model, Path()).num_layers + sum(less)
        stages = math.ceil(whole / degree(per_stage, f"{PREFIX}layers_per_stage"))
    is_single = name in DATA.plain_schedules
    chunks, rest = divmod(stages or pp * (1 if is_single else PER_STAGE_RANK), pp)
    if rest or (chunks == 1) != is_single or not chunks:
        problem = f"makes {stages} stages, which {pp} pipeline ranks of this schedule cannot share."
        raise SpecError(f"parallelism.{PREFIX}layers_per_stage", problem)
    found = {"strategy.vpp": chunks, "strategy.pp_overlap": chunks > 1, "strategy.mbs": size}
    layout = {} if None in layers or not layers else {"strategy.layout": {"layers": layers}}
    return {**found, "strategy.schedule": DATA.schedules[name], **layout}


def _stage_layers(given: Mapping[str, Any], model: Any) -> list[Any]:
    """Return the layers of each virtual stage, where modules or first layers are named; None: not known."""
    lists = [given.get(name) for name in ("module_fqns_per_model_part", f"{PREFIX}split_points")]
    parts, splits = (one.split(",") if isinstance(one, str) and one else one or [] for one in lists)
    if not isinstance(parts, (list, tuple)) or not all(isinstance(one, (list, tuple)) for one in parts):
        problem = f"expected lists of modules such as [['layers.0'], ['layers.1']], got {shown(parts)}."
        raise SpecError("parallelism.module_fqns_per_model_part", problem)
    if not isinstance(splits, (list, tuple)):
        problem = f"expected names of layers such as ['layers.8'], got {shown(splits)}."
        raise SpecError(f"parallelism.{PREFIX}split_points", problem)
    if parts:
        return [sum(str(name).startswith("layers.") for name in part) for part in parts]
    begins = [str(name).removeprefix("layers.") for name in splits]
    if not all(begin.isdecimal() for begin in begins):
        return [None] * (len(begins) + 1)
    ends = [0, *map(int, begins), read(model, Path()).num_layers] if begins else []
    return [end - begin for begin, end in pairwise(ends)]


def _precision(flat: Mapping[str, Any], meaning: Meaning) -> dict[str, Any]:
    """Return precision and gathering of 8-bit weights, by converters of layers or the switch of older releases."""

    def last(*names: str) -> Any:
        return next((flat[name] for name in names if name in flat), None)

    listed = flat.get("model.converters") or []
    names = [*map(str, listed.split(",") if isinstance(listed, str) else listed)]
    names += ["float8"] if last("float8.enable_float8_linear", "training.enable_fp8_linear") else []
    is_float8, is_mx = any("float8" in name for name in names), any(name.split(".")[-1] == "mx" for name in names)
    if others := [name for name in names if "float8" not in name and name.split(".")[-1] != "mx"]:
        meaning.notes.append(f"model.converters {', '.join(others)}: costed as if layers were not converted.")
    recipe = str(last("quantize.linear.float8.recipe_name", "float8.recipe_name") or "tensorwise")
    scaling = "fp8_rowwise" if recipe.startswith("rowwise") else "fp8_tensorwise"
    gathered = [f"{place}.enable_fsdp_float8_all_gather" for place in ("quantize.linear.float8", "float8")]
    precision = {"training.precision": scaling if is_float8 else "mxfp8"} if is_float8 or is_mx else {}
    meaning.keys |= dict.fromkeys(precision, "model.converters" if listed else "float8.enable_float8_linear")
    return {**precision, "settings.fp8_param_gather": bool(last(*gathered)) and is_float8}


MODES = DATA.modes

"""Entries of recomputation by its class."""


def read_python(text: str, where: str, name: str = "") -> dict[str, Any]:
    """
    Read a configuration as the tables of older releases.

    Parameters
    ----------
    text
        Source in Python.
    where
        Path of the file, for messages; its folder is the model where the file imports the model from next to it.
    name
        Name of the function; empty: the only one, else the last.

    Raises
    ------
    SpecError
        If there is no such function, or if a degree, a batch, the precision or recomputation is known only at run time.
    """

    def resolver(module: str, one: str) -> Any:
        of_model = module.removeprefix(DATA.models) if module.startswith(DATA.models) else Path(where).parent.name
        return Thing(f"{of_model.split('.')[0]}.{DATA.registry}") if one == DATA.registry else None

    functions = public_functions(read_module(text, where, resolver))
    if name and name not in functions:
        raise SpecError(where, f"has no configuration {shown(name)}.", did_you_mean(name, functions))
    for one in [name] if name else reversed(functions):
        config = result_of(functions[one], where, resolver)
        if isinstance(config, Thing) and {"model_spec", *DATA.plain_sections} & {*config.fields}:
            return _tables(config, where)
    raise SpecError(where, "holds no function that returns a Trainer.Config.")


def _tables(config: Thing, where: str) -> dict[str, Any]:
    changed = config.name.endswith("replace")
    missing = [name for name in DATA.settled if name not in config.fields]
    if changed and missing:
        raise SpecError(where, f"changes a configuration that is not read, and says no {missing[0]}.")
    given, loss = config.fields.get("activation_checkpoint", Thing("SelectiveAC")), config.fields.get("loss")
    kind, chunks = "none" if given is None else _class_of(given), DATA.loss_chunks.get(_class_of(loss))
    if kind not in MODES:
        raise SpecError(f"{where}: activation_checkpoint", "is something that only running it would say.")
    tables: dict[str, Any] = {"framework": newest("torchtitan-"), "activation_checkpoint": dict(MODES[kind])}
    tables |= {"training": {"disable_cuda_graphs": False}}
    tables |= {} if loss is None or chunks is None else {"loss": {"num_chunks": loss.fields.get("num_chunks", chunks)}}
    for section in DATA.plain_sections:
        thing = config.fields.get(section)
        for name, value in thing.fields.items() if isinstance(thing, Thing) else ():
            if is_known(value):
                tables.setdefault(section, {})[name] = value
            elif section in DATA.settled and not isinstance(value, Thing):
                raise SpecError(f"{where}: {section}.{name}", "is something that only running it would say.")
    return tables | _model(config.fields.get("model_spec"))


def _class_of(value: Any) -> str:
    return value.name.removesuffix(".Config").rpartition(".")[2] if isinstance(value, Thing) else ""


def _model(spec: Any) -> dict[str, Any]:
    """Return the model's name and flavor, and the converters of its layers."""
    if not isinstance(spec, Thing) or not spec.arguments or not isinstance(spec.arguments[-1], str):
        return {}
    model: dict[str, Any] = {"name": spec.name.split(".")[0], "flavor": spec.arguments[-1]}
    tables: dict[str, Any] = {"model": model}
    for converter in spec.fields.get("converters") or []:
        kind = converter.name if isinstance(converter, Thing) else ""
        if "Float8Linear" in kind:
            model["converters"] = ["quantize.linear.float8"]
            tables["quantize.linear.float8"] = {"recipe_name": converter.fields.get("recipe_name", "rowwise")}
        elif "MXFP8Linear" in kind:
            model["converters"] = ["quantize.linear.mx"]
        elif "NVFP4" in kind or not kind:
            problem = f"has {shown(kind)}, whose precision torchtitan's entry does not have."
            raise SpecError("model_spec.converters", problem)
    return tables


def _job(file: File, meaning: Meaning, variables: Mapping[str, str], whose: str = "Megatron-LM's defaults") -> Imported:
    """Import options of Megatron-LM and entries, overridden by those of the command; errors name the tool's key."""
    own = [f"{name}={text_of(value)}" for name, value in meaning.entries.items() if file.says(name) is None]
    try:
        imported = megatron_job(meaning.words, [*own, *file.overrides], variables)
    except SpecError as error:
        key = meaning.keys.get(error.where.removeprefix("arguments."), error.where)
        raise SpecError(key, error.problem, error.hint) from None
    said = entries_set_by({word for word in meaning.words if word.startswith("--")}, [*own, *file.overrides])
    assumed = assumption_notes(imported.document, said, whose, load(imported.document).facts.model)
    framework, stated = (meaning.entries.get(f"cluster.{name}") for name in ("framework", "num_devices"))
    keyed = [re.sub(r"--[\w-]+", lambda found: meaning.keys.get(found[0], found[0]), note) for note in imported.notes]
    notes = [*cluster_notes(framework, stated, file.overrides), *assumed, *meaning.notes]
    return Imported(document=imported.document, notes=(*notes, *keyed))


def nemo_job(file: File) -> Imported:
    """Import NeMo 1: a trainer, and a model with its sizes, degrees and batches."""
    meaning = meaning_of("nemo1", file.flat(), section="model.")
    meaning.entries["cluster.framework"] = newest("nemo-")
    return _job(file, meaning, {}, whose="NeMo's defaults")


# --- FlagScale ---------------------------------------------------------------------------------------------


def flagscale_job(file: File) -> Imported:
    """Import FlagScale: Hydra's outer file with the inner one of the training, or the inner one alone."""
    outer, inner = _hydra(file)
    refuse_entries(inner, str(file.path))
    whole = file.flat({**inner, **outer})
    own = {name: value for name, value in whole.items() if name.split(".")[0] in inner}
    flat = {name.rpartition(".")[2].replace("-", "_"): value for name, value in own.items()}
    outside = ("task.entrypoint", "runner.nproc_per_node", "runner.nnodes")
    flat |= {name.partition(".")[2]: whole[f"experiment.{name}"] for name in outside if f"experiment.{name}" in whole}
    meaning = meaning_of("flagscale", flat, section="")
    if "multiple_of" in flat and "--ffn-hidden-size" not in meaning.words:
        meaning.words += ["--ffn-hidden-size", str(_round_width(flat))]
    variables = {name: text_of(value) for name, value in whole.items() if name.startswith(DATA.environment)}
    return _job(file, meaning, {name.removeprefix(DATA.environment): value for name, value in variables.items()})


def _hydra(file: File) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the configuration of the run and its file of conf/train; either one may be the imported file."""
    if "system" in file.content:
        outer = file.path.parent.with_suffix(".yaml")
        return (read_mapping(outer) if os.path.isfile(outer) else {}), file.content
    defaults = file.content.get("defaults")
    listed = [one.get("train") for one in defaults if isinstance(one, Mapping)] if isinstance(defaults, list) else []
    named = [one for one in listed if isinstance(one, str)]
    inner = file.find_file(f"train/{named[0].removesuffix('.yaml')}.yaml") if named else None
    if inner is None:
        problem = f"names {shown(named[0])} of conf/train, which does not exist." if named else "names no file."
        raise SpecError(f"{file.path}: defaults", problem, "Import the file of conf/train itself.")
    return file.content, read_mapping(inner)


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


def primus_job(file: File) -> Imported:
    """Import Primus: a trainer's file, a model's file and overrides, each with the files that it extends."""
    module = file.content["modules"]["pre_trainer"]
    module = {name: resolve(module[name], name, file.content, file.given) for name in module}
    framework, own = text_of(module.get("framework", "megatron")), module.get("overrides") or {}
    if framework not in ("megatron", "torchtitan"):
        raise SpecError("modules.pre_trainer.framework", f"is {shown(framework)}; megatron and torchtitan are read.")
    refuse_entries(require_mapping(own, "modules.pre_trainer.overrides"), str(file.path))
    trainer = _read_extended(file, f"modules/{framework}/{text_of(module.get('config', 'pre_trainer.yaml'))}", ())
    model = _read_extended(file, f"models/{framework}/{text_of(module.get('model'))}", ())
    lacking = "config: Primus' trainer file was not found: Megatron-LM's defaults stand for its values."
    notes = [] if trainer else [lacking]
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
    return _job(file, meaning, {})


def _read_extended(file: File, name: str, above: tuple[str, ...]) -> dict[str, Any]:
    """Read a file with those that it extends, the last of which counts; empty: not found."""
    found = file.find_file(name, DATA.primus_folders)
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
        raise SpecError("modules.pre_trainer.model", f"names {shown(named)}, which was not found.", hint)
    return architecture_words(read(model_named(entry) or entry, Path()), length if isinstance(length, int) else 0)


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


def tool_of(content: Mapping[Any, Any]) -> Mapping[str, str] | None:
    """
    Return the row of the tool whose keys a configuration has; None: unknown.

    ``tools.csv`` has tools by keys that mark their files; the first row whose marks all match counts. ``marks`` are
    patterns of dotted names, with ``=`` also of values; ``import:NAME`` is a module that a file of Python imports.
    ``reader`` is the name in the table of keys; empty: the tool is not imported, and the last column describes it.

    >>> tool_of({"pipe-parallel-size": 4, "num-layers": 8})["name"], tool_of({"model": "llama3-8b"})
    ('GPT-NeoX', None)
    """
    flat = {key if "." in key else key.replace("-", "_"): value for key, value in flatten(content).items()}
    rows = read_rows("tools/tools.csv")
    return next((row for row in rows if all(_has(flat, mark) for mark in row["marks"].split())), None)


def refuse_other_tool(tool: Mapping[str, str] | None, where: str) -> None:
    """
    Refuse a configuration of a tool that is not imported, by its row.

    Raises
    ------
    SpecError
        Names and describes the tool, and the inputs that are accepted.
    """
    if tool is not None and not tool["reader"]:
        problem = f"is a configuration of {tool['name']}, which is not read: {tool['what']}."
        raise SpecError(where, problem, DATA.by_hand)


def refuse_other_program(text: str, where: str) -> None:
    """
    Refuse a file of Python that is a configuration of a tool that is not imported.

    Raises
    ------
    SpecError
        As :func:`refuse_other_tool`.
    """
    for tool in read_rows("tools/tools.csv"):
        package = tool["marks"].removeprefix("import:")
        if package != tool["marks"] and re.search(rf"(?m)^\s*(from|import)\s+{package}\b", text):
            refuse_other_tool(tool, where)


READERS: Mapping[str, Callable[[File], Imported]] = {
    "megatron_yaml": lambda file: _job(file, meaning_of("megatron_yaml", file.flat(), section=""), {}),
    "nemo1": nemo_job,
    "flagscale": flagscale_job,
    "primus": primus_job,
    "gpt_neox": neox_job,
    "nanotron": lambda file: entries_job(meaning_of("nanotron", file.flat()), "nanotron-0.4", file.overrides),
    "llm_foundry": foundry_job,
}
"""Import function of each tool, by its name in the table of keys."""


def _has(flat: Mapping[str, Any], mark: str) -> bool:
    name, equals, value = mark.partition("=")
    return any(fnmatchcase(key, name) and (not equals or fnmatchcase(text_of(one), value)) for key, one in flat.items())
