"""
Import of torchtitan's TOML, and of the options of its command line.

Keys and defaults are those of torchtitan 0.1.0 to 0.2.2 (torchtitan/config_manager.py, config/job_config.py); spellings
of 2024 are read as well. From 0.3.0 on a configuration is a Python function (``torchtitan_python.py``).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown
from planner.frameworks.imports.bridge.python_source import Function, Thing, is_known, read_module, result_of
from planner.frameworks.imports.finish import degree, newest, prepare_job
from planner.frameworks.imports.named import model_named
from planner.frameworks.imports.tools.entries import SINGLE as DEGREES
from planner.frameworks.imports.tools.entries import entries_job
from planner.frameworks.imports.tools.keys import Meaning, is_read, meaning_of
from planner.frameworks.imports.tools.references import flatten
from planner.frameworks.megatron.options import split_options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.text import strip_unknown, unknown_names
from planner.jobs.model import read

FRAMEWORK = "torchtitan-0.1"

"""Framework of configurations in TOML: torchtitan of 2025."""

PER_STAGE_RANK = 2

"""VPP of schedules with several chunks, where no number of layers per stage is given."""

SINGLE = ("1F1B", "GPipe")

SCHEDULES = {
    "1F1B": "1f1b",
    "Interleaved1F1B": "1f1b",
    "GPipe": "gpipe",
    "ZBVZeroBubble": "zb_v",
    "DualPipeV": "dualpipev",
}

"""Names of PyTorch's schedules, torch/distributed/pipelining/schedules.py, that have costs."""


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
        raise SpecError(source, f"is not TOML: {error}.") from None


def preset_devices(text: str) -> int | None:
    """Return the number of devices in a comment of torchtitan's own configurations."""
    found = re.search(r"^#.*preset for (\d{1,6}) \w+ GPUs", text, re.MULTILINE)
    return int(found[1]) if found else None


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
    for name, values in split_options(words):
        section, dot, key = name.removeprefix("--").replace("-", "_").partition(".")
        if not dot:
            continue
        text = values[0] if values else "true"
        names = unknown_names(text)
        if names and is_read("torchtitan", f"{section}.{key}"):
            raise SpecError(name, f"is ${names[0]}, which the script leaves open.", f"Add --set {names[0]}=VALUE.")
        place = changed.setdefault(section, {})
        if isinstance(place, dict) and not names:
            place[key] = yaml.safe_load(strip_unknown(text)) if re.fullmatch(r"[\w.+-]*", text) else text
    return changed


def torchtitan_job(
    config: Mapping[str, Any],
    overrides: Sequence[str],
    notes: Sequence[str] = (),
    described: Mapping[str, Any] | None = None,
) -> Imported:
    """
    Import a configuration.

    Parameters
    ----------
    config
        Values by section and key.
    overrides
        Entries of the job as ``key=value``.
    notes
        Further notes, a sentence each.
    described
        Entry ``model`` of the job, where the configuration describes the model; None: it names it.

    Raises
    ------
    SpecError
        If the model is unknown, the degrees do not fit the devices, or a required value is missing.
    """
    flat = flatten(config)
    meaning = meaning_of("torchtitan", flat)
    entries, framework = meaning.entries, str(config.get("framework", FRAMEWORK))
    given = prepare_job({"cluster": {"framework": framework}}, overrides)
    name = str(flat.get("model.name", "")).rsplit(".", 1)[-1]  # extensions call it simple_fsdp.llama3
    model = given.get("model", described or model_named(f"{name}/{flat.get('model.flavor', '')}"))
    if model is None:
        label = shown(f"{flat.get('model.name', '')}/{flat.get('model.flavor', '')}")
        raise SpecError("model", f"{label} is no model that is known here.", "Add model=NAME.")
    meaning.notes = [*notes, *meaning.notes]
    tp, pp, ep = (degree(entries.get(f"strategy.{one}", 1), f"strategy.{one}") for one in ("tp", "pp", "ep"))
    pipeline = {key.rpartition(".")[2]: value for key, value in flat.items() if key.partition(".")[0] in PLACES}
    is_numbered = "experimental.pipeline_parallel_degree" in flat
    meaning.entries = {
        **{**DEGREES, "model": model, "strategy.sequence_parallel": True, "strategy.tp_overlap": False},
        **{"strategy.dp_overlap": pp == 1, "strategy.sharding": "weights", "strategy.etp": 1 if ep > 1 else tp},
        **entries,
        **_pipeline(pipeline, model, pp, degree(entries["given.local"], "training.local_batch_size"), is_numbered),
        **_precision(flat, meaning),
        **({"strategy.cp_overlap": False} if "framework" in config else {}),
        **({"strategy.sharding": "optimizer"} if pp > 1 else {}),
    }
    return entries_job(meaning, framework, overrides)


PLACES = ("training", "experimental", "parallelism")
"""Sections that hold the pipeline, by release."""

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
    if name not in SCHEDULES:
        problem = f"expected one of {', '.join(SCHEDULES)}, got {shown(name)}."
        raise SpecError(f"parallelism.{PREFIX}schedule", problem)
    if given.get(f"{PREFIX}schedule_csv"):
        raise SpecError(f"parallelism.{PREFIX}schedule_csv", "is a schedule of its own, which is not read.")
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
        whole = read(model, Path()).model.num_layers + sum(less)
        stages = math.ceil(whole / degree(per_stage, f"{PREFIX}layers_per_stage"))
    is_single = name in SINGLE
    chunks, rest = divmod(stages or pp * (1 if is_single else PER_STAGE_RANK), pp)
    if rest or (chunks == 1) != is_single or not chunks:
        problem = f"makes {stages} stages, which {pp} pipeline ranks of this schedule cannot share."
        raise SpecError(f"parallelism.{PREFIX}layers_per_stage", problem)
    found = {"strategy.vpp": chunks, "strategy.pp_overlap": chunks > 1, "strategy.mbs": size}
    layout = {} if None in layers or not layers else {"strategy.layout": {"layers": layers}}
    return {**found, "strategy.schedule": SCHEDULES[name], **layout}


def _stage_layers(given: Mapping[str, Any], model: Any) -> list[Any]:
    """Return the layers of each virtual stage, where modules or first layers are named; None: not known."""
    lists = [given.get(name) for name in ("module_fqns_per_model_part", f"{PREFIX}split_points")]
    parts, splits = (one.split(",") if isinstance(one, str) and one else one or [] for one in lists)
    if not all(isinstance(one, (list, tuple)) for one in (parts, splits, *parts)):
        raise SpecError("parallelism.module_fqns_per_model_part", f"expected lists, got {shown(parts)}.")
    if parts:
        return [sum(str(name).startswith("layers.") for name in part) for part in parts]
    begins = [str(name).removeprefix("layers.") for name in splits]
    if not all(begin.isdecimal() for begin in begins):
        return [None] * (len(begins) + 1)
    ends = [0, *map(int, begins), read(model, Path()).model.num_layers] if begins else []
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
    return {**precision, "settings.fp8_param_gather": bool(last(*gathered)) and is_float8}


CONFIG = ("parallelism", "training", "compile", "checkpoint", "comm")

"""Sections of Trainer.Config with plain values."""

SETTLED = ("parallelism", "training", "activation_checkpoint")

"""Sections that a configuration must set if it changes another one, which is not read."""

MODES = {
    "FullAC": {"mode": "full"},
    "SelectiveAC": {"mode": "selective", "selective_ac_option": "op"},
    "MemoryBudgetAC": {"mode": "memory_budget"},
}

"""Entries of recomputation by its class."""

DEFAULT = object()

"""Mark of a missing value, whose default in Trainer.Config is SelectiveAC."""

REGISTRY = "model_registry"

MODELS = "torchtitan.models."


def is_torchtitan(text: str) -> bool:
    """Tell whether a Python file is a configuration of torchtitan."""
    return "Trainer.Config" in text or "from torchtitan" in text


def read_python(text: str, where: str, name: str = "") -> dict[str, Any]:
    """
    Read a configuration as the tables of older releases.

    Parameters
    ----------
    text
        Source in Python.
    where
        Path of the file, for messages; its folder is the model where the file imports the model from beside it.
    name
        Name of the function; empty: the only one, else the last.

    Raises
    ------
    SpecError
        If there is no such function, or if a degree, a batch, the precision or recomputation is known only at run time.
    """

    def resolver(module: str, one: str) -> Any:
        of_model = module.removeprefix(MODELS) if module.startswith(MODELS) else Path(where).parent.name
        return Thing(f"{of_model.split('.')[0]}.{REGISTRY}") if one == REGISTRY else None

    functions = {
        one: value
        for one, value in read_module(text, where, resolver).items()
        if isinstance(value, Function) and value.node.name == one and not one.startswith("_")
    }
    if name and name not in functions:
        raise SpecError(where, f"has no configuration {shown(name)}.", did_you_mean(name, functions))
    for one in [name] if name else reversed(functions):
        config = result_of(functions[one], where, resolver)
        if isinstance(config, Thing) and {"model_spec", *CONFIG} & {*config.fields}:
            return _tables(config, where)
    raise SpecError(where, "holds no function that returns a Trainer.Config.")


def read_installed(module: str, name: str) -> dict[str, Any]:
    """
    Read a configuration of the installed package.

    Raises
    ------
    SpecError
        If torchtitan is not installed, or has no configuration of that name.
    """
    try:
        root = metadata.distribution("torchtitan").locate_file("torchtitan/models")
        path = Path(str(root)) / module.rsplit(".", 1)[-1] / "config_registry.py"
        text = path.read_text(encoding="utf-8")
    except (metadata.PackageNotFoundError, OSError):
        problem = f"{shown(module)} is Python of torchtitan, which is not installed beside the planner."
        raise SpecError(
            "--module", problem, "Import its config_registry.py instead, with the options as entries."
        ) from None
    return read_python(text, str(path), name)


def _tables(config: Thing, where: str) -> dict[str, Any]:
    changed = config.name.endswith("replace")
    missing = [name for name in SETTLED if name not in config.fields]
    if changed and missing:
        raise SpecError(where, f"changes a configuration that is not read, and says no {missing[0]}.")
    tables: dict[str, Any] = {
        "framework": newest("torchtitan-"),
        "activation_checkpoint": _read_recomputation(config, where),
        "training": {"disable_cuda_graphs": False},
    }
    for section in CONFIG:
        thing = config.fields.get(section)
        for name, value in thing.fields.items() if isinstance(thing, Thing) else ():
            if is_known(value):
                tables.setdefault(section, {})[name] = value
            elif section in SETTLED and not isinstance(value, Thing):
                raise SpecError(f"{where}: {section}.{name}", "is something that only running it would say.")
    return tables | _model(config.fields.get("model_spec"))


def _read_recomputation(config: Thing, where: str) -> dict[str, str]:
    given = config.fields.get("activation_checkpoint", DEFAULT)
    if given is None or given is DEFAULT:
        return {"mode": "none"} if given is None else MODES["SelectiveAC"]
    kind = given.name.removesuffix(".Config").rsplit(".", 1)[-1] if isinstance(given, Thing) else ""
    if kind not in MODES:
        raise SpecError(f"{where}: activation_checkpoint", "is something that only running it would say.")
    return MODES[kind]


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
            recipe = converter.fields.get("recipe_name", "rowwise")
            tables["quantize"] = {"linear": {"float8": {"recipe_name": recipe}}}
        elif "MXFP8Linear" in kind:
            model["converters"] = ["quantize.linear.mx"]
        elif "NVFP4" in kind or not kind:
            raise SpecError(
                "model_spec.converters", f"has {shown(kind)}, whose precision torchtitan's entry does not have."
            )
    return tables
