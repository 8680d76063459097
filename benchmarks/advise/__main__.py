"""
``python -m benchmarks.advise``: an advice against planning every cell, its time, and whole trainings as published.

60 cells are advised on with cuts and without: the fronts and answers must be equal. 20 devices x 8 sizes are advised on
with two processes. MLPerf's Llama 3.1 405B: pairs of systems in the order of their steps, and the time to train. Whole
published trainings: days inside their interval.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.accuracy.metrics import NEWER, read_table
from benchmarks.inputs import read_rows, read_yaml
from benchmarks.output import conclude
from costmodel import reliability as formulas
from costmodel.facts.reliability import Reliability
from planner.advice.advise import SIZES, Advice, ClusterChoices, advise
from planner.advice.points import DAYS, ClusterCell, ClusterPoint, make_point, missing_entries
from planner.advice.prices import Offer, PriceList
from planner.advice.wish import Wish
from planner.batch.job_result import JobResult
from planner.batch.jobs import BatchJob
from planner.batch.run import plan_many
from planner.batch.work import figures
from planner.jobs.problem import load
from planner.measure.runs.predictions import Prediction, predictions
from planner.report.records.plan import NumberedPlanRecord
from planner.verbs.plan import estimate

FOLDER = Path(__file__).parent
NUM_PROCESSES, MAX_SECONDS = 2, 40.0
"""Processes of the whole advice, and processor time that it may take."""

PRICES = {
    "a100-80gb-sxm": (1.10, 1.50),
    "h100-80gb-sxm": (2.50, 3.50),
    "h200": (3.50, 4.50),
    **{"b200": (5.0, 6.0), "b300": (6.0, 7.0), "gb200": (5.5, 6.5), "gb300": (6.5, 7.5), "mi300x": (2.0, 2.5)},
}
"""
Prices of an hour, in USD, to have money in the front: the first three of specialty clouds in May 2026
(mercatus-ai.com/blog/cloud-gpu-pricing); the others are made up.
"""

DEVICES = (
    *PRICES,
    *("a100-40gb-sxm", "h100-80gb-pcie", "h100-94gb-nvl", "h20", "h800", "mi325x", "mi355x", "gaudi3", "l40s"),
    *("gh200-96gb", "rtx-pro-6000", "trainium2"),
)
JOB: dict[str, Any] = {
    "model": "llama3-70b",
    "cluster": {"device": "h100", "num_devices": 8},
    "training": {"global_batch_size": 1024, "sequence_length": "8k", "tokens": "15T"},
}
EVALUATION_SHARE = 5_760 / 46_080
"""
Sequences that an evaluation reads, over those trained between two: MLPerf Training v5.0, Llama 3.1 405B.

github.com/mlcommons/training, large_language_model_pretraining/nemo/README.md.
"""

MLPERF_START_SECONDS = 53
"""Median over the 14 trainings of measured time less measured steps and evaluations."""

LEAST_ORDERED, APART, MOST_OFF, FEWEST_INSIDE = 0.95, 1.1, 0.08, 5


def main() -> int:
    """Run the parts and print their figures; return 1 if a check fails, else 0."""
    parts = {"front": check_front, "time": check_time, "mlperf": check_mlperf, "trainings": check_trainings}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advise", description=__doc__)
    parser.add_argument("--only", choices=tuple(parts), help="the part to run")
    only = parser.parse_args().only
    return conclude(text for name, check in parts.items() if only in (None, name) for text in check())


def ask(devices: Iterable[str], sizes: tuple[int, ...], wish: Wish, **options: Any) -> Advice:
    """Advise on the job."""
    offers = tuple(Offer(device=name, low=low, high=high) for name, (low, high) in PRICES.items())
    choices = ClusterChoices(devices=tuple(devices), sizes=sizes, prices=PriceList(offers=offers))
    return advise(JOB, choices, wish, **options)


def check_front() -> Iterator[str]:
    """Compare advices with and without cuts on 12 devices x 5 sizes."""
    for wish in (Wish(days=30), Wish(aim="least-energy"), Wish(days=3, budget=1e6)):
        cut, whole = (ask(DEVICES[:12], SIZES[2:7], wish, cuts=cuts) for cuts in (True, False))
        print(f"{whole.num_cells} cells: {len(cut.cut)} cut, {len(whole.pareto_front)} on the front; {wish.limits}")
        for name in ("pareto_front", "nearest"):
            if list(map(_key, getattr(cut, name))) != list(map(_key, getattr(whole, name))):
                yield f"{wish.limits}: with cuts there is another {name}."
        if (cut.answer and _key(cut.answer)) != (whole.answer and _key(whole.answer)):
            yield f"{wish.limits}: with cuts there is another answer."


def _key(point: ClusterPoint) -> tuple[Any, ...]:
    return (point.cell.device, point.cell.num_devices, *point.metrics.values())


def check_time() -> Iterator[str]:
    """Measure the processor time of 20 devices x 8 sizes on two processes: of their jobs and of this process."""
    of_jobs = 0.0

    def run(jobs: Iterable[BatchJob]) -> Iterator[JobResult]:
        nonlocal of_jobs
        for result in plan_many(jobs, processes=NUM_PROCESSES):
            of_jobs += result.outcome.cpu_seconds
            yield result

    began, wall = time.process_time(), time.perf_counter()
    found = ask(DEVICES, SIZES, Wish(days=30), run=run)
    seconds = time.process_time() - began + of_jobs
    ends = f"{len(found.points)} planned, {len(found.cut)} cut, {len(found.failed)} without a plan"
    print(f"{found.num_cells} cells: {ends}, {len(found.pareto_front)} on the front.")
    print(f"{seconds:.1f} s of processor time, {time.perf_counter() - wall:.1f} s in all.")
    if len(DEVICES) != 20 or found.num_cells != 160 or not found.is_proven:
        yield "not every one of 160 cells is proven."
    if seconds > MAX_SECONDS:
        yield f"{seconds:.1f} s of processor time, of at most {MAX_SECONDS:g} s."


def check_mlperf() -> Iterator[str]:
    """Compare order of steps, and time to train, of MLPerf's systems."""
    measured = {row["id"]: row for row in read_rows(FOLDER / "mlperf.csv")}
    found = [one for one in predictions(*read_table(NEWER)) if isinstance(one, Prediction) and one.run.id in measured]
    ratios = [
        ((one.run.step_seconds or 0.0) / (two.run.step_seconds or 1.0), one.step_seconds / two.step_seconds)
        for one, two in combinations(found, 2)
    ]
    apart = [pair for pair in ratios if max(pair[0], 1 / pair[0]) > APART]
    ordered = sum((one > 1) == (two > 1) for one, two in apart)
    off = {one.run.id: _time_to_train(one, measured[one.run.id]) for one in found}
    worst = max(off, key=lambda name: abs(off[name]))
    print(f"MLPerf: {ordered} of {len(apart)} pairs in order; time to train {off[worst]:+.1%} at worst ({worst}).")
    if len(found) != len(measured):
        yield f"{len(found)} of {len(measured)} systems are predicted."
    if ordered < LEAST_ORDERED * len(apart):
        yield f"{ordered} of {len(apart)} pairs are in order."
    yield from (f"{name}: time to train {error:+.1%}." for name, error in off.items() if abs(error) > MOST_OFF)


def _time_to_train(one: Prediction, row: dict[str, str]) -> float:
    """Error of the time to train with given samples, without failures and checkpoints."""
    whole = Reliability(
        failures_per_node_day=0,
        mttr_seconds=0,
        checkpoint_seconds=0,
        init_seconds=MLPERF_START_SECONDS,
        evaluation_fraction=formulas.evaluation_fraction(evaluation_steps=EVALUATION_SHARE, interval_steps=1),
    )
    steps = round(float(row["samples_to_target"]) / float(row["global_batch_size"]))
    seconds = formulas.total_seconds(
        one.facts.cluster, whole, interval_steps=steps, num_steps=steps, step_seconds=one.step_seconds
    )
    return seconds / 60 / float(row["minutes"]) - 1


def check_trainings() -> Iterator[str]:
    """Compare the days of published trainings with their intervals."""
    trainings, inside = read_yaml(FOLDER / "trainings.yaml"), 0
    for training in trainings:
        point = whole_training(training)
        low, high = point.intervals[DAYS]
        inside += low <= training["days"] <= high
        print(
            f"{training['name']:15} published {training['days']:6.1f} days, predicted {point.metrics[DAYS]:6.1f} "
            f"({low:.1f} to {high:.1f})"
        )
    if inside < FEWEST_INSIDE:
        yield f"{inside} of {len(trainings)} trainings are inside their interval."


def whole_training(training: dict[str, Any]) -> ClusterPoint:
    """Point of a published training, with the defaults of a whole training."""
    job = {name: training[name] for name in ("model", "cluster", "training")}
    for section, entries in missing_entries(job).items():
        job[section] = {**job.get(section, {}), **entries}
    (record,) = NumberedPlanRecord.build_all([estimate(load(job), training["strategy"]).plan])
    cell = ClusterCell(
        device=job["cluster"]["device"],
        num_devices=job["cluster"]["num_devices"],
        global_batch_size=job["training"]["global_batch_size"],
        tokens_factor=1.0,
        offer=None,
        document=job,
    )
    return make_point(cell, figures(record), is_proven=True)


if __name__ == "__main__":
    sys.exit(main())
