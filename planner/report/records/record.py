"""The base class of the records of a report."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AliasPath, BaseModel, ConfigDict, Field, WithJsonSchema

Plain: TypeAlias = dict[str, Any]

Figure: TypeAlias = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that stays as it was computed or written; pydantic would turn whole ones into floats."""


def entry(description: str, source: str | None = None) -> Any:
    """
    Declare an entry of a record: its meaning and unit, and the attribute that it is read from under another name.

    Dots lead to attributes of attributes.
    """
    return Field(description=description, validation_alias=AliasPath(*source.split(".")) if source else None)


class Record(BaseModel):
    """
    A part of a report: its fields, in their order, are the entries of the JSON.

    A field that holds a record, or a list of them, takes other objects too and reads its entries from their attributes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True, validate_by_name=True)

    @classmethod
    def read(cls, source: object, **others: Any) -> Self:
        """Build the record from an object's attributes; the caller passes entries that need more than the object."""
        for name, field in cls.model_fields.items():
            if name not in others:
                alias = field.validation_alias
                path = ".".join(map(str, alias.path)) if isinstance(alias, AliasPath) else name
                others[name] = attrgetter(path)(source)
        return cls(**others)

    def plain(self) -> Plain:
        """Return the record as JSON holds it."""
        whole: Plain = finite(self.model_dump())
        return whole


def finite(value: Any) -> Any:
    """Replace NaN and infinity in a value by None, as JSON cannot write them."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
