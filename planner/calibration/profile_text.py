"""Fitted numbers into the YAML of a catalog entry: only those numbers and their sources change, comments stay."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

import yaml

from costmodel.errors import SpecError

WIDTH = 116


def with_numbers(text: str, numbers: Mapping[str, float], sources: Mapping[str, str]) -> str:
    r"""
    The text of a YAML file with other numbers.

    Parameters
    ----------
    text
        The file; lists are of mappings with a ``name``.
    numbers
        New values by dotted path; a missing last entry of a block mapping is added to it.
    sources
        New texts of entries of the mapping ``sources``.

    Raises
    ------
    SpecError
        If a path leads nowhere.

    >>> print(with_numbers("profile:  # fitted\n  a: 1.0\n  b: {c: 2.0}\n", {"profile.b.c": 3.25}, {}))
    profile:  # fitted
      a: 1.0
      b: {c: 3.25}
    <BLANKLINE>
    """
    for path, number in numbers.items():
        text = _with_scalar(text, path.split("."), _shown(number))
    for key, source in sources.items():
        text = _with_source(text, key, source)
    return text


def _shown(number: float) -> str:
    """Four digits, spelled so that every YAML parser reads a number."""
    brief = f"{number:.4g}"
    mantissa, _, exponent = brief.partition("e")
    if not exponent:
        return brief if "." in brief else f"{brief}.0"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"


def _with_scalar(text: str, path: list[str], scalar: str) -> str:
    node: yaml.Node | None = yaml.compose(text)
    for depth, part in enumerate(path):
        inner = _entry(node, part)
        if inner is None:
            if depth == len(path) - 1 and isinstance(node, yaml.MappingNode) and not node.flow_style:
                return _with_line(text, node, f"{part}: {scalar}")
            raise SpecError(".".join(path), "is not in the file.")
        node = inner
    if not isinstance(node, yaml.ScalarNode):
        raise SpecError(".".join(path), "is no number in the file.")
    return text[: node.start_mark.index] + scalar + text[node.end_mark.index :]


def _entry(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode):
        named = (item for item in node.value if getattr(_entry(item, "name"), "value", None) == name)
        return next(named, None)
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == name), None)
    return None


def _with_line(text: str, mapping: yaml.MappingNode, line: str) -> str:
    """One more entry at the end of a block mapping."""
    key, last = mapping.value[-1]
    end = text.find("\n", last.end_mark.index - (text[last.end_mark.index - 1] == "\n")) + 1
    return f"{text[:end]}{' ' * key.start_mark.column}{line}\n{text[end:]}"


def _with_source(text: str, key: str, source: str) -> str:
    """One entry of ``sources`` as a folded block."""
    lines = textwrap.wrap(source, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    block = f"  {key}: >-\n" + "".join(f"    {line}\n" for line in lines)
    entry = re.compile(rf"^  {re.escape(key)}:.*\n(?:    .*\n|\n)*", re.MULTILINE)
    start = text.index("\nsources:") + 1
    if entry.search(text, start):
        head, tail = text[:start], text[start:]
        return head + entry.sub(lambda _: block, tail, count=1)
    return text + ("" if text.endswith("\n") else "\n") + block
