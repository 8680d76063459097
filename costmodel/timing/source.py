"""Sources of operator times: one protocol, and the source that a device's constants name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from costmodel.errors import SpecError
from costmodel.facts.device import EquippedDevice
from costmodel.facts.fields import Dtype
from costmodel.record import record
from costmodel.strategy import CudaGraphs
from costmodel.timing.roofline import MeasuredTimes, build_modified_roofline, theoretical_roofline
from costmodel.timing.work import Numbers, Operator

if TYPE_CHECKING:
    from costmodel.timing.sampled_source import SampledSource


class OperatorTimes(Protocol):
    """
    A source of operator times; operators may hold arrays over strategies, and so may the times.

    The source includes gaps: the time until the next kernel starts is part of its seconds.
    """

    def forward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the forward pass of one micro-batch."""
        ...

    def backward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the whole backward pass of one micro-batch, recomputation not counted."""
        ...

    def launch_seconds(self, operator: Operator) -> Numbers:
        """Seconds in which the host launches its forward pass; the backward pass has twice as many kernels."""
        ...

    def origin(self, operator: Operator) -> str:
        """Return the name of the source in the report."""
        ...


@record(frozen=True, kw_only=True, slots=True)
class SlowestTimes:
    """
    Times on the slowest of many devices, for which the others wait.

    Parameters
    ----------
    usual
        Times on a usual device.
    slowdown
        Times on the slowest device over those on a usual one, at least 1.
    """

    usual: OperatorTimes
    slowdown: Numbers

    def forward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the forward pass of one micro-batch."""
        return self.slowdown * self.usual.forward_seconds(operator)

    def backward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the whole backward pass of one micro-batch, recomputation not counted."""
        return self.slowdown * self.usual.backward_seconds(operator)

    def launch_seconds(self, operator: Operator) -> Numbers:
        """Seconds in which the host launches its forward pass, which a slow device does not change."""
        return self.usual.launch_seconds(operator)

    def origin(self, operator: Operator) -> str:
        """Return the source of the time on a usual device."""
        return self.usual.origin(operator)


def slowest_of(num_devices: Numbers, *, spread: float) -> Numbers:
    r"""
    Time of the slowest of n devices for equal work, over the usual time. Unit: none, at least 1.

    .. math:: 1 + \sigma \ln n

    Derivation: if times have an exponential tail, the slowest of n is on average H_n - 1 tails above one device.
    H_n is the harmonic number, and H_n - 1 is ln n within 0.43.

    Parameters
    ----------
    num_devices
        n.
    spread
        Mean of the tail, relative to the usual time.

    References
    ----------
    Devices of one kind differ by 8 % and more in the same work (Sinha et al., "Not All GPUs Are Created Equal",
    SC 2022, arXiv:2208.11035). Runs of the same layout with more replicas, ``benchmarks/LEDGER.md``: 0.75 to 1.5 %
    longer per factor e.

    Examples
    --------
    >>> [round(float(slowest_of(n, spread=0.008)), 3) for n in (1, 8, 64, 2048)]
    [1.0, 1.017, 1.033, 1.061]
    """
    return np.asarray(1.0 + spread * np.log(num_devices))


def operator_times(
    device: EquippedDevice, compute_dtype: Dtype, *, num_devices: Numbers = 1, cuda_graphs: Numbers = CudaGraphs.NONE
) -> OperatorTimes:
    """
    Return the source of times that the device's constants name; for many devices, the times of the slowest.

    Parameters
    ----------
    device
        The accelerator with its constants.
    compute_dtype
        Dtype of the matmuls.
    num_devices
        Number of devices that work side by side and wait for one another. The theoretical roofline, a bound, has no
        slowest device.
    cuda_graphs
        Decision of that name; measured rates do not depend on it.

    Raises
    ------
    SpecError
        If the device has no peak, or its constants no efficiency, for the dtype.
    """
    if device.constants.times == "roofline":
        return theoretical_roofline(device, compute_dtype, cuda_graphs=cuda_graphs)
    usual: OperatorTimes
    if device.constants.times == "measured":
        usual = MeasuredTimes(device=device, cuda_graphs=cuda_graphs)
    elif device.constants.times == "sampled":
        usual = build_sampled_source(device, compute_dtype, cuda_graphs=cuda_graphs)
    else:
        usual = build_modified_roofline(device, compute_dtype, cuda_graphs=cuda_graphs)
    spread = device.constants.straggler_spread
    return SlowestTimes(usual=usual, slowdown=slowest_of(num_devices, spread=spread)) if spread else usual


def build_sampled_source(
    device: EquippedDevice, compute_dtype: Dtype, *, cuda_graphs: Numbers = CudaGraphs.NONE
) -> SampledSource:
    """
    Build the source of a device's sampled times, with a roofline of sampled rates for all other operators.

    Raises
    ------
    SpecError
        If the device has no samples, or no peak for the dtype.
    """
    from costmodel.timing.sampled_source import UNKNOWN_PROCESSORS, SampledSource, load_learned_times

    if device.calibration.samples is None:
        raise SpecError(
            "cluster.device.calibration.samples",
            f"{device.name} has none, but its calibration says times: sampled.",
            "'planner calibrate' writes a device with samples.",
        )
    return SampledSource(
        passes=load_learned_times(device.calibration.samples, device.num_processors or UNKNOWN_PROCESSORS),
        otherwise=build_modified_roofline(device, compute_dtype, cuda_graphs=cuda_graphs),
        name=device.name,
        samples_name=device.calibration.samples.origin,
    )
