"""What each event of a trace is part of, as columns beside the events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from costmodel.traces.iterations import Iteration


class Phase(IntEnum):
    """What a training step does when."""

    NONE = 0
    """Nothing of the following: data loading, logging, or unknown."""
    FORWARD = 1
    """The forward pass, with the loss."""
    BACKWARD = 2
    """The backward pass, with the communication that it starts."""
    RECOMPUTE = 3
    """Forward operators that the backward pass runs again."""
    OPTIMIZER = 4
    """The update of the parameters: gradient norm, clipping, and setting gradients to zero included."""


class Role(IntEnum):
    """Which part of the model an event is."""

    OTHER = 0
    """None of the following, or unknown."""
    EMBEDDING = 1
    """What comes before the first layer."""
    LAYER = 2
    """One of the layers."""
    HEAD = 3
    """What comes after the last layer: final norm, head, loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """
    What a trace is made of, and how that was found.

    Parameters
    ----------
    iterations
        Where each begins and ends.
    num_layers, num_microbatches
        Layers of each pass through the model, and passes of each iteration. Each chunk of an interleaved pipeline
        schedule counts as a pass of its own.
    layer_kinds
        A number for each layer: layers with the same number run the same operators.
    phases_from, microbatches_from, layers_from
        ``annotations``, ``modules``, ``autograd`` (operators joined by their sequence numbers), ``kernels``,
        ``order`` or ``repetition``; "" where nothing was found.
    doubts
        Sentences on what could not be found, or only guessed.
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
    What each event is part of; arrays of shape (events,), in the order of ``Trace.events``.

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
        What was found, and how.
    """

    iteration: NDArray[np.int32]
    phase: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    layer: NDArray[np.int32]
    role: NDArray[np.int8]
    summary: Summary
