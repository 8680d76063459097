"""Kinds of models, by which errors of runs are compared."""

from __future__ import annotations

from costmodel.facts.model import Attention, Experts, LatentAttention, Model

CHANGED = ", changed"
"""Suffix of the name of an entry that a job changes."""


ANY = "any"
"""All stacks, devices or kinds together."""


def stack_of(framework: str) -> str:
    """
    Return the software of a framework's entry, without its release.

    >>> stack_of("megatron-lm-0.17")
    'megatron-lm'
    """
    return framework.rpartition("-")[0] or framework


def architecture_of(model: Model) -> str:
    """Return ``dense``, ``moe`` or ``hybrid`` (with some layers without softmax attention)."""
    kinds = model.kinds
    if not all(isinstance(kind.attention, Attention | LatentAttention) for kind in kinds):
        return "hybrid"
    return "moe" if any(isinstance(kind.feed_forward, Experts) for kind in kinds) else "dense"
