"""The project's files, each read and parsed once in a session: checks of the code are loops over them."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGES = ("costmodel", "constraints", "planner")
"""The wheel."""

ROOMS = (*PACKAGES, "benchmarks", "tests")
"""All folders of Python at the top, but the one that writes documents."""

MADE = {".git", ".hypothesis", "__pycache__", "build", "dist"}
"""Folders that hold no source."""


def is_made(name: str) -> bool:
    """Tell whether a file or folder of this name is nobody's source."""
    return name in MADE or name.startswith(".venv") or name.endswith(("_cache", ".egg-info", ".png", ".gz"))


def walk() -> Iterator[Path]:
    """Yield all files of text, without looking into environments, which hold ten times as many."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [one for one in folders if not is_made(one)]
        yield from (Path(folder, name) for name in names if not is_made(name))


FILES = sorted(walk())
"""All files of text, in the order of their paths."""


def label(path: Path) -> str:
    """Return the path from the top of the project."""
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    """Return the Python files of some folders, or all of the project."""
    return [path for path in FILES if path.suffix == ".py" and (not folders or label(path).split("/")[0] in folders)]


@cache
def text(path: Path) -> str:
    """Read a file."""
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """Parse a Python file."""
    return ast.parse(text(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """List all nodes of a Python file."""
    return tuple(ast.walk(tree(path)))


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield names that a module defines or uses, with their lines: of variables, attributes, functions, parameters."""
    for node in nodes(path):
        for field in ("id", "attr", "name", "arg"):
            if isinstance(name := getattr(node, field, None), str):
                yield getattr(node, "lineno", 0), name


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield strings with their lines, parts of f-strings apart: no docstrings."""
    documented = {id(one) for one in docstrings(path)}
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.lineno, node.value


def docstrings(path: Path) -> Iterator[ast.Constant]:
    """Yield strings that stand alone: docstrings, those of constants and fields among them."""
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


@cache
def code_lines(path: Path) -> frozenset[int]:
    """Return the numbers of lines that hold code: without docstrings, comments and empty lines."""
    said = {number for one in docstrings(path) for number in range(one.lineno, one.end_lineno + 1)}
    lines = enumerate(text(path).splitlines(), start=1)
    return frozenset({number for number, line in lines if line.strip() and not line.lstrip().startswith("#")} - said)


ENTRY = r"\*{0,2}\w+(, \*{0,2}\w+)*( : .+)?"
"""Names above their meaning, as in a list of parameters."""


def sentences(text: str) -> Iterator[str]:
    """Sentences of a docstring's prose, up to a full stop: formulas, examples, tables, headings and names are none."""
    prose = re.sub(r"^.+\n *-{3,}$", "", inspect.cleandoc(text), flags=re.MULTILINE)
    prose = re.sub(rf"^( *){ENTRY}\n(?=\1 +\S)", "\n", prose, flags=re.MULTILINE)
    prose = re.sub(r"^ *[-*] ", "\n", prose, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", prose):
        lines = [line.strip() for line in paragraph.splitlines()]
        said = " ".join(line for line in lines if not re.match(r"(>>>|\.\.\.? |\.\. math|\|)", line))
        if not re.match(r":math|\\|T_|[\w{}]+ = ", said):
            yield from re.split(r"(?<=[.?!])\s+", said)
