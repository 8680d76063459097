"""The accuracy: errors on rows whose groups were left out of the fits, and the goals for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.held_out import HeldOut, as_held_out, step_errors
from benchmarks.accuracy.metrics import Errors, errors, grouped, memory_calls, ranking_summary, rankings
from planner.runs.predictions import Prediction
from planner.uncertainty.intervals import coverage

Choice = Callable[[Prediction], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """
    One figure and what it is meant to be.

    Parameters
    ----------
    name
        What is judged.
    figure
        The figure today; None: no such rows.
    rows
        How many rows it is of.
    limit
        What it may be.
    at_least
        Whether the limit is a lower one.
    """

    name: str
    figure: float | None
    rows: int
    limit: float
    at_least: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether the figure keeps the limit; None: nothing to judge."""
        if self.figure is None:
            return None
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """
    Figures of rows predicted without their groups.

    Parameters
    ----------
    rows
        How many.
    alone, shipped
        Step-time errors by source: constants of calibrations only; of calibrations and frameworks (empty: not fitted).
    macro
        Mean over sources by architecture, constants of calibrations only.
    coverage
        Share of rows inside the intervals that other groups make.
    goals
        Every goal.
    """

    rows: int
    alone: dict[str, Errors]
    shipped: dict[str, Errors]
    macro: dict[str, float]
    coverage: dict[str, float]
    goals: tuple[Goal, ...]


def left_out(predicted: Sequence[Prediction], known: Mapping[str, HeldOut]) -> LeftOut | None:
    """Figures of the rows that are in the file of predictions without their groups; None if none is."""
    alone = as_held_out(predicted, known, frameworks=False)
    if not alone:
        return None
    with_factors = as_held_out(predicted, known, frameworks=True)
    shipped = with_factors or alone
    folds = [known[one.run.id].fold for one in shipped]
    inside = coverage(step_errors([one.case for one in shipped], [one.step_seconds for one in shipped]), folds)
    return LeftOut(
        rows=len(alone),
        alone=_by_source(alone),
        shipped=_by_source(with_factors),
        macro=macro_by_architecture(alone),
        coverage=inside,
        goals=tuple(_goals(alone, shipped, predicted, inside)),
    )


def _by_source(rows: Sequence[Prediction]) -> dict[str, Errors]:
    return {source: _errors(same) for source, same in sorted(grouped(rows, lambda one: one.run.source).items())}


def _errors(rows: Sequence[Prediction]) -> Errors:
    return errors([one.time_error or 0.0 for one in rows])


def macro(rows: Sequence[Prediction]) -> float:
    """Mean absolute step-time error, every source weighing the same."""
    return float(np.mean([one.mean for one in _by_source(rows).values()]))


def macro_by_architecture(rows: Sequence[Prediction]) -> dict[str, float]:
    """The same for all rows and by ``dense``, ``moe``, ``hybrid``."""
    return {name: macro(same) for name, same in {"all": rows, **grouped(rows, lambda one: one.architecture)}.items()}


# --- goals -------------------------------------------------------------------------------------------------


def _is(*, source: str = "", gpu: tuple[str, ...] = ("",), architecture: str = "") -> Choice:
    return lambda one: (
        one.run.source.startswith(source)
        and one.run.device.startswith(gpu)
        and one.architecture.startswith(architecture)
    )


def _one_node(one: Prediction) -> bool:
    return one.facts.cluster.num_nodes == 1


BLACKWELL = ("b200", "b300", "gb200", "gb300")
VTRAIN = "vTrain"
NVIDIA_H100 = ("NVIDIA dgxc", "NeMo docs")

GOALS: tuple[tuple[str, Choice, float, float | None], ...] = (
    (
        "H100 dense, dgxc and NeMo",
        lambda one: _is(gpu=("h100-80",), architecture="dense")(one) and one.run.source.startswith(NVIDIA_H100),
        0.03,
        0.07,
    ),
    ("Korthikanti", _is(source="Korthikanti"), 0.02, None),
    ("SimuMax B200 dense", _is(source="SimuMax", architecture="dense"), 0.025, None),
    ("Zero-Bubble", _is(source="Zero Bubble"), 0.035, None),
    ("Vocabulary-Parallel", _is(source="Vocabulary"), 0.035, None),
    ("MPT (FSDP)", _is(source="llm-foundry"), 0.045, None),
    ("InternEvo", _is(source="InternEvo"), 0.06, None),
    ("torchtitan", _is(source="torchtitan"), 0.07, None),
    ("BLOOM", _is(source="BLOOM"), 0.05, None),
    ("Blackwell dense", _is(gpu=BLACKWELL, architecture="dense"), 0.05, None),
    ("vTrain, one node", lambda one: _is(source=VTRAIN)(one) and _one_node(one), 0.055, None),
    ("vTrain, several nodes", lambda one: _is(source=VTRAIN)(one) and not _one_node(one), 0.08, None),
    ("hybrid", _is(architecture="hybrid"), 0.09, None),
    ("Blackwell MoE", _is(gpu=BLACKWELL, architecture="moe"), 0.12, None),
    ("H100 MoE", _is(gpu=("h100-80",), architecture="moe"), 0.15, None),
)
"""Rows, and what the mean and the 90th percentile of their absolute step-time errors may be."""

ALLOCATED = ("SimuMax", "PaddleNLP")
PIPELINES = ("Zero Bubble", "Vocabulary")


def _goals(
    alone: Sequence[Prediction],
    shipped: Sequence[Prediction],
    predicted: Sequence[Prediction],
    inside: Mapping[str, float],
) -> Iterator[Goal]:
    for name, limit, kinds in (("dense", 0.06, ("dense",)), ("MoE and hybrid", 0.15, ("moe", "hybrid"))):
        rows = [one for one in alone if one.architecture in kinds]
        yield Goal(
            name=f"{name}, mean over sources, calibrations only",
            figure=macro(rows) if rows else None,
            rows=len(rows),
            limit=limit,
        )
    for name, choice, limit, p90 in GOALS:
        yield from _time_goals(name, [one for one in shipped if choice(one)], limit, p90)
    yield from _memory_goals(predicted)
    yield from _ranking_goals(shipped)
    for name, limit, at_least in (("80 % intervals cover", 0.75, True), ("80 % intervals cover", 0.85, False)):
        yield Goal(name=name, figure=inside.get("all"), rows=len(shipped), limit=limit, at_least=at_least)


def _time_goals(name: str, rows: Sequence[Prediction], limit: float, p90: float | None) -> Iterator[Goal]:
    found = _errors(rows) if rows else None
    yield Goal(name=f"{name}, mean", figure=found.mean if found else None, rows=len(rows), limit=limit)
    if p90 is not None:
        yield Goal(name=f"{name}, p90", figure=found.p90 if found else None, rows=len(rows), limit=p90)


def _memory_goals(predicted: Sequence[Prediction]) -> Iterator[Goal]:
    sized = [one for one in predicted if one.memory_error is not None]
    for sources, limit in ((ALLOCATED, 0.015), (PIPELINES, 0.04)):
        rows = [one for one in sized if one.run.source.startswith(sources)]
        mean = errors([one.memory_error or 0.0 for one in rows]).mean if rows else None
        yield Goal(name=f"memory of {', '.join(sources)}", figure=mean, rows=len(rows), limit=limit)
    calls = memory_calls(predicted)
    recall = calls.caught / calls.oom if calls.oom else None
    yield Goal(name="out of memory, recall", figure=recall, rows=calls.oom, limit=0.9, at_least=True)
    alarms = calls.false_alarms / calls.ran if calls.ran else None
    yield Goal(name="out of memory, false alarms", figure=alarms, rows=calls.ran, limit=0.05)


def _ranking_goals(shipped: Sequence[Prediction]) -> Iterator[Goal]:
    summary = ranking_summary([one for one in rankings(shipped) if one.layouts >= 4])
    for name, entry, limit, at_least in (
        ("ranking, Spearman median", "spearman_median", 0.95, True),
        ("ranking, regret median", "regret_median", 0.005, False),
        ("ranking, regret p90", "regret_p90", 0.06, False),
        ("ranking, pairs in order", "pairs_right_fraction", 0.95, True),
    ):
        figure, groups = summary.get(entry), summary.get("groups", 0)
        yield Goal(name=name, figure=figure, rows=groups, limit=limit, at_least=at_least)


# --- for people --------------------------------------------------------------------------------------------


def left_out_lines(figures: LeftOut) -> Iterator[str]:
    """The figures as text."""
    for title, groups in (("calibrations only", figures.alone), ("calibrations and frameworks", figures.shipped)):
        if groups:
            heading = f"Accuracy: groups left out, constants of {title}"
            yield f"\n{heading:<60} {'rows':>5} {'mean':>7} {'p90':>7} {'bias':>7}"
        for name, one in groups.items():
            yield f"  {name[:58]:<58} {one.rows:>5} {one.mean:>7.1%} {one.p90:>7.1%} {one.bias:>+7.1%}"
    yield "  mean over sources, constants of calibrations only: " + ", ".join(
        f"{name} {mean:.1%}" for name, mean in figures.macro.items()
    )
    shares = ", ".join(f"{name} {share:.0%}" for name, share in figures.coverage.items())
    yield f"  80 % intervals of other groups cover: {shares or 'no other groups'}"
    yield f"\n{'Goals':<60} {'rows':>5} {'today':>7} {'goal':>8}"
    for goal in figures.goals:
        figure = "-" if goal.figure is None else f"{goal.figure:.1%}"
        sign = ">=" if goal.at_least else "<="
        yield f"  {goal.name:<58} {goal.rows:>5} {figure:>7} {sign} {goal.limit:>5.1%} {_MARKS[goal.is_met]}"


_MARKS = {True: "met", False: "", None: "no rows"}
