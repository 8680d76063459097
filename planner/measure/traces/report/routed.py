"""Sizes that the MoE router decides: the tokens of an expert, which change in each step."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.timing.sampled_shapes import MATMULS

EXPERT = "expert_"
"""Prefix of the names of routed experts' operators in the cost model."""

ROUTED = ("m", "rows", "batch")
"""Sizes of an expert's operators that the router decides: rows, and the number of experts with tokens."""

Kept = tuple[str, tuple[tuple[str, int], ...]]
"""Operator and sizes that the router does not decide; all kinds of matmuls are one."""


def drop_routed_sizes(operator: str, sizes: Mapping[str, int]) -> Kept:
    """
    Return the operator and the sizes that the router does not decide.

    The planner distributes tokens to experts evenly, a router never does. Experts may run one after the other, each by
    a matmul, or as one grouped matmul.

    Parameters
    ----------
    operator, sizes
        Names in the table of samples.

    >>> drop_routed_sizes("matmul", {"m": 37, "n": 8, "k": 4}) == drop_routed_sizes(
    ...     "grouped_matmul", {"batch": 2, "m": 64, "n": 8, "k": 4}
    ... )
    True
    """
    kept = tuple(sorted((name, value) for name, value in sizes.items() if name not in ROUTED))
    return "matmul" if operator in MATMULS else operator, kept
