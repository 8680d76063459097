"""The figures of one run of the benchmark: as tables for people, as JSON for programs, as one line per row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.left_out.folds import GROUP, MODEL, HeldOut, as_held_out
from benchmarks.accuracy.left_out.goals import Goal, LeftOut, goals, left_out, left_out_lines, mean_errors_by_family
from benchmarks.accuracy.metrics import (
    Errors,
    MemoryCalls,
    Ranking,
    errors,
    grouped,
    memory_calls,
    ranking_summary,
    rankings,
)
from benchmarks.output import format_csv
from costmodel import GIB_BYTES
from costmodel.strategy import Recompute, Sharding
from planner.jobs.run_jobs import RejectedRow
from planner.measure.runs.predictions import Prediction
from planner.report.records import finite

WORST = 12
"""Rows that the report lists one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """
    All figures.

    Parameters
    ----------
    rows, usable, predicted, refused
        Rows of the file; those that it offers for prediction; those predicted; those in which something is wrong.
    skipped, refusals
        Reasons and how many rows each; id and reason of every refused row, which may share an id.
    time
        Step-time errors by title of the table, then by group.
    macro
        Mean over sources of their mean absolute step-time error, by family.
    memory
        Peak-memory errors by memory kind, then by source.
    calls
        Answers to "does it fit?" by source, and ``all``.
    rankings
        Groups that differ only in layout.
    missing
        Step-time errors of the rows that have something the cost model has no formula for, by what it is.
    worst
        Rows with the largest step-time errors.
    left_out
        The accuracy: errors on rows that the constants were not fitted to; None: no such predictions of these rows.
    goals
        Its figures and those of memory and rankings beside what they are meant to be; none without it.
    """

    rows: int
    usable: int
    predicted: int
    refused: int
    skipped: dict[str, int]
    refusals: tuple[dict[str, str], ...]
    time: dict[str, dict[str, Errors]]
    macro: dict[str, float]
    memory: dict[str, dict[str, Errors]]
    calls: dict[str, MemoryCalls]
    rankings: tuple[Ranking, ...]
    missing: dict[str, Errors]
    worst: tuple[dict[str, Any], ...]
    left_out: LeftOut | None
    goals: tuple[Goal, ...]


def report(results: Sequence[Prediction | RejectedRow], held_out: Mapping[str, HeldOut] | None = None) -> Report:
    """
    Summarise predictions and what was not predicted.

    Parameters
    ----------
    results
        Every row.
    held_out
        Rows predicted by fits that had not seen them, by id.
    """
    predicted = [one for one in results if isinstance(one, Prediction)]
    others = [one for one in results if isinstance(one, RejectedRow)]
    timed = [one for one in predicted if one.time_error is not None]
    sized = [one for one in predicted if one.memory_error is not None]
    sources = grouped(predicted, lambda one: one.run.source)
    known = held_out or {}
    accuracy = left_out(predicted, known)
    return Report(
        rows=len(results),
        usable=len(predicted) + sum(one.is_usable for one in others),
        predicted=len(predicted),
        refused=sum(one.is_refused for one in others),
        skipped=dict(Counter(one.reason for one in others if not one.is_refused).most_common()),
        refusals=tuple({"id": one.id, "reason": one.reason} for one in others if one.is_refused),
        time={title: _time_errors(timed, names) for title, names in GROUPINGS.items()},
        macro=mean_errors_by_family(timed) if timed else {},
        memory={
            kind or "not stated": {"all": _memory_errors(same), **_memory_by_source(same)}
            for kind, same in grouped(sized, lambda one: one.run.memory_kind).items()
        },
        calls={"all": memory_calls(predicted), **{source: memory_calls(same) for source, same in sources.items()}},
        rankings=tuple(rankings(predicted)),
        missing=_time_errors(timed, lambda one: one.missing),
        worst=tuple(_worst(timed)),
        left_out=accuracy,
        goals=_goals(accuracy, predicted, known) if accuracy else (),
    )


def _goals(accuracy: LeftOut, predicted: Sequence[Prediction], known: Mapping[str, HeldOut]) -> tuple[Goal, ...]:
    groups, models = (as_held_out(predicted, known, kind) for kind in (GROUP, MODEL))
    return goals(accuracy, groups=groups, models=models, predicted=predicted)


# --- groups ------------------------------------------------------------------------------------------------


def family(key: str) -> str:
    """
    The family of a ``model`` key.

    >>> family("simumax-llama3-70b-l12"), family("gpt-l24-h2048-a16-v50257"), family("qwen3-235b-a22b")
    ('llama3', 'gpt', 'qwen3')
    """
    stem = key.removeprefix("simumax-")
    return re.split(r"-", stem)[0]


def features(one: Prediction) -> tuple[str, ...]:
    """Return the features that a run used, each once; groups overlap."""
    run, s = one.run, one.strategy
    flags = {
        f"architecture: {one.architecture}": True,
        "tensor parallelism": s.tp > 1,
        "tensor parallelism with SP": s.tp > 1 and s.sequence_parallel,
        "tensor parallelism without SP": s.tp > 1 and not s.sequence_parallel,
        "context parallelism": s.cp > 1,
        "expert parallelism": s.ep > 1,
        "pipeline, plain": s.pp > 1 and s.vpp == 1,
        "pipeline, interleaved": s.pp > 1 and s.vpp > 1,
        "no pipeline": s.pp == 1,
        "sharding: optimizer": s.sharding == Sharding.OPTIMIZER,
        "sharding: weights (FSDP, ZeRO-3)": s.sharding == Sharding.WEIGHTS,
        "recompute: none": s.recompute == Recompute.NONE,
        "recompute: selective": s.recompute == Recompute.SELECTIVE,
        "recompute: full": s.recompute == Recompute.FULL,
        "activation offload": s.activation_offload,
        "one device": run.num_devices == 1,
        "one node": run.num_devices > 1 and one.facts.cluster.num_nodes == 1,
        "several nodes": one.facts.cluster.num_nodes > 1,
        "sequence above 8,192": one.facts.workload.sequence_length > 8192,
        "step below 1 s": run.step_seconds is not None and run.step_seconds < 1,
    }
    return tuple(name for name, is_on in flags.items() if is_on)


GROUPINGS: dict[str, Callable[[Prediction], tuple[str, ...]]] = {
    "source": lambda one: (one.run.source,),
    "device x dtype": lambda one: (f"{one.run.device} {one.facts.workload.precision.name}",),
    "model family": lambda one: (family(one.run.model),),
    "feature": features,
}
"""Tables of step-time errors by title: the groups that a row is in."""


def _time_errors(timed: list[Prediction], names: Callable[[Prediction], tuple[str, ...]]) -> dict[str, Errors]:
    members = [(name, one.time_error or 0.0) for one in timed for name in names(one)]
    by_name = grouped(members, lambda pair: pair[0])
    return {name: errors([error for _, error in pairs]) for name, pairs in sorted(by_name.items())}


def _memory_errors(sized: list[Prediction]) -> Errors:
    return errors([one.memory_error or 0.0 for one in sized])


def _memory_by_source(sized: list[Prediction]) -> dict[str, Errors]:
    return {source: _memory_errors(same) for source, same in grouped(sized, lambda one: one.run.source).items()}


def _worst(timed: list[Prediction]) -> Iterator[dict[str, Any]]:
    for one in sorted(timed, key=lambda one: -abs(one.time_error or 0.0))[:WORST]:
        yield {
            "id": one.run.id,
            "source": one.run.source,
            "error": one.time_error,
            "measured_step_time_s": one.run.step_seconds,
            "predicted_step_time_s": one.step_seconds,
            "missing": list(one.missing),
        }


# --- for people --------------------------------------------------------------------------------------------


def lines(figures: Report) -> Iterator[str]:
    """The report as text."""
    share = figures.predicted / max(figures.usable, 1)
    yield f"{figures.rows} rows, {figures.usable} of them usable; predicted: {figures.predicted} ({share:.1%})."
    yield from _not_predicted(figures)
    for title, groups in figures.time.items():
        yield from _table(f"Step time by {title}", groups)
    if figures.macro:
        yield "\nStep time, mean absolute error, every source weighing the same"
    for name, mean in figures.macro.items():
        yield f"  {name:<62} {_or_none(mean, '.1%'):>6}"
    for kind, groups in figures.memory.items():
        yield from _table(f"Peak memory, {kind}", groups)
    yield from _call_lines(figures.calls)
    yield from _ranking_lines(figures.rankings)
    if figures.left_out:
        yield from left_out_lines(figures.left_out, figures.goals)
    yield from _table("Step time of rows with what the cost model has no formula for", figures.missing)
    if figures.worst:
        yield "\nWorst rows"
    for row in figures.worst:
        yield f"  {_or_none(row['error'], '+.1%'):>7}  {row['id']}  ({row['source']})  {'; '.join(row['missing'])}"


def _not_predicted(figures: Report) -> Iterator[str]:
    for reason, count in figures.skipped.items():
        yield f"  {count:>5} skipped: {reason}"
    if figures.refusals:
        yield f"  {figures.refused:>5} refused:"
    for row in figures.refusals:
        yield f"        {row['id']}: {row['reason']}"


def _table(title: str, groups: dict[str, Errors]) -> Iterator[str]:
    if groups:
        yield f"\n{title:<60} {'rows':>5} {'mean':>7} {'median':>7} {'p90':>7} {'max':>7} {'bias':>7}"
    for name, one in groups.items():
        absolute = (f"{_or_none(figure, '.1%'):>7}" for figure in (one.mean, one.median, one.p90, one.maximum))
        yield f"  {name[:58]:<58} {one.rows:>5} {' '.join(absolute)} {_or_none(one.bias, '+.1%'):>7}"


def _call_lines(calls: dict[str, MemoryCalls]) -> Iterator[str]:
    yield f"\n{'Does it fit?':<60} {'oom':>5} {'caught':>7} {'recall':>7} {'ran':>6} {'false alarms':>13} {'silent':>7}"
    for name, one in calls.items():
        if name == "all" or one.oom or one.false_alarms:
            yield f"  {name[:58]:<58} {one.oom:>5} {one.caught:>7} {_share(one.caught, one.oom):>7} {_alarms(one)}"


def _alarms(one: MemoryCalls) -> str:
    return f"{one.ran:>6} {f'{one.false_alarms} ({_share(one.false_alarms, one.ran)})':>13} {one.silent:>7}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _ranking_lines(groups: tuple[Ranking, ...]) -> Iterator[str]:
    summary = ranking_summary(groups)
    if summary:
        yield "\nLayouts of one job"
        yield f"  groups of at least 2 layouts: {summary['groups']}, of at least 4: {summary['ranked']}"
        yield f"  Spearman, median: {_or_none(summary['spearman_median'], '.3f')}"
        middle, p90 = (_or_none(summary[f"regret_{name}"], ".1%") for name in ("median", "p90"))
        yield f"  regret: median {middle}, p90 {p90}"
        right = _or_none(summary["pairs_right_fraction"], ".1%")
        yield f"  pairs more than 5 % apart: {summary['pairs']}, in the right order: {right}"
        for one in sorted(groups, key=lambda one: -one.regret)[:5]:
            group = ", ".join(str(part) for part in one.group)
            yield f"    regret {one.regret:>6.1%} of {one.layouts} layouts: {group}"


def _or_none(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


# --- for programs ------------------------------------------------------------------------------------------


def as_json(figures: Report) -> dict[str, Any]:
    """The report as plain data; None for what is not finite, which JSON cannot write."""
    plain: dict[str, Any] = finite({**asdict(figures), "ranking": ranking_summary(figures.rankings)})
    return plain


ROW_COLUMNS = (
    "id",
    "measured_step_time_s",
    "predicted_step_time_s",
    "measured_peak_memory_gib",
    "predicted_peak_memory_gib",
    "predicted_device_gib",
    "fits",
    "skipped_because",
)


def write_rows(path: Path, results: Sequence[Prediction | RejectedRow]) -> None:
    """One line for every row of the file, predicted or not."""
    path.write_text(format_csv(ROW_COLUMNS, map(_cells, results)), encoding="utf-8")


def _cells(one: Prediction | RejectedRow) -> tuple[Any, ...]:
    if isinstance(one, RejectedRow):
        return (one.id, one.step_seconds, "", one.peak_memory_gib, "", "", "", one.reason)
    run = one.run
    memory = (run.peak_memory_gib, one.peak_memory_gib, one.device_bytes / GIB_BYTES)
    return (run.id, run.step_seconds, one.step_seconds, *memory, int(one.fits), "")
