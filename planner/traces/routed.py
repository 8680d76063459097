"""Sizes that a router decides: how many tokens an expert gets, anew in each step."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.operators.sampled_shapes import MATMULS

EXPERT = "expert_"
"""How the names of operators of routed experts begin in the cost model."""

ROUTED = ("m", "rows", "batch")
"""Sizes of an expert's operators that the router decides: rows, and how many experts have any."""

Kept = tuple[str, tuple[tuple[str, int], ...]]
"""What no router decides: the operator, matmuls of all kinds as one, and the other sizes."""


def without_rows(operator: str, sizes: Mapping[str, int]) -> Kept:
    """
    What of an operator no router decides.

    The planner deals tokens to experts evenly, a router never does. Experts may run one after the other, each by a
    matmul, or as one grouped matmul.

    Parameters
    ----------
    operator, sizes
        As the table of samples names them.

    >>> without_rows("matmul", {"m": 37, "n": 8, "k": 4}) == without_rows(
    ...     "grouped_matmul", {"batch": 2, "m": 64, "n": 8, "k": 4}
    ... )
    True
    """
    kept = tuple(sorted((name, value) for name, value in sizes.items() if name not in ROUTED))
    return "matmul" if operator in MATMULS else operator, kept
