"""
Prices of devices, from a CSV file: the price of each provider for an hour of one device.

Two forms of tables are read. One has a column ``price_per_hour`` and a row for each device of a provider. The other has
a column for each provider, such as ``hyperscaler_usd_h``, whose name ends with the currency and the hour. A cell may
hold a range of prices, such as ``2.00-2.50``. A device without a price has no costs; nothing is assumed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.quantities import COUNT, PER_HOUR, RATE, finite, whole
from costmodel.record import record
from costmodel.validation import shown
from planner.jobs.document import open_csv

PRICE, DEVICE, PROVIDER, CURRENCY = "price_per_hour", "device", "provider", "currency"
LEAST, MOST, INTERCONNECT = "least_devices", "most_devices", "interconnect"

COLUMNS = (DEVICE, PROVIDER, PRICE, CURRENCY, LEAST, MOST, INTERCONNECT, "note", "source", "source_ref")
"""Columns of the table; notes and sources are for its readers."""

OF_PROVIDER = re.compile(r"(?P<provider>\w+)_(?P<currency>[a-z]{3})_h")
"""Name of a column of prices: the provider, the currency, and the hour."""

OTHER_TIMES = re.compile(r"(per_|_|/)(month|mo|year|yr|week|day|d)(_|$)")
"""Times other than an hour in the name of a column."""

HOURS_PER_MONTH = 730
"""Hours of a month, 8,760 of a year over 12."""

MOST_PER_HOUR = 100.0
"""Price of a device for an hour above which it is probably one of a longer time; rents are below 20 USD."""

RANGE = re.compile(r"(?P<low>[^-]+)-(?P<high>[^-]+)")

MAX_ROWS = 100_000


@record(frozen=True, kw_only=True, slots=True)
class Offer:
    """
    Devices that a provider rents out.

    Parameters
    ----------
    device
        Name in the device catalog.
    provider
        Name of the provider; empty where the table names none.
    low, high
        Ends of the price of one device for an hour.
    currency
        Currency of the price.
    least, most
        Fewest and most devices of a cluster; None: any number.
    interconnect
        Bytes per second between nodes that one device can send; None: the device's own.
    """

    device: str
    provider: str = ""
    low: float
    high: float
    currency: str = "USD"
    least: int = 1
    most: int | None = None
    interconnect: float | None = None

    @property
    def price(self) -> float:
        """Mean price of one device for an hour."""
        return (self.low + self.high) / 2

    @property
    def sizes_text(self) -> str:
        """Sizes of clusters in words."""
        return f"{self.least:,} devices or more" if self.most is None else f"{self.least:,} to {self.most:,} devices"

    def repeats(self, other: Offer) -> bool:
        """Tell whether another offer is of the same provider, device and interconnect, for some of the same sizes."""
        same = (self.device, self.provider, self.interconnect) == (other.device, other.provider, other.interconnect)
        ends = [one.most or math.inf for one in (self, other)]
        return same and max(self.least, other.least) <= min(ends)

    def holds(self, num_devices: int) -> bool:
        """Tell whether the provider rents out a cluster of this size."""
        return self.least <= num_devices and (self.most is None or num_devices <= self.most)


@record(frozen=True, kw_only=True, slots=True)
class PriceList:
    """
    Offers of a table.

    Parameters
    ----------
    offers
        Offers in the order of the table.
    notes
        Rows whose device the catalog does not know, and prices that may be of a month, with their places.
    """

    offers: tuple[Offer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def currency(self) -> str | None:
        """Currency of all offers; None without offers."""
        return self.offers[0].currency if self.offers else None


def read_prices(path: str | os.PathLike[str]) -> PriceList:
    """
    Read a table of prices.

    Parameters
    ----------
    path
        CSV file with a header.

    Raises
    ------
    SpecError
        If it cannot be read, holds no price, has an unknown column, a price that is not of an hour, two prices for one
        thing, or two currencies.
    """
    path, offers, notes = Path(path), list[Offer](), list[str]()
    for where, row in _rows(path):
        devices, unknown = _devices(row, where)
        notes += unknown
        for offer in (offer for device in devices for offer in _offers(device, row, where)):
            if any(offer.repeats(other) for other in offers):
                hint = "Leave one out, or give both sizes that do not overlap."
                by = f" of {shown(offer.provider)}" if offer.provider else ""
                raise SpecError(where, f"a second price{by} for {offer.device}.", hint)
            if offer.high > MOST_PER_HOUR:
                notes.append(f"{where}: {offer.high:g} an hour for one {offer.device} may be the price of a month.")
            offers.append(offer)
    if not offers:
        raise SpecError(str(path), f"holds no price of a known device. {' '.join(notes)}".strip())
    currencies = sorted({offer.currency for offer in offers})
    if len(currencies) > 1:
        raise SpecError(str(path), f"has prices in {' and '.join(currencies)}.", "Give all in one currency.")
    return PriceList(offers=tuple(offers), notes=tuple(notes))


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the place and the cells of each row, without empty cells."""
    with open_csv(path) as reader:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, path)
        for number, cells in enumerate(filter(None, reader), start=1):
            where = f"{path}, line {reader.line_num}"
            if len(cells) > len(header):
                raise SpecError(where, f"has {len(cells)} cells, the header {len(header)}.", "Quote cells with commas.")
            if number > MAX_ROWS:
                raise SpecError(where, f"a table has at most {MAX_ROWS:,} rows.")
            yield where, {name: cell.strip() for name, cell in zip(header, cells, strict=False) if cell.strip()}


def _check_header(header: list[str], path: Path) -> None:
    where = f"{path}, line 1"
    for name in header:
        if header.count(name) > 1:
            raise SpecError(where, f"has the column {shown(name)} twice.", "Take one out.")
        if OTHER_TIMES.search(name.lower()):
            hint = f"Write {PRICE}; a month has {HOURS_PER_MONTH} hours, a day 24."
            raise SpecError(where, f"the column {shown(name)} is no price per hour.", hint)
        if name not in COLUMNS and not OF_PROVIDER.fullmatch(name):
            raise SpecError(where, f"there is no column {shown(name)}.", did_you_mean(name, COLUMNS))
    seen, known = f"its columns are {', '.join(header)[:200]}", f"Known: {', '.join(COLUMNS)}, and PROVIDER_usd_h."
    if DEVICE not in header:
        raise SpecError(where, f"lacks the column '{DEVICE}': {seen}.", known)
    if PRICE not in header and not any(map(OF_PROVIDER.fullmatch, header)):
        problem = f"lacks a column of prices, '{PRICE}' or PROVIDER_usd_h for a provider: {seen}."
        raise SpecError(where, problem, f"Name the column of prices '{PRICE}'.")


def _devices(row: Mapping[str, str], where: str) -> tuple[list[str], list[str]]:
    """Return the devices of a row by their names in the catalog, and notes on names that it does not know."""
    found, notes = list[str](), list[str]()
    for name in filter(None, map(str.strip, row.get(DEVICE, "").split(","))):
        try:
            found.append(catalog.find_device(name, where).device)
        except SpecError as error:
            notes.append(f"{error} Its price is not used.")
    if not found and not notes:
        raise SpecError(where, "names no device.", "Write a name of 'planner catalog devices'.")
    return found, notes


def _offers(device: str, row: Mapping[str, str], where: str) -> Iterator[Offer]:
    """Yield the offers of a row for one device, one for each price."""
    least = whole(row[LEAST], COUNT, f"{where}, {LEAST}") if LEAST in row else 1
    most = whole(row[MOST], COUNT, f"{where}, {MOST}") if MOST in row else None
    if most is not None and most < least:
        raise SpecError(where, f"{MOST} is {most:,}, below {LEAST}, {least:,}.")
    interconnect = finite(row[INTERCONNECT], RATE, f"{where}, {INTERCONNECT}") if INTERCONNECT in row else None
    if interconnect is not None and interconnect <= 0:
        raise SpecError(f"{where}, {INTERCONNECT}", f"expected a bandwidth above 0, got {row[INTERCONNECT]}.")
    for column, text in row.items():
        of_provider = OF_PROVIDER.fullmatch(column)
        if column != PRICE and not of_provider:
            continue
        low, high = _price(text, f"{where}, {column}")
        currency = of_provider["currency"] if of_provider else row.get(CURRENCY, "USD")
        yield Offer(
            device=device,
            provider=of_provider["provider"].replace("_", " ") if of_provider else row.get(PROVIDER, ""),
            low=low,
            high=high,
            currency=currency.upper(),
            least=least,
            most=most,
            interconnect=interconnect,
        )


def _price(text: str, where: str) -> tuple[float, float]:
    """Return the ends of a price per hour, which are equal where it is one number."""
    if re.search(r"/\s*(mo|month|week|yr|year)", text.lower()):
        hint = f"Write the price of an hour; a month has {HOURS_PER_MONTH} hours."
        raise SpecError(where, f"{shown(text)} is no price per hour.", hint)
    both = RANGE.fullmatch(text)
    low, high = (finite(part, PER_HOUR, where) for part in ((both["low"], both["high"]) if both else (text, text)))
    if not 0 <= low <= high:
        raise SpecError(where, f"expected a price from 0 on, or a range such as 2.00-2.50, got {shown(text)}.")
    return low, high
