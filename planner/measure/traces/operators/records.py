"""Records of the cost model's operators in a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.measure.traces.events import Integers


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedPass:
    """
    One pass of one operator, run once in one iteration.

    Parameters
    ----------
    operator, of_pass, dtype
        Names in the table of samples; ``backward`` is the pass of operators that are not matmuls.
    sizes
        Sizes by the names of the table's columns, those of the forward pass.
    row
        Its event: the operator in the forward pass, else the node of autograd or the operator in it.
    iteration
        Place in the trace's iterations.
    nanoseconds
        Sum of its kernels on a device, else its own time on its thread.
    beside
        Nanoseconds of these during which the device also communicated.
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
    A recorded operator or kernel that the cost model does not know.

    Parameters
    ----------
    name
        Name of the operator, else of the kernel.
    reason
        Reason that it is not known.
    count, nanoseconds
        Number of times that it was recorded, and their total time.
    """

    name: str
    reason: str
    count: int
    nanoseconds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedOperators:
    """
    All computation of a trace's iterations: known operators, and the rest.

    Parameters
    ----------
    operators
        Each pass of a known operator.
    others
        All other computation, the longest first.
    owner
        Place in ``operators`` of each event that is part of one: shape (events,); ``UNKNOWN`` for others.
    nanoseconds
        Total time of computation: kernels, fills and copies inside of the device, without communication; operators on
        threads where there is no device.
    doubts
        Sentences on assumptions.
    """

    operators: tuple[TracedPass, ...]
    others: tuple[Other, ...]
    owner: Integers = field(repr=False)
    nanoseconds: int
    doubts: tuple[str, ...] = ()
