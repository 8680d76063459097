"""Which points to measure, the most useful ones first, so that whoever runs out of time may stop anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from math import exp, log
from typing import Any

from planner.sampling.job_shapes import JobShapes
from planner.sampling.samples import OPERATORS, Point, Sizes
from planner.sampling.work import least_flops, needed_bytes

BASES = (2, 3, 5, 7, 11, 13)
"""One prime per dimension of a Halton sequence (Halton, Numerische Mathematik 2, 1960)."""

MULTIPLE, ODD_EVERY = 64, 8
"""Most sizes are multiples of this; of each so many points one has odd ones."""

MOST_OF_MEMORY = 0.5
"""Fraction of the device's memory that a point may take."""

MOST_FLOPS = 5e13
"""FLOPs of a point beyond which a rate changes no more, and a tenth of a second is gone."""

ROUNDS = 64
"""Rounds of points that fill the space of sizes."""

TOKENS = (64, 65536)
WIDTHS = (64, 32768)
HEAD_DIMS = (64, 80, 96, 128, 192, 256)
CHAIN = 1000
"""Kernels of a chain of launches."""


def points_to_measure(job: JobShapes | None, memory_bytes: float, *, dtype: str = "bf16") -> tuple[Point, ...]:
    """
    What to measure, the most useful first.

    Constants of the device, then the job's own shapes, then those between and beyond them.

    Parameters
    ----------
    job
        What the job computes; None: no job in particular.
    memory_bytes
        Memory of the device, of which a point takes at most ``MOST_OF_MEMORY``.
    dtype
        Dtype of the points that are no job's.
    """
    of_job = job_points(job) if job else ()
    found = dict.fromkeys(chain(device_points(dtype), of_job, filling_points(dtype)))
    return tuple(point for point in found if needed_bytes(point) <= MOST_OF_MEMORY * memory_bytes)


def device_points(dtype: str = "bf16") -> tuple[Point, ...]:
    """Constants of a device: launches, a matmul, copies of three sizes and beside a matmul, updates."""
    small, middle, large = (Sizes(nbytes=2**exponent) for exponent in (20, 24, 28))
    alone = [
        _forward("launch", Sizes(n=CHAIN), "fp32"),
        _forward("graph_launch", Sizes(n=CHAIN), "fp32"),
        _forward("matmul", Sizes(m=512, n=512, k=512), dtype),
        *(_forward(name, large, dtype) for name in ("copy", "host_to_device", "device_to_host")),
        _forward("adam", Sizes(n=2**26), "fp32"),
        _forward("host_adam", Sizes(n=2**26), "fp32"),
    ]
    beside = [
        *(_forward(name, large, dtype, "matmul") for name in ("copy", "host_to_device", "device_to_host")),
        *(_forward("matmul", Sizes(m=4096, n=4096, k=4096), dtype, one) for one in ("", *_COPIES)),
    ]
    others = [
        *(_forward(name, sizes, dtype) for sizes in (middle, small) for name in _COPIES),
        *(_forward(name, Sizes(n=2**exponent), "fp32") for exponent in (22, 28, 24) for name in ("adam", "host_adam")),
    ]
    return (*alone, *beside, *others)


_COPIES = ("copy", "host_to_device", "device_to_host")


def _forward(operator: str, sizes: Sizes, dtype: str, beside: str = "") -> Point:
    return Point(operator=operator, pass_="forward", dtype=dtype, sizes=sizes, beside=beside)


def job_points(shapes: JobShapes) -> tuple[Point, ...]:
    """
    A job's points in rounds: one of each operator and pass, those that compute most first.

    Of each operator the middle size comes first, then those between it and the ends, and so on.
    """
    heavy = sorted(shapes.groups.values(), key=lambda group: -max(group.values(), default=0.0))
    columns = [spread_out(sorted(group, key=lambda point: (group[point], str(point)))) for group in heavy]
    rounds = zip_longest(*columns)
    return tuple(dict.fromkeys(point for one in rounds for point in one if point is not None))


def spread_out(sorted_points: Sequence[Point]) -> list[Point]:
    """Sorted points in an order of which each beginning covers the whole range."""
    number = len(sorted_points)
    steps = 2 ** max(number - 1, 1).bit_length()
    order = dict.fromkeys(int(number * radical_inverse(index, 2)) for index in range(1, steps + 1))
    return [sorted_points[index] for index in order]


def radical_inverse(index: int, base: int) -> float:
    """
    The digits of an index mirrored at the point.

    >>> [radical_inverse(index, 2) for index in range(5)]
    [0.0, 0.5, 0.25, 0.75, 0.125]
    """
    found, scale = 0.0, 1.0
    while index:
        scale /= base
        index, digit = divmod(index, base)
        found += digit * scale
    return found


def filling_points(dtype: str = "bf16", *, rounds: int = ROUNDS) -> Iterator[Point]:
    """
    Points of a Halton sequence in the logarithms of the sizes.

    Each round has a matmul, a batched, a grouped one, an attention and one of the operators that only move bytes, with
    all of their passes; as many rounds as one wants cover all sizes.
    """
    for index in range(1, rounds + 1):
        at = [radical_inverse(index, base) for base in BASES]
        round_to = 1 if index % ODD_EVERY == 0 else MULTIPLE
        moving = _MOVING[index % len(_MOVING)]
        shapes = {
            "matmul": _matmul(at, round_to),
            "attention": _attention(at, round_to),
            moving: _moving(moving, at, round_to),
            "grouped_matmul": _grouped(at, round_to),
            "batched_matmul": _batched(at, round_to),
        }
        yield from _points(shapes.items(), dtype)


_MOVING = tuple(name for name, kind in OPERATORS.items() if "rows" in kind.needs)


def _points(shapes: Iterable[tuple[str, Sizes]], dtype: str) -> Iterator[Point]:
    for operator, sizes in shapes:
        for pass_ in OPERATORS[operator].passes:
            point = Point(operator=operator, pass_=pass_, dtype=dtype, sizes=sizes)
            if least_flops(point) <= MOST_FLOPS:
                yield point


def _between(fraction: float, ends: tuple[int, int], round_to: int = 1) -> int:
    """A size at a fraction of the way in logarithms: a multiple, or an odd number."""
    low, high = ends
    size = exp(log(low) + fraction * (log(high) - log(low)))
    return max(1, round(size)) | 1 if round_to == 1 else max(round_to, round(size / round_to) * round_to)


def _power(fraction: float, ends: tuple[int, int]) -> int:
    """A power of two between two of them."""
    low, high = (one.bit_length() - 1 for one in ends)
    return 1 << min(high, low + int(fraction * (high - low + 1)))


def _matmul(at: Sequence[float], round_to: int) -> Sizes:
    return Sizes(
        m=_between(at[0], TOKENS, round_to), n=_between(at[1], WIDTHS, round_to), k=_between(at[2], WIDTHS, round_to)
    )


def _grouped(at: Sequence[float], round_to: int) -> Sizes:
    groups = _power(at[3], (2, 64))
    rows = _between(at[2], (64, 8192), round_to)
    widths = (256, 8192)
    return Sizes(
        batch=groups, m=groups * rows, n=_between(at[1], widths, MULTIPLE), k=_between(at[0], widths, MULTIPLE)
    )


def _batched(at: Sequence[float], round_to: int) -> Sizes:
    tokens = _between(at[1], (64, 8192), round_to)
    return Sizes(batch=_power(at[3], (4, 128)), m=tokens, n=tokens, k=_one_of(at[2], HEAD_DIMS))


def _attention(at: Sequence[float], round_to: int) -> Sizes:
    """Heads of keys and values serve 1, 4 or 8 each; of three points one is not causal, of eight one is MLA's."""
    tokens = _between(at[0], (128, 131072), round_to)
    heads = _power(at[1], (4, 64))
    width = _one_of(at[2], HEAD_DIMS)
    is_latent = at[4] > 7 / 8
    return Sizes(
        sequences=_power(at[3], (1, 8)),
        queries=tokens,
        keys=tokens,
        heads=heads,
        kv_heads=heads if is_latent else max(1, heads // _one_of(at[5], (1, 4, 8))),
        qk_head_dim=192 if is_latent else width,
        v_head_dim=128 if is_latent else width,
        causal=at[4] > 1 / 3,
    )


def _moving(operator: str, at: Sequence[float], round_to: int) -> Sizes:
    rows = _between(at[0], TOKENS, round_to)
    width = _between(at[1], WIDTHS, round_to)
    experts = _power(at[3], (8, 256))
    values: dict[str, Any] = {
        "rows": rows,
        "width": _between(at[1], (512, 8192), MULTIPLE) if operator in ("embedding", "permutation") else width,
        "n": _between(at[2], (1024, 262144), MULTIPLE),
        "heads": _power(at[2], (1, 64)),
        "qk_head_dim": _one_of(at[3], HEAD_DIMS),
        "experts": experts,
        "top_k": min(experts, _power(at[4], (1, 8))),
    }
    return Sizes(**{name: values[name] for name in OPERATORS[operator].needs})


def _one_of(fraction: float, values: Sequence[int]) -> int:
    return values[min(len(values) - 1, int(fraction * len(values)))]
