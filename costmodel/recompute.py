"""Modules of a layer that the backward pass may compute again: what each drops, and what it repeats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.operators.work import Numbers, Operator
from costmodel.strategy import MODULES, Recompute

FIRST_MODULE = int(Recompute.of(MODULES[0]))
"""The decision's value for the first module; each further one doubles it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """
    One module.

    Parameters
    ----------
    drops
        Saved tensors that are not kept: ``saved_as`` of operators.
    repeats
        Names of the operators that run again.
    """

    drops: frozenset[str]
    repeats: frozenset[str]


CONTENTS: dict[str, Module] = {
    "core_attention": Module(drops=frozenset({"core_attention"}), repeats=frozenset({"core_attention", "softmax"})),
    "qkv": Module(drops=frozenset({"qkv"}), repeats=frozenset({"qkv", "q_up", "kv_up", "qk_norm", "rotary"})),
    "norms": Module(drops=frozenset({"norm_output"}), repeats=frozenset({"norms"})),
    "mlp": Module(drops=frozenset({"mlp", "activation"}), repeats=frozenset({"up", "activation", "down"})),
    "shared_experts": Module(
        drops=frozenset({"shared_mlp", "shared_activation"}),
        repeats=frozenset({"shared_up", "shared_activation", "shared_down", "shared_gate"}),
    ),
    "expert_activation": Module(drops=frozenset({"expert_hidden"}), repeats=frozenset({"expert_activation"})),
    "experts": Module(
        drops=frozenset({"router", "experts", "expert_activation"}),
        repeats=frozenset({"router", "top_k", "dispatch", "expert_up", "expert_down", "combine"}),
    ),
}
"""
What Megatron-LM's ``recompute_modules`` drop (``megatron/core/transformer/transformer_config.py``, 0.14): core_attn,
mla_up_proj (``qkv``), layernorm, mlp, shared_experts, moe_act, moe (``experts``). MoFa's selective recomputation is
``core_attention+qkv``, its equations (29) and (30).
"""


def per_module(operators: Iterable[Operator], values: Iterable[Numbers], *, dropped: bool) -> list[Numbers]:
    """
    Sums over the operators of each module, in the order of ``MODULES``.

    Parameters
    ----------
    operators, values
        What a layer computes; a number of each operator.
    dropped
        Whether the sum is over what a module drops, or over what it repeats.
    """
    pairs = list(zip(operators, values, strict=True))
    return [
        sum((value for operator, value in pairs if _belongs(operator, CONTENTS[name], dropped)), start=0.0)
        for name in MODULES
    ]


def recomputes(name: str, *, recompute: Numbers | NDArray[np.int64]) -> NDArray[np.bool_]:
    """
    Whether a decision recomputes a module by itself; full recomputation names none.

    >>> bool(recomputes("qkv", recompute=Recompute.SELECTIVE)), bool(recomputes("mlp", recompute=Recompute.SELECTIVE))
    (True, False)
    """
    values = np.asarray(recompute, dtype=np.int64)
    chosen = np.where(values == int(Recompute.SELECTIVE), int(MOFA_SELECTIVE), values)
    return np.asarray(chosen & (FIRST_MODULE << MODULES.index(name)) != 0)


def over_modules(values: NDArray[np.float64], *, recompute: Numbers | NDArray[np.int64]) -> NDArray[np.float64]:
    """
    The sum over recomputed modules of a number per module, which are on its last axis.

    Parameters
    ----------
    values
        Of each module in the order of ``MODULES``.
    recompute
        Decision; broadcasts against the axes before the last.
    """
    total = np.zeros(np.broadcast_shapes(values.shape[:-1], np.shape(recompute)))
    for index, name in enumerate(MODULES):
        flags = recomputes(name, recompute=recompute)
        if flags.any():
            total = total + np.where(flags, values[..., index], 0.0)
    return total


MOFA_SELECTIVE = Recompute.of("core_attention", "qkv")


def _belongs(operator: Operator, module: Module, dropped: bool) -> bool:
    return operator.saved_as in module.drops if dropped else operator.name in module.repeats
