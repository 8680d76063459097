"""What kind of model runs are of, by which their errors compare."""

from __future__ import annotations

from costmodel.facts.model import Attention, Experts, LatentAttention, Model

CHANGED = ", changed"
"""What the name of an entry ends with that a job starts from and changes."""


ANY = "any"
"""All stacks, devices or kinds together."""


def stack_of(framework: str) -> str:
    """
    The software of a framework's entry, without its release.

    >>> stack_of("megatron-lm-0.17")
    'megatron-lm'
    """
    return framework.rpartition("-")[0] or framework


def architecture_of(model: Model) -> str:
    """``dense``, ``moe`` or ``hybrid`` (layers without softmax attention among the others)."""
    kinds = model.kinds
    if not all(isinstance(kind.attention, Attention | LatentAttention) for kind in kinds):
        return "hybrid"
    return "moe" if any(isinstance(kind.feed_forward, Experts) for kind in kinds) else "dense"
