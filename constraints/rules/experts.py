"""Rules of experts and of the ranks that share them."""

from __future__ import annotations

from math import gcd

from constraints.rule import Holds, Ints
from costmodel.facts.model import Experts, Model


def experts_split_over_ep(model: Model, *, ep: Ints) -> Holds:
    """Each expert-parallel rank owns equally many whole experts."""
    counts = (kind.feed_forward.num_experts for kind in model.kinds if isinstance(kind.feed_forward, Experts))
    return gcd(*counts) % ep == 0


def expert_degrees_need_experts(model: Model, *, ep: Ints, etp: Ints) -> Holds:
    """Only a model with experts has expert-parallel degrees (ep, etp) above 1."""
    return model.has_experts | ((ep == 1) & (etp == 1))


def expert_groups_tile_a_stage(*, tp: Ints, cp: Ints, dp: Ints, ep: Ints, etp: Ints) -> Holds:
    """The ranks of a pipeline stage (tp times cp times dp) hold whole expert-parallel groups (ep times etp)."""
    return (tp * cp * dp) % (ep * etp) == 0


def experts_split_like_attention_or_not_at_all(*, tp: Ints, etp: Ints) -> Holds:
    """Experts are split over all tensor-parallel ranks or over none (etp is tp or 1)."""
    return (etp == 1) | (etp == tp)
