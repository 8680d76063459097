"""Ways to calibrate beside each other, on two halves of the sources: one is chosen on, the other reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.learning_curve.curve import FEWEST_OTHERS, advised, linear_change
from benchmarks.learning_curve.stacks import Stack
from planner.measure.calibrate.advice import narrowed_by
from planner.measure.calibrate.discrepancy import PUBLISHED, Discrepancy
from planner.measure.calibrate.fit import NOISE, REACH, Array, priors_of

DRAWS = 20
RUNS = (4, 8, 16)

Change = Callable[[Stack, Sequence[int]], Array]


def one_factor(stack: Stack, own: Sequence[int]) -> Array:
    """All steps of a stack longer by one factor: the shrunk mean, robust as the fits are."""
    surprise = stack.surprise[own]
    weights = 1 / (1 + (surprise / REACH) ** 2) ** 2
    shrunk = (weights * surprise).sum() / (weights.sum() + 1)  # The scatter of a stack's rows is as wide.
    return np.full(len(stack.rows), shrunk)


def with_factor(stack: Stack, own: Sequence[int]) -> Array:
    """Constants, then one factor on all steps by what they leave."""
    change = linear_change(stack, own)
    return change + one_factor(replace(stack, surprise=stack.surprise - change), own)


def with_models(stack: Stack, own: Sequence[int]) -> Array:
    """Constants, then a factor on all steps of each model by what they leave."""
    return _with_discrepancy(stack, own, replace(PUBLISHED, layout=0.0, repeat=OF_LAYOUTS))


def with_layouts(stack: Stack, own: Sequence[int]) -> Array:
    """Constants, then the whole discrepancy, which near layouts share: it would rank layouts anew."""
    return _with_discrepancy(stack, own, PUBLISHED)


OF_LAYOUTS = float(np.hypot(PUBLISHED.layout, PUBLISHED.repeat))
"""Scatter of the runs of one model."""


def _with_discrepancy(stack: Stack, own: Sequence[int], known: Discrepancy) -> Array:
    change = linear_change(stack, own)
    left, common = (stack.surprise - change)[own], known.covariance(stack.rows)
    noise = known.repeat**2 * (1 + (left / REACH) ** 2) ** 2
    return change + common[:, own] @ np.linalg.solve(common[np.ix_(own, own)] + np.diag(noise), left)


VARIANTS: dict[str, Change] = {
    "one factor": one_factor,
    "constants (planner calibrate)": linear_change,
    "constants and one factor": with_factor,
    "constants, rows off by 3 %": partial(linear_change, noise=0.03),
    "constants, rows off by 5 %": partial(linear_change, noise=0.05),
    "constants, priors twice as wide": partial(linear_change, widths=2.0),
    "constants, both": partial(linear_change, noise=0.05, widths=2.0),
    "constants and models": with_models,
    "constants and layouts": with_layouts,
}


def variant_lines(stacks: Sequence[Stack]) -> Iterator[str]:
    """Median and mean over stacks of the error after over that before, by half of the sources."""
    sources = sorted({stack.source for stack in stacks})
    halves = [list(stacks), *([one for one in stacks if sources.index(one.source) % 2 == half] for half in (0, 1))]
    kinds = [(part, runs, chosen) for part in ("all", "half 1", "half 2") for runs in RUNS for chosen in _WAYS]
    yield f"{'median / mean of after over before':<36}" + "".join(f"{f'{a}: {b} {c}':>19}" for a, b, c in kinds)
    for name, change in VARIANTS.items():
        cells = [_cell(half, change, runs, chosen) for half in halves for runs in RUNS for chosen in _WAYS]
        yield f"{name:<36}" + "".join(f"{cell:>19}" for cell in cells)


_WAYS = ("first", "any")


def choice_lines(stacks: Sequence[Stack]) -> Iterator[str]:
    """The same for ways to choose own runs, calibrated as ``planner calibrate`` does."""
    yield f"{'median / mean of after over before':<36}" + "".join(f"{f'{runs} runs':>15}" for runs in RUNS)
    for chosen, said in (("first", "predict the others best"), ("narrow", "narrow constants most"), ("any", "any")):
        yield f"{said:<36}" + "".join(f"{_cell(stacks, linear_change, runs, chosen):>15}" for runs in RUNS)


def narrowing(stack: Stack, runs: int) -> list[int]:
    """
    Rows that lower the sum of the constants' variances most, one after the other.

    References
    ----------
    A-optimal design: Chaloner and Verdinelli, "Bayesian Experimental Design: A Review", 1995.
    """
    known, order = np.diag(priors_of(stack.constants).sigma ** 2), list[int]()
    left = list(range(len(stack.rows)))
    for _ in range(min(runs, len(left))):
        reach = stack.slopes[left] @ known
        gains = (reach**2).sum(axis=1) / (NOISE**2 + (reach * stack.slopes[left]).sum(axis=1))
        order.append(left.pop(int(gains.argmax())))
        known = narrowed_by(stack.slopes[order[-1]], known, NOISE)
    return order


def _cell(stacks: Sequence[Stack], change: Change, runs: int, chosen: str) -> str:
    ratios = [ratio for stack in stacks if (ratio := _ratio(stack, change, runs, chosen)) is not None]
    return f"{np.median(ratios):.2f} / {np.mean(ratios):.2f}" if ratios else "-"


def _ratio(stack: Stack, change: Change, runs: int, chosen: str) -> float | None:
    count = len(stack.rows)
    ways: dict[str, Callable[[], Iterable[list[int]]]] = {
        "first": lambda: [advised(stack)[:runs]],
        "narrow": lambda: [narrowing(stack, runs)],
        "any": lambda: (np.random.default_rng(seed).permutation(count)[:runs].tolist() for seed in range(DRAWS)),
    }
    errors = []
    for own in ways[chosen]():
        others = stack.others(own)
        if len(own) == runs and len(others) >= FEWEST_OTHERS:
            after = change(stack, own) - stack.surprise
            errors.append([np.abs(np.expm1(logs[others])).mean() for logs in (-stack.surprise, after)])
    if not errors:
        return None
    mean_before, mean_after = np.mean(errors, axis=0).tolist()
    return float(mean_after / mean_before)
