"""The sections of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from planner.explanation.compare import Comparison
from planner.report.conflicts import broken_sections, nothing_sections, preference_sections
from planner.report.memory import missing_sections
from planner.report.reasons import SAME_SECONDS, differences_section
from planner.report.records.explained import ComparisonRecord
from planner.report.results import FIGURES
from planner.report.section import Section
from planner.report.setting import setting_section
from planner.report.strategies import strategies_section
from planner.report.wording import NOTHING, seconds

if TYPE_CHECKING:
    from planner.report.records.plan import PlanRecord


def compared_sections(comparison: Comparison) -> Iterator[Section]:
    """The sections of a comparison, in reading order."""
    whole = ComparisonRecord.of(comparison)
    given, best = whole.given, whole.best
    answer = ("answer", _answer(comparison, whole))
    yield setting_section(comparison.problem, whole, answer, best=best, assumed=whole.assumed)
    yield from broken_sections(whole.broken_rules)
    yield from preference_sections(whole.broken_preferences)
    table = strategies_section([given.strategy, *([best.strategy] if best else [])])
    notes = ("1: the given strategy; 2: the fastest plan.", *table.notes[-1:]) if best else table.notes
    yield replace(table, notes=notes)
    if best:
        yield _gains(given, best)
        if abs(comparison.saved_seconds) > SAME_SECONDS:
            yield differences_section(whole.differences, best, given, "given")
    else:
        yield from nothing_sections(whole, whole.conflict)
    yield from missing_sections(whole, given)


def _answer(comparison: Comparison, whole: ComparisonRecord) -> str:
    takes = f"the given strategy takes {seconds(whole.given.step_time_seconds)} s per step"
    alone = ", and the search leaves it out" if whole.broken_preferences else ""
    forbidden = ", but rules forbid it" if whole.broken_rules else alone
    if whole.best is None:
        none = "no strategy fits" if comparison.exit_code == 1 else "no plan was found within the time limit"
        return f"{takes}{forbidden}; {none}"
    if abs(comparison.saved_seconds) <= SAME_SECONDS:
        return f"{takes}{forbidden}; no plan is faster"
    proof = "" if comparison.exit_code == 0 else ", not proven best,"
    word = "less" if comparison.saved_seconds > 0 else "more"
    noise = "; the difference is within the noise of the predictions" if whole.within_noise else ""
    return (
        f"{takes}{forbidden}; the fastest plan{proof} takes {seconds(whole.best.step_time_seconds)} s, "
        f"{abs(comparison.saved_fraction):.1%} {word}: {abs(comparison.saved_days):,.2f} days and "
        f"{abs(comparison.saved_gpu_hours):,.0f} GPU-hours {word}{noise}"
    )


def _gains(given: PlanRecord, best: PlanRecord) -> Section:
    """Figures of both, but for their devices, and the differences."""
    return Section(
        title="The given strategy against the fastest plan",
        header=("", "given", "best", "difference"),
        rows=tuple(_gain(name, given, best) for name in FIGURES if name != "GPUs"),
    )


def _gain(name: str, given: PlanRecord, best: PlanRecord) -> tuple[str, ...]:
    path, text = FIGURES[name]
    ours, theirs = attrgetter(path)(given), attrgetter(path)(best)
    more = text(abs(theirs - ours))
    is_nothing = not any(digit in more for digit in "123456789")
    difference = NOTHING if is_nothing else f"{'+' if theirs > ours else '-'}{more}"
    return (name, text(ours), text(theirs), difference)
