"""The laws of the house: no circles, rooms in the order of their signs, nothing larger than one can keep in mind."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.cases import require_none
from tests.imports import MODULES, circles, graph, order_of_rooms, room_of, rooms
from tests.sources import PACKAGES, ROOT, text, tree

MOST = {"fields": 25, "function lines": 60, "parameters": 10}
"""Limits of a record and of a function; what files and folders hold only falls (``tests/ratchet.py``)."""


@cache
def definitions() -> list[tuple[str, ast.AST]]:
    """Functions and classes, wherever they are, with dotted names."""
    found = []
    for module, path in MODULES.items():
        waiting: list[tuple[str, ast.AST]] = [(module, tree(path))]
        while waiting:
            name, node = waiting.pop()
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((name, node))
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    continue  # which holds no definition
                waiting.append((f"{name}.{child.name}" if hasattr(child, "name") and child.name else name, child))
    return found


def records() -> Iterator[tuple[str, int]]:
    """Each class with the number of its entries, those that it inherits from our own classes included."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for name, node in definitions():
        if not isinstance(node, ast.ClassDef):
            continue
        entries = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        own[name] = {ast.unparse(one.target) for one in entries if "ClassVar" not in ast.unparse(one.annotation)}
        bases[name] = [ast.unparse(base) for base in node.bases]
    named = {name.rpartition(".")[2]: name for name in own}

    def whole(name: str) -> set[str]:
        return own[name].union(*(whole(named[base]) for base in bases[name] if base in named))

    for name in own:
        yield name, len(whole(name))


def functions() -> Iterator[tuple[str, int]]:
    """Each function with the number of its lines, those of its docstring not counted."""
    for name, node in definitions():
        if not isinstance(node, ast.ClassDef):
            said = node.body[0] if ast.get_docstring(node) else None
            lines = node.end_lineno - node.lineno + 1
            yield name, lines - (said.end_lineno - said.lineno + 1 if said else 0)


def parameters() -> Iterator[tuple[str, int]]:
    """Each function with the number of its parameters."""
    for name, node in definitions():
        if not isinstance(node, ast.ClassDef):
            yield name, sum(isinstance(one, ast.arg) for one in ast.walk(node.args))


COUNTS: dict[str, Callable[[], Iterator[tuple[str, int]]]] = {
    "fields": records,
    "function lines": functions,
    "parameters": parameters,
}


def test_no_module_imports_itself_by_way_of_others():
    """Neither inside functions nor for types only: two modules that need each other are one, or lack a third."""
    require_none(circles(graph()))


def test_no_room_imports_itself_by_way_of_others():
    """A room is a sub-package, or a module beside them."""
    require_none(circles(rooms(graph())))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_on_the_sign(package):
    """The table of the package's README names each room once."""
    assert sorted(order_of_rooms(package)) == sorted(
        {room_of(name) for name in MODULES if name.startswith(f"{package}.")}
    )


def test_rooms_import_what_stands_above_them():
    """The order of the table is the law."""
    order = [room for package in PACKAGES for room in order_of_rooms(package)]
    pairs = [(room, other) for room, others in rooms(graph()).items() for other in others]
    inside = [(room, other) for room, other in pairs if room in order and other in order]

    require_none(f"{room} imports {other}" for room, other in inside if order.index(other) > order.index(room))


def test_what_is_large_is_defended():
    """CONTRIBUTING.md has a sentence for each record and function above ``MOST``, and for no other."""
    _, _, rest = text(ROOT / "CONTRIBUTING.md").partition("### Exceptions\n")
    defended = re.findall(r"^- (.+?):", rest.partition("\n#")[0], flags=re.MULTILINE)
    large = {name for what, counts in COUNTS.items() for name, count in counts() if count > MOST[what]}

    assert large == {name for names in defended for name in re.findall(r"`([\w.]+)`", names)}
