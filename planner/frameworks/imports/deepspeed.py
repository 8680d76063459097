"""
Import of DeepSpeed: its JSON configuration, and the options of the launch line.

Keys and defaults are those of DeepSpeed 0.19.8 (deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py);
Hugging Face's Trainer replaces ``auto`` by its own arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.documents import read_json
from planner.frameworks.imports.finish import complete_job, degree, newest, prepare_job, release_assumed
from planner.frameworks.imports.tools.keys import is_read, meaning_of
from planner.frameworks.imports.tools.references import flatten
from planner.frameworks.imports.trainer import Trainer
from planner.frameworks.megatron.read import Imported

SHARDING = ("none", "optimizer", "gradients", "weights")
"""Sharding by the stage of ZeRO."""


def read_deepspeed(text: str, source: str) -> dict[str, Any]:
    """
    Read a configuration as plain data.

    Raises
    ------
    SpecError
        If it is not JSON, or not one of DeepSpeed.
    """
    return require_deepspeed(read_json(text, source), source)


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
        raise SpecError(
            source, f"has no key of DeepSpeed such as zero_optimization; it has {shown(sorted(config)[:5])}."
        )
    return config


def deepspeed_job(
    config: Mapping[str, Any], trainer: Trainer, overrides: Sequence[str], notes: Sequence[str] = ()
) -> Imported:
    """
    Import a configuration with the arguments of its script.

    Raises
    ------
    SpecError
        If a feature has no costs here, the batch sizes contradict each other, or a required value is missing.
    """
    zero = _section(config, "zero_optimization")
    _refuse(config, zero)
    passed_over = meaning_of("deepspeed", flatten(config)).notes
    document = prepare_job({**trainer.document(), "cluster": {"framework": newest("deepspeed-")}}, overrides)
    stage = zero.get("stage", 0)
    if stage not in range(len(SHARDING)) or isinstance(stage, bool):
        raise SpecError("zero_optimization.stage", f"expected 0, 1, 2 or 3, got {shown(stage)}.")
    tp = degree(_section(config, "tensor_parallel").get("autotp_size", 1), "tensor_parallel.autotp_size")
    experts = _section(config, "expert_parallel")
    ep = degree(experts.get("autoep_size", 1), "expert_parallel.autoep_size") if experts.get("enabled") else 1
    dp = max(1, int(document["cluster"]["num_devices"]) // tp)
    batch, mbs = _batches(config, trainer, document, dp)
    offload = _section(zero, "offload_optimizer")
    strategy = {
        "tp": tp,
        "cp": 1,
        "pp": 1,
        "dp": dp,
        "ep": ep,
        "etp": tp if ep == 1 else 1,
        "sequence_parallel": False,
        "sharding": SHARDING[stage] if dp > 1 else "none",
        "recompute": "full" if (recomputes := _recomputes(config, trainer)) else "none",
        "activation_offload": recomputes
        and bool(_section(config, "activation_checkpointing").get("cpu_checkpointing")),
        "tp_overlap": tp > 1 and bool(_section(config, "tensor_parallel").get("tp_overlap_comm", False)),
        "optimizer_offload": offload.get("device", "none") == "cpu",
        "dp_overlap": bool(zero.get("overlap_comm", stage == 3)) and stage > 0 and dp > 1,
    }
    strategy.update({} if mbs is None else {"mbs": mbs})
    document["strategy"] = {**strategy, **document["strategy"]}
    precision = document["training"].get("precision") or _precision(config, trainer)
    document["training"] = {
        "precision": precision,
        **({} if batch is None else {"global_batch_size": batch}),
        **document["training"],
    }
    document["settings"] = {**_settings(config, offload), **document["settings"]}
    if trainer.steps is not None and "tokens" not in document["training"] and batch and trainer.sequence_length:
        document["training"]["tokens"] = trainer.steps * batch * trainer.sequence_length
    said = any(entry.partition("=")[0] == "strategy.recompute" for entry in overrides)
    release = release_assumed(document["cluster"]["framework"], overrides)
    return complete_job(
        document, [*notes, *release, *([] if said else _recomputation_note(config, trainer)), *passed_over]
    )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    if section is not None and not isinstance(section, Mapping):
        raise SpecError(name, f"expected an object, got {shown(section)}.")
    return section or {}


def _refuse(config: Mapping[str, Any], zero: Mapping[str, Any]) -> None:
    """Refuse features that have no costs here."""
    if _section(zero, "offload_param").get("device", "none") != "none":
        raise SpecError("zero_optimization.offload_param", "keeps weights in host memory, which has no costs here.")
    device = _section(zero, "offload_optimizer").get("device", "none")
    if device not in ("none", "cpu"):
        problem = f"expected none or cpu, got {shown(device)}: states on disks have no costs here."
        raise SpecError("zero_optimization.offload_optimizer.device", problem)
    if config.get("sequence_parallel_size", 1) not in (1, None):
        raise SpecError("sequence_parallel_size", "splits heads by an all-to-all (Ulysses), which is not read.")


def _read_number(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return None if value in (None, "auto") else degree(value, name)


def _batches(
    config: Mapping[str, Any], trainer: Trainer, document: Mapping[str, Any], dp: int
) -> tuple[int | None, int | None]:
    """
    Return the sequences of a step and of a micro-batch; two of DeepSpeed's three numbers determine the third.

    References
    ----------
    DeepSpeed 0.19.8, deepspeed/runtime/config.py, _set_batch_related_parameters.
    """
    batch = document["training"].get("global_batch_size", _read_number(config, "train_batch_size"))
    mbs = document["strategy"].get("mbs", _read_number(config, "train_micro_batch_size_per_gpu") or trainer.micro_batch)
    steps = _read_number(config, "gradient_accumulation_steps") or trainer.accumulation
    if batch is not None and mbs is not None and steps is not None and batch != mbs * steps * dp:
        problem = f"is {batch}, but {mbs} sequences x {steps} micro-batches x {dp} replicas are {mbs * steps * dp}."
        raise SpecError("train_batch_size", problem)
    if batch is not None and mbs is None:
        whole = dp * (steps or 1)
        if batch % whole:
            raise SpecError("train_batch_size", f"is {batch}, no multiple of {whole} micro-batches.")
        return batch, batch // whole
    if batch is None and mbs is not None:
        return mbs * (steps or 1) * dp, mbs
    return batch, mbs


def _is_on(config: Mapping[str, Any], name: str) -> object:
    return _section(config, name).get("enabled", False)


def _precision(config: Mapping[str, Any], trainer: Trainer) -> str:
    halves = {"bf16": ("bf16", "bfloat16"), "fp16": ("fp16",)}
    for half, names in halves.items():
        states = [_is_on(config, name) for name in names]
        if True in states or ("auto" in states and trainer.half == half):
            return half
    if not {*halves["bf16"], *halves["fp16"]} & {*config} and trainer.half:
        return trainer.half
    problem = "is not on, and fp16.enabled neither: training in FP32 is not costed."
    raise SpecError("bf16.enabled", problem, "Or say training.precision=bf16, where the script adds it.")


def _recomputes(config: Mapping[str, Any], trainer: Trainer) -> bool:
    """Tell whether layers are recomputed: by the script's option, else by the number of checkpoints in the JSON."""
    if trainer.recomputes is not None:
        return trainer.recomputes
    return bool(_section(config, "activation_checkpointing").get("number_checkpoints"))


def _recomputation_note(config: Mapping[str, Any], trainer: Trainer) -> list[str]:
    """
    Return a note that recomputation is assumed: the code of the model decides it, not the section of the JSON.

    References
    ----------
    DeepSpeed 0.19.8, deepspeed/runtime/activation_checkpointing/checkpointing.py, ``configure`` and ``checkpoint``.
    """
    if trainer.recomputes is not None:
        return []
    what = "full: all layers are" if _recomputes(config, trainer) else "none: no layer is"
    return [
        f"Recomputation is assumed to be {what} checkpointed. DeepSpeed's configuration alone does not decide it, the "
        "model must be told, too (gradient_checkpointing); strategy.recompute=none or full says it."
    ]


def _settings(config: Mapping[str, Any], offload: Mapping[str, Any]) -> dict[str, Any]:
    dtype = _section(config, "data_types").get("grad_accum_dtype")
    known = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
    immediate = _section(config, "bf16").get("immediate_grad_update", False)
    gradients = "bf16+fp32" if dtype == "fp32" and _is_one(config) and not immediate else known.get(str(dtype))
    return {
        **({} if gradients is None else {"gradient_dtype": gradients}),
        **({"offloaded_states": float(offload["ratio"])} if offload.get("ratio", 1) != 1 else {}),
    }


def _is_one(config: Mapping[str, Any]) -> bool:
    """Tell whether it is BF16_Optimizer, which keeps 16- and 32-bit gradients (deepspeed/runtime/engine.py:2305)."""
    zero = _section(config, "zero_optimization")
    on_host = _section(zero, "offload_optimizer").get("device", "none") == "cpu"
    return zero.get("stage") == 1 and _is_on(config, "bf16") is True and not on_host
