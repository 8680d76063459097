"""Graphs of made traces changed to another layout, beside the traces made of that layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.traces.synthetic import Made, Recipe, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from planner.measure.traces.building import execution_graph
from planner.measure.traces.change import Layout, rebuild_graph
from planner.measure.traces.replay import replay, take_recorded_times
from planner.measure.traces.structure import parts

CALLS: Mapping[str, int] = {
    "cudaLaunchKernel": 4_000,
    "cudaLaunchKernelExC": 5_000,
    "cudaEventRecord": 1_500,
    "cudaStreamWaitEvent": 1_700,
    "cudaMemsetAsync": 3_000,
    "cudaDeviceSynchronize": 2_500,
}
"""Nanoseconds of calls."""

CHANGES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"dp": 8, "pp": 4}, {"dp": 16, "pp": 8}),
    ({"dp": 16, "pp": 8}, {"dp": 8, "pp": 4}),
    ({"dp": 2, "pp": 4}, {"dp": 4, "pp": 8}),
    ({"dp": 4, "pp": 8}, {"dp": 2, "pp": 4}),
    ({"dp": 2, "pp": 4}, {"dp": 2, "pp": 4, "num_microbatches": 16}),
    ({"dp": 2, "pp": 4}, {"dp": 4, "pp": 2, "vpp": 2}),
)
"""Layouts as they are recorded and as they are wanted."""


def layout_of(made: Made) -> Layout:
    """The layout of made traces."""
    one = made.recipe
    return Layout(
        num_layers=one.num_layers,
        num_microbatches=one.num_microbatches,
        pp=one.pp,
        vpp=one.vpp,
        schedule=one.schedule,
        dp=one.dp,
    )


def report(seed: int = 0) -> Iterator[str | bool]:
    """Yield a line for each change, and whether it is exact: as the traces that were made of the wanted layout."""
    durations = SteadyDurations(seed=seed, calls=CALLS)
    base = Recipe(duration=durations, annotations=True, operators=True, num_steps=1, num_layers=8, num_microbatches=8)
    yield f"{'recorded':32}{'wanted':32}{'step, us':>12}{'changed, us':>14}{'made, us':>12}"
    for before, after in CHANGES:
        old, new = make(replace(base, **before)), make(replace(base, **after))
        graph, wanted = execution_graph(old.traces), take_recorded_times(execution_graph(new.traces)).iteration
        found = [parts(trace) for trace in old.traces]
        changed = rebuild_graph(graph, found, layout_of(old), layout_of(new), network=durations.nanoseconds)
        iteration = replay(changed).iteration
        yield (
            f"{_words(before):32}{_words(after):32}{take_recorded_times(graph).iteration / 1e3:>12,.1f}"
            f"{iteration / 1e3:>14,.1f}{wanted / 1e3:>12,.1f}"
        )
        yield iteration == wanted


def _words(layout: Mapping[str, int]) -> str:
    return " ".join(f"{name}={number}" for name, number in layout.items())
