"""Constants of the catalog that are fitted to measured runs: a table with priors and physical bounds, and its use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Annotated, TypeAlias, cast, get_args

import yaml
from pydantic import Field

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.calibration import Constants
from costmodel.facts.fields import Dtype, Positive
from costmodel.record import record, strict_record
from costmodel.validation import build
from planner.jobs.cluster import Fitted
from planner.jobs.run_jobs import References

TABLE = "constants.yaml"

MOST_PER_FRAMEWORK = 6
"""Most constants of one framework."""

DTYPES: tuple[str, ...] = get_args(Dtype)


@record(frozen=True, kw_only=True, slots=True)
class Constant:
    """
    One fitted number, with its prior knowledge.

    Parameters
    ----------
    name
        Name in reports: field and owner.
    fields
        Dotted constants of :class:`costmodel.facts.calibration.Constants` that it sets; for a framework those that it
        multiplies.
    calibration
        Entry of the catalog with this constant; empty for a framework's.
    framework
        Entry of the catalog with this factor; empty for a calibration's.
    prior, lower, upper
        Expected value, and its physical bounds.
    sigma
        Standard deviation of the logarithm around the prior.
    source
        Source of prior and bounds.
    """

    name: str
    fields: tuple[str, ...]
    calibration: str = ""
    framework: str = ""
    prior: float
    lower: float
    upper: float
    sigma: float
    source: str

    @property
    def size(self) -> str:
        """Size of the models that it scales; empty: it is no scale of models."""
        name, _, size = self.fields[0].partition(".")
        return size if name == "model_scales" else ""

    def touches(
        self, *, calibrations: Collection[str], kernels: str, architecture: str | None, dtype: str, size: str
    ) -> bool:
        """
        Return True if runs can depend on it.

        Parameters
        ----------
        calibrations
            Calibration of their device, and those that it extends.
        kernels
            The entry with the factors of their framework.
        architecture, dtype, size
            Architecture of their device, dtype of their matmuls, and size of their model.
        """
        if self.size not in ("", size):
            return False
        of_dtypes = {field.rpartition(".")[2] for field in self.fields} & set(DTYPES)
        if of_dtypes and not of_dtypes & {dtype, "bf16", "fp16"}:
            return False
        if not self.framework:
            return self.calibration in calibrations
        of_architecture = self.fields[0].partition("@")[2]
        return kernels == self.framework and of_architecture in ("", architecture)


@strict_record(frozen=True, kw_only=True, slots=True)
class Entry:
    """
    A constant that each of some calibrations has, or by which each of some frameworks multiplies it.

    Parameters
    ----------
    of
        Calibrations, or frameworks with their own factors.
    fields
        As in :class:`Constant`.
    prior
        One value, or one for each calibration; by framework where it is not 1.
    lower, upper, sigma, source
        As in :class:`Constant`.
    """

    of: Annotated[tuple[str, ...], Field(min_length=1)]
    fields: Annotated[tuple[str, ...], Field(min_length=1)]
    prior: Positive | dict[str, Positive] = 1.0
    lower: Positive
    upper: Positive
    sigma: Positive
    source: str

    def constant(self, name: str, kind: str, **of: str) -> Constant:
        """Return the constant of one calibration or one framework."""
        return Constant(
            name=f"{self.fields[0]} {kind} {name}",
            fields=self.fields,
            prior=self.prior.get(name, 1.0) if isinstance(self.prior, dict) else self.prior,
            lower=self.lower,
            upper=self.upper,
            sigma=self.sigma,
            source=self.source,
            **of,
        )


Table: TypeAlias = Mapping[str, tuple[Entry, ...]]
"""Entries of ``calibrations`` and of ``frameworks``."""


@cache
def table() -> Table:
    """Read the project's table of constants."""
    text = (files("planner.measure.calibrate") / TABLE).read_text(encoding="utf-8")
    return build(dict[str, tuple[Entry, ...]], yaml.load(text, Loader=catalog.LOADER), TABLE)


def constants(known: Table | None = None, *, frameworks: bool = False) -> tuple[Constant, ...]:
    """
    List every constant of a table.

    Parameters
    ----------
    known
        The table; by default the project's.
    frameworks
        True to include the factors of frameworks.
    """
    known = known or table()
    _require_few(known)
    of_calibrations = (constant for entry in known["calibrations"] for constant in _calibration_constants(entry))
    factors = (entry.constant(name, "under", framework=name) for entry in known["frameworks"] for name in entry.of)
    return (*of_calibrations, *(factors if frameworks else ()))


def prior_factors(known: Table | None = None) -> dict[str, dict[str, float]]:
    """Return the prior factors of frameworks."""
    factors: dict[str, dict[str, float]] = {}
    for constant in constants(known, frameworks=True):
        if constant.framework and constant.prior != 1:
            factors.setdefault(constant.framework, {}).update(dict.fromkeys(constant.fields, constant.prior))
    return factors


def _require_few(known: Table) -> None:
    for framework, count in Counter(name for entry in known["frameworks"] for name in entry.of).items():
        if count > MOST_PER_FRAMEWORK:
            problem = f"'{framework}' has {count} constants, a framework has at most {MOST_PER_FRAMEWORK}."
            raise SpecError(TABLE, problem)


def _calibration_constants(entry: Entry) -> Iterator[Constant]:
    for name in entry.of:
        if name not in catalog.calibrations():
            raise SpecError(TABLE, f"'{name}' is not a calibration.")
        yield entry.constant(name, "of", calibration=name)


# --- values into records -----------------------------------------------------------------------------------


def replace_constants(known: References, chosen: Sequence[Constant], values: Iterable[float]) -> References:
    """
    Return references whose calibrations and frameworks have other constants.

    Parameters
    ----------
    known
        References with all other values.
    chosen, values
        Constants and their values, in the same order.
    """
    changed = {name: dict(of_entry) for name, of_entry in known.fitted.constants.items()}
    before = known.fitted.factors
    factors = None if before is None else {name: dict(of_entry) for name, of_entry in before.items()}
    for constant, value in zip(chosen, values, strict=True):
        if constant.framework:
            factors = factors if factors is not None else {}
            factors.setdefault(constant.framework, {}).update(dict.fromkeys(constant.fields, value))
        else:
            of_entry = changed.setdefault(constant.calibration, {})
            of_entry.update({field: value for field in calibration_fields(constant)})
    return known.refit(Fitted(constants=changed, factors=factors))


def calibration_fields(constant: Constant) -> tuple[str, ...]:
    """Return the fields of a constant that its calibration has: it may lack a dtype or a level of interconnect."""
    constants = catalog.calibration(constant.calibration).constants
    return tuple(field for field in constant.fields if read(constants, field) is not None)


def read(known: Constants, field: str) -> float | None:
    """
    Return the number in a dotted field; None where there is none.

    >>> read(catalog.calibration("volta").constants, "matmul_efficiency.bf16") is None
    True
    >>> read(catalog.calibration("volta").constants, "measured.compute_scaling")
    1.0
    """
    name, _, key = field.partition(".")
    value = getattr(known, name, None)
    if key:
        value = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
    return cast("float | None", value)


def around(constant: Constant, known: Constants) -> Constant:
    """Return a constant whose prior is the calibration's value, within its bounds; unchanged where there is none."""
    values = [value for field in constant.fields if (value := read(known, field))]
    prior = min(max(values[0] if values else constant.prior, constant.lower), constant.upper)
    return replace(constant, prior=prior)
