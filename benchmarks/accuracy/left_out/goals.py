"""Goals of the accuracy figures: one limit each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.left_out.folds import GROUP, KINDS, MODEL, SOFTWARE, HeldOut, as_held_out, is_newest
from benchmarks.accuracy.left_out.intervals import Coverage, band, coverages, left_out_errors
from benchmarks.accuracy.metrics import Errors, errors, grouped, memory_calls, ranking_summary, rankings
from planner.measure.calibrate.constants import constants
from planner.measure.runs.predictions import Prediction
from planner.uncertainty.intervals import COVERAGE

FAMILIES = {"dense": ("dense",), "MoE and hybrid": ("moe", "hybrid")}


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """
    Figures of rows predicted by fits that had not seen them.

    Parameters
    ----------
    rows
        Number of rows.
    by_source
        Step-time errors by what was left out, then by source.
    macro, num_rows
        Mean over sources of their mean absolute errors, and how many rows, by what was left out, then by family.
    newest
        Errors of the newest software, predicted by fits to older releases, by family and ``all``.
    coverages
        Rows inside the intervals that others make.
    """

    rows: int
    by_source: dict[str, dict[str, Errors]]
    macro: dict[str, dict[str, float]]
    num_rows: dict[str, dict[str, int]]
    newest: dict[str, Errors]
    coverages: tuple[Coverage, ...]


def left_out(predicted: Sequence[Prediction], known: Mapping[str, HeldOut]) -> LeftOut | None:
    """Figures of the rows that are in the file of such predictions; None if none is."""
    by_kind = {kind: as_held_out(predicted, known, kind) for kind in KINDS}
    rows = by_kind[GROUP]
    if not rows:
        return None
    newest = [one for one in by_kind[SOFTWARE] if is_newest(one)]
    seconds = {kind: [known[one.run.id].seconds.get(kind, float("nan")) for one in rows] for kind in KINDS}
    return LeftOut(
        rows=len(rows),
        by_source={kind: by_source(same) for kind, same in by_kind.items() if same},
        macro={kind: mean_errors_by_family(same) for kind, same in by_kind.items() if same},
        num_rows={
            kind: {name: len(of) for name, of in _families(same, every="all").items()}
            for kind, same in by_kind.items()
            if same
        },
        newest={name: _errors(same) for name, same in _families(newest, every="all").items()},
        coverages=tuple(coverages(left_out_errors(rows, seconds))),
    )


def by_source(rows: Sequence[Prediction]) -> dict[str, Errors]:
    """Step-time errors of each source."""
    return {source: _errors(same) for source, same in sorted(grouped(rows, lambda one: one.run.source).items())}


def _errors(rows: Sequence[Prediction]) -> Errors:
    return errors([one.time_error or 0.0 for one in rows])


def mean_error_of_sources(rows: Sequence[Prediction]) -> float:
    """Mean absolute step-time error, every source weighing the same."""
    return float(np.mean([one.mean for one in by_source(rows).values()]))


def mean_errors_by_family(rows: Sequence[Prediction]) -> dict[str, float]:
    """Return the mean errors of all rows, of dense models, and of those with experts or state-space layers."""
    return {name: mean_error_of_sources(same) for name, same in _families(rows, every="all").items()}


def _families(rows: Sequence[Prediction], *, every: str) -> dict[str, list[Prediction]]:
    found = {every: list(rows)}
    found |= {name: [one for one in rows if one.architecture in kinds] for name, kinds in FAMILIES.items()}
    return {name: same for name, same in found.items() if same}


NEWEST_SOFTWARE = "newest software"


def columns(figures: LeftOut, family: str) -> dict[str, tuple[float, int]]:
    """
    Every printed error of a family, and its number of rows, by kind of folds, and of the newest software.

    Over kinds of folds the mean is of the sources' means; the newest software is of one source.
    """
    found = {
        kind: (means[family], figures.num_rows[kind][family])
        for kind, means in figures.macro.items()
        if family in means
    }
    if family in figures.newest:
        newest = figures.newest[family]
        found[NEWEST_SOFTWARE] = (newest.mean, newest.rows)
    return found


def worst_column(figures: LeftOut, family: str) -> tuple[str, float, int] | None:
    """The headline of a family: its largest printed error, with the name of that column and its number of rows."""
    found = columns(figures, family)
    worst = max(found, key=lambda kind: found[kind][0], default=None)
    return None if worst is None else (worst, *found[worst])


Choice = Callable[[Prediction], bool]

MOST_CONSTANTS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """
    One figure and its limit.

    Parameters
    ----------
    name
        Name of the figure.
    figure
        The figure today; None: no such rows.
    rows
        Number of rows that it is computed from.
    limit
        Limit of the figure.
    at_least
        True if the limit is a lower one.
    most
        The upper limit beside a lower one; None: none.
    is_count
        True if it is a number instead of a share.
    """

    name: str
    figure: float | None
    rows: int
    limit: float
    at_least: bool = False
    most: float | None = None
    is_count: bool = False

    @property
    def is_met(self) -> bool | None:
        """True if the figure keeps the limit; None: nothing to judge."""
        if self.figure is None:
            return None
        if self.most is not None and self.figure > self.most:
            return False
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    @property
    def texts(self) -> tuple[str, str]:
        """Figure and limit as they are printed."""
        form = ".0f" if self.is_count else ".1%"
        figure = "-" if self.figure is None else format(self.figure, form)
        if self.most is not None:
            return figure, f"{self.limit:{form}} to {self.most:{form}}"
        return figure, f"{'>=' if self.at_least else '<='} {self.limit:{form}}"


LIMITS = {"dense": 0.05, "MoE and hybrid": 0.08}

"""Limits of the headline: the worst printed mean, every source weighing the same."""

NEWEST_LIMIT = 0.08

ALLOCATED_LIMIT = 0.01


def goals(
    figures: LeftOut, *, groups: Sequence[Prediction], models: Sequence[Prediction], predicted: Sequence[Prediction]
) -> tuple[Goal, ...]:
    """
    Every goal.

    Parameters
    ----------
    figures
        Figures of rows left out.
    groups, models
        Rows predicted without their groups, and without their models.
    predicted
        Rows predicted by the shipped constants: memory does not depend on those.
    """
    return (
        *_time_goals(figures, models),
        *_ranking_goals(groups),
        *_memory_goals(predicted),
        *_interval_goals(figures),
        Goal(
            name="fitted constants",
            figure=len(constants(frameworks=True)),
            rows=len(groups),
            limit=MOST_CONSTANTS,
            is_count=True,
        ),
    )


def _time_goals(figures: LeftOut, models: Sequence[Prediction]) -> Iterator[Goal]:
    for family, limit in LIMITS.items():
        worst = worst_column(figures, family)
        name = f"{family}, the worst column"
        yield Goal(
            name=f"{name} ({worst[0]})" if worst else name,
            figure=worst[1] if worst else None,
            rows=worst[2] if worst else 0,
            limit=limit,
        )
    for name, found in figures.newest.items():
        yield Goal(name=f"newest software, {name}, mean", figure=found.mean, rows=found.rows, limit=NEWEST_LIMIT)
    for family, kinds in FAMILIES.items():
        rows = [one.time_error or 0.0 for one in models if one.architecture in kinds]
        yield Goal(
            name=f"unseen models, {family}, mean over rows",
            figure=errors(rows).mean if rows else None,
            rows=len(rows),
            limit=0.08,
        )


def _memory_goals(predicted: Sequence[Prediction]) -> Iterator[Goal]:
    sized = [
        one.memory_error for one in predicted if one.memory_error is not None and one.run.memory_kind == "allocated"
    ]
    yield Goal(
        name="memory, allocated, mean",
        figure=errors(sized).mean if sized else None,
        rows=len(sized),
        limit=ALLOCATED_LIMIT,
    )
    calls = memory_calls(predicted)
    recall = calls.caught / calls.oom if calls.oom else None
    yield Goal(name="out of memory, recall", figure=recall, rows=calls.oom, limit=0.8, at_least=True)
    alarms = calls.false_alarms / calls.ran if calls.ran else None
    yield Goal(name="out of memory, false alarms", figure=alarms, rows=calls.ran, limit=0.02)


def _ranking_goals(groups: Sequence[Prediction]) -> Iterator[Goal]:
    summary = ranking_summary([one for one in rankings(groups) if one.layouts >= 4])
    for name, entry, limit, at_least in (
        ("ranking, Spearman median", "spearman_median", 0.95, True),
        ("ranking, regret median", "regret_median", 0.005, False),
        ("ranking, regret p90", "regret_p90", 0.05, False),
        ("ranking, pairs in order", "pairs_right_fraction", 0.96, True),
    ):
        figure, rows = summary.get(entry), summary.get("groups", 0)
        yield Goal(name=name, figure=figure, rows=rows, limit=limit, at_least=at_least)


def _interval_goals(figures: LeftOut) -> Iterator[Goal]:
    for one in figures.coverages:
        low, high = band(one.units, COVERAGE)
        name = f"{COVERAGE:.0%} intervals cover, {one.name} ({one.unit})"
        yield Goal(name=name, figure=one.share, rows=one.units, limit=low, at_least=True, most=high)


# --- for people --------------------------------------------------------------------------------------------
TITLES = {
    "group": "groups left out (source, model, device, number of devices)",
    MODEL: "models left out",
    "source": "sources left out",
    "software": "each release predicted by fits to older ones",
}


def left_out_lines(figures: LeftOut, found: Sequence[Goal]) -> Iterator[str]:
    """Figures and goals as text."""
    for kind, sources in figures.by_source.items():
        yield f"\n{'Accuracy: ' + TITLES[kind]:<64} {'rows':>5} {'mean':>7} {'p90':>7} {'bias':>7}"
        for name, one in sources.items():
            yield f"  {name[:62]:<62} {one.rows:>5} {one.mean:>7.1%} {one.p90:>7.1%} {one.bias:>+7.1%}"
        means = ", ".join(f"{name} {mean:.1%}" for name, mean in figures.macro[kind].items())
        yield f"  mean over sources: {means}"
    yield f"\n{'Goals':<64} {'rows':>5} {'today':>7} {'goal':>14}"
    for goal in found:
        figure, limit = goal.texts
        yield f"  {goal.name:<62} {goal.rows:>5} {figure:>7} {limit:>14} {_MARKS[goal.is_met]}"


_MARKS = {True: "met", False: "", None: "no rows"}
