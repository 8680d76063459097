"""
``python -m benchmarks.accuracy.launches``: what alternating passes cost where they were measured.

If expert-parallel communication overlaps and no CUDA graphs launch the kernels, the host launches passes of two
micro-batches by turns. For every such measured run the fraction by which layers must be longer than without the overlap
so that the predicted step is the measured one, if launches alone make them longer. The largest of each generation of
devices is the catalog's ``overlap_launches_most_fraction``: nothing says that launches may lengthen a layer by more.
Exits with 1 if the catalog says otherwise, or if by its bound one of these runs launches faster than by turns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.accuracy.metrics import read_table
from benchmarks.output import conclude
from costmodel import catalog
from costmodel.step.estimate import estimate
from costmodel.step.layer import layer_parts
from costmodel.strategy import CudaGraphs, Strategy
from costmodel.tables import Facts
from planner.jobs.run_jobs import RejectedRow
from planner.measure.calibrate.constants import constants
from planner.measure.runs.predictions import Prediction, predictions

WIDEST = 1.0
"""Fraction that no run comes near."""

SLOWEST = 10.0
"""Largest factor that a calibration may have: launches so slow are longer than any bound of these runs."""

STEPS = 16
"""Halvings of that."""

TOLERANCE = 0.005
"""Difference to the catalog's fraction; refitted constants move it a little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternating:
    """
    A measured run whose passes alternate, launched one kernel after the other.

    Parameters
    ----------
    id, architecture, model, device
        Facts of the run.
    measured_seconds, predicted_seconds, apart_seconds
        Its step, measured and predicted, and predicted without the overlap.
    fraction
        By which layers must be longer than without the overlap for the measured step; 0 if they need not be.
    predicted_fraction
        By which they are predicted longer.
    beyond
        :attr:`costmodel.step.layer.LayerParts.launches_beyond`, the largest of its layers.
    """

    id: str
    architecture: str
    model: str
    device: str
    measured_seconds: float
    predicted_seconds: float
    apart_seconds: float
    fraction: float
    predicted_fraction: float
    beyond: float


def alternating_runs(rows: Iterable[Prediction | RejectedRow]) -> Iterator[Alternating]:
    """Every measured run with expert-parallel overlap and without CUDA graphs."""
    for one in rows:
        if isinstance(one, Prediction) and one.run.step_seconds:
            strategy, facts = one.strategy, one.facts
            if strategy.ep_overlap and strategy.cuda_graphs == CudaGraphs.NONE:
                yield _alternating(one, facts, strategy, one.run.step_seconds)


def _alternating(one: Prediction, facts: Facts, strategy: Strategy, seconds: float) -> Alternating:
    apart, device = replace(strategy, ep_overlap=False), facts.cluster.device
    parts, alone = layer_parts(facts, strategy.decisions()), layer_parts(facts, apart.decisions())
    return Alternating(
        id=one.run.id,
        architecture=device.architecture or "",
        model=facts.model.name,
        device=device.name,
        measured_seconds=seconds,
        predicted_seconds=estimate(facts, strategy).step_seconds,
        apart_seconds=estimate(facts, apart).step_seconds,
        fraction=_fraction(facts, strategy, seconds),
        predicted_fraction=float((parts.total / alone.total).max()) - 1,
        beyond=float(parts.launches_beyond.max()),
    )


def _fraction(facts: Facts, strategy: Strategy, seconds: float) -> float:
    """By bisection: with launches as slow as can be, every layer is longer by just the bound."""
    low, high = 0.0, WIDEST
    for _ in range(STEPS):
        middle = (low + high) / 2
        is_longer = estimate(_bounded(facts, middle), strategy).step_seconds > seconds
        low, high = (low, middle) if is_longer else (middle, high)
    return low


def _bounded(facts: Facts, fraction: float) -> Facts:
    device = facts.cluster.device
    constants = replace(device.constants, overlap_slowdown_launches=SLOWEST, overlap_launches_most_fraction=fraction)
    cluster = replace(facts.cluster, device=replace(device, constants=constants))
    return Facts(model=facts.model, cluster=cluster, workload=facts.workload)


def most_beyond(architecture: str) -> float:
    """
    Return the factor by which the bound may shorten launches of a run that was measured.

    Derivation: two passes that take turns at one interpreter each go half as fast, the prior of
    ``overlap_slowdown_launches``. A bound that shortens the fitted slowdown below it contradicts its own source.
    """
    (turns,) = (one for one in constants() if one.name == f"overlap_slowdown_launches of {architecture}")
    return catalog.calibration(architecture).constants.overlap_slowdown_launches / turns.prior


def main() -> int:
    """Print a line per run and compare with the catalog; return 1 if it says otherwise, else 0."""
    runs, wrong = list(alternating_runs(predictions(*read_table()))), []
    print(f"{'':50} {'measured':>9} {'predicted':>9} {'apart':>9} {'layers':>7} {'predicted':>9}")
    for one in runs:
        print(
            f"{one.id:18} {one.model:16} {one.device:14} {one.measured_seconds:7.2f} s {one.predicted_seconds:7.2f} s "
            f"{one.apart_seconds:7.2f} s {one.fraction:+7.1%} {one.predicted_fraction:+9.1%}"
        )
    for architecture in sorted({one.architecture for one in runs}):
        largest = max(one.fraction for one in runs if one.architecture == architecture)
        known = catalog.calibration(architecture).constants.overlap_launches_most_fraction
        print(f"{architecture}: at most {largest:.3f}, in the catalog {known:.3f}")
        wrong += [architecture] if abs(largest - known) > TOLERANCE else []
    wrong += [one.id for one in runs if one.beyond > most_beyond(one.architecture)]
    return conclude(wrong)


if __name__ == "__main__":
    sys.exit(main())
