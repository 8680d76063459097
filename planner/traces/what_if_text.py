"""A changed step for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from costmodel.traces.breakdown import Breakdown
from costmodel.traces.change import Layout
from planner.report.console import sections_text
from planner.report.section import Section, numbered
from planner.traces.what_if import WhatIf

PARTS = ("computation", "communication", "overlapped", "idle")
"""Parts of a step in the order of the table."""


def what_if_json(found: WhatIf) -> str:
    """As JSON."""
    said = {
        "seconds": found.seconds,
        "traced_seconds": found.traced_seconds,
        "replayed_seconds": found.replayed_seconds,
        "before": {str(rank): asdict(one) for rank, one in found.before.items()},
        "after": {str(rank): asdict(one) for rank, one in found.after.items()},
        "doubts": list(found.doubts),
    }
    return json.dumps(said, indent=2, ensure_ascii=False)


def what_if_text(found: WhatIf) -> str:
    """As text."""
    return sections_text(_sections(found))


def _sections(found: WhatIf) -> Iterator[Section]:
    error = found.replayed_seconds / found.traced_seconds - 1
    rows = [
        ("recorded", f"{_ms(found.traced_seconds)} ms per step; its replay {error:+.1%}"),
        ("changed", f"{_ms(found.seconds)} ms per step, {found.seconds / found.traced_seconds - 1:+.1%}"),
    ]
    if found.layouts is not None:
        rows += [("layout", f"{_layout(found.layouts[0])}; changed: {_layout(found.layouts[1])}")]
    yield Section(title="What if", rows=tuple(rows))
    yield _table("Recorded step, replayed", "rank", found.before)
    yield _table("Changed step", "stage" if found.layouts else "rank", found.after)
    if found.doubts:
        yield Section(title="What is missing or guessed", rows=numbered(found.doubts))


def _table(title: str, rank: str, parts: Mapping[int, Breakdown]) -> Section:
    rows = tuple(
        (str(number), *(_ms(getattr(one, part) * 1e-9) for part in PARTS), _ms(one.total * 1e-9))
        for number, one in parts.items()
    )
    header = (rank, "computation alone, ms", "communication alone, ms", "both, ms", "neither, ms", "step, ms")
    return Section(title=title, header=header, rows=rows)


def _layout(one: Layout) -> str:
    pipeline = f"pp {one.pp}" + (f", vpp {one.vpp}" if one.vpp > 1 else "")
    return f"{one.num_layers} layers, {pipeline}, dp {one.dp}, {one.num_microbatches} micro-batches"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
