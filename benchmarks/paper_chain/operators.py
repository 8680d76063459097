"""Times of a layer's operators: linears learned from samples of the machine, all else from what is known without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.operators.groups import DATA, gemm_groups, num_processors
from costmodel.errors import SpecError
from costmodel.facts.device import EquippedDevice
from costmodel.timing.roofline import BACKWARD_KERNELS, STREAMING_SECONDS
from costmodel.timing.sampled_source import SampledTimes, Shapes, matmul_shapes
from costmodel.timing.work import MatmulSize, Numbers, Operator
from planner.measure.fit.operators import learn_operator

LINEARS = {
    "qkv": "linear1",
    "output_projection": "linear2",
    "up": "linear3",
    "down": "linear4",
    "head": "linear_final",
}
"""The paper's names of a layer's linears and of the head."""

PASSES = ("forward", "backward")

STREAMING_FRACTION = 0.866
"""
Share of the memory's bandwidth that plain kernels reach: additions of more than 100 MB on an A100, in the median of
1,664 samples of Vidur (``linear_layers.csv.gz``).
"""

SCORES_FRACTION = 0.70
"""
Fraction of the bandwidth that softmax and dropout of scores reach, before any measured run
(``planner/measure/calibrate/constants.yaml``).
"""

ATTENTION_FRACTION = {"ampere": 0.60, "hopper": 0.55}
"""Share of the peak that fused attention reaches, from the papers on FlashAttention (the same file)."""

GAP_SECONDS = 26e-6
"""Seconds that a matmul adds beside its rate: waves that are not full, and its tail (the same file)."""

ACCUMULATED_BYTES = 6.0
"""Bytes per weight of adding its 16-bit gradient to those of the micro-batches before: two reads and a write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledOperators:
    """
    Times of operators of one machine.

    Parameters
    ----------
    linears
        Learned times of each linear by name and pass.
    memory_bandwidth, attention_flops
        Bytes per second of the device's memory by datasheet; rate of fused attention.
    num_processors
        Processors of the device.
    """

    linears: Mapping[tuple[str, str], SampledTimes]
    memory_bandwidth: float
    attention_flops: float
    num_processors: int

    def forward_seconds(self, operator: Operator) -> float:
        """Seconds of a forward pass of one micro-batch."""
        if operator.name in LINEARS:
            return self._linear_seconds(operator, "forward")
        return self._busy(operator, operator.flops, operator.bytes) + float(operator.kernels) * self._gap(operator)

    def backward_seconds(self, operator: Operator) -> float:
        """Seconds of a backward pass of one micro-batch, nothing computed again."""
        if operator.name in LINEARS:
            accumulated = ACCUMULATED_BYTES * float(operator.parameters) / self._bytes_per_second
            return self._linear_seconds(operator, "backward") + accumulated
        gaps = BACKWARD_KERNELS * float(operator.kernels) * self._gap(operator)
        return self._busy(operator, operator.backward_flops, operator.backward_bytes) + gaps

    def streaming_seconds(self, nbytes: float) -> float:
        """Seconds of reading and writing that many bytes."""
        return nbytes / self._bytes_per_second

    @property
    def _bytes_per_second(self) -> float:
        return STREAMING_FRACTION * self.memory_bandwidth

    def _linear_seconds(self, operator: Operator, name: str) -> float:
        size = operator.size
        assert isinstance(size, MatmulSize), "a linear has a matmul's size"
        m, n, k = (np.array([float(one)]) for one in (size.m, size.n, size.k))
        shapes = matmul_shapes(m, n, k, num_processors=self.num_processors)
        count = 1 + PASSES.index(name)  # gradients of inputs and of weights
        work = Shapes(flops=count * shapes.flops, nbytes=count * shapes.nbytes, features=shapes.features)
        return float(self.linears[operator.name, name].seconds(work)[0])

    def _busy(self, operator: Operator, flops: Numbers, nbytes: Numbers) -> float:
        bandwidth = SCORES_FRACTION * self.memory_bandwidth if operator.kind == "scores" else self._bytes_per_second
        return float(np.maximum(flops / self._flops_per_second(operator), nbytes / bandwidth))

    def _flops_per_second(self, operator: Operator) -> float:
        """Batched matmuls at the rate of the linear that is most like them, as far as their sizes allow."""
        if operator.kind == "batched_matmul":
            rate = self.linears["output_projection", "forward"].rates.flops_per_second
            return rate * float(operator.flops_fraction)
        return self.attention_flops if operator.kind == "attention" else np.inf

    def _gap(self, operator: Operator) -> float:
        return GAP_SECONDS if operator.kind in ("batched_matmul", "attention") else STREAMING_SECONDS


def sampled_operators(device: EquippedDevice, gpu: str, *, without: frozenset[int] = frozenset()) -> SampledOperators:
    """
    Operators of one machine, its linears learned from samples.

    Parameters
    ----------
    device
        The machine's device: its datasheet.
    gpu
        Its name in the table of samples.
    without
        Hidden sizes whose samples are left out, so that no shape of the runs was among them.

    Raises
    ------
    SpecError
        If there are no samples of a linear, or nothing is known of how attention runs on the device.
    """
    if device.architecture not in ATTENTION_FRACTION:
        known = ", ".join(ATTENTION_FRACTION)
        raise SpecError("device", f"{device.name} is none whose attention is known.", f"Known are: {known}.")
    return SampledOperators(
        linears=learned_linears(gpu, without),
        memory_bandwidth=device.memory_bandwidth,
        attention_flops=ATTENTION_FRACTION[device.architecture] * device.peak_flops["fp16"],
        num_processors=num_processors(gpu),
    )


@cache
def learned_linears(gpu: str, without: frozenset[int]) -> Mapping[tuple[str, str], SampledTimes]:
    """
    Learned times of each linear of one device by name and pass; half a minute, so that they are kept.

    Parameters
    ----------
    gpu, without
        As in :func:`learn_operators`.

    Raises
    ------
    SpecError
        If there are no samples of a linear.
    """
    groups = {group.name: group for group in gemm_groups(DATA / "gemm.csv.gz") if group.device == gpu}
    times = {}
    for name, sampled in LINEARS.items():
        for each in PASSES:
            group = groups.get(f"{sampled} {each}")
            if group is None:
                raise SpecError("samples", f"{gpu!r} has none of {sampled} {each}.")
            kept = group[~np.isin(group.families.astype(int), list(without))]
            times[name, each] = learn_operator(kept.shapes, kept.seconds, list(kept.families))
    return times


SAMPLES = DATA / "collectives.csv"

KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "sendrecv": "send"}
"""Collectives by their names in the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledNetwork:
    r"""
    Collectives of megabytes and more on one cluster.

    .. math:: T = \frac{W}{l R}

    W are the bytes that a rank sends: 2 (n - 1) / n of a sum, (n - 1) / n of a gather. R is the rate of one sender, and
    l how many send at once: inside a node, whose devices have a link to each other, a device's n - 1 links; across
    nodes a node's members, each its share. Tens of microseconds until it starts are less than its rate is unsure.

    Parameters
    ----------
    bytes_per_second
        R, in the median of the samples, by kind of collective and whether it crosses nodes.
    """

    bytes_per_second: Mapping[tuple[str, bool], float]

    def collective_seconds(self, kind: str, nbytes: float, ranks: int, nodes: int) -> float:
        """
        Seconds of one collective; none of one rank.

        Parameters
        ----------
        kind
            ``all_reduce``, ``all_gather`` or ``send``.
        nbytes
            Bytes of the whole tensor.
        ranks, nodes
            Members, and nodes that they are on.

        Raises
        ------
        SpecError
            If there are no samples of its kind.
        """
        if ranks < 2:
            return 0.0
        rate = self.bytes_per_second.get((kind, nodes > 1))
        if rate is None:
            place = "across nodes" if nodes > 1 else "inside a node"
            raise SpecError("collectives", f"there are no samples of {kind} {place}.")
        return float(_sent(kind, np.array([nbytes]), np.array([ranks]), np.array([nodes]))[0]) / rate


def sampled_network(hardware: str) -> SampledNetwork:
    """
    The network of one cluster of the table of collectives.

    Parameters
    ----------
    hardware
        First part of its name in the table.

    Raises
    ------
    SpecError
        If the table has none of that name.
    """
    table = pd.read_csv(SAMPLES)
    rows = table[table.hardware.str.startswith(hardware) & table.op.isin(KINDS)]
    if rows.empty:
        raise SpecError(str(SAMPLES), f"no hardware starts with {hardware!r}.")
    rates = {}
    for (name, crosses), own in rows.groupby(["op", rows.nodes > 1]):
        counts = own.n_gpus.to_numpy(dtype=int), own.nodes.to_numpy(dtype=int)
        sent = _sent(KINDS[str(name)], own.message_bytes.to_numpy(dtype=float), *counts)
        rates[KINDS[str(name)], bool(crosses)] = float(np.median(sent / (own.time_us.to_numpy(dtype=float) * 1e-6)))
    return SampledNetwork(bytes_per_second=rates)


def _sent(
    kind: str, nbytes: NDArray[np.float64], ranks: NDArray[np.int64], nodes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Bytes of the sender that sends most; shape (rows,)."""
    if kind == "send":
        return nbytes
    wire = (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks * nbytes
    sent: NDArray[np.float64] = wire / np.where(nodes > 1, ranks / nodes, ranks - 1)
    return sent
