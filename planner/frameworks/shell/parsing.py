"""Parsing of scripts by tree-sitter with its Bash grammar, and repairs where that grammar errs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.frameworks.shell.words import source_of

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

PLACEHOLDER = re.compile(r"(?<=[=\s])<([A-Za-z][^<>\n|&;]*)>(?=[\s\"/_]|$)")
"""``<path to data>``, a placeholder of examples that is not valid Bash."""


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


NAME = re.compile(rb"[A-Za-z_]\w*|\d|[@*#?]")


def find_assignments(root: Node) -> set[str]:
    """Return the variables that a script sets anywhere, also in branches that are not taken."""
    found, nodes = set[str](), [root]
    while nodes:
        node = nodes.pop()
        nodes += node.named_children
        if node.type == "variable_assignment" and (name := node.child_by_field_name("name")) is not None:
            found.add(source_of(name))
    return found


MOST_REPAIRS = 50
"""Times that a script is parsed again; one error of the grammar may hide the next."""


def parse(text: str) -> Node:
    """Parse a script; where tree-sitter's grammar errs, parse an equivalent spelling instead."""
    source = PLACEHOLDER.sub(r"'<\1>'", text).encode()
    for _ in range(MOST_REPAIRS):
        root = _parser().parse(source).root_node
        repairs = sorted(_repairs(root, source), reverse=True)
        if not repairs:
            break
        for place, more in repairs:
            source = source[:place] + more + source[place:]
    return root


def _repairs(root: Node, source: bytes) -> Iterator[tuple[int, bytes]]:
    """
    Yield byte offsets with the text to insert there.

    A name after a bare ``$`` gets braces, and a line ``A=1 B=2`` a semicolon at its end.
    """
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.type == "$" and node.parent is not None and node.parent.type in ("concatenation", "command", "array"):
            if found := NAME.match(source, node.end_byte):
                yield from ((found.start(), b"{"), (found.end(), b"}"))
        elif node.type == "command":
            for one, following in pairwise(node.children):
                between = source[one.end_byte : following.start_byte].replace(b"\\\n", b"")
                if one.type == "variable_assignment" and b"\n" in between:
                    yield one.end_byte, b";"


def targets(redirect: Node) -> list[Node]:
    """A redirection's file, and what stands behind it; of ``2>&-`` the whole."""
    return [one for one in redirect.named_children if one.type != "file_descriptor"] or [redirect]


REDIRECTS = ("file_redirect", "herestring_redirect", "heredoc_redirect")


def branches_of(node: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """Conditions and bodies; none of ``else``."""
    clauses = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
    for part in (node, *clauses):
        named = [child for child in part.named_children if child not in clauses]
        if part.type == "else_clause":
            yield [], named
            continue
        then = next((child.start_byte for child in part.children if child.type == "then"), part.end_byte)
        yield [one for one in named if one.start_byte < then], [one for one in named if one.start_byte > then]
