"""When each stage of DeepSpeed's pipeline ends its last backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def last_backward_ends(
    forward: Sequence[float], backward: Sequence[float], *, hop_seconds: float, num_microbatches: int
) -> NDArray[np.float64]:
    r"""
    Seconds from the start of a step until each stage has ended its last backward pass; shape (stages,).

    DeepSpeed's stages do forward and backward passes by turns, neighbours opposite ones. Before its forward pass a
    stage meets the one before it: it sends the gradient of its last backward pass and receives the next activation.
    Both wait for each other and for the transfers, one after the other. With :math:`E_k(s)` for the end of turn k of
    stage s, whose forward pass it is, of duration :math:`F_s`, and n transfers of h seconds:

    .. math:: M_k = \max(E_{k-1}(s - 1), E_{k-1}(s)) + n h, \quad
              E_k(s) = M_k + F_s, \quad E_k(s - 1) = M_k + B_{s-1}

    A micro-batch so takes a stage in the middle F + B + 4 h.

    Parameters
    ----------
    forward, backward
        Seconds of a forward and of a backward pass of each stage, recomputation in the latter.
    hop_seconds
        h: seconds of one transfer.
    num_microbatches
        Micro-batches of a step.

    References
    ----------
    DeepSpeed, ``runtime/pipe/schedule.py``, ``TrainSchedule.steps``.

    Examples
    --------
    >>> last_backward_ends([1.0, 1.0], [2.0, 2.0], hop_seconds=0.0, num_microbatches=3).tolist()
    [12.0, 10.0]
    """
    stages = len(forward)
    clock = np.zeros(stages)

    def is_busy(turn: int, stage: int) -> bool:
        return turn >= 0 and 0 <= _microbatch(turn, stage, stages) < num_microbatches

    for turn in range(2 * (num_microbatches + stages - 1)):
        for stage in range(1, stages):
            if _is_forward(turn, stage) and (
                transfers := is_busy(turn, stage) + is_busy(turn - 1, stage)  # an activation, and a gradient
            ):
                clock[stage - 1 : stage + 1] = max(clock[stage - 1], clock[stage]) + transfers * hop_seconds
        for stage in range(stages):
            if is_busy(turn, stage):
                clock[stage] += forward[stage] if _is_forward(turn, stage) else backward[stage]
    return clock


def _is_forward(turn: int, stage: int) -> bool:
    return (turn + stage) % 2 == 0


def _microbatch(turn: int, stage: int, stages: int) -> int:
    """Number of the micro-batch of a turn: its passes move down the pipeline one stage a turn, then back."""
    started = stage if _is_forward(turn, stage) else 2 * stages - 1 - stage
    return (turn - started) // 2
