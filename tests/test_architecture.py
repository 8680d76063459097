"""The law of the house: imports only go left, and only the top layer prints."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import fields
from itertools import chain
from pathlib import Path

from costmodel import catalog
from costmodel.catalog.files import entry
from costmodel.facts.framework import Behaviour
from tests.cases import require_none
from tests.sources import label, names, nodes, python_files, strings, tree

STAIRCASE = ("costmodel", "constraints", "planner", "benchmarks")

FOREIGN = {
    "costmodel": {"ortools", "pandas"},
    "constraints": {"yaml", "pandas", "argparse"},
    "planner": {"torch", "transformers"},
    "benchmarks": set(),
}
"""Modules from outside that a package may not import; ``yaml`` in the cost model only where tables are read."""

MEASURES = ("planner/measure/sample", "torch")
"""The room that measures operators, and what it measures them with: an extra, imported inside functions."""

FILES = python_files(*STAIRCASE)
COSTMODEL = python_files("costmodel")


def imports(*found: ast.AST) -> dict[str, int]:
    """Return top-level names of everything that nodes import, with a line."""
    plain = {name.name: node.lineno for node in found if isinstance(node, ast.Import) for name in node.names}
    names = plain | {node.module or ".": node.lineno for node in found if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0]: line for name, line in names.items()}


def importing(path: Path, forbidden: set[str]) -> list[str]:
    """List forbidden imports of a file with their places, those inside functions too."""
    return [f"{label(path)}:{line}: {name}" for name, line in imports(*nodes(path)).items() if name in forbidden]


def test_imports_only_go_left():
    """From the cost model to the benchmarks, nobody imports what stands to the right, or the tests."""
    room, library = MEASURES
    found = []
    for path in FILES:
        package = label(path).split("/")[0]
        right = {*STAIRCASE[STAIRCASE.index(package) + 1 :], "tests"}
        found += importing(path, (right | FOREIGN[package]) - ({library} if label(path).startswith(room) else set()))

    require_none(found)


def test_modules_that_measure_operators_import_their_library_in_functions():
    """Without the extra the room is there, and says what to install."""
    room, library = MEASURES
    paths = [path for path in FILES if label(path).startswith(room)]

    require_none(label(path) for path in paths if library in imports(*tree(path).body))


def test_cost_model_reads_files_only_where_its_tables_are():
    """A formula meets no file; families of models are a table of their own; files of users are the planner's."""
    formulas = [path for path in COSTMODEL if not re.search(r"/catalog/|/models/families\.py$", label(path))]

    require_none(place for path in formulas for place in importing(path, {"yaml", "pathlib", "os", "io"}))


def test_nothing_prints_below_the_planner():
    """Results leave as values; the command line prints them."""
    calls = [
        (path, node) for path in python_files(*STAIRCASE[:2]) for node in nodes(path) if isinstance(node, ast.Call)
    ]

    require_none(f"{label(path)}:{call.lineno}" for path, call in calls if ast.unparse(call.func) == "print")


def test_no_module_is_named_like_a_standard_one():
    """``operator`` or ``time`` in a traceback must mean Python's own."""
    standard = sys.stdlib_module_names - {"__init__", "__main__"}

    require_none(label(path) for path in FILES if path.stem in standard)


STACKS = {
    "megatron",
    "deepspeed",
    "foundry",
    "bigscience",
    *(name.rpartition("-")[0] or name for name in catalog.frameworks()),
}
SILICON = {*catalog.architectures(), *(name.split("-")[0] for name in catalog.devices())}
MAY_NAME = ("catalog", "lowering")
"""Rooms of the cost model that know single frameworks: as data, and as rules of lowering."""


def test_the_cost_model_names_no_framework_release_or_device():
    """Its code does not: they are entries of the catalog. Docstrings cite them as sources; models have families."""
    families = ("config_json.py", "families.py", "huggingface.py")
    paths = [path for path in COSTMODEL if label(path).split("/")[1] not in MAY_NAME and path.name not in families]
    found = [
        f"{label(path)}:{line}: {word}"
        for path in paths
        for line, word in chain(names(path), strings(path))
        if any(name in word.lower() for name in STACKS) or SILICON & set(re.split(r"[^a-z0-9]+", word.lower()))
    ]

    require_none(found)


def stated_by() -> dict[str, set[str]]:
    """Every yes or no of a framework's behaviour, with the entries of the catalog that say it, alone or for others."""
    booleans = {
        entry.name
        for record in fields(Behaviour)
        for entry in fields(type(getattr(Behaviour(), record.name)))
        if isinstance(getattr(getattr(Behaviour(), record.name), entry.name), bool)
    }
    stated: dict[str, set[str]] = {name: set() for name in booleans}
    for framework in catalog.frameworks():
        for group in (entry("frameworks", framework).get("behaviour") or {}).values():
            for name in booleans & set(group):
                stated[name].add(framework)
    return stated


def test_what_a_single_framework_says_is_asked_for_in_lowering_alone():
    """Where times are composed, nothing is known that only one entry of the catalog says."""
    single = {name for name, entries in stated_by().items() if len(entries) == 1}
    asked = {
        f"{label(path)}:{node.lineno}: {node.attr}"
        for path in COSTMODEL
        if label(path).split("/")[1] != "lowering"
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in single
    }

    assert single
    require_none(asked)
