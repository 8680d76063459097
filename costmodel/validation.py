"""Validation of plain data: pydantic checks it, and each mistake becomes one clear sentence."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from costmodel.errors import MOST_MISTAKES, NumberError, SpecError, did_you_mean, together
from costmodel.record import adapter_of

Record = TypeVar("Record")

MAX_SHOWN = 60
"""Most characters of a user's value that a message repeats."""

EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "none_required": "null",
}
"""Description of the expected value, by pydantic's type of error."""

LIMITS = {"greater_than_equal": "at least {ge}", "greater_than": "more than {gt}", "less_than_equal": "at most {le}"}
LENGTHS = {"too_short": "at least {min_length}", "too_long": "at most {max_length}"}


def build(record_type: type[Record], mapping: object, where: str) -> Record:
    """
    Build a record from plain data, as read from YAML or JSON.

    Parameters
    ----------
    record_type
        A pydantic dataclass; its fields may be records, unions, lists and mappings of them.
    mapping
        The entries by field name; text that reads as a number is a number (``"8"``, ``"1e9"``), other text is not.
    where
        Dotted path of the mapping, the start of every message.

    Raises
    ------
    SpecError
        For each mistake, in the order of the fields, unknown entries first; a misspelt entry is not also missing.

    >>> from costmodel.facts.reliability import RecoveryLevel
    >>> build(RecoveryLevel, {"name": "pod", "probability": 0.6, "second": 262}, "reliability.levels.1")
    Traceback (most recent call last):
    costmodel.errors.SpecError: reliability.levels.1.second: no such entry. Did you mean 'seconds'?
    """
    try:
        record: Record = adapter_of(cast(Hashable, record_type)).validate_python(mapping)
    except ValidationError:
        raise together(list(islice(_problems(record_type, mapping, where), MOST_MISTAKES))) from None
    return record


def name_overflow(error: ValidationError) -> SpecError | None:
    """Return the error of a number that follows from the input and is beyond its limit; None for other mistakes."""
    first = error.errors(include_url=False)[0]
    kind = first["type"]
    if kind not in LIMITS and kind != "finite_number":
        return None
    limit = LIMITS[kind].format(**first["ctx"]) if kind in LIMITS else EXPECTED[kind]
    where = ".".join([error.title.lower(), *map(str, first["loc"])])
    return SpecError(where, f"follows from other entries and must be {limit}, got {shown(first['input'])}.")


@dataclass(frozen=True)
class Called:
    """
    Metadata of an annotation whose messages say more than the type of its values.

    Parameters
    ----------
    example_text
        Words for the values, such as ``the path of a CSV file``.
    """

    example_text: str


def require_type(given: object, allowed: type | tuple[type, ...], where: str, expected: str) -> None:
    """
    Raise if an argument of a function has none of the allowed types.

    >>> require_type(None, str, "job", "a path")
    Traceback (most recent call last):
    costmodel.errors.SpecError: job: expected a path, got null.
    """
    if not isinstance(given, allowed):
        raise SpecError(where, f"expected {expected}, got {shown(given)}.")


def shown(value: object) -> str:
    """
    Return a value as a message repeats it, in at most 60 characters.

    >>> shown("8k"), shown(True), shown(None)
    ("'8k'", 'true', 'null')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = MAX_SHOWN
    try:
        return _shorten(brief.repr(value))
    except ValueError:  # Python refuses to write out integers of more than 4300 digits.
        return "a number of thousands of digits"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


# --- down the types, to the values that do not fit -----------------------------------------------------------


def _problems(annotation: Any, value: object, where: str) -> Iterator[SpecError]:
    """Yield the problems of a value that does not fit its annotation."""
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if get_origin(bare) in (Union, UnionType):
        yield from _problems_of_union(get_args(bare), value, where)
        return
    meant: list[str] = []
    nothing = True
    for part, inner, entry in _entries(bare, value):
        if inner is None:
            meant.append(did_you_mean(part, _list_allowed_keys(bare)))
            yield SpecError(_join(where, part), "no such entry.", meant[-1])
        elif entry is MISSING:
            if any(f"'{part}'" in hint for hint in meant):
                continue
            yield SpecError(_join(where, part), "is required but missing.", _record_hint(inner))
        elif _fits(inner, entry):
            continue
        else:
            yield from _problems(inner, entry, _join(where, part))
        nothing = False
    if nothing:
        yield SpecError(where, *_problem(annotation, value))


def _entries(annotation: Any, value: object) -> Iterable[tuple[object, Any, object]]:
    """Return the parts of a record, mapping or list: name, annotation (None: unknown), value (MISSING: none)."""
    origin = get_origin(annotation)
    if isinstance(value, Mapping) and _is_record(annotation):
        return _record_entries(annotation, value)
    if isinstance(value, Mapping) and origin is dict:
        key_type, value_type = get_args(annotation)
        return ((key, value_type if _fits(key_type, key) else None, entry) for key, entry in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and origin in (tuple, list):
        item_type = get_args(annotation)[0]
        return ((index, item_type, entry) for index, entry in enumerate(value))
    return ()


def _record_entries(record_type: Any, value: Mapping[Any, object]) -> Iterable[tuple[object, Any, object]]:
    hints = _hints(record_type)
    names = _list_allowed_keys(record_type)
    yield from ((key, None, entry) for key, entry in value.items() if key not in names)
    required = {field.name for field in fields(record_type) if _is_required(field)}
    yield from ((name, hints[name], value.get(name, MISSING)) for name in names if name in value or name in required)


@cache
def _hints(record_type: Hashable) -> dict[str, Any]:
    return get_type_hints(record_type, include_extras=True)


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _is_required(field: Field[Any]) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def _list_allowed_keys(annotation: Any) -> tuple[str, ...]:
    """Return the allowed keys at this level: a record's fields, or the keys that a mapping's type lists."""
    if _is_record(annotation):
        return tuple(field.name for field in fields(annotation) if field.init)
    key_type = get_args(annotation)[0]
    return get_args(key_type) if get_origin(key_type) is Literal else ()


def _fits(annotation: Any, value: object) -> bool:
    return not _errors(annotation, value)


def _errors(annotation: Any, value: object) -> list[Any]:
    try:
        adapter_of(annotation).validate_python(value)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _join(where: str, part: object) -> str:
    name = _shorten(str(part) if str(part).isprintable() else repr(part))
    return f"{where}.{name}" if where else name


# --- a union: the member that the user most likely meant -----------------------------------------------------


def _problems_of_union(members: tuple[Any, ...], value: object, where: str) -> Iterator[SpecError]:
    members = tuple(member for member in members if member is not NoneType)
    alike = [member for member in members if _is_alike(member, value)] or list(members)
    if len(alike) == 1 or isinstance(value, Mapping):
        yield from _problems(min(alike, key=lambda member: _wrong_keys(member, value)), value, where)
        return
    errors = [(member, _errors(member, value)[0]) for member in alike]
    for member, error in errors:
        if _expectation(member, error) is None:
            yield SpecError(where, *_problem(member, value))
            return
    expected = dict.fromkeys(str(_expectation(member, error)) for member, error in errors)
    yield SpecError(where, f"expected {' or '.join(expected)}, got {shown(value)}.")


def _is_alike(annotation: Any, value: object) -> bool:
    """Return True if a value has the form of an annotation: a mapping, a list, or neither."""
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if isinstance(value, Mapping):
        return _is_record(bare) or get_origin(bare) is dict
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return get_origin(bare) in (tuple, list)
    return not _is_record(bare) and get_origin(bare) not in (dict, tuple, list)


def _wrong_keys(annotation: Any, value: object) -> tuple[int, int]:
    """Return the number of entries unknown to a record, and the number of missing entries."""
    entries = tuple(_entries(annotation, value))
    return sum(inner is None for _, inner, _ in entries), sum(entry is MISSING for _, _, entry in entries)


# --- one value: what was expected, what was seen -------------------------------------------------------------


def _problem(annotation: Any, value: object) -> tuple[str, str]:
    """Return the sentence and the hint for a value that is wrong in itself."""
    error = _errors(annotation, value)[0]
    kind, context = error["type"], error.get("ctx", {})
    hint = _literal_hint(annotation, value) if kind == "literal_error" else _record_hint(annotation)
    if expected := _expectation(annotation, error):
        return f"expected {expected}, got {shown(value)}.", hint
    if kind in LIMITS:
        if (units := _kinds(annotation)) and context.get("ge", 0) > 0:
            hint = f"A number without a unit is in {units[0].name}. Write one with it, such as {units[0].example}."
        return f"must be {LIMITS[kind].format(**context)}, got {shown(value)}.", hint
    if kind in LENGTHS:
        return f"length must be {LENGTHS[kind].format(**context)}, got {context['actual_length']}.", hint
    if isinstance(reason := context.get("error"), NumberError):
        return reason.problem, reason.hint
    return f"{error['msg'].removeprefix('Value error, ').rstrip('.')}.", hint


def _expectation(annotation: Any, error: Any) -> str | None:
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"])
    expected = EXPECTED.get(error["type"])
    kinds = _kinds(annotation)
    return kinds[0].example_text if kinds and expected in ("a number", "text") else expected


def _kinds(annotation: Any) -> list[Any]:
    """Return the kinds of numbers and names (:class:`costmodel.quantities.Kind`) among an annotation's metadata."""
    return [one for one in getattr(annotation, "__metadata__", ()) if hasattr(one, "example_text")]


def _record_hint(annotation: Any) -> str:
    """Return a hint with a record's entries, for another value in its place."""
    if not _is_record(annotation):
        return ""
    required = [field.name for field in fields(annotation) if _is_required(field)]
    return f"Its entries: {', '.join(required or _list_allowed_keys(annotation))}."


def _literal_hint(annotation: Any, value: object) -> str:
    """Return the choice that is meant, or the advice that the annotation has for all other values."""
    bare, *advice = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    hint = did_you_mean(value, [str(choice) for choice in get_args(bare)])
    meant = hint if hint.startswith("Did") else ""
    return " ".join(filter(None, (meant, *(one for one in advice if isinstance(one, str)))))
