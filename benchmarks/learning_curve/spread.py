"""How far stacks differ beyond constants: the likeliest :class:`planner.measure.calibrate.discrepancy.Discrepancy`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from benchmarks.learning_curve.stacks import Stack
from planner.measure.calibrate.cases import Array
from planner.measure.calibrate.discrepancy import Discrepancy, distances
from planner.measure.calibrate.fit import priors_of

MOST_ROWS = 50
"""Rows of a stack that are looked at, drawn once: large stacks say little more."""

WEIGHT = 20
"""Rows that a stack counts as, at most."""

FARTHEST = 0.3
"""Logarithm beyond which a row counts as that far off: something else ran, or a formula is missing."""

EXPECTED = (0.05, 0.05, 3.0, 0.03)
"""Deviations of models and layouts, reach, repeat: what is expected before, and where the search begins."""

WIDE = 1.0
"""Standard deviation of the logarithms of what is expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    surprise: Array
    explained: Array
    is_same: Array
    apart: Array


def spread_lines(stacks: Sequence[Stack]) -> Iterator[str]:
    """The deviations by all stacks, and without each source."""
    seen = [(stack.source, _seen(stack)) for stack in stacks]
    yield f"{'without':<60} {'model':>7} {'layout':>7} {'reach':>7} {'repeat':>7}"
    for source in ("", *dict.fromkeys(name for name, _ in seen)):
        found = likeliest([one for name, one in seen if name != source])
        numbers = (found.model, found.layout, found.reach, found.repeat)
        yield f"{source[:58] or '(nothing)':<60} " + " ".join(f"{number:>7.3f}" for number in numbers)


def _seen(stack: Stack) -> _Seen:
    chosen = np.sort(np.random.default_rng(0).permutation(len(stack.rows))[:MOST_ROWS])
    rows = [stack.rows[index] for index in chosen]
    reach = stack.slopes[chosen] * priors_of(stack.constants).sigma
    names = np.array([one.facts.model.name for one in rows])
    return _Seen(
        surprise=np.clip(stack.surprise[chosen], -FARTHEST, FARTHEST),
        explained=reach @ reach.T,
        is_same=np.asarray(names[:, None] == names, dtype=np.float64),
        apart=distances(rows),
    )


def likeliest(seen: Sequence[_Seen]) -> Discrepancy:
    r"""
    Maximise the likelihood of the surprises of stacks, normal with the covariance of a calibration's design.

    .. math:: \sum_s w_s \left(\tfrac12 r^T K^{-1} r + \tfrac12 \log |K|\right)
    """
    begin = np.log(EXPECTED)

    def cost(logs: Array) -> float:
        model, layout, reach, repeat = np.exp(logs)
        total = float((((logs - begin) / WIDE) ** 2).sum() / 2)
        for one in seen:
            common = one.is_same * (model**2 + layout**2 * np.exp(-one.apart / reach))
            lower = np.linalg.cholesky(one.explained + common + repeat**2 * np.eye(len(common)))
            white = np.linalg.solve(lower, one.surprise)
            share = min(1.0, WEIGHT / len(white))
            total += share * float(white @ white / 2 + np.log(np.diag(lower)).sum())
        return total

    model, layout, reach, repeat = np.exp(minimize(cost, begin, method="L-BFGS-B").x).tolist()
    return Discrepancy(model=model, layout=layout, reach=reach, repeat=repeat)
