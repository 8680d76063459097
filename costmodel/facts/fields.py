"""
Types of the entries of every record: counts, positive numbers, fractions, names of dtypes and architectures.

Bytes, bytes per second, seconds and watts may be texts with units (:mod:`costmodel.quantities`).
"""

from __future__ import annotations

from operator import ge, gt, le
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from costmodel.quantities import BYTES, RATE, SECONDS, WATTS
from costmodel.validation import shown

LIMITS: Any = {"ge": ("greater_than_equal", ge), "gt": ("greater_than", gt), "le": ("less_than_equal", le)}
"""Limits of a number: pydantic's type of the error, and the comparison that must hold."""


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


class Number:
    """
    Metadata of an annotation: a number within limits, which true and false are not.

    Pydantic's own metadata say the same, and take three times as long to become a schema.

    Parameters
    ----------
    limits
        Limits by pydantic's name: ``ge``, ``gt``, ``le``.
    """

    def __init__(self, **limits: float) -> None:
        self._limits = limits

    def check(self, value: float) -> float:
        """Return a number within the limits; raise pydantic's error for others."""
        for name, limit in self._limits.items():
            kind, holds = LIMITS[name]
            if not holds(value, limit):
                raise PydanticKnownError(kind, {name: limit})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema that refuses true and false, then reads the number, then checks the limits."""
        read = core_schema.no_info_before_validator_function(_no_bool, handler(source))
        return core_schema.no_info_after_validator_function(self.check, read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema of the number with its limits."""
        return {**self._limits, **handler(schema)}


Count: TypeAlias = Annotated[int, Number(ge=1, le=10**9)]
CountOrZero: TypeAlias = Annotated[int, Number(ge=0, le=10**9)]
Positive: TypeAlias = Annotated[float, Number(gt=0, le=1e24)]
NotNegative: TypeAlias = Annotated[float, Number(ge=0, le=1e24)]
Seconds: TypeAlias = Annotated[NotNegative, SECONDS]
Bytes: TypeAlias = Annotated[Positive, BYTES]
BytesOrZero: TypeAlias = Annotated[NotNegative, BYTES]
BytesPerSecond: TypeAlias = Annotated[Positive, RATE]
Bandwidth: TypeAlias = Annotated[float, Number(ge=10**6, le=1e24), RATE]
"""A bandwidth that people write: below 1 MB/s it is in another unit, with which a step would take days."""

Watts: TypeAlias = Annotated[Positive, WATTS]
Fraction: TypeAlias = Annotated[float, Number(ge=0, le=1)]
PowerUsageEffectiveness: TypeAlias = Annotated[float, Number(ge=1, le=10)]
PositiveFraction: TypeAlias = Annotated[float, Number(gt=0, le=1)]
Dtype: TypeAlias = Literal["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]
NARROW = frozenset({"fp8", "mxfp8", "nvfp4"})
"""Dtypes below 16 bits, in which recipes multiply only the linears."""

Architecture: TypeAlias = Annotated[str, Field(json_schema_extra={"format": "architecture"})]
"""A name of the catalog's ``architectures``, which reads records that name one."""


def _true_or_false(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {shown(value)}")
    return value


Flag: TypeAlias = Annotated[bool, BeforeValidator(_true_or_false)]
