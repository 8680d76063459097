"""The sections of an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.jobs.line import write_completed, write_words
from planner.jobs.strategy_file import LAYOUT
from planner.report.conflicts import forbidden_rules_sections, none_text, nothing_sections, preference_sections
from planner.report.memory import missing_sections
from planner.report.results import doubt_rows, setting_section
from planner.report.section import NOTHING, Section, gib, number_rows, part_label, seconds
from planner.report.strategies import ORIGIN, strategies_section
from planner.uncertainty.peaks import RUNS_FAST, STARTS
from planner.verbs.explain import Difference, Explanation

if TYPE_CHECKING:
    from planner.report.records.explained import BindingRecord, ExplanationRecord
    from planner.report.records.plan import PlanRecord

REPORTED_SHARE = 0.001
"""Smallest difference that gets a line, as a share of the step."""


def explanation_sections(whole: ExplanationRecord) -> Iterator[Section]:
    """Build the sections of an explanation, in reading order."""
    yield _question(whole)
    if whole.opposed_entries:
        title = "Entries of the job that forbid it; what follows ignores them"
        yield Section(title=title, rows=number_rows(whole.opposed_entries))
    yield from forbidden_rules_sections(whole.broken_rules)
    yield from preference_sections(whole.broken_preferences)
    if whole.asked:
        yield from _alternative_sections(whole)
    elif whole.best:
        yield strategies_section([whole.best.strategy])
        yield from binding_sections(whole.explanation, whole.bindings)
    if not whole.given:
        yield from nothing_sections(whole, whole.conflict)
    if whole.left_out:
        yield Section(title="Not known", rows=tuple(("note", text) for text in whole.left_out))


# --- the question ------------------------------------------------------------------------------------------


def _question(whole: ExplanationRecord) -> Section:
    explanation = whole.explanation
    general = "why does nothing fit?" if whole.conflict else "which constraints bind the fastest plan?"
    asked = write_words(explanation.problem.facts.model, explanation.asked)
    stages = [f"layout={own}" for name, own in whole.asked.items() if name == LAYOUT]
    question = f"why not {' '.join([*([asked] if asked else []), *stages])}?" if whole.asked else general
    answer = _answer_of_asked(whole) if whole.asked else _answer(whole)
    shown = whole.given if whole.asked else whole.best
    lines = [("line" if whole.asked else "fastest line", shown.line), *_completion_rows(explanation)] if shown else []
    rows = (*doubt_rows(whole.best), ("question", question), ("answer", answer))
    return setting_section(whole, *rows, best=whole.best, lines=lines)


def _completion_rows(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Build the row on the decisions that a search chose for a strategy that was asked about in part."""
    if explanation.question and explanation.given:
        given = explanation.given
        words = write_completed(given.facts, given.strategy, explanation.question.problem.search.pin)
        yield "completed", f"{words or 'no decision of the line'} ({ORIGIN['search']})"


def _answer(whole: ExplanationRecord) -> str:
    best, explanation = whole.best, whole.explanation
    if best is None:
        return none_text(whole.conflict)
    proof = "" if explanation.report.exit_code == 0 else " (not proven best: time ran out)"
    plan = f"the fastest plan takes {seconds(best.step_time_seconds)} s per step{proof}"
    if not explanation.bindings:
        late = "time ran out before it was known which constraint binds"
        return f"{plan}; {late if whole.left_out else 'no single constraint binds'}"
    first, base = explanation.bindings[0], explanation.compared_seconds
    shorter = f"the step would be {first.saved_fraction:.1%} shorter"
    is_base = abs(base - best.step_time_seconds) <= SIMULATED_FRACTION * base
    of_base = "" if is_base else f" than the {seconds(base)} s of even stages"
    return f"{plan}; {constraint_text(whole.bindings[0])} binds most: without it {shorter}{of_base}"


SIMULATED_FRACTION = 0.005
"""Share of a step by which the simulation of a pipeline with even stages may exceed the compared step time."""


def _answer_of_asked(whole: ExplanationRecord) -> str:
    best, given, explanation = whole.best, whole.given, whole.explanation
    if given is None:
        status = explanation.question.exit_code if explanation.question else 1
        return "no strategy with these decisions fits" if status == 1 else "none was found within the time limit"
    which = "the best strategy with these decisions" if explanation.question else "this strategy"
    alone = "; the search leaves it out" if whole.broken_preferences else ""
    allowed = "; rules forbid it" if whole.broken_rules else alone
    opposed = ", and entries of the job contradict it" if whole.opposed_entries else ""
    takes, slower = f"{seconds(given.step_time_seconds)} s per step", whole.slower_seconds
    if best is None or slower is None:
        return f"{which} takes {takes}{allowed}{opposed}; the job itself has no feasible plan"
    if abs(slower) <= SAME_SECONDS:
        return f"{which} is as fast as the fastest plan, {seconds(best.step_time_seconds)} s per step{allowed}{opposed}"
    word = "slower" if slower > 0 else "faster"
    alike = given.plan.is_within_noise(best.plan)
    noise = ", within the model error" if slower > 0 and alike else ""
    return (
        f"{which} takes {takes}, {seconds(abs(slower))} s ({abs(slower) / best.step_time_seconds:.1%}) {word} than the "
        f"fastest plan{noise}{allowed}{opposed}"
    )


SAME_SECONDS = 2e-6
"""Difference in seconds between two strategies that the solver's rounding may hide."""


# --- a strategy that was asked about -----------------------------------------------------------------------


def _alternative_sections(whole: ExplanationRecord) -> Iterator[Section]:
    best, given = whole.best, whole.given
    if given is None:
        return
    table = strategies_section([one.strategy for one in (best, given) if one])
    which = "the best strategy with these decisions" if whole.status_of_asked else "the strategy that was asked about"
    notes = (f"1: the fastest plan; 2: {which}.",) if best else ()
    yield replace(table, notes=(*notes, *table.notes[-1:]))
    if best and abs(given.step_time_seconds - best.step_time_seconds) > SAME_SECONDS:
        yield differences_section(whole.differences, best, given)
    yield from missing_sections(whole, given)


def differences_section(
    lines: Sequence[Difference], best: PlanRecord, given: PlanRecord, which: str = "asked"
) -> Section:
    """Build the table of the differences of two steps, part by part."""
    shown = [one for one in lines if abs(one.difference_seconds) > REPORTED_SHARE * best.step_time_seconds]
    rows = [
        (part_label(one.name), seconds(one.best_seconds), seconds(one.given_seconds), f"{one.difference_seconds:+,.3f}")
        for one in shown
    ]
    whole = given.step_time_seconds - best.step_time_seconds
    rest = whole - sum(one.difference_seconds for one in shown)
    if abs(rest) >= SHOWN_SECONDS:
        rows.append(("others", NOTHING, NOTHING, f"{rest:+,.3f}"))
    rows.append(("step", seconds(best.step_time_seconds), seconds(given.step_time_seconds), f"{whole:+,.3f}"))
    return Section(
        title="Step time by part, largest difference first",
        header=("part", "best, s", f"{which}, s", "difference, s"),
        rows=tuple(rows),
    )


SHOWN_SECONDS = 5e-4
"""Smallest difference in seconds that three decimal places show."""


# --- binding constraints -----------------------------------------------------------------------------------


def _even_note(explanation: Explanation) -> Iterator[str]:
    if explanation.report.problem.search.stages != "even":
        base = seconds(explanation.compared_seconds)
        yield f"Analytic step times of strategies with even stages are compared; the best of these takes {base} s."


def binding_sections(explanation: Explanation, bindings: Sequence[BindingRecord]) -> Iterator[Section]:
    """Build the sections on binding constraints, the best strategy without each, and constraints that do not bind."""
    if bindings:
        yield Section(
            title="Binding constraints, each relaxed alone",
            header=("#", "constraint", "step, s", "faster by"),
            rows=tuple(
                (str(number), constraint_text(one), seconds(own.step_seconds), f"{own.saved_fraction:.2%}")
                for number, (one, own) in enumerate(zip(bindings, explanation.bindings, strict=True), start=1)
            ),
            notes=(*_next(bindings), *_chances(bindings), *_even_note(explanation)),
        )
        yield Section(
            title="Best strategy without each constraint",
            rows=tuple(
                (str(number), one.strategy.line) for number, one in enumerate(bindings, start=1) if one.strategy
            ),
        )
    if explanation.idle:
        yield Section(
            title="Constraints that do not bind: without any one of them nothing is faster",
            rows=number_rows(explanation.idle),
        )


def constraint_text(binding: BindingRecord) -> str:
    """Name a constraint by a noun, or by its rule's own sentence."""
    words: dict[str, str] = {
        "memory": "GPU memory",
        "host_memory": "host memory",
        "headroom": "the headroom",
        "framework_rules": "the rules of the framework",
        "preferences": "the preferences of the search",
        "evidence": "the evidence of measured runs",
    }
    return words.get(binding.kind, binding.constraint.rstrip("."))


def _chances(bindings: Sequence[BindingRecord]) -> Iterator[str]:
    """Word the chances without the headroom and with it: why it is kept."""
    for number, one in enumerate(bindings, start=1):
        if one.chance_to_fit is not None and one.chance_fast is not None:
            yield (
                f"Without the headroom strategy {number} fits with a chance of {one.chance_to_fit:.0%} and is fast "
                f"with one of {one.chance_fast:.0%}; by default the headroom leaves {STARTS:.0%} and {RUNS_FAST:.0%}."
            )


def _next(bindings: Sequence[BindingRecord]) -> Iterator[str]:
    for one in (binding.next_faster for binding in bindings):
        if one and one.strategy and one.missing_bytes is not None and one.step_time_seconds is not None:
            yield (
                f"The faster strategy that needs least memory takes {seconds(one.step_time_seconds)} s and "
                f"{gib(one.missing_bytes)} GiB more per GPU than there is: {one.strategy.line}."
            )
