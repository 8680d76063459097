"""The best plans of all jobs of a batch: read line by line, so that a file may be larger than memory."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from planner.batch.choices import METRICS
from planner.batch.results import row_of, sentences
from planner.jobs.strategy_file import layers_text
from planner.report.records import csv_table
from planner.report.section import ENDLESS, Screen

OF_LINE = (
    "name",
    "source",
    "overrides",
    "status",
    "framework",
    "framework_is_assumed",
    "framework_is_extrapolated",
    "framework_doubt",
    "device_note",
    "key",
)
"""Entries of a job's line that JSON has in addition to its plan."""

COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "GPUs": lambda plan: f"{plan['num_devices']:,}",
    "step, s": lambda plan: f"{plan['step_time_seconds']:.3f}",
    "tokens/s/GPU": lambda plan: f"{plan['tokens_per_second_per_gpu']:,.1f}",
    "MFU": lambda plan: f"{plan['mfu']:.1%}",
    "peak GiB": lambda plan: f"{plan['peak_memory_bytes'] / GIB_BYTES:.1f}",
    "days": lambda plan: f"{plan['days']:,.2f}",
    "GPU-hours": lambda plan: f"{plan['gpu_hours']:,.0f}",
    **{
        name: lambda plan, name=name: str(plan["strategy"][name])  # type: ignore[misc]  # bound per column
        for name in ("tp", "cp", "pp", "dp", "ep", "vpp", "mbs", "recompute")
    },
}
"""Columns of the table on a plan."""

OF_COSTS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "energy": ("MWh", lambda plan: _figure(plan, "it_energy_mwh", ",.1f")),
    "cost": ("cost", lambda plan: f"{_figure(plan, 'total_cost', ',.0f')} {plan.get('currency') or ''}".rstrip()),
}
"""Further columns, each shown if jobs are ranked by it."""

MARK = "*"
"""Mark after the name of a job whose figures are extrapolated or whose names are ambiguous."""

MOST_NOTES = 8
"""Notes below the table; JSON and CSV have them all."""


def _layers(plan: Mapping[str, Any]) -> str:
    """Write the layers of a plan's stages as a command line takes them."""
    return layers_text(plan["strategy"]["layout"]["layers"])


OF_PIPELINES = {"layout": _layers}
"""Columns of the table where a plan has several stages."""


def _figure(plan: Mapping[str, Any], name: str, form: str) -> str:
    return "-" if plan.get(name) is None else f"{plan[name]:{form}}"


Ranked: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A job's line of the results file, and the best of its plans by the ranked figure."""


def top(lines: Iterable[Mapping[str, Any]], *, by: str = "step_time", count: int = 10) -> list[Ranked]:
    """
    Rank the best jobs, each by its best plan; the best is the first.

    Parameters
    ----------
    lines
        Lines of a results file.
    by
        One of ``METRICS``.
    count
        Number of jobs to keep.

    Raises
    ------
    SpecError
        If their costs are in several currencies.
    """
    name, sign = METRICS[by]

    def value(plan: Mapping[str, Any]) -> float:
        return float("inf") if plan.get(name) is None else sign * float(plan[name])

    def best() -> Iterator[Ranked]:
        for line in lines:
            if line.get("plans"):
                yield line, min(line["plans"], key=value)

    chosen = heapq.nsmallest(count, best(), key=lambda pair: value(pair[1]))
    currencies = sorted({str(plan.get("currency")) for _, plan in chosen if plan.get("total_cost") is not None})
    if by == "cost" and len(currencies) > 1:
        problem = f"'cost' cannot rank jobs with costs in {' and '.join(currencies)}."
        raise SpecError("--by", problem, "Give them one costs.currency, or rank by another figure.")
    return chosen


def render_top(ranked: list[Ranked], form: str, by: str = "step_time", screen: Screen = ENDLESS) -> str:
    """Format the ranking as a table, which includes the ranked figure, as JSON or as CSV."""
    return _table(ranked, by, screen) if form == "table" else {"json": _json, "csv": _csv}[form](ranked)


def _table(ranked: list[Ranked], by: str, screen: Screen) -> str:
    from planner.report.console import table_text

    if not ranked:
        return "No job has a plan.\n"
    is_staged = any(_cell(_layers, plan) != "-" for _, plan in ranked)
    columns = {**dict([OF_COSTS[by]] if by in OF_COSTS else []), **COLUMNS, **(OF_PIPELINES if is_staged else {})}
    header = ("#", *columns, "job")
    rows = [
        (str(rank), *(_cell(text, one[1]) for text in columns.values()), _name(one))
        for rank, one in enumerate(ranked, start=1)
    ]
    return table_text(header, rows, screen, notes=_notes(ranked))


def _name(one: Ranked) -> str:
    return f"{one[0].get('name', '')}{f' {MARK}' if _doubts(one) else ''}"


def _doubts(one: Ranked) -> list[str]:
    """Return the reasons for which the figures of a job are uncertain."""
    line, plan = one
    pair = f"no measured run of {line.get('framework')} on such devices is known"
    of_line = [pair if line.get("framework_is_extrapolated") else None, line.get("framework_doubt")]
    extrapolated = [f"extrapolated: {text}" for text in sentences(plan)]
    return [*extrapolated, *(str(text) for text in (*of_line, line.get("device_note")) if text)]


def _notes(ranked: list[Ranked]) -> list[str]:
    """Return the notes: every doubt with its ranks."""
    ranks: dict[str, list[str]] = {}
    for rank, one in enumerate(ranked, start=1):
        for text in _doubts(one):
            ranks.setdefault(text, []).append(str(rank))
    notes = [f"{MARK} {'all' if len(of) == len(ranked) else ', '.join(of)}: {text}" for text, of in ranks.items()]
    more = len(notes) - MOST_NOTES
    return [*notes[:MOST_NOTES], *([f"{MARK} and {more} more, which --format json has."] if more > 0 else [])]


def _cell(text: Callable[[Mapping[str, Any]], str], plan: Mapping[str, Any]) -> str:
    """Write a cell; a dash if the entry has no value, or if the version that wrote the line lacked it."""
    try:
        return text(plan)
    except (KeyError, TypeError):
        return "-"


def _json(ranked: list[Ranked]) -> str:
    entries = [
        {"rank": rank, **{name: line.get(name) for name in OF_LINE}, "plan": plan}
        for rank, (line, plan) in enumerate(ranked, start=1)
    ]
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"


def _csv(ranked: list[Ranked]) -> str:
    rows = [{"rank": rank, **row_of(line, plan)} for rank, (line, plan) in enumerate(ranked, start=1)]
    return csv_table(list(dict.fromkeys(name for row in rows for name in row)), rows)
