"""The project keeps its word: what is documented exists, what exists is documented, nothing grows without bound."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from constraints import RULES, sentence
from costmodel.version import DISTRIBUTION
from planner.report.describe import describe_catalog
from tests.cases import require_none
from tests.sources import FILES, PACKAGES, ROOT, code_lines, label, nodes, python_files, text

MAX_FUNCTION_LINES = 50
"""Docstrings, comments and empty lines not counted."""

PUBLIC = python_files(*PACKAGES)

PROJECT = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]

MACHINE_PATH = re.compile(r"(?<![\w.~/])/(?:home|root|tmp|mnt|work|Users)/\w")


# --- the words -------------------------------------------------------------------------------------


def test_every_module_is_on_the_sign_of_its_folder():
    """The README of a folder names each file in it."""
    modules = [path for path in PUBLIC if path.name != "__init__.py"]

    require_none(label(path) for path in modules if f"`{path.name}`" not in text(path.parent / "README.md"))


def contributing_rows() -> dict[str, str]:
    """Return rows of the table that says where a new thing goes."""
    return dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", text(ROOT / "CONTRIBUTING.md"), flags=re.MULTILINE))


def missing_from(row: str) -> list[str]:
    """List files and folders of a row that do not exist, its tests too, and words in capitals in none of its files."""
    words = [word for word in re.findall(r"`([^`\s]+)`", row) if "<" not in word]
    places = [word for word in words if "/" in word or "." in word]
    names = [word for word in words if re.fullmatch(r"[A-Z][A-Z_]+[A-Z]", word)]
    texts = [text(path) for path in map(ROOT.joinpath, places) if path.is_file()]
    return [
        *[word for word in places if "/" in word and not (ROOT / word).exists()],
        *[word for word in places if word.startswith("test_") and not list(ROOT.glob(f"tests/**/{word}"))],
        *[name for name in names if not any(re.search(rf"\b{name}\b", one) for one in texts)],
    ]


def test_a_new_thing_goes_where_there_is_something():
    """Files and folders of the table exist, of tests the names; each word in capitals is in a file of its row."""
    require_none(f"{thing}: {missing_from(row)}" for thing, row in contributing_rows().items() if missing_from(row))


def test_all_that_asks_for_a_gpu_generation_is_in_its_row():
    """Who adds the next one finds every place."""
    asking = [label(path) for path in PUBLIC if re.search(r"[\"']blackwell[\"']", text(path))]

    require_none(name for name in asking if f"`{name}`" not in contributing_rows()["GPU generation"])


def test_the_notice_names_files_that_exist():
    """Facts of other projects are listed with their licences: each place once, a table with its folder."""
    for line in re.findall(r"^  ([^:\n]+):", text(ROOT / "NOTICE"), flags=re.MULTILINE):
        folder = ROOT
        for name in line.split(", "):
            path = ROOT / name if "/" in name else folder / name
            folder = path.parent
            assert path.exists(), path


def test_changelog_has_the_version():
    """What is released is described."""
    assert f"\n## {PROJECT['version']} " in text(ROOT / "CHANGELOG.md")


def test_the_command_line_knows_its_distribution():
    """``planner --version`` and ``planner.__version__`` ask for the distribution by name."""
    assert PROJECT["name"] == DISTRIBUTION


def test_every_rule_is_a_sentence():
    """The user reads it in a list: one line, from a capital to a full stop."""
    require_none(rule.__name__ for rule in RULES if not re.fullmatch(r"[A-Z].*[^.]\.", sentence(rule)))


@pytest.mark.parametrize("kind", ["devices", "models", "precisions"])
def test_every_catalog_entry_has_a_source(kind):
    """No number comes from nowhere."""
    entries = describe_catalog(kind)[kind]

    require_none(entry["name"] for entry in entries if not (entry.get("sources") or entry.get("source")))


def test_no_file_names_a_place_on_a_machine():
    """A path that exists on one machine only helps nobody else."""
    found = [(path, one) for path in FILES for one in MACHINE_PATH.finditer(text(path))]

    require_none(f"{label(path)}:{one.string.count(chr(10), 0, one.start()) + 1}: {one[0]}" for path, one in found)


# --- the code --------------------------------------------------------------------------------------------------


def test_functions_fit_on_a_screen():
    """Fifty lines of code are enough for one thought."""
    sizes = {
        f"{label(path)}:{node.lineno}: {node.name}": len(
            code_lines(path) & set(range(node.lineno, node.end_lineno + 1))
        )
        for path in python_files()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    }

    require_none(f"{place}: {size} lines" for place, size in sizes.items() if size > MAX_FUNCTION_LINES)


def test_the_wheel_has_every_data_file():
    """Each file of the packages that is no module and no page matches a pattern of ``package-data``."""
    patterns = tomllib.loads(text(ROOT / "pyproject.toml"))["tool"]["setuptools"]["package-data"]
    packed = {path for name, globs in patterns.items() for glob in globs for path in (ROOT / name).glob(glob)}
    kept = {path for path in FILES if path.relative_to(ROOT).parts[0] in PACKAGES and path.suffix not in (".py", ".md")}

    require_none(f"{path.relative_to(ROOT)} is in no pattern" for path in sorted(kept - packed))
