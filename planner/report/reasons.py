"""What an explanation says to people, as sections; other reports have their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from costmodel.strategy import decision_text
from planner.explanation.compare import Comparison
from planner.explanation.explain import Binding, Difference, Explanation, Kind
from planner.jobs.problem import StageChoice
from planner.report.conflicts import conflict_sections, missing_notes, strategy_text
from planner.report.section import Section
from planner.report.sections import closest_sections, memory_section, sections, setting_section, strategies_section
from planner.report.wording import NOTHING, gib, seconds

if TYPE_CHECKING:
    from planner.plan import EstimateReport, Plan, PlanReport

TELLING_SHARE = 0.001
"""Share of a step from which on a difference is worth a line."""


def all_sections(report: PlanReport | EstimateReport | Explanation | Comparison) -> Iterator[Section]:
    """The sections of any report, in reading order."""
    if isinstance(report, Comparison):
        from planner.report.compared import compared_sections

        return compared_sections(report)
    return _explained(report) if isinstance(report, Explanation) else sections(report)


def _explained(explanation: Explanation) -> Iterator[Section]:
    yield _question(explanation)
    if explanation.asked:
        yield from _forbidden(explanation)
        yield from _compared(explanation)
    elif explanation.best:
        yield strategies_section([explanation.best.estimate])
        yield from binding_sections(explanation)
    conflict = explanation.conflict
    if conflict and not explanation.given:
        yield from conflict_sections(explanation.problem, conflict)
        yield from closest_sections(explanation.question or explanation.report)
    if explanation.left_out:
        yield Section(title="What is not known", rows=tuple(("note", text) for text in explanation.left_out))


# --- the question ------------------------------------------------------------------------------------------


def _question(explanation: Explanation) -> Section:
    setting = setting_section(explanation.report)
    kept = tuple(row for row in setting.rows if row[0] != "answer")
    asked = " ".join(f"{name}={decision_text(name, value)}" for name, value in explanation.asked.items())
    alone = "why does nothing fit?" if explanation.conflict else "what holds the plan back?"
    return Section(
        title=setting.title,
        rows=(
            kept[0],
            ("question", f"why not {asked}?" if asked else alone),
            ("answer", _answer(explanation)),
            *kept[1:],
        ),
    )


def _answer(explanation: Explanation) -> str:
    best = explanation.best
    if explanation.asked:
        return _answer_of_asked(explanation)
    if best is None:
        (text,) = (row[1] for row in setting_section(explanation.report).rows if row[0] == "answer")
        return text
    proof = "" if explanation.report.exit_code == 0 else " (not proven best: time ran out)"
    plan = f"the best plan takes {seconds(best.step_seconds)} s per step{proof}"
    if not explanation.bindings:
        late = "time ran out before it was known what holds it back"
        return f"{plan}; {late if explanation.left_out else 'no single constraint holds it back'}"
    first, base = explanation.bindings[0], explanation.compared_seconds
    faster = f"{first.saved_fraction:.1%} less"
    of_base = f" than the {seconds(base)} s of even stages" if _is_another(explanation) else ""
    return f"{plan}; {constraint_text(first)} costs most: without it {faster}{of_base}"


def _is_another(explanation: Explanation) -> bool:
    """Whether the best plan's step is not what relaxations are compared with: even stages, by the closed form."""
    best, base = explanation.best, explanation.compared_seconds
    return best is not None and abs(base - best.step_seconds) > PLAYED_FRACTION * base


PLAYED_FRACTION = 0.005
"""Of a step: what playing a pipeline with even stages through may add to its closed form."""


def _answer_of_asked(explanation: Explanation) -> str:
    best, given = explanation.best, explanation.given
    if given is None:
        status = explanation.question.exit_code if explanation.question else 1
        return "no strategy that has it fits" if status == 1 else "none was found within the time limit"
    which = "the best strategy that has it" if explanation.question else "it"
    allowed = "" if not explanation.broken_rules else "; rules forbid it"
    opposed = ", and the job's own entries name other values" if explanation.opposed else ""
    if best is None:
        return f"{which} takes {seconds(given.step_seconds)} s per step{allowed}{opposed}; the job itself has no plan"
    slower = given.step_seconds - best.step_seconds
    if abs(slower) <= SAME_SECONDS:
        return f"{which} is as fast as the best plan, {seconds(best.step_seconds)} s per step{allowed}{opposed}"
    word = "slower" if slower > 0 else "faster"
    noise = "; that is within the noise of predictions" if slower > 0 and given.is_within_noise(best) else ""
    return (
        f"{which} takes {seconds(given.step_seconds)} s per step, {seconds(abs(slower))} s "
        f"({abs(slower) / best.step_seconds:.1%}) {word} than the best plan{noise}{allowed}{opposed}"
    )


SAME_SECONDS = 2e-6
"""What the solver's rounding may hide between two strategies."""


# --- a strategy that was asked about -----------------------------------------------------------------------


def _forbidden(explanation: Explanation) -> Iterator[Section]:
    if explanation.opposed:
        yield Section(
            title="Entries of the job that forbid it; the rest is without them",
            rows=tuple((str(number), text) for number, text in enumerate(explanation.opposed, start=1)),
        )
    yield from broken_sections(explanation.broken_rules)


def broken_sections(rules: Sequence[str]) -> Iterator[Section]:
    """What forbids a given strategy."""
    if rules:
        yield Section(
            title="Forbidden: this strategy breaks",
            rows=tuple((str(number), text) for number, text in enumerate(rules, start=1)),
        )


def _compared(explanation: Explanation) -> Iterator[Section]:
    best, given = explanation.best, explanation.given
    if given is None:
        return
    table = strategies_section([one.estimate for one in (best, given) if one])
    which = "the best strategy that has what was asked about" if explanation.question else "what was asked about"
    notes = (f"1: the best plan; 2: {which}.",) if best else ()
    yield Section(title=table.title, header=table.header, rows=table.rows, notes=(*notes, *table.notes[-1:]))
    if best and abs(given.step_seconds - best.step_seconds) > SAME_SECONDS:
        yield differences_section(explanation.differences, best, given)
    missing = tuple(missing_notes(explanation.problem, given.estimate))
    if missing:
        section = memory_section(explanation.report, given.estimate)
        yield Section(title=section.title, header=section.header, rows=section.rows, notes=(*section.notes, *missing))


def differences_section(lines: Sequence[Difference], best: Plan, given: Plan, which: str = "asked") -> Section:
    """Where two steps differ, line by line."""
    telling = [one for one in lines if abs(one.seconds) > TELLING_SHARE * best.step_seconds]
    rows = [
        (one.name, seconds(one.best_seconds), seconds(one.given_seconds), f"{one.seconds:+,.3f}") for one in telling
    ]
    rest = given.step_seconds - best.step_seconds - sum(one.seconds for one in telling)
    whole = given.step_seconds - best.step_seconds
    return Section(
        title="Where the time goes, largest difference first",
        header=("part", "best, s", f"{which}, s", "difference, s"),
        rows=(
            *rows,
            *([("others", NOTHING, NOTHING, f"{rest:+,.3f}")] if abs(rest) >= SHOWN_SECONDS else []),
            ("step", seconds(best.step_seconds), seconds(given.step_seconds), f"{whole:+,.3f}"),
        ),
    )


SHOWN_SECONDS = 5e-4
"""What three digits behind the point can show."""


# --- what holds a plan back --------------------------------------------------------------------------------


def _even_note(explanation: Explanation) -> Iterator[str]:
    if explanation.report.problem.search.stages != StageChoice.EVEN:
        base = seconds(explanation.compared_seconds)
        yield f"Closed forms of strategies with even stages are compared; the best of those takes {base} s."


def binding_sections(explanation: Explanation) -> Iterator[Section]:
    """What holds a plan back, what would be chosen without it, and what does not."""
    if explanation.bindings:
        yield Section(
            title="What holds it back, each constraint relaxed alone",
            header=("#", "constraint", "step, s", "faster by"),
            rows=tuple(
                (
                    str(number),
                    constraint_text(one),
                    seconds(one.step_seconds),
                    f"{one.saved_fraction:.2%}",
                )
                for number, one in enumerate(explanation.bindings, start=1)
            ),
            notes=(*_next(explanation), *_even_note(explanation)),
        )
        yield Section(
            title="What would be chosen then",
            rows=tuple(
                (str(number), strategy_text(one.strategy))
                for number, one in enumerate(explanation.bindings, start=1)
                if one.strategy
            ),
        )
    if explanation.idle:
        yield Section(
            title="What does not hold it back: nothing is faster without",
            rows=tuple((str(number), text) for number, text in enumerate(explanation.idle, start=1)),
        )


def constraint_text(binding: Binding) -> str:
    """A constraint as a noun, or as its rule's own sentence."""
    words = {
        Kind.MEMORY: "device memory",
        Kind.HOST_MEMORY: "host memory",
        Kind.HEADROOM: "the headroom",
        Kind.FRAMEWORKS: "the rules of frameworks",
    }
    return words.get(binding.kind, binding.what.rstrip("."))


def _next(explanation: Explanation) -> Iterator[str]:
    for one in explanation.bindings:
        if one.next_strategy and one.missing_bytes is not None and one.next_seconds is not None:
            yield (
                f"The next faster strategy needs {gib(one.missing_bytes)} GiB more per GPU: "
                f"{seconds(one.next_seconds)} s with {strategy_text(one.next_strategy)}."
            )
