"""What a comparison says to people, as sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from costmodel.strategy import decision_text
from planner.explanation.compare import Comparison
from planner.report.conflicts import conflict_sections, missing_notes
from planner.report.reasons import SAME_SECONDS, broken_sections, differences_section
from planner.report.section import Section
from planner.report.sections import closest_sections, memory_section, setting_section, strategies_section
from planner.report.wording import NOTHING, gib, seconds

if TYPE_CHECKING:
    from planner.plan import Plan


def compared_sections(comparison: Comparison) -> Iterator[Section]:
    """The sections of a comparison, in reading order."""
    yield _setting(comparison)
    yield from broken_sections(comparison.given.broken_rules)
    given, best = comparison.given.plan, comparison.best
    table = strategies_section([given.estimate, *([best.estimate] if best else [])])
    notes = ("1: what is given; 2: the best plan.", *table.notes[-1:]) if best else table.notes
    yield Section(title=table.title, header=table.header, rows=table.rows, notes=notes)
    if best:
        yield _gains(given, best)
        if abs(comparison.saved_seconds) > SAME_SECONDS:
            yield differences_section(comparison.differences, best, given, "given")
    elif comparison.report.outcome.conflict:
        yield from conflict_sections(comparison.problem, comparison.report.outcome.conflict)
        yield from closest_sections(comparison.report)
    missing = tuple(missing_notes(comparison.problem, given.estimate))
    if missing:
        section = memory_section(comparison.given, given.estimate)
        yield Section(title=section.title, header=section.header, rows=section.rows, notes=(*section.notes, *missing))


def _setting(comparison: Comparison) -> Section:
    setting = setting_section(comparison.report)
    kept = [row for row in setting.rows if row[0] != "answer"]
    assumed = " ".join(f"{name}={decision_text(name, value)}" for name, value in comparison.given.assumed.items())
    return Section(
        title=setting.title,
        rows=(
            kept[0],
            ("answer", _answer(comparison)),
            *kept[1:],
            *((("assumed", f"{assumed} (not given)"),) if assumed else ()),
        ),
    )


def _answer(comparison: Comparison) -> str:
    given, best = comparison.given.plan, comparison.best
    takes = f"what is given takes {seconds(given.step_seconds)} s per step"
    forbidden = ", but rules forbid it" if comparison.given.broken_rules else ""
    if best is None:
        none = "nothing fits" if comparison.exit_code == 1 else "no plan was found within the time limit"
        return f"{takes}{forbidden}; {none}"
    if abs(comparison.saved_seconds) <= SAME_SECONDS:
        return f"{takes}{forbidden}; no plan is faster"
    proof = "" if comparison.exit_code == 0 else ", not proven best,"
    word = "less" if comparison.saved_seconds > 0 else "more"
    noise = "; that is within the noise of predictions" if comparison.is_within_noise else ""
    return (
        f"{takes}{forbidden}; the best plan{proof} takes {seconds(best.step_seconds)} s, "
        f"{abs(comparison.saved_fraction):.1%} {word}: {abs(comparison.saved_days):,.2f} days and "
        f"{abs(comparison.saved_gpu_hours):,.0f} GPU-hours {word}{noise}"
    )


def _gains(given: Plan, best: Plan) -> Section:
    """Figures of both, and their differences."""
    lines: tuple[tuple[str, Callable[[Plan], float], Callable[[float], str]], ...] = (
        ("step, s", lambda one: one.step_seconds, lambda value: f"{value:,.3f}"),
        ("tokens/s/GPU", lambda one: one.tokens_per_second_per_device, lambda value: f"{value:,.1f}"),
        ("TFLOP/s/GPU", lambda one: one.model_flops_per_second_per_device / 1e12, lambda value: f"{value:,.1f}"),
        ("MFU", lambda one: one.mfu, lambda value: f"{value:.1%}"),
        ("HFU", lambda one: one.hfu, lambda value: f"{value:.1%}"),
        ("peak GiB", lambda one: one.estimate.device_bytes, gib),
        ("free GiB", lambda one: one.headroom_bytes, gib),
        ("host GiB", lambda one: one.estimate.host_bytes, gib),
        ("steps per checkpoint", lambda one: one.schedule.interval_steps, lambda value: f"{value:,.0f}"),
        ("ETTR", lambda one: one.schedule.ettr, lambda value: f"{value:.2%}"),
        ("days", lambda one: one.schedule.days, lambda value: f"{value:,.2f}"),
        ("GPU-hours", lambda one: one.schedule.gpu_hours, lambda value: f"{value:,.0f}"),
    )
    rows = ((name, text(of(given)), text(of(best)), _signed(of(best) - of(given), text)) for name, of, text in lines)
    return Section(title="What the best plan gains", header=("", "given", "best", "difference"), rows=tuple(rows))


def _signed(value: float, text: Callable[[float], str]) -> str:
    shown = text(abs(value))
    is_nothing = not any(digit in shown for digit in "123456789")
    return NOTHING if is_nothing else f"{'+' if value > 0 else '-'}{shown}"
