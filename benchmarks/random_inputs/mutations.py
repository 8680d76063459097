"""Real inputs made wrong: byte by byte, line by line, entry by entry."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import yaml

from benchmarks.random_inputs import values

MOST_BYTES = 2**22
"""Larger inputs are cut: a file is refused by its size long before."""

LONG = 200_000
"""Characters of a very long line, levels of very deep brackets."""


# --- any file --------------------------------------------------------------------------------------------------


def _part(random: Random, data: bytes) -> slice:
    start = random.randrange(len(data) + 1)
    return slice(start, min(len(data), start + random.choice((1, 2, 8, 64, 512))))


def _flipped(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 2, 5, 30)) if data else 0):
        changed[random.randrange(len(data))] = random.randrange(256)
    return bytes(changed)


def _put_in(random: Random, data: bytes, piece: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + piece + data[place:]


def _moved_lines(random: Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        line = lines.pop(random.randrange(len(lines)))
        for _ in range(random.choice((0, 1, 2, 50))):
            lines.insert(random.randrange(len(lines) + 1), line)
    return b"".join(lines)


def _encoded(random: Random, data: bytes) -> bytes:
    encoding = random.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "cp037"))
    return data.decode("utf-8", "replace").encode(encoding, "replace")


def _deep(random: Random, data: bytes) -> bytes:
    opening = random.choice((b"[", b"{a: ", b"- ", b'{"a":', b"(", b"$(", b"${a:-", b"a: &a\n  "))
    return _put_in(random, data, opening * random.choice((30, 1000, LONG)))


def _long(random: Random, data: bytes) -> bytes:
    return _put_in(random, data, random.choice((b"a", b"9", b" ", b"#", b"-", b"\\", b"$", b",", b"\n")) * LONG)


def _bomb(random: Random, data: bytes) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, random.choice((3, 12)))]
    cyclic = random.choice(("", "b: &b [*b]", "b: &b {b: *b}", "<<: *a0", "b: &b {<<: *b}"))
    return data + "\n".join(["", *lines, cyclic, ""]).encode()


ODD_BYTES = (b"\x00", b"\xff\xfe", b"\x1b[2J", b"\x07", b"\x0c", b"\xed\xa0\x80")
WHOLE = (b"", b" ", b"\n", b"null", b"[]", b"{}", b"0", b'""', b"---\n---\n", b"%YAML 9.9\n---\n")
"""Pieces that no text has, and files that say nothing."""

ON_BYTES: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flipped,
    lambda random, data: data[: random.randrange(len(data) + 1)],
    lambda random, data: data.replace(data[_part(random, data)] or b"a", b"", 1),
    lambda random, data: _put_in(random, data, data[_part(random, data)] * random.choice((1, 2, 100))),
    lambda random, data: _put_in(random, data, values.text(random).encode("utf-8", "surrogatepass")),
    lambda random, data: _put_in(random, data, random.choice(ODD_BYTES)),
    _moved_lines,
    _encoded,
    lambda random, data: data.replace(b"\n", random.choice((b"\r\n", b"\r", b"", b"\n\n", b"\t"))),
    _deep,
    _long,
    _bomb,
    lambda random, data: random.choice(WHOLE),
    lambda random, data: bytes(random.randrange(256) for _ in range(random.choice((1, 20, 2000)))),
)


def bytes_changed(random: Random, data: bytes) -> bytes:
    """A file that no editor would write."""
    for _ in range(random.choice((1, 1, 2, 4))):
        data = random.choice(ON_BYTES)(random, data)[:MOST_BYTES]
    return data


# --- entries ---------------------------------------------------------------------------------------------------


MANY, MANY_ENTRIES = 30, 300
"""Most repetitions of an entry, and most entries of a tree in which one is repeated so often."""


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container and key of a tree."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        for key in keys:
            found.append((part, key))
            waiting.append(part[key])
    return found


def _typo(random: Random, key: str) -> str:
    place = random.randrange(len(key) + 1)
    return key[:place] + random.choice(("", "_", "s", key[:1], ".", " ", "-")) + key[place + random.choice((0, 1)) :]


def tree_changed(random: Random, tree: Any) -> Any:
    """Plain data with one to a few entries that are wrong, missing, misspelled or elsewhere."""
    tree = deepcopy(tree)
    for _ in range(random.choice((1, 1, 1, 2, 4, 9))):
        places = _places(tree)
        if not places:
            return values.plain(random)
        inside, key = random.choice(places)
        match random.randrange(8):
            case 0 if isinstance(inside, dict):
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside[_typo(random, str(key))] = inside.pop(key)
            case 2:
                other, name = random.choice(places)
                inside[key] = deepcopy(other[name])
            case 3:
                several = [deepcopy(inside[key]) for _ in range(MANY if len(places) < MANY_ENTRIES else 1)]
                inside[key] = random.choice(([inside[key]], {"base": inside[key]}, several))
            case 4 if isinstance(inside[key], int | float):
                inside[key] *= random.choice((-1, 0, 0.5, 2, 1000, 10**9, 1e300))
            case 5 if isinstance(inside, dict):
                inside[values.text(random)] = values.plain(random)
            case _:
                inside[key] = values.plain(random)
    return tree


def yaml_changed(random: Random, data: bytes) -> bytes:
    """A YAML file with wrong entries."""
    tree = tree_changed(random, yaml.safe_load(data))
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False).encode("utf-8", "surrogatepass")


def json_changed(random: Random, data: bytes) -> bytes:
    """A JSON file with wrong entries."""
    return json.dumps(tree_changed(random, json.loads(data))).encode("utf-8", "surrogatepass")


def csv_changed(random: Random, data: bytes) -> bytes:
    """A table with wrong cells, columns and rows."""
    rows = list(csv.reader(io.StringIO(data.decode("utf-8"))))
    for _ in range(random.choice((1, 1, 2, 5))):
        row = random.choice(rows)
        place = random.randrange(len(row)) if row else 0
        match random.randrange(6):
            case 0:
                row[place : place + 1] = []
            case 1:
                row.insert(place, values.text(random))
            case 2:
                rows.append(list(row))
            case 3:
                column = random.randrange(len(rows[0])) if rows[0] else 0
                for each in rows:
                    each[column : column + 1] = []
            case _:
                row[place : place + 1] = [values.text(random)]
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


def script_changed(random: Random, data: bytes) -> bytes:
    """A script with other words, and lines that do what no training does."""
    lines = data.decode("utf-8").splitlines(keepends=True)
    for _ in range(random.choice((1, 1, 2, 4))):
        place = random.randrange(len(lines) + 1)
        if random.random() < 0.3:
            lines.insert(place, random.choice(values.SHELL))
            continue
        words = lines[place].split(" ") if place < len(lines) else [""]
        words[random.randrange(len(words))] = values.text(random).replace("\n", " ")
        lines[place : place + 1] = [" ".join(words) if words[-1].endswith("\n") else " ".join(words) + "\n"]
    return "".join(lines).encode("utf-8", "surrogatepass")
