"""What was learned from samples of one machine's operators: numbers from which their times are computed."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass

from costmodel.facts.fields import STRICT, Count, NotNegative, Positive

Pass: TypeAlias = Literal["forward", "dgrad", "wgrad", "backward"]
"""Forward; backward for a matmul's input or weight alone; backward for all inputs."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class SampledOperator:
    """
    One pass of one kind of operator, as :class:`costmodel.operators.sampled.SampledTimes` is made of it.

    Parameters
    ----------
    operator, of_pass, dtype
        What was measured, as the table of samples names it.
    num_samples, error
        Samples that it was learned from; median error of their times where families of shapes were left out.
    flops_per_second, bytes_per_second, smallest_seconds
        Rates of the roofline: of large operators, and what the smallest takes; None: it only moves bytes.
    offset, variance, noise, lengths
        Of the Gaussian process of the roofline's error, as :class:`costmodel.operators.gaussian_process` has them.
    widening
        Standard deviations that count as one.
    lowest, highest
        Least and greatest of each feature among the samples.
    columns, rows
        Names of the sizes, and a table of them with the seconds in the last column: one line for each support point.
    """

    operator: str
    of_pass: Pass
    dtype: str
    num_samples: Count
    error: NotNegative
    flops_per_second: Positive | None = None
    bytes_per_second: Positive
    smallest_seconds: Positive
    offset: float
    variance: Positive
    noise: Positive
    lengths: Annotated[tuple[Positive, ...], Field(min_length=1)]
    widening: Positive
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    rows: str


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Samples:
    """
    All that was learned on one machine.

    Parameters
    ----------
    machine
        On what was measured: device, driver, software.
    operators
        What was learned of each kind of operator and pass.
    sources
        Where the numbers come from.
    """

    machine: str
    operators: tuple[SampledOperator, ...] = ()
    sources: dict[str, str] = field(default_factory=dict, hash=False)
