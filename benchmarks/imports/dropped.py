"""
Keys that an import drops in silence: each key of a file is taken out, and the import is another one or names the key.

A key is an option of a script, a leaf of YAML or JSON, or a line of TOML or of a log. Without it the job is another
one, the file is refused, or a note of the whole file names the key. A key with the tool's own default is none of these:
it counts as read where another value of it has such an effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import getitem
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from benchmarks.imports import expected
from benchmarks.inputs import read_yaml
from costmodel.errors import SpecError
from planner import import_job
from planner.frameworks.imports.launch import find_launch, slurm_variables
from planner.frameworks.megatron.options import split_options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.script import follow

DATA = read_yaml(__file__)
NAMELESS = DATA["nameless"]


OPTION = re.compile(
    r"(?<![\w$.{}/-])(--[a-zA-Z][\w-]*)((?:(?:[ \t]+|=)(?![-\\#&|<>\d]*[\\#&|<>])[^\s\\\"'()-][^\s\\\"'()]*)*)"
)
"""An option of a script with its values, up to the next one."""

LINE = re.compile(r"(?m)^[^#\n]*?\b(\w+)(?: \.{3,}|[ \t]*=)[ \t]*(\S.*)$")
"""A line of TOML or of a block of arguments: a name and its value."""


def _others(value: Any) -> Iterator[Any]:
    """Yield other values of the same kind; a value of another kind would be refused for that alone."""
    read = yaml.safe_load(value) if isinstance(value, str) else value
    kinds: tuple[tuple[type, tuple[Any, ...]], ...] = (
        (bool, (not read,)),
        (int, (11, 3, 1)),
        (float, (0.5, 2.5)),
        (str, ("x",)),
        (list, (["x"],)),
    )
    yield from next((others for kind, others in kinds if isinstance(read, kind)), (7, 2, True, "x"))


@dataclass(frozen=True)
class Key:
    """
    A key of a file.

    Parameters
    ----------
    name
        Its name, without sections.
    without
        Text of the file that lacks it.
    others
        Texts of the file with other values of it.
    """

    name: str
    without: str
    others: Callable[[], Iterator[str]]


def find_silent(path: Path, entries: Sequence[str], given: Mapping[str, str]) -> Iterator[str]:
    """Yield the keys of an importable file that make no difference, and that no note names."""
    text, whole = path.read_text(errors="replace"), import_job(path, entries, given)
    for key in find_keys(path, text):
        if key.name.startswith("_") or key.name in NAMELESS:
            continue
        if not _is_said(key.name, whole.notes) and not any(
            _differs(path, other, whole, entries, given, key.name) for other in chain([key.without], key.others())
        ):
            yield key.name


def report(folder: Path) -> int:
    """Print the keys that published files lose in silence; 1 where there are any."""
    lost = read = 0
    with TemporaryDirectory() as made:
        copied = Path(copytree(folder, Path(made) / "copy"))
        for row in expected.rows_of(copied):
            found = expected.import_row(copied, row) if row["importable"] != "no" else ""
            if isinstance(found, str):
                continue
            silent, read = list(find_silent(copied / row["path"], *found[1])), read + 1
            lost += bool(silent)
            if silent:
                print(f"  {row['path']}: {', '.join(silent)}")
    print(f"Files that lose a key in silence: {lost} of {read}.")
    return int(lost > 0)


def _differs(
    path: Path, text: str, whole: Imported, entries: Sequence[str], given: Mapping[str, str], name: str
) -> bool:
    """Tell whether another text is another job, is refused, or has a note on the key."""
    copy = path.with_name(f"without_{path.name}")
    copy.write_text(text)
    try:
        other = import_job(copy, entries, given)
    except SpecError:
        return True
    finally:
        copy.unlink()
    return other.document != whole.document or _is_said(name, other.notes)


def _is_said(name: str, notes: Sequence[str]) -> bool:
    plain = re.sub(r"[-_]+", "_", name.strip("-"))
    return any(re.search(rf"(?<![a-z0-9]){re.escape(plain)}", re.sub(r"[-_]+", "_", note)) for note in notes)


def find_keys(path: Path, text: str) -> Iterator[Key]:
    """Yield the keys of a file, by its kind."""
    if path.suffix in (".yaml", ".yml", ".json"):
        yield from _leaves(yaml.safe_load(text), json.dumps if path.suffix == ".json" else yaml.safe_dump)
    elif path.suffix in (".toml", ".log"):
        yield from _lines(text)
    else:
        yield from _options(text)


def _leaves(content: Any, write: Callable[[Any], str]) -> Iterator[Key]:
    """Yield the names of leaves; sections that repeat a name have the same value for it."""
    places: dict[str, list[tuple[Any, ...]]] = {}
    for path in _paths(content):
        places.setdefault(str(path[-1]), []).append(path)
    for name, paths in places.items():
        value = reduce(getitem, paths[0], content)

        def put(value: Any, paths: Sequence[tuple[Any, ...]] = paths) -> str:
            whole = content
            for path in paths:
                whole = _replace(whole, path, value)
            return write(whole)

        def others(put: Callable[[Any], str] = put, value: Any = value) -> Iterator[str]:
            return map(put, _others(value))

        yield Key(name, put(_Nothing), others)


class _Nothing:
    """Value of a key that is taken out."""


def _paths(content: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(content, Mapping):
        for name, value in content.items():
            inner = list(_paths(value))
            yield from ((name, *path) for path in inner or [()])


def _replace(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a document with another value at a path, or without it."""
    first, *rest = path
    inner = value if not rest else _replace(content[first], tuple(rest), value)
    return {
        name: inner if name == first else old for name, old in content.items() if name != first or inner is not _Nothing
    }


def _lines(text: str) -> Iterator[Key]:
    """Yield the names of lines with their values."""
    for found in LINE.finditer(text):
        begin, end = found.span(2)

        def others(begin: int = begin, end: int = end) -> Iterator[str]:
            return (f"{text[:begin]}{value}{text[end:]}" for value in _others(text[begin:end]))

        yield Key(found[1], text[: found.start()] + text[found.end() :], others)


def _options(text: str) -> Iterator[Key]:
    """Yield the options that the script's launch has, wherever they stand."""
    launch = find_launch(follow(text, slurm_variables(text)), text)
    given = dict(split_options(launch.words)) if launch is not None else {}
    plain = re.sub(r"(?m)^\s*#(?!SBATCH).*$", "", text)
    for name in sorted({found[1] for found in OPTION.finditer(plain)} & {*given}):
        values = given[name]

        def put(value: str, name: str = name) -> str:
            return OPTION.sub(lambda one: one[0] if one[1] != name else value, plain)

        def others(name: str = name, values: Sequence[str] = values) -> Iterator[str]:
            words = [value for text in values if text for value in _others(text)]
            return (put(f"{name} {word}", name) for word in words)

        yield Key(name, put(""), others)
