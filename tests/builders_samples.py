"""A table of samples of a machine that nobody has: a roofline, waves, and a measurement's noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from costmodel.facts.calibration import SampledOperator, Samples
from planner.measure.sample import run
from planner.measure.sample.bench import least_flops, moved_bytes
from planner.measure.sample.samples import OPERATORS, Machine, Point, Sample, Sizes, Timing
from planner.measure.sample.timing import Limits

QUICK = Limits(seconds=0.01, enough_repeats=3)
"""Limits of a point whose time is not of interest."""


def shorten_runs(monkeypatch: pytest.MonkeyPatch, num_points: int) -> None:
    """Let a run measure only its first points, each quickly: it ends with them, not with its budget."""
    choose = run.points_to_measure
    monkeypatch.setattr(run, "points_to_measure", lambda *given, **named: choose(*given, **named)[:num_points])
    monkeypatch.setattr(run, "Limits", lambda: QUICK)


FLOPS_PER_SECOND, BYTES_PER_SECOND, LEAST_SECONDS = 4e14, 1.5e12, 5e-6
"""What the machine reaches with large matmuls, with large copies, and with the smallest kernel."""

A_MACHINE = Machine(
    device="Accelerator X",
    driver="1.2",
    software="torch 2.13",
    memory_bytes=64 * 10**9,
    num_processors=100,
    devices_per_node=4,
)


def true_seconds(point: Point) -> float:
    """The machine's own law: what it computes and moves, and the smallest kernel."""
    if point.operator in ("launch", "graph_launch"):
        return 3e-6
    if point.operator in ("host_to_device", "device_to_host"):
        return (point.sizes.nbytes or 0) / 2e10
    if "ranks" in point.sizes.applicable:
        return _ring_seconds(point.operator, **point.sizes.applicable)
    passes = 2.5 if (point.operator, point.pass_) == ("attention", "backward") else 1.0
    flops = least_flops(point) * (passes / 2 if point.pass_ == "backward" else 1.0)
    return max(flops / FLOPS_PER_SECOND, passes * moved_bytes(point) / BYTES_PER_SECOND) + LEAST_SECONDS


LINK_BANDWIDTH, ADAPTER_BANDWIDTH, STEP_SECONDS = 2e11, 2.5e10, 2e-6
"""Of the machine's nodes: a device to the others of its node, a device out of it; a step of a ring."""


def _ring_seconds(kind: str, *, nbytes: int, ranks: int, nodes: int) -> float:
    """Rings over links and adapters; a send is one step."""
    rounds = 2 if kind == "all_reduce" else 1
    steps = 1 if kind == "send" else rounds * (ranks - 1)
    sent = nbytes if kind == "send" else rounds * nbytes * (ranks - 1) / ranks
    rate = LINK_BANDWIDTH if nodes == 1 else ADAPTER_BANDWIDTH * (1 if kind == "send" else ranks // nodes)
    return 1e-5 + STEP_SECONDS * steps + sent / rate


def collective_points(
    kinds: Sequence[str] = ("all_reduce", "all_gather", "reduce_scatter", "send"),
    groups: Sequence[tuple[int, int]] = ((2, 1), (4, 1), (2, 2), (8, 2)),
) -> list[Point]:
    """Messages of 16 KiB to 256 MiB in groups of ranks on nodes."""
    return [
        Point(operator=kind, pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**power, ranks=ranks, nodes=nodes))
        for kind in kinds
        for ranks, nodes in groups
        if kind != "send" or ranks == 2
        for power in range(14, 29, 2)
    ]


def samples_of(points: Iterable[Point], *, machine: Machine = A_MACHINE, noise: float = 0.01) -> list[Sample]:
    """The points as that machine would measure them."""
    random = np.random.default_rng(0)
    return [
        Sample(
            point=point,
            timing=Timing(
                seconds=true_seconds(point) * float(np.exp(noise * random.standard_normal())), spread=noise, repeats=9
            ),
            machine=machine,
        )
        for point in points
    ]


def matmul_points(
    *, dtype: str = "bf16", rows: Sequence[int] = (64, 512, 4096, 16384), widths: Sequence[int] = (512, 2048, 8192)
) -> list[Point]:
    """Forward and both backward passes of square and oblong weights."""
    return [
        Point(operator="matmul", pass_=of_pass, dtype=dtype, sizes=Sizes(m=m, n=n, k=k))
        for of_pass in OPERATORS["matmul"].passes
        for m in rows
        for n in widths
        for k in widths
    ]


def row_points(operator: str, *, dtype: str = "bf16", **sizes: int) -> list[Point]:
    """An operator that only moves bytes, over rows and widths."""
    needs = OPERATORS[operator].needs
    return [
        Point(operator=operator, pass_=of_pass, dtype=dtype, sizes=Sizes(**given))
        for of_pass in OPERATORS[operator].passes
        for rows in (256, 2048, 16384)
        for width in (512, 2048, 8192)
        for given in [{name: {"rows": rows, "width": width, **sizes}[name] for name in needs}]
    ]


def a_sampled_operator(operator: str = "matmul", of_pass: str = "forward", **changes: Any) -> SampledOperator:
    """Matmuls of 500 TFLOP/s and 2 TB/s, a tenth slower than that wherever samples are."""
    columns = changes.pop("columns", ("m", "n", "k"))
    sizes = changes.pop("sizes", ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 4096, 1024)))
    seconds = changes.pop("seconds", None) or [1e-3] * len(sizes)
    features = changes.pop("features", 9)
    facts: dict[str, Any] = {
        "operator": operator,
        "of_pass": of_pass,
        "dtype": "bf16",
        "num_samples": len(sizes),
        "error": 0.02,
        "flops_per_second": 5e14,
        "bytes_per_second": 2e12,
        "smallest_seconds": 4e-6,
        "offset": 0.0,
        "variance": 0.05,
        "noise": 1e-6,
        "lengths": (3.0,) * features,
        "widening": 1.0,
        "lowest": (0.0,) * features,
        "highest": (40.0,) * features,
        "columns": columns,
        "rows": "\n".join(
            " ".join(str(number) for number in (*row, time)) for row, time in zip(sizes, seconds, strict=True)
        ),
    }
    return SampledOperator(**(facts | changes))


def a_sampled(*operators: SampledOperator) -> Samples:
    """What was learned on that machine."""
    return Samples(machine="Accelerator X", operators=operators)
