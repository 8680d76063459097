"""Times of a job's messages at other sizes, in proportion to their bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Message
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.shapes.sizes import Sizes

HIDDEN = "hidden size"
"""Name of the hidden size among the widths of :class:`Sizes`."""


def message_factors(graph: ExecutionGraph, before: Sizes, after: Sizes, *, weights: float) -> NDArray[np.float64]:
    """
    Return the time after over the time before of every task; 1 for all but communication.

    Sends and receives carry a rank's share of activations. Collectives whose elements are a multiple of that share
    carry activations; all others carry weights or their gradients. Large messages take time in proportion to their
    bytes.

    Parameters
    ----------
    graph
        Any graph.
    before, after
        Sizes of the recorded job, and of the other one.
    weights
        Weights of a layer after over before.

    Returns
    -------
    array
        Shape (tasks,).
    """
    activations = after.tokens * after.widths[HIDDEN] / (before.tokens * before.widths[HIDDEN])
    shares = [one.tp if one.sequence_parallel else 1 for one in (before, after)]
    of_rank = before.tokens * before.widths[HIDDEN] / shares[0]

    def factor(message: Message) -> float:
        if message.operation in ("send", "recv"):
            return activations * shares[0] / shares[1]
        whole = message.elements_in and max(message.elements_in, message.elements_out) % of_rank == 0
        return activations if whole else weights

    by_message = np.array([*(factor(message) for message in graph.messages), 1.0])
    talks = (graph.tasks.kind == Kind.COMMUNICATION) & (graph.tasks.message != UNKNOWN)
    found: NDArray[np.float64] = np.where(talks, by_message[graph.tasks.message], 1.0)
    return found
