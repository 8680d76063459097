"""The tree of report records, from which every format of a report is made; their base class."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass
from functools import lru_cache, partial
from io import StringIO
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Self,
    TextIO,
    TypeAlias,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import WithJsonSchema

from costmodel.strategy import Decision

Plain: TypeAlias = dict[str, Any]

Figure: TypeAlias = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that stays as it was computed or written."""

MISSING = object()
"""The value of an attribute that a source lacks."""


def entry(description: str, source: str = "") -> Any:
    """
    Declare an entry of a record whose docstring does not describe it.

    Parameters
    ----------
    description
        Its meaning and unit.
    source
        The attribute that it is read from under another name; dots lead to attributes of attributes.
    """
    return field(metadata={"description": description, "source": source})


def read_from(source: str | Callable[[Any], Any]) -> Any:
    """Declare an entry that is read from an attribute under another name, or by a function of the first source."""
    return field(metadata={"source": source})


def itself(source: object) -> object:
    """Return a source: a record inside is read from it, too."""
    return source


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(entry, read_from))
class Record:
    """
    A part of a report: a frozen dataclass whose fields, in their order, are the entries of the JSON.

    Its docstring describes them, and the schema has these descriptions. An entry is read from the sources when a format
    first asks for it.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    _sources: ClassVar[tuple[Any, ...]] = ()
    _others: ClassVar[Plain] = {}

    _inside: ClassVar[tuple[str, ...]] = ()
    """Attributes of the first source, whose attributes are entries, too."""

    def __init_subclass__(cls) -> None:
        """Make each record a dataclass; methods that it would write and compile for each one are here, for all."""
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **entries: Any) -> None:
        assert entries.keys() == {*names_of(self)}, f"entries of {type(self).__name__}: {', '.join(entries)}"
        vars(self).update(entries)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse changes."""
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __eq__(self, other: object) -> bool:
        """Compare the entries of records of one type."""
        return type(self) is type(other) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]  # entries are lists and mappings

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the entries with their names."""
        return ((name, getattr(self, name)) for name in names_of(self))

    @classmethod
    def read(cls, *sources: object, **others: Any) -> Self:
        """
        Build the record from attributes of objects.

        Parameters
        ----------
        sources
            Objects; the first one that has an attribute of the entry's name counts. The record keeps them.
        others
            Entries that have another name there, or need more than one object; or functions that return them.

        Entries that hold records are read from the attributes of other objects, too.
        """
        assert others.keys() <= {*names_of(cls)}, f"entries of {cls.__name__}: {', '.join(others)}"
        record = object.__new__(cls)
        vars(record).update(_sources=sources, _others=others)
        return record

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # of an entry that nobody has asked for
            if name not in self.__dataclass_fields__:
                raise AttributeError(f"{type(self).__name__} has no {name}")
            value = vars(self)[name] = _convert(_hints(type(self))[name], self._read(name))
            return value

    def _read(self, name: str) -> Any:
        """Return an entry's value as the sources have it."""
        if name in self._others:
            value = self._others[name]
            return value() if callable(value) else value
        source = self.__dataclass_fields__[name].metadata.get("source")
        if callable(source):
            return source(self._sources[0])
        first, _, rest = (source or name).partition(".")
        known = (*self._sources, *(attrgetter(inner)(self._sources[0]) for inner in self._inside))
        found = (value for one in known if (value := getattr(one, first, MISSING)) is not MISSING)
        value = next(found, MISSING)
        assert value is not MISSING, f"{source or name} is no attribute"
        return attrgetter(rest)(value) if rest else value

    def entries(self, record_type: type[Record]) -> dict[str, Callable[[], Any]]:
        """Return the entries that another type has as well; none is read for it."""
        return {name: partial(getattr, self, name) for name in names_of(record_type)}

    def plain(self) -> Plain:
        """Return the record as JSON holds it."""
        whole: Plain = finite(self)
        return whole

    def json_text(self) -> str:
        """Return the record as strict JSON."""
        return json.dumps(self.plain(), indent=2, ensure_ascii=False, allow_nan=False)


def names_of(record: Any) -> list[str]:
    """Return the names of the entries of a record, or of a type of records."""
    return [one.name for one in fields(record)]


def finite(value: Any) -> Any:
    """Return a value as JSON can hold it: records by entry, decisions in words, None for NaN and infinity."""
    if isinstance(value, Decision):
        return value.text
    if is_dataclass(value):
        return {name: finite(getattr(value, name)) for name in names_of(value)}
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with a header; cells that a row lacks are empty."""
    stream = StringIO()
    write_csv(stream, columns, rows)
    return stream.getvalue()


def write_csv(stream: TextIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, with a header."""
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(finite(value)) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """Write a flag as job files spell it, and a mapping as JSON."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else value


@lru_cache(maxsize=256)
def _hints(record_type: type) -> dict[str, Any]:
    return get_type_hints(record_type)


def _convert(hint: Any, value: Any) -> Any:
    """Read the records that a type asks for from other objects; spell decisions as job files do."""
    if isinstance(value, Decision):
        return value.text
    if is_dataclass(get_origin(hint)):
        return value
    if isinstance(hint, type) and issubclass(hint, Record):
        return value if isinstance(value, hint) else hint.read(value)
    inner = get_args(hint)
    if value is None or not inner:
        return value
    if isinstance(value, list | tuple):
        return [_convert(inner[0], one) for one in value]
    if isinstance(value, Mapping):
        return {name: _convert(inner[-1], one) for name, one in value.items()}
    return _convert(inner[0], value)
