"""What a comparison with traces says to people, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from planner.report.console import table_lines
from planner.report.wording import NOTHING
from planner.traces.compare import ComparedPart, ComparedStep

HEADER = ("part", "planner, ms", "trace, ms", "difference", "of step", "hidden, planner", "hidden, trace")


def compared_text(found: ComparedStep) -> str:
    """A table, the largest difference, and what could not be laid side by side."""
    return "\n".join(_lines(found))


def _lines(found: ComparedStep) -> Iterator[str]:
    ranks = "1 rank" if found.num_ranks == 1 else f"{found.num_ranks} ranks"
    yield f"{found.job}: the planner's step is {found.error:+.1%} off the recorded one ({ranks})"
    if found.operator_times:
        yield f"operator times: {', '.join(found.operator_times)}"
    yield ""
    whole = ComparedPart(name="step", predicted_seconds=found.predicted_seconds, traced_seconds=found.traced_seconds)
    yield from table_lines(HEADER, [_row(one, found.traced_seconds) for one in (*found.parts, whole)])
    worst = max(found.parts, key=lambda one: abs(one.difference_seconds))
    yield ""
    yield (
        f"Where they differ most: {worst.name}, by {worst.difference_seconds / found.traced_seconds:+.1%} of the "
        "recorded step."
    )
    yield from found.doubts


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


def compared_json(found: ComparedStep) -> str:
    """The same as data; seconds."""
    parts = [
        {
            "name": one.name,
            "predicted_seconds": one.predicted_seconds,
            "traced_seconds": one.traced_seconds,
            "difference_seconds": one.difference_seconds,
            "predicted_hidden_seconds": one.predicted_hidden_seconds,
            "traced_hidden_seconds": one.traced_hidden_seconds,
        }
        for one in found.parts
    ]
    document = {
        "job": found.job,
        "predicted_seconds": found.predicted_seconds,
        "traced_seconds": found.traced_seconds,
        "error": found.error,
        "num_ranks": found.num_ranks,
        "operator_times": list(found.operator_times),
        "parts": parts,
        "doubts": list(found.doubts),
    }
    return json.dumps(document, indent=2)
