"""Memory that PyTorch's allocator holds beyond tensors, by the setting of ``PYTORCH_CUDA_ALLOC_CONF``."""

from __future__ import annotations

from functools import cache

from costmodel.catalog.files import read
from costmodel.facts.fields import NotNegative
from costmodel.record import strict_record
from costmodel.validation import build

ALLOCATORS = ("segments", "expandable")
"""Segments of fixed sizes; ``expandable_segments:True``."""


@strict_record(frozen=True, kw_only=True, slots=True)
class Share:
    """
    Peak reserved bytes over peak tensor bytes, minus 1.

    Parameters
    ----------
    low, middle, high
        10th, 50th and 90th percentile of the simulated jobs.
    """

    low: NotNegative
    middle: NotNegative
    high: NotNegative


@strict_record(frozen=True, kw_only=True, slots=True)
class Shares:
    """
    Shares by the tensors that are allocated and freed during a step.

    Parameters
    ----------
    whole
        Without sharded weights.
    gathered, gathered_recomputed
        With sharded weights, gathered layer by layer; with full recomputation besides.
    """

    whole: Share
    gathered: Share
    gathered_recomputed: Share


@strict_record(frozen=True, kw_only=True, slots=True)
class Allocator:
    """
    One setting of the allocator.

    Parameters
    ----------
    at_the_limit
        Least share with which a step runs: before the allocator fails, it gives back free segments.
    reserved
        Share that it reserves if the device has room.
    without_retries
        Least share at which it gives nothing back in the fifth step; with less, every step waits for that.
    source
        Source of the shares.
    """

    at_the_limit: NotNegative
    reserved: Shares
    without_retries: Shares
    source: str = ""


@cache
def allocator(name: str) -> Allocator:
    """Return the entry of a setting, one of ``ALLOCATORS``."""
    return build(Allocator, read("allocators.yaml")[name], f"catalog.allocators.{name}")
