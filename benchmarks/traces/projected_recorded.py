"""One process with two layers projected to two ranks with more layers: small transformers recorded on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.traces.recorded.configurations import TracedConfiguration, traced_job_of
from benchmarks.traces.recorded.folder import Index, read_recorded
from planner.jobs.problem import Problem, load
from planner.jobs.run_jobs import Run
from planner.measure.project.projected import Projection, project
from planner.measure.runs.predictions import Case
from planner.verbs.plan import estimate

CORE = Path(__file__).parent / "core.yaml"

FEW_LAYERS = 2
"""Layers of the small runs; targets have more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """
    A configuration of two ranks, projected from runs of one.

    Parameters
    ----------
    name, measured, spread
        Name of the configuration, and its step in seconds with its spread.
    small
        Names of the small runs.
    projection
        Projection from the small runs.
    """

    name: str
    measured: float
    spread: float
    small: tuple[str, ...]
    projection: Projection

    @property
    def error(self) -> float:
        """Projected over measured, less 1."""
        return self.projection.step_seconds / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """True if the measured step lies in the projection's interval."""
        interval = self.projection.interval
        return interval.low_seconds <= self.measured <= interval.high_seconds


def targets(index: Index, device: Path = CORE) -> Iterator[Target]:
    """Every configuration of two ranks and more layers than small runs have, where there are small runs of it."""
    everything = {name: one.configuration for name, one in index.recordings.items()}
    for name, one in everything.items():
        small = [other for other in everything.values() if is_small(other, one)]
        same = [other for other in small if other.mbs == one.mbs] or small
        if one.num_ranks > 1 and one.num_layers > FEW_LAYERS and is_plain(one) and same:
            measured = index.plain(name)
            yield Target(
                name=name,
                measured=measured.seconds,
                spread=measured.spread,
                small=tuple(other.name for other in same),
                projection=project(_problem(one, device), {}, [_case(other, index, device) for other in same]),
            )


def is_small(small: TracedConfiguration, one: TracedConfiguration) -> bool:
    """Tell whether a configuration is one process with two layers of another's kind."""
    kinds = [(each.hidden_size, each.num_heads, each.sequence_length, each.vocab_size) for each in (small, one)]
    return small.num_ranks == 1 and small.num_layers == FEW_LAYERS and kinds[0] == kinds[1] and is_plain(small)


def is_plain(one: TracedConfiguration) -> bool:
    """Tell whether it trains as most do: others differ in their optimizer or in the profiler's annotations."""
    return (one.optimizer, one.annotations) == ("fused", "all")


def _problem(one: TracedConfiguration, device: Path) -> Problem:
    return load(traced_job_of(one, str(device)), name=one.name)


def _case(one: TracedConfiguration, index: Index, device: Path) -> Case:
    """A small run as the planner reads one."""
    problem = _problem(one, device)
    run = Run(
        id=one.name,
        source="recorded",
        date="",
        kind="proxy",
        entries={"model": one.name, "cluster": {"device": CORE.stem, "num_devices": one.num_ranks}},
        step_seconds=index.plain(one.name).seconds,
    )
    return Case(run=run, problem=problem, strategy=estimate(problem, {}).plan.strategy)


def recorded_report(folder: Path) -> str:
    """Targets of a folder, their errors, and the mean."""
    return "\n".join(_lines(list(targets(read_recorded(folder)))))


def _lines(found: list[Target]) -> Iterator[str]:
    heads = f"{'measured':>10}{'spread':>8}{'model':>17}{'projected':>17}{'measured':>9}"
    yield f"{'two ranks, from one with two layers':36}{heads}"
    for one in found:
        model = one.projection.model.plan.step_seconds
        yield (
            f"{one.name:36}{one.measured:>9.3f}s{one.spread:>8.1%}{model:>9.3f} {model / one.measured - 1:>+7.1%}"
            f"{one.projection.step_seconds:>9.3f} {one.error:>+7.1%}{one.projection.measured_fraction:>9.0%}"
        )
    if found:
        error = np.mean([abs(one.error) for one in found])
        inside = np.mean([one.is_inside for one in found])
        spread = np.mean([one.spread for one in found])
        signed = np.mean([one.error for one in found])
        yield (
            f"{len(found)} targets: mean absolute error {error:.1%}, with sign {signed:+.1%}; "
            f"{inside:.0%} inside the interval; steps spread by {spread:.1%} in the mean"
        )
