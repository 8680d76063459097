"""The collected form to the explicit one: each row by itself, step by step; what fails refuses its row alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.measured_runs import strategies
from benchmarks.measured_runs.architectures import Architecture, architectures, model, num_layers, of_catalog
from benchmarks.measured_runs.columns import ESSENTIAL, EXPLICIT, LINE, Row, printable, require_whole, written
from benchmarks.measured_runs.strategies import framework_of
from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown
from planner.jobs.run_jobs import PLANNED

KINDS = ("pretrain", "proxy", "finetune", "oom", "component", PLANNED)

MEMORY_KINDS = ("allocated", "reserved", "nvidia-smi", "unspecified")

ADAPTERS = re.compile(r"\b[qQ]?L[oO]RA\b|adapter|PEFT")

"""Notes of fine-tuning that does not train every parameter: the explicit form's kind ``adapters``."""

THROUGHPUT_TOLERANCE = 0.1

"""Largest difference of step time and tokens per second: the coarsest printed throughput is rounded to 4 %."""

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
    Return the cells of the run and its measurement; numbers as they are written.

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


LONGEST_ID = 200

SECOND_COPY = re.compile(r"^internevo-flops-ckF-n(\d+)-mb2x4$")

"""Ids of InternEvo's runs that its document prints twice."""


@dataclass(frozen=True, slots=True)
class Converted:
    """
    Result of converting a collected table.

    Parameters
    ----------
    rows
        Cells by column of the explicit form, in the order of the table.
    models
        Values of a job file's ``model``, by key.
    comments
        Reasons why an entry is not the catalog's model of that name, by key.
    """

    rows: list[dict[str, str]]
    models: dict[str, Mapping[str, Any]]
    comments: dict[str, str]


def convert(rows: Iterable[Mapping[str, str]], models: Mapping[str, Mapping[str, Any]]) -> Converted:
    """
    Convert a collected table.

    Parameters
    ----------
    rows
        Cells by column, as :func:`benchmarks.measured_runs.columns.read` or ``csv.DictReader`` give them.
    models
        The collected ``models.yaml``.
    """
    known = architectures(models)
    return Converted(
        rows=list(_rows(list(rows), known)),
        models={key: one.entry for key, one in known.items()},
        comments={key: one.comment for key, one in known.items() if one.comment},
    )


def is_collected(columns: Iterable[str]) -> bool:
    """Tell whether a table's columns are those of the collected form."""
    return "cluster.device" not in columns


def _rows(rows: list[Mapping[str, str]], known: Mapping[str, Architecture]) -> Iterator[dict[str, str]]:
    ids = {(cells.get("id") or "").strip() for cells in rows}
    seen: set[str] = set()
    for number, cells in enumerate(rows):
        line = cells.get(LINE) or str(number + 2)
        try:
            require_whole(cells)
            if (name := Row(cells).text("id")) in seen:
                raise SpecError("id", f"'{name}' is the id of an earlier row too.")
        except SpecError as error:
            yield _unreadable(cells, line, str(error))
            continue
        seen.add(name)
        yield _explicit(Row(cells), known, ids)


def _unreadable(cells: Mapping[str, str], line: str, reason: str) -> dict[str, str]:
    """A record that is no row of the table: its name, or the line that it ends on, and why."""
    name = cells.get("id") or ""
    name = printable(name) if len(name) <= LONGEST_ID else ""
    return {**dict.fromkeys(EXPLICIT, ""), "id": name or f"line {line}", "usable": "1", "refused": reason}


def _explicit(row: Row, known: Mapping[str, Architecture], ids: set[str]) -> dict[str, str]:
    of = known.get(row.text("model")) or of_catalog(row.text("model"))
    found: dict[str, object] = {}
    problems: list[str] = []
    for step in _steps(row, of, ids):
        try:
            found |= step()
        except SpecError as error:
            problems.append(str(error))
    if _is_offered(row, found):
        found["refused"] = " ".join(dict.fromkeys(problems))
    return {column: written(found.get(column)) for column in EXPLICIT}


def _steps(row: Row, of: Architecture, ids: set[str]) -> tuple[Callable[[], Mapping[str, object]], ...]:
    """List the readers of a row, one after the other; each may fail alone."""
    layers = num_layers(row, of)
    has_experts = bool(of.model and of.model.has_experts)
    return (
        lambda: _origin(row),
        lambda: _usable(row, ids),
        lambda: model(row, of),
        lambda: strategies.cluster(row),
        lambda: strategies.sizes(row),
        lambda: strategies.training(row),
        lambda: strategies.precision(row),
        lambda: strategies.states(row),
        lambda: strategies.layers(row),
        lambda: strategies.experts(row),
        lambda: strategies.kernels(row, of.said),
        lambda: strategies.degrees(row),
        lambda: strategies.microbatch(row),
        lambda: strategies.pipeline(row, layers),
        lambda: strategies.layout(row, layers),
        lambda: strategies.sharding(row),
        lambda: strategies.sequence_parallel(row, has_experts=has_experts),
        lambda: strategies.recompute(row),
        lambda: strategies.offload(row),
        lambda: strategies.overlaps(row, layers, has_experts=has_experts),
        lambda: strategies.token_dispatcher(row),
        lambda: strategies.cuda_graphs(row, has_experts=has_experts),
        lambda: strategies.not_modelled(row),
        lambda: measurements(row),
        lambda: require_consistent(row),
    )


def _origin(row: Row) -> dict[str, object]:
    """Read the source of a row; a framework that the catalog has no entry for is named in the notes."""
    notes = row.text("notes")
    if row.text("framework") and not framework_of(row):
        notes = "; ".join(part for part in (notes, f"framework: {row.text('framework')}") if part)
    same = ("id", "source", "source_ref", "date", "predicted_by", "recipe")
    return {**{column: row.text(column) for column in same}, "notes": notes}


def _usable(row: Row, ids: set[str]) -> dict[str, object]:
    """Read whether the table offers the row, and the reason if not."""
    usable = row.flag_or_none("usable")
    if usable is None:
        raise SpecError("usable", "expected 0 or 1, got nothing.")
    copied = SECOND_COPY.search(row.text("id"))
    first = f"internevo-tgs-tp1-z8-n{copied.group(1)}" if copied else ""
    if usable and first in ids:
        return {"usable": 0, "quality": f"excluded: the same run as {first}, printed twice"}
    return {"usable": int(usable), "quality": row.text("quality")}


def _is_offered(row: Row, found: Mapping[str, object]) -> bool:
    """Tell whether a refusal of the row is a fault: nobody wants excluded rows predicted, nor rows without a layout."""
    if str(found.get("quality", "")).startswith("excluded") or found.get("usable") == 0:
        return False
    return all(row.text(column) for column in ESSENTIAL)
