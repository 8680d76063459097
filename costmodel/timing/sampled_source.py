"""Operator times from samples of the same machine, and from a roofline for all other operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from costmodel.axes import OncePerRow
from costmodel.errors import SpecError
from costmodel.facts.device import EquippedDevice
from costmodel.facts.samples import SampledOperator, Samples
from costmodel.timing.gaussian_process import Rows, fit_samples
from costmodel.timing.roofline import Roofline
from costmodel.timing.sampled import Rates, SampledTimes
from costmodel.timing.sampled_shapes import ELEMENT_BYTES, MATMULS, Shapes, shapes_of_samples
from costmodel.timing.work import AttentionSize, KernelSize, MatmulSize, Numbers, Operator

UNKNOWN_PROCESSORS = 128
"""Number of processors of a device that does not specify it: it scales a feature of its matmuls, no time."""

BACKWARD = {name: ("dgrad", "wgrad") for name in MATMULS}
"""Sampled passes that make up the backward pass, if there are several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledPass:
    """
    Times of one pass of one kind of operator.

    Parameters
    ----------
    operator, of_pass, dtype, columns, num_processors
        Identity of the samples; names of the sizes.
    times
        Learned times.
    """

    operator: str
    of_pass: str
    dtype: str
    columns: tuple[str, ...]
    num_processors: int
    times: SampledTimes
    _once: OncePerRow = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_once", OncePerRow(self._seconds))

    def seconds(self, sizes: Mapping[str, Numbers]) -> Numbers:
        """Return the seconds, in the broadcast shape of the sizes; each shape is computed once."""
        found: Numbers = self._once(*(sizes[name] for name in self.columns))
        return found

    def relative_deviation(self, sizes: Mapping[str, Numbers]) -> float:
        """Return the standard deviation of the logarithm of the time of one shape."""
        return float(self.times.relative_deviation(self.shapes(sizes))[0])

    def is_outside(self, sizes: Mapping[str, Numbers]) -> bool:
        """Return True if one shape is outside of the sampled range."""
        return bool(self.times.is_outside(self.shapes(sizes))[0])

    def shapes(self, sizes: Mapping[str, Numbers]) -> Shapes:
        """Return the work and the features of the given sizes."""
        return shapes_of_samples(
            self.operator,
            self.of_pass,
            {name: sizes[name] for name in self.columns},
            element_bytes=ELEMENT_BYTES[self.dtype],
            num_processors=self.num_processors,
        )

    def _seconds(self, *columns: Rows) -> Rows:
        return self.times.seconds(self.shapes(dict(zip(self.columns, columns, strict=True))))


class SampledPasses:
    """
    Learned times of each operator, pass and dtype, built from the file's numbers on demand.

    Parameters
    ----------
    samples
        Samples of a device.
    num_processors
        Number of processors of the device.
    """

    def __init__(self, samples: Samples, num_processors: int) -> None:
        self._stored = {(one.operator, one.of_pass, one.dtype): one for one in samples.operators}
        self._num_processors = num_processors
        self._made: dict[tuple[str, str, str], SampledPass] = {}

    def get(self, operator: str, of_pass: str, dtype: str) -> SampledPass | None:
        """
        Return the learned times; None if the pass was not sampled.

        Raises
        ------
        SpecError
            If the file's numbers are inconsistent.
        """
        key = (operator, of_pass, dtype)
        if key not in self._stored:
            return None
        if key not in self._made:
            self._made[key] = _pass_of(self._stored[key], self._num_processors)
        return self._made[key]


@lru_cache(maxsize=4)
def load_learned_times(samples: Samples, num_processors: int) -> SampledPasses:
    """Return the learned times, as one shared object per device."""
    return SampledPasses(samples, num_processors)


def _pass_of(one: SampledOperator, num_processors: int) -> SampledPass:
    """Build the times of one pass from the support points of the file."""
    rates = Rates(
        flops_per_second=one.flops_per_second or np.inf,
        bytes_per_second=one.bytes_per_second,
        smallest_seconds=one.smallest_seconds,
    )
    times = SampledTimes(
        rates=rates,
        processes=(),
        lowest=np.array(one.lowest),
        highest=np.array(one.highest),
        widening=one.widening,
        left_out_error=one.error,
    )
    bare = SampledPass(
        operator=one.operator,
        of_pass=one.of_pass,
        dtype=one.dtype,
        columns=one.columns,
        num_processors=num_processors,
        times=times,
    )
    *sizes, seconds = np.array([line.split() for line in one.rows.splitlines()], dtype=float).T
    stored = f"cluster.device.calibration.samples.operators: {one.operator} {one.of_pass} {one.dtype}"
    try:
        shapes = bare.shapes(dict(zip(one.columns, sizes, strict=True)))
    except KeyError as error:
        raise SpecError(
            stored, f"lacks the size {error}, or its dtype is unknown.", "'planner fit' writes them."
        ) from None
    numbers = {"lengths": one.lengths, "lowest": one.lowest, "highest": one.highest}
    for name, values in numbers.items():
        if len(values) != shapes.features.shape[1]:
            where = f"{stored}: {name}"
            problem = f"has {len(values)} numbers, expected {shapes.features.shape[1]}, one for each feature."
            raise SpecError(where, problem, "'planner fit' writes them.")
    process = fit_samples(
        shapes.features,
        np.log(seconds / rates.seconds(shapes)),
        lengths=np.array(one.lengths),
        variance=one.variance,
        noise=one.noise,
        offset=one.offset,
    )
    return replace(bare, times=replace(times, processes=(process,)))


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledSource:
    """
    Times of sampled operators from samples, and of other operators from another source.

    Parameters
    ----------
    passes
        Learned times.
    otherwise
        Times of all other operators.
    name
        Name of the device.
    samples_name
        Word for its samples in the report.
    """

    passes: SampledPasses
    otherwise: Roofline
    name: str
    samples_name: str = "samples"

    def forward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the forward pass."""
        seconds = self._seconds(operator, forward_passes(operator))
        return self.otherwise.forward_seconds(operator) if seconds is None else seconds

    def backward_seconds(self, operator: Operator) -> Numbers:
        """Seconds of the backward pass; for matmuls, of the gradients of input and weight."""
        seconds = self._seconds(operator, backward_passes(operator))
        return self.otherwise.backward_seconds(operator) if seconds is None else seconds

    def launch_seconds(self, operator: Operator) -> Numbers:
        """Seconds in which the host launches the forward pass, from the sampled time of a launch."""
        return self.otherwise.launch_seconds(operator)

    def origin(self, operator: Operator) -> str:
        """Return that it was sampled on the device, or the name of the other source."""
        is_sampled = self.is_sampled(operator)
        return f"{self.samples_name} of {self.name}" if is_sampled else self.otherwise.origin(operator)

    def is_sampled(self, operator: Operator) -> bool:
        """Return True if both passes of an operator were sampled."""
        return all(self.found(operator, one) for one in (*forward_passes(operator), *backward_passes(operator)))

    def found(self, operator: Operator, of_pass: str) -> tuple[SampledPass, Mapping[str, Numbers]] | None:
        """Return the learned times of an operator's pass, and its sizes; None if it was not sampled."""
        size = size_of_operator(operator)
        known = self.passes.get(size.kernel, of_pass, size.dtype) if size else None
        return (known, size.sizes) if known and size else None

    def _seconds(self, operator: Operator, of_passes: Iterable[str]) -> Numbers | None:
        size, total = size_of_operator(operator), np.zeros(())
        for of_pass in of_passes:
            found = self.found(operator, of_pass)
            if found is None or size is None:
                return None
            known, sizes = found
            total = total + size.count * known.seconds(sizes)
        return np.where(np.asarray(operator.kernels) > 0, total, 0.0)[()] / self.otherwise.compute_scaling


ADAM_BYTES = 28.0
"""Bytes that a sampled update moves per parameter: four FP32 tensors read, three written."""


def load_update_times(device: EquippedDevice) -> SampledPass | None:
    """Return the learned times of FP32 Adam updates; None if they were not sampled, or other times count."""
    if device.calibration.samples is None or device.constants.times != "sampled":
        return None
    passes = load_learned_times(device.calibration.samples, device.num_processors or UNKNOWN_PROCESSORS)
    return passes.get("adam", "forward", "fp32")


def forward_passes(operator: Operator) -> tuple[str, ...]:
    """Return the sampled passes that make up the forward pass of an operator."""
    size = size_of_operator(operator)
    return ("backward",) if size is not None and size.is_adjoint else ("forward",)


def backward_passes(operator: Operator) -> tuple[str, ...]:
    """
    Return the sampled passes that make up the backward pass of an operator.

    An addition passes its gradient on twice; the two gradients are added, as in the forward pass.
    """
    size = size_of_operator(operator)
    if size is not None and (size.kernel == "residual" or size.is_adjoint):
        return ("forward",)
    return BACKWARD.get(operator.kind, ("backward",))


def size_of_operator(operator: Operator) -> KernelSize | None:
    """
    Return an operator's kernel and sizes in the words of the samples; None if samples have no such kernel.

    Windowed attention has none: PyTorch's sampled mask does not skip any scores.
    """
    size = operator.size
    if isinstance(size, KernelSize):
        return size
    if not operator.dtype:
        return None
    if isinstance(size, MatmulSize):
        sizes = {"m": size.m, "n": size.n, "k": size.k}
        batch = {} if operator.kind == "matmul" else {"batch": size.batch}
        return KernelSize(kernel=operator.kind, sizes=sizes | batch, dtype=operator.dtype)
    if isinstance(size, AttentionSize) and not size.is_window:
        return KernelSize(kernel="attention", sizes=size.columns, dtype=operator.dtype)
    return None
