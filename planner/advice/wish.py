"""A wish for a training: an aim, and limits of time, money and power."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta

from costmodel.errors import SpecError, did_you_mean
from costmodel.record import record
from costmodel.validation import require_type, shown
from planner.advice.points import DAYS, DEVICES, ENERGY, MEGAWATTS, MONEY, ClusterPoint, Metrics

AIMS: Mapping[str, str] = {"fastest": DAYS, "cheapest": MONEY, "least-energy": ENERGY, "fewest-devices": DEVICES}
"""Quantity that each aim makes least."""


@record(frozen=True, kw_only=True, slots=True)
class Wish:
    """
    Aim and limits of a training.

    Parameters
    ----------
    aim
        A name of ``AIMS``; empty: the cheapest with prices, else the fewest devices for a date, else the fastest.
    days
        Most days of the training.
    by, start
        Day at whose end the training is over, and the day on which it starts; the limit is the days between them.
    budget
        Most money, in the currency of the prices.
    power_watts
        Most power of the site while the job steps.

    Raises
    ------
    SpecError
        If a limit is not above 0, the date is past, or a date and days are given.
    """

    aim: str = ""
    days: float | None = None
    by: date | None = None
    start: date | None = None
    budget: float | None = None
    power_watts: float | None = None

    def __post_init__(self) -> None:
        """Refuse wishes that cannot be met by anything, and values of other types."""
        require_type(self.aim, str, "aim", "a name")
        for name, given in (("by", self.by), ("start", self.start)):
            if given is not None and (isinstance(given, datetime) or not isinstance(given, date)):
                raise SpecError(name, f"expected a datetime.date, got {shown(given)}.")
        for name, value in (("days", self.days), ("budget", self.budget), ("power_watts", self.power_watts)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise SpecError(name, f"expected a number, got {shown(value)}.")
        if self.aim and self.aim not in AIMS:
            raise SpecError("aim", f"there is no aim {shown(self.aim)}.", did_you_mean(self.aim, AIMS))
        if self.by is not None and self.days is not None:
            raise SpecError("by", f"a date, {self.by}, and days, {self.days:g}, contradict each other.", "Give one.")
        if self.start is not None and self.by is None:
            raise SpecError("start", f"a start, {self.start}, needs a date to be done by.", "Add --by DATE.")
        if self.by is not None and self.by <= max(self.first_day, date.today()):
            past = "is past" if self.by < date.today() else f"is no day after the start, {self.first_day}"
            raise SpecError("by", f"{self.by} {past}.", "Name a later day.")
        if self.start is not None and self.start < date.today():
            hint = f"Leave it out to start today, {date.today()}, or give the days that remain."
            raise SpecError("start", f"{self.start} is past: no training can start then.", hint)
        for name, value in (("days", self.days), ("budget", self.budget), ("power", self.power_watts)):
            if value is not None and not (0 < value < math.inf):
                raise SpecError(name, f"must be above 0, got {value:g}.")

    @property
    def first_day(self) -> date:
        """Day on which the training starts; today where none is given."""
        return self.start or date.today()

    @property
    def limits(self) -> Metrics:
        """Most of each limited quantity."""
        days = self.days if self.by is None else float((self.by - self.first_day).days)
        megawatts = None if self.power_watts is None else self.power_watts / 1e6
        given = {DAYS: days, MONEY: self.budget, MEGAWATTS: megawatts}
        return {name: value for name, value in given.items() if value is not None}

    def choose_aim(self, *, has_prices: bool) -> str:
        """Return the aim, or the one that follows from the limits."""
        if self.aim:
            return self.aim
        if has_prices:
            return "cheapest"
        return "fewest-devices" if DAYS in self.limits else "fastest"

    def require_prices(self, *, has_prices: bool) -> None:
        """Refuse wishes for money without prices."""
        if not has_prices and (self.budget is not None or self.aim == "cheapest"):
            wish = "a budget" if self.budget is not None else "the cheapest training"
            raise SpecError("prices", f"{wish} needs prices, and no device has one.", "Add them with --prices FILE.")

    def limit_power(self, points: Sequence[ClusterPoint]) -> tuple[ClusterPoint, ...]:
        """Return the points within the limit of power; all where none is."""
        most = self.limits.get(MEGAWATTS, math.inf)
        return tuple(point for point in points if point.metrics[MEGAWATTS] <= most) or tuple(points)

    def overrun_fraction(self, metrics: Metrics) -> float:
        """Return the largest excess over a limit, as a fraction of it; at most 0 where all are met."""
        return max((metrics[name] / most - 1 for name, most in self.limits.items()), default=0.0)


def read_date(text: str, where: str) -> date:
    """Read a day such as ``2027-01-31``."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        example = date.today() + timedelta(days=30)
        raise SpecError(where, f"expected a day such as {example}, got {shown(text)}.") from None
