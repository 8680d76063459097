"""What PyTorch's allocator holds beyond tensors, by the setting of ``PYTORCH_CUDA_ALLOC_CONF``."""

from __future__ import annotations

from functools import cache

from pydantic.dataclasses import dataclass

from costmodel.catalog.files import read
from costmodel.facts.fields import STRICT, NotNegative
from costmodel.validation import build

ALLOCATORS = ("segments", "expandable")
"""Segments of fixed sizes; ``expandable_segments:True``."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Share:
    """
    Reserved bytes over those of tensors at their peaks, minus 1.

    Parameters
    ----------
    low, middle, high
        Below which lie a tenth, half and nine tenths of the simulated jobs.
    """

    low: NotNegative
    middle: NotNegative
    high: NotNegative


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Shares:
    """
    Shares by what comes and goes during a step.

    Parameters
    ----------
    whole
        Where weights are not sharded.
    gathered, gathered_recomputed
        Where sharded weights are gathered layer by layer; with full recomputation besides.
    """

    whole: Share
    gathered: Share
    gathered_recomputed: Share


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Allocator:
    """
    One setting of the allocator.

    Parameters
    ----------
    at_the_limit
        Least share that a step runs in: before the allocator fails it gives back segments that are free.
    reserved
        Shares that it reserves where the device has room.
    without_retries
        Shares with which it has to give nothing back in the fifth step; with less, every step waits for that.
    source
        Where the shares come from.
    """

    at_the_limit: NotNegative
    reserved: Shares
    without_retries: Shares
    source: str = ""


@cache
def allocator(name: str) -> Allocator:
    """The entry of a setting, one of ``ALLOCATORS``."""
    return build(Allocator, read("allocators.yaml")[name], f"catalog.allocators.{name}")
