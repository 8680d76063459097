"""Meaning of tensor sizes in a job, and their values in another job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from costmodel.errors import SpecError
from planner.measure.traces.shapes.sizes import Sizes

Expected: TypeAlias = Literal["activation", "weight", "matmul", "batched matmul", "attention"]
"""Object that is explained: the tensor of an operator, or all sizes of a matmul or attention."""

COSTS: Mapping[Expected, Mapping[tuple[int, int], float]] = {
    "activation": {(1, 1): 0, (1, 2): 1, (0, 1): 2, (0, 0): 3, (1, 0): 4},
    "weight": {(0, 0): 0, (1, 1): 1},
    "matmul": {(1, 1): 0, (0, 0): 1},
    "batched matmul": {(1, 2): 0, (1, 1): 1, (0, 2): 2, (0, 0): 3},
    "attention": {(1, 2): 0, (0, 2): 1, (1, 1): 2},
}
"""
Cost of a reading by the number of times that its sizes contain the micro-batch and the sequence as factors.

An activation has each of them once, or the sequence twice where it is scores; a weight has neither. One of the three
sizes of a linear's matmul is tokens in each of its passes: rows of the input (m), or the sum for the weight's gradient
(k).
"""

UNLIKELY = 9.0
"""Cost of all other counts."""

MOST = 4096
"""Readings of a tensor's sizes that are considered."""


class Quantity(NamedTuple):
    """
    A size of a job.

    Parameters
    ----------
    after
        Its value in the other job.
    microbatches, sequences
        Number of times that the micro-batch and the sequence are factors of it.
    """

    after: float
    microbatches: int
    sequences: int


class Explained(NamedTuple):
    """
    Explanation of a tensor's sizes.

    Parameters
    ----------
    after
        Their values in the other job.
    is_sure
        True where all equally likely readings give one number of elements.
    unknown
        Sizes that the job does not have; they are kept.
    """

    after: tuple[float, ...]
    is_sure: bool
    unknown: tuple[int, ...]


class Explanations:
    """
    Sizes of two jobs, which explain sizes of tensors.

    Parameters
    ----------
    before, after
        The recorded job, and the other one.

    Raises
    ------
    SpecError
        If the jobs' models have different parts.
    """

    def __init__(self, before: Sizes, after: Sizes) -> None:
        self._known = _quantities(before, after)
        self._found: dict[tuple[Expected, tuple[int, ...]], Explained] = {}
        self.tokens = after.tokens / before.tokens
        self.parameters = after.num_parameters / before.num_parameters

    def explained(self, sizes: tuple[int, ...], expected: Expected) -> Explained:
        """
        Return the values in the other job of sizes that belong together.

        Parameters
        ----------
        sizes
            Sizes of one tensor; or of one matmul or attention, each once.
        expected
            Object that has these sizes.
        """
        key = expected, sizes
        if key not in self._found:
            self._found[key] = self._explain(sizes, expected)
        return self._found[key]

    def _explain(self, sizes: tuple[int, ...], expected: Expected) -> Explained:
        readings = [self._known.get(size, ()) + ((Quantity(1, 0, 0),) if size == 1 else ()) for size in sizes]
        unknown = tuple(size for size, found in zip(sizes, readings, strict=True) if not found)
        readings = [found or (Quantity(size, 0, 0),) for size, found in zip(sizes, readings, strict=True)]
        if prod(map(len, readings)) > MOST:
            readings = [found[:2] for found in readings]
        every = list(product(*readings))[:MOST]
        costs = [_cost(one, expected) for one in every]
        likely = [one for one, cost in zip(every, costs, strict=True) if cost == min(costs)]
        elements = {round(prod(quantity.after for quantity in one), 6) for one in likely}
        return Explained(tuple(quantity.after for quantity in likely[0]), len(elements) == 1, unknown)


def _cost(reading: Iterable[Quantity], expected: Expected) -> float:
    quantities = tuple(reading)
    factors = sum(one.microbatches for one in quantities), sum(one.sequences for one in quantities)
    return COSTS[expected].get(factors, UNLIKELY)


def _quantities(before: Sizes, after: Sizes) -> dict[int, tuple[Quantity, ...]]:
    """
    Return the quantities of a job by their value, the most common first; 1 is the micro-batch, or is kept.

    Sizes before they are split count only where no rank has a part of that size.
    """
    for names in (before.widths.keys() ^ after.widths.keys(), before.whole.keys() ^ after.whole.keys()):
        if names:
            raise SpecError("model", f"has other parts than the recorded model: only one has {min(names)!r}.")
    found: dict[int, dict[Quantity, None]] = {}
    for (value, microbatches, sequences), (other, _, _) in zip(
        _sizes_of_rank(before), _sizes_of_rank(after), strict=True
    ):
        if value == int(value) and (value > 1 or microbatches):
            found.setdefault(int(value), {})[Quantity(other, microbatches, sequences)] = None
    for name, width in before.whole.items():
        if width > 1 and width not in before.widths.values():
            found.setdefault(width, {})[Quantity(after.whole[name], 0, 0)] = None
    return {value: tuple(quantities) for value, quantities in found.items()}


def _sizes_of_rank(sizes: Sizes) -> Iterator[tuple[float, int, int]]:
    """Yield the sizes of a rank, with the powers of micro-batch and sequence in each; equally many for every job."""
    microbatch, length, own = sizes.microbatch_size, sizes.sequence_length, sizes.sequence_length / sizes.cp
    split = sizes.tp if sizes.sequence_parallel else 1
    for tokens in (own, own / split, length):
        yield microbatch * tokens, 1, 1
    yield sizes.tokens * sizes.top_k, 1, 1
    for tokens in (own, own / split, length):
        yield tokens, 0, 1
    yield microbatch, 1, 0
    for width in sizes.widths.values():
        yield width, 0, 0
    for name, width in sizes.widths.items():
        if "heads" in name:
            yield microbatch * width, 1, 0
