"""Configurations of other tools as jobs: some in Megatron-LM's words, the others as entries of a job."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.bridge.overrides import architecture_words, said_by
from planner.frameworks.imports.documents import read_yaml
from planner.frameworks.imports.finish import assumed, degree, finished, newest, prepared, release_assumed
from planner.frameworks.imports.named import model_named, vocabulary_of
from planner.frameworks.imports.refused import refuse_entries
from planner.frameworks.imports.tools.keys import Meaning, is_on, meaning_of, text_of
from planner.frameworks.imports.tools.references import flat_entries, resolved
from planner.frameworks.imports.torchtitan import torchtitan_job
from planner.frameworks.megatron.read import Imported
from planner.jobs.document import read_text, set_entry
from planner.jobs.model import read
from planner.jobs.problem import load

MOST_FOLDERS = 8
"""Folders above a file in which files that it names are looked for."""

NANOTRON = """
base: megatron-core-0.8
behaviour:
  kernels: {loss_forward_bytes: 38.0, loss_backward_bytes: 14.0}
  memory: {logit_bytes: 10.0, gathered_inputs: true, weight_gradient_bytes: 0.0}
"""
"""How nanotron is costed, as its measured runs are (benchmarks/grid/nanotron.yaml, with file and line)."""


class File(NamedTuple):
    """
    A configuration with what stands beside it.

    Parameters
    ----------
    content
        The document.
    path
        Where it lies.
    overrides
        Entries of the job as ``key=value``.
    given
        Variables that it leaves open.
    """

    content: Mapping[str, Any]
    path: Path
    overrides: Sequence[str]
    given: Mapping[str, str]

    def says(self, name: str) -> bool:
        """Return true where the command has the entry."""
        return any(entry.partition("=")[0] == name for entry in self.overrides)


def tool_job(
    reader: str, content: Mapping[str, Any], path: Path, overrides: Sequence[str], given: Mapping[str, str]
) -> Imported:
    """
    A configuration of another tool as a job.

    Parameters
    ----------
    reader
        Whose it is, as in the table of keys.
    content, path
        The document and where it lies.
    overrides
        Entries of the job as ``key=value``.
    given
        Variables that it leaves open.

    Raises
    ------
    SpecError
        If a key is refused, left open or not known and decisive, or if what is needed is not said.
    """
    return READERS[reader](File(content, path, overrides, given))


# --- words of Megatron-LM ----------------------------------------------------------------------------------


def _nemo(file: File) -> Imported:
    """A trainer, and a model with its sizes, degrees and batches."""
    flat = flat_entries(file.content, file.given)
    meaning = meaning_of("nemo1", flat, section="model.")
    one, many = (flat.get(f"trainer.{name}") for name in ("devices", "num_nodes"))
    if isinstance(one, int) and isinstance(many, int):
        meaning.entries["cluster.num_devices"] = one * many
    meaning.entries["cluster.framework"] = newest("nemo-")
    return _by_words(file, meaning, whose="NeMo's defaults")


def _flagscale(file: File) -> Imported:
    """What Hydra starts with and what it trains, or the inner one alone; sections mean nothing there."""
    outer, inner = _hydra(file)
    flat = {name.rpartition(".")[2]: value for name, value in flat_entries({**outer, **inner}, file.given).items()
            if not name.startswith(("experiment.", "hydra.", "defaults", "action"))}  # fmt: skip
    whole = flat_entries(outer, file.given)
    if "experiment.task.entrypoint" in whole:
        flat["entrypoint"] = whole["experiment.task.entrypoint"]
    refuse_entries(inner, str(file.path))
    meaning = meaning_of("flagscale", {name.replace("-", "_"): value for name, value in flat.items()}, section="")
    if "multiple_of" in flat and "--ffn-hidden-size" not in meaning.words:
        meaning.words += ["--ffn-hidden-size", str(_rounded_width(flat))]
    one, many = (whole.get(f"experiment.runner.{name}") for name in ("nproc_per_node", "nnodes"))
    if isinstance(one, int) and isinstance(many, int):
        meaning.entries["cluster.num_devices"] = one * many
    variables = {
        name.removeprefix("experiment.envs."): text_of(value)
        for name, value in whole.items()
        if name.startswith("experiment.envs.")
    }
    return _by_words(file, meaning, variables)


def _hydra(file: File) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The outer file and the inner one, each looked for from the other."""
    content = file.content
    if "system" in content:
        outer = file.path.parent.with_suffix(".yaml")
        return (_mapping(outer) if os.path.isfile(outer) else {}), content
    defaults = content.get("defaults")
    named = [one.get("train") for one in (defaults if isinstance(defaults, list) else []) if isinstance(one, Mapping)]
    if not named or not isinstance(named[0], str):
        raise SpecError(f"{file.path}: defaults", "names no file of conf/train.", "Import that file itself.")
    return content, _mapping(_found(f"train/{named[0].removesuffix('.yaml')}.yaml", file.path))


def _rounded_width(flat: Mapping[str, Any]) -> int:
    """
    A width of two thirds of four times the hidden size, rounded up.

    References
    ----------
    FlagScale, flagscale/train/arguments.py: ``multiple_of`` and ``hidden_dim_multiplier``.
    """
    step, hidden = (degree(flat.get(name), name) for name in ("multiple_of", "hidden_size"))
    more = flat.get("hidden_dim_multiplier") or 1
    if not isinstance(more, (int, float)) or not 0 < more < 1024:
        raise SpecError("hidden_dim_multiplier", f"expected a number above 0, got {shown(more)}.")
    return step * -(-int(int(4 * hidden * 2 / 3) * more) // step)


def _primus(file: File) -> Imported:
    """A trainer's file, a model's file and overrides on top, each on the files that it extends."""
    module = file.content["modules"]["pre_trainer"]
    module = {name: resolved(module[name], name, file.content, file.given) for name in module}
    framework = text_of(module.get("framework", "megatron"))
    if framework not in ("megatron", "torchtitan"):
        raise SpecError("modules.pre_trainer.framework", f"is {shown(framework)}; megatron and torchtitan are read.")
    own = module.get("overrides") or {}
    if not isinstance(own, Mapping):
        raise SpecError("modules.pre_trainer.overrides", f"expected a mapping, got {shown(own)}.")
    refuse_entries(own, str(file.path))
    named = text_of(module.get("model"))
    trainer, model = (
        _extended(f"{kind}/{framework}/{name}", file.path, ()) if name else None
        for kind, name in (("modules", text_of(module.get("config", "pre_trainer.yaml"))), ("models", named))
    )
    notes = [] if trainer else ["Primus' own trainer file is not beside it: its defaults are those of Megatron-LM."]
    if framework == "torchtitan":
        return torchtitan_job(_merged(_merged(trainer or {}, model or {}), own), file.overrides, notes)
    flat = flat_entries({**(trainer or {}), **(model or {}), **own}, file.given)
    meaning = meaning_of("primus", flat, section="", own=flat_entries(own, {}))
    meaning.notes += notes
    if model is None and not file.says("model"):
        known = model_named(named.removesuffix(".yaml").replace("_", "-"))
        hint = f"Put it there, or add model={known if isinstance(known, str) else 'NAME'}."
        raise SpecError("modules.pre_trainer.model", f"names {shown(named)}, which is not beside it.", hint)
    if model is None:
        entry = next(entry.partition("=")[2] for entry in file.overrides if entry.startswith("model="))
        length = flat.get("seq_length")
        facts = read(model_named(entry) or entry, Path()).model
        meaning.words += architecture_words(facts, length if isinstance(length, int) else 0)
    _deal_padded(flat, meaning)
    listed = flat.get("recompute_layer_ids")
    if not is_on(listed):
        return _by_words(file, meaning)
    meaning.words += ["--recompute-method", "block", "--recompute-num-layers", "1"]
    return _with_layers_in_full(_by_words(file, meaning), text_of(listed).strip("[]").split(","))


def _deal_padded(flat: Mapping[str, Any], meaning: Meaning) -> None:
    """Where layers do not divide, Primus pads them: the last rank has fewer (``allow_padding_num_layers``)."""
    layers, ranks = flat.get("num_layers"), flat.get("pipeline_model_parallel_size")
    dealt = ("pipeline_model_parallel_layout", "decoder_last_pipeline_num_layers", "decoder_first_pipeline_num_layers")
    if not is_on(flat.get("allow_padding_num_layers")) or any(is_on(flat.get(name)) for name in dealt):
        return
    if isinstance(layers, int) and isinstance(ranks, int) and ranks > 1 and layers % ranks:
        last = layers - (ranks - 1) * -(-layers // ranks)
        if last > 0:
            meaning.words += ["--decoder-last-pipeline-num-layers", str(last)]
            meaning.notes.append(f"allow_padding_num_layers: {layers} layers on {ranks} ranks, the last has {last}.")


def _with_layers_in_full(imported: Imported, listed: Sequence[str]) -> Imported:
    """The strategy with numbered layers recomputed in full, each on the rank that holds it."""
    strategy = imported.document["strategy"]
    ends = [*accumulate(strategy["layout"]["layers"])]
    if not all(one.strip().isdecimal() and int(one) < ends[-1] for one in listed):
        raise SpecError("recompute_layer_ids", f"expected numbers of layers below {ends[-1]}, got {shown(listed)}.")
    stages = Counter(bisect_right(ends, int(one)) % strategy["pp"] for one in listed)
    layout = {**strategy["layout"], "full_layers": [stages[rank] for rank in range(strategy["pp"])]}
    document = {**imported.document, "strategy": {**strategy, "layout": layout}}
    load(document)
    return Imported(document=document, notes=imported.notes)


def _extended(name: str, path: Path, above: tuple[str, ...]) -> dict[str, Any] | None:
    """A file with those that it extends, of which the last one counts; None: there is none."""
    found = _found(name, path, ("primus/configs/", "configs/", ""), may_lack=True)
    if found is None or len(above) > MOST_FOLDERS or name in above:
        return None
    content, whole = _mapping(found), dict[str, Any]()
    for base in [*_list(content.get("bases")), *_list(content.get("extends"))]:
        whole |= _extended(f"{name.rpartition('/')[0]}/{base}", path, (*above, name)) or {}
    return {**whole, **{key: value for key, value in content.items() if key not in ("bases", "extends")}}


def _list(value: Any) -> list[str]:
    return [text_of(one) for one in value] if isinstance(value, list) else [text_of(value)] if value else []


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings, the second one on top."""
    both = {**under, **over}
    return {
        name: _merged(under[name], value)
        if isinstance(value, Mapping) and isinstance(under.get(name), Mapping)
        else value
        for name, value in both.items()
    }


def _found(name: str, path: Path, under: Sequence[str] = ("",), *, may_lack: bool = False) -> Any:
    """A file that another one names, beside it or under a folder above it."""
    plain = Path(os.path.normpath(name))
    for folder in list(path.resolve().parents)[:MOST_FOLDERS] if ".." not in plain.parts else ():
        for start in under:
            if os.path.isfile(folder / start / plain):
                return folder / start / plain
    if not may_lack:
        raise SpecError(str(path), f"names {shown(name)}, which is not beside it.", "Put it there.")
    return None


def _mapping(path: Path) -> dict[str, Any]:
    content = read_yaml(read_text(path), str(path))
    if not isinstance(content, dict):
        raise SpecError(str(path), f"expected a mapping, got {shown(content)}.")
    return content


def _by_words(
    file: File,
    meaning: Meaning,
    variables: Mapping[str, str] | None = None,
    *,
    whose: str = "Megatron-LM's defaults",
) -> Imported:
    """Words of Megatron-LM, and entries under those of the command, as a job; mistakes are told by their key."""
    entries = [f"{name}={text_of(value)}" for name, value in meaning.entries.items() if not file.says(name)]
    try:
        imported = megatron_job(meaning.words, [*entries, *file.overrides], variables or {}, uses={})
    except SpecError as error:
        key = meaning.keys.get(error.where.removeprefix("arguments."), error.where)
        raise SpecError(key, error.problem, error.hint) from None
    has_experts = load(imported.document).facts.model.has_experts
    said = said_by({word for word in meaning.words if word.startswith("--")}, [*entries, *file.overrides])
    notes = assumed(imported.document, said, has_experts=has_experts, whose=whose)
    framework = meaning.entries.get("cluster.framework")
    release = release_assumed(str(framework), file.overrides) if framework else ()
    return Imported(document=imported.document, notes=(*release, *notes, *meaning.notes, *imported.notes))


# --- entries of a job --------------------------------------------------------------------------------------


def _neox(file: File) -> Imported:
    """GPT-NeoX: its own keys with dashes or underscores, ZeRO by DeepSpeed."""
    beside = file.path.parent / LOCAL
    other = _mapping(beside) if os.path.isfile(beside) and file.path.name != LOCAL else {}
    content = {name.replace("-", "_"): value for name, value in {**other, **file.content}.items()}
    flat = flat_entries(content, file.given)
    if "num_layers" not in flat:
        problem = "is a part of a run of GPT-NeoX, which merges several files: it has no num_layers."
        raise SpecError(str(file.path), problem, "Import the file with num_layers, with this one's keys in it.")
    meaning = meaning_of("gpt_neox", flat)
    meaning.notes += [f"{LOCAL} beside it counts for what it alone says, as in a run with both."] if other else []
    hidden = degree(flat.get("hidden_size"), "hidden_size")
    width = flat.get("intermediate_size") or int(hidden * (flat.get("expansion_factor") or 4))
    meaning.entries["model.ffn_hidden_size"] = _neox_width(
        degree(width, "intermediate_size"), hidden, flat, is_gated=bool(meaning.entries.pop("given.gated", False))
    )
    return _by_entries(file, meaning, "gpt-neox-2.0")


LOCAL = "local_setup.yml"
"""GPT-NeoX's own second file of a run: where data and tokenizer lie."""


def _neox_width(width: int, hidden: int, flat: Mapping[str, Any], *, is_gated: bool) -> int:
    """
    The feed-forward's width: of gated ones a third, of ``mlp_type: llama`` two thirds of four times the hidden size.

    References
    ----------
    GPT-NeoX, megatron/model/transformer.py: ``ParallelMLP`` and ``LLaMAParallelMLP``.
    """
    if flat.get("mlp_type") == "llama" and not flat.get("intermediate_size"):
        return 256 * -(-int(2 * hidden * 4 / 3) // 256)
    step = degree(flat.get("mlp_multiple_of") or 1, "mlp_multiple_of")
    return step * -(-(int(width * 2 / 3) // 2 if is_gated else width) // step)


def _nanotron(file: File) -> Imported:
    """nanotron: degrees, tokens and a model in the words of the hub."""
    meaning = meaning_of("nanotron", flat_entries(file.content, file.given))
    entries = meaning.entries
    degrees = [entries.get(name, 1) for name in ("given.dp", "strategy.tp", "strategy.pp", "strategy.cp")]
    entries["cluster.num_devices"] = prod(degree(one, "parallelism") for one in degrees)
    if entries.get("strategy.ep", 1) != 1:
        entries.setdefault("strategy.etp", 1)
    if entries.pop("given.tp_overlap", False) and degrees[1] > 1:
        entries["strategy.tp_overlap"] = True
    return _by_entries(file, meaning, yaml.safe_load(NANOTRON))


def _foundry(file: File) -> Imported:
    """llm-foundry: MPT by its sizes or a model of the hub by name, with PyTorch's FSDP or whole replicas."""
    flat = flat_entries(file.content, file.given)
    meaning = meaning_of("llm_foundry", flat)
    entries = meaning.entries
    if not any(name.startswith(("fsdp_config.", "parallelism_config.")) for name in flat):
        entries["strategy.sharding"] = "none"
    if flat.get("model.name") == "hf_causal_lm":
        entries["model"] = _of_hub(file, text_of(flat.get("model.pretrained_model_name_or_path")))
        return _by_entries(file, meaning, "llm-foundry-0.6")
    has_bias = not entries.pop("given.no_bias", False)
    learned = 0 if entries.pop("given.alibi", False) else entries.get("training.sequence_length", 0)
    usual = {"gated": False, "norm": "layer", "rotary": False, "tied_embeddings": True, "learned_positions": learned}
    usual |= dict.fromkeys(("mlp_bias", "qkv_bias", "output_bias"), has_bias)
    if "model.ffn_hidden_size" not in entries:
        ratio, hidden = flat.get("model.expansion_ratio", 4), entries.get("model.hidden_size")
        width = flat.get("model.ffn_config.ffn_hidden_size") or degree(hidden, "model.d_model") * ratio
        usual["ffn_hidden_size"] = degree(width, "model.expansion_ratio")
    meaning.entries = {**{f"model.{name}": value for name, value in usual.items()}, **entries}
    return _by_entries(file, meaning, "llm-foundry-0.6")


def _of_hub(file: File, name: str) -> Any:
    known = model_named(name)
    if known is None and not file.says("model"):
        raise SpecError("model.pretrained_model_name_or_path", f"{shown(name)} is no model that is known here.",
                        "Add model=NAME, one of planner catalog models, or the path of its config.json.")  # fmt: skip
    return known or ""


def _by_entries(file: File, meaning: Meaning, framework: Any) -> Imported:
    """Entries under those of the command as a job; replicas are the devices that the other degrees leave."""
    document: dict[str, Any] = {"cluster": {"framework": framework}}
    for name, value in meaning.entries.items():
        set_entry(document, name, value)
    given = document.pop("given", {})
    document = prepared(document, file.overrides)
    strategy, training, model = document["strategy"], document["training"], document.get("model")
    if isinstance(model, dict) and "base" not in model and "model_type" not in model:
        _complete_model(model, given, meaning)
    sizes = {name: degree(strategy.setdefault(name, 1), f"strategy.{name}") for name in ("tp", "pp", "cp")}
    dp = max(1, degree(document["cluster"]["num_devices"], "cluster.num_devices") // prod(sizes.values()))
    strategy.setdefault("dp", dp)
    if dp * sizes["cp"] == 1:
        strategy |= {"sharding": "none", "dp_overlap": False}
    strategy.setdefault("sequence_parallel", False)
    if "mbs" in strategy and ("accumulation" in given or "global_batch_size" not in training):
        whole = degree(strategy["mbs"], "strategy.mbs") * degree(given.get("accumulation", 1), "accumulation") * dp
        training.setdefault("global_batch_size", whole)
    _add_tokens(training, given)
    said = {*meaning.entries, *(entry.partition("=")[0] for entry in file.overrides)}
    release = release_assumed(framework if isinstance(framework, str) else "nanotron's own costs", file.overrides)
    try:
        return finished(document, [*release, *meaning.notes], said=said)
    except SpecError as error:
        raise SpecError(meaning.keys.get(error.where, error.where), error.problem, error.hint) from None


def _complete_model(model: dict[str, Any], given: Mapping[str, Any], meaning: Meaning) -> None:
    """Add what keys say together: experts' widths, and a vocabulary of which the tokenizer may tell."""
    if "num_experts" in model:
        width = model.pop("ffn_hidden_size", None)
        model |= {"top_k": given.get("top_k", 1), "expert_ffn_hidden_size": model.get("expert_ffn_hidden_size", width)}
        model["moe_layer_interval"] = given.get("interval", 1)
        if model["moe_layer_interval"] != 1:
            model["ffn_hidden_size"] = width
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


GPT2 = "GPT2BPETokenizer"
"""A tokenizer whose vocabulary needs no file."""


def _add_tokens(training: dict[str, Any], given: Mapping[str, Any]) -> None:
    """The length of the training, in steps, batches or tokens."""
    batch, length = training.get("global_batch_size"), training.get("sequence_length")
    steps = text_of(given.get("steps", given.get("batches", ""))).removesuffix("ba")
    tokens = text_of(given.get("tokens", "")).removesuffix("tok")
    if tokens.isdecimal() and int(tokens):
        training.setdefault("tokens", int(tokens))
    elif steps.isdecimal() and int(steps) and isinstance(batch, int) and isinstance(length, int):
        training.setdefault("tokens", int(steps) * batch * length)


READERS: Mapping[str, Callable[[File], Imported]] = {
    "nemo1": _nemo,
    "flagscale": _flagscale,
    "primus": _primus,
    "gpt_neox": _neox,
    "nanotron": _nanotron,
    "llm_foundry": _foundry,
}
"""The reader of each tool, by its name in the table of keys."""
