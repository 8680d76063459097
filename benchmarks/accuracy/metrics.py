"""Errors of predictions: of a group of rows, of calls on memory, of rankings of layouts."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_runs.__main__ import convert_files
from benchmarks.measured_runs.conversion import is_collected
from benchmarks.output import format_csv
from costmodel.errors import SpecError
from planner.jobs.run_jobs import References, RejectedRow, Run, read, read_rows, references
from planner.measure.runs.predictions import Prediction

Item = TypeVar("Item")

RANKED_LAYOUTS = 4

"""Layouts from which on a group has a rank correlation."""

APART = 0.05

"""Two layouts whose measured times differ by more must come out in the right order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """
    Relative errors of a group of rows.

    Parameters
    ----------
    rows
        Number of rows.
    mean, median, p90, maximum
        Statistics of the absolute errors.
    bias
        Mean of the signed errors, predicted over measured minus 1.
    """

    rows: int
    mean: float
    median: float
    p90: float
    maximum: float
    bias: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCalls:
    """
    Right and wrong answers to "does it fit?".

    Parameters
    ----------
    oom, caught
        Rows that ran out of memory; those of them that were predicted not to fit.
    ran, false_alarms
        Rows that ran; those of them that were predicted not to fit.
    silent
        False alarms whose rows name neither recomputation nor offload.
    """

    oom: int
    caught: int
    ran: int
    false_alarms: int
    silent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """
    One group of runs that differ in nothing but the layout.

    Parameters
    ----------
    group
        Facts that they share: source, model, layers, GPU, number of GPUs, batch, sequence, dtype.
    layouts
        Number of different layouts.
    spearman
        Rank correlation of predicted and measured times; None for fewer than ``RANKED_LAYOUTS``.
    regret
        Measured time of the layout predicted best over the measured best, minus 1.
    pairs, pairs_right
        Pairs of layouts more than ``APART`` apart, and those in the right order.
    """

    group: tuple[Any, ...]
    layouts: int
    spearman: float | None
    regret: float
    pairs: int
    pairs_right: int


def errors(values: Sequence[float]) -> Errors:
    """
    Summarise signed relative errors.

    Parameters
    ----------
    values
        At least one.
    """
    signed = np.asarray(values)
    absolute = np.abs(signed)
    with np.errstate(invalid="ignore"):  # A figure that is not finite stays so, and is printed as "-".
        return Errors(
            rows=len(values),
            mean=float(absolute.mean()),
            median=float(np.median(absolute)),
            p90=float(np.percentile(absolute, 90)),
            maximum=float(absolute.max()),
            bias=float(signed.mean()),
        )


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Items by key, in order of first appearance."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def memory_calls(predicted: Iterable[Prediction]) -> MemoryCalls:
    """Count the right and wrong answers to "does it fit?"."""
    by_kind = grouped(predicted, lambda one: one.run.kind == "oom")
    oom, ran = by_kind.get(True, []), by_kind.get(False, [])
    return MemoryCalls(
        oom=len(oom),
        caught=sum(not one.fits for one in oom),
        ran=len(ran),
        false_alarms=sum(not one.fits for one in ran),
        silent=sum(not one.fits and one.is_silent for one in ran),
    )


# --- rankings ----------------------------------------------------------------------------------------------
def rankings(predicted: Iterable[Prediction]) -> list[Ranking]:
    """Every group with at least two layouts; a layout that was measured more than once counts with its median."""
    timed = [one for one in predicted if one.run.step_seconds is not None]
    groups = {group: _by_layout(members) for group, members in grouped(timed, _shared).items()}
    return [_ranking(group, times) for group, times in groups.items() if len(times) > 1]


def _shared(one: Prediction) -> tuple[Any, ...]:
    return shared(one.run, one.num_layers)


def shared(run: Run, num_layers: int) -> tuple[Any, ...]:
    """Return the facts that the runs of one job have in common: everything but the layout."""
    return (
        run.source,
        run.model,
        num_layers,
        run.device,
        run.num_devices,
        run.get("training.global_batch_size"),
        run.get("training.sequence_length"),
        run.get("training.precision"),
    )


def _by_layout(members: list[Prediction]) -> list[tuple[float, float]]:
    """Measured and predicted seconds of each layout."""
    layouts = grouped(members, lambda one: (one.strategy, one.run.get("settings.offloaded_layers")))
    return [
        (median(one.run.step_seconds or 0.0 for one in same), median(ordered([one.step_seconds for one in same])))
        for same in layouts.values()
    ]


def _ranking(group: tuple[Any, ...], times: list[tuple[float, float]]) -> Ranking:
    measured, predicted = zip(*times, strict=True)
    pairs_right, pairs = pairs_in_order(times)
    return Ranking(
        group=group,
        layouts=len(times),
        spearman=spearman(measured, predicted) if len(times) >= RANKED_LAYOUTS else None,
        regret=regret(measured, predicted),
        pairs=pairs,
        pairs_right=pairs_right,
    )


def pairs_in_order(times: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """
    Pairs that are predicted in the measured order, and pairs more than ``APART`` apart.

    >>> pairs_in_order([(1.0, 5.0), (2.0, 6.0), (2.01, 4.0)])
    (1, 2)
    """
    apart = [
        (one, other)
        for one, other in combinations(times, 2)
        if max(one[0], other[0]) > (1 + APART) * min(one[0], other[0])
    ]
    return sum((one[0] < other[0]) == (one[1] < other[1]) and one[1] != other[1] for one, other in apart), len(apart)


def ranking_summary(groups: Sequence[Ranking]) -> dict[str, Any]:
    """Medians over groups of at least four layouts (of all groups if there are none); empty without groups."""
    if not groups:
        return {}
    ranked = [one.spearman for one in groups if one.spearman is not None]
    regrets = [one.regret for one in groups if one.layouts >= 4] or [one.regret for one in groups]
    pairs = sum(one.pairs for one in groups)
    return {
        "groups": len(groups),
        "ranked": len(ranked),
        "spearman_median": float(np.median(ranked)) if ranked else None,
        "regret_median": float(np.median(regrets)),
        "regret_p90": float(np.percentile(regrets, 90)),
        "pairs": pairs,
        "pairs_right_fraction": sum(one.pairs_right for one in groups) / pairs if pairs else None,
    }


def regret(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """
    Return the cost of choosing by prediction, as a fraction; among layouts predicted alike, the slowest counts.

    >>> regret([10.0, 12.0, 11.0], [5.0, 4.0, 6.0])
    0.2
    """
    guesses = ordered(predicted)
    best = min(guesses)
    chosen = max(seconds for seconds, guess in zip(measured, guesses, strict=True) if guess == best)
    return round(chosen / min(measured) - 1, 12)


def spearman(measured: Sequence[float], predicted: Sequence[float]) -> float | None:
    """
    Rank correlation, equal values sharing their mean rank.

    Zero where all predictions are alike, None where all measurements are: there is nothing to rank.

    Parameters
    ----------
    measured, predicted
        One value for each layout.

    >>> spearman([1.0, 2.0, 3.0, 4.0], [10.0, 30.0, 20.0, 40.0])
    0.8
    """
    one, other = _ranks(measured), _ranks(ordered(predicted))
    if one.std() == 0:
        return None
    if other.std() == 0:
        return 0.0
    return round(float(np.corrcoef(one, other)[0, 1]), 12)


def ordered(predicted: Sequence[float]) -> list[float]:
    """
    Predictions that can be compared: one that is no number comes last.

    >>> ordered([2.0, math.nan])
    [2.0, inf]
    """
    return [math.inf if math.isnan(guess) else guess for guess in predicted]


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Mean rank of each value among its equals."""
    array = np.asarray(values)
    below = (array[:, None] > array).sum(axis=1)
    equal = (array[:, None] == array).sum(axis=1)
    return np.asarray(below + (equal - 1) / 2, dtype=np.float64)


FOLDER = Path(__file__).parents[1] / "measured_runs"

RUNS = FOLDER / "runs.csv"

COLLECTED_MODELS = FOLDER / "collected" / "models.yaml"


def read_table(runs: Path = RUNS, models: Path | None = None) -> tuple[list[Run | RejectedRow], References]:
    """
    The rows of a table, and what they refer to.

    Parameters
    ----------
    runs
        CSV in either form.
    models
        The architectures behind its rows in the same form; None: the project's.

    Raises
    ------
    SpecError
        If there is no table.
    """
    if not is_collected(_columns(runs)):
        return list(read(runs)), references(models or FOLDER / "models.yaml", FOLDER if runs == RUNS else runs.parent)
    converted = convert_files(runs, models or COLLECTED_MODELS)
    columns = list(converted.rows[0]) if converted.rows else ["id", "model", "cluster.device", "cluster.num_devices"]
    rows = list(read_rows(csv.DictReader(io.StringIO(format_csv(columns, converted.rows))), str(runs)))
    return rows, replace(References(folder=FOLDER), models=dict(converted.models))


NEWER = RUNS.with_name("newer.csv")
"""Runs that were collected later: fitted to, left out and counted like the others."""


def read_fitted(runs: Path = RUNS, models: Path | None = None) -> tuple[list[Run | RejectedRow], References]:
    """The rows that a fit has, and what they refer to: of the project's own table with the newer ones, else a table."""
    rows, known = read_table(runs, models)
    return ([*rows, *read_table(NEWER, FOLDER / "models.yaml")[0]] if runs == RUNS and not models else rows), known


def _columns(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            return next(csv.reader(file), [])
    except (OSError, csv.Error) as error:
        raise SpecError(str(path), f"cannot be read as CSV: {getattr(error, 'strerror', None) or error}.") from None
