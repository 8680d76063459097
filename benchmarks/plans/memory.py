"""
``python -m benchmarks.plans.memory``: how often strategies that ran, or ran out of memory, are given a chance to fit.

The laws of :mod:`planner.uncertainty.peaks`, each run judged by those of other groups (source, model, device, number
of devices). Exits with 1 where the goals are missed; ``--write`` writes the laws of all runs for the planner.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.accuracy.metrics import read_table
from benchmarks.output import format_generated
from benchmarks.plans.laws import Use, chances_without_groups, fit_laws, fit_laws_without_groups
from costmodel import GIB_BYTES
from costmodel.strategy import Sharding
from planner.measure.calibrate.cases import group_of
from planner.measure.runs.predictions import Prediction, predictions
from planner.uncertainty.counts import stack_of
from planner.uncertainty.peaks import (
    RUNS_FAST,
    STARTS,
    TABLE,
    Law,
    allocator_interval,
    chance_fast,
    chance_to_fit,
    interval_of,
)

MOST_WRONG_SHARE = 0.02
"""Share of the runs that ran which may get a chance below one half."""

LEAST_CAUGHT = 10
"""Least number of the 13 runs out of memory whose chance to fit is below one half."""

SOURCE = (
    "python -m benchmarks.plans.memory --write: peaks, fits and failures of the rows of benchmarks/measured_runs, as "
    "this version predicts them"
)


def uses_of(predicted: Sequence[Prediction]) -> list[Use]:
    """Return the memory that each run reports."""
    return [_use(one) for one in predicted]


def _use(one: Prediction) -> Use:
    run, cluster = one.run, one.facts.cluster
    tells_need = (
        run.kind != "oom" and run.memory_kind != "reserved"
    )  # where there is room, more is reserved than needed
    measured = run.peak_memory_gib if tells_need else None
    assert cluster.framework is not None, "a measured run names its framework"
    return Use(
        stack=stack_of(cluster.framework.name),
        group=group_of(one),
        log_peak=None if measured is None else math.log(measured / one.peak_memory_gib),
        log_use=math.log(one.device_bytes / cluster.device.memory_bytes),
        has_run=run.kind != "oom",
        source=run.source,
        is_silent=one.is_silent,
    )


def below_half(uses: Sequence[Use], chances: Sequence[float], *, has_run: bool) -> int:
    """Count the runs that ran, or those that did not, with a chance below one half."""
    return sum(chance < 0.5 for use, chance in zip(uses, chances, strict=True) if use.has_run == has_run)


def document(laws: Sequence[Law]) -> str:
    """The planner's file of laws."""
    return format_generated({"source": SOURCE, "laws": [asdict(law) for law in laws]})


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the laws and what they are worth; 0, or 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans.memory", description=__doc__.split("\n\n")[1])
    parser.add_argument("--write", action="store_true", help=f"write planner/uncertainty/{TABLE}")
    options = parser.parse_args(arguments)
    predicted = [one for one in predictions(*read_table()) if isinstance(one, Prediction)]
    uses = uses_of(predicted)
    laws, chances = fit_laws(uses), chances_without_groups(uses)
    lines = (
        *(*_law_lines(laws), "", *_chance_lines(predicted, uses, chances), "", *_judged_lines(uses)),
        *_reserved_lines(predicted),
        *_headroom_lines(predicted),
    )
    for line in lines:
        print(line)
    if options.write:
        (Path(__file__).parents[2] / "planner" / "uncertainty" / TABLE).write_text(document(laws), encoding="utf-8")
    ran = sum(use.has_run for use in uses)
    is_reached = (
        below_half(uses, chances, has_run=False) >= LEAST_CAUGHT
        and below_half(uses, chances, has_run=True) <= MOST_WRONG_SHARE * ran
    )
    return 0 if is_reached else 1


JUDGED_BY: dict[str, Callable[[Use], Hashable]] = {
    "group": lambda use: use.group,
    "source": lambda use: use.source,
    "stack": lambda use: use.stack,
}
"""Rows left out of the laws that judge a run."""


def inside(use: Use, law: Law) -> bool:
    """Tell whether a run's measured peak lies within the interval of a law."""
    assert use.log_peak is not None
    low, high = interval_of(law)
    return low <= use.log_peak <= high


def _judged_lines(uses: Sequence[Use]) -> Iterator[str]:
    """Recall, false alarms, what a chance of 95 % is worth, and the coverage of the peaks' intervals."""
    ran, failed = (sum(use.has_run == has_run for use in uses) for has_run in (True, False))
    peaks = [use for use in uses if use.log_peak is not None]
    heading = f"{'left out':<10} {'caught':>9} {'false alarms':>16} {'of them silent':>15}"
    yield f"{heading} {f'above {STARTS:.0%}':>18} {'in 80 %':>9}"
    for name, key in JUDGED_BY.items():
        laws = fit_laws_without_groups(uses, key)
        chances = [law.share_below(-use.log_use) for law, use in zip(laws, uses, strict=True)]
        caught, wrong = (below_half(uses, chances, has_run=has_run) for has_run in (False, True))
        silent = sum(chance < 0.5 and use.is_silent for use, chance in zip(uses, chances, strict=True))
        sure = [use.has_run for use, chance in zip(uses, chances, strict=True) if chance >= STARTS]
        covered = [inside(use, law) for use, law in zip(uses, laws, strict=True) if use.log_peak is not None]
        yield (
            f"{name:<10} {f'{caught}/{failed}':>9} {f'{wrong}, {wrong / ran:.2%}':>16} {silent:>15} "
            f"{f'{sum(sure):,} of {len(sure):,} ran':>18} {sum(covered) / len(peaks):>9.1%}"
        )
    yield "Silent: the row names neither recomputation nor offload; no law is fitted to whether it fitted."


def _reserved_lines(predicted: Sequence[Prediction]) -> Iterator[str]:
    """Count the measured peaks of reserved memory within the allocator's interval, as text."""
    found = []
    for one in predicted:
        if one.run.memory_kind == "reserved" and one.run.peak_memory_gib is not None:
            ends = allocator_interval(one.facts.cluster, one.strategy, device_bytes=one.device_bytes)
            found.append(ends[0] <= one.run.peak_memory_gib * GIB_BYTES <= ends[1])
    yield f"reserved: {sum(found)} of {len(found)} measured peaks lie within the interval of the allocator's simulation"


def _headroom_lines(predicted: Sequence[Prediction]) -> Iterator[str]:
    """Count the layouts that ran and that the default headroom leaves out, for the one chance and for both, as text."""
    ran = [one for one in predicted if one.run.kind != "oom" and one.run.step_seconds and not one.is_silent]
    unfit = [one for one in ran if _fits(one) < STARTS]
    slow = [one for one in ran if _fits(one) >= STARTS and _fast(one) < RUNS_FAST]
    whole = [one for one in slow if one.strategy.sharding != Sharding.WEIGHTS]
    yield (
        f"of {len(ran)} layouts that ran, and say what they recompute, {len(unfit)} have a chance to fit below "
        f"{STARTS:.0%}, {len(slow)} more a chance to be fast below {RUNS_FAST:.0%}, of which {len(whole)} with whole "
        "weights, by which the default headroom goes"
    )


def _fits(one: Prediction) -> float:
    return chance_to_fit(one.facts.cluster, device_bytes=one.device_bytes).share


def _fast(one: Prediction) -> float:
    return chance_fast(one.facts.cluster, one.strategy, device_bytes=one.device_bytes).share


def _law_lines(laws: Sequence[Law]) -> Iterator[str]:
    yield f"{'stack':<24} {'peaks':>6} {'fits':>6} {'failed':>6} {'mean':>7} {'sigma':>7} {STARTS:>7.0%}"
    for law in laws:
        figures = f"{law.mean:>7.1%} {law.deviation:>7.1%} {math.expm1(law.log_ratio_of(STARTS)):>7.1%}"
        yield f"{law.stack:<24} {law.peaks:>6} {law.fits:>6} {law.failures:>6} {figures}"
    yield f"{STARTS:.0%} of the runs need no more than so much above the predicted peak."


def _chance_lines(predicted: Sequence[Prediction], uses: Sequence[Use], chances: Sequence[float]) -> Iterator[str]:
    ran = sum(use.has_run for use in uses)
    failed = len(uses) - ran
    wrong, caught = (below_half(uses, chances, has_run=has_run) for has_run in (True, False))
    yield f"of {failed} that ran out of memory {caught} have a chance below one half (at least {LEAST_CAUGHT})"
    yield f"of {ran:,} that ran {wrong} have one, {wrong / ran:.2%} (at most {MOST_WRONG_SHARE:.0%})"
    for one, use, chance in zip(predicted, uses, chances, strict=True):
        if (chance < 0.5) == use.has_run:
            silent = ", silent on recomputation" if use.is_silent else ""
            yield f"  {one.run.id}: {'ran' if use.has_run else 'out of memory'}, chance {chance:.0%}{silent}"


if __name__ == "__main__":
    sys.exit(main())
