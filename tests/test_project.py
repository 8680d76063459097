"""The project keeps its word: what is documented exists, what exists is documented, nothing grows without bound."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from constraints import RULES, sentence
from costmodel.version import DISTRIBUTION
from planner.describe import describe_catalog

ROOT = Path(__file__).parents[1]

PACKAGES = ("costmodel", "constraints", "planner")

MAX_FUNCTION_LINES = 50
"""Docstrings, comments and empty lines not counted."""

GENERATED = {".git", ".hypothesis", "__pycache__", "build", "dist"}

FILES = sorted(
    path
    for path in ROOT.rglob("*")
    if path.is_file()
    and path.suffix not in {".png", ".gz"}
    and not any(part in GENERATED or part.startswith(".venv") for part in path.relative_to(ROOT).parts)
    and not any(part.endswith(("_cache", ".egg-info")) for part in path.relative_to(ROOT).parts)
)

PYTHON = [path for path in FILES if path.suffix == ".py"]
MARKDOWN = [path for path in FILES if path.suffix == ".md"]
PUBLIC = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in PACKAGES]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

MACHINE_PATH = re.compile(r"(?<![\w.~/])/(?:home|root|tmp|mnt|work|Users)/\w")


def label(path: Path) -> str:
    """The path as one reads it."""
    return str(path.relative_to(ROOT))


def is_docstring(node: ast.AST) -> bool:
    """A string that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def code_lines(path: Path) -> set[int]:
    """Numbers of the lines that hold code."""
    text = path.read_text(encoding="utf-8")
    strings = {
        number
        for node in ast.walk(ast.parse(text))
        if is_docstring(node)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(text.splitlines(), start=1)
    return {number for number, line in lines if line.strip() and not line.lstrip().startswith("#")} - strings


# --- the words -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path in PUBLIC if path.name != "__init__.py"], ids=label)
def test_every_module_is_on_the_sign_of_its_folder(path):
    """The README of a folder names each file in it."""
    assert f"`{path.name}`" in (path.parent / "README.md").read_text(encoding="utf-8")


def contributing_rows() -> dict[str, str]:
    """Rows of the table that says where a new thing goes."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", text, flags=re.MULTILINE))


@pytest.mark.parametrize(("thing", "row"), contributing_rows().items())
def test_a_new_thing_goes_where_there_is_something(thing, row):
    """Files and folders of the table exist, of tests the names; each word in capitals is in a file of its row."""
    words = [word for word in re.findall(r"`([^`\s]+)`", row) if "<" not in word]
    places = [word for word in words if "/" in word or "." in word]
    names = [word for word in words if re.fullmatch(r"[A-Z][A-Z_]+[A-Z]", word)]
    texts = [path.read_text(encoding="utf-8") for path in map(ROOT.joinpath, places) if path.is_file()]

    assert [word for word in places if "/" in word and not (ROOT / word).exists()] == []
    assert [word for word in places if word.startswith("test_") and not list(ROOT.glob(f"tests/**/{word}"))] == []
    assert [name for name in names if not any(re.search(rf"\b{name}\b", text) for text in texts)] == []


def test_all_that_asks_for_a_gpu_generation_is_in_its_row():
    """Who adds the next one finds every place."""
    asking = [label(path) for path in PUBLIC if re.search(r"[\"']blackwell[\"']", path.read_text(encoding="utf-8"))]

    assert [name for name in asking if f"`{name}`" not in contributing_rows()["GPU generation"]] == []


def test_changelog_has_the_version():
    """What is released is described."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert f"\n## {PROJECT['version']} " in changelog


def test_the_command_line_knows_its_distribution():
    """``planner --version`` and ``planner.__version__`` ask for the distribution by name."""
    assert PROJECT["name"] == DISTRIBUTION


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_is_a_sentence(rule):
    """The user reads it in a list: one line, from a capital to a full stop."""
    assert re.fullmatch(r"[A-Z].*[^.]\.", sentence(rule))


@pytest.mark.parametrize("kind", ["devices", "models", "precisions"])
def test_every_catalog_entry_has_a_source(kind):
    """No number comes from nowhere."""
    entries = describe_catalog(kind)[kind]

    assert [entry["name"] for entry in entries if not (entry.get("sources") or entry.get("source"))] == []


@pytest.mark.parametrize("path", FILES, ids=label)
def test_no_file_names_a_place_on_a_machine(path):
    """A path that exists on one machine only helps nobody else."""
    assert MACHINE_PATH.findall(path.read_text(encoding="utf-8")) == []


# --- the code --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PUBLIC, ids=label)
def test_everything_public_has_a_docstring(path):
    """Modules, classes, functions and methods without a leading underscore say what they are."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    homes = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))]
    named = [node for home in homes for node in home.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]

    assert ast.get_docstring(tree)
    assert [n.name for n in named if not n.name.startswith("_") and not ast.get_docstring(n)] == []


@pytest.mark.parametrize("path", PYTHON, ids=label)
def test_functions_fit_on_a_screen(path):
    """Fifty lines of code are enough for one thought."""
    lines = code_lines(path)
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    sizes = {node.name: len(lines & set(range(node.lineno, node.end_lineno + 1))) for node in functions}

    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}
