"""Errors of learned operator times on samples that they have not seen, beside rooflines and a random forest."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.operators.baselines import Unseen, joined, score
from benchmarks.operators.groups import CATALOG_NAMES, Group
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.timing.gaussian_process import Rows
from costmodel.timing.sampled_source import Rates, SampledTimes
from planner.jobs.problem import Problem, load
from planner.measure.fit.device import fit_device
from planner.measure.fit.operators import NUM_FOLDS, deal_families, fit_rates, learn_operator
from planner.measure.sample.bench import least_flops, moved_bytes
from planner.measure.sample.samples import Machine, Point, Sample, Timing
from planner.measure.sample.shapes import job_shapes, points_to_measure
from planner.verbs.plan import plan

FEW_FAMILIES = 12
"""Families up to which each is left out by itself."""

NUM_SHAPE_FEATURES = 3
"""Leading features that are the shape itself, which is all that the forest of arXiv 2509.22832 knows."""


def held_out(group: Group) -> Unseen:
    """Return the errors on families of shapes that were left out, each once."""
    families = list(group.families)
    distinct = len(set(families))
    folds = deal_families(families, distinct if distinct <= FEW_FAMILIES else NUM_FOLDS)
    return joined([predicted(group[folds != fold], group[folds == fold]) for fold in np.unique(folds)])


def predicted(known: Group, unseen: Group) -> Unseen:
    """Return the errors on samples by laws that know others of the same device and operator."""
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(100, min_samples_leaf=2, random_state=0, n_jobs=2)
    forest.fit(known.shapes.features[:, :NUM_SHAPE_FEATURES], np.log(known.seconds))
    times = learn_operator(known.shapes, known.seconds, list(known.families))
    others = {
        "roofline": datasheet_seconds(unseen),
        "fitted roofline": times.rates.seconds(unseen.shapes),
        "forest": np.exp(forest.predict(unseen.shapes.features[:, :NUM_SHAPE_FEATURES])),
    }
    return _score(unseen, times, others)


def _score(unseen: Group, times: SampledTimes, others: Mapping[str, Rows]) -> Unseen:
    return score(
        unseen.seconds,
        {**others, "learned": times.seconds(unseen.shapes)},
        times.relative_deviation(unseen.shapes),
        system=unseen.device,
        groups=unseen.operators,
        outside=times.is_outside(unseen.shapes),
    )


def datasheet_seconds(group: Group) -> Rows:
    """Seconds at the datasheet's peaks; NaN for a device that the catalog does not have; shape (rows,)."""
    if group.device not in CATALOG_NAMES:
        return np.full(len(group), np.nan)
    device = catalog.device(CATALOG_NAMES[group.device])
    rates = Rates(
        flops_per_second=device.peak_flops["bf16"],
        bytes_per_second=device.memory_bandwidth,
        smallest_seconds=0.0,
    )
    return rates.seconds(group.shapes)


# --- a device that only few samples are of -----------------------------------------------------------------

NUM_ADAPTING = 200
"""Samples of a new device."""


def evenly(groups: Iterable[Group], count: int = NUM_ADAPTING, *, seed: int = 0) -> list[NDArray[np.intp]]:
    """
    Rows of each group that are drawn, even over operators and sizes.

    Each operator's rows are sorted by their bytes and cut into as many pieces as rows are due; one is drawn of each.

    Parameters
    ----------
    groups
        All groups of a device.
    count
        Samples of all of them together.
    seed
        Seed of the draw.
    """
    groups = list(groups)
    draw = np.random.default_rng(seed)
    operators = [(number, name) for number, group in enumerate(groups) for name in sorted(set(group.operators))]
    shares = [len(piece) for piece in np.array_split(np.arange(count), len(operators))]
    drawn: list[list[int]] = [[] for _ in groups]
    for (number, name), share in zip(operators, shares, strict=True):
        rows = np.flatnonzero(groups[number].operators == name)
        by_size = rows[np.argsort(groups[number].shapes.nbytes[rows], kind="stable")]
        drawn[number] += [int(draw.choice(piece)) for piece in np.array_split(by_size, share) if len(piece)]
    return [np.sort(np.asarray(rows, dtype=np.intp)) for rows in drawn]


def adapting(base: Mapping[str, SampledTimes], group: Group, drawn: NDArray[np.intp]) -> tuple[Unseen, SampledTimes]:
    """
    Errors on a new device's samples beside those that were drawn, and the times adapted to it.

    The law ``not adapted`` knows the drawn samples by the rates alone.

    Parameters
    ----------
    base
        Times of another device, by name of group.
    group
        The new device's samples.
    drawn
        Samples that adapt the times, and are not scored.
    """
    few = group[drawn]
    unseen = group[np.setdiff1d(np.arange(len(group)), drawn)]
    times = learn_operator(few.shapes, few.seconds, list(few.families), base=base[group.name])
    others = {
        "fitted roofline": times.rates.seconds(unseen.shapes),
        "not adapted": replace(base[group.name], rates=times.rates).seconds(unseen.shapes),
    }
    return _score(unseen, times, others), times


def closest(
    known: Iterable[Group], groups: Sequence[Group], drawn: Sequence[NDArray[np.intp]]
) -> tuple[str, dict[str, SampledTimes]]:
    """
    The device whose times, with a new device's rates, are closest to the samples drawn; its times by name of group.

    Raises
    ------
    SpecError
        If no device has all the operators of the new one.
    """
    by_device: dict[str, dict[str, SampledTimes]] = {}
    for one in known:
        by_device.setdefault(one.device, {})[one.name] = learn_operator(one.shapes, one.seconds, list(one.families))
    names = {group.name for group in groups}
    complete = {device: base for device, base in by_device.items() if names <= set(base)}
    if not complete:
        raise SpecError("--fit", f"no device of it has all of {', '.join(sorted(names))}.")

    def error(base: Mapping[str, SampledTimes]) -> float:
        few = [group[rows] for group, rows in zip(groups, drawn, strict=True)]
        predictions = [
            replace(base[one.name], rates=fit_rates(one.shapes, one.seconds)).seconds(one.shapes) for one in few
        ]
        ratios = [np.log(own / one.seconds) for own, one in zip(predictions, few, strict=True)]
        return float(np.median(np.abs(np.concatenate(ratios))))

    device = min(complete, key=lambda name: error(complete[name]))
    return device, complete[device]


MOST_RATIO = 1.5
"""Processor time with sampled operators and collectives over that with a roofline."""

ROUNDS = 5
"""Plans of each, in alternation."""

NUM_SAMPLES = 900
"""Samples of ten minutes on a GPU, at 0.7 s each."""

MEMORY_BYTES = 8e10
GROUPS = ((2, 1), (4, 1), (8, 1), (8, 4), (16, 2), (16, 16), (32, 4))
"""Ranks and nodes whose collectives were sampled."""

JOB: Mapping[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 64, "framework": "megatron-lm-0.17"},
    "training": {"global_batch_size": 256, "sequence_length": 8192, "tokens": 1e12},
}
MACHINE = Machine(device="invented", driver="1", software="none", num_processors=132, devices_per_node=8)


def planned() -> Iterator[str]:
    """Print both times; say so where the ratio is too large."""
    entry = fit_device(list(_samples()), name="invented", facts={"base": "h100-80gb-sxm"}).entry
    roofline = {**entry, "calibration": {**entry["calibration"], "times": "modified_roofline"}}
    problems = {name: _problem(device) for name, device in (("samples", entry), ("roofline", roofline))}
    seconds: dict[str, list[float]] = {name: [] for name in problems}
    for _ in range(ROUNDS):
        for name, problem in problems.items():
            started = time.process_time()
            plan(problem)
            seconds[name].append(time.process_time() - started)
    medians = {name: float(np.median(own)) for name, own in seconds.items()}
    ratio = medians["samples"] / medians["roofline"]
    texts = (f"{value:.2f} s with {name}" for name, value in medians.items())
    print(f"A plan takes {', '.join(texts)} of processor time, {ratio:.2f} times as long with samples.")
    if ratio > MOST_RATIO:
        yield f"a plan with samples takes {ratio:.2f} times as long, of at most {MOST_RATIO}."


def _problem(device: Mapping[str, Any]) -> Problem:
    return load({**JOB, "cluster": {**JOB["cluster"], "device": device}})


def _samples() -> Iterator[Sample]:
    """Yield samples of a machine that follows a roofline, links of 300 and adapters of 45 GB/s, with noise."""
    draw = np.random.default_rng(0)
    for point in points_to_measure(job_shapes(load(JOB)), MEMORY_BYTES, group_sizes=GROUPS)[:NUM_SAMPLES]:
        seconds = _seconds(point) * float(np.exp(0.02 * draw.standard_normal()))
        yield Sample(point=point, timing=Timing(seconds=seconds, spread=0.02, repeats=20), machine=MACHINE)


def _seconds(point: Point) -> float:
    sizes = point.sizes
    if sizes.ranks:
        rate = 3e11 if sizes.nodes == 1 else 4.5e10 * sizes.ranks / (sizes.nodes or 1)
        return 1e-5 + 3e-6 * sizes.ranks + (sizes.nbytes or 0) / rate
    if point.operator in ("host_to_device", "device_to_host"):
        return (sizes.nbytes or 0) / 5e10
    return max(least_flops(point) / 6.5e14, moved_bytes(point) / 2.8e12) + 4e-6
