"""Write a job as a YAML file whose comments explain its entries and the defaults of all others."""

from __future__ import annotations

import inspect
import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from planner.jobs.cluster import exists
from planner.jobs.document import Plain, parse
from planner.jobs.entries import RECORDS, Job

HEAD = """\
Entries that are commented out show their defaults. Every entry: planner catalog schemas job.
Numbers may have units: 15T tokens, batches of 1k (1,000), sequences of 8k (8,192), 80GiB, 50GB/s, 5min.
"""

WIDTH = 116

WORD = re.compile(r"[A-Za-z0-9][\w./+-]*", re.ASCII)
"""Text that YAML reads without quotes."""

ROLE = re.compile(r":\w+:`([^`]+)`")
"""A cross-reference of the docstrings, such as :class:`costmodel.facts.model.Layer`; its last name is shown."""


def descriptions(record_type: type) -> dict[str, str]:
    """
    Read the description of each field from the docstring of a record.

    >>> descriptions(RECORDS["training"])["sequence_length"].partition(";")[0]
    'Tokens per sequence'
    """
    lines = (inspect.getdoc(record_type) or "").partition("Parameters\n----------\n")[2].splitlines()
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        if line and not line.startswith(" "):
            names = line.split(", ")
        elif line:
            text = ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", line.strip()).replace("``", "`")
            found.update({name: f"{found.get(name, '')} {text}".strip() for name in names})
        elif names:
            break
    return found


def write_commented(
    document: Mapping[str, Plain], title: str, known: Mapping[str, Mapping[str, Plain]] = MappingProxyType({})
) -> str:
    """
    Write a job file with a comment on each entry; missing entries are commented out with their defaults.

    Parameters
    ----------
    document
        A valid job as plain data.
    title
        First line of the file.
    known
        By section, values that entries without a default of their own have for this job.
    """
    texts = descriptions(Job)
    lines = [*_comment(title, ""), *(f"# {line}" for line in HEAD.splitlines())]
    for entry in fields(Job):
        lines += ["", *_comment(texts[entry.name], "")]
        section = RECORDS.get(entry.name)
        given = document.get(entry.name)
        if section is None:
            lines.append(_entry(entry, document, ""))
        else:
            mark = "# " if given is None else ""
            entries = given if isinstance(given, dict) else {}
            lines += [f"{mark}{entry.name}:", *_section(section, entries, mark, known.get(entry.name, {}))]
    return "\n".join(lines) + "\n"


def rebase_paths(document: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Rewrite the paths of a job, which are relative to the working directory, as relative to a folder."""
    moved = dict(document)
    for section, name in (("", "model"), ("cluster", "device"), ("search", "candidates")):
        entries = moved.get(section) if section else moved
        path = entries.get(name) if isinstance(entries, Mapping) else None
        if not isinstance(path, str) or not exists(Path(path)) or Path(path).is_absolute():
            continue
        relative = os.path.relpath(path, folder)
        moved = {**moved, **({section: {**entries, name: relative}} if section and entries else {name: relative})}
    return moved


def _section(record: type, given: Mapping[str, Plain], mark: str, known: Mapping[str, Plain]) -> Iterator[str]:
    texts = descriptions(record)
    for entry in fields(record):
        first_sentence = re.split(r"(?<=[a-z)`])\. ", texts[entry.name])[0].rstrip(".")
        yield from _comment(f"{first_sentence}.", "  ", mark)
        if entry.name in known and entry.name not in given:
            yield f"{mark}  {'' if mark else '# '}{entry.name}: {_text(known[entry.name])}"
        else:
            yield f"{mark}{_entry(entry, given, '  ', is_commented=bool(mark))}"


def _entry(entry: Field[Any], given: Mapping[str, Plain], indent: str, *, is_commented: bool = False) -> str:
    """Write a given entry, or its default commented out."""
    if entry.name in given:
        return f"{indent}{entry.name}: {_text(given[entry.name])}"
    default = entry.default if entry.default is not MISSING else None
    if entry.default_factory is not MISSING:
        default = {} if is_dataclass(made := entry.default_factory()) else made
    off = "" if is_commented else "# "
    return f"{indent}{off}{entry.name}: {_text(list(default) if isinstance(default, tuple) else default)}"


def _comment(text: str, indent: str, mark: str = "") -> list[str]:
    start = f"{mark}{indent}# "
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)


def _text(value: Any) -> str:
    """Write a value as YAML on one line, or as JSON where YAML needs quotes."""
    if isinstance(value, str) and WORD.fullmatch(value) and parse(value, "") == value:
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
