"""What every record of a report has in common."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AliasPath, BaseModel, ConfigDict, Field, WithJsonSchema

Plain: TypeAlias = dict[str, Any]

Figure: TypeAlias = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that stays as it was computed or written: pydantic would turn whole ones into floats."""


def entry(description: str, source: str | None = None) -> Any:
    """
    An entry of a record: its meaning and unit, and the attribute that it is read from where that has another name.

    Dots lead to attributes of attributes.
    """
    return Field(description=description, validation_alias=AliasPath(*source.split(".")) if source else None)


class Record(BaseModel):
    """
    A part of a report: its fields, in their order, are the entries of the JSON.

    Where a field of a record, or of a list of them, gets another object, its entries are that object's attributes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True, validate_by_name=True)

    @classmethod
    def read(cls, source: object, **others: Any) -> Self:
        """The record of an object: its attributes, and other entries that follow from more than it."""
        for name, field in cls.model_fields.items():
            if name not in others:
                alias = field.validation_alias
                path = ".".join(map(str, alias.path)) if isinstance(alias, AliasPath) else name
                others[name] = attrgetter(path)(source)
        return cls(**others)

    def plain(self) -> Plain:
        """The record as JSON holds it."""
        whole: Plain = finite(self.model_dump())
        return whole


def finite(value: Any) -> Any:
    """A value with None in place of NaN and infinity, which JSON cannot write."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
