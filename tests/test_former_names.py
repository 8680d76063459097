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
