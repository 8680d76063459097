"""The law of the house: imports only go left, and only the top layer prints."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from costmodel import catalog
from costmodel.catalog.files import entry
from costmodel.facts.framework import Behaviour

ROOT = Path(__file__).parents[1]

STAIRCASE = ("costmodel", "constraints", "planner", "benchmarks")

FOREIGN = {
    "costmodel": {"ortools", "pandas"},
    "constraints": {"yaml", "pandas", "argparse"},
    "planner": {"torch", "transformers"},
    "benchmarks": set(),
}
"""What a package may not import from outside; ``yaml`` in the cost model only where the catalog is read."""

MEASURES = ("planner/sampling", "torch")
"""The room that measures operators, and what it measures them with: an extra, imported inside functions."""

FILES = sorted(path for package in STAIRCASE for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Top-level names of everything that a file imports, also inside functions."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    names = plain | {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def label(path: Path) -> str:
    """The path as one reads it."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=label)
def test_imports_only_go_left(path):
    """From the cost model to the benchmarks, nobody imports what stands to the right, or the tests."""
    package = path.relative_to(ROOT).parts[0]
    right = {*STAIRCASE[STAIRCASE.index(package) + 1 :], "tests"}
    room, library = MEASURES
    allowed = {library} if label(path).startswith(room) else set()

    assert not imports(path) & (right | FOREIGN[package]) - allowed


@pytest.mark.parametrize("path", [path for path in FILES if label(path).startswith(MEASURES[0])], ids=label)
def test_what_measures_operators_imports_its_library_in_functions(path):
    """Without the extra the room is there, and says what to install."""
    top = ast.Module(
        body=[node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)],
        type_ignores=[],
    )
    names = {name.name for node in top.body for name in node.names} | {getattr(node, "module", "") for node in top.body}

    assert MEASURES[1] not in {str(name).partition(".")[0] for name in names}


@pytest.mark.parametrize("path", FILES, ids=label)
def test_cost_model_reads_yaml_only_in_its_catalog(path):
    """A formula never meets a file."""
    parts = path.relative_to(ROOT).parts

    assert parts[0] != "costmodel" or "catalog" in label(path) or "yaml" not in imports(path)


@pytest.mark.parametrize("path", [path for path in FILES if label(path).startswith(STAIRCASE[:2])], ids=label)
def test_nothing_prints_below_the_planner(path):
    """Results leave as values; the command line prints them."""
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]

    assert "print" not in {call.id for call in calls if isinstance(call, ast.Name)}


@pytest.mark.parametrize("path", FILES, ids=label)
def test_no_module_is_named_like_a_standard_one(path):
    """``operator`` or ``time`` in a traceback must mean Python's own."""
    assert path.stem not in sys.stdlib_module_names - {"__init__", "__main__"}


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


@pytest.mark.parametrize("path", [path for path in FILES if label(path).startswith("costmodel")], ids=label)
def test_the_cost_model_names_no_framework_release_or_device(path):
    """Its code does not: they are entries of the catalog. Docstrings cite them as sources; models have families."""
    parts = path.relative_to(ROOT).parts
    if parts[1] in MAY_NAME or path.name in ("class_defaults.py", "families.py", "huggingface.py", "former_names.py"):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    code = [node for node in ast.walk(tree) if id(node) not in prose]
    words = [
        str(getattr(node, field))
        for node in code
        for field in ("id", "attr", "arg", "name", "value")
        if isinstance(getattr(node, field, None), str)
    ]

    assert [word for word in words if any(name in word.lower() for name in STACKS)] == []
    assert [word for word in words if SILICON & set(re.split(r"[^a-z0-9]+", word.lower()))] == []


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
        (label(path), node.attr)
        for path in FILES
        if path.relative_to(ROOT).parts[0] == "costmodel" and path.relative_to(ROOT).parts[1] != "lowering"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in single
    }

    assert single
    assert asked == set()
