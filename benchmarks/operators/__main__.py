"""
``python -m benchmarks.operators``: operator times learned from samples, on families of shapes that were left out.

Prints median and 90th percentile of the relative errors by operator and device, beside a roofline of the datasheet, one
with fitted rates, and a random forest of the shape. ``--fit A --on B`` learns from one table of layers' parts and
predicts another: a device that only B has is adapted to by 200 of its rows, which are not scored. ``--only`` prints
one table: of operators, of collectives with sizes and numbers of ranks left out (``collectives``, ``small``), of token
dispatch, or how long a plan takes with a sampled device (``plans``). Exits with 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.operators.baselines import Unseen, by_group, error_within, group_lines, head, joined, laws_of, lines
from benchmarks.operators.exchanged import exchanged
from benchmarks.operators.groups import DATA, Group, gemm_groups, linear_groups, read_linear_layers
from benchmarks.operators.scores import adapting, closest, evenly, held_out, planned, predicted
from benchmarks.output import conclude, print_lines, refuse_wrong_input
from costmodel.errors import SpecError
from costmodel.timing.sampled_source import Shapes, matmul_shapes
from planner.measure.fit.operators import learn_operator

LIMITS = {"matmul": (0.05, 0.15), "attention": (0.05, 0.15), "other": (0.08, 0.20)}
"""Largest median and 90th percentile of an operator's errors."""

MOST_ON_NEW_DEVICE = 0.08
"""Largest median on a device that 200 samples are of."""

COVERED = (0.85, 0.95)
"""Least and greatest share of all samples that a 90 % interval holds."""

TABLES = ("operators", "collectives", "small", "dispatch", "plans")
"""
Names of the tables, in the order of printing: samples left out and predicted, and the time of a plan with samples.
"""

NUM_SHAPES = 1_000_000
MOST_SECONDS = 2.0
"""A million shapes, and how long they may take."""


@refuse_wrong_input
def main() -> int:
    """Print the tables and the limits that they exceed; return 1 if there are any, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__)
    parser.add_argument("--fit", type=Path, metavar="A.csv.gz", help="table of layers' parts to learn from")
    parser.add_argument("--on", type=Path, metavar="B.csv.gz", help="table of layers' parts to predict")
    parser.add_argument("--device", help="only groups of devices whose name contains this")
    parser.add_argument("--only", choices=TABLES, help="one table of those printed without --fit")
    arguments = parser.parse_args()
    if (arguments.fit is None) != (arguments.on is None):
        parser.error("--fit and --on belong together.")
    tables = [_transferred(arguments.fit, arguments.on)] if arguments.fit else _tables(arguments)
    return conclude(failure for table in tables for failure in table)


def _tables(arguments: argparse.Namespace) -> Iterator[Iterator[str]]:
    for name in [arguments.only] if arguments.only else TABLES:
        if name == "plans":
            yield planned()
        else:
            yield _held_out(arguments.device) if name == "operators" else exchanged(name)


# --- families left out -------------------------------------------------------------------------------------


def _held_out(device: str | None) -> Iterator[str]:
    groups = [*linear_groups(read_linear_layers(DATA / "linear_layers.csv.gz")), *gemm_groups(DATA / "gemm.csv.gz")]
    chosen = [group for group in groups if (device or "").lower() in group.device.lower()]
    if not chosen:
        known = ", ".join(sorted({group.device for group in groups}))
        raise SpecError("--device", f"no device contains {device!r}.", f"There are: {known}.")
    results = []
    for group in chosen:
        results.append((group.kind, held_out(group)))
        unseen = results[-1][1]
        print_lines([*([head(laws_of(unseen))] if len(results) == 1 else []), *group_lines(unseen)])
    yield from judged(results)
    yield from _speed(chosen)


def judged(results: Sequence[tuple[str, Unseen]]) -> Iterator[str]:
    """Yield sentences about operators whose errors are too large, and intervals that hold too few or too many."""
    for kind, unseen in results:
        for device, operator, errors in by_group(unseen):
            (middle, high), (median, most) = (error_within(errors, 0.5), error_within(errors, 0.9)), LIMITS[kind]
            if middle > median or high > most:
                seen = f"{middle:.1%} in the median and {high:.1%} at the 90th percentile"
                yield f"{operator} on {device}: {seen}, of at most {median:.0%} and {most:.0%}."
    covered = float(np.mean(np.concatenate([unseen["covered"] for _, unseen in results])))
    print(f"90 % intervals hold {covered:.1%} of all samples.")
    if not COVERED[0] <= covered <= COVERED[1]:
        yield f"90 % intervals hold {covered:.1%} of all samples, not {COVERED[0]:.0%} to {COVERED[1]:.0%}."


def _speed(groups: Iterable[Group]) -> Iterator[str]:
    """A million matmuls at once, predicted by the largest group's times."""
    group = max((one for one in groups if one.kind == "matmul"), key=len)
    times = learn_operator(group.shapes, group.seconds, list(group.families))
    draw = np.random.default_rng(0)
    m, n, k = 2.0 ** draw.uniform(7, 15, (3, NUM_SHAPES))
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        times.seconds(_as_in(group, m, n, k))
        seconds.append(time.perf_counter() - started)
    print(f"{NUM_SHAPES:,} shapes of {group.name} take {np.median(seconds):.2f} s.")
    if np.median(seconds) > MOST_SECONDS:
        yield f"{NUM_SHAPES:,} shapes take {np.median(seconds):.2f} s, of at most {MOST_SECONDS} s."


def _as_in(group: Group, m: np.ndarray, n: np.ndarray, k: np.ndarray) -> Shapes:
    shapes = matmul_shapes(m, n, k, num_processors=108)
    missing = group.shapes.features.shape[1] - shapes.features.shape[1]
    return shapes.add_features(*np.zeros((missing, len(m))))


# --- one table learned, another predicted ------------------------------------------------------------------


def _transferred(fit: Path, on: Path) -> Iterator[str]:
    known = {(group.device, group.name): group for group in linear_groups(read_linear_layers(fit))}
    unseen = list(linear_groups(read_linear_layers(on)))
    results = [
        (group.kind, predicted(known[group.device, group.name], group))
        for group in unseen
        if (group.device, group.name) in known
    ]
    if results:
        print(f"Learned from {fit.name}, on {on.name}:")
        print_lines(lines(joined([errors for _, errors in results])))
        yield from judged(results)
    new = [group for group in unseen if (group.device, group.name) not in known]
    for device in sorted({group.device for group in new}):
        yield from _new_device([group for group in new if group.device == device], list(known.values()))


def _new_device(groups: list[Group], known: list[Group]) -> Iterator[str]:
    """Adapts the times of the device that comes closest on the samples drawn, and predicts the others."""
    device, drawn = groups[0].device, evenly(groups)
    name, base = closest(known, groups, drawn)
    adapted = [adapting(base, group, rows) for group, rows in zip(groups, drawn, strict=True)]
    errors = joined([errors for errors, _ in adapted])
    print(f"{device}, which only the second table has: {sum(map(len, drawn))} of its rows adapt the times of {name}.")
    for group, (_, times) in zip(groups, adapted, strict=True):
        print(f"  {group.name}: {times.rates.text}")
    print_lines(lines(errors))
    covered = np.mean(errors["covered"])
    print(f"All operators: {error_within(errors, 0.5):.1%} in the median; 90 % intervals hold {covered:.1%}.")
    for _, operator, own in by_group(errors):
        median = error_within(own, 0.5)
        if median > MOST_ON_NEW_DEVICE:
            yield f"{operator} on {device}: {median:.1%} in the median, of at most {MOST_ON_NEW_DEVICE:.0%}."


if __name__ == "__main__":
    sys.exit(main())
