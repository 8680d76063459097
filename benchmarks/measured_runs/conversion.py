"""The collected form to the explicit one: each row by itself, step by step; what fails refuses its row alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.measured_runs import clusters, settings, strategies
from benchmarks.measured_runs.architectures import Architecture, architectures, of_catalog
from benchmarks.measured_runs.cells import Row, written
from benchmarks.measured_runs.columns import ESSENTIAL, EXPLICIT
from benchmarks.measured_runs.frameworks import framework_of
from benchmarks.measured_runs.measurements import measurements, require_consistent
from benchmarks.measured_runs.models import model, num_layers
from benchmarks.measured_runs.reading import LINE, printable, require_whole
from costmodel.errors import SpecError

LONGEST_ID = 200

SECOND_COPY = re.compile(r"^internevo-flops-ckF-n(\d+)-mb2x4$")
"""Ids of InternEvo's runs that its document prints twice."""


@dataclass(frozen=True, slots=True)
class Converted:
    """
    What is made of a collected table.

    Parameters
    ----------
    rows
        Cells by column of the explicit form, in the order of the table.
    models
        What a job file's ``model`` takes, by key.
    comments
        Why an entry is not the catalog's model of that name, by key.
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
        Cells by column, as :func:`benchmarks.measured_runs.reading.read` or ``csv.DictReader`` give them.
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
    """Whether a table's columns are those of the collected form."""
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
    """What is read of a row, one thing after the other; each may fail alone."""
    layers = num_layers(row, of)
    has_experts = bool(of.model and of.model.has_experts)
    return (
        lambda: _origin(row),
        lambda: _usable(row, ids),
        lambda: model(row, of),
        lambda: clusters.cluster(row),
        lambda: clusters.sizes(row),
        lambda: settings.training(row),
        lambda: settings.precision(row),
        lambda: settings.states(row),
        lambda: settings.layers(row),
        lambda: settings.experts(row),
        lambda: settings.kernels(row, of.said),
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
    """Where it comes from; a framework that the catalog has no entry for is named in the notes."""
    notes = row.text("notes")
    if row.text("framework") and not framework_of(row):
        notes = "; ".join(part for part in (notes, f"framework: {row.text('framework')}") if part)
    same = ("id", "source", "source_ref", "date", "predicted_by", "recipe")
    return {**{column: row.text(column) for column in same}, "notes": notes}


def _usable(row: Row, ids: set[str]) -> dict[str, object]:
    """Whether the table offers the row, and why not."""
    usable = row.flag_or_none("usable")
    if usable is None:
        raise SpecError("usable", "expected 0 or 1, got nothing.")
    copied = SECOND_COPY.search(row.text("id"))
    first = f"internevo-tgs-tp1-z8-n{copied.group(1)}" if copied else ""
    if usable and first in ids:
        return {"usable": 0, "quality": f"excluded: the same run as {first}, printed twice"}
    return {"usable": int(usable), "quality": row.text("quality")}


def _is_offered(row: Row, found: Mapping[str, object]) -> bool:
    """Whether anything is refused: not what nobody wants predicted, nor what has no layout."""
    if str(found.get("quality", "")).startswith("excluded") or found.get("usable") == 0:
        return False
    return all(row.text(column) for column in ESSENTIAL)
