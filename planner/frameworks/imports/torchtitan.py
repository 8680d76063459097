"""
Import of torchtitan's TOML, and of the options of its command line.

Keys and defaults are those of torchtitan 0.1.0 to 0.2.2 (torchtitan/config_manager.py, config/job_config.py); spellings
of 2024 are read as well. From 0.3.0 on a configuration is a Python function (``torchtitan_python.py``).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown
from planner.frameworks.imports.bridge.python_source import Function, Thing, is_known, read_module, result_of
from planner.frameworks.imports.finish import complete_job, degree, newest, prepare_job, release_assumed
from planner.frameworks.imports.named import model_named
from planner.frameworks.imports.tools.keys import is_read, meaning_of
from planner.frameworks.imports.tools.references import flatten
from planner.frameworks.megatron.options import split_options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.text import strip_unknown, unknown_names
from planner.jobs.model import read

FRAMEWORK = "torchtitan-0.1"

"""Framework of configurations in TOML: torchtitan of 2025."""

PER_STAGE_RANK = 2

"""VPP of schedules with several chunks, where no number of layers per stage is given."""

SECTIONS = ("model", "training", "parallelism", "activation_checkpoint", "compile", "experimental")

"""Sections that are read."""

MOVED = ("training", "experimental", "compile")

"""Sections that hold what stands in ``parallelism`` in other releases."""

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
    for section in SECTIONS:
        if not isinstance(config.get(section) or {}, Mapping):
            raise SpecError(section, f"expected a section, got {shown(config[section])}.")
    reading = _Reading(config, list(notes))
    reading.refuse_unreadable()
    document: dict[str, Any] = {"cluster": {"framework": str(config.get("framework", FRAMEWORK))}}
    model = described or reading.model()
    if model is not None:
        document["model"] = model
    document = prepare_job(document, overrides)
    if "model" not in document:
        raise SpecError("model", f"{reading.model_label()} is no model that is known here.", "Add model=NAME.")
    reading.named = document["model"]
    every = None if "recompute" in document["strategy"] else reading.recompute_interval()
    strategy = {**reading.strategy(document["cluster"]["num_devices"]), **document["strategy"]}
    document["settings"] = {**reading.settings(strategy), **document["settings"]}
    document["training"] = {**reading.training(strategy), **document["training"]}
    document["strategy"] = strategy
    release = release_assumed(document["cluster"]["framework"], overrides)
    remarks = [*release, *reading.notes, *meaning_of("torchtitan", flatten(config)).notes]
    return complete_job(document, remarks, full_every=every)


def _parallel(config: Mapping[str, Any], section: str) -> Iterator[tuple[str, Any]]:
    """Entries of a section that stand in ``parallelism`` since spring 2025."""
    place = config.get(section)
    for name, value in place.items() if isinstance(place, Mapping) else ():
        if is_read("torchtitan", f"{section}.{name}") and is_read("torchtitan", f"parallelism.{name}"):
            yield name, value


class _Reading:
    """Reader of one configuration, with values by ``section.key``."""

    def __init__(self, config: Mapping[str, Any], notes: list[str]) -> None:
        moved = {name: value for section in MOVED for name, value in _parallel(config, section)}
        self.config = {**config, "parallelism": {**moved, **(config.get("parallelism") or {})}}
        self.notes = notes
        self.named: Any = None
        self.is_split_by_number = "pipeline_parallel_degree" in dict(_parallel(config, "experimental"))

    def get(self, path: str, default: Any, *others: str) -> Any:
        """Return a value, under any of its names."""
        for one in (path, *others):
            section, _, key = one.rpartition(".")
            place: Any = self.config
            for name in section.split("."):
                place = place.get(name, {}) if isinstance(place, Mapping) else {}
            if isinstance(place, Mapping) and key in place:
                return place[key]
        return default

    def listed(self, path: str, default: Sequence[str] = ()) -> Sequence[Any]:
        """Return a list, which may be written as one text with commas."""
        value = self.get(path, default)
        if value is not None and not isinstance(value, (str, list, tuple)):
            raise SpecError(path, f"expected a list, got {shown(value)}.")
        return value.split(",") if isinstance(value, str) and value else value or ()

    def degree(self, name: str) -> int:
        """Return a degree of parallelism; 1 where it is not given."""
        return degree(self.get(f"parallelism.{name}", 1), f"parallelism.{name}")

    def refuse_unreadable(self) -> None:
        """Refuse features that have no costs here."""
        if self.get("training.enable_cpu_offload", False):
            raise SpecError("training.enable_cpu_offload", "keeps weights in host memory, which has no costs here.")
        schedule = self.get("parallelism.pipeline_parallel_schedule", "1F1B")
        if self.degree("pipeline_parallel_degree") > 1 and schedule not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise SpecError(
                "parallelism.pipeline_parallel_schedule", f"expected one of {known}, got {shown(schedule)}."
            )

    def model_label(self) -> str:
        return shown(f"{self.get('model.name', '')}/{self.get('model.flavor', '')}")

    def model(self) -> str | dict[str, Any] | None:
        name = str(self.get("model.name", "")).rsplit(".", 1)[-1]  # extensions call it simple_fsdp.llama3
        return model_named(f"{name}/{self.get('model.flavor', '')}")

    # --- the strategy --------------------------------------------------------------------------------------

    def strategy(self, devices: int) -> dict[str, Any]:
        tp, cp, pp = (self.degree(f"{name}_parallel_degree") for name in ("tensor", "context", "pipeline"))
        copies, shards = self._replicas(devices, tp * cp * pp)
        ep = self.degree("expert_parallel_degree")
        etp = degree(self.get("parallelism.expert_tensor_parallel_degree", 1), "expert_tensor_parallel_degree")
        overlapped = self.get("parallelism.enable_async_tensor_parallel", False)
        return {
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "dp": copies * shards,
            "ep": ep,
            "etp": etp if ep > 1 else tp,
            **self._newer(),
            **(pipeline := self._pipeline(pp)),
            "pp_overlap": pipeline["vpp"] > 1,
            **self._layout(pp),
            "sequence_parallel": tp > 1 and bool(self.get("parallelism.enable_sequence_parallel", True)),
            "sharding": self._sharding(shards * cp, pp),
            "recompute": self._recompute(),
            "tp_overlap": bool(overlapped) and tp > 1,
            "dp_overlap": shards * cp * copies > 1 and pp == 1,
        }

    def _replicas(self, devices: int, ranks: int) -> tuple[int, int]:
        """Return the number of replica groups, and the ranks that shard in each; -1 means all remaining ranks."""
        copies = self.degree("data_parallel_replicate_degree")
        shards = self.get("parallelism.data_parallel_shard_degree", -1, "training.data_parallel_degree")
        if shards == -1:
            if devices % (ranks * copies):
                problem = f"is {devices}, no multiple of tp * cp * pp * replicas = {ranks * copies}."
                raise SpecError("cluster.num_devices", problem)
            return copies, devices // (ranks * copies)
        return copies, degree(shards, "parallelism.data_parallel_shard_degree")

    def _newer(self) -> dict[str, Any]:
        """
        Return decisions of newer releases: keys and values are gathered before attention.

        References
        ----------
        torchtitan 0.3.0, torchtitan/models/common/decoder_sharding.py:235, config/configs.py:66.
        """
        if "framework" not in self.config:
            return {}
        if not self.get("training.disable_cuda_graphs", False):
            self.notes.append("training.disable_cuda_graphs is false: a step is one CUDA graph, costed without.")
        return {"cp_overlap": False}

    def _pipeline(self, pp: int) -> dict[str, Any]:
        local = self._local_batch()
        if pp == 1:
            return {"vpp": 1, "mbs": local}
        name = self.get("parallelism.pipeline_parallel_schedule", "1F1B")
        return {
            "vpp": self._chunks(pp, is_single=name in SINGLE),
            "mbs": self._micro_batch(pp, local),
            "schedule": SCHEDULES[name],
        }

    def _micro_batch(self, pp: int, local: int) -> int:
        """
        Sequences of a micro-batch; up to early 2025 their number was said, by default one for each pipeline rank.

        References
        ----------
        torchtitan of January 2025, torchtitan/parallelisms/pipelining_utils.py, build_pipeline_schedule.
        """
        key = "parallelism.pipeline_parallel_microbatches"
        number = self.get(key, pp if self.is_split_by_number else None)
        if number is None:
            key = "parallelism.pipeline_parallel_microbatch_size"
            return degree(self.get(key, 1), key)
        size, rest = divmod(local, degree(number, key))
        if rest:
            raise SpecError(key, f"is {number}, which does not divide {local} sequences.")
        return size

    def _chunks(self, pp: int, *, is_single: bool) -> int:
        """
        Return the number of stages of a pipeline rank (VPP).

        References
        ----------
        torchtitan 0.2.2 and 0.3.0, torchtitan/distributed/pipeline_parallel.py.
        """
        if self.get("parallelism.pipeline_parallel_schedule_csv", ""):
            raise SpecError(
                "parallelism.pipeline_parallel_schedule_csv", "is a schedule of its own, which is not read."
            )
        parts, splits = self._parts()
        per_stage = self.get("parallelism.pipeline_parallel_layers_per_stage", None)
        if splits or parts:
            stages = len(parts or splits) + (not parts)
        elif per_stage is not None:
            less = [self.get(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last")]
            layers = read(self.named, Path()).model.num_layers
            stages = math.ceil((layers + sum(less)) / degree(per_stage, "pipeline_parallel_layers_per_stage"))
        else:
            return 1 if is_single else PER_STAGE_RANK
        chunks, rest = divmod(stages, pp)
        if rest or (chunks == 1) != is_single or not chunks:
            problem = f"makes {stages} stages, which {pp} pipeline ranks of this schedule cannot share."
            raise SpecError("parallelism.pipeline_parallel_layers_per_stage", problem)
        return chunks

    def _layout(self, pp: int) -> dict[str, Any]:
        """Return the layout, where modules or the first layers of virtual stages are named."""
        parts, splits = self._parts()
        if pp == 1 or not (parts or splits):
            return {}
        if parts:
            names = [[str(name) for name in part] for part in parts]
            return {"layout": {"layers": [sum(name.startswith("layers.") for name in part) for part in names]}}
        begins = [str(name).removeprefix("layers.") for name in splits]
        if not all(begin.isdecimal() for begin in begins):
            return {}
        ends = [0, *map(int, begins), read(self.named, Path()).model.num_layers]
        return {"layout": {"layers": [end - begin for begin, end in pairwise(ends)]}}

    def _parts(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the modules of each virtual stage, or the first layer of each but the first."""
        splits = self.listed("parallelism.pipeline_parallel_split_points")
        parts = self.listed("parallelism.module_fqns_per_model_part")
        if not all(isinstance(part, (list, tuple)) for part in parts):
            raise SpecError("parallelism.module_fqns_per_model_part", f"expected lists, got {shown(parts)}.")
        return parts, splits

    def _local_batch(self) -> int:
        return degree(self.get("training.local_batch_size", 8, "training.batch_size"), "training.local_batch_size")

    def _sharding(self, ranks: int, pp: int) -> str:
        """
        Return the sharding of FSDP2; in a pipeline weights stay gathered and gradients whole.

        References
        ----------
        torchtitan 0.2.2, torchtitan/distributed/fsdp.py, get_fsdp_reshard_after_forward_policy.
        """
        policy = self.get("parallelism.fsdp_reshard_after_forward", "default")
        if ranks == 1:
            return "none"
        if pp > 1:
            if policy == "always":
                self.notes.append("fsdp_reshard_after_forward always in a pipeline: costed as never.")
            return "optimizer"
        return "gradients" if policy == "never" else "weights"

    def _recompute(self) -> str:
        mode = self.get("activation_checkpoint.mode", "selective")
        option = str(self.get("activation_checkpoint.selective_ac_option", "2"))
        if mode not in ("none", "selective", "full", "memory_budget"):
            raise SpecError("activation_checkpoint.mode", f"expected none, selective or full, got {shown(mode)}.")
        if mode == "memory_budget":
            raise SpecError("activation_checkpoint.mode", "is memory_budget, which leaves the choice to the compiler.")
        if mode == "selective" and option == "op":
            return "every_other_matmul"
        return "full" if mode == "full" or (mode == "selective" and option == "1") else "none"

    def recompute_interval(self) -> int | None:
        """Interval of layers that are recomputed in full; None: all layers are alike."""
        option = str(self.get("activation_checkpoint.selective_ac_option", "2"))
        selective = self.get("activation_checkpoint.mode", "selective") == "selective"
        return int(option) if selective and option.isdecimal() and int(option) > 1 else None

    # --- training and settings -----------------------------------------------------------------------------

    def training(self, strategy: Mapping[str, Any]) -> dict[str, Any]:
        batch = self.get("training.global_batch_size", -1)
        if batch == -1:
            batch = self._local_batch() * int(strategy["dp"])
        length = degree(self.get("training.seq_len", 2048), "training.seq_len")
        steps = degree(self.get("training.steps", 10000), "training.steps")
        batch = degree(batch, "training.global_batch_size")
        return {
            "global_batch_size": batch,
            "sequence_length": length,
            "tokens": steps * batch * length,
            "precision": self._precision(),
        }

    def _converters(self) -> list[str]:
        texts = map(str, self.listed("model.converters"))
        old = self.get("float8.enable_float8_linear", False, "training.enable_fp8_linear")
        return [*texts, *(["float8"] if old else [])]

    def _precision(self) -> str:
        names = self._converters()
        if any("float8" in name for name in names):
            recipe = self.get("quantize.linear.float8.recipe_name", None, "float8.recipe_name") or "tensorwise"
            return "fp8_rowwise" if str(recipe).startswith("rowwise") else "fp8_tensorwise"
        if any(name.split(".")[-1] == "mx" for name in names):
            return "mxfp8"
        half = self.get("training.mixed_precision_param", "bfloat16")
        if half not in ("bfloat16", "float16"):
            raise SpecError("training.mixed_precision_param", f"is {shown(half)}; training in FP32 is not costed.")
        return "bf16" if half == "bfloat16" else "fp16"

    def settings(self, strategy: Mapping[str, Any]) -> dict[str, Any]:
        gathered = self.get(
            "quantize.linear.float8.enable_fsdp_float8_all_gather", False, "float8.enable_fsdp_float8_all_gather"
        )
        is_float8 = any("float8" in name for name in self._converters())
        if others := [name for name in self._converters() if "float8" not in name and name.split(".")[-1] != "mx"]:
            self.notes.append(f"model.converters {', '.join(others)}: costed as if layers were not converted.")
        is_on, chunks = self.get("compile.enable", False, "training.compile"), self.get("loss.num_chunks", None)
        parts = self.listed("compile.components", default=("model", "loss"))
        compiled = is_on and "model" in parts
        backend = self.get("parallelism.expert_parallel_comm_backend", "standard")
        if backend != "standard":
            self.notes.append(f"expert_parallel_comm_backend {backend}: costed as an all-to-all.")
        if not compiled:
            self.notes.append("Layers are not compiled: costed as eager kernels.")
        if self.get("training.dtype", "float32") != "float32":
            self.notes.append("training.dtype is not float32: weights are costed in FP32.")
        copies = self.degree("data_parallel_replicate_degree")
        group = int(strategy["dp"]) * int(strategy["cp"]) // copies
        return {
            "fp8_param_gather": bool(gathered) and is_float8,
            "kernels": "fused" if compiled else "eager",
            **({"loss": "compiled"} if is_on and "loss" in parts and not compiled else {}),
            **({} if chunks is None else {"loss_chunks": degree(chunks, "loss.num_chunks")}),
            **({"optimizer_group": group} if copies > 1 and group > 1 else {}),
        }


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
        **_read_loss(config),
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


def _read_loss(config: Thing) -> dict[str, dict[str, Any]]:
    """Return the chunks of the loss, where the configuration names a loss that is known."""
    loss = config.fields.get("loss")
    kind = loss.name.removesuffix(".Config").rsplit(".", 1)[-1] if isinstance(loss, Thing) else ""
    if not isinstance(loss, Thing) or kind not in ("ChunkedLossWrapper", "CrossEntropyLoss"):
        return {}
    return {"loss": {"num_chunks": loss.fields.get("num_chunks", 8) if kind == "ChunkedLossWrapper" else 1}}


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
