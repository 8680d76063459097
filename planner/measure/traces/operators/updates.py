"""Optimizer updates without recorded sizes: PyTorch records the sizes of at most 30 tensors of a list."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace
from planner.measure.traces.operators.matching import Match
from planner.measure.traces.structure import parts

GRADIENT = "torch::autograd::AccumulateGrad"
"""Operator that adds a gradient of the backward pass to that of one parameter, whose sizes are those of its input."""

SHARDED = ("reduce_scatter", "all_gather", "broadcast")
"""Collectives of ranks whose optimizer may update only a shard of the parameters."""

STAGES = ("send", "recv")
"""Messages between pipeline stages; a rank may have several stages, each with its own parameters."""


def size_updates(
    trace: Trace, number: Integers, unsized: Sequence[Match], known: Sequence[Match], parameters: int | None
) -> Iterator[Match]:
    """
    Yield updates of lists without sizes, one per iteration; none where the number of elements is unknown.

    Parameters
    ----------
    trace, number
        A trace, and the iteration of each of its events.
    unsized, known
        Updates of lists without sizes, and operators with sizes, whose elements are not updated twice.
    parameters
        Elements that the rank updates in a step; None counts those with a gradient.
    """
    several: dict[int, list[Match]] = defaultdict(list)
    for one in unsized:
        several[int(number[one.rows[0]])].append(one)
    sized: Counter[int] = Counter()
    for one in known:
        if one.pattern.operator == "adam":
            sized[int(number[one.rows[0]])] += one.sizes["n"]
    elements = gradient_elements(trace, number) if parameters is None else dict.fromkeys(several, parameters)
    for iteration, updates in several.items():
        rest = elements.get(iteration, 0) - sized[iteration]
        if rest > 0:
            rows = tuple(row for one in updates for row in one.rows)
            yield replace(updates[0], sizes={"n": rest}, rows=rows)


def gradient_elements(trace: Trace, number: Integers) -> Mapping[int, int]:
    """
    Count the elements of parameters with a gradient, by iteration; iterations with an uncertain count are left out.

    Each micro-batch adds to the gradient of each parameter once. With sharded optimizer states the updated elements
    differ from those with a gradient. Passes of several stages on a rank can be told from micro-batches only by
    annotations.

    Parameters
    ----------
    trace, number
        A trace, and the iteration of each of its events.
    """
    operations = {message.operation for message in trace.messages}
    summary = parts(trace).summary
    passes = max(summary.num_microbatches, 1)
    if operations.intersection(SHARDED):
        return {}
    if operations.intersection(STAGES) and summary.microbatches_from != "annotations" and passes > 1:
        return {}
    counts: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for row in np.flatnonzero(trace.named(f"^{GRADIENT}$") & (trace.events.category == Category.OPERATOR)).tolist():
        place = int(trace.events.operands[row])
        if place != UNKNOWN and trace.operands[place].sizes:
            counts[int(number[row])][trace.operands[place].sizes[0]] += 1
    return {
        iteration: sum(prod(sizes) * count for sizes, count in own.items()) // passes
        for iteration, own in counts.items()
        if not any(count % passes for count in own.values())
    }
