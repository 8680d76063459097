"""Comparison with traces as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from planner.measure.traces.report.comparison.compare import ComparedPart, ComparedRank, ComparedStep
from planner.measure.traces.report.comparison.kinds import OTHER
from planner.measure.traces.report.replay.text import printable
from planner.report.console import sections_text
from planner.report.records.record import finite
from planner.report.screen import PLAIN, Screen
from planner.report.section import Section, number_rows
from planner.report.wording import NOTHING

HEADER = ("part", "planner", "trace", "difference", "of the step", "hidden: planner", "hidden: trace")


def write_comparison_text(found: ComparedStep, screen: Screen = PLAIN) -> str:
    """Write the comparison as text: its ranks and devices, a table, the largest difference, and doubts."""
    return sections_text(_sections(found), screen)


def _sections(found: ComparedStep) -> Iterator[Section]:
    planned, traced = (f"{1e3 * one:,.2f} ms" for one in (found.predicted_seconds, found.traced_seconds))
    yield Section(
        title=f"{printable(found.job)}: the planner's step and the traced one",
        rows=(
            ("answer", f"{planned} planned, {traced} traced: {found.error:+.1%}"),
            ("ranks", _ranks(found)),
            ("iteration", _iterations(found.ranks)),
            ("device", f"{found.device} in the job, {printable(found.traced_device)} in the trace"),
            *((("operator times", ", ".join(found.operator_times)),) if found.operator_times else ()),
        ),
    )
    yield _table(found)
    if found.doubts:
        yield Section(title="Missing, inferred or not comparable", rows=number_rows(map(printable, found.doubts)))


def _ranks(found: ComparedStep) -> str:
    """Describe the ranks, their stages, and the averaging of the columns."""
    if found.ranks[0].rank is None:
        return "one, whose number was not recorded; both columns are of it"
    several, stages = len(found.ranks) > 1, sorted({one.stage for one in found.ranks})
    text = ", ".join(str(one.rank) for one in found.ranks)
    if found.num_stages > 1:
        text += (
            f", on pipeline stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))} of 0 to {found.num_stages - 1}"
        )
    return f"{text}; both columns are {'means over them' if several else 'of it'}"


def _iterations(ranks: Sequence[ComparedRank]) -> str:
    """Describe the iteration of each rank."""
    names = list(dict.fromkeys(one.iteration for one in ranks))
    number = max(one.num_iterations for one in ranks)
    which = f"{', '.join(map(printable, names))}, of median length of {number}" if number > 1 else printable(names[0])
    return which + ("" if len(ranks) == 1 or len(names) > 1 else ", the same on all ranks")


def _table(found: ComparedStep) -> Section:
    seconds = found.predicted_seconds, found.traced_seconds
    whole = ComparedPart("step", *seconds, 0.0, 0.0, seconds[0] - seconds[1])
    rows = [_row(one, found.traced_seconds) for one in (*found.parts, whole)]
    is_hidden = any(one.predicted_hidden_seconds or one.traced_hidden_seconds for one in found.parts)
    columns = len(HEADER) if is_hidden else len(HEADER) - 2
    worst = max(found.parts, key=lambda one: abs(one.difference_seconds))
    notes = [
        f"They differ most in {worst.name}: {worst.difference_seconds / found.traced_seconds:+.1%} of the traced step."
    ]
    if is_hidden:
        notes.append("Hidden: communication behind computation, which adds nothing to the step.")
    if any(one.name == OTHER and one.traced_seconds for one in found.parts):
        notes.append("Other: traced computation outside of the job's operators with sizes.")
    return Section(
        title="Breakdown of the step, ms",
        header=HEADER[:columns],
        rows=tuple(row[:columns] for row in rows),
        notes=tuple(notes),
    )


def _row(one: ComparedPart, step: float) -> tuple[str, ...]:
    hidden = (one.predicted_hidden_seconds, one.traced_hidden_seconds)
    return (
        one.name,
        _milliseconds(one.predicted_seconds),
        _milliseconds(one.traced_seconds),
        f"{1e3 * one.difference_seconds:+,.2f}",
        f"{one.difference_seconds / step:+.1%}",
        *(_milliseconds(value) if any(hidden) else "" for value in hidden),
    )


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:,.2f}" if value else NOTHING


def write_comparison_json(found: ComparedStep) -> str:
    """Write the comparison as JSON, in seconds."""
    return json.dumps(finite(asdict(found)), indent=2)
