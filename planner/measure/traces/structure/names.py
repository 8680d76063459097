"""Names of the parts of a step in several frameworks: patterns, as data."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import Trace
from planner.measure.traces.structure.records import Phase

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
