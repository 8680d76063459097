"""Operator times from peak rates: the theoretical roofline, and the same law with fitted rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.calibration import Constants, MeasuredRate
from costmodel.facts.device import EquippedDevice
from costmodel.facts.fields import NARROW, Dtype
from costmodel.record import record
from costmodel.strategy import CudaGraphs
from costmodel.tables import is_near
from costmodel.timing.work import MEMORY_BOUND, AttentionSize, Numbers, Operator, has_any, host_launches, is_graphed

USUAL_HEAD = 128

"""Head width for which attention efficiencies are given."""

NARROW_ATTENTION = "attention:fp8"

"""Key of the rate of attention's matmuls in 8 bits."""

GRAPHED_SECONDS = 0.5e-6

"""
Seconds between two kernels of a CUDA graph: kernels of 2.9 us take 3.4 us each (Gray, "Getting Started with CUDA
Graphs", NVIDIA developer blog, 2019). A matmul keeps its own waves and tail.
"""

SMALL_KERNEL_SECONDS = 2.9e-6

"""Seconds of a kernel with little to do, from its start to its end (Gray, as above)."""

LAUNCHED_SECONDS = 0.9e-6

"""Seconds between two such kernels that the host launches ahead of the device: 3.8 us each (Gray, as above)."""

STREAMING_SECONDS = 15e-6

"""
Gap in seconds of a kernel that only moves bytes, without a matmul's waves and tail.

Two us pass between two kernels, and the smallest kernel takes 2 us (DeepSeek-V3's trace on H800). For one counted
kernel there are three or four (sums over rows in two kernels, copies); 5 to 15 us fit equally well. With routed tokens
there are more of them: a matmul's gap.
"""

BACKWARD_KERNELS = 2

"""Kernels of the backward pass per kernel of the forward pass: one for the input's gradient, one for the weight's."""


@record(frozen=True, kw_only=True, slots=True)
class Roofline:
    """
    Operators at the peak rate or at the memory's rate, whichever is slower, equation (19).

    Parameters
    ----------
    name
        Name of this source in the report.
    flops_per_second
        Peak rate by operator kind, or by kind and dtype (``matmul:bf16``); unlisted kinds only move bytes.
    bytes_per_second
        Bytes per second of the device memory.
    kind_bytes_per_second
        Bytes per second for kinds of operators with a rate of their own: ``elementwise`` (and casts), ``scan``,
        ``scores``.
    casts
        Kinds of operators whose inputs are first cast to a narrower dtype.
    grouped_half_saturation_rows
        Rows per expert at which grouped matmuls reach half of their rate.
    attention_half_length
        Length at which attention reaches half of its rate.
    exponential_width
        Width of a head whose matmuls take as long as the exponentials of its scores.
    kernel_gap_seconds
        Gap in seconds that every kernel adds.
    host_seconds
        Seconds in which the host launches a kernel outside of CUDA graphs.
    launch_blocking
        True if the host launches a kernel only after the previous one has ended.
    cuda_graphs
        The decision, which may be an array: kernels that only move bytes lose the gap inside a graph.
    epilogue_store_fraction
        Share of the time of writing a matmul's results that its multiplications do not hide.
    compute_scaling
        MoFa's alpha, equation (17).
    """

    name: str
    flops_per_second: Mapping[str, float]
    bytes_per_second: float
    kind_bytes_per_second: Mapping[str, float] = field(default_factory=dict)
    casts: frozenset[str] = frozenset()
    grouped_half_saturation_rows: float = 0.0
    attention_half_length: float = 0.0
    exponential_width: float = 0.0
    kernel_gap_seconds: float = 0.0
    host_seconds: float = 0.0
    launch_blocking: bool = False
    cuda_graphs: Numbers = CudaGraphs.NONE
    epilogue_store_fraction: float = 0.0
    compute_scaling: float = 1.0

    def forward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the forward pass."""
        busy = self._busy_seconds(
            operator, operator.flops, operator.bytes, operator.cast_bytes, written=operator.written_bytes
        )
        gaps = operator.kernels * self._gap_seconds(operator)
        return busy + gaps + self._small_kernels_seconds(operator, operator.group_kernels[0])

    def backward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the backward pass, which launches twice the kernels."""
        busy = self._busy_seconds(
            operator,
            operator.backward_flops,
            operator.backward_bytes,
            operator.backward_cast_bytes,
            written=operator.backward_written_bytes,
        )
        gaps = BACKWARD_KERNELS * operator.kernels * self._gap_seconds(operator)
        return busy + gaps + self._small_kernels_seconds(operator, operator.group_kernels[1])

    def _small_kernels_seconds(self, operator: Operator, number: Numbers) -> Numbers:
        """Seconds of kernels that cast the tensor of a group each; 0 in a bound, which has no gaps either."""
        if not self.kernel_gap_seconds or not has_any(number):
            return 0.0
        between = np.where(is_graphed(operator, self.cuda_graphs), GRAPHED_SECONDS, LAUNCHED_SECONDS)[()]
        seconds: Numbers = number * (SMALL_KERNEL_SECONDS + between)
        return seconds

    def launch_seconds(self, operator: Operator) -> Numbers:
        """Seconds in which the host launches the forward pass; kernels inside a graph take none."""
        return self.host_seconds * host_launches(operator, self.cuda_graphs)

    def _gap_seconds(self, operator: Operator) -> Numbers:
        if not self.launch_blocking:
            return self._device_gap_seconds(operator)
        launched: Numbers = np.where(is_graphed(operator, self.cuda_graphs), 0.0, self.host_seconds)[()]
        return self._device_gap_seconds(operator) + launched

    def _device_gap_seconds(self, operator: Operator) -> Numbers:
        if operator.kind not in MEMORY_BOUND:
            return self.kernel_gap_seconds
        launched = self.kernel_gap_seconds if operator.is_routed else min(self.kernel_gap_seconds, STREAMING_SECONDS)
        graphed = min(self.kernel_gap_seconds, GRAPHED_SECONDS)
        seconds: Numbers = np.where(is_graphed(operator, self.cuda_graphs), graphed, launched)[()]
        return seconds

    def origin(self, operator: Operator) -> str:
        """Return the name of this roofline for every operator."""
        return self.name

    def _busy_seconds(
        self, operator: Operator, flops: Numbers, nbytes: Numbers, cast_bytes: Numbers, *, written: Numbers
    ) -> Numbers:
        r"""
        Seconds of one pass of one operator, and of the casts before it.

        .. math:: T = \frac{F}{\alpha \min(P, F / Q \cdot B)} = \max(F / P, Q / B) / \alpha

        A share w of the bytes W that a matmul writes is exposed after its multiplications: :math:`F / P + w W / B`.
        """
        computing = flops / self._rate(operator)
        if operator.kind in ("matmul", "grouped_matmul") and self.epilogue_store_fraction:
            alone = 1.0 if operator.kind == "matmul" else self._alone(operator)
            computing = computing + alone * self.epilogue_store_fraction * written / self.bytes_per_second
        seconds: Numbers = np.maximum(computing, nbytes / self._bytes_rate(operator.kind))
        if operator.kind in self.casts and f"{operator.kind}:{operator.dtype}" not in self.flops_per_second:
            seconds = seconds + cast_bytes / self._bytes_rate("elementwise")
        return seconds / self.compute_scaling

    def _bytes_rate(self, kind: str) -> float:
        return self.kind_bytes_per_second.get(kind, self.bytes_per_second)

    def _rate(self, operator: Operator) -> Numbers:
        rates = self.flops_per_second
        rate = (
            rates.get(f"{operator.kind}:{operator.dtype}", rates.get(operator.kind, np.inf)) * operator.flops_fraction
        )
        if operator.kind == "grouped_matmul":
            plain = rates.get(f"matmul:{operator.dtype}", rates.get("matmul", np.inf)) * operator.flops_fraction
            grouped = rate * operator.rows / (operator.rows + self.grouped_half_saturation_rows * operator.groups)
            alone = self._alone(operator)
            return 1 / (alone / plain + (1 - alone) / grouped)
        if operator.kind != "attention":
            return rate
        if not isinstance(operator.size, AttentionSize):
            return rate * operator.rows / (operator.rows + self.attention_half_length)
        length, fraction = operator.size.keys, self._head_fraction(operator, operator.size.head_dim)
        return rate * fraction * length / (length + self.attention_half_length)

    @staticmethod
    def _alone(operator: Operator) -> Numbers:
        r"""
        Share of a grouped matmul that runs as a plain one: :math:`1 / g` of g local experts.

        Derivation: the first group of a grouped matmul waits for no other group, casts and pads none but itself; a
        matmul of one group is a plain one.
        """
        share: Numbers = 1 / np.maximum(operator.groups, 1.0)
        return share

    def _head_fraction(self, operator: Operator, head_dim: float) -> float:
        r"""
        Fraction of the rate for heads of unusual width: a score costs one exponential at any width and in any dtype.

        .. math:: \frac{d}{d + r w} \frac{128 + w}{128}

        Derivation: with matmuls at r times the rate of 16 bits a score takes d / r + w instead of d + w.
        """
        rates, width = self.flops_per_second, self.exponential_width
        usual = rates[operator.kind]
        faster = rates.get(f"{operator.kind}:{operator.dtype}", usual) / usual
        return head_dim / (head_dim + faster * width) * (USUAL_HEAD + width) / USUAL_HEAD


def theoretical_roofline(
    device: EquippedDevice, compute_dtype: Dtype, *, cuda_graphs: Numbers = CudaGraphs.NONE
) -> Roofline:
    """
    Return the roofline of the datasheet's peaks, without fitted constants: a lower bound of every time.

    The logits stay in 16 bits in every recipe, and so does attention unless ``fp8_attention`` says otherwise.
    """
    wide = device.wide_dtype(compute_dtype)
    peak, peak_16bit = _peak(device, compute_dtype), _peak(device, wide)
    return Roofline(
        name=f"theoretical roofline of {device.name}",
        flops_per_second={
            "matmul": peak,
            "grouped_matmul": peak,
            f"matmul:{wide}": peak_16bit,
            f"grouped_matmul:{wide}": peak_16bit,
            "batched_matmul": peak_16bit,
            "attention": peak_16bit,
            **_narrow_attention(device, 1.0),
            "scan": peak_16bit,
        },
        bytes_per_second=device.memory_bandwidth,
        casts=_casts(compute_dtype),
        host_seconds=device.constants.launch_overhead_seconds,
        cuda_graphs=cuda_graphs,
        compute_scaling=device.constants.measured.compute_scaling,
    )


def build_modified_roofline(device: EquippedDevice, compute_dtype: Dtype, *, cuda_graphs: Numbers) -> Roofline:
    """Return the roofline with the device's fitted rates, and the gap between kernels that no rate explains."""
    constants, wide = device.constants, device.wide_dtype(compute_dtype)
    clock = constants.throttled_clock
    own_efficiencies = {
        "elementwise": constants.elementwise_efficiency,
        "scan": constants.scan_efficiency,
        "scores": constants.score_efficiency,
    }
    rate, peak_16bit = clock * _matmul_rate(device, compute_dtype), clock * _peak(device, wide)
    return Roofline(
        name=f"modified roofline of {device.name}",
        flops_per_second={
            "matmul": rate,
            "grouped_matmul": rate * constants.grouped_matmul_efficiency * _grouped_fraction(device, compute_dtype),
            f"matmul:{wide}": clock * _matmul_rate(device, wide),
            f"grouped_matmul:{wide}": clock * _matmul_rate(device, wide) * constants.grouped_matmul_efficiency,
            "batched_matmul": clock * _matmul_rate(device, wide),
            "attention": peak_16bit * constants.attention_efficiency * _attention_fraction(device),
            **_narrow_attention(device, clock * constants.attention_efficiency * _attention_fraction(device)),
            "scan": peak_16bit * constants.attention_efficiency,
        },
        bytes_per_second=device.achieved_memory_bandwidth,
        kind_bytes_per_second={
            kind: device.memory_bandwidth * efficiency for kind, efficiency in own_efficiencies.items() if efficiency
        },
        casts=_casts(compute_dtype),
        grouped_half_saturation_rows=constants.grouped_half_saturation_rows,
        attention_half_length=constants.attention_half_length,
        exponential_width=device.silicon.exponential_width * _attention_instructions(device),
        kernel_gap_seconds=constants.kernel_gap_seconds,
        host_seconds=constants.launch_overhead_seconds,
        launch_blocking=device.behaviour.host.launch_blocking,
        cuda_graphs=cuda_graphs,
        epilogue_store_fraction=constants.epilogue_store_fraction,
        compute_scaling=constants.measured.compute_scaling,
    )


def _narrow_attention(device: EquippedDevice, efficiency: float) -> dict[str, float]:
    """Return the rate of attention in 8 bits, if the framework has it."""
    return {NARROW_ATTENTION: _peak(device, "fp8") * efficiency} if device.behaviour.kernels.fp8_attention else {}


def _grouped_fraction(device: EquippedDevice, compute_dtype: Dtype) -> float:
    """Fraction of an 8-bit recipe's rate that remains after casting and padding of each group."""
    return device.constants.grouped_low_precision_efficiency if _casts(compute_dtype) else 1.0


def _attention_instructions(device: EquippedDevice) -> float:
    """Fraction of the rate that attention kernels of the previous generation reach."""
    is_native = device.behaviour.kernels.attention_kernels == "native"
    return 1.0 if is_native else device.silicon.older_kernels_fraction


def _attention_fraction(device: EquippedDevice) -> float:
    """Fraction of the rate of a device's own attention kernels that the software's kernels reach."""
    return device.behaviour.kernels.attention_fraction * _attention_instructions(device)


def _casts(compute_dtype: Dtype) -> frozenset[str]:
    """Return the kinds of operators whose inputs a recipe casts: the linears, below 16 bits."""
    return frozenset({"matmul", "grouped_matmul"}) if compute_dtype in NARROW else frozenset()


def _matmul_rate(device: EquippedDevice, dtype: Dtype) -> float:
    peak, efficiencies = _peak(device, dtype), device.constants.matmul_efficiency
    if dtype not in efficiencies:
        where = "cluster.device.calibration.matmul_efficiency"
        raise SpecError(where, f"has no entry for {dtype} on {device.name}.", did_you_mean(dtype, efficiencies))
    return peak * efficiencies[dtype]


def _peak(device: EquippedDevice, dtype: Dtype) -> float:
    if dtype not in device.peak_flops:
        hint = f"It has: {', '.join(sorted(device.peak_flops))}."
        raise SpecError("precision", f"{device.name} has no {dtype} matmuls.", hint)
    return device.peak_flops[dtype]


@record(frozen=True, kw_only=True, slots=True)
class MeasuredTimes:
    """
    Operators at the rate measured for their kind and shape.

    A shape that was not measured takes NaN seconds: rules refuse its strategies (:func:`measured`). Element-wise
    operators without an entry take none: a rate over seconds per layer already contains them.

    Parameters
    ----------
    device
        The accelerator whose constants hold the table.
    cuda_graphs
        The decision of that name, which may be an array: it changes the host's launches, not the rates.
    """

    device: EquippedDevice
    cuda_graphs: Numbers = CudaGraphs.NONE

    def forward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the forward pass, equations (1) and (17)."""
        return self._seconds(operator, operator.flops)

    def backward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the backward pass, at the same rate."""
        return self._seconds(operator, operator.backward_flops)

    def launch_seconds(self, operator: Operator) -> Numbers:
        """Seconds in which the host launches its forward pass, from the device's constants."""
        return self.device.constants.launch_overhead_seconds * host_launches(operator, self.cuda_graphs)

    def origin(self, operator: Operator) -> str:
        """Return the name of the table, or that the operator is part of another one's rate."""
        if is_inside_other_rates(self.device.constants, operator):
            return f"inside the measured rates of {self.device.name}"
        return f"measured rates of {self.device.name}"

    def _seconds(self, operator: Operator, flops: Numbers) -> Numbers:
        constants = self.device.constants
        if is_inside_other_rates(constants, operator):
            return flops * 0.0
        return flops / (find_measured_rate(constants, operator) * constants.measured.compute_scaling)


def find_measured_rate(constants: Constants, operator: Operator) -> Numbers:
    """
    FLOPs per second of the operator's shape, P of MoFa's equation (1); NaN if it was not measured.

    Entries for the operator's kind and name precede entries for its kind; earlier entries precede later ones.
    """
    rate: Numbers = np.nan
    for entry in reversed(_entries(constants, operator)):
        rate = np.where(_matches(entry, operator), entry.flops_per_second, rate)[()]
    return rate


def is_inside_other_rates(constants: Constants, operator: Operator) -> bool:
    """Return True if the table times this element-wise operator together with the others of its layer."""
    return operator.kind in MEMORY_BOUND and not _entries(constants, operator)


def _entries(constants: Constants, operator: Operator) -> list[MeasuredRate]:
    keys = (f"{operator.kind}:{operator.name}", operator.kind)
    return [entry for key in keys for entry in constants.measured.rates if key in entry.kinds]


def _matches(entry: MeasuredRate, operator: Operator) -> NDArray[np.bool_]:
    matches = np.asarray(True)
    for known, seen in ((entry.rows, operator.rows), (entry.shards, operator.shards), (entry.groups, operator.groups)):
        if known is not None:
            matches = matches & is_near(seen, known)
    return matches
