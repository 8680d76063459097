"""Operators timed by what was learned from samples of the same machine, the others by a roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from costmodel.axes import OncePerRow
from costmodel.errors import SpecError
from costmodel.facts.device import EquippedDevice
from costmodel.facts.samples import SampledOperator, Samples
from costmodel.operators.gaussian_process import Rows, given_samples
from costmodel.operators.roofline import Roofline
from costmodel.operators.sampled import Rates, SampledTimes
from costmodel.operators.sampled_shapes import ELEMENT_BYTES, MATMULS, Shapes, sampled_shapes
from costmodel.operators.work import AttentionSize, KernelSize, MatmulSize, Numbers, Operator

UNKNOWN_PROCESSORS = 128
"""Processors of a device that does not say how many it has: a feature of its matmuls is scaled, no time."""

BACKWARD = {name: ("dgrad", "wgrad") for name in MATMULS}
"""Sampled passes that make up the backward pass, where they are several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledPass:
    """
    Times of one pass of one kind of operator.

    Parameters
    ----------
    operator, of_pass, dtype, columns, num_processors
        What was sampled; names of its sizes.
    times
        What was learned.
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
        """Seconds, in the broadcast shape of the sizes; each shape is computed once."""
        found: Numbers = self._once(*(sizes[name] for name in self.columns))
        return found

    def relative_deviation(self, sizes: Mapping[str, Numbers]) -> float:
        """Standard deviation of the logarithm of the time of one shape."""
        return float(self.times.relative_deviation(self.shapes(sizes))[0])

    def is_outside(self, sizes: Mapping[str, Numbers]) -> bool:
        """Whether one shape is outside of the sampled range."""
        return bool(self.times.is_outside(self.shapes(sizes))[0])

    def shapes(self, sizes: Mapping[str, Numbers]) -> Shapes:
        """Work and features of some sizes."""
        return sampled_shapes(
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
    What was learned of each operator, pass and dtype, made of the file's numbers when somebody asks.

    Parameters
    ----------
    samples
        Of a device.
    num_processors
        Of the device.
    """

    def __init__(self, samples: Samples, num_processors: int) -> None:
        self._stored = {(one.operator, one.of_pass, one.dtype): one for one in samples.operators}
        self._num_processors = num_processors
        self._made: dict[tuple[str, str, str], SampledPass] = {}

    def get(self, operator: str, of_pass: str, dtype: str) -> SampledPass | None:
        """
        What was learned; None: it was not sampled.

        Raises
        ------
        SpecError
            If the file's numbers do not belong together.
        """
        key = (operator, of_pass, dtype)
        if key not in self._stored:
            return None
        if key not in self._made:
            self._made[key] = _pass_of(self._stored[key], self._num_processors)
        return self._made[key]


@lru_cache(maxsize=4)
def sampled_passes(samples: Samples, num_processors: int) -> SampledPasses:
    """What was learned, the same object for the same device."""
    return SampledPasses(samples, num_processors)


def _pass_of(one: SampledOperator, num_processors: int) -> SampledPass:
    """The process given the support points of the file."""
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
        raise SpecError(stored, f"lacks the size {error}, or is no such dtype.", "'planner fit' writes them.") from None
    numbers = {"lengths": one.lengths, "lowest": one.lowest, "highest": one.highest}
    for name, values in numbers.items():
        if len(values) != shapes.features.shape[1]:
            where = f"{stored}: {name}"
            problem = f"has {len(values)} numbers, expected {shapes.features.shape[1]}, one for each feature."
            raise SpecError(where, problem, "'planner fit' writes them.")
    process = given_samples(
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
    Operators that were sampled take what was learned of them, others what another source says.

    Parameters
    ----------
    passes
        What was learned.
    otherwise
        Times of all other operators.
    name
        The device.
    samples_name
        What its samples are called.
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
        """Seconds of the backward pass: of matmuls the gradients of input and weight."""
        seconds = self._seconds(operator, backward_passes(operator))
        return self.otherwise.backward_seconds(operator) if seconds is None else seconds

    def launch_seconds(self, operator: Operator) -> Numbers:
        """Seconds in which the host launches the forward pass, from the sampled time of a launch."""
        return self.otherwise.launch_seconds(operator)

    def origin(self, operator: Operator) -> str:
        """That it was sampled on the device, or who timed it otherwise."""
        is_sampled = self.is_sampled(operator)
        return f"{self.samples_name} of {self.name}" if is_sampled else self.otherwise.origin(operator)

    def is_sampled(self, operator: Operator) -> bool:
        """Whether samples time both passes of an operator."""
        return all(self.found(operator, one) for one in (*forward_passes(operator), *backward_passes(operator)))

    def found(self, operator: Operator, of_pass: str) -> tuple[SampledPass, Mapping[str, Numbers]] | None:
        """What was learned of a pass of an operator, and its sizes; None: it was not sampled."""
        size = sampled_size(operator)
        known = self.passes.get(size.kernel, of_pass, size.dtype) if size else None
        return (known, size.sizes) if known and size else None

    def _seconds(self, operator: Operator, of_passes: Iterable[str]) -> Numbers | None:
        size, total = sampled_size(operator), np.zeros(())
        for of_pass in of_passes:
            found = self.found(operator, of_pass)
            if found is None or size is None:
                return None
            known, sizes = found
            total = total + size.count * known.seconds(sizes)
        return np.where(np.asarray(operator.kernels) > 0, total, 0.0)[()] / self.otherwise.compute_scaling


ADAM_BYTES = 28.0
"""Bytes that a sampled update moves per parameter: four tensors of FP32 are read, three written."""


def sampled_update(device: EquippedDevice) -> SampledPass | None:
    """What was learned of a device's updates by Adam in FP32; None: nobody sampled them, or other times count."""
    if device.calibration.samples is None or device.constants.times != "sampled":
        return None
    passes = sampled_passes(device.calibration.samples, device.num_processors or UNKNOWN_PROCESSORS)
    return passes.get("adam", "forward", "fp32")


def forward_passes(operator: Operator) -> tuple[str, ...]:
    """Sampled passes that make up the forward pass of an operator."""
    size = sampled_size(operator)
    return ("backward",) if size is not None and size.is_adjoint else ("forward",)


def backward_passes(operator: Operator) -> tuple[str, ...]:
    """
    Sampled passes that make up the backward pass of an operator.

    An addition hands its gradient on twice; what comes back of both is added up, as in the forward pass.
    """
    size = sampled_size(operator)
    if size is not None and (size.kernel == "residual" or size.is_adjoint):
        return ("forward",)
    return BACKWARD.get(operator.kind, ("backward",))


def sampled_size(operator: Operator) -> KernelSize | None:
    """
    An operator as samples know it, with the sizes that the table has; None: they know nothing like it.

    Attention in a window is none of them: what PyTorch samples of it is a mask that skips nothing.
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
