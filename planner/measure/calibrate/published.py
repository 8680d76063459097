"""Value of own runs on published stacks left out of the fits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

from costmodel.facts.fields import Count, NotNegative, Positive
from costmodel.record import strict_record
from planner.measure.runs.predictions import Case
from planner.uncertainty.counts import read_stored

TABLE = "learning_curve.json"


@strict_record(frozen=True, kw_only=True, slots=True)
class Worth:
    """
    Value of a number of own runs.

    Parameters
    ----------
    models
        Models of most of the stacks' runs; for one own run its own model.
    chosen
        Choice of the measured runs: those that ``planner calibrate`` lists first, or any.
    runs, stacks
        Number of own runs; number of stacks.
    before, after
        Mean absolute error of a stack's other runs, for one own run of those of its model, in the median over stacks:
        with the catalog, and calibrated.
    quarter, ratio, three_quarters
        Quartiles over stacks of the error after over that before.
    """

    models: Literal["all", "dense", "experts"]
    chosen: Literal["first", "any"]
    runs: Count
    stacks: Count
    before: NotNegative
    after: NotNegative
    quarter: NotNegative
    ratio: NotNegative
    three_quarters: NotNegative


@strict_record(frozen=True, kw_only=True, slots=True)
class Gain:
    """
    Share of a stack's error that constants with some width of their priors remove from runs not fitted.

    Parameters
    ----------
    models
        Models of most of the own runs.
    runs
        Number of own runs.
    share
        Width of the priors over that of the catalog's constants.
    mean, deviation
        Mean over published stacks, and standard deviation over stacks and choices of own runs.
    """

    models: Literal["dense", "experts"]
    runs: Count
    share: Positive
    mean: float
    deviation: Positive

    def narrow(self, seen: float, error: float) -> float:
        """
        Return the expected gain less its standard deviation, after a gain with some standard error was seen.

        Normal errors: precisions add up, and means count by their precision.
        """
        precision = self.deviation**-2 + max(error, LEAST_ERROR) ** -2
        mean = (self.mean * self.deviation**-2 + seen * max(error, LEAST_ERROR) ** -2) / precision
        return float(mean - precision**-0.5)


LEAST_ERROR = 1e-3

"""Least standard error of a gain; only a matter of numerics, for held-out runs that gain equally."""


@cache
def read_gains() -> tuple[Gain, ...]:
    """Read the gains on published stacks left out of the fits."""
    return read_stored(tuple[Gain, ...], TABLE, "planner.measure.calibrate", "gains")


def gains_of(known: Sequence[Gain], runs: Sequence[Case]) -> dict[float, Gain]:
    """Return the gains of models like those of some runs, for as many runs or the next fewer, by share."""
    kind = models_of(runs)
    of_kind = [one for one in known if one.models == kind]
    nearest = max((one.runs for one in of_kind if one.runs <= len(runs)), default=0)
    return {one.share: one for one in of_kind if one.runs == nearest}


@cache
def learning_curve() -> tuple[Worth, ...]:
    """Read the learning curve of the published stacks: entries by models, choice and number of runs."""
    return read_stored(tuple[Worth, ...], TABLE, "planner.measure.calibrate", "worth")


FEWEST_STACKS = 4

"""Fewest stacks of a kind; with fewer the curve of all stacks is reported."""


def models_of(runs: Sequence[Case]) -> Literal["dense", "experts"]:
    """Return the kind of model that most runs train: MoE (with hybrids), or dense."""
    others = sum(one.architecture != "dense" for one in runs)
    return "experts" if 2 * others > len(runs) else "dense"


def comparable(runs: Sequence[Case]) -> tuple[Worth, ...]:
    """Return the curve of stacks with models like those of some runs, for runs that were measured first."""
    kind = models_of(runs)
    own = _curve(kind)
    return own if own and min(one.stacks for one in own) >= FEWEST_STACKS else _curve("all")


def _curve(kind: str) -> tuple[Worth, ...]:
    return tuple(one for one in learning_curve() if (one.models, one.chosen) == (kind, "first"))


def worth_of_one(runs: Sequence[Case]) -> Worth:
    """Return the value of one run for other runs of its model, on stacks with models like it."""
    kind = models_of(runs)
    return next(one for one in learning_curve() if (one.models, one.chosen, one.runs) == (kind, "any", 1))
