"""
A step as the sum of its operators, each with its pass, its number of calls and its sample.

This does by hand what the planner's cost model does with a device file. If the two differ, one of them is wrong;
where this sum differs from a measured step, it lacks what no operator has.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.small_transformers.configurations import Configuration, job_of
from benchmarks.small_transformers.measure import Step
from costmodel.timing.sampled_source import Rates, SampledTimes, Shapes
from planner.jobs.problem import load
from planner.measure.fit.operators import FEWEST, fit_rates, learn_operator
from planner.measure.sample.bench import least_flops, moved_bytes
from planner.measure.sample.samples import Point, Sample, Sizes
from planner.measure.sample.shapes import job_shapes
from planner.verbs.plan import estimate

ANY_DEVICE = "h100-80gb-sxm"

"""A device of the catalog to load jobs on: sizes of operators are the same on all."""

NUM_BYTES = {"fp32": 4, "bf16": 2}

TWICE = ("norms", "residuals")

"""Operators that a layer has in front of or behind both of its blocks."""

ENDS = ("embedding", "final_norm", "head", "loss")

"""Operators outside of layers."""

WEIGHT_GRADIENTS = "gradients of weights"

"""Place where autograd keeps them, and adds those of a further micro-batch."""

NOT_REPEATED = {"down": 0.0, "combine": 0.0, "residuals": 0.5}

"""Share of operators that recomputation repeats where it is not all: it ends with what the backward pass reads last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """
    One operator of a step in one pass.

    Parameters
    ----------
    operator
        Its name in the cost model; also ``optimizer``, ``WEIGHT_GRADIENTS``, and ``dp``, the sum over ranks.
    pass_
        ``forward``, ``backward`` or ``recompute``.
    times
        Calls of a rank in a step.
    point
        Quantity that a sample of it measures.
    """

    operator: str
    pass_: str
    times: float
    point: Point


def parts_of(one: Configuration, dtype: str = "fp32") -> Iterator[Part]:
    """All parts of a step; both matmuls of a backward pass apart."""
    layers = float(one.num_layers * one.num_microbatches)
    for (name, sampled_pass), points in job_shapes(load(job_of(one, ANY_DEVICE))).groups.items():
        if name == "sort":
            continue  # with all experts on a rank, copies are in their order already
        (point,) = points
        times = float(one.num_microbatches) if name in ENDS else layers * (2 if name in TWICE else 1)
        of_step = _passes(name, sampled_pass)
        for pass_ in of_step:
            yield Part(operator=name, pass_=pass_, times=times, point=replace(point, dtype=dtype))
        if one.recompute == "full" and "forward" in of_step and name not in ENDS:
            repeated = times * NOT_REPEATED.get(name, 1.0)
            yield Part(operator=name, pass_="recompute", times=repeated, point=replace(point, dtype=dtype))
    yield from _once_per_step(one, dtype)


def _passes(name: str, sampled: str) -> tuple[str, ...]:
    """
    Passes of a step in which a sample of a pass counts.

    Results of experts go back to their tokens as the gradients of copies do. The gradient of what a block adds to is a
    sum, too.
    """
    if name == "combine":
        return ("backward",) if sampled == "forward" else ("forward",)
    if name == "residuals":
        return ("forward", "backward")
    return ("forward",) if sampled == "forward" else ("backward",)


def _once_per_step(one: Configuration, dtype: str) -> Iterator[Part]:
    """
    Yield operators that have the size of all weights.

    Gradients of further micro-batches are added to those of earlier ones. Ranks sum a flat copy of all gradients. Then
    comes the update.
    """
    number, nbytes = one.num_parameters, NUM_BYTES[dtype] * one.num_parameters
    rows = number // one.hidden_size
    sums = {"residual": Sizes(rows=rows, width=one.hidden_size)}
    over_ranks = {"copy": Sizes(nbytes=nbytes), "all_reduce": Sizes(nbytes=nbytes, ranks=one.dp, nodes=1)}
    each = [("optimizer", "forward", 1.0, {"adam": Sizes(n=number)})]
    if one.num_microbatches > 1:
        each.append((WEIGHT_GRADIENTS, "backward", one.num_microbatches - 1.0, sums))
    if one.dp > 1:
        each.append(("dp", "forward", 1.0, over_ranks))
    for operator, pass_, times, points in each:
        for name, sizes in points.items():
            point = Point(operator=name, pass_="forward", dtype=dtype, sizes=sizes)
            yield Part(operator=operator, pass_=pass_, times=times, point=point)


def points_of(chosen: Iterable[Configuration], dtype: str = "fp32") -> tuple[Point, ...]:
    """All points of some configurations, those of all in turn: each beginning has some of every one."""
    columns = [dict.fromkeys(part.point for part in parts_of(one, dtype)) for one in chosen]
    longest = max(len(points) for points in columns)
    turns = (list(points)[index % len(points)] for index in range(longest) for points in columns)
    return tuple(dict.fromkeys(turns))


# --- seconds of points -------------------------------------------------------------------------------------
Seconds = Callable[[Point], float]

"""Seconds of a point; NaN: nobody knows."""


def exactly(samples: Iterable[Sample]) -> Seconds:
    """Only what was measured."""
    known = {sample.point: sample.timing.seconds for sample in samples}
    return lambda point: known.get(point, np.nan)


def by_learning(samples: Iterable[Sample]) -> Seconds:
    """Return seconds learned from samples of each operator and pass; from the rates alone if samples are few."""
    groups: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(_kind(sample.point), []).append(sample)
    law_of = cache(lambda kind: _learned(groups[kind]) if kind in groups else None)

    def seconds(point: Point) -> float:
        law = law_of(_kind(point))
        return float(law.seconds(_shapes([point]))[0]) if law else np.nan

    return seconds


def _kind(point: Point) -> tuple[str, str, str]:
    return point.operator, point.pass_, point.dtype


def _learned(group: list[Sample]) -> SampledTimes | Rates:
    shapes = _shapes([sample.point for sample in group])
    seconds = np.array([sample.timing.seconds for sample in group])
    if len(group) < FEWEST:
        return fit_rates(shapes, seconds)
    return learn_operator(shapes, seconds, [str(sample.point.sizes) for sample in group])


def _shapes(points: list[Point]) -> Shapes:
    """Work, and the logarithms of all sizes."""
    flops = np.array([least_flops(point) for point in points], dtype=float)
    nbytes = np.array([moved_bytes(point) for point in points], dtype=float)
    sizes = np.array([list(point.sizes.applicable.values()) for point in points], dtype=float)
    features = np.column_stack([np.log2(np.maximum(sizes, 1)), np.log2(nbytes)])
    return Shapes(flops=flops, nbytes=nbytes, features=features)


# --- seconds of steps --------------------------------------------------------------------------------------
def composed(one: Configuration, seconds: Seconds, dtype: str) -> float:
    """Seconds of a step as the sum of its operators."""
    return sum(part.times * seconds(part.point) for part in parts_of(one, dtype))


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """
    One configuration.

    Parameters
    ----------
    configuration
        The model and its step.
    measured
        Measured step.
    predicted_seconds
        Predicted step; NaN: it cannot be predicted.
    """

    configuration: Configuration
    measured: Step
    predicted_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_seconds / self.measured.seconds - 1


def compared(
    chosen: Iterable[Configuration], steps: Mapping[str, Step], predicted: Mapping[str, float]
) -> tuple[Compared, ...]:
    """The configurations that were measured, in their order."""
    return tuple(
        Compared(configuration=one, measured=steps[one.name], predicted_seconds=predicted[one.name])
        for one in chosen
        if one.name in steps
    )


def mean_error(rows: Sequence[Compared]) -> float:
    """Mean of the absolute relative errors; NaN as soon as one of them is, or if there are none."""
    return statistics.fmean(abs(row.error) for row in rows) if rows else math.nan


def lines(rows: Sequence[Compared]) -> Iterator[str]:
    """A table in text, a row for each configuration, and the means."""
    heads = f"{'measured, s':>12}{'spread':>8}{'steps':>7}{'on CPU':>8}{'predicted, s':>14}{'error':>8}"
    yield f"{'configuration':28}{heads}"
    for row in rows:
        step = row.measured
        yield (
            f"{row.configuration.name:28}{step.seconds:>12.3f}{step.spread:>8.1%}{step.repeats:>7}"
            f"{step.processor_seconds / step.seconds:>8.0%}{row.predicted_seconds:>14.3f}{row.error:>+8.1%}"
        )
    known = [row for row in rows if not math.isnan(row.error)]
    unknown = len(rows) - len(known)
    if known:
        signed = statistics.fmean(row.error for row in known)
        spread = statistics.fmean(row.measured.spread for row in known)
        yield (
            f"{len(known)} configurations: mean error {mean_error(known):.1%}, largest "
            f"{max(abs(row.error) for row in known):.1%}, mean with sign {signed:+.1%}; "
            f"steps spread by {spread:.1%} in the mean."
        )
    if unknown:
        yield f"{unknown} configurations have operators that nobody knows."


# --- predictions -------------------------------------------------------------------------------------------
def planned(one: Configuration, device: str, *, precision: str | Mapping[str, Any]) -> float:
    """
    Seconds of a step as ``planner estimate`` has them.

    Parameters
    ----------
    one
        The configuration.
    device
        Path of a device file, or a name of the catalog.
    precision
        Precision of the computation, as in a job.

    Raises
    ------
    SpecError
        If the job cannot be read.
    """
    problem = load(job_of(one, device, precision=precision), name=one.name, folder=Path.cwd())
    return estimate(problem, {}).plan.step_seconds
