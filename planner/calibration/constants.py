"""Which numbers of the catalog are fitted to measured runs: a table with priors and physical bounds, and its effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, TypeVar, cast, get_args

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.spec import STRICT, Device, Dtype, Positive
from costmodel.validation import build
from planner.runs.facts import References

Record = TypeVar("Record")

TABLE = "constants.yaml"

MOST_PER_STACK = 6
"""Constants of one software stack."""

DTYPES: tuple[str, ...] = get_args(Dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """
    One number that is fitted, with what is known about it before any run is seen.

    Parameters
    ----------
    name
        Field and whose it is, as reports print it.
    fields
        Dotted fields of the devices that it is written to; of software: fields of the profile that it multiplies.
    devices
        Devices of the catalog that share it.
    stack
        Software stack that it belongs to; empty for a device's constant.
    prior, lower, upper
        Expected value and the bounds that physics sets.
    sigma
        Standard deviation of the logarithm around the prior.
    units
        By device, what the constant is a multiple of (a nominal bandwidth); 1 where a device is not listed.
    source
        Where prior and bounds come from.
    """

    name: str
    fields: tuple[str, ...]
    devices: tuple[str, ...] = ()
    stack: str = ""
    prior: float
    lower: float
    upper: float
    sigma: float
    units: Mapping[str, float]
    source: str

    def touches(self, *, device: str, stack: str, dtype: str) -> bool:
        """Whether runs on a device with a software stack in a precision can depend on it."""
        of_dtypes = {field.rpartition(".")[2] for field in self.fields} & set(DTYPES)
        if of_dtypes and not of_dtypes & {dtype, "bf16", "fp16"}:
            return False
        return stack == self.stack if self.stack else device in self.devices


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class DeviceEntry:
    """
    One entry of the table: a field and the groups of devices that have one constant each.

    Parameters
    ----------
    fields
        As in :class:`Constant`.
    of
        Groups of devices, each with a constant of its own.
    prior
        One value, or one for each group.
    lower, upper, sigma, units, source
        As in :class:`Constant`.
    """

    fields: Annotated[tuple[str, ...], Field(min_length=1)]
    of: Annotated[tuple[str, ...], Field(min_length=1)]
    prior: Positive | dict[str, Positive]
    lower: Positive
    upper: Positive
    sigma: Positive
    source: str
    units: dict[str, Positive] = Field(default_factory=dict)


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class SoftwareEntry:
    """
    A field of the profile that every listed software stack multiplies by a factor of its own.

    Parameters
    ----------
    field
        Of :class:`costmodel.spec.Profile`.
    of
        Software stacks.
    prior
        By stack, where it is not 1.
    lower, upper, sigma, source
        As in :class:`Constant`.
    """

    field: str
    prior: dict[str, Positive] = Field(default_factory=dict)
    of: Annotated[tuple[str, ...], Field(min_length=1)]
    lower: Positive
    upper: Positive
    sigma: Positive
    source: str


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class Table:
    """
    The whole table.

    Parameters
    ----------
    groups
        Devices of the catalog by the name of their group.
    devices, software
        Entries.
    """

    groups: dict[str, tuple[str, ...]]
    devices: tuple[DeviceEntry, ...]
    software: tuple[SoftwareEntry, ...]


@cache
def table() -> Table:
    """The project's table of constants."""
    text = (files("planner.calibration") / TABLE).read_text(encoding="utf-8")
    return build(Table, yaml.load(text, Loader=catalog.LOADER), TABLE)


def constants(known: Table | None = None, *, software: bool = False) -> tuple[Constant, ...]:
    """
    Every constant of a table.

    Parameters
    ----------
    known
        The table; the project's by default.
    software
        Whether the constants of software stacks are fitted too.
    """
    known = known or table()
    _require_few(known)
    of_devices = (constant for entry in known.devices for constant in _of_devices(entry, known.groups))
    of_software = (constant for entry in known.software for constant in _of_software(entry)) if software else ()
    return (*of_devices, *of_software)


def _require_few(known: Table) -> None:
    for stack, count in Counter(stack for entry in known.software for stack in entry.of).items():
        if count > MOST_PER_STACK:
            raise SpecError(TABLE, f"'{stack}' has {count} constants, a software stack has at most {MOST_PER_STACK}.")


def _of_devices(entry: DeviceEntry, groups: Mapping[str, tuple[str, ...]]) -> Iterator[Constant]:
    for group in entry.of:
        if group not in groups:
            raise SpecError(TABLE, f"'{group}' is no group of devices.")
        prior = entry.prior[group] if isinstance(entry.prior, dict) else entry.prior
        yield Constant(
            name=f"{entry.fields[0]} of {group}",
            fields=entry.fields,
            devices=groups[group],
            prior=prior,
            lower=entry.lower,
            upper=entry.upper,
            sigma=entry.sigma,
            units=entry.units,
            source=entry.source,
        )


def _of_software(entry: SoftwareEntry) -> Iterator[Constant]:
    for stack in entry.of:
        yield Constant(
            name=f"{entry.field} under {stack}",
            fields=(entry.field,),
            stack=stack,
            prior=entry.prior.get(stack, 1.0),
            lower=entry.lower,
            upper=entry.upper,
            sigma=entry.sigma,
            units={},
            source=entry.source,
        )


# --- values into records -----------------------------------------------------------------------------------


def with_values(known: References, chosen: Sequence[Constant], values: Iterable[float]) -> References:
    """
    References whose devices and software have other constants.

    Parameters
    ----------
    known
        What stays.
    chosen, values
        Constants and their values, in the same order.
    """
    devices = dict(known.devices)
    factors = {stack: dict(of_stack) for stack, of_stack in known.factors.items()}
    for constant, value in zip(chosen, values, strict=True):
        if constant.stack:
            factors.setdefault(constant.stack, {}).update(dict.fromkeys(constant.fields, value))
        for name in constant.devices:
            devices[name] = with_constant(devices.get(name) or catalog.device(name), constant, value)
    return known.with_profiles(devices, factors)


def with_constant(device: Device, constant: Constant, value: float) -> Device:
    """A device with one constant; of several fields those that the device has."""
    absolute = value * constant.units.get(device.name, 1.0)
    for field in constant.fields:
        if read(device, field) is not None:
            device = _written(device, field.split("."), absolute)
    return device


def read(device: Device, field: str) -> float | None:
    """
    The number in a dotted field; None where the device has none.

    >>> read(catalog.device("a100-80gb-sxm"), "networks.rail.parallel_links") is None
    True
    >>> read(catalog.device("a100-80gb-sxm"), "networks.nvlink.num_peers")
    8
    """
    value: Any = device
    for part in field.split("."):
        value = _part(value, part)
    return cast("float | None", value)


def source_key(field: str) -> str:
    """
    The entry of ``sources`` of a dotted field.

    >>> source_key("profile.matmul_efficiency.bf16"), source_key("networks.rail.bandwidth")
    ('profile.matmul_efficiency', 'networks.rail')
    """
    return ".".join(field.split(".")[:2])


def _part(record: Any, name: str) -> Any:
    if isinstance(record, tuple):
        return next((item for item in record if item.name == name), None)
    if isinstance(record, dict):
        return record.get(name)
    return getattr(record, name) if is_dataclass(record) and name in {one.name for one in fields(record)} else None


def _written(record: Record, path: Sequence[str], value: float) -> Record:
    name, *rest = path
    inner = _written(_part(record, name), rest, value) if rest else value
    if isinstance(record, tuple):
        return cast(Record, tuple(inner if item.name == name else item for item in record))
    if isinstance(record, dict):
        return cast(Record, {**record, name: inner})
    return cast(Record, replace(cast(Any, record), **{name: inner}))
