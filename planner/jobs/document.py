"""
Plain data before it is checked as a job: YAML text, Python mappings and ``key=value`` overrides.

YAML is read as version 1.2 spells numbers: ``15e12`` is one, ``010`` is ten, ``2026-01-01`` is text. Tags, anchors and
aliases are refused, and size, depth and number of entries are limited.
"""

from __future__ import annotations

import csv
import difflib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from io import BufferedIOBase
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import yaml

from constraints.rules.frameworks import MEGATRON_MODULES
from costmodel.errors import NumberError, SpecError, did_you_mean, mistakes_of, together
from costmodel.quantities import COUNT, Kind, number
from costmodel.record import record
from costmodel.strategy import ENUMS, FLAGS, MODULES_OF, decision_text
from costmodel.validation import shown

Plain: TypeAlias = dict[str, "Plain"] | list["Plain"] | str | int | float | bool | None

MAX_BYTES = 2**20

MAX_ENTRIES = 20_000

MAX_DEPTH = 32

HISTOGRAM = "training.sequence_lengths"
"""Entry whose names may be numbers: lengths."""

MAX_INTEGER_DIGITS = 40

TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels."


class BlockDumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks: tables, scripts."""


BlockDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the base is chosen at run time
    """Safe YAML whose plain words are numbers only where YAML 1.2 says so."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own protocol


def _resolve(kind: str, pattern: str, first: Sequence[str]) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), list(first))


_resolve("null", r"~|null|Null|NULL|", ("~", "n", "N", ""))

_resolve("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO")

_resolve("int", r"[-+]?[0-9][0-9_]*", "-+0123456789")

_resolve("float", r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789")

_resolve("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.")

# --- reading -----------------------------------------------------------------------------------------------
OF_A_JOB = "A job needs at least 'model', 'cluster' and 'training'."


@record(frozen=True, kw_only=True, slots=True)
class Document:
    """
    A job as it was written in a file, a mapping or a command line.

    Parameters
    ----------
    entries
        Entries of the job.
    name
        Name of the job.
    folder
        Folder to which paths of the job are relative.
    sources
        Files that were read.
    places
        Place of each entry, by dotted path.
    mistakes
        Errors of entries that could not be read.
    """

    entries: dict[str, Plain]
    name: str = "job"
    folder: Path = Path()
    sources: tuple[Path, ...] = ()
    places: dict[str, Place] = field(default_factory=dict)
    mistakes: tuple[SpecError, ...] = ()


def read_document(path: Path) -> Document:
    """Read a job file with the place of each entry; errors as in :func:`read_mapping`."""
    places: dict[str, Place] = {}
    entries = mapping_of(read_text(path), str(path), places=places)
    return Document(entries=entries, name=path.stem, folder=path.parent, sources=(path,), places=places)


def read_mapping(path: Path, needs: str = OF_A_JOB) -> dict[str, Plain]:
    """
    Read the mapping of a YAML file.

    Parameters
    ----------
    path
        The file.
    needs
        Hint for an empty file.

    Raises
    ------
    SpecError
        If the file cannot be read, is too large, or does not hold one mapping.
    """
    return mapping_of(read_text(path), str(path), needs)


def mapping_of(
    text: str, source: str, needs: str = OF_A_JOB, places: dict[str, Place] | None = None
) -> dict[str, Plain]:
    """
    Parse the mapping of a YAML text.

    Parameters
    ----------
    text
        YAML.
    source
        Name of the text in messages.
    needs
        Hint for an empty text.
    places
        Receives the place of each entry.

    Raises
    ------
    SpecError
        If it is too large, or does not hold one mapping.
    """
    value = parse(text, source, places)
    if places is not None:
        places[WHOLE] = Place(where=source)
    if value is None:
        raise SpecError(source, "is empty.", needs)
    if not isinstance(value, dict):
        raise SpecError(source, f"holds {shown(value)}, expected entries such as 'model: llama3-8b'.")
    return value


def parse(text: str, source: str, places: dict[str, Place] | None = None, *, last_counts: bool = False) -> Plain:
    """
    Parse a YAML text to plain data.

    An entry that is written twice is refused, or its last value is taken (``last_counts``). ``places`` receives the
    place of each entry.

    >>> parse("[8, 15e12, on, 010, 2026-01-01, none]", "example")
    [8, 15000000000000.0, True, 10, '2026-01-01', 'none']
    """
    try:
        _refuse_bombs(text, source)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            kept = {} if places is None else places
            return None if node is None else _build_value(loader, node, source, "", kept, last_counts)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _yaml_problem(error, source, text) from None
    except UnicodeEncodeError as error:
        raise SpecError(source, f"is not text in UTF-8 (character {error.start + 1}).", "Save it as UTF-8.") from None


def read_text(path: Path, most_bytes: int = MAX_BYTES) -> str:
    """
    Read the text of a file.

    Raises
    ------
    SpecError
        If it cannot be read, is not text or too large.
    """
    try:
        with path.open("rb") as stream:
            return decode_file(stream, str(path), most_bytes)
    except FileNotFoundError:
        raise SpecError(str(path), "no such file.", similar_files(path)) from None
    except IsADirectoryError:
        raise SpecError(str(path), "is a directory, expected a YAML file.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(shown(str(path)), f"cannot be read: {reason}.") from None


def decode_file(
    stream: BinaryIO | BufferedIOBase, source: str, most_bytes: int = MAX_BYTES, errors: str = "strict"
) -> str:
    """Read the text of an open file; errors as in :func:`read_text`."""
    content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise SpecError(source, f"is larger than {most_bytes // 1024} KiB, which no job file is.")
    try:
        return content.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise SpecError(source, f"is not text in UTF-8 (byte {error.start}).", "Save it as UTF-8.") from None


@contextmanager
def open_csv(path: Path) -> Iterator[Any]:
    """
    Open a table, as the reader of its rows.

    Raises
    ------
    SpecError
        If it cannot be read; also while its rows are.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield csv.reader(stream, strict=True)
    except FileNotFoundError:
        raise SpecError(str(path), "no such file.", similar_files(path)) from None
    except UnicodeDecodeError as error:
        raise SpecError(str(path), f"is not text in UTF-8 (byte {error.start}).", "Save it as UTF-8.") from None
    except (OSError, csv.Error) as error:
        raise SpecError(str(path), f"cannot be read: {error}.") from None


def similar_files(path: Path) -> str:
    """Suggest a file with a similar name in the same folder, or say that the folder does not exist."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"There is no folder '{path.parent}' either."
    nearest = difflib.get_close_matches(path.name, names, n=1)
    return f"Did you mean '{path.parent / nearest[0]}'?" if nearest else ""


def _refuse_bombs(text: str, source: str) -> None:
    """Refuse text with too many or too deep entries, by its events: they need no memory."""
    depth = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
    for position, event in enumerate(events):
        where = f"{source}, line {event.start_mark.line + 1}"
        if position > MAX_ENTRIES:
            raise SpecError(where, f"has more than {MAX_ENTRIES} entries, which no job file has.")
        if getattr(event, "anchor", None) is not None:
            problem = "uses an anchor or alias (& or *), which job files may not."
            raise SpecError(where, problem, "Write the value out.")
        if getattr(event, "tag", None) is not None:
            raise SpecError(
                where, f"uses the tag {shown(event.tag)}, which job files may not.", "Write the value alone."
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise SpecError(where, TOO_DEEP)


def _build_value(
    loader: Any, node: yaml.Node, source: str, where: str, places: dict[str, Place], last_counts: bool
) -> Plain:
    if isinstance(node, yaml.SequenceNode):
        items = [(_join(where, index), item) for index, item in enumerate(node.value)]
        places.update((path, _place(source, item, item)) for path, item in items)
        return [_build_value(loader, item, source, path, places, last_counts) for path, item in items]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(loader, node)
    mapping: dict[str, Plain] = {}
    for index, (key_node, value_node) in enumerate(node.value):
        key = _key(
            loader, key_node, source, _thousands(node.value, index), may_be_number=(where or source) == HISTOGRAM
        )
        path = _join(where, key)
        if key in mapping and not last_counts:
            line = key_node.start_mark.line + 1
            raise SpecError(path, f"is written twice, again in {source}, line {line}.", "Keep one.")
        places[path] = _place(source, key_node, value_node)
        mapping[key] = _build_value(loader, value_node, source, path, places, last_counts)
    return mapping


def _place(source: str, key: yaml.Node, value: yaml.Node) -> Place:
    """Return the place of a scalar value; for a mapping, a list or an empty value, the place of its key."""
    is_scalar = isinstance(value, yaml.ScalarNode) and bool(value.value)
    mark = (value if is_scalar else key).start_mark
    where = f"{source}, line {mark.line + 1}, column {mark.column + 1}"
    return Place(where=where, text=value.value if is_scalar else "")


def _join(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _thousands(entries: Sequence[tuple[yaml.Node, yaml.Node]], index: int) -> str:
    """Suggest the number without commas where a comma seems to end an entry: ``{num_devices: 1,000}``."""
    number = entries[index - 1][1] if index else None
    if not isinstance(number, yaml.ScalarNode) or not number.value.isdigit():
        return ""
    more = itertools.takewhile(lambda entry: re.fullmatch("[0-9]{3}", str(entry[0].value)), entries[index:])
    digits = "".join([number.value, *(key.value for key, value in more if not value.value)])
    return f"Write {digits}." if digits != number.value else ""


def _key(loader: Any, node: yaml.Node, source: str, hint: str, *, may_be_number: bool) -> str:
    key = _scalar(loader, node) if isinstance(node, yaml.ScalarNode) else node.value
    if type(key) is int and may_be_number:
        return str(key)
    if not isinstance(key, str):
        where = f"{source}, line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"
        written = shown(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        raise SpecError(where, f"{written} cannot name an entry, expected a word before the colon.", hint)
    return key


def _scalar(loader: Any, node: yaml.Node) -> Plain:
    kind = node.tag.rpartition(":")[2]
    if kind == "int":
        digits = node.value.replace("_", "")
        return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else float(digits)
    if kind == "float":
        return float(node.value.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    value: str | bool | None = loader.construct_object(node)
    return value


def _yaml_problem(error: yaml.YAMLError, source: str, text: str) -> SpecError:
    """
    Say PyYAML's error in one sentence.

    PyYAML counts levels itself from 6.0.4 on, ahead of the events that it gives.
    """
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is not None and "nesting depth" in problem:
        return SpecError(f"{source}, line {mark.line + 1}", TOO_DEEP)
    if mark is None:
        return SpecError(source, f"is not YAML: {problem}.")
    line = "".join(text.splitlines()[mark.line : mark.line + 1])
    seen = f"The line is: {shown(line.strip())}." if line.strip() else ""
    hint = "Indent with blanks, not with tabs." if "\t" in line else seen
    return SpecError(source, f"is not YAML in line {mark.line + 1}, column {mark.column + 1}: {problem}.", hint)


# --- Python objects ----------------------------------------------------------------------------------------
def mapping_from_python(value: Mapping[Any, Any]) -> dict[str, Plain]:
    """
    Copy a mapping to plain data, as if it had been read from a file: dictionaries, lists and scalars.

    >>> mapping_from_python({"search": {"allow": {"pp": (4, 8)}}})
    {'search': {'allow': {'pp': [4, 8]}}}
    """
    plain = _copy_value(value, "", MAX_DEPTH, iter(range(MAX_ENTRIES)))
    assert isinstance(plain, dict), "a mapping becomes a dictionary"
    return plain


def _copy_value(value: object, where: str, depth_left: int, budget: Iterator[int]) -> Plain:
    if depth_left < 0:
        raise SpecError(where, TOO_DEEP)
    if next(budget, None) is None:
        raise SpecError(where, f"lies beyond the {MAX_ENTRIES} entries that a job may have.")
    if value is None or isinstance(value, (bool, str, int, float)):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        mapping: dict[str, Plain] = {}
        for key, item in value.items():
            if not isinstance(key, str) and (type(key) is not int or where != HISTOGRAM):
                raise SpecError(where, f"{shown(key)} cannot name an entry, expected text.")
            mapping[str(key)] = _copy_value(item, _join(where, key), depth_left - 1, budget)
        return mapping
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_copy_value(item, _join(where, i), depth_left - 1, budget) for i, item in enumerate(value)]
    raise SpecError(where, f"expected text, a number, a list or a mapping, got {type(value).__name__}.")


def refuse_report(content: object, path: Path, expected: str) -> None:
    """Refuse a JSON report of the planner in the place of another file."""
    if isinstance(content, Mapping) and "format_version" in content:
        fix = "Give the job that it was made from, or read it by planner explain or export."
        raise SpecError(str(path), f"is a JSON report, no {expected}.", fix)


# --- overrides ---------------------------------------------------------------------------------------------
def nest_entries(entries: Mapping[str, Any]) -> dict[str, Any]:
    """
    Nest entries with dotted names.

    >>> nest_entries({"a.b": 1, "a.c": 2, "d": 3})
    {'a': {'b': 1, 'c': 2}, 'd': 3}
    """
    whole: dict[str, Any] = {}
    for name, value in entries.items():
        *path, last = name.split(".")
        inner = whole
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return whole


def apply_overrides(document: Document, assignments: Iterable[str]) -> None:
    """Write several ``key=value`` into a document; the place of their entries is the command line."""
    for assignment in assignments:
        path, value = split_assignment(assignment)
        set_entry(document.entries, path, value)
        for known in [one for one in document.places if one.startswith(f"{path}.")]:
            del document.places[known]
        document.places[path] = NOWHERE


def apply_override(document: dict[str, Plain], assignment: str) -> None:
    """
    Write ``key=value`` into a document; the key is a dotted path, the value YAML.

    Missing sections are made. Entries of lists are addressed by their number.

    >>> document = {"training": {"sequence_length": 4096}}
    >>> apply_override(document, "search.allow.pp=[4, 8]")
    >>> document
    {'training': {'sequence_length': 4096}, 'search': {'allow': {'pp': [4, 8]}}}
    """
    set_entry(document, *split_assignment(assignment))


def set_entry(document: dict[str, Plain], path: str, value: Plain) -> None:
    """
    Write a value into a document at a dotted path.

    >>> document = {"search": {"allow": {"pp": [4, 8]}}}
    >>> set_entry(document, "search.allow.pp.0", 2)
    >>> document
    {'search': {'allow': {'pp': [2, 8]}}}
    """
    *sections, last = path.split(".")
    place: Plain = document
    for index, name in enumerate(sections):
        section, entry = _entry(place, name, ".".join(sections[:index]))
        if isinstance(section, dict) and section.get(name) is None:
            section[name] = {}
        place = section[entry]
    section, entry = _entry(place, last, ".".join(sections))
    section[entry] = value


def split_assignment(assignment: str) -> tuple[str, Plain]:
    """
    Split ``key=value`` into the dotted path and the value.

    >>> split_assignment("training.tokens=15e12")
    ('training.tokens', 15000000000000.0)
    """
    path, equals, text = str(assignment).partition("=")
    path = path.strip()
    if not equals or not path:
        raise SpecError(shown(assignment), "expected key=value, such as training.global_batch_size=512.")
    if not all(path.split(".")) or len(path.split(".")) > MAX_DEPTH:
        raise SpecError(shown(path), "expected names joined by single dots, such as search.pin.tp.")
    if len(text) > MAX_BYTES:
        raise SpecError(shown(path), f"is larger than {MAX_BYTES // 1024} KiB.")
    return path, parse(text, path)


def _entry(place: Plain, name: str, where: str) -> tuple[Any, str | int]:
    """Return the section and the key or index of one of its entries."""
    if isinstance(place, dict):
        return place, name
    if not isinstance(place, list):
        raise SpecError(where, f"is {shown(place)} and has no entries of its own.", "Write it as a mapping first.")
    if name.isascii() and name.isdigit() and len(name) <= 9 and int(name) < len(place):
        return place, int(name)
    allowed = f"a number from 0 to {len(place) - 1}" if place else "none, it is empty"
    raise SpecError(where, f"is a list; {shown(name)} is no entry of it (allowed: {allowed}).")


MAX_DEGREE = 10**9

"""Largest degree that is accepted; far above that of every cluster."""

OUR_MODULES = {megatron: own for own, megatron in MEGATRON_MODULES.items() if megatron != own}

"""Modules to recompute whose names differ in Megatron-LM, by Megatron-LM's name."""

SEVERAL = re.compile(r"[0-9]{1,9}(?:, *[0-9]{1,2}){1,9}")

"""Several values separated by commas; three digits after a comma are thousands."""


def decision_value(name: str, value: object, where: str) -> int:
    """
    Read one value of a decision as a number.

    >>> decision_value("recompute", "full", "search.pin.recompute"), decision_value("dp_overlap", True, "example")
    (<Recompute.FULL: 2>, 1)
    """
    if name in ENUMS:
        return _enum_value(name, value, where)
    if name in FLAGS:
        if not isinstance(value, bool) and value not in (0, 1):
            raise SpecError(where, f"expected true or false, got {shown(value)}.")
        return int(bool(value))
    if where.startswith("search.pin.") and isinstance(value, str) and SEVERAL.fullmatch(value):
        problem = f"expected one whole number, got {shown(value)}."
        raise SpecError(where, problem, f"Write search.allow.{name}=[{value}] to allow several.")
    given = parse_count(value, where)
    whole = int(given) if isinstance(given, float) and given.is_integer() else given
    if isinstance(whole, bool) or not isinstance(whole, int):
        raise SpecError(where, f"expected a whole number, got {shown(value)}.")
    if not 1 <= whole <= MAX_DEGREE:
        raise SpecError(where, f"must be from 1 to {MAX_DEGREE}, got {shown(value)}.")
    return whole


def parse_count(value: object, where: str, kind: Kind = COUNT) -> object:
    """
    Read text with a unit as a number; return other values unchanged.

    >>> parse_count("1k", "search.pin.mbs"), parse_count(8, "search.pin.tp")
    (1000, 8)
    >>> parse_count("full", "search.pin.recompute")
    'full'
    """
    try:
        return number(value, kind) if isinstance(value, str) else value
    except NumberError as error:
        raise SpecError(where, error.problem, error.hint) from None


def decision_values(decisions: Mapping[str, object], where: str) -> dict[str, int]:
    """Read several decisions as numbers; ``where`` is the path of the mapping."""
    return {name: decision_value(name, value, f"{where}.{name}") for name, value in decisions.items()}


def plain_value(name: str, value: int) -> str | int | bool:
    """
    Write a value as in a job file; the inverse of :func:`decision_value`.

    >>> plain_value("recompute", 2), plain_value("dp_overlap", 1), plain_value("tp", 8)
    ('full', True, 8)
    """
    text = decision_text(name, value)
    return int(text) if text.isdigit() else {"true": True, "false": False}.get(text, text)


def require_one_of(name: str, known: Iterable[str], where: str, what: str = "no decision") -> None:
    """Refuse an unknown name; ``what`` completes the message, such as ``no precision``."""
    if name not in (names := tuple(known)):
        raise SpecError(where, f"{shown(name)} is {what}.", did_you_mean(name, names))


def require_entry(name: str, known: Iterable[str], where: str, what: str = "decision") -> None:
    """Refuse an unknown entry of the mapping at a path."""
    if name not in (names := tuple(known)):
        raise SpecError(entry_path(where, name), f"no such {what}.", did_you_mean(name, names))


def entry_path(where: str, name: str) -> str:
    """Return the path of an entry; long or strange names are shortened."""
    return f"{where}.{shown(name)[1:-1]}"


def _enum_value(name: str, value: object, where: str) -> int:
    if isinstance(value, ENUMS[name]):
        return value
    modules = MODULES_OF.get(name, ())
    others = OUR_MODULES if name == "recompute" else {}
    known = [*(member.text for member in ENUMS[name]), *modules]
    try:
        parts = value.split("+") if isinstance(value, str) else []
        return ENUMS[name].named("+".join(others.get(part, part) for part in parts))
    except KeyError:
        hint = did_you_mean(value, [*known, *others]) if isinstance(value, str) else ""
        joined = " (the latter may be joined by +)" if modules else ""
        problem = f"expected one of {', '.join(known)}{joined}, got {shown(value)}."
        raise SpecError(where, problem, hint if "mean" in hint else "") from None


# --- places ------------------------------------------------------------------------------------------------


@record(frozen=True, kw_only=True, slots=True)
class Place:
    """
    Place in which one entry was written.

    Parameters
    ----------
    where
        File, line and column, or an option, such as ``job.yaml, line 4, column 16`` or ``--batch``.
    text
        The value as it is spelled there; empty for an entry with entries inside.
    """

    where: str
    text: str = ""


Places = Mapping[str, Place]
"""Places by dotted path, in the order in which they were written."""

NOWHERE = Place(where="")
"""Place of an entry that was not written, such as one that was changed later."""


WHOLE = ""
"""Path of a whole document. Missing entries at its top are reported there, after all others."""


def add_places(errors: Iterable[SpecError], places: Places) -> SpecError:
    """
    Merge mistakes into one error that names the place of each.

    Parameters
    ----------
    errors
        Mistakes. Only the first of several on one entry is kept, and none inside an entry that is wrong itself.
    places
        Place of each entry.
    """
    kept: dict[str, SpecError] = {}
    for error in (one for several in errors for one in mistakes_of(several)):
        if not any(error.where == known or error.where.startswith(f"{known}.") for known in kept):
            kept[error.where] = error
    order = {path: index for index, path in enumerate(places)}
    ranked = sorted(kept.values(), key=lambda error: order.get(_nearest(error.where, places), len(order)))
    return together([_add_place(error, places) for error in ranked])


def _add_place(error: SpecError, places: Places) -> SpecError:
    path = _nearest(error.where, places)
    place = places.get(path, NOWHERE)
    if error.place or not place.where:
        return error
    problem = error.problem
    if path == error.where and _is_respelled(place.text) and place.text not in problem:
        problem = f"{problem.removesuffix('.')} (written {place.text})."
    return SpecError(error.where, problem, error.hint, place.where)


def _is_respelled(text: str) -> bool:
    """Tell whether a number is written with an exponent or a unit; messages repeat that spelling."""
    return text[:1].isdigit() and not text.isdigit()


def _nearest(path: str, places: Places) -> str:
    """Return the path of the entry itself, or of the nearest written entry around it; else the whole document."""
    while path and path not in places:
        path = path.rpartition(".")[0]
    return path
