"""Reading of YAML and JSON as other frameworks do (anchors, comments, trailing commas), and of the room's tables."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.jobs.document import parse

MOST_NODES = 20_000
MOST_LEVELS = 32
"""Levels of a document with expanded anchors."""

LONG = 80
"""Letters from which a plain scalar is text, and no number."""

COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')


@lru_cache(maxsize=64)
def read_rows(path: Path) -> tuple[Mapping[str, str], ...]:
    """Read the rows of a table of this room, cells by column; they are shared and must not be changed."""
    with path.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def read_yaml(text: str, source: str) -> Any:
    r"""
    Read a YAML document; anchors are expanded, and the last of duplicate entries counts.

    >>> read_yaml("base: &all {tp: 2, pp: 4}\nrun: {<<: *all, pp: 8}", "example")["run"]
    {'tp': 2, 'pp': 8}

    Raises
    ------
    SpecError
        If it is not YAML, or grows too large.
    """
    if not re.search(r"(?m)(^|[\s\[{,:-])[&*]\w|<<\s*:", text):
        return parse(text, source, last_counts=True)
    return read_tagged(text, source)


def read_tagged(text: str, source: str) -> Any:
    """
    Read a YAML document with expanded anchors and without its tags: ``!include FILE`` is text.

    >>> read_tagged("data: !include my.yaml", "example")
    {'data': 'my.yaml'}

    Raises
    ------
    SpecError
        As :func:`read_yaml`.
    """
    try:
        return _write_out(yaml.compose(text, Loader=yaml.SafeLoader), source, [0], 0)
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(source, f"is not YAML: {str(error).splitlines()[0][:120]}.") from None


def _write_out(node: yaml.Node | None, source: str, seen: list[int], level: int) -> Any:
    """Convert a node to plain data, with anchors expanded."""
    seen[0] += 1
    if seen[0] > MOST_NODES or level > MOST_LEVELS:
        raise SpecError(source, "is larger than any configuration once its anchors are written out.")
    if isinstance(node, yaml.SequenceNode):
        return [_write_out(item, source, seen, level + 1) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        whole: dict[str, Any] = {}
        for key, value in node.value:
            inner = _write_out(value, source, seen, level + 1)
            if key.tag.endswith(":merge"):
                for part in reversed(inner if isinstance(inner, list) else [inner]):
                    whole = {**(part if isinstance(part, dict) else {}), **whole}
            else:
                whole[str(key.value)] = inner
        return whole
    if not isinstance(node, yaml.ScalarNode):
        return None
    return parse(node.value, source) if node.style is None and len(node.value) < LONG else node.value


def read_json(text: str, source: str) -> Any:
    """
    Read a JSON document with comments and trailing commas, as DeepSpeed does.

    >>> read_json('{"a": "//", /* of b */ "b": [1, 2,], } # end', "example")
    {'a': '//', 'b': [1, 2]}

    Raises
    ------
    SpecError
        If it is not JSON, or has duplicate entries.
    """
    plain = LAST_COMMA.sub(lambda found: found[1] or "", COMMENT.sub(lambda found: found[1] or " ", text))

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise SpecError(f"{source}: {shown(twice)}", "is written twice.")
        return dict(pairs)

    try:
        return json.loads(plain, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise SpecError(source, f"is not JSON: {error}.") from None
