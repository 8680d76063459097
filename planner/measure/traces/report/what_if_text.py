"""A changed step as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from planner.measure.traces.breakdown import Breakdown
from planner.measure.traces.change import Layout
from planner.measure.traces.report.replay.report import document_of
from planner.measure.traces.report.replay.text import PARTS
from planner.measure.traces.report.what_if import ChangedStep, WhatIf
from planner.report.console import sections_text
from planner.report.section import PLAIN, Screen, Section, number_rows

RUN = "Both in a longer run, in which each rank begins a step at the end of the one before."

LEAST_FACTOR = 0.001
"""Difference of a factor from one above which it is reported."""


def what_if_json(found: WhatIf) -> str:
    """Write a changed step as JSON."""
    return json.dumps(document_of(found, ChangedStep), indent=2, ensure_ascii=False)


def what_if_text(found: WhatIf, screen: Screen = PLAIN) -> str:
    """Write a changed step as text."""
    return sections_text(_sections(found), screen)


def _sections(found: WhatIf) -> Iterator[Section]:
    error = _more(found.replayed_seconds, found.traced_seconds)
    verdict = "" if found.usable else ": not usable"
    rows = [
        ("recorded", f"{_ms(found.traced_seconds)} ms per step; its replay {error}{verdict}"),
        ("changed", f"{_ms(found.seconds)} ms per step, {_more(found.seconds, found.traced_seconds)}"),
    ]
    if found.layouts is not None:
        rows += [("layout", f"{_layout(found.layouts[0])}; changed: {_layout(found.layouts[1])}")]
    yield Section(title="Changed step", rows=tuple(rows))
    yield _table("Recorded step, replayed", "rank", found.before, RUN)
    yield _table("Changed step, replayed", "stage" if found.layouts else "rank", found.after, *_scale(found))
    if found.doubts:
        yield Section(title="Missing or guessed", rows=number_rows(found.doubts))


def _scale(found: WhatIf) -> Iterator[str]:
    """Yield the factor from the longest replayed step to the answer, unless it is one."""
    factor = found.seconds / (max(one.total for one in found.after.values()) * 1e-9)
    if abs(factor - 1) >= LEAST_FACTOR:
        yield f"The answer is the longest times {factor:.3f}: recorded over replayed, of the unchanged step."


def _more(seconds: float, traced_seconds: float) -> str:
    """
    Format a difference from the recorded step.

    >>> _more(1.5, 1.0), _more(1 - 1e-9, 1.0)
    ('+50.0%', '+0.0%')
    """
    return f"{round(seconds / traced_seconds - 1, 3) + 0.0:+.1%}"


def _table(title: str, rank: str, parts: Mapping[int, Breakdown], *notes: str) -> Section:
    rows = tuple(
        (str(number), *(_ms(getattr(one, part) * 1e-9) for part in PARTS), _ms(one.total * 1e-9))
        for number, one in parts.items()
    )
    header = (rank, "computation alone, ms", "communication alone, ms", "overlapped, ms", "idle, ms", "step, ms")
    return Section(title=title, header=header, rows=rows, notes=notes)


def _layout(one: Layout) -> str:
    pipeline = f"pp {one.pp}" + (f", vpp {one.vpp}" if one.vpp > 1 else "")
    return f"{one.num_layers} layers, {pipeline}, dp {one.dp}, {one.num_microbatches} micro-batches"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
