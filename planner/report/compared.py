"""The sections of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.explanation.compare import Comparison
from planner.report.conflicts import broken_sections, nothing_sections
from planner.report.memory import missing_sections
from planner.report.reasons import SAME_SECONDS, differences_section
from planner.report.records.explained import ComparisonRecord
from planner.report.section import Section
from planner.report.setting import setting_section
from planner.report.strategies import strategies_section
from planner.report.wording import NOTHING, gib, seconds

if TYPE_CHECKING:
    from planner.report.records.plan import PlanRecord


def compared_sections(comparison: Comparison) -> Iterator[Section]:
    """The sections of a comparison, in reading order."""
    whole = ComparisonRecord.of(comparison)
    given, best = whole.given, whole.best
    answer = ("answer", _answer(comparison, whole))
    yield setting_section(comparison.problem, whole, answer, best=best, assumed=whole.assumed)
    yield from broken_sections(whole.broken_rules)
    table = strategies_section([given.strategy, *([best.strategy] if best else [])])
    notes = ("1: the given strategy; 2: the best plan.", *table.notes[-1:]) if best else table.notes
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
    forbidden = ", but rules forbid it" if whole.broken_rules else ""
    if whole.best is None:
        none = "no strategy fits" if comparison.exit_code == 1 else "no plan was found within the time limit"
        return f"{takes}{forbidden}; {none}"
    if abs(comparison.saved_seconds) <= SAME_SECONDS:
        return f"{takes}{forbidden}; no plan is faster"
    proof = "" if comparison.exit_code == 0 else ", not proven best,"
    word = "less" if comparison.saved_seconds > 0 else "more"
    noise = "; the difference is within the noise of the predictions" if whole.within_noise else ""
    return (
        f"{takes}{forbidden}; the best plan{proof} takes {seconds(whole.best.step_time_seconds)} s, "
        f"{abs(comparison.saved_fraction):.1%} {word}: {abs(comparison.saved_days):,.2f} days and "
        f"{abs(comparison.saved_gpu_hours):,.0f} GPU-hours {word}{noise}"
    )


def _gains(given: PlanRecord, best: PlanRecord) -> Section:
    """Figures of both, and their differences."""
    lines: tuple[tuple[str, Callable[[PlanRecord], float], Callable[[float], str]], ...] = (
        ("step, s", lambda one: one.step_time_seconds, lambda value: f"{value:,.3f}"),
        ("tokens/s/GPU", lambda one: one.tokens_per_second_per_gpu, lambda value: f"{value:,.1f}"),
        ("TFLOP/s/GPU", lambda one: one.model_tflops_per_gpu, lambda value: f"{value:,.1f}"),
        ("MFU", lambda one: one.mfu, lambda value: f"{value:.1%}"),
        ("HFU", lambda one: one.hfu, lambda value: f"{value:.1%}"),
        ("peak GiB", lambda one: one.peak_memory_bytes, gib),
        ("free GiB", lambda one: one.headroom_bytes, gib),
        ("host memory GiB", lambda one: one.host_memory_bytes, gib),
        ("steps per checkpoint", lambda one: one.checkpoint.interval_steps, lambda value: f"{value:,.0f}"),
        ("ETTR", lambda one: one.training_run.ettr, lambda value: f"{value:.2%}"),
        ("days", lambda one: one.training_run.days, lambda value: f"{value:,.2f}"),
        ("GPU-hours", lambda one: one.training_run.gpu_hours, lambda value: f"{value:,.0f}"),
    )
    rows = ((name, text(of(given)), text(of(best)), _signed(of(best) - of(given), text)) for name, of, text in lines)
    return Section(
        title="The given strategy against the best plan", header=("", "given", "best", "difference"), rows=tuple(rows)
    )


def _signed(value: float, text: Callable[[float], str]) -> str:
    shown = text(abs(value))
    is_nothing = not any(digit in shown for digit in "123456789")
    return NOTHING if is_nothing else f"{'+' if value > 0 else '-'}{shown}"
