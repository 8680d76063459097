"""Which module imports which, read from the sources: inside functions and for types only, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.sources import PACKAGES, ROOT, nodes, python_files, text


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in python_files(*PACKAGES)}


def imported(path: Path) -> Iterator[str]:
    """Every module of the house that a file imports."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            parts = {f"{node.module}.{name.name}" for name in node.names}
            yield from parts & MODULES.keys()
            if parts - MODULES.keys():
                yield node.module


@cache
def graph() -> dict[str, set[str]]:
    """Tell for each module which others it imports."""
    return {module: {*imported(path)} - {module} for module, path in MODULES.items()}


def room_of(module: str) -> str:
    """A sub-package, such as ``planner.search``, or a module beside them."""
    return ".".join(module.split(".")[:2])


def rooms(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Which room imports which."""
    found: dict[str, set[str]] = {room_of(module): set() for module in graph}
    for module, others in graph.items():
        found[room_of(module)] |= {room_of(other) for other in others} - {room_of(module)}
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """What imports itself by way of others, each circle once."""
    reach = {start: set(ends) for start, ends in graph.items()}
    for middle in graph:
        for start in graph:
            if middle in reach[start]:
                reach[start] |= reach[middle]
    found = {tuple(sorted(end for end in reach[start] if start in reach[end])) for start in graph}
    return [list(circle) for circle in sorted(found) if circle]


def order_of_rooms(package: str) -> list[str]:
    """Rooms as the table of the package's README has them, from the top."""
    rows = re.findall(r"^\| (.+?) \|", text(ROOT / package / "README.md"), flags=re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", row)]
    return [f"{package}.{name}" for name in names]
