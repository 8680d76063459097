"""Money and energy on a page: large figures, chapter and plots, with the interval of a measured step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from costmodel.costs import MWH_JOULES, Energy, TrainingCosts
from planner.report.html.charts import Chart, range_of
from planner.report.html.frame import Chapter, Tile, choice_html, pair, plot, section_html
from planner.report.records.plan import TRILLION, NumberedPlanRecord
from planner.report.results import TRILLION_TOKENS, costs_section, costs_table
from planner.report.section import energy, money
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from planner.report.html.shown import Shown
    from planner.results import Plan


def cost_ends(plan: Plan) -> tuple[TrainingCosts, TrainingCosts]:
    """Return the costs of a training at the ends of the interval of a measured step."""
    low, high = (replace(plan, schedule=end).costs for end in plan.schedule_ends(plan.schedule))
    return low, high


def cost_tiles(one: Shown) -> Iterator[Tile]:
    """Build the large figures of money and energy, as far as they are known."""
    trillions = one.plan.facts.workload.tokens / TRILLION
    for name, (parts, ends, text) in amounts_of(one).items():
        total = sum(parts.values())
        below = f"{COVERAGE:.0%}: {' to '.join(map(text, ends))}; {text(total / trillions)} {TRILLION_TOKENS}"
        yield Tile(name, text(total), below)


def costs_chapter(every: Sequence[Shown], *, together: bool = False) -> Chapter:
    """
    Build the chapter on money and energy of each plan.

    Parameters
    ----------
    every
        The plans.
    together
        True to show all plans at once; otherwise the page shows the chosen one.
    """
    return Chapter("costs", "Cost", "Money and energy", _blocks(every, together=together))


def _blocks(every: Sequence[Shown], *, together: bool) -> Iterator[str]:
    facts = [section_html(costs_section(one.setting, one.record, one.of)) for one in every]
    if together:
        yield pair(*facts)
    else:
        yield from (choice_html(one.number, block) for one, block in zip(every, facts, strict=True))
    line = f"the line: with the {COVERAGE:.0%} interval of a measured step"
    plots = [plot(name, f"{CAPTIONS[name]}; {line}") for name in cost_charts(every)]
    yield pair(*plots) if plots else ""
    records = [one.record for one in every if isinstance(one.record, NumberedPlanRecord)]
    if records[1:]:
        yield section_html(costs_table(records, every[0].setting.job.costs.currency))


CAPTIONS = {"money": "Cost of the whole training", "energy": "Energy of the whole training"}
"""Captions of the plots of the chapter."""


def cost_charts(every: Sequence[Shown]) -> dict[str, Chart]:
    """Build the plots of money and energy where all plans have them; money in one currency."""
    currencies = {one.record.costs.currency for one in every}
    amounts = [(one.name, amounts_of(one)) for one in every]
    units = {"energy": "MWh", **({"money": currencies.pop()} if len(currencies) == 1 else {})}
    return {
        name: {
            "type": "bars",
            "axis": units[name],
            "order": list(PARTS),
            "rows": [_row(label, *own[name]) for label, own in amounts],
        }
        for name in CAPTIONS
        if name in units and amounts and all(name in own for _, own in amounts)
    }


def _row(label: str, amounts: Mapping[str, float], ends: tuple[float, float], text: Callable[[float], str]) -> Chart:
    parts = [
        {"name": name, "label": PARTS[name], "value": value, "text": text(value)}
        for name, value in amounts.items()
        if value
    ]
    return {"label": label, "text": text(sum(amounts.values())), "parts": parts, **range_of(ends, text)}


PARTS = {"devices": "devices", "electricity": "electricity", "computers": "computers", "facility": "data centre"}
"""Parts of the bars of money and energy, with their words."""


# --- amounts -----------------------------------------------------------------------------------------------


Amount: TypeAlias = tuple[Mapping[str, float], tuple[float, float], Callable[[float], str]]
"""Parts by the names of ``PARTS``, the amounts at the ends of the interval of a measured step, and their words."""


def amounts_of(one: Shown) -> dict[str, Amount]:
    """Return money and energy of a plan, as far as they are known."""
    own, (low, high) = one.plan.costs, cost_ends(one.plan)
    found: dict[str, Amount] = {}
    if own.total_cost is not None and low.total_cost is not None and high.total_cost is not None:
        parts = {"devices": own.device_cost or 0.0, "electricity": own.electricity_cost or 0.0}
        text = partial(money, currency=one.record.costs.currency)
        found["money"] = parts, (low.total_cost, high.total_cost), text
    if own.energy is not None and low.energy is not None and high.energy is not None:
        of_all, of_computers = _mwh(own.energy), own.energy.it_joules / MWH_JOULES
        parts = {"computers": of_computers, "facility": of_all - of_computers}
        found["energy"] = parts, (_mwh(low.energy), _mwh(high.energy)), energy
    return found


def _mwh(drawn: Energy) -> float:
    """Return the energy of the data centre in MWh, or of its computers where that is not known."""
    joules = drawn.it_joules if drawn.facility_joules is None else drawn.facility_joules
    return joules / MWH_JOULES
