"""What a collected row measured and what was predicted for it elsewhere; whether it agrees with itself."""

from __future__ import annotations

import re

from benchmarks.measured_runs.cells import Row
from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown
from planner.jobs.run_table import PLANNED

KINDS = ("pretrain", "proxy", "finetune", "oom", "component", PLANNED)
MEMORY_KINDS = ("allocated", "reserved", "nvidia-smi", "unspecified")

ADAPTERS = re.compile(r"\b[qQ]?L[oO]RA\b|adapter|PEFT")
"""How notes name fine-tuning that does not train every parameter: the explicit form's kind ``adapters``."""

THROUGHPUT_TOLERANCE = 0.1
"""How far step time and tokens per second may disagree: the coarsest printed throughput is rounded to 4 %."""

NUMBERS = {
    "step_seconds": "step_time_s",
    "tokens_per_second_per_device": "tokens_per_s_per_gpu",
    "peak_memory_gib": "peak_memory_gib",
    "predicted_step_seconds": "predicted_step_time_s",
    "predicted_peak_memory_gib": "predicted_peak_memory_gib",
}
"""A column of the explicit form, and the collected one of the same number."""


def measurements(row: Row) -> dict[str, object]:
    """
    What was run and measured; numbers as they are written.

    Raises
    ------
    SpecError
        If a cell is no number above 0, or an unknown kind.
    """
    for collected in NUMBERS.values():
        row.number_or_none(collected)
    kind = _choice(row, "kind", KINDS)
    if kind == "finetune" and ADAPTERS.search(row.text("notes")):
        kind = "adapters"
    memory_kind = _choice(row, "memory_kind", MEMORY_KINDS) if row.text("memory_kind") else ""
    numbers = {name: row.text(collected) for name, collected in NUMBERS.items()}
    return {"kind": kind, "memory_kind": memory_kind, **numbers}


def _choice(row: Row, column: str, choices: tuple[str, ...]) -> str:
    cell = row.text(column)
    if cell not in choices:
        raise SpecError(column, f"unknown entry {shown(cell)}.", did_you_mean(cell, choices))
    return cell


def require_consistent(row: Row) -> dict[str, object]:
    """
    Refuse a row whose measurements contradict each other.

    Raises
    ------
    SpecError
        If one that did not fit has a time, another nothing at all, or time and tokens per second disagree.
    """
    seconds, tokens = row.number_or_none("step_time_s"), row.number_or_none("tokens_per_s_per_gpu")
    if row.text("kind") in ("oom", PLANNED) and seconds is not None:
        what = "run that did not fit" if row.text("kind") == "oom" else "planned run"
        raise SpecError("step_time_s", f"must be empty for a {what}, got {seconds:g}.")
    if row.text("kind") not in ("oom", PLANNED) and seconds is None and row.number_or_none("peak_memory_gib") is None:
        raise SpecError("step_time_s", "is empty, as is peak_memory_gib; nothing was measured.")
    work = [row.count_or_none(column) for column in ("gbs", "seq_len", "n_gpus")]
    if seconds is not None and tokens is not None and all(work):
        batch, length, devices = (count or 1 for count in work)
        from_time = batch * length / devices / seconds
        if abs(tokens / from_time - 1) > THROUGHPUT_TOLERANCE:
            problem = f"{tokens:g} does not agree with step_time_s, gbs, seq_len: {from_time:g}."
            raise SpecError("tokens_per_s_per_gpu", problem)
    return {}
