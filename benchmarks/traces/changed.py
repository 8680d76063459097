"""Graphs of made traces changed to another layout, beside the traces made of that layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.traces.synthetic import Made, Recipe, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from planner.measure.traces.building import execution_graph
from planner.measure.traces.change import Layout, rebuilt
from planner.measure.traces.events import Message
from planner.measure.traces.replay import measured, replay
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


@dataclass(frozen=True, slots=True)
class RingNetwork:
    """Messages as :class:`SteadyDurations` has them."""

    durations: SteadyDurations

    def nanoseconds(self, message: Message, *, purpose: Literal["pp", "dp"], ranks: int) -> int:
        """Nanoseconds of a send, or of a collective over a ring, of two bytes for each element."""
        nbytes, one = 2 * max(message.elements_in, message.elements_out), self.durations
        if purpose == "pp":
            return one.latency + nbytes // one.bytes_per_nanosecond
        halves = 2 if message.operation == "all_reduce" else 1
        return halves * (ranks - 1) * (one.latency + nbytes // (ranks * one.bytes_per_nanosecond))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedStep:
    """
    A change of a made job.

    Parameters
    ----------
    before, after
        The layouts, as the recipe has them.
    recorded, changed, wanted
        Nanoseconds of the step before; of the changed graph's; of the traces that were made of the wanted layout.
    """

    before: Mapping[str, int]
    after: Mapping[str, int]
    recorded: int
    changed: int
    wanted: int


def changed_steps(seed: int = 0) -> Iterator[ChangedStep]:
    """Each change of the list."""
    durations = SteadyDurations(seed=seed, calls=CALLS)
    base = Recipe(duration=durations, annotations=True, operators=True, num_steps=1, num_layers=8, num_microbatches=8)
    for before, after in CHANGES:
        old, new = make(replace(base, **before)), make(replace(base, **after))
        graph = execution_graph(old.traces)
        found = [parts(trace) for trace in old.traces]
        wanted = rebuilt(graph, found, layout_of(old), layout_of(new), network=RingNetwork(durations))
        yield ChangedStep(
            before=before,
            after=after,
            recorded=measured(graph).iteration,
            changed=replay(wanted).iteration,
            wanted=measured(execution_graph(new.traces)).iteration,
        )


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


def report() -> Iterator[str | bool]:
    """Lines of a table, and whether each change is exact."""
    yield f"{'recorded':32}{'wanted':32}{'step, us':>12}{'changed, us':>14}{'made, us':>12}"
    for one in changed_steps():
        yield (
            f"{_words(one.before):32}{_words(one.after):32}{one.recorded / 1e3:>12,.1f}{one.changed / 1e3:>14,.1f}"
            f"{one.wanted / 1e3:>12,.1f}"
        )
        yield one.changed == one.wanted


def _words(layout: Mapping[str, int]) -> str:
    return " ".join(f"{name}={number}" for name, number in layout.items())
