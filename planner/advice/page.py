"""An advice as one HTML file: the front as a plot, the cheapest for each date, each point with its plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from planner.advice.points import DAYS, DEVICES, ENERGY, MEGAWATTS, MONEY, ClusterPoint, find_front
from planner.advice.records import AdviceRecord, command_of
from planner.advice.sections import (
    answer_text,
    change_texts,
    front_section,
    nearest_section,
    other_rows,
    point_text,
    power_note,
    proof_text,
    title_of,
    wish_text,
)
from planner.report.html.frame import (
    Chapter,
    Tile,
    asset,
    body_html,
    choice_html,
    code_html,
    details_html,
    header_html,
    page_text,
    plot,
    section_html,
    switch_html,
)
from planner.report.records import finite
from planner.report.section import Section, energy, money, power, seconds
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from planner.advice.advise import Advice

LABELS = {MONEY: "money, {currency}", ENERGY: "energy, MWh", DEVICES: "devices"}
"""Labels of the plot's axes other than days."""

MOST_BLOCKS = 200
"""Points with a block of their own; each takes a kilobyte."""

LEGEND = (("answer", "the answer"), ("front", "on the front"), ("other", "planned, not on the front"))


def html_text(advice: Advice, job: str) -> str:
    """Build the page of an advice; ``job`` names the job in commands."""
    shown = select_points(advice)
    return page_text(
        title=title_of(advice),
        subject=advice.problem.name,
        body=_body(advice, shown, job),
        data=finite({"report": AdviceRecord.build(advice), "charts": charts_of(advice, shown), "timelines": {}}),
        scripts=[asset("scatter.js", "planner.advice")],
    )


def select_points(advice: Advice) -> list[ClusterPoint]:
    """Return the points with a block of their own: the answer first, then the nearest, then the front, then others."""
    first = [point for point in (advice.answer, advice.fewest) if point is not None]
    every = (*first, *advice.nearest, *advice.pareto_front, *advice.ties, *advice.points)
    return list({id(point): point for point in every}.values())[:MOST_BLOCKS]


def charts_of(advice: Advice, shown: Sequence[ClusterPoint]) -> dict[str, Any]:
    """Build the plots of days against money and energy; against devices where neither is known."""
    quantities = [name for name in (MONEY, ENERGY) if any(point.metrics[name] < math.inf for point in advice.points)]
    if not advice.points:
        return {}
    return {f"days and {name}": _scatter(advice, shown, name) for name in quantities or [DEVICES]}


def _scatter(advice: Advice, shown: Sequence[ClusterPoint], name: str) -> dict[str, Any]:
    limits, numbers = advice.wish.limits, {id(point): number for number, point in enumerate(shown, start=1)}
    best = set(map(id, advice.pareto_front))

    def kind(point: ClusterPoint) -> str:
        return "answer" if point is advice.answer else "front" if id(point) in best else "other"

    points = [
        {
            "x": point.metrics[name],
            "y": point.metrics[DAYS],
            "sideways": point.intervals.get(name, (point.metrics[name],) * 2),
            "upright": point.intervals[DAYS],
            "text": point_text(advice, point).replace(": ", "\n", 1),
            "number": numbers.get(id(point)),
            "kind": kind(point),
        }
        for point in advice.points
        if point.metrics[name] < math.inf
    ]
    upright = [{"x": limits[name], "text": "at most"}] if name in limits else []
    level = [{"y": limits[DAYS], "text": f"at most {limits[DAYS]:,.6g} days"}] if DAYS in limits else []
    used = {point["kind"] for point in points}
    return {
        "type": "scatter",
        "x": {"label": LABELS[name].format(currency=advice.currency)},
        "y": {"label": "days"},
        "points": sorted(points, key=lambda point: point["kind"], reverse=True),
        "legend": [entry for entry in LEGEND if entry[0] in used],
        "verticals": upright,
        "horizontals": level,
    }


def _body(advice: Advice, shown: Sequence[ClusterPoint], job: str) -> Iterator[str]:
    """Build header, navigation and chapters."""
    header = header_html(
        subject=advice.problem.name,
        title=title_of(advice),
        answer=answer_text(advice),
        verdict="good" if advice.answer and advice.is_proven else "bad" if not advice.answer else "plain",
        tiles=_build_tiles(advice),
        facts={"wish": wish_text(advice), **dict(other_rows(advice)), "proof": proof_text(advice)},
    )
    names = [point.cell.name for point in shown]
    yield from body_html(header, _chapters(advice, shown, job), switch_html("Point", names))


def _build_tiles(advice: Advice) -> Iterator[Tile]:
    point = advice.answer
    if point is None:
        return
    low, high = point.intervals[DAYS]
    yield Tile("days", f"{point.metrics[DAYS]:,.1f}", f"{COVERAGE:.0%}: {low:,.1f} to {high:,.1f}")
    if point.metrics[MONEY] < math.inf:
        ends = " to ".join(money(end, advice.currency) for end in point.intervals[MONEY])
        yield Tile("money", money(point.metrics[MONEY], advice.currency), ends)
    if point.metrics[ENERGY] < math.inf:
        yield Tile("energy", energy(point.metrics[ENERGY]), f"{power(point.metrics[MEGAWATTS])} while it steps")
    yield Tile("devices", f"{point.cell.num_devices:,}", point.cell.device)


def _chapters(advice: Advice, shown: Sequence[ClusterPoint], job: str) -> Iterator[Chapter]:
    yield Chapter("front", "Front", "Front of time, money and energy", _front_blocks(advice))
    yield Chapter("dates", "Dates", f"The {_cheapest_word(advice)} for each date", date_blocks(advice))
    if advice.nearest:
        yield Chapter("nearest", "Nearest", "Nearest to the wish", [section_html(nearest_section(advice))])
    blocks = [choice_html(number, _point_blocks(advice, one, job)) for number, one in enumerate(shown, start=1)]
    yield Chapter("point", "Point", "One point and its plan", blocks)
    yield Chapter("cut", "Left out", "Cells that were cut, and cells without a plan", _build_left_out_blocks(advice))
    notes = Section(title="Notes", notes=advice.notes)
    yield Chapter("notes", "Notes", "Prices, energy and measured runs", [section_html(notes)] if advice.notes else [])


def _front_blocks(advice: Advice) -> Iterator[str]:
    for name in charts_of(advice, ()):
        against = name.removeprefix("days and ").partition("_")[0]
        yield plot(
            name, f"Days against {against}, each area {COVERAGE:.0%} of measured trainings; a click chooses a point"
        )
    drawn = [name for name in (MONEY, ENERGY) if any(one.metrics[name] < math.inf for one in advice.points)]
    lacking = [one for one in advice.pareto_front if drawn and all(one.metrics[name] == math.inf for name in drawn)]
    if lacking:
        names = "; ".join(one.cell.name for one in lacking)
        yield section_html(Section(title="In no plot", notes=(f"No money and no power is known: {names}.",)))
    yield section_html(front_section(advice))


def _cheapest_word(advice: Advice) -> str:
    return "cheapest" if any(point.metrics[MONEY] < math.inf for point in advice.points) else "least energy"


def date_blocks(advice: Advice) -> Iterator[str]:
    """Build the table of the least money, or energy, by the days that there are."""
    name = MONEY if _cheapest_word(advice) == "cheapest" else ENERGY
    known = [point for point in advice.table_points if point.metrics[name] < math.inf]
    rows = tuple(
        (
            f"{math.ceil(100 * point.metrics[DAYS]) / 100:,.2f} days or more",
            point.cell.cluster_text,
            money(point.metrics[MONEY], advice.currency) if name == MONEY else energy(point.metrics[ENERGY]),
            f"{point.intervals[DAYS][1]:,.1f}",
        )
        for point in find_front(known, (DAYS, name))
    )
    header = ("if there are", "take", name.partition("_")[0], f"{COVERAGE:.0%} end by day")
    if rows:
        notes = (power_note(advice),) if power_note(advice) else ()
        yield section_html(Section(title="By the days that there are", header=header, rows=rows, notes=notes))


def _point_blocks(advice: Advice, point: ClusterPoint, job: str) -> str:
    """Build the facts of a point, and the command that plans it."""
    figures, metrics = point.figures, point.metrics
    low, high = point.intervals[DAYS]
    rows = [
        ("days", f"{metrics[DAYS]:,.2f} ({COVERAGE:.0%}: {low:,.2f} to {high:,.2f})"),
        ("step", f"{seconds(figures['step_time_seconds'])} s, MFU {figures['mfu']:.1%}"),
        ("strategy", str(figures["line"])),
        ("proof", "the fastest of its cell" if point.is_proven else "time ran out"),
    ]
    if metrics[MONEY] < math.inf:
        ends = " to ".join(money(end, advice.currency) for end in point.intervals[MONEY])
        rows.insert(1, ("money", f"{money(metrics[MONEY], advice.currency)} ({ends})"))
    if metrics[ENERGY] < math.inf:
        rows.insert(2, ("energy", f"{energy(metrics[ENERGY])}, {power(metrics[MEGAWATTS])} while it steps"))
    if texts := "; ".join(change_texts(advice, point)):
        rows.append(("misses", texts))
    notes = (f"{point.gap_sentence[:1].upper()}{point.gap_sentence[1:]}.",) if point.gap_sentence else ()
    facts = section_html(Section(title=point.cell.name, rows=tuple(rows), notes=notes))
    return facts + code_html("its plan", f"planner plan {job} {command_of(point.cell, advice)}")


def _build_left_out_blocks(advice: Advice) -> Iterator[str]:
    rows = tuple(
        (
            one.cell.name,
            *(f"{one.bounds[name]:,.4g}" if one.bounds[name] < math.inf else "-" for name in (DAYS, MONEY, ENERGY)),
            one.by.cell.name,
        )
        for one in advice.cut
    )
    header = ("cell", "days at least", f"{advice.currency} at least", "MWh at least", "below these in all")
    if rows:
        yield section_html(Section(title="Cut by lower bounds", header=header, rows=rows), folded=True)
    lost = tuple((one.cell.name, one.message or str(one.status)) for one in advice.failed)
    if lost:
        yield details_html(
            "Without a plan", section_html(Section(title="Reasons", header=("cell", "reason"), rows=lost))
        )
