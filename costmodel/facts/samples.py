"""What was learned from samples of one machine's operators: numbers from which their times are computed."""

from __future__ import annotations

from dataclasses import field
from math import isfinite
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from costmodel.facts.fields import STRICT, Count, NotNegative, Positive
from costmodel.validation import shown

Pass: TypeAlias = Literal["forward", "dgrad", "wgrad", "backward"]
"""Forward; backward for a matmul's input or weight alone; backward for all inputs."""


def require_table(text: str, *, columns: int, words: int) -> str:
    """
    Refuse a table whose lines are not so many words and numbers.

    Raises
    ------
    ValueError
        With the first line that is not.
    """
    lines = text.splitlines()
    if not lines:
        raise ValueError("has no lines.")
    for number, line in enumerate(lines, start=1):
        cells = line.split()
        try:
            are_numbers = all(isfinite(float(cell)) for cell in cells[words:])
        except ValueError:
            are_numbers = False
        if len(cells) != columns or not are_numbers:
            raise ValueError(f"line {number} is {shown(line)}, expected {columns - words} numbers.")
    return text


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

    @field_validator("rows")
    @classmethod
    def _are_numbers(cls, rows: str, info: ValidationInfo) -> str:
        columns = (*info.data.get("columns", ()), "seconds")
        require_table(rows, columns=len(columns), words=0)
        for number, line in enumerate(rows.splitlines(), start=1):
            for name, cell in zip(columns, line.split(), strict=True):
                if float(cell) <= 0 and name != "causal":
                    raise ValueError(f"line {number}: {name} is {cell}, expected more than 0.")
        return rows


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Fabric:
    """
    What datasheets say of a cluster's links; all of it may be unknown.

    Parameters
    ----------
    bandwidth
        Bytes per second that a device sends to the others of its node; of a mesh, over the link to one of them.
    slow_bandwidth
        Bytes per second from a device to those of its node that fast links do not join.
    fast_peers
        Devices of a node that fast links join; None: all of them.
    is_mesh
        Whether each device has a link of its own to every other of its node, instead of all to a switch.
    sums_in_switch
        Whether all-reduces inside a node are summed by its switches (NVLink SHARP, NCCL's NVLS).
    network_bandwidth, node_network_bandwidth
        Bytes per second that a device sends out of its node by its own adapter, and that all adapters of a node send.
    launch_seconds
        Seconds that a small collective takes inside a node.
    """

    bandwidth: Positive | None = None
    slow_bandwidth: Positive | None = None
    fast_peers: Count | None = None
    is_mesh: bool = False
    sums_in_switch: bool = False
    network_bandwidth: Positive | None = None
    node_network_bandwidth: Positive | None = None
    launch_seconds: Positive | None = None


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class SampledTier:
    """
    What was learned of a law's error inside nodes, or between them: :class:`costmodel.network.sampled.Deviations`.

    Parameters
    ----------
    variance, noise, lengths, lowest, highest, widening, widening_elsewhere
        As there.
    curves
        Kind, ranks and nodes of the samples, one curve a line.
    rows
        Kind, bytes, ranks, nodes and logarithm of measured over computed seconds: one line for each support point.
    """

    variance: Positive
    noise: Positive
    lengths: Annotated[tuple[Positive, ...], Field(min_length=1)]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    widening: Positive
    widening_elsewhere: Positive
    curves: str
    rows: str

    @field_validator("rows")
    @classmethod
    def _are_numbers(cls, rows: str) -> str:
        return require_table(rows, columns=5, words=1)

    @field_validator("curves")
    @classmethod
    def _are_curves(cls, curves: str) -> str:
        return require_table(curves, columns=3, words=1)


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class SampledFabric:
    """
    Collectives of one fabric, as :class:`costmodel.network.sampled.SampledCollectives` is made of it.

    Parameters
    ----------
    fabric
        What datasheets say.
    num_samples, error
        Samples that it was learned from; median error of their times by what was learned of them.
    constants
        The law's, by name.
    covariance
        Of their logarithms: a table, one line for each constant.
    inside, between
        What was learned of the law's error inside nodes and between them.
    """

    fabric: Fabric
    num_samples: Count
    error: NotNegative
    constants: dict[str, Positive] = field(hash=False)
    covariance: str

    @field_validator("covariance")
    @classmethod
    def _are_numbers(cls, covariance: str, info: ValidationInfo) -> str:
        return require_table(covariance, columns=len(info.data.get("constants", ())), words=0)

    inside: SampledTier | None = None
    between: SampledTier | None = None


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
    collectives
        What was learned of collectives; None: nobody sampled them.
    origin
        What the report calls them: ``samples`` measured alone, or a ``trace`` of a training step.
    sources
        Where the numbers come from.
    """

    machine: str
    operators: tuple[SampledOperator, ...] = ()
    collectives: SampledFabric | None = None
    origin: Literal["samples", "trace"] = "samples"
    sources: dict[str, str] = field(default_factory=dict, hash=False)
