"""``training.*`` and ``settings.*`` of a collected row: the work, and what the framework was told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.measured_runs.cells import Row
from costmodel.errors import SpecError, did_you_mean

PRECISIONS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_delayed": "fp8",
    "fp8_ds": "fp8",
    "fp8_cs": "fp8_current",
    "fp8_sc": "fp8_blockwise",
    "fp8_mx": "mxfp8",
    "fp8_current": "fp8_current",
    "fp8_blockwise": "fp8_blockwise",
    "fp8_tensorwise": "fp8_tensorwise",
    "fp8_rowwise": "fp8_rowwise",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
"""A row's ``dtype`` to the catalog's recipe; Megatron-Bridge's own names of four of them."""

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}

GRADIENTS = (
    ("notes", re.compile(r"BF16[ _][oO]ptimizer with fp32 grad accumulation"), "bf16+fp32"),
    ("framework", re.compile(r"BF16_Optimizer"), "bf16+fp32"),
    ("notes", re.compile(r"grad_sync_dtype=bf16"), "bf16"),
    ("notes", re.compile(r"fp32 grad accumulation"), "fp32"),
)
"""What is said of gradients: DeepSpeed's ``BF16_Optimizer`` adds up in FP32 beside the 16-bit gradients."""

WITHOUT_MTP = re.compile(r"w/o MTP")

OFFLOADED_LAYERS = re.compile(r"^activations:(\d+)layers$")
"""How the column ``offload`` names layers whose activations go to the host."""

OFFLOADED_STATES = re.compile(r"^optimizer:(\d+)%(\+overlap)?$")
"""How it names the part of the optimizer states that is there, and transfers beside the host's update."""

ZERO_GROUP = re.compile(r"-tp\d+-z(-?\d+)-")
"""How the ids of InternEvo name the size of the group that shares optimizer states; -1: all."""

NOT_COMPILED = re.compile(r"^bf16; ")
"""How the notes of torchtitan's rows begin where they do not say ``bf16+compile``."""

FLASH_ATTENTION = re.compile(r"flash attention")
"""What the source of an architecture says where its configuration chooses it (GPT-NeoX, ``attention_config``)."""

SUMS_OF_PARTS = "vtrain-single-"
"""How ids of vTrain's runs on one node begin (README.md)."""


def training(row: Row) -> dict[str, object]:
    """The work of a step."""
    return {
        "training.global_batch_size": row.count_or_none("gbs"),
        "training.sequence_length": row.count_or_none("seq_len"),
    }


def precision(row: Row) -> dict[str, object]:
    """The catalog's recipe."""
    dtype = row.word("dtype")
    if dtype and dtype not in PRECISIONS:
        raise SpecError("dtype", f"'{dtype}' is no known recipe.", did_you_mean(dtype, PRECISIONS))
    return {"training.precision": PRECISIONS[dtype] if dtype else None}


def states(row: Row) -> dict[str, object]:
    """Gradients, optimizer states, weights in 8 bits."""
    in_fp32 = row.flag_or_none("grad_reduce_in_fp32")
    noted = next((dtype for column, words, dtype in GRADIENTS if words.search(row.text(column))), None)
    return {
        "settings.gradient_dtype": noted if in_fp32 is None else {True: "fp32", False: "bf16"}[in_fp32],
        "settings.moments_dtype": row.choice("exp_avg_dtype", DTYPES),
        "settings.fp8_param_gather": row.flag_or_none("fp8_param_gather"),
        "settings.optimizer": row.word("optimizer_name"),
        "settings.optimizer_group": _optimizer_group(row),
        **_offloaded_states(row),
    }


def _offloaded_states(row: Row) -> dict[str, object]:
    """What of them is in host memory: FP32 weights only of an optimizer that the row says to be precision-aware."""
    stated = OFFLOADED_STATES.search(row.word("offload"))
    if not stated:
        return {}
    return {
        "settings.offloaded_states": int(stated.group(1)) / 100,
        "settings.offloaded_masters": row.flag_or_none("precision_aware_optimizer"),
        "settings.offload_overlap": stated.group(2) is not None,
    }


def _optimizer_group(row: Row) -> int | str | None:
    stated = row.noted(ZERO_GROUP, "id")
    if not stated:
        return None
    return int(stated) if int(stated) > 0 else "all"


def layers(row: Row) -> dict[str, object]:
    """Multi-token prediction, layers whose activations go to the host."""
    num_mtp = row.count_or_none("mtp_layers", least=0)
    if num_mtp is None and WITHOUT_MTP.search(row.text("notes")):
        num_mtp = 0
    offloaded = OFFLOADED_LAYERS.search(row.word("offload"))
    return {
        "settings.mtp_layers": num_mtp,
        "settings.offloaded_layers": int(offloaded.group(1)) if offloaded else None,
    }


def experts(row: Row) -> dict[str, object]:
    """What is told to layers of experts."""
    return {
        "settings.shared_expert_overlap": row.flag_or_none("shared_expert_overlap"),
        "settings.delay_wgrad": row.flag_or_none("delay_wgrad"),
        "settings.communication_sms": row.count_or_none("comm_sms"),
    }


def kernels(row: Row, model: Mapping[str, Any]) -> dict[str, object]:
    """Which kernels ran, where they are not the framework's usual ones; whether parts were timed alone."""
    is_eager = row.word("framework").startswith("torchtitan") and NOT_COMPILED.search(row.text("notes"))
    return {
        "settings.kernels": "eager" if is_eager else None,
        "settings.attention": "flash" if FLASH_ATTENTION.search(str(model.get("where"))) else None,
        "settings.composition": "parts" if is_profiled_per_layer(row) else None,
    }


def is_profiled_per_layer(row: Row) -> bool:
    """Whether its step is a sum of layers that were timed alone (README.md)."""
    return row.text("id").startswith(SUMS_OF_PARTS)
