"""An advice in words: the answer, the front, the points nearest to a wish that nothing meets, and the notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from planner.advice.points import DAYS, ENERGY, MEGAWATTS, MONEY, ClusterPoint, Metrics
from planner.advice.records import command_of, list_overruns
from planner.report.section import Section, amount, count, energy, money, power
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from planner.advice.advise import Advice

AIM_WORDS: Mapping[str, str] = {
    "fastest": "the fastest training",
    "cheapest": "the cheapest training",
    "least-energy": "the training with the least energy",
    "fewest-devices": "the fewest devices",
}

OF_FRONT = "No other cell is at most as much in all of days, money and energy and less in one."
"""Note on the front."""

UNKNOWN = "-"
"""Text for a quantity that is not known."""


def sections_of(advice: Advice, job: str) -> tuple[Section, ...]:
    """Return the sections of an advice, in the order in which they are read; ``job`` names the job in commands."""
    return tuple(
        section
        for section in (_head(advice), nearest_section(advice), front_section(advice), _next(advice, job))
        if section.rows or section.notes
    )


def title_of(advice: Advice) -> str:
    """Return the title of an advice."""
    facts = advice.problem.facts
    return f"Devices for {facts.model.name}, {amount(facts.workload.tokens)} tokens"


def _head(advice: Advice) -> Section:
    rows = [("wish", wish_text(advice)), ("answer", answer_text(advice))]
    if advice.answer is not None:
        rows.append(("strategy", str(advice.answer.figures["line"])))
    rows += [*other_rows(advice), ("proof", proof_text(advice))]
    return Section(title=title_of(advice), rows=tuple(rows), notes=advice.notes)


def days_text(days: float) -> str:
    """
    Word a number of days.

    >>> days_text(1), days_text(30.5)
    ('1 day', '30.5 days')
    """
    return f"{days:,.6g} day{'' if days == 1 else 's'}"


def other_rows(advice: Advice) -> Iterator[tuple[str, str]]:
    """Yield the rows on the fewest devices, and on points that cannot be told from the answer."""
    if advice.fewest is not None and advice.fewest is not advice.answer:
        yield "fewest", point_text(advice, advice.fewest)
    if advice.ties:
        yield "same", f"cannot be told from it: {'; '.join(point.cell.name for point in advice.ties)}"


def wish_text(advice: Advice) -> str:
    """Word the aim and the limits."""
    wish, limits = advice.wish, advice.wish.limits
    parts = [AIM_WORDS[advice.aim]]
    if DAYS in limits:
        until = f" (from {wish.first_day} until {wish.by})" if wish.by else ""
        parts.append(f"in at most {days_text(limits[DAYS])}{until}")
    if MONEY in limits:
        parts.append(f"for at most {money(limits[MONEY], advice.currency)}")
    if MEGAWATTS in limits:
        parts.append(f"with at most {power(limits[MEGAWATTS])}")
    return " ".join(parts)


def answer_text(advice: Advice) -> str:
    """Word the answer, or that nothing meets the wish."""
    if advice.answer is None:
        return _no_answer_text(advice)
    text, most = point_text(advice, advice.answer), advice.wish.limits.get(DAYS)
    if most is not None and advice.answer.intervals[DAYS][1] > most:
        text += f"; the interval ends beyond the {days_text(most)}"
    if advice.rivals:
        others = ", ".join(rival.cell.name for rival in advice.rivals)
        text += f"; measured runs decide for it: {others} is predicted no worse, but not measured"
    return text


def _no_answer_text(advice: Advice) -> str:
    if advice.nearest:
        return "nothing meets the wish; the nearest are listed below"
    if not advice.num_cells:
        return "there is no cell: no provider rents out so many devices"
    if not advice.points:
        return "no cell has a plan"
    words = {MONEY: "money", MEGAWATTS: "power"}
    lacking = [
        words[name] for name in advice.wish.limits if all(one.metrics[name] == math.inf for one in advice.points)
    ]
    unknown = " and ".join(lacking) or " and ".join(words[name] for name in advice.wish.limits if name in words)
    return f"nothing is known to meet the wish: no planned cell has a known {unknown}"


def proof_text(advice: Advice) -> str:
    """Word how many cells were planned, cut and left without a plan."""
    if not advice.num_cells:
        return "nothing was planned"
    proven = "each proven the fastest of its cell" if advice.is_proven else "not all proven: time ran out"
    text = f"{count(advice.num_cells, 'cell')}: {len(advice.points):,} planned, {proven}"
    if advice.cut:
        text += f"; {len(advice.cut):,} cut, as lower bounds of all their strategies are above a planned cell"
    return text + (f"; {len(advice.failed):,} without a plan" if advice.failed else "")


def point_text(advice: Advice, point: ClusterPoint) -> str:
    """Word a point in a line."""
    metrics = point.metrics
    low, high = point.intervals[DAYS]
    parts = [f"{metrics[DAYS]:,.2f} days ({COVERAGE:.0%}: {low:,.2f} to {high:,.2f})"]
    if metrics[MONEY] < math.inf:
        parts.append(money(metrics[MONEY], advice.currency))
    if metrics[ENERGY] < math.inf:
        parts.append(f"{energy(metrics[ENERGY])}, {power(metrics[MEGAWATTS])}")
    if point.num_idle_devices:
        parts.append(f"{point.num_idle_devices:,} of its {count(point.cell.num_devices, 'device')} idle")
    return f"{point.cell.name}: {', '.join(parts)}"


def front_section(advice: Advice) -> Section:
    """Return the table of the front, without columns that no point has."""
    header = (
        "devices",
        "idle",
        "batch",
        "days",
        f"{COVERAGE:.0%} of days",
        advice.currency,
        "MWh",
        "MW",
        "MFU",
        "wish",
    )
    columns = zip(header, *(front_row(advice, point) for point in advice.pareto_front), strict=True)
    known = [column for column in columns if set(column[1:]) != {UNKNOWN}]
    return Section(
        title="Front of time, money and energy",
        header=tuple(column[0] for column in known),
        rows=tuple(zip(*(column[1:] for column in known), strict=True)),
        notes=tuple(filter(None, (power_note(advice), OF_FRONT if advice.pareto_front else ""))),
    )


def power_note(advice: Advice) -> str:
    """Word that a table leaves out cells beyond the limit of power; empty where it leaves out none."""
    left_out = len(advice.points) - len(advice.table_points)
    most = advice.wish.limits.get(MEGAWATTS, math.inf)
    return f"Cells within {power(most)} only: {count(left_out, 'cell')} left out." if left_out else ""


def front_row(advice: Advice, point: ClusterPoint) -> tuple[str, ...]:
    """Return the cells of a point's row."""
    metrics, cell = point.metrics, point.cell
    low, high = point.intervals[DAYS]
    return (
        cell.cluster_text,
        f"{point.num_idle_devices:,}" if point.num_idle_devices else UNKNOWN,
        f"{cell.global_batch_size:,}",
        f"{metrics[DAYS]:,.2f}",
        f"{low:,.2f} to {high:,.2f}",
        _figure(metrics, MONEY, ",.0f"),
        _figure(metrics, ENERGY, ",.0f" if metrics[ENERGY] >= 1e4 else ",.4g"),
        _figure(metrics, MEGAWATTS, ",.3g"),
        f"{point.figures['mfu']:.1%}",
        "meets" if advice.wish.overrun_fraction(metrics) <= 0 else "misses",
    )


def _figure(metrics: Metrics, name: str, form: str) -> str:
    return f"{metrics[name]:{form}}" if metrics[name] < math.inf else UNKNOWN


def nearest_section(advice: Advice) -> Section:
    """Return the points nearest to a wish that nothing meets, with the changes that would meet it."""
    rows = tuple((point.cell.name, "; ".join(change_texts(advice, point))) for point in advice.nearest)
    return Section(title="Nearest to the wish, and what would have to change", header=("devices", "change"), rows=rows)


def change_texts(advice: Advice, point: ClusterPoint) -> Iterator[str]:
    """Yield the changes with which a point meets the wish: of each limit, or of the tokens."""
    limits, metrics = advice.wish.limits, point.metrics
    missed = list_overruns(metrics, limits)
    words: Mapping[str, Callable[[float], str]] = {
        DAYS: days_text,
        MONEY: lambda value: money(value, advice.currency),
        MEGAWATTS: power,
    }
    for name, overrun in missed.items():
        value = f"{metrics[DAYS]:,.2f} days" if name == DAYS else words[name](metrics[name])
        beyond = f"+{overrun:.1%}" if overrun < 99 else f"{overrun + 1:,.0f} times"
        yield f"{value} instead of {words[name](limits[name])} ({beyond})"
    if missed and MEGAWATTS not in missed:
        yield f"or {1 - 1 / (1 + max(missed.values())):.1%} fewer tokens"


def _next(advice: Advice, job: str) -> Section:
    if advice.answer is None:
        return Section(title="Next")
    rows = (("its plan", f"planner plan {job} {command_of(advice.answer.cell, advice)}"),)
    return Section(title="Next", rows=rows, is_verbatim=True)
