"""Errors of learned operator times on samples that they have not seen, beside rooflines and a random forest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from benchmarks.operators.baselines import Unseen, joined, score
from benchmarks.operators.groups import CATALOG_NAMES, Group
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.timing.gaussian_process import Rows
from costmodel.timing.sampled_source import Rates, SampledTimes
from planner.measure.fit.operators import NUM_FOLDS, deal_families, fit_rates, learn_operator

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
        Of the draw.
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

    Of the laws, ``not adapted`` knows the drawn samples by the rates alone.

    Parameters
    ----------
    base
        Times of another device, by name of group.
    group
        The new device's samples.
    drawn
        Which of them adapt the times, and are not scored.
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
