"""
Process groups: their number of ranks, and the distance of neighbours in the order of devices.

Ranks are numbered as Megatron-LM does by default: tp fastest, then cp, dp, pp; inside experts etp, ep, expert data
parallel, pp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.timing.work import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """
    One process group.

    Parameters
    ----------
    ranks
        Devices in the group.
    stride
        Distance between neighbours in the order of devices.
    """

    ranks: Numbers
    stride: Numbers


def layer_group(name: str, *, tp: Numbers, cp: Numbers, ep: Numbers, etp: Numbers) -> Group:
    """Return the group of a layer's collective: ``tp``, ``cp``, ``ep`` or ``etp``."""
    ranks, stride = {"tp": (tp, 1), "cp": (cp, tp), "ep": (ep, etp), "etp": (etp, 1)}[name]
    return Group(ranks=ranks, stride=stride)


def dense_data_group(*, tp: Numbers, cp: Numbers, dp: Numbers) -> Group:
    """Return the ranks that hold equal dense parameters: they reduce gradients and shard states among themselves."""
    return Group(ranks=dp * cp, stride=tp)


def expert_data_group(*, tp: Numbers, cp: Numbers, dp: Numbers, ep: Numbers, etp: Numbers) -> Group:
    r"""
    Return the ranks that hold the same experts.

    .. math:: d_e = t c d / (e \cdot t_e)
    """
    return Group(ranks=tp * cp * dp / (ep * etp), stride=ep * etp)


def sharding_group(group: Group, *, sharding_ranks: int | None) -> Group:
    """Return the ranks of a data-parallel group that share states: all, or the nearest ``sharding_ranks``."""
    if sharding_ranks is None:
        return group
    return Group(ranks=np.minimum(group.ranks, sharding_ranks), stride=group.stride)


def pipeline_group(*, tp: Numbers, cp: Numbers, dp: Numbers, pp: Numbers) -> Group:
    """Return the ranks that hold the stages of one pipeline."""
    return Group(ranks=pp, stride=tp * cp * dp)
