"""What every record of a report has in common."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, WithJsonSchema

Plain: TypeAlias = dict[str, Any]

Figure: TypeAlias = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that stays as it was computed or written: pydantic would turn whole ones into floats."""


class Record(BaseModel):
    """A part of a report: its fields, in their order, are the entries of the JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)

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
