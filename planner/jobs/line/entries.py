"""Lines in a job file: ``strategy`` and ``search.pin`` become mappings, their settings become the job's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.jobs.completion import is_whole
from planner.jobs.entries import SECTIONS
from planner.jobs.line.reading import read_words
from planner.jobs.setting_choices import ANY, Value
from planner.jobs.strategy_file import LAYOUT, StrategyFile
from planner.jobs.values import plain_value

PIN = "search.pin"


def read_lines(document: Mapping[str, Any]) -> dict[str, StrategyFile]:
    """Read the lines of a job by the entries that hold them."""
    search = document.get("search")
    entries = {"strategy": document.get("strategy"), PIN: search.get("pin") if isinstance(search, dict) else None}
    return {where: read_words(line.split(), where) for where, line in entries.items() if isinstance(line, str)}


def expand_lines(document: dict[str, Any], overrides: Sequence[str] = ()) -> None:
    """
    Write a job's lines as mappings, and their settings as the job's.

    A whole pinned line stays a line: it means one strategy, not only the decisions that it names. An override of one of
    its decisions expands it.

    >>> job = {"strategy": "TP8 moments_dtype=bf16"}
    >>> expand_lines(job)
    >>> job
    {'strategy': {'tp': 8}, 'settings': {'moments_dtype': 'bf16'}}

    Raises
    ------
    SpecError
        If a line is wrong, or gives another value of a setting than the job.
    """
    if isinstance(document.get("strategy"), str):
        document["strategy"] = _expand_line(document, document["strategy"], "strategy", "strategy")
    search = document.get("search")
    if isinstance(search, dict) and isinstance(search.get("pin"), str):
        given = read_words(search["pin"].split(), PIN)
        is_changed = any(one.strip().startswith(f"{PIN}.") for one in overrides)
        entries = _expand_line(document, search["pin"], PIN, PIN)
        if is_changed or not is_whole(given):
            document["search"] = {**search, "pin": entries}


def pin_words(words: Sequence[str], overrides: Sequence[str] = ()) -> list[str]:
    """
    Write words of a command line as entries that pin them; a whole line replaces all pins.

    Raises
    ------
    SpecError
        If one of the overrides pins the same decision.

    Examples
    --------
    >>> pin_words(["TP4", "mbs=2"])
    ['search.pin.tp=4', 'search.pin.mbs=2']
    """
    given = read_words(words, PIN, SECTIONS)
    pinned = {word.partition("=")[0]: word for word in overrides}
    for name in given.decisions:
        if (twice := pinned.get(f"{PIN}.{name}")) is not None:
            raise SpecError(f"{PIN}.{name}", f"is given twice, by {' '.join(words)} and {twice}; keep one.")
    if is_whole(given):
        return [f"{PIN}={json.dumps(' '.join(words))}"]
    return [f"{PIN}.{name}={json.dumps(value)}" for name, value in plain_entries(given).items()]


def plain_entries(given: StrategyFile) -> dict[str, Any]:
    """Write the given part of a strategy as in a job file."""
    decisions = {name: plain_value(name, int(value)) for name, value in given.decisions.items()}
    if given.layout is None:
        return decisions
    plain = {name: [_plain(name, value) for value in values] for name, values in given.layout.items()}
    return {**decisions, LAYOUT: plain or None}


def _plain(name: str, value: int) -> str | int | bool:
    """Write a value of a rank; numbers of layers stay."""
    return plain_value(name, int(value)) if name in ("recompute", "activation_offload") else int(value)


def _expand_line(document: dict[str, Any], line: str, where: str, said_by: str) -> dict[str, Any]:
    given = read_words(line.split(), where)
    if given.settings:
        document["settings"] = _merge_settings(document.get("settings") or {}, given.settings, said_by)
    return plain_entries(given)


def _merge_settings(own: Mapping[str, Any], said: Mapping[str, Value], said_by: str) -> dict[str, Any]:
    """Merge the settings of a line into those of a job; refuse a value that the job does not allow."""
    for name, value in said.items():
        given = own.get(name)
        if given in (None, ANY, value) or (isinstance(given, list) and value in given):
            continue
        raise SpecError(f"settings.{name}", f"is {shown(given)}, but {said_by} says {shown(value)}; keep one.")
    return {**own, **said}
