"""Value of own runs, as measured on published stacks left out of the fits: ``learning_curve.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from costmodel import catalog
from costmodel.facts.fields import STRICT, Count, NotNegative
from costmodel.validation import build
from planner.measure.runs.predictions import Case

TABLE = "learning_curve.yaml"


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Worth:
    """
    Value of a number of own runs.

    Parameters
    ----------
    models
        Models of most of the stacks' runs.
    chosen
        Choice of the measured runs: those that ``planner calibrate`` lists first, or any.
    runs, stacks
        Number of own runs; number of stacks.
    before, after
        Mean absolute error of a stack's other runs, in the median over stacks: with the catalog, and calibrated.
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


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class LearningCurve:
    """
    The whole file.

    Parameters
    ----------
    source
        Source of the numbers.
    worth
        Entries by models, choice and number of runs.
    """

    source: str
    worth: Annotated[tuple[Worth, ...], Field(min_length=1)]


@cache
def learning_curve() -> LearningCurve:
    """Read the learning curve of the published stacks."""
    text = (files("planner.measure.calibrate") / TABLE).read_text(encoding="utf-8")
    return build(LearningCurve, yaml.load(text, Loader=catalog.LOADER), TABLE)


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
    return tuple(one for one in learning_curve().worth if (one.models, one.chosen) == (kind, "first"))
