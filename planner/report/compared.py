"""The sections of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.report.compared_two import figures_section, memory_section, two_sections
from planner.report.conflicts import forbidden_rules_sections, nothing_sections, preference_sections
from planner.report.gain import gain_section, verdict
from planner.report.memory import missing_sections
from planner.report.published import doubt_rows
from planner.report.reasons import SAME_SECONDS, differences_section
from planner.report.records.explained import ComparisonRecord
from planner.report.section import Section
from planner.report.setting import setting_section
from planner.report.strategies import completion_rows, strategies_section
from planner.report.wording import money, seconds
from planner.verbs.compare import Comparison


def comparison_sections(comparison: Comparison) -> Iterator[Section]:
    """Build the sections of a comparison, in reading order."""
    whole = ComparisonRecord.build(comparison)
    if comparison.sides:
        yield from two_sections(comparison, whole)
        return
    given, best = whole.given, whole.best
    answer = ("answer", _answer(comparison, whole))
    lines = [
        ("line", given.line),
        *completion_rows(comparison.given),
        *([("recommended line", best.line)] if best else []),
    ]
    rows = (*doubt_rows(best or given), *_name_rows(comparison), answer)
    yield setting_section(comparison.problem, whole, *rows, best=best, lines=lines)
    yield from forbidden_rules_sections(whole.broken_rules)
    yield from preference_sections(whole.broken_preferences)
    table = strategies_section([given.strategy, *([best.strategy] if best else [])])
    notes = ("1: the given strategy; 2: the recommended plan.", *table.notes[-1:]) if best else table.notes
    yield replace(table, notes=notes)
    if best:
        yield figures_section("The given strategy against the recommended plan", given, best, ("given", "best"))
        if abs(comparison.saved_seconds) > SAME_SECONDS:
            if whole.apart.gain:
                yield gain_section(whole.apart.gain, ("given", "best"))
            yield differences_section(whole.differences, best, given, "given")
            yield memory_section(whole.apart.memory, ("best", "given"))
    else:
        yield from nothing_sections(whole, whole.conflict)
    yield from missing_sections(whole, given)


def _name_rows(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Build the row with the name of the given strategy, if it has one."""
    if comparison.given_name:
        yield "given", comparison.given_name


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
    assert whole.apart.gain is not None, "there is a plan"
    return (
        f"{takes}{forbidden}; the recommended plan{proof} takes {seconds(whole.best.step_time_seconds)} s and "
        f"{verdict(whole.apart.gain, 'the given one')}; as predicted {abs(comparison.saved_days):,.2f} days and "
        f"{abs(comparison.saved_gpu_hours):,.0f} GPU-hours{_money(whole)} {word}"
    )


def _money(whole: ComparisonRecord) -> str:
    """Return the difference in money as a clause; empty without prices."""
    saved = whole.apart.saved_costs.total_cost if whole.apart.saved_costs else None
    return "" if saved is None else f", {money(abs(saved), whole.job.costs.currency)}"
