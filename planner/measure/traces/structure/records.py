"""Parts of each event of a trace, as columns next to the events'."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Integers, Trace, look_up
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


@dataclass(kw_only=True, slots=True)
class Parts:
    """
    Parts of each event, and how they were found; arrays of shape (events,), in the order of ``Trace.events``.

    Parameters
    ----------
    iterations
        Begin and end of each.
    iteration
        Place in ``iterations``; ``UNKNOWN`` outside.
    phase, role
        A :class:`Phase` and a :class:`Role`.
    microbatch
        Pass through the model within its iteration, from 0; ``UNKNOWN`` where an event belongs to none.
    layer
        From 0, in the order of the forward pass; ``UNKNOWN`` where an event belongs to none.
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
    iteration: NDArray[np.int32]
    phase: NDArray[Any]
    microbatch: NDArray[Any]
    layer: NDArray[Any]
    role: NDArray[np.int8]
    num_layers: int = 0
    num_microbatches: int = 0
    layer_kinds: tuple[int, ...] = ()
    phases_from: str = ""
    microbatches_from: str = ""
    layers_from: str = ""
    doubts: tuple[str, ...] = ()


SEVERAL_PHASES = re.compile(r"(?i)forward[-_ ]?backward|fwd[-_ ]?bwd|1f1b|train_?batch|train_?step$")

"""Annotations around more than one phase: Megatron-LM, torchtitan, Lightning, DeepSeek."""

PHASES: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (
        Phase.OPTIMIZER,
        re.compile(
            r"(?i)optimi[sz]er|optim[-_. ]?step|step_microstep|zero_?grad|clip_?grad|grad_?norm"
            r"|finalize_model_grads|lr_?scheduler"
        ),
    ),
    (Phase.RECOMPUTE, re.compile(r"(?i)recompute|re-?forward")),
    (
        Phase.BACKWARD,
        re.compile(r"(?i)backward|(?<![a-z])bwd(?![a-z])|(?<![a-z])[wd]grad(?![a-z])|\([BW]\)$|PP:\d+[BIW]\d+"),
    ),
    (
        Phase.FORWARD,
        re.compile(r"(?i)forward|(?<![a-z])fwd(?![a-z])|training_step|(?<![a-z])loss(?![a-z])|\(F\)$|PP:\d+F\d+"),
    ),
)

"""Annotations of one phase, the first that fits: PyTorch, Megatron-LM, NeMo, Lightning, DeepSpeed, DeepSeek."""

KERNEL_PHASES: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (Phase.OPTIMIZER, re.compile(r"(?i)multi_tensor_apply")),
    (Phase.BACKWARD, re.compile(r"(?i)backward|bwd|[wd]grad|_grad_|grad_input|bprop|dbias")),
    (Phase.FORWARD, re.compile(r"(?i)forward|fwd|fprop|softmax_warp_forward|indexSelect|vectorized_gather")),
)

"""Kernels whose names tell their phase, of PyTorch, flash attention, cuDNN, Transformer Engine."""

MICROBATCH = re.compile(r"(?i)micro[-_ ]?batch[-_ #:=]*(\d+)|^(?:forward|backward)(?:_step)? (\d+)$|PP:\d+[A-Z](\d+)")

"""Annotations with the number of a micro-batch; the last two are PyTorch's pipeline schedules."""

LAYER = re.compile(r"(?i)(?:^|[^a-z])(?:(?:[a-z]+_?)?(?:layers?|blocks?)|h)[-._ #:=\[/]*(\d+)(?:\D|$)")

"""Annotations with the number of a layer: ``layer 3``, ``layers.3``, ``transformer.h.3``, ``TransformerBlock_7``."""

MODULE = re.compile(r"^nn\.Module: (\w*?)_(\d+)$")

"""The forward pass of a module, as PyTorch's profiler names it: class, and number of the module among its class."""

EMBEDDING = re.compile(r"(?i)embedding|indexSelect|vectorized_gather")

"""Lookup of token embeddings."""

HEAD = re.compile(r"(?i)cross_?entropy|nll_?loss|log_?softmax|_loss|lm_?head|aten::(mm|addmm|linear|matmul)$|gemm")

"""Operators that only the end of a model runs, after its last layer."""

NORM = re.compile(r"(?i)norm")

"""Operators that a layer preferably begins with."""

WORK = re.compile(r"(?i)mm$|mm_|matmul|linear|conv|attention|attn|gemm|cutlass|fmha|cublas|nvjet|Cijk|xmma")

"""Operators of which a layer has at least one: a matmul, a convolution, attention."""

GRAPH_LAUNCHES = r"^(cuda|hip|cu)GraphLaunch(_ptsz)?$"
"""Calls that launch a graph of kernels and copies on a stream."""

ATTENTION = re.compile(r"(?i)scaled_dot_product|attention|flash_?attn|flash_fwd|fmha")

"""Attention, which a transformer layer runs once."""


def phases_of_names(
    trace: Trace, patterns: tuple[tuple[Phase, re.Pattern[str]], ...], *, but: re.Pattern[str] | None = None
) -> NDArray[np.int8]:
    """Return the phase of each of ``trace.names`` by the first pattern that fits; ``NONE`` where ``but`` fits."""
    found = np.zeros(len(trace.names), dtype=np.int8)
    for place, name in enumerate(trace.names):
        if but is None or not but.search(name):
            found[place] = next((phase for phase, pattern in patterns if pattern.search(name)), Phase.NONE)
    return found


def number_in(name: str, pattern: re.Pattern[str]) -> int | None:
    """
    Return the number that a pattern finds in a name; None where it finds none.

    >>> number_in("model.layers.3", LAYER), number_in("PP:1B5", MICROBATCH), number_in("forward", MICROBATCH)
    (3, 5, None)
    """
    match = pattern.search(name)
    return next(int(number) for number in match.groups() if number is not None) if match else None


def numbers_of_names(trace: Trace, pattern: re.Pattern[str], *, unknown: int) -> NDArray[np.int64]:
    """Return the number that a pattern finds in each of ``trace.names``."""
    found = (number_in(name, pattern) for name in trace.names)
    return np.array([unknown if number is None else number for number in found], dtype=np.int64)


ON_THREADS = (Category.OPERATOR, Category.CALL, Category.ANNOTATION, Category.MODULE)

"""Categories that nest on a thread."""


def inherit_values(parent: Integers, values: NDArray[np.int64], *, unknown: int) -> NDArray[np.int64]:
    """
    Fill in missing values of events from the innermost event around them that has one.

    Each round doubles the number of events around an event that were asked.

    >>> inherit_values(np.array([-1, 0, 1, -1]), np.array([7, -1, -1, -1]), unknown=-1).tolist()
    [7, 7, 7, -1]
    """
    result, around = values.copy(), parent.copy()
    while len(rows := np.flatnonzero((result == unknown) & (around != UNKNOWN))):
        result[rows], around[rows] = result[around[rows]], around[around[rows]]
    return result


def find_parents(trace: Trace) -> Integers:
    """
    Return the row of the innermost event around each event; ``UNKNOWN`` for outermost events and those of streams.

    An event lies within those of its thread that run when it starts.
    """
    events = trace.events
    parent = np.full(len(events), UNKNOWN, dtype=np.int64)
    rows = trace.find_rows(*ON_THREADS)
    rows = rows[np.argsort(events.track[rows], kind="stable")]
    around: list[int] = []
    ends: list[int] = []
    parents: list[int] = []
    before = UNKNOWN
    for row, track, start, end in zip(
        rows.tolist(), events.track[rows].tolist(), events.start[rows].tolist(), events.end[rows].tolist(), strict=True
    ):
        if track != before:
            around, ends, before = [], [], track
        while ends and ends[-1] <= start:
            ends.pop()
            around.pop()
        parents.append(around[-1] if around else UNKNOWN)
        around.append(row)
        ends.append(end)
    parent[rows] = parents
    return parent


def find_launchers(trace: Trace) -> Integers:
    """
    Return the row that put each event on its stream; ``UNKNOWN`` for others.

    It is the call with the same correlation number, else the operator with the same external id.
    """
    events = trace.events
    found = np.full(len(events), UNKNOWN, dtype=np.int64)
    device = trace.find_rows(*ON_STREAMS, Category.SYNCHRONIZATION)
    for numbers, category in ((events.external, Category.OPERATOR), (events.correlation, Category.CALL)):
        host = np.flatnonzero((events.category == category) & (numbers > 0))
        launcher = look_up(numbers[device], numbers[host], host)
        found[device] = np.where(launcher == UNKNOWN, found[device], launcher)
    return found
