"""Modules of before: whoever imports one is told what it is called now."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest

from costmodel.former_names import NOW


@pytest.mark.parametrize("name", NOW)
def test_the_old_name_says_the_new_one(name):
    """``from costmodel.spec import Model`` of an old script."""
    with pytest.raises(ModuleNotFoundError, match="^" + f"{name} is {NOW[name]} now.".replace(".", r"\.") + "$"):
        import_module(name)


@pytest.mark.parametrize("name", sorted({new for names in NOW.values() for new in names.split(", ")}))
def test_the_new_name_is_there(name):
    """What the message says can be imported."""
    assert import_module(name)


@pytest.mark.parametrize(
    "statement", ["import planner.problem", "from costmodel import spec", "import constraints.topology"]
)
def test_any_of_the_packages_is_enough(statement):
    """Nothing else was imported before; other modules that are missing are not ours to explain."""
    program = f"try: {statement}\nexcept ModuleNotFoundError as error: print(error)\nimport planner.none_such"

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert re.fullmatch(r"\w+\.\w+ is \w+\.\w+\.\w+(, [\w.]+)* now.\n", result.stdout)
    assert result.stderr.endswith("ModuleNotFoundError: No module named 'planner.none_such'\n")


MEMBERS = (
    ("costmodel.step", "step_seconds", "costmodel.step.step"),
    ("costmodel.memory", "weight_bytes", "costmodel.memory.parts"),
    ("planner.search", "search", "planner.search.branch_and_bound"),
    ("planner.explanation", "explain", "planner.explanation.explain"),
    ("planner.report.records", "PlanRecord", "planner.report.records.plan"),
)
"""Names of modules that are packages now."""


@pytest.mark.parametrize(("package", "name", "module"), MEMBERS)
def test_a_package_says_where_a_name_of_the_module_before_is(package, name, module):
    """``from costmodel.step import step_seconds`` of an old script; a module of the same name is itself."""
    if f"{package}.{name}" == module:
        assert getattr(import_module(module), name)
        return
    with pytest.raises(ImportError, match=rf"^{package}\.{name} is {module}\.{name} now\.$"):
        getattr(import_module(package), name)


def test_a_name_that_no_module_has_is_no_attribute():
    """As of any module."""
    assert not hasattr(import_module("costmodel.step"), "none_such")
    assert not hasattr(import_module("planner.search"), "_hidden")
