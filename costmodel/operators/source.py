"""Who times an operator: one protocol, and the source that a device's profile names."""

from __future__ import annotations

from typing import Protocol

from costmodel.operators.measured import MeasuredTimes
from costmodel.operators.roofline import modified_roofline, theoretical_roofline
from costmodel.operators.work import Numbers, Operator
from costmodel.spec import Device, Dtype


class OperatorTimes(Protocol):
    """A source of operator times; operators may hold arrays over strategies, and so may the times."""

    def forward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the forward pass of one micro-batch."""
        ...

    def backward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the whole backward pass of one micro-batch, recomputation not counted."""
        ...

    def origin(self, operator: Operator) -> str:
        """Who timed it, as the report names it."""
        ...


def operator_times(device: Device, compute_dtype: Dtype) -> OperatorTimes:
    """
    The source of times that the device's profile names.

    Parameters
    ----------
    device
        The accelerator and its profile.
    compute_dtype
        Dtype of the matmuls.

    Raises
    ------
    SpecError
        If the device has no peak, or its profile no efficiency, for the dtype.
    """
    match device.profile.times:
        case "measured":
            return MeasuredTimes(device=device)
        case "modified_roofline":
            return modified_roofline(device, compute_dtype)
        case "roofline":
            return theoretical_roofline(device, compute_dtype)
