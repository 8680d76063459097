"""
``python -m benchmarks.plans``: whether the plans of plain jobs are ones that people would run.

Each job says nothing but what it must. Its plan fits with a chance of 95 % at least and is fast with one of 90 %,
offloads nothing unless the job fits no other way or gains more than 10 %, and exports to Megatron-LM. Then each is
planned for each target: every plan exports, or the job is refused before the search. Exits with 1 where one does not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.inputs import job_document
from benchmarks.plans.laws import JOBS
from benchmarks.targets.jobs import Answer, became
from costmodel.errors import SpecError
from planner.frameworks import TARGETS, export
from planner.jobs.problem import load
from planner.report.section import gib
from planner.results import Plan, PlanReport
from planner.uncertainty.peaks import RUNS_FAST, STARTS, chance_fast
from planner.verbs.plan import plan

OFFLOAD_GAIN = 0.1
"""Least gain of offload, as a fraction of the step without it."""

ROUNDING = 1e-9
"""By which a chance may be below the one that the default headroom is made for."""


def complaints(report: PlanReport) -> Iterator[str]:
    """List the objections to the plan of a job."""
    first = report.plans[0]
    if first.chance_to_fit.share < STARTS - ROUNDING:
        yield f"fits with a chance of {first.chance_to_fit.share:.1%}"
    fast = chance_fast(first.cluster, first.strategy, device_bytes=first.estimate.device_bytes).share
    if fast < RUNS_FAST - ROUNDING:
        yield f"is fast with a chance of {fast:.1%}"
    if offloads(first):
        yield from _needless(report, first)
    try:
        export(first, "megatron-lm")
    except SpecError as error:
        yield f"no export to Megatron-LM: {str(error).splitlines()[0]}"


def offloads(one: Plan) -> bool:
    """Tell whether anything is offloaded from the device."""
    strategy = one.strategy
    return strategy.optimizer_offload or strategy.activation_offload


def _needless(report: PlanReport, first: Plan) -> Iterator[str]:
    """An offload without which the job fits and is nearly as fast."""
    held = {"optimizer_offload": 0, "activation_offload": 0}
    without = plan(report.problem.change_limits(pin=held, simplest=False), certified=False)
    if without.plans and without.plans[0].step_seconds <= first.step_seconds * (1 + OFFLOAD_GAIN):
        yield f"offloads to gain {without.plans[0].step_seconds / first.step_seconds - 1:.1%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan every job and print what it got; 0, or 1 where a plan is none that one would run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__.split("\n\n")[1])
    parser.parse_args(arguments)
    print(f"{'job':<44} {'step, s':>9} {'slower':>7} {'fits':>5} {'free':>5} {'time, s':>7}  strategy")
    wrong = 0
    for job in JOBS:
        began = time.perf_counter()
        report = plan(load(job_document(*job)))
        seconds = time.perf_counter() - began
        found = list(complaints(report)) if report.plans else ["no plan"]
        wrong += bool(found)
        print(_line(job, report, seconds))
        for text in found:
            print(f"    {text}")
    print(f"{len(JOBS) - wrong} of {len(JOBS)} plans are ones that one would run")
    for target in TARGETS:
        found_for = [became(job_document(*job, search={}), target) for job in JOBS]
        counts = Counter(one.answer for one in found_for)
        print(f"{target:<16} {', '.join(f'{answer} {counts[answer]}' for answer in Answer if counts[answer])}")
        wrong += counts[Answer.WRONG]
    return 1 if wrong else 0


def _line(job: tuple[str, str, int, int, int], report: PlanReport, seconds: float) -> str:
    name = f"{job[0]} on {job[2]:,} {job[1]}"
    if not report.plans or report.fastest is None:
        return f"{name:<44} {report.outcome.status}"
    first = report.plans[0]
    slower = first.slower_fraction(report.fastest)
    strategy = first.strategy
    degrees = " ".join(
        f"{degree}={getattr(strategy, degree)}" for degree in ("tp", "cp", "pp", "dp", "ep", "vpp", "mbs")
    )
    chance, free = first.chance_to_fit.share, gib(first.headroom_bytes)
    return (
        f"{name:<44} {first.step_seconds:>9.3f} {slower:>7.1%} {chance:>5.0%} {free:>5} {seconds:>7.1f}  {degrees} "
        f"{strategy.recompute.text}"
    )


if __name__ == "__main__":
    sys.exit(main())
