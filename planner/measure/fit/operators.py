"""Entries on operators in a device's file, from samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.events import log_progress
from costmodel.facts.samples import SampledOperator
from costmodel.timing.gaussian_process import fit_sparse_process, spread_out
from costmodel.timing.sampled import SampledTimes
from costmodel.timing.sampled_shapes import ELEMENT_BYTES, MATMULS, Shapes, shapes_of_samples
from costmodel.timing.sampled_source import UNKNOWN_PROCESSORS
from planner.measure.fit.learning import FEWEST, learn_operator
from planner.measure.sample.samples import COLLECTIVES, OPERATORS, TRACED, Sample

NUM_SUPPORT = 160
"""Support points of an operator in a file: with 100 the error is a twentieth larger."""

DIGITS = 7
"""Digits of the numbers in a file."""

MOST_ERROR = 0.5
"""Median error on held-out families above which samples are not used: they are no better than a guess."""

FAMILY = {
    **dict.fromkeys(MATMULS, ("n", "k")),
    "attention": ("heads", "kv_heads", "qk_head_dim", "v_head_dim"),
    "rotary": ("heads", "qk_head_dim"),
    "top_k": ("experts",),
    "adam": ("n",),
    "host_adam": ("n",),
}
"""Sizes that define a family of shapes, which is held out whole; for other operators it is the width."""

NO_OPERATOR = ("launch", "graph_launch", "copy", "host_to_device", "device_to_host")
"""Samples of constants of a device, not operators of a model."""


NO_PASS = ("adam", "host_adam")
"""Optimizer updates: operators outside of a micro-batch's passes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unlearned:
    """
    An operator that could not be learned.

    Parameters
    ----------
    name
        Operator, pass and dtype.
    reason
        Reason.
    """

    name: str
    reason: str


def learn_operators(
    samples: Iterable[Sample], *, num_processors: int | None, host_seconds: float = 0.0
) -> tuple[tuple[SampledOperator, ...], tuple[Unlearned, ...]]:
    """
    Learn each operator, pass and dtype for a device's file, and list those that could not be learned.

    A trace has few shapes of each operator, but those of a job: one recorded sample is enough.

    Parameters
    ----------
    samples
        Samples of one machine.
    num_processors
        Number of its processors; None where it is unknown.
    host_seconds
        Time of the thread outside of each pass of an operator, which samples do not contain.

    Raises
    ------
    SpecError
        If scikit-learn is not installed.
    """
    groups: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for one in samples:
        point = one.point
        is_masked = point.sizes.window is not None  # a window is measured as a mask, which skips no work
        if not (point.beside or is_masked) and point.operator not in (*NO_OPERATOR, *COLLECTIVES):
            groups[point.operator, point.pass_, point.dtype].append(one)
    found: list[SampledOperator] = []
    unlearned: list[Unlearned] = []
    for number, (key, group) in enumerate(groups.items()):
        log_progress(__name__, "operators are learned", number, len(groups), operator=" ".join(key))
        beside = 0.0 if key[0] in NO_PASS else host_seconds
        made = _learn(key, group, num_processors or UNKNOWN_PROCESSORS, beside)
        (found if isinstance(made, SampledOperator) else unlearned).append(made)  # type: ignore[arg-type]
    return tuple(found), tuple(unlearned)


def _learn(
    key: tuple[str, str, str], group: Sequence[Sample], num_processors: int, host_seconds: float
) -> SampledOperator | Unlearned:
    operator, of_pass, dtype = key
    name = " ".join(key)
    fewest = 1 if group[0].machine.software.startswith(TRACED) else FEWEST
    if len(group) < fewest:
        return Unlearned(name=name, reason=f"{len(group)} samples; at least {FEWEST} are needed")
    needs = OPERATORS[operator].needs
    sizes = {column: np.array([float(one.point.sizes.given[column]) for one in group]) for column in needs}
    shapes = shapes_of_samples(
        operator, of_pass, sizes, element_bytes=ELEMENT_BYTES[dtype], num_processors=num_processors
    )
    seconds = np.array([one.timing.seconds for one in group]) + host_seconds
    times = learn_operator(shapes, seconds, families(operator, sizes), fewest=fewest)
    if times.left_out_error > MOST_ERROR:
        reason = f"samples contradict each other: median error {times.left_out_error:.0%} on held-out families"
        return Unlearned(name=name, reason=reason)
    return _store(key, times, shapes, seconds, sizes)


def families(operator: str, sizes: Mapping[str, np.ndarray]) -> list[Hashable]:
    """Return the family of shapes of each sample."""
    columns = [sizes[name] for name in FAMILY.get(operator, ("width",))]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _store(
    key: tuple[str, str, str],
    times: SampledTimes,
    shapes: Shapes,
    seconds: np.ndarray,
    sizes: Mapping[str, np.ndarray],
) -> SampledOperator:
    """Store learned times as few samples: a process through them has the mean of one projected on them from all."""
    process, rates = times.processes[-1], times.rates
    roofline = rates.seconds(shapes)
    chosen = spread_out(shapes.features / process.lengths, NUM_SUPPORT)
    few = fit_sparse_process(
        shapes.features,
        np.log(seconds / roofline),
        lengths=process.lengths,
        variance=process.variance,
        noise=process.noise,
        num_points=len(chosen),
    )
    smooth = roofline[chosen] * np.exp(few.to_samples()[1])
    table = np.column_stack([*(column[chosen] for column in sizes.values()), smooth])
    operator, of_pass, dtype = key
    return SampledOperator(
        operator=operator,
        of_pass=of_pass,  # type: ignore[arg-type]
        dtype=dtype,
        num_samples=len(seconds),
        error=round_digits(times.left_out_error),
        flops_per_second=round_digits(rates.flops_per_second) if np.isfinite(rates.flops_per_second) else None,
        bytes_per_second=round_digits(rates.bytes_per_second),
        smallest_seconds=round_digits(rates.smallest_seconds),
        offset=round_digits(few.offset),
        variance=round_digits(few.variance),
        noise=round_digits(few.noise),
        lengths=tuple(round_digits(one) for one in few.lengths),
        widening=round_digits(times.widening),
        lowest=tuple(round_digits(one) for one in times.lowest),
        highest=tuple(round_digits(one) for one in times.highest),
        columns=tuple(sizes),
        rows="\n".join(" ".join(f"{number:.{DIGITS}g}" for number in row) for row in table.tolist()),
    )


def round_digits(number: float) -> float:
    """Round a number to the digits of a file."""
    return float(f"{number:.{DIGITS}g}")
