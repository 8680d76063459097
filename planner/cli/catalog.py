"""``planner catalog``: everything that the planner knows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from costmodel.errors import SpecError
from planner.cli.arguments import TEXT_FORMATS, add_output, describe
from planner.cli.output import check_output, progress, screen_of, write
from planner.report.section import PLAIN, Screen, Section

Described: TypeAlias = tuple[Any, Sequence[Section], str]
"""An answer for programs, for a terminal, and as text."""

MODEL_ENTRIES = {"sequence_length": "4096", "attention": "full"}
"""Entries of a described model, ``key=value``, with their defaults."""


def add_catalog_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Lists devices, aliases, calibrations, architectures, frameworks, models, precisions and recipes, or shows one "
        "by its name. 'models NAME' reads an architecture, of a config.json or the Hugging Face hub, too: parameters "
        "and FLOPs (sequence_length=8k; attention=causal leaves out scores that the mask hides). 'recipes' takes a "
        "model, device, precision and release. 'support [MODEL] [DEVICE]' says which models, families, devices and "
        "targets are planned, exported, measured, or refused and why. 'schemas [NAME]' prints the JSON Schema of "
        "a job, a report, or what else programs read and write. 'skill' prints the folder of the skill for agents."
    )
    describe(parser, description)
    help_text = f"a list, the name of an entry, or one of support, {', '.join(TEXTS)}; by default the lists"
    parser.add_argument("entry", metavar="WHAT", nargs="?", help=help_text)
    help_text = "which of them, such as 'models llama3-8b', 'recipes llama3-70b h100' or 'schemas job'"
    parser.add_argument("only", metavar="WORD", nargs="*", help=help_text)
    add_output(parser, TEXT_FORMATS)
    parser.set_defaults(takes_words=True, assignments=[])


def run_catalog(arguments: argparse.Namespace) -> int:
    """Describe the catalog, or a part of it."""
    entry, words = arguments.entry, [*arguments.only, *arguments.assignments]
    check_output(arguments.output, [path for word in words for path in (Path(word), Path(word) / "config.json")])
    screen = screen_of(arguments.output)
    with progress("reading the catalog"):
        if entry in TEXTS:
            if arguments.format == "json":
                raise SpecError("--format", f"'{entry}' has one form.", "Leave the option out.")
            text = TEXTS[entry](words, screen)
        else:
            from planner.report.describe import json_text

            read = _describe_model if entry == "models" and words else _describe_entry
            read = _describe_support if entry == "support" else read
            described, sections, plain = read(entry, words)
            if arguments.format == "json":
                text = json_text(described)
            elif screen is PLAIN:
                text = plain
            else:
                from planner.report.console import sections_text

                text = sections_text(sections, screen)
    write(text, arguments.output)
    return 0


def _describe_model(_: str | None, words: Sequence[str]) -> Described:
    """Return a model for programs, for a terminal, and as lines of text."""
    from planner.report.describe import align_rows, describe_model, model_rows

    name, *entries = words
    given = {**MODEL_ENTRIES}
    for text in entries:
        key, _, value = text.partition("=")
        if key not in given:
            raise SpecError(text, "is no entry of a described model.", f"Entries are {' and '.join(given)}.")
        given[key] = value
    attention = given["attention"]
    if attention not in ("full", "causal"):
        raise SpecError("attention", f"{attention!r} is not full or causal.")
    described = describe_model(name, given["sequence_length"], "full" if attention == "full" else "causal")
    rows = model_rows(described)
    return described, [Section(title=name, rows=tuple(rows))], align_rows(rows)


def _describe_entry(entry: str | None, words: Sequence[str]) -> Described:
    """Return lists of the catalog, or an entry, for programs, for a terminal, and as lines of text."""
    from planner.report.describe import catalog_tables, catalog_text, describe_catalog, leaves

    described = describe_catalog(entry, words, also=("support", *TEXTS))
    tables = [
        Section(title=name, header=tuple(rows[0]) if rows else (), rows=tuple(tuple(row.values()) for row in rows))
        for name, rows in catalog_tables(described)
    ]
    return described, tables or [Section(title=entry or "", rows=tuple(leaves(described)))], catalog_text(described)


def _describe_support(_: str | None, words: Sequence[str]) -> Described:
    """Return the support of families, or of one model or family, on all devices or on one."""
    from costmodel import catalog
    from planner.report.console import sections_text
    from planner.report.support import support_sections, support_tables

    _require_few("support", words, 2)
    is_device = len(words) == 1 and (catalog.means_several(words[0]) or catalog.find_unique_device(words[0]))
    model, device = (None, *words) if is_device else (*words, None, None)[:2]
    sections = support_sections(model, device)
    return support_tables(sections), sections, sections_text(sections, PLAIN)


def _schema_text(words: Sequence[str], _: Screen) -> str:
    """Return a schema, or the names of all."""
    from planner.schema import list_text, schema_text

    _require_few("schemas", words, 1)
    return schema_text(words[0]) if words else list_text()


def _skill_text(words: Sequence[str], _: Screen) -> str:
    """Return the folder of the skill, which agents load to learn when to use what."""
    from planner.agents.tools import SKILL

    _require_few("skill", words, 0)
    return str(SKILL.parent)


def _require_few(name: str, words: Sequence[str], most: int) -> None:
    if len(words) > most:
        raise SpecError(f"catalog {name}", f"takes at most {most} words, got {len(words)}.")


TEXTS: Mapping[str, Callable[[Sequence[str], Screen], str]] = {
    "schemas": _schema_text,
    "skill": _skill_text,
}
"""Answers that are texts alone."""
