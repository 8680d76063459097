"""
``python -m benchmarks.effects.intervals``: errors of ratios of two steps, by the kind of change between them.

Pairs of runs of one source and job that differ in anything recorded, each run predicted by a fit that had not seen its
group, and the groups of single settings. The law of :mod:`planner.uncertainty.changes` is fitted to them; sources are
left out in turn, and the share of their pairs that lies inside the intervals of the others is printed.

Exit codes: 0 that share is between 75 and 85 %; 1 it is not.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.metrics import grouped, read_table
from benchmarks.effects.__main__ import predicted_runs, without_their_groups
from benchmarks.effects.ratios import read_groups
from benchmarks.output import format_generated
from costmodel.step.estimate import estimate
from planner.measure.runs.predictions import Prediction
from planner.uncertainty.changes import TABLE, Change, ChangeErrors, Costed, Factor, changes_between, distance
from planner.uncertainty.intervals import COVERAGE, FEWEST_GROUPS, find_weighted_quantile

FOLDER = Path(__file__).parents[2] / "planner" / "uncertainty"

SOURCE = (
    "python -m benchmarks.effects.intervals --write: pairs of rows of benchmarks/measured_runs and benchmarks/effects, "
    "their groups left out"
)

FLOORS = (0.01, 0.015, 0.02, 0.025, 0.03, 0.04)
RATES = (0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18)
RELEASES = (0.0, 0.02, 0.03, 0.04, 0.05, 0.06)
"""Tried for the three numbers of the law; the data tell them apart no better."""

SIZES = (Change.DEVICES, Change.BATCH, Change.SEQUENCE, Change.DEVICE)
"""Changes of the job itself: pairs that change one of them and nothing else count, others are too many and too far."""

COVERED = (0.75, 0.85)
"""Between which the share of pairs inside must be."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairError:
    """
    The error of one predicted ratio.

    Parameters
    ----------
    source, group
        Source of both runs; the job, whose pairs have errors that are alike.
    changes, distance
        As the planner sees them.
    log
        Logarithm of the measured ratio over the predicted one.
    """

    source: str
    group: Hashable
    changes: frozenset[Change]
    distance: float
    log: float


@dataclass(frozen=True, slots=True)
class _Run:
    prediction: Prediction
    costed: Costed

    @property
    def error(self) -> float:
        return math.log((self.prediction.run.step_seconds or 0.0) / self.prediction.step_seconds)


def pair_errors() -> list[PairError]:
    """Return the errors of all pairs, in the order of the tables."""
    groups = read_groups()
    own = {name for pair in groups for name in (pair.first, pair.second)}
    rows = read_table()[0]
    predicted = without_their_groups(predicted_runs(own | {row.id for row in rows}))
    runs = {name: _run(one) for name, one in predicted.items() if one.run.step_seconds}
    table = [runs[row.id] for row in rows if row.id in runs]
    known = {frozenset((one.prediction.run.id, other.prediction.run.id)) for one, other in _pairs(table)}
    beside = [
        (runs[pair.first], runs[pair.second])
        for pair in groups
        if {pair.first, pair.second} <= set(runs) and frozenset((pair.first, pair.second)) not in known
    ]
    return [found for pair in (*_pairs(table), *beside) if (found := _error(*pair))]


def _run(one: Prediction) -> _Run:
    parts = estimate(one.facts, one.strategy).breakdown
    exposed = {part.name: part.exposed_seconds for part in parts}
    return _Run(
        one, Costed(facts=one.facts, strategy=one.strategy, step_seconds=sum(exposed.values()), exposed_seconds=exposed)
    )


def _pairs(runs: Sequence[_Run]) -> Iterator[tuple[_Run, _Run]]:
    for same in grouped(runs, lambda one: (one.prediction.run.source, one.prediction.run.model)).values():
        yield from combinations(same, 2)


def _error(one: _Run, other: _Run) -> PairError | None:
    changes = changes_between(one.costed, other.costed)
    if not changes or Change.MODEL in changes or (len(changes) > 1 and changes & {*SIZES}):
        return None
    run = one.prediction.run
    sizes = (run.device, run.num_devices, run.get("training.global_batch_size"), run.get("training.sequence_length"))
    return PairError(
        source=run.source,
        group=(run.source, run.model, one.costed.facts.model.num_layers, *(() if changes & {*SIZES} else sizes)),
        changes=changes,
        distance=distance(one.costed, other.costed),
        log=other.error - one.error,
    )


# --- the law -----------------------------------------------------------------------------------------------


def fitted_errors(pairs: Sequence[PairError], coverage: dict[str, float] | None = None) -> ChangeErrors:
    """
    Fit the law: its three numbers by the interval score, then a factor for each kind of change with enough groups.

    References
    ----------
    Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 102 (2007): the interval
    score, equation (43), is least in expectation for the interval that holds the wanted share.
    """
    counts = Counter(pair.group for pair in pairs)
    weights = np.array([1 / counts[pair.group] for pair in pairs])
    sizes, apart = np.abs([pair.log for pair in pairs]), np.array([pair.distance for pair in pairs])
    releases = np.array([Change.RELEASE in pair.changes for pair in pairs], dtype=np.float64)
    num_changes = np.array([max(1, len(pair.changes - {Change.RELEASE})) for pair in pairs], dtype=np.float64)

    def score(numbers: tuple[float, float, float]) -> float:
        floor, rate, release = numbers
        half = np.sqrt(floor**2 + rate**2 * apart + release**2 * releases)
        return float(np.average(2 * half + 2 / (1 - COVERAGE) * np.maximum(sizes - half, 0), weights=weights))

    floor, rate, release = min(product(FLOORS, RATES, RELEASES), key=score)
    beside = np.sqrt(np.maximum(sizes**2 - release**2 * releases, 0) / num_changes)
    relative = beside / np.sqrt(floor**2 + rate**2 * apart)
    factors = (_factor(change, pairs, relative, weights) for change in Change if change != Change.RELEASE)
    return ChangeErrors(
        source=SOURCE,
        floor=floor,
        rate=rate,
        release=release,
        factors=tuple(one for one in factors if one),
        other=round(find_weighted_quantile(relative, weights, COVERAGE), 2),
        coverage=coverage or {},
    )


def _factor(change: Change, pairs: Sequence[PairError], relative: Array, weights: Array) -> Factor | None:
    """The factor of a kind by pairs that change it alone, else by all that change it; None where groups are few."""
    for is_alone in (True, False):
        chosen = [
            number
            for number, pair in enumerate(pairs)
            if change in pair.changes and (not is_alone or pair.changes - {Change.RELEASE} == {change})
        ]
        groups = len({pairs[number].group for number in chosen})
        if groups >= FEWEST_GROUPS:
            factor = find_weighted_quantile(relative[chosen], weights[chosen], COVERAGE)
            return Factor(change=change, factor=round(factor, 2), groups=groups, pairs=len(chosen), alone=is_alone)
    return None


def inside(errors: ChangeErrors, pair: PairError) -> bool:
    """True where a ratio lies in the interval of its change."""
    return abs(pair.log) <= errors.half_width(pair.changes, pair.distance)


def left_out_hits(pairs: Sequence[PairError]) -> list[tuple[PairError, bool]]:
    """Judge every pair by the law of the pairs of other sources."""
    found = []
    for source, same in grouped(pairs, lambda pair: pair.source).items():
        law = fitted_errors([pair for pair in pairs if pair.source != source])
        found += [(pair, inside(law, pair)) for pair in same]
    return found


def coverages(hits: Sequence[tuple[PairError, bool]]) -> dict[str, float]:
    """Return the share of ratios inside their intervals, over pairs, groups and sources, each of equal weight."""
    by: dict[str, Sequence[Hashable]] = {
        "pairs": range(len(hits)),
        "groups": [pair.group for pair, _ in hits],
        "sources": [pair.source for pair, _ in hits],
    }
    return {name: round(_mean_share(hits, keys), 3) for name, keys in by.items()}


def _mean_share(hits: Sequence[tuple[PairError, bool]], keys: Sequence[Hashable]) -> float:
    """Return the share of ratios inside their intervals, with equal weight of every key."""
    members = grouped(zip(keys, hits, strict=True), lambda item: item[0]).values()
    return float(np.mean([np.mean([is_hit for _, (_, is_hit) in same]) for same in members]))


def document(errors: ChangeErrors) -> str:
    """The planner's file."""
    plain: dict[str, Any] = asdict(errors)
    plain["factors"] = [{**one, "change": one["change"].value} for one in plain["factors"]]
    return format_generated(plain)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the law and its coverage, and write it where asked; 0, or 1 where the coverage is off."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.effects.intervals", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("--write", action="store_true", help=f"write planner/uncertainty/{TABLE}")
    options = parser.parse_args(arguments)
    pairs = pair_errors()
    hits = left_out_hits(pairs)
    errors = fitted_errors(pairs, coverages(hits))
    print(f"floor {errors.floor:.1%}, rate {errors.rate:.1%}, release {errors.release:.1%}, others {errors.other:.2f}")
    for one in errors.factors:
        how = "alone" if one.alone else "with others"
        print(f"  {one.change:<18} {one.factor:5.2f}  {one.pairs:6,} pairs in {one.groups:3} groups, {how}")
    for source, same in grouped(hits, lambda hit: hit[0].source).items():
        print(f"  {np.mean([hit for _, hit in same]):5.0%} of {len(same):5,} pairs inside: {source}")
    print(f"inside, sources left out: {', '.join(f'{share:.1%} of {name}' for name, share in errors.coverage.items())}")
    if options.write:
        (FOLDER / TABLE).write_text(document(errors), encoding="utf-8")
    low, high = COVERED
    return 0 if low <= errors.coverage["pairs"] <= high else 1


if __name__ == "__main__":
    sys.exit(main())
