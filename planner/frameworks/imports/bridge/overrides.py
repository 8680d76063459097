"""
Import of overrides of Megatron-Bridge and NeMo: fields by dotted names, read as options of Megatron-LM.

Fields are those of ``planner/frameworks/megatron/meanings.csv``; NeMo 2 has them under other sections.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from constraints.rules.exports import require_options
from costmodel.errors import SpecError
from costmodel.facts.model import Experts, Model
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job
from planner.frameworks.imports.bridge.library import OPEN, Recipe, options_by_field, recipe_named
from planner.frameworks.imports.documents import (
    ARCHITECTURE,
    flat_entries,
    read_overrides,
    read_words,
    require_model,
    text_of,
)
from planner.frameworks.imports.finish import assumption_notes, cluster_notes, entries_set_by, newest
from planner.frameworks.imports.tools.keys import is_on, meaning_of
from planner.frameworks.megatron.bridge import DATA as BRIDGE
from planner.frameworks.megatron.model import model_entries
from planner.frameworks.megatron.options import argument_lines, options, split_options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.words import argument_words, refuse_unknown
from planner.jobs.cluster import read

DATA = read_words("bridge.overrides")

FIELD = re.compile(r"(?:\+\+?|~)?([a-z_]+(?:\.[A-Za-z_]\w*)*)=(.*)", re.DOTALL)
"""Override in Hydra's grammar: a dotted name and a value, with an optional sign that adds it."""


DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""PyTorch's names by Megatron-LM's."""

VIRTUAL, STAGES = "model.virtual_pipeline_model_parallel_size", "model.pipeline_model_parallel_layout"
"""VPP and layout; Megatron-Bridge accepts both together, Megatron-LM's options exclude each other."""

NUMBERS = ("model.moe_deepep_num_sms", "model.moe_hybridep_num_sms", "model.cpu_offloading_num_layers")
UNTOLD = {name: str(BRIDGE.defaults[name]) for name in NUMBERS}
"""Default numbers: kernels use their own numbers of SMs, and no layer is offloaded."""


def fields_of(words: Sequence[str]) -> dict[str, str]:
    """
    Find overrides among words, by name; objects such as ``++comm_overlap={...}`` become their entries.

    >>> fields_of(["model.context_parallel_size=2", "++comm_overlap={tp_comm_overlap:true}", "--x"])
    {'model.context_parallel_size': '2', 'comm_overlap.tp_comm_overlap': 'true'}
    """
    found: dict[str, str] = {}
    for word in words:
        match = FIELD.fullmatch(word)
        if match is None:
            continue
        name, value = match[1], match[2].strip("'\"")
        if value.startswith("{"):
            found |= {f"{name}.{key}": one for key, one in re.findall(r"(\w+):(\[[^\]]*\]|[^,{}]+)", value)}
        else:
            found[name] = value
    return found


def is_override(word: str) -> bool:
    """Tell whether a word sets a known field."""
    match = FIELD.fullmatch(word)
    known = {*options_by_field(), *DATA.sizes, "mixed_precision"}
    return match is not None and not known.isdisjoint((match[1], _plain(match[1])))


def override_list(text: str) -> list[str]:
    """Return the words of a file with overrides only, as exports write them; empty for any other file."""
    try:
        words = argument_words(text)
    except ValueError:
        return []
    return words if any(map(is_override, words)) and all(FIELD.fullmatch(word) for word in words) else []


def _sequence_length(entries: Mapping[str, str], plain: Mapping[str, str]) -> int:
    """Return the tokens of a sequence, by the job's entries or the fields; 0 where neither says them."""
    of_job, of_field = "training.sequence_length", "model.seq_length"
    where, text = (of_job, entries[of_job]) if of_job in entries else (of_field, plain.get(of_field, "0"))
    if not text.isdecimal():
        raise SpecError(where, f"expected a whole number, got {shown(text)}.")
    return int(text)


def _change_depth(model: Any, facts: Model, num_layers: str) -> tuple[Any, Model]:
    """Return a model with another number of layers, and its facts, if that is a number and the model has no blocks."""
    if not num_layers.isdecimal() or facts.has_single_blocks or int(num_layers) == facts.num_layers:
        return model, facts
    changed = {"base": model, "num_layers": int(num_layers)}
    return changed, read(changed, Path())


def bridge_job(
    fields: Mapping[str, str],
    recipe: str | Recipe,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    *,
    is_whole: bool = False,
) -> Imported:
    """
    Import overrides of a recipe.

    Parameters
    ----------
    fields
        Values by dotted name.
    recipe
        The recipe or its name, which determines the model; empty: the command names the model.
    overrides
        Entries of the job as ``key=value``.
    environment
        Known environment variables.
    is_whole
        True where nothing else is given: the recipe's name means the model alone.

    Raises
    ------
    SpecError
        If the model or a value is unknown, or if a required value would come from a recipe that is unknown.
    """
    entries = read_overrides(overrides)
    said_here = {*entries}
    is_nemo = any(name.startswith("trainer.") for name in fields)
    known = recipe if isinstance(recipe, Recipe) else None if is_nemo or not recipe else recipe_named(recipe)
    model = require_model(entries.pop("model", "") or (known.model if known else str(recipe)))
    facts = read(model, Path())
    plain = _merge_recipe({_plain(name): value for name, value in fields.items()}, known, has_experts=facts.has_experts)
    model, facts = _change_depth(model, facts, plain.get("model.num_layers", ""))
    architecture = architecture_words(facts, _sequence_length(entries, plain))
    compared = _compare_model(plain, architecture, is_named_here="model" in said_here)
    chunks = plain.pop(VIRTUAL, "") if plain.get(STAGES, "null").lower() not in DATA.without else ""
    words, strange = _words(plain)
    basis = f"The recipe {known.name} ({known.source}) gives all that no override sets." if known else DATA.defaults
    notes = [basis, *compared]
    if not any(name.startswith("mixed_precision") for name in plain) and "training.precision" not in entries:
        words.append("--bf16")
        notes.append("The precision is that of recipes, bf16_mixed; training.precision=NAME says another one.")
    given, more = {word.partition("=")[0] for word in words}, DATA.of_expert_recipes if facts.has_experts else {}
    needed = {field: entry for field, entry in DATA.needed.items() if options_by_field()[field] not in given}
    if known is None and recipe and not is_whole:
        needed |= {field: entry for field, entry in {**DATA.of_a_recipe, **more}.items() if field not in plain}
    _require_needed({field: entry for field, entry in needed.items() if entry not in entries})
    sizes = [fields.get(name, "") for name in DATA.sizes]
    devices = int(sizes[0]) * int(sizes[1]) if all(size.isdecimal() for size in sizes) else None
    entries = entries if devices is None else {"cluster.num_devices": str(devices), **entries}
    release = newest("nemo-" if is_nemo else "megatron-bridge-")
    notes += cluster_notes(release, devices, overrides)
    entries.setdefault("cluster.framework", release)
    if any(is_on(plain.get(name)) for name in DATA.narrow_attention):
        entries.setdefault("settings.fp8_attention", "true")
    imported = megatron_job([*architecture, *words], [f"{key}={value}" for key, value in entries.items()], environment)
    vpp = imported.document["strategy"]["vpp"]
    if chunks.isdecimal() and int(chunks) != vpp:
        raise SpecError(VIRTUAL, f"is {chunks}, the stages of {STAGES} are {vpp} for each pipeline rank.")
    if is_on(plain.get(DATA.narrow_attention[1])):
        notes.append(f"{DATA.narrow_attention[1]}: costed as {DATA.narrow_attention[0]}.")
    notes += [f"Not understood, no fields that are known here: {', '.join(strange)}."] if strange else []
    given = {_plain(name) for name in (*fields, *(known.fields if known else ()))}
    said = entries_set_by({options_by_field()[name] for name in given if name in options_by_field()}, overrides)
    whose = "defaults of Megatron-LM, of models with experts those of Megatron-Bridge"
    notes += assumption_notes(imported.document, said, whose, facts)
    return Imported(document={**imported.document, "model": model}, notes=(*notes, *imported.notes))


def _compare_model(fields: Mapping[str, str], architecture: Sequence[str], *, is_named_here: bool) -> Iterator[str]:
    """Refuse a size that the model by its name does not have; yield a note on others, which do not count."""
    own, others = dict(split_options(architecture)), list[str]()
    is_stand_in = " ".join(architecture).startswith(DATA.stand_in)
    has_dense = "--num-experts" not in own or "--moe-layer-freq" in own
    unused = ("--vocab-size",) if has_dense else ("--vocab-size", "--ffn-hidden-size")
    for name, value in fields.items():
        option = options_by_field().get(name, "")
        if option not in ARCHITECTURE or option == "--num-layers":
            continue
        words = _option(option, value)
        if not words and options()[option].nargs != "0" and option != "--num-experts":
            continue
        if not is_stand_in and (words[1:] == own.get(option) if words else option not in own):
            continue
        if value.isdecimal() and option in own and option not in unused and not is_named_here and not is_stand_in:
            hint = "Describe the model in a file, and add model=FILE."
            problem = f"is {value}, the model that the configuration names has {' '.join(own[option])}."
            raise SpecError(name, problem, hint)
        others.append(name)
    if others:
        yield f"Ignored (the model that is named counts): {', '.join(others)}."


def architecture_words(model: Model, length: int) -> list[str]:
    """Return the options of a model; where Megatron-LM has none, those of a model with its layers and experts."""
    try:
        require_options(model, length)
    except SpecError:
        experts = [block.num_experts for layer in model.layers for block in layer.blocks if isinstance(block, Experts)]
        more = f" --num-experts {max(experts)} --moe-router-topk 1 --moe-ffn-hidden-size 1024" if experts else ""
        return f"{DATA.stand_in} --num-layers {model.num_layers}{more}".split()
    return [word for line in argument_lines(model_entries(model, length)) for word in shlex.split(line)]


def _require_needed(missing: Mapping[str, str]) -> None:
    """Refuse a command without degrees, batches or recomputation where the recipe's own values are unknown."""
    if missing:
        field, entry = next(iter(missing.items()))
        problem = f"leave to the recipe, whose own values are not known here: {', '.join(missing)}."
        value, here = ("null", "none") if "recompute" in field else ("N", "N")
        raise SpecError("overrides", problem, f"Add {field}={value} to the command, or {entry}={here} here.")


def _merge_recipe(fields: dict[str, str], recipe: Recipe | None, *, has_experts: bool) -> dict[str, str]:
    """Apply overrides to the fields of a recipe; a precision by name replaces the recipe's precision as a whole."""
    own = dict(DATA.of_experts) if has_experts else {}
    own |= {} if recipe is None else {_plain(name): value for name, value in recipe.fields.items()}
    if recipe is not None and "model.seq_length" in recipe.fields:
        own["model.seq_length"] = recipe.fields["model.seq_length"]
    if "mixed_precision" in fields:
        own = {name: value for name, value in own.items() if not name.startswith("mixed_precision")}
    whole, known = {**own, **fields}, options_by_field()
    for name, value in whole.items():
        if value == OPEN and (name == "mixed_precision" or known.get(name) not in {None, *ARCHITECTURE}):
            hint = "Say training.precision=NAME." if name == "mixed_precision" else f"Add {name}=VALUE to the command."
            raise SpecError(name, "is something that only running the recipe would say.", hint)
    return whole


def _plain(name: str) -> str:
    for other, own in DATA.sections:
        if name.startswith(other):
            return f"{own}{name.removeprefix(other)}"
    return name


def _words(fields: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return options of Megatron-LM, and fields without one; fields of the architecture are left to the model."""
    known, strange = options_by_field(), list[str]()
    words = _precision(fields)
    for name, value in fields.items():
        option = known.get(name)
        if name.startswith("mixed_precision") or name in DATA.sizes or value == UNTOLD.get(name):
            continue
        if option is None:
            _refuse_decisive(name, value)
            strange.append(name)
        elif option not in ARCHITECTURE:
            refuse_unknown(value, name)
            words += _option(option, value)
    return words, strange


def _option(name: str, value: str) -> list[str]:
    """Return an option with the value of its field: a switch is present or not, a list has one word per entry."""
    value = value.lower() if value.lower() in ("true", *DATA.without) else value
    is_set = value not in DATA.without
    if options()[name].nargs == "0":
        return (
            []
            if (name in BRIDGE.negated and value in DATA.means_default) or is_set == (name in BRIDGE.negated)
            else [name]
        )
    value = DTYPES.get(value.removeprefix("torch."), value.removeprefix("torch."))
    words = value[1:-1].replace("'", "").split(",") if value.startswith("[") else [value.strip("'")]
    return [name, *words] if is_set else []


def _precision(fields: Mapping[str, str]) -> list[str]:
    """Return the options of the precision, from its name and the entries of its object."""
    name = fields.get("mixed_precision", "").replace("-", "_")
    scaling = next((scaling for part, scaling in DATA.scalings if part in name), None)
    if name and scaling is None:
        raise SpecError("mixed_precision", f"is {shown(name)}, which is no precision that is known here.")
    halves = {name.partition("_")[0]: "true"} if name.startswith(("bf16", "fp16")) else {"bf16": "true"} if name else {}
    own = {one.partition(".")[2]: value.lower() for one, value in fields.items() if one.startswith("mixed_precision.")}
    entries = {"fp8_recipe": "tensorwise", "fp4_recipe": "nvfp4", **halves, **(scaling or {}), **own}
    entries.setdefault("grad_reduce_in_fp32", "false" if name.startswith("fp16") else "true")
    return meaning_of("bridge_precision", entries).words


def _refuse_decisive(name: str, value: str) -> None:
    section, _, field = name.partition(".")
    decides = any(part in field for part in DATA.decisive.get(section, ())) and field not in DATA.without_costs
    decides &= not ("dtype" in field and value.endswith("float32"))
    if decides and value.lower() not in DATA.without:
        raise SpecError(name, "is no field that is known here, and may say what matters.", "Take it out.")


MARKS = (*DATA.megatron, *DATA.own_sections)

UNWRITTEN = "???"


def import_nested_job(
    content: Mapping[str, Any], recipe: str, overrides: Sequence[str], fields: Mapping[str, str] | None = None
) -> Imported:
    """
    Import a nested configuration.

    Parameters
    ----------
    content
        The document.
    recipe
        Name of the recipe that it changes; empty: none.
    overrides
        Entries of the job as ``key=value``.
    fields
        Overrides of a command, which take precedence.

    Raises
    ------
    SpecError
        If an entry that decides a degree, a batch, the precision or the recomputation is missing or unknown.
    """
    if isinstance(content.get("model"), list):
        raise SpecError("model", f"expected a mapping, got {shown(content['model'])}.")
    content, notes = _sort_into_sections(content)
    flat = {name: value for name, value in flat_entries(content, {}).items() if not isinstance(value, Mapping)}
    if any(isinstance(content.get(section), Mapping) for section in DATA.megatron):
        short = {name.rsplit(".", 1)[-1]: value for name, value in flat.items() if name.count(".") <= 1}
        meaning = meaning_of("megatron_yaml", short, section="")
        imported = megatron_job(meaning.words, overrides, {})
        return imported.add_notes(*meaning.notes)
    texts = {name: _text(value) for name, value in flat.items() if not name.endswith(DATA.of_objects)}
    config = _section(content, "model", "config")
    imported = bridge_job({**texts, **(fields or {})}, recipe or _class_of(config), overrides, {}, is_whole=not recipe)
    return imported.add_notes(*notes)


# --- NeMo 2 ------------------------------------------------------------------------------------------------


PLUGINS = re.compile(r"Precision|Overlap|FSDP|DDP|Parallel|DeepEP|Token|Transform|PEFT|LoRA|Offload|Quant|Prun|Distill")
"""Parts of the names of plugins, callbacks and strategies that decide time or memory."""


def _class_of(value: Any) -> str:
    return str(value.get("_target_", "")).rpartition(".")[2] if isinstance(value, Mapping) else ""


def _section(content: Mapping[str, Any], *names: str) -> dict[str, Any]:
    inner: Any = content
    for name in names:
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return dict(inner) if isinstance(inner, Mapping) else {}


def _sort_into_sections(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """
    NeMo 2's plugins and callbacks as sections of Megatron-Bridge, DDP as its strategy sets it up.

    References
    ----------
    NeMo 2: lightning/pytorch/strategies/megatron_strategy.py, MegatronStrategy.connect (DDP takes the optimizer's
    ``use_distributed_optimizer``, and the precision's dtypes); plugins/mixed_precision.py;
    callbacks/megatron_comm_overlap.py (a distributed optimizer overlaps where nothing else is said).
    """
    trainer, strategy = _section(content, "trainer"), _section(content, "trainer", "strategy")
    if (kind := _class_of(strategy)) not in ("", "MegatronStrategy"):
        raise SpecError("trainer.strategy", f"is {kind}; MegatronStrategy is read.")
    found, others = dict[str, dict[str, Any]](), list[str]()
    for name in ("callbacks", "plugins"):
        listed = trainer.pop(name, None) or []
        for part in listed if isinstance(listed, list) else [listed]:
            kind = _class_of(part) or str(part)
            if kind in DATA.parts:
                found[DATA.parts[kind]] = {key: value for key, value in part.items() if key not in DATA.of_objects}
            elif PLUGINS.search(kind) or (name == "plugins" and "Checkpoint" not in kind):
                raise SpecError(f"trainer.{name}", f"has {shown(kind)}, which is not read and decides time or memory.")
            else:
                others.append(kind)
    optimizer, ddp = _section(content, "optim", "config"), _section(strategy, "ddp")
    if optimizer:
        ddp["use_distributed_optimizer"] = optimizer.pop("use_distributed_optimizer", False)
    notes = [f"Ignored (callbacks without influence): {', '.join(sorted(others))}."] if others else []
    in_fp32, overlap = ddp.pop("grad_reduce_in_fp32", None), found.get("comm_overlap")
    overruled = ["grad_reduce_in_fp32"] if in_fp32 is not None and "mixed_precision" in found else []
    overruled += [name for name in DATA.overlaps if name in ddp and overlap is not None]
    notes += [f"Ignored (plugins and callbacks overrule them): {', '.join(overruled)}."] if overruled else []
    if "mixed_precision" not in found and ("precision" in trainer or in_fp32 is not None):
        notes += [] if "precision" in trainer else ["No entry says the precision: bf16-mixed is assumed."]
        half = trainer.pop("precision", "bf16-mixed")
        found["mixed_precision"] = {"precision": half, "grad_reduce_in_fp32": in_fp32}
    if overlap is not None:
        overlapped = {name: overlap.pop(name, None) is not False for name in DATA.overlaps}
        ddp |= overlapped if ddp.get("use_distributed_optimizer") is True else {}
        tp, is_split = (strategy.get(name) for name in ("tensor_model_parallel_size", "sequence_parallel"))
        overlap |= {} if tp not in (None, 1) and is_split is True else {"tp_comm_overlap": False}
    if "mixed_precision" in found:
        precision = {name: value for name, value in found["mixed_precision"].items() if value is not None}
        meaning = meaning_of("nemo2_precision", {f"trainer.plugins.{name}": value for name, value in precision.items()})
        found["mixed_precision"] = {**precision, **meaning.entries}
        notes += meaning.notes
    if not (found or optimizer):
        return content, notes
    trainer |= {"strategy": {**strategy, "ddp": ddp}} if ddp else {}
    optim = {**_section(content, "optim"), "config": optimizer}
    return {**content, **found, "trainer": trainer, **({"optim": optim} if optimizer else {})}, notes


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return "$UNWRITTEN" if value == UNWRITTEN else text_of(value)
