"""
Types of the entries of every record: counts, positive numbers, fractions, names of dtypes and architectures.

Bytes, bytes per second, seconds and watts may be texts with units (:mod:`costmodel.quantities`).
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field

from costmodel.quantities import BYTES, RATE, SECONDS, WATTS, Quantity
from costmodel.validation import shown

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


Count: TypeAlias = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=10**9)]
NotNegativeCount: TypeAlias = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=10**9)]
CountOrZero: TypeAlias = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=10**9)]
Positive: TypeAlias = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=1e24)]
NotNegative: TypeAlias = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1e24)]
Seconds: TypeAlias = Annotated[NotNegative, Quantity(SECONDS)]
Bytes: TypeAlias = Annotated[Positive, Quantity(BYTES)]
BytesOrZero: TypeAlias = Annotated[NotNegative, Quantity(BYTES)]
BytesPerSecond: TypeAlias = Annotated[Positive, Quantity(RATE)]
Watts: TypeAlias = Annotated[Positive, Quantity(WATTS)]
Fraction: TypeAlias = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1)]
PowerUsageEffectiveness: TypeAlias = Annotated[float, BeforeValidator(_no_bool), Field(ge=1, le=10)]
PositiveFraction: TypeAlias = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=1)]
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
