"""Numbers learned from samples of one machine's operators, from which operator times are computed."""

from __future__ import annotations

from dataclasses import field
from math import isfinite
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from costmodel.facts.fields import Count, NotNegative, Positive
from costmodel.record import strict_record
from costmodel.validation import shown

Pass: TypeAlias = Literal["forward", "dgrad", "wgrad", "backward"]
"""Forward; backward for a matmul's input or weight alone; backward for all inputs."""


def require_table(text: str, *, columns: int, words: int) -> str:
    """
    Raise unless each line of a table has the expected numbers of words and numbers.

    Raises
    ------
    ValueError
        With the first line that differs.
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


@strict_record(frozen=True, kw_only=True, slots=True)
class SampledOperator:
    """
    One pass of one kind of operator, the input of :class:`costmodel.timing.sampled_source.SampledTimes`.

    Parameters
    ----------
    operator, of_pass, dtype
        Identity of the measured operator, in the words of the table of samples.
    num_samples, error
        Number of samples; median error of their times in cross-validation that leaves out families of shapes.
    flops_per_second, bytes_per_second, smallest_seconds
        Rates of the roofline, of large operators, and the time of the smallest; None: it only moves bytes.
    offset, variance, noise, lengths
        Parameters of the Gaussian process of the roofline's error (:class:`costmodel.timing.gaussian_process`).
    widening
        Factor on the predicted standard deviation.
    lowest, highest
        Smallest and largest value of each feature among the samples.
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


@strict_record(frozen=True, kw_only=True, slots=True)
class Fabric:
    """
    Links of a cluster, from datasheets; every entry may be unknown.

    Parameters
    ----------
    bandwidth
        Bytes per second that a device sends to the others of its node; in a mesh, over the link to one of them.
    slow_bandwidth
        Bytes per second from a device to those of its node without a fast link to it.
    fast_peers
        Devices of a node that are joined by fast links; None: all of them.
    is_mesh
        True if each device has a link of its own to every other of its node, instead of all to a switch.
    sums_in_switch
        True if all-reduces inside a node are summed by its switches (NVLink SHARP, NCCL's NVLS).
    network_bandwidth, node_network_bandwidth
        Bytes per second that a device sends out of its node by its own adapter, and by all adapters of the node.
    launch_seconds
        Seconds of a small collective inside a node.
    """

    bandwidth: Positive | None = None
    slow_bandwidth: Positive | None = None
    fast_peers: Count | None = None
    is_mesh: bool = False
    sums_in_switch: bool = False
    network_bandwidth: Positive | None = None
    node_network_bandwidth: Positive | None = None
    launch_seconds: Positive | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class SampledTier:
    """
    Learned error of the link law inside nodes, or between them: :class:`costmodel.network.sampled_fabric.Deviations`.

    Parameters
    ----------
    variance, noise, lengths, lowest, highest, widening, widening_elsewhere
        As in that class.
    curves
        Kind, ranks and nodes of the samples, one line per curve.
    rows
        Kind, bytes, ranks, nodes and logarithm of measured over computed seconds: one line per support point.
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


@strict_record(frozen=True, kw_only=True, slots=True)
class SampledFabric:
    """
    Collectives of one fabric, the input of :class:`costmodel.network.sampled_fabric.SampledCollectives`.

    Parameters
    ----------
    fabric
        Links from datasheets.
    num_samples, error
        Number of samples; median error of their times under the learned law.
    constants
        Constants of the link law, by name.
    covariance
        Covariance of their logarithms: a table, one line for each constant.
    inside, between
        Learned error of the law inside nodes and between them.
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


@strict_record(frozen=True, kw_only=True, slots=True)
class Samples:
    """
    Everything learned on one machine.

    Parameters
    ----------
    machine
        Machine of the measurement: device, driver, software.
    operators
        Learned times of each kind of operator and pass.
    collectives
        Learned times of collectives; None: not sampled.
    origin
        Word of the report for them: ``samples`` measured alone, or a ``trace`` of a training step.
    sources
        Sources of the numbers.
    """

    machine: str
    operators: tuple[SampledOperator, ...] = ()
    collectives: SampledFabric | None = None
    origin: Literal["samples", "trace"] = "samples"
    sources: dict[str, str] = field(default_factory=dict, hash=False)
