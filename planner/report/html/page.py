"""A whole page: sections and plots in reading order, with their data, style and scripts in one file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from costmodel.pipelines.simulator import Pass
from costmodel.step.estimate import PARTS, Estimate, SimulatedStep, simulate_step
from costmodel.tables import Facts
from planner.report.compared import comparison_sections
from planner.report.html import content
from planner.report.html.charts import (
    bindings_chart,
    checkpoint_charts,
    differences_chart,
    memory_chart,
    pareto_chart,
    step_range,
    steps_chart,
)
from planner.report.html.costs import cost_charts
from planner.report.html.frame import asset, page_text
from planner.report.html.shown import Shown, ShownReport, comparison_plans, show_report
from planner.report.records import finite
from planner.report.records.explained import ComparisonRecord
from planner.report.records.reports import ReportRecord
from planner.report.results import title_of

MOST_PASSES = 400_000
"""Passes of a step, forward and backward, beyond which it is not simulated: about a second."""

MOST_DRAWN = 110_000
"""Pieces of one timeline that a page holds, 1.2 MB; a longer one keeps its beginning and its end."""

KINDS = ("forward", "backward", "weight")

TICKS = 2**31
"""Ticks into which a step is divided: half a nanosecond of one second."""

WHOLE, UPPER, LOWER = 0, 1, 2
"""Lanes of a rank's line: its whole height, or half of it where a forward and a backward pass run at the same time."""


class Piece(NamedTuple):
    """One rectangle: a pass, or its part of a block of passes, in seconds, on a lane of its rank."""

    kind: str
    rank: int
    stage: int
    microbatch: int
    start: float
    seconds: float
    lane: int


def timeline_of(facts: Facts, estimate: Estimate) -> dict[str, Any] | None:
    """Return the packed timeline of an estimated strategy; None where its step is not simulated."""
    simulated = simulate_step(facts, estimate.strategy, most_passes=MOST_PASSES)
    if simulated is None:
        return None
    strategy = estimate.strategy
    every = [list(own) for _, own in groupby(pieces(simulated), key=lambda piece: piece.rank)]
    most = MOST_DRAWN // len(every)
    cut = any(len(own) > most for own in every)
    shown = [[*own[: most // 2], *own[-(most // 2) :]] if len(own) > most else own for own in every]
    end = simulated.timeline.seconds + sum(simulated.other_seconds.values())
    return {
        "pp": strategy.pp,
        "vpp": strategy.vpp,
        "microbatches": estimate.num_microbatches,
        "passes": sum(map(len, every)),
        "cut": cut,
        "pipeline": simulated.timeline.seconds,
        "end": end,
        "beside": [[name, simulated.other_seconds[name]] for name in PARTS if simulated.other_seconds.get(name)],
        **_pack(shown, num_microbatches=estimate.num_microbatches, tick=end / TICKS),
    }


def pieces(simulated: SimulatedStep) -> Iterator[Piece]:
    """
    Yield the passes one by one, rank by rank in the order of time.

    A block that holds several passes is divided: the halves of a backward pass follow each other, a forward pass
    that overlaps them has the upper half of the line.
    """
    for _, block in groupby(simulated.timeline.passes, key=lambda one: (one.rank, one.start, one.end)):
        yield from _split_block(list(block), simulated)


def _split_block(block: Sequence[Pass], simulated: SimulatedStep) -> Iterator[Piece]:
    forward = [one for one in block if one.kind == "forward"]
    others = [one for one in block if one.kind != "forward"]
    lanes = (UPPER, LOWER) if forward and others else (WHOLE, WHOLE)
    for lane, passes in zip(lanes, (forward, others), strict=True):
        own = [float(getattr(simulated.passes, one.kind)[one.stage]) for one in passes]
        start = block[0].start
        for one, seconds in zip(passes, own, strict=True):
            length = (one.end - one.start) * seconds / sum(own) if sum(own) else 0.0
            yield Piece(one.kind, one.rank, one.stage, one.microbatch, start, length, lane)
            start += length


def _pack(ranks: Sequence[Sequence[Piece]], *, num_microbatches: int, tick: float) -> dict[str, Any]:
    """
    Pack all pieces into columns, rank by rank: base64 of little-endian 32-bit integers.

    ``start`` is in ticks; ``code`` is ``((stage * microbatches + microbatch) * 4 + lane) * 4 + kind``. ``lengths`` has
    the ticks of each kind, lane and stage, which are the same for all micro-batches.
    """
    lengths: dict[str, int] = {}
    start, code = [], []
    for piece in (piece for own in ranks for piece in own):
        kind = KINDS.index(piece.kind)
        start.append(round(piece.start / tick))
        code.append(((piece.stage * num_microbatches + piece.microbatch) * 4 + piece.lane) * 4 + kind)
        lengths.setdefault(f"{kind} {piece.lane} {piece.stage}", round(piece.seconds / tick))
    return {
        "tick": tick,
        "counts": [len(own) for own in ranks],
        "lengths": lengths,
        "start": _column(start),
        "code": _column(code),
    }


def _column(values: Iterable[int]) -> str:
    return base64.b64encode(np.array(list(values), dtype="<u4").tobytes()).decode("ascii")


MOST_TIMELINES = 4
"""Plans whose timeline is in the page: each takes up to a megabyte, and people compare the first ones."""


def html_text(whole: ReportRecord | ComparisonRecord) -> str:
    """Build the page of any report that has one."""
    return comparison_page(whole) if whole.kind == "comparison" else page_html(show_report(whole))


def page_html(shown: ShownReport) -> str:
    """Build the page of a plan or an estimate."""
    return page_text(
        title=title_of(shown.whole),
        subject=shown.whole.job.name,
        body=content.body(shown),
        data=page_data(shown),
        scripts=[asset("timeline.js")],
    )


def comparison_page(whole: ComparisonRecord) -> str:
    """Build the page of a comparison: the given strategy compared with the fastest plan."""
    shown, sections = comparison_plans(whole), tuple(comparison_sections(whole))
    charts, timelines = comparison_charts(whole, shown), timelines_of(shown)
    return page_text(
        title=sections[0].title,
        subject=whole.problem.name,
        body=content.comparison_body(whole, shown, sections),
        data=finite({"report": whole, "charts": charts, "timelines": timelines}),
        scripts=[asset("timeline.js")],
    )


def page_data(shown: ShownReport) -> dict[str, Any]:
    """Return the data of the plots of a page, and the report as JSON."""
    whole, chosen = shown.whole, shown.whole.report.chosen
    charts = plan_charts(shown.plans)
    if whole.conflict and whole.conflict.closest:
        room = chosen.search.memory_headroom_bytes
        charts["memory closest"] = memory_chart(chosen.facts.cluster, whole.conflict.closest, headroom_bytes=room)
    if shown.explanation and shown.bindings:
        noise = whole.plans[0].plan.noise_fraction
        charts["bindings"] = bindings_chart(shown.explanation, shown.bindings, noise)
    if shown.points:
        charts["front"] = pareto_chart(whole, shown.points, chosen)
    data: dict[str, Any] = finite({"report": whole, "charts": charts, "timelines": timelines_of(shown.plans)})
    return data


def plan_charts(every: Sequence[Shown]) -> dict[str, Any]:
    """Build the plots of each plan."""
    charts: dict[str, Any] = {"steps": steps_chart(every), **cost_charts(every)} if every else {}
    for one in every:
        charts[f"memory {one.number}"] = memory_of(one)
        charts |= {f"{name} {one.number}": chart for name, chart in checkpoint_charts([("", one.plan)]).items()}
    return charts


def memory_of(one: Shown) -> dict[str, Any]:
    """Build the plot of the memory of a plan."""
    return memory_chart(one.plan.cluster, one.record, headroom_bytes=one.plan.problem.search.memory_headroom_bytes)


def comparison_charts(whole: ComparisonRecord, every: Sequence[Shown]) -> dict[str, Any]:
    """Build the plots of the given strategy and the fastest plan, on the same axes."""
    memory = [memory_of(one) for one in every]
    most = max(column["range"][1] for chart in memory for column in chart["columns"])
    charts: dict[str, Any] = {"steps": steps_chart(every), **cost_charts(every)}
    charts |= {f"memory {one.number}": {**chart, "most": most} for one, chart in zip(every, memory, strict=True)}
    charts |= checkpoint_charts([(one.name if every[1:] else "", one.plan) for one in every])
    if whole.best and whole.apart.gain and whole.comparison.same_step:
        ends = (whole.apart.gain.low_fraction, whole.apart.gain.high_fraction)
        charts["differences"] = differences_chart(whole.differences, whole.given.plan, whole.best.plan, ends)
    return charts


def timelines_of(every: Sequence[Shown]) -> dict[str, Any]:
    """Build the timelines of the first plans that have one, with the interval of a measured step."""
    found = [(one, timeline_of(one.plan.facts, one.plan.estimate)) for one in every[:MOST_TIMELINES]]
    return {str(one.number): {**packed, **step_range(one.record)} for one, packed in found if packed}
