"""Entries of a command beside an imported file: sections entry by entry, and numbers without their units."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodel.errors import SpecError, together
from costmodel.quantities import Kind
from costmodel.validation import shown
from planner.jobs.document import parse, parse_count, plain_value, split_assignment
from planner.jobs.entries import RECORDS, kinds
from planner.jobs.line import is_line, plain_entries, read_strategy
from planner.jobs.strategy_file import LAYOUT, read_given

STRATEGY, SETTINGS = "strategy", "settings"

MAPPINGS = (*RECORDS, SETTINGS)
"""Sections whose entries are known by name; a model is one value, which replaces that of the file."""


def split_sections(assignments: Sequence[str]) -> list[str]:
    """
    Split sections that are given as a whole into their entries, and write numbers without units.

    A section adds to the file's, as its entries would one by one. Entries that are split already stay.

    >>> split_sections(["strategy=TP8 moments_dtype=bf16", "training={sequence_length: 4k}", "model=llama3-8b"])
    ['strategy.tp=8', 'settings.moments_dtype=bf16', 'training.sequence_length=4096', 'model=llama3-8b']

    Raises
    ------
    SpecError
        With every assignment that is none, section that is no mapping, and wrong number or decision.
    """
    found: list[str] = []
    mistakes: list[SpecError] = []
    for assignment in assignments:
        try:
            found += _split(str(assignment))
        except SpecError as error:
            mistakes.append(error)
    if mistakes:
        raise together(mistakes)
    return found


def _split(assignment: str) -> list[str]:
    if "=" not in assignment:
        raise _no_entry(assignment)
    path, value = split_assignment(assignment)
    text = assignment.partition("=")[2].strip()
    plain = [(name, _plain(name, one)) for name, one in _entries(path, value)]
    if plain == [(path, value)] and type(plain[0][1]) is type(value):
        return [f"{path}={text}"]
    return [f"{name}={_write_value(one)}" for name, one in plain]


def _no_entry(word: str) -> SpecError:
    """Return the error of a word without a value: a strategy, another file, or anything else."""
    if os.path.isfile(word):
        problem = "is another file; expected one file, and entries as key=value."
        return SpecError(shown(word), problem, "Import it alone.")
    hint = f'Write "strategy={word}".' if is_line(word) else ""
    return SpecError(shown(word), "expected key=value, such as training.global_batch_size=512.", hint)


def _entries(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a section, or the one that is given."""
    if path == STRATEGY:
        given = read_strategy(value)
        own = value if isinstance(value, Mapping) else plain_entries(given)
        yield from ((f"{STRATEGY}.{name}", one) for name, one in own.items())
        yield from ((f"{SETTINGS}.{name}", one) for name, one in given.settings.items())
    elif path in MAPPINGS:
        if not isinstance(value, Mapping):
            raise SpecError(path, f"expected a mapping, got {shown(value)}.", f"Write {path}.NAME=VALUE.")
        yield from ((f"{path}.{name}", one) for name, one in value.items())
    else:
        yield path, value


def _plain(path: str, value: Any) -> Any:
    """Return the value of an entry as a job file without units has it."""
    section, _, name = path.partition(".")
    first, _, below = name.partition(".")
    if section == STRATEGY and below and first != LAYOUT:
        raise SpecError(path, f"strategy.{first} is one value, and has no entries.", f"Write strategy.{first}=VALUE.")
    if section == STRATEGY and not below:
        decisions = read_given({name: value}).decisions
        return plain_value(name, int(decisions[name])) if name in decisions else value
    known = kinds()
    above = next((one for one in known if path.startswith(f"{one}.")), None)
    if above is not None:
        raise SpecError(path, f"{above} is a number, and has no entries.", f"Write {above}=VALUE.")
    return _number(path, value, known[path]) if path in known else value


def _number(path: str, value: Any, kind: Kind) -> Any:
    plain = parse_count(value, path, kind)
    if isinstance(plain, bool) or not isinstance(plain, (int, float)) or not math.isfinite(plain):
        raise SpecError(path, f"expected {kind.example_text}, got {shown(value)}.", f"Write {path}={kind.example}.")
    return int(plain) if plain == int(plain) else plain


def _write_value(value: Any) -> str:
    """Write a value, in quotes where it would be read as another one."""
    if isinstance(value, str) and parse(value, STRATEGY) == value:
        return value
    return json.dumps(value)
