"""The figures as tables for people, and every pair as one line of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.effects.ratios import MOST_MEDIAN, MOST_P90, Effect, Figures, figures, figures_by
from benchmarks.output import format_csv

WORST = 12
"""Pairs that the report lists one by one."""

HEAD = (
    f"{'':<44} {'pairs':>6} {'median':>7} {'p90':>7} {'max':>7} {'bias':>7}   "
    f"{'ratio 1: median':>15} {'p90':>7}   {'clear':>5} {'wrong':>5}"
)

COLUMNS = ("group", "kind", "id_a", "id_b", "model", "device", "num_devices", "measured", "predicted", "changes")


def counted(found: Sequence[Effect]) -> list[Effect]:
    """Effects that the goals are for: all but those of the release alone."""
    return [one for one in found if not one.pair.is_release_alone]


def lines(found: Mapping[str, Sequence[Effect]]) -> Iterator[str]:
    """
    Every table.

    Parameters
    ----------
    found
        The same effects by what their predictions know (``shipped constants``, ``groups left out``), the first one
        shown pair by pair.
    """
    for title, effects in found.items():
        yield f"Ratios of steps, predicted over measured, {title}"
        yield HEAD
        yield from _tables(effects)
        yield ""
    first = next(iter(found.values()), ())
    yield "Groups that differ in one setting each, with shipped constants: seconds and what the setting adds, ratios"
    yield f"  {'':<66} {'measured':>18} {'predicted':>18}  {'ratio':>7} {'pred.':>7} {'error':>7}"
    yield from _group_lines([one for one in first if one.pair.group])
    yield ""
    yield "Pairs that are furthest off, with shipped constants"
    worst = sorted(counted(first), key=lambda one: -abs(one.error))[:WORST]
    yield from (_pair_line(one) for one in worst)
    yield ""
    yield "Pairs more than 5 % apart that come out on the wrong side, with shipped constants"
    yield from (_pair_line(one) for one in counted(first) if one.is_on_the_wrong_side)
    yield ""
    for title, effects in found.items():
        yield from _goal_lines(title, counted(effects))


def _tables(found: Sequence[Effect]) -> Iterator[str]:
    judged = counted(found)
    grouped_ones = [one for one in judged if one.pair.group]
    others = [one for one in judged if not one.pair.group]
    sets = {
        "all but the release alone": judged,
        "  groups of one setting (effects)": grouped_ones,
        "  pairs of published runs": others,
        "    of the same release": [one for one in others if not one.pair.changes_release],
        "    of another release too": [one for one in others if one.pair.changes_release],
        "release alone: noise, not judged": [one for one in found if one.pair.is_release_alone],
    }
    for name, some in sets.items():
        if some:
            yield _line(name, figures(some))
    yield "by kind of change"
    for name, figure in figures_by(judged, lambda one: one.pair.kind).items():
        yield _line(f"  {name}", figure)


def _line(name: str, one: Figures) -> str:
    predicted, without = one.predicted, one.without
    return (
        f"{name:<44} {predicted.rows:>6} {predicted.median:>7.1%} {predicted.p90:>7.1%} {predicted.maximum:>7.1%} "
        f"{predicted.bias:>+7.1%}   {without.median:>15.1%} {without.p90:>7.1%}   {one.clear:>5} {one.wrong:>5}"
    )


def _group_lines(found: Sequence[Effect]) -> Iterator[str]:
    for one in found:
        setting = f"{one.pair.group}: {', '.join(one.pair.changes)}"
        mark = "  wrong side" if one.is_on_the_wrong_side else ""
        seconds = " ".join(f"{_change(some):>18}" for some in (one.measured_seconds, one.predicted_seconds))
        yield f"  {setting:<66.66} {seconds}  {one.measured:>7.3f} {one.predicted:>7.3f} {one.error:>+7.1%}{mark}"


def _change(seconds: tuple[float, float]) -> str:
    first, second = seconds
    return f"{first:.3f} {second - first:+.3f} s"


def _pair_line(one: Effect) -> str:
    name = f"{one.model} on {one.num_devices:,} {one.device}, {one.pair.first} to {one.pair.second}"
    return (
        f"  {one.error:>+6.1%}  {one.measured:.3f} predicted {one.predicted:.3f}  {name}: {'; '.join(one.pair.changes)}"
    )


def _goal_lines(title: str, judged: Sequence[Effect]) -> Iterator[str]:
    if not judged:
        return
    errors = figures(judged).predicted
    for name, figure, limit in (("median", errors.median, MOST_MEDIAN), ("p90", errors.p90, MOST_P90)):
        is_met = "yes" if figure <= limit else "NO"
        yield f"{is_met:>4}  {name} of {len(judged)} pairs, {title}: {figure:.1%} (at most {limit:.0%})"


def write_pairs(path: Path, found: Sequence[Effect]) -> None:
    """Write one line for each pair (CSV)."""
    path.write_text(format_csv(COLUMNS, map(_cells, found)), encoding="utf-8")


def _cells(one: Effect) -> tuple[object, ...]:
    pair = one.pair
    of = (pair.group, pair.kind, pair.first, pair.second, one.model, one.device, one.num_devices)
    return (*of, f"{one.measured:.5f}", f"{one.predicted:.5f}", ";".join(pair.changes))
