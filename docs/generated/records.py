"""Entries of job files and of reports, made of their JSON Schemas: type, unit, default, example, meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from costmodel.catalog import device_entry
from costmodel.quantities import GIBIBYTES, KINDS
from planner.schema import schema

Schema: TypeAlias = Mapping[str, Any]

EXAMPLES: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("examples.yaml").read_text(encoding="utf-8"))
"""A value of each entry of a job, by dotted name."""

DEVICE: Schema = device_entry("h100-80gb-sxm")
"""Source of the values of an inline device."""

INLINE: Mapping[str, tuple[str, Schema]] = {
    "Device": ("A device of your own", DEVICE),
    "Silicon": ("Its silicon", {}),
    "Network": ("A level of its network", DEVICE["networks"][0]),
    "HostProcessors": ("Its share of the host's processors", DEVICE["host_processors"]),
    "Description": ("A model of your own", {}),
    "Precision": ("A precision of your own", {}),
    "Sites": ("Several data centres", EXAMPLES["cluster.sites"]),
    "RecoveryLevel": ("A way to recover", {"name": "job", "probability": 1, "seconds": "5min"}),
}
"""Records that a job may hold: title and examples; those of calibrations and frameworks stand in the schema alone."""

WITH_BASE = ("Device", "Description", "Precision")
"""Records that may take everything from a ``base``."""

UNITS = {
    "_seconds": "s",
    "_bytes": "bytes",
    "_gib": "GiB",
    "bandwidth": "bytes/s",
    "latency": "s",
    "window": "tokens",
    "_flops": "FLOP/s",
    "_hours": "h",
    "_watts": "W",
    "days": "days",
    "_fraction": "a fraction",
}
"""Unit by the last word of a name."""

LONGEST_EXAMPLE = 120
FEW_UNITS = 5
MOST_NAMES = 12
"""Values of an enumeration that are written out."""

WITH_UNIT = re.compile(r"^\^\(\?:\[0-9\].*\((.+)\)\$$")
"""The pattern of a number as text, with its units."""


def job_entries() -> Iterator[str]:
    """Every entry of a job file: those on top, its sections, and what may stand in the place of a name."""
    job = schema("job")
    records = job["$defs"]
    yield from ("## On top", "", *_entries(job, "", EXAMPLES))
    for name, entry in job["properties"].items():
        record = record_of(entry)
        if record:
            yield from ("", f"## `{name}`", "", _first_sentence(records[record]), "")
            yield from _entries(records[record], f"{name}.", EXAMPLES)
    for name, (title, examples) in INLINE.items():
        needed = "needed without a `base`" if name in WITH_BASE else "required"
        yield from ("", f"## {title}", "", _first_sentence(records[name]), "")
        yield from _entries(records[name], "", examples, needed)


def report_entries() -> Iterator[str]:
    """Every entry of the JSON reports, by the record that has it."""
    report = schema("report")
    records = report["$defs"]
    kinds = [entry["then"]["$ref"].rpartition("/")[2] for entry in report["allOf"]]
    for name in (*kinds, *(name for name in records if name not in kinds)):
        yield from ("", f"## {_title(name).capitalize()}", "", _first_sentence(records[name]), "")
        yield from _entries(records[name], "", None)


def batch_entries() -> Iterator[str]:
    """Every entry of a line that a batch writes."""
    yield from _entries(schema("batch-line"), "", None)


def _entries(
    record: Schema, prefix: str, examples: Mapping[str, Any] | None, needed: str = "required"
) -> Iterator[str]:
    """A line for each entry of a record, or for those after each other that are explained together."""
    required = record.get("required", ())
    together = groupby(record["properties"].items(), lambda item: item[1].get("description", ""))
    for text, entries in together:
        names = []
        for name, entry in entries:
            facts = [_type(entry), _unit(name)]
            if examples is not None:
                facts += [needed if name in required else _default(entry), _example(examples, prefix + name)]
            names.append(f"`{prefix}{name}` ({'; '.join(fact for fact in facts if fact)})")
        yield f"- {', '.join(names)}: {_escaped(text)}"


def _title(name: str) -> str:
    """The name of a record in words: ``NumberedPlanRecord`` is a numbered plan."""
    if name == "Costs" or name.endswith(("Section", "Settings")):
        return "section"
    words = name.removesuffix("Record")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in words).strip()


def _first_sentence(record: Schema) -> str:
    return _escaped(re.split(r"(?<=\.)\s+(?=[A-Z])", record["description"])[0])


def _escaped(text: str) -> str:
    """Text as Markdown: roles and double backquotes are code, special characters elsewhere as they are."""
    text = " ".join(text.replace("None: ", "default: ").split())
    text = re.sub(r":\w+:`(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    parts = text.split("`")
    return "`".join(part if number % 2 else re.sub(r"([*<>|_])", r"\\\1", part) for number, part in enumerate(parts))


def record_of(entry: Schema) -> str:
    """The record that an entry is; empty: it is none, or a list of them."""
    return next((str(form["$ref"].rpartition("/")[2]) for form in _forms(entry) if "$ref" in form), "")


def _forms(entry: Schema) -> Iterator[Schema]:
    """Return the kinds of values that an entry takes, alternatives of alternatives too."""
    for form in entry.get("anyOf", (entry,)):
        if "anyOf" in form:
            yield from _forms(form)
        elif form.get("type") != "null":
            yield form


def _type(entry: Schema) -> str:
    found = ""
    for name in dict.fromkeys(filter(None, map(_form, _forms(entry)))):
        name = "a list of them" if found and name == f"list of {found}" else name
        found += f"{', ' if name.startswith('also') else ' or '}{name}" if found else name
    return found


def _form(form: Schema) -> str:
    """A form that a value may have, in words."""
    if "$ref" in form:
        return _title(form["$ref"].rpartition("/")[2]) or "mapping"
    if "const" in form:
        return f"`{form['const']}`"
    if "enum" in form:
        names = [f"`{value}`" for value in form["enum"] if isinstance(value, str)]
        return ", ".join(names) if len(names) <= MOST_NAMES else f"a name such as {names[0]}"
    if form.get("type") == "array":
        return f"list of {_type(form.get('items', {})) or 'values'}"
    if "pattern" in form:
        return _with_unit(form["pattern"])
    words = {"integer": "whole number", "number": "number", "boolean": "true or false", "object": "mapping"}
    return (words | {"string": "text"}).get(str(form.get("type", "")), "")


def _with_unit(pattern: str) -> str:
    """Form of a number with a unit; other patterns are of texts."""
    found = WITH_UNIT.match(pattern)
    if found is None:
        return "text"
    units = found[1].split("|")
    kind = next((kind for kind in (*KINDS, GIBIBYTES) if set(units) == set(kind.units)), None)
    if kind and len(units) > FEW_UNITS:
        return f"also like `{kind.example}`"
    thousand = f" ({kind.units['k']:,})" if kind and "k" in units else ""
    words = ", ".join(f"`{unit}`" for unit in units if unit != "K")
    return f"also with {words.replace('`k`', f'`k`{thousand}')}"


def _unit(name: str) -> str:
    """Return the unit that a name ends in."""
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def _default(entry: Schema) -> str:
    default = entry.get("default")
    if default is None or default in ([], {}, ""):
        return ""
    shown = f"{default:.4g}" if isinstance(default, float) else json.dumps(default).strip('"')
    return f"default `{shown}`"


def _example(examples: Mapping[str, Any], name: str) -> str:
    if name not in examples or name == "sources":
        return ""
    shown = yaml.safe_dump(_rounded(examples[name]), default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"e.g. `{shown}`" if len(shown) <= LONGEST_EXAMPLE else ""


def _rounded(value: Any) -> Any:
    """Numbers as one writes them: 8.55e+10; YAML takes one with an exponent for text if it has no point."""
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    return _Number(re.sub(r"^(-?\d+)e", r"\1.0e", f"{value:.3g}")) if isinstance(value, float) else value


class _Number(str):
    """A number that stands in YAML as it is written here."""


yaml.SafeDumper.add_representer(
    _Number, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:float", str(value))
)
