"""Parts of each event of a trace, as columns beside the events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.iterations import Iteration


class Phase(IntEnum):
    """Phases of a training step."""

    NONE = 0
    """None of the following phases: data loading, logging, or unknown."""
    FORWARD = 1
    """The forward pass, with the loss."""
    BACKWARD = 2
    """The backward pass, with the communication that it starts."""
    RECOMPUTE = 3
    """Forward operators that the backward pass runs again."""
    OPTIMIZER = 4
    """The update of the parameters: gradient norm, clipping, and setting gradients to zero included."""


class Role(IntEnum):
    """Parts of a model."""

    OTHER = 0
    """None of the following parts, or unknown."""
    EMBEDDING = 1
    """The embedding, before the first layer."""
    LAYER = 2
    """One of the layers."""
    HEAD = 3
    """The end of the model after its last layer: final norm, head, loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """
    Summary of the parts of a trace, and how they were found.

    Parameters
    ----------
    iterations
        Begin and end of each.
    num_layers, num_microbatches
        Layers of each pass through the model, and passes of each iteration. Each chunk of an interleaved pipeline
        schedule counts as a pass of its own.
    layer_kinds
        A number for each layer: layers with the same number run the same operators.
    phases_from, microbatches_from, layers_from
        ``annotations``, ``modules``, ``autograd`` (operators joined by their sequence numbers), ``kernels``,
        ``order`` or ``repetition``; "" where nothing was found.
    doubts
        Sentences on parts that were not found, or only guessed.
    """

    iterations: tuple[Iteration, ...]
    num_layers: int
    num_microbatches: int
    layer_kinds: tuple[int, ...]
    phases_from: str
    microbatches_from: str
    layers_from: str
    doubts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """
    Parts of each event; arrays of shape (events,), in the order of ``Trace.events``.

    Parameters
    ----------
    iteration
        Place in ``summary.iterations``; ``UNKNOWN`` outside.
    phase, role
        A :class:`Phase` and a :class:`Role`.
    microbatch
        Pass through the model within its iteration, from 0; ``UNKNOWN`` where an event belongs to none.
    layer
        From 0, in the order of the forward pass; ``UNKNOWN`` where an event belongs to none.
    summary
        Summary of all parts, and how they were found.
    """

    iteration: NDArray[np.int32]
    phase: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    layer: NDArray[np.int32]
    role: NDArray[np.int8]
    summary: Summary
