"""Operator times from samples of the same machine, and from a roofline for all other operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from costmodel.facts.calibration import SampledOperator, Samples
from costmodel.facts.device import EquippedDevice
from costmodel.record import record
from costmodel.tables import Table, remember_rows
from costmodel.timing.gaussian_process import GaussianProcess, Rows, fit_samples
from costmodel.timing.roofline import Roofline
from costmodel.timing.work import FLASH_BACKWARD, AttentionSize, KernelSize, MatmulSize, Numbers, Operator

TILES = ((128, 128), (256, 128), (128, 256))

"""Tiles of the result that matmul kernels assign to processors, in rows and columns (used by CUTLASS and cuBLAS)."""


@record(frozen=True, kw_only=True, slots=True)
class Shapes(Table):
    """
    Shapes of one kind of operator: their work, and the features from which deviations from a roofline are learned.

    Parameters
    ----------
    flops
        Floating-point operations; shape (rows,).
    nbytes
        Least bytes of device memory read and written; shape (rows,).
    features
        Logarithms to base 2, so that a unit is a doubling; shape (rows, features).
    """

    flops: Rows
    nbytes: Rows
    features: Rows

    def add_features(self, *columns: Rows) -> Shapes:
        """Return the shapes with additional features, each of shape (rows,)."""
        features = np.column_stack([self.features, *columns])
        return Shapes(flops=self.flops, nbytes=self.nbytes, features=features)


def matmul_shapes(
    m: Rows, n: Rows, k: Rows, *, batch: Rows | float = 1.0, num_bytes: float = 2.0, num_processors: int
) -> Shapes:
    r"""
    Return the shapes of matmuls of m x k with k x n, ``batch`` of them at once.

    A device assigns tiles of the result to its processors in waves, and the last wave, like the last tile of a row, is
    rarely full. For each tile size one feature is the computed over the required work:

    .. math:: \log_2 \frac{\lceil T / P \rceil P a b}{m n \, batch}, \qquad
              T = \lceil m / a \rceil \lceil n / b \rceil \, batch

    Parameters
    ----------
    m, n, k, batch
        Sizes of each; shape (rows,).
    num_bytes
        Bytes of an element.
    num_processors
        P: streaming multiprocessors, compute units or cores.
    """
    m, n, k, batch = np.broadcast_arrays(*(np.asarray(each, dtype=float) for each in (m, n, k, batch)))
    flops = 2 * batch * m * n * k
    nbytes = num_bytes * batch * (m * k + k * n + m * n)
    waves = [_tile_waste(m, n, batch, tile, num_processors) for tile in TILES]
    columns = [m, n, k, flops / nbytes, nbytes, np.ceil(m / TILES[0][0]) * TILES[0][0] / m, *waves]
    if np.any(batch != 1):
        columns.append(batch)
    return Shapes(flops=flops, nbytes=nbytes, features=np.log2(np.column_stack(columns)))


def _tile_waste(m: Rows, n: Rows, batch: Rows, tile: tuple[int, int], num_processors: int) -> Rows:
    rows, columns = tile
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
    computed: Rows = np.ceil(tiles / num_processors) * num_processors * rows * columns
    return computed / (m * n * batch)


def streaming_shapes(rows: Rows, width: Rows, *, bytes_per_element: Rows | float) -> Shapes:
    """
    Return the shapes of kernels that only move bytes: norms, activations, additions, rotations, look-ups.

    Parameters
    ----------
    rows, width
        Tokens, and elements of each; shape (rows,).
    bytes_per_element
        Bytes read and written for each element together.
    """
    rows, width, each = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in (rows, width, bytes_per_element)))
    return Shapes(flops=0 * rows, nbytes=rows * width * each, features=np.log2(np.column_stack([rows, width])))


MATMULS = ("matmul", "batched_matmul", "grouped_matmul")

"""Sampled operators that multiply."""

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "mxfp8": 1, "nvfp4": 1}

"""Bytes of an element; a whole byte for nvfp4, of which two elements share one."""

MULTIPLIED = {"forward": ("m", "n", "k"), "dgrad": ("m", "k", "n"), "wgrad": ("n", "k", "m")}

"""Sizes of each pass's matmul, in terms of the forward sizes: y = x w, dx = dy w', dw' = dy' x."""

TENSORS = {"swiglu": 3, "residual": 3, "cross_entropy": 4, "adam": 7, "host_adam": 7}

"""
Number of tensors that kernels read or write, if it is not two. They are both halves and the result. For the loss they
are logits, their copy in fp32 twice, and their gradient; for Adam parameters and both moments twice, and gradients.
"""


def shapes_of_samples(
    operator: str, of_pass: str, sizes: Mapping[str, Numbers], *, element_bytes: float, num_processors: int
) -> Shapes:
    """
    Return the shapes of sampled operators from the sizes in the table of samples.

    Parameters
    ----------
    operator, of_pass
        Operator and pass, in the words of the table.
    sizes
        Columns of the table that apply; they broadcast to shape (rows,).
    element_bytes
        Bytes of an element.
    num_processors
        Streaming multiprocessors, compute units or cores.
    """
    columns = {name: np.atleast_1d(np.asarray(value, dtype=float)) for name, value in sizes.items()}
    columns = dict(zip(columns, np.broadcast_arrays(*columns.values()), strict=True))
    if operator in MATMULS:
        return _matmuls(operator, of_pass, columns, element_bytes=element_bytes, num_processors=num_processors)
    if operator == "attention":
        return attention_shapes(columns, of_pass=of_pass, num_bytes=element_bytes)
    nbytes = element_bytes * _least_elements_moved(operator, of_pass, columns)
    return Shapes(flops=0 * nbytes, nbytes=nbytes, features=np.log2(np.column_stack([nbytes, *columns.values()])))


def _matmuls(
    operator: str, of_pass: str, columns: Mapping[str, Rows], *, element_bytes: float, num_processors: int
) -> Shapes:
    """Return the matmuls of a pass; the rows of grouped ones are those of all groups together."""
    batch = columns.get("batch", np.ones(1))
    groups = batch if operator == "grouped_matmul" else np.ones(1)
    own = {"m": columns["m"] / groups, "n": columns["n"], "k": columns["k"]}
    m, n, k = (own[name] for name in MULTIPLIED[of_pass])
    shapes = matmul_shapes(m, n, k, batch=batch, num_bytes=element_bytes, num_processors=num_processors)
    return shapes if operator == "matmul" or np.any(batch != 1) else shapes.add_features(np.log2(batch + 0 * m))


def attention_shapes(columns: Mapping[str, Rows], *, of_pass: str, num_bytes: float) -> Shapes:
    r"""
    Return the shapes of attention cores; a causal one computes half of the scores.

    .. math:: F = 2 b a s_q s_k (d_{qk} + d_v) (1 - c / 2), \qquad c = 1 \text{ if causal}

    Parameters
    ----------
    columns
        ``sequences``, ``queries``, ``keys``, ``heads``, ``kv_heads``, ``qk_head_dim``, ``v_head_dim``, ``causal``;
        each of shape (rows,).
    of_pass
        ``forward`` or ``backward``.
    num_bytes
        Bytes of an element.
    """
    names = ("sequences", "queries", "keys", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "causal")
    sequences, queries, keys, heads, kv_heads, qk_dim, v_dim, causal = (columns[name] for name in names)
    widths, factor = qk_dim + v_dim, FLASH_BACKWARD if of_pass == "backward" else 1.0
    flops = factor * 2 * sequences * heads * queries * keys * widths * (1 - causal / 2)
    nbytes = factor * num_bytes * sequences * widths * (queries * heads + keys * kv_heads)
    features = [queries, keys, sequences * heads, widths, heads / kv_heads, flops / nbytes]
    return Shapes(flops=flops, nbytes=nbytes, features=np.column_stack([np.log2(np.column_stack(features)), causal]))


def _least_elements_moved(operator: str, of_pass: str, columns: Mapping[str, Rows]) -> Rows:
    """Least number of elements that an operator reads and writes in one pass; shape (rows,)."""
    if operator in ("adam", "host_adam"):
        return TENSORS[operator] * columns["n"]
    rows = columns["rows"]
    if operator == "rotary":
        return 2 * rows * columns["heads"] * columns["qk_head_dim"]
    if operator == "top_k":
        return 2 * rows * columns["experts"]
    elements: Rows = rows * columns["width"]
    if operator == "permutation":
        return elements * (1 + columns["top_k"])
    if operator == "embedding" and of_pass == "backward":
        return 2 * elements + columns["n"] * columns["width"]
    return TENSORS.get(operator, 2) * elements


NORMAL_90 = 1.6449

"""Standard deviations of a normal distribution that bound 90 % of it."""

BEYOND = 1.0

"""Doublings of a feature beyond the samples' range, past which a shape counts as outside of it."""


@record(frozen=True, kw_only=True, slots=True)
class Rates:
    """
    Achieved rates of one kind of operator on a device, estimated from samples.

    Parameters
    ----------
    flops_per_second, bytes_per_second
        Rates of large operators.
    smallest_seconds
        Seconds of the smallest operator.
    """

    flops_per_second: float
    bytes_per_second: float
    smallest_seconds: float

    @property
    def text(self) -> str:
        """Rates as the end of a sentence: 251 TFLOP/s, 1.80 TB/s, at least 3.2 us."""
        computing = f"{self.flops_per_second / 1e12:.0f} TFLOP/s, " if np.isfinite(self.flops_per_second) else ""
        return f"{computing}{self.bytes_per_second / 1e12:.2f} TB/s, at least {self.smallest_seconds * 1e6:.1f} us"

    def seconds(self, shapes: Shapes) -> Rows:
        """Seconds of the slower of computing and moving bytes, plus the smallest kernel; shape (rows,)."""
        busy = np.maximum(shapes.flops / self.flops_per_second, shapes.nbytes / self.bytes_per_second)
        return busy + self.smallest_seconds


@record(frozen=True, kw_only=True, slots=True)
class SampledTimes:
    r"""
    Seconds of one kind of operator on one device, learned from samples.

    .. math:: T = T_{roofline} \cdot e^{g_1(x) + g_2(x) + ...}

    Far from all samples g is constant, so that times stay those of a roofline.

    Parameters
    ----------
    rates
        Rates of the roofline.
    processes
        Gaussian processes of its error; for a device that was adapted, another device's process first.
    lowest, highest
        Least and greatest of each feature among the samples; shape (features,).
    widening
        Factor on the standard deviation, so that a 90 % interval holds 90 % of the left-out families.
    left_out_error
        Median error of the times of samples whose family was left out, in logarithms.
    """

    rates: Rates
    processes: tuple[GaussianProcess, ...]
    lowest: Rows
    highest: Rows
    widening: float = 1.0
    left_out_error: float = np.nan

    def seconds(self, shapes: Shapes) -> Rows:
        """Return the expected seconds; shape (rows,)."""
        logarithms = sum((one.mean(shapes.features) for one in self.processes), np.zeros(len(shapes)))
        return self.rates.seconds(shapes) * np.exp(logarithms)

    def relative_deviation(self, shapes: Shapes) -> Rows:
        """Return the standard deviation of the logarithm of a measured time; shape (rows,)."""
        deviation: Rows = self.widening * self.processes[-1].deviation(shapes.features)
        return deviation

    def interval(self, shapes: Shapes) -> tuple[Rows, Rows]:
        """Return the 90 % interval of measured times, in seconds; each of shape (rows,)."""
        seconds, factor = self.seconds(shapes), np.exp(NORMAL_90 * self.relative_deviation(shapes))
        return seconds / factor, seconds * factor

    def is_outside(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Return True where shapes are outside of the sampled range, and only the roofline counts; shape (rows,)."""
        below, above = self.lowest - shapes.features, shapes.features - self.highest
        beyond: NDArray[np.bool_] = np.any(np.maximum(below, above) > BEYOND, axis=1)
        return beyond


UNKNOWN_PROCESSORS = 128

"""Number of processors of a device that does not specify it: it scales a feature of its matmuls, no time."""

BACKWARD = {name: ("dgrad", "wgrad") for name in MATMULS}

"""Sampled passes that make up the backward pass, if there are several."""


@record(frozen=True, kw_only=True, slots=True)
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
    _once: Callable[..., Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_once", remember_rows(self._seconds))

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


LearnedTimes: TypeAlias = Callable[[str, str, str], SampledPass | None]
"""Function that returns the learned times of an operator, pass and dtype; None if the pass was not sampled."""


@lru_cache(maxsize=4)
def load_learned_times(samples: Samples, num_processors: int) -> LearnedTimes:
    """
    Return the learned times of a device's samples, one shared object per device.

    They are built from the file's numbers on demand; the function raises a :class:`SpecError` if these are
    inconsistent.
    """
    stored: dict[tuple[str, str, str], SampledOperator] = {
        (one.operator, one.of_pass, one.dtype): one for one in samples.operators
    }

    @cache
    def learned_times(operator: str, of_pass: str, dtype: str) -> SampledPass | None:
        one = stored.get((operator, of_pass, dtype))
        return None if one is None else _pass_of(one, num_processors)

    return learned_times


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
            stored, f"lacks the size {error}, or its dtype is unknown.", "'planner calibrate' writes them."
        ) from None
    numbers = {"lengths": one.lengths, "lowest": one.lowest, "highest": one.highest}
    for name, values in numbers.items():
        if len(values) != shapes.features.shape[1]:
            where = f"{stored}: {name}"
            problem = f"has {len(values)} numbers, expected {shapes.features.shape[1]}, one for each feature."
            raise SpecError(where, problem, "'planner calibrate' writes them.")
    process = fit_samples(
        shapes.features,
        np.log(seconds / rates.seconds(shapes)),
        lengths=np.array(one.lengths),
        variance=one.variance,
        noise=one.noise,
        offset=one.offset,
    )
    return replace(bare, times=replace(times, processes=(process,)))


@record(frozen=True, kw_only=True, slots=True)
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

    passes: LearnedTimes
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
        return all(self.find_pass(operator, one) for one in (*forward_passes(operator), *backward_passes(operator)))

    def find_pass(self, operator: Operator, of_pass: str) -> tuple[SampledPass, Mapping[str, Numbers]] | None:
        """Return the learned times of an operator's pass, and its sizes; None if it was not sampled."""
        size = size_of_operator(operator)
        known = self.passes(size.kernel, of_pass, size.dtype) if size else None
        return (known, size.sizes) if known and size else None

    def _seconds(self, operator: Operator, of_passes: Iterable[str]) -> Numbers | None:
        size, total = size_of_operator(operator), np.zeros(())
        for of_pass in of_passes:
            found = self.find_pass(operator, of_pass)
            if found is None or size is None:
                return None
            known, sizes = found
            total = total + size.count * known.seconds(sizes)
        return np.where(np.asarray(operator.kernels) > 0, total, 0.0)[()] / self.otherwise.compute_scaling


ADAM_BYTES = 28.0

"""Bytes that a sampled update moves per parameter: four FP32 tensors read, three written."""


def load_update_times(samples: Samples, device: EquippedDevice) -> SampledPass | None:
    """Return the learned times of FP32 Adam updates; None if they were not sampled."""
    passes = load_learned_times(samples, device.num_processors or UNKNOWN_PROCESSORS)
    return passes("adam", "forward", "fp32")


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
