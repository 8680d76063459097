"""What was recorded of the operators that the cost model knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodel.traces.events import Integers


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedPass:
    """
    One pass of one operator, as one iteration ran it once.

    Parameters
    ----------
    operator, of_pass, dtype
        As the table of samples names them; ``backward`` is the pass of operators that are no matmuls.
    sizes
        Sizes by the names of the table's columns, those of the forward pass.
    row
        The event that it is: of the forward pass the operator, else the node of autograd or the operator in it.
    iteration
        Place in the trace's iterations.
    nanoseconds
        On the device the sum of its kernels, else of its own on its thread.
    beside
        Nanoseconds of these in which the device also communicated.
    """

    operator: str
    of_pass: str
    dtype: str
    sizes: Mapping[str, int] = field(hash=False)
    row: int
    iteration: int
    nanoseconds: int = 0
    beside: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Other:
    """
    What was recorded and is no operator that the cost model knows.

    Parameters
    ----------
    name
        Of the operator, else of the kernel.
    reason
        Why it is none.
    count, nanoseconds
        How often it was recorded, and how long it took together.
    """

    name: str
    reason: str
    count: int
    nanoseconds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedOperators:
    """
    Computation of a trace's iterations, all of it: that of operators, and the rest.

    Parameters
    ----------
    operators
        Each time that one of them ran.
    others
        What is none of them, the longest first.
    owner
        Place in ``operators`` of each event that is part of one: shape (events,); ``UNKNOWN`` for others.
    nanoseconds
        Of everything that computed: kernels, fills and copies inside of the device, those of communication left out; on
        threads where nothing ran on a device, operators.
    doubts
        Sentences on what was assumed.
    """

    operators: tuple[TracedPass, ...]
    others: tuple[Other, ...]
    owner: Integers = field(repr=False)
    nanoseconds: int
    doubts: tuple[str, ...] = ()
