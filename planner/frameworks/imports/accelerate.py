"""
Import of Hugging Face Accelerate: the YAML of ``accelerate launch --config_file``, and options of the launch line.

Keys and defaults are those of Accelerate 1.15.0 (accelerate/commands/launch.py, accelerate/utils/dataclasses.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.deepspeed import deepspeed_job
from planner.frameworks.imports.documents import read_yaml
from planner.frameworks.imports.finish import complete_job, degree, newest, prepare_job, release_assumed
from planner.frameworks.imports.tools.keys import meaning_of
from planner.frameworks.imports.tools.references import flatten
from planner.frameworks.imports.trainer import Trainer
from planner.frameworks.megatron.read import Imported

STRATEGIES = {
    "FULL_SHARD": "weights",
    "SHARD_GRAD_OP": "gradients",
    "NO_SHARD": "none",
    "HYBRID_SHARD": "weights",
    "HYBRID_SHARD_ZERO2": "gradients",
}
"""Sharding of each strategy of FSDP; their numbers are 1 to 5 in this order."""

ZERO = {
    "zero_stage": "stage",
    "overlap_comm": "overlap_comm",
}


def devices_of(config: Mapping[str, Any]) -> int | None:
    """Number of processes of all machines; None where the configuration does not have it."""
    number = config.get("num_processes")
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def accelerate_job(
    config: Mapping[str, Any], trainer: Trainer, overrides: Sequence[str], notes: Sequence[str] = ()
) -> Imported:
    """
    Import a configuration with the arguments of its script.

    Raises
    ------
    SpecError
        If a feature has no costs here, the degrees do not fit the devices, or a required value is missing.
    """
    kind, notes = str(config.get("distributed_type", "NO")), [*notes, *_note_ignored(config)]
    if kind == "DEEPSPEED":
        return deepspeed_job(_translate_to_deepspeed(config), trainer, overrides, notes)
    if kind not in ("FSDP", "MULTI_GPU", "MEGATRON_LM"):
        problem = f"expected FSDP, DEEPSPEED, MEGATRON_LM or MULTI_GPU, got {shown(kind)}."
        raise SpecError("distributed_type", problem)
    if kind == "MEGATRON_LM":
        return _megatron_job(config, trainer, overrides, notes)
    document = prepare_job({**trainer.document(), "cluster": {"framework": newest("accelerate-")}}, overrides)
    fsdp = _section(config, "fsdp_config") if kind == "FSDP" else {}
    if _is_true(fsdp.get("fsdp_offload_params", False)):
        raise SpecError("fsdp_config.fsdp_offload_params", "keeps weights in host memory, which has no costs here.")
    sizes = _sizes(config, int(document["cluster"]["num_devices"]))
    sharding, is_hybrid = _sharding(fsdp, kind)
    strategy: dict[str, Any] = {
        "tp": sizes["tp"],
        "cp": sizes["cp"],
        "pp": 1,
        "dp": sizes["dp"],
        "ep": 1,
        "etp": sizes["tp"],
        "sequence_parallel": False,
        "sharding": sharding if sizes["dp"] * sizes["cp"] > 1 else "none",
        "recompute": "full" if _recomputes(fsdp, trainer) else "none",
        "activation_offload": _is_true(fsdp.get("fsdp_activation_checkpointing_offload", False)),
        **_cp_overlap(config, sizes["cp"]),
    }
    mbs = document["strategy"].get("mbs", trainer.micro_batch)
    if mbs is not None:
        steps = trainer.accumulation or config.get("gradient_accumulation_steps", 1)
        strategy["mbs"] = mbs
        batch = mbs * degree(steps, "gradient_accumulation_steps") * sizes["dp"]
        document["training"].setdefault("global_batch_size", batch)
    document["strategy"] = {**strategy, **document["strategy"]}
    if "precision" not in document["training"]:
        document["training"]["precision"] = _precision(config, trainer)
    settings, group = document["settings"], _group(document, sizes, is_hybrid)
    if group == 1:
        document["strategy"]["sharding"] = "none"
    elif group is not None:
        settings.setdefault("optimizer_group", group)
    more = []
    if document["strategy"]["sharding"] == "none" and sizes["dp"] > 1:
        document["search"] = {"framework_rules": False, **document.get("search", {})}
        more.append("Whole replicas (DDP), which the catalog's Accelerate with FSDP2 has not: its rules are left out.")
    more += release_assumed(document["cluster"]["framework"], overrides)
    more += _recomputation_assumed(fsdp, trainer, overrides)
    return complete_job(document, [*notes, *more])


def _megatron_job(
    config: Mapping[str, Any], trainer: Trainer, overrides: Sequence[str], notes: Sequence[str]
) -> Imported:
    """Import Megatron-LM launched by Accelerate (MegatronLMPlugin in accelerate/utils/dataclasses.py)."""
    given = {name.removeprefix("megatron_lm_"): one for name, one in _section(config, "megatron_lm_config").items()}
    document = prepare_job({**trainer.document(), "cluster": {"framework": newest("megatron-lm-")}}, overrides)
    tp, pp = (degree(given.get(f"{name}_degree", 1), f"megatron_lm_{name}_degree") for name in ("tp", "pp"))
    devices = int(document["cluster"]["num_devices"])
    if devices % (tp * pp):
        raise SpecError("cluster.num_devices", f"is {devices}, no multiple of tp * pp = {tp * pp}.")
    dp = devices // (tp * pp)
    strategy: dict[str, Any] = {
        "tp": tp,
        "cp": 1,
        "pp": pp,
        "dp": dp,
        "ep": 1,
        "etp": tp,
        "sequence_parallel": tp > 1 and _is_true(given.get("sequence_parallelism", False)),
        "sharding": "optimizer" if dp > 1 and _is_true(given.get("use_distributed_optimizer", False)) else "none",
        "recompute": "core_attention" if _is_true(given.get("recompute_activations", False)) else "none",
    }
    mbs = document["strategy"].get("mbs", trainer.micro_batch)
    if mbs is not None:
        batches = degree(given.get("num_micro_batches", 1), "megatron_lm_num_micro_batches")
        document["training"].setdefault("global_batch_size", mbs * batches * dp)
    document["strategy"] = {**strategy, **({} if mbs is None else {"mbs": mbs}), **document["strategy"]}
    document["training"].setdefault("precision", _precision(config, trainer))
    release = release_assumed(document["cluster"]["framework"], overrides)
    return complete_job(document, [*notes, *release])


SECTIONS = {
    "fsdp_": "fsdp_config",
    "megatron_lm_": "megatron_lm_config",
    "parallelism_config_": "parallelism_config",
    "zero_stage": "deepspeed_config",
    "offload_optimizer_device": "deepspeed_config",
    "offload_param_device": "deepspeed_config",
    "deepspeed_config_file": "deepspeed_config",
}
"""Sections of a configuration by the prefix of an option."""

TYPES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "use_megatron_lm": "MEGATRON_LM", "multi_gpu": "MULTI_GPU"}


def apply_launch_options(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """
    Override a configuration by the options of ``accelerate launch``.

    >>> apply_launch_options({}, ["--use_fsdp", "--fsdp_sharding_strategy=1", "--mixed_precision", "bf16"])
    {'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_sharding_strategy': 1}, 'mixed_precision': 'bf16'}
    """
    whole: dict[str, Any] = dict(config)
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        name = name.removeprefix("--").replace("-", "_") if name.startswith("--") else ""
        following = words[place + 1] if place + 1 < len(words) else "--"
        text: str = value if equals else "true" if following.startswith("-") else following
        section = next((section for start, section in SECTIONS.items() if name.startswith(start)), None)
        if name in TYPES:
            whole["distributed_type"] = TYPES[name]
        elif section is not None:
            whole[section] = {**_section(whole, section), name: read_yaml(text, word)}
        elif name in ("mixed_precision", "num_processes", "num_machines", "gradient_accumulation_steps"):
            whole[name] = text if name == "mixed_precision" else read_yaml(text, word)
    return whole


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
    words = text.lower().split()
    if "offload" in words:
        raise SpecError("--fsdp", "keeps weights in host memory (offload), which has no costs here.")
    name = next((word for word in words if word.upper() in STRATEGIES), "full_shard")
    return {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": name.upper()}}


def _cp_overlap(config: Mapping[str, Any], cp: int) -> dict[str, bool]:
    """Tell whether context parallelism is a ring, whose sends overlap with attention, and no all-gather before it."""
    way = _section(config, "parallelism_config").get("parallelism_config_cp_comm_strategy")
    return {} if way is None or cp == 1 else {"cp_overlap": way == "alltoall"}


def _group(document: Mapping[str, Any], sizes: Mapping[str, int], is_hybrid: bool) -> int | None:
    """Number of ranks that share optimizer states; None: all replicas, 1: no sharding."""
    ranks = sizes["dp"] * sizes["cp"]
    if is_hybrid:
        device = document["cluster"]["device"]
        per_node = catalog.device(device).devices_per_node if device in catalog.devices() else ranks
        return per_node if ranks > per_node and ranks % per_node == 0 else None
    return ranks // sizes["copies"] if sizes["copies"] > 1 else None


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name) or {}
    if not isinstance(section, Mapping):
        raise SpecError(name, f"expected a mapping, got {shown(section)}.")
    return section


def _is_true(value: object) -> bool:
    return value is True or str(value).lower() == "true"


def _sizes(config: Mapping[str, Any], devices: int) -> dict[str, int]:
    """Return the degrees; dp takes the remaining devices."""
    given = _section(config, "parallelism_config")

    def size(name: str) -> int:
        return degree(given.get(f"parallelism_config_{name}_size", 1), f"parallelism_config_{name}_size")

    if size("sp") > 1:
        raise SpecError("parallelism_config_sp_size", "splits heads by an all-to-all (Ulysses), which is not read.")
    tp, cp, copies = size("tp"), size("cp"), size("dp_replicate")
    if devices % (tp * cp):
        raise SpecError("cluster.num_devices", f"is {devices}, no multiple of tp * cp = {tp * cp}.")
    shards = given.get("parallelism_config_dp_shard_size", 1)
    dp = copies * degree(shards, "parallelism_config_dp_shard_size") if given else devices // (tp * cp)
    return {"tp": tp, "cp": cp, "dp": dp, "copies": copies}


def _sharding(fsdp: Mapping[str, Any], kind: str) -> tuple[str, bool]:
    """Return the sharding, and True where it is within a node (hybrid)."""
    if kind != "FSDP":
        return "none", False
    if str(fsdp.get("fsdp_version", 1)) == "2" and "fsdp_sharding_strategy" not in fsdp:
        return ("weights" if _is_true(fsdp.get("fsdp_reshard_after_forward", True)) else "gradients"), False
    given = str(fsdp.get("fsdp_sharding_strategy", fsdp.get("fsdp_reshard_after_forward", "FULL_SHARD")))
    numbered = {str(number): name for number, name in enumerate(STRATEGIES, start=1)}
    name = numbered.get(given, given)
    if name not in STRATEGIES:
        raise SpecError("fsdp_config.fsdp_sharding_strategy", f"expected one of {', '.join(STRATEGIES)}, got {given}.")
    return STRATEGIES[name], name.startswith("HYBRID")


def _recomputes(fsdp: Mapping[str, Any], trainer: Trainer) -> bool:
    own = _is_true(fsdp.get("fsdp_activation_checkpointing", False))
    return own or bool(trainer.recomputes)


def _recomputation_assumed(fsdp: Mapping[str, Any], trainer: Trainer, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a note that no recomputation is assumed, where neither FSDP's entry nor the script's option sets it."""
    said = "fsdp_activation_checkpointing" in fsdp or trainer.recomputes is not None
    if not said and not any(entry.startswith("strategy.recompute=") for entry in overrides):
        yield (
            "Recomputation is assumed to be none: neither fsdp_activation_checkpointing nor gradient_checkpointing is "
            "said, and the script may switch it on; strategy.recompute=none or full says it."
        )


def _precision(config: Mapping[str, Any], trainer: Trainer) -> str:
    given = config.get("mixed_precision")
    half = trainer.half if given in (None, "no", False) else str(given)
    if half not in ("bf16", "fp16"):
        problem = f"is {shown(given)}; bf16 and fp16 are read, training in FP32 is not costed."
        raise SpecError("mixed_precision", problem, "Or add training.precision=NAME.")
    return half


def _translate_to_deepspeed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the keys of ``deepspeed_config`` to DeepSpeed's own."""
    given = _section(config, "deepspeed_config")
    if "deepspeed_config_file" in given:
        raise SpecError("deepspeed_config.deepspeed_config_file", "is a file of its own.", "Import that one.")
    zero: dict[str, Any] = {new: given[old] for old, new in ZERO.items() if old in given}
    for what in ("optimizer", "param"):
        device = given.get(f"offload_{what}_device", "none")
        if device != "none":
            zero[f"offload_{what}"] = {"device": device}
    half = config.get("mixed_precision")
    accumulation = {name: given[name] for name in ("gradient_accumulation_steps",) if name in given}
    return {
        "zero_optimization": zero,
        **({str(half): {"enabled": True}} if half in ("bf16", "fp16") else {}),
        **accumulation,
    }


def _note_ignored(config: Mapping[str, Any]) -> list[str]:
    return meaning_of("accelerate", flatten(config)).notes
