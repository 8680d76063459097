"""Times of one fabric's collectives, learned from samples: constants of a law, its remaining error, and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from costmodel.facts.calibration import Fabric, SampledFabric, SampledTier
from costmodel.network.link_law import CONSTANTS, KINDS, NUM_SIZES, Calls, Estimates, calls_of, law_seconds
from costmodel.network.sampled_fabric import Deviations, SampledCollectives
from costmodel.timing.gaussian_process import Rows
from planner.measure.fit.law import (
    Errors,
    HeldOutSamples,
    Known,
    Measured,
    Smoothness,
    estimate_constants,
    likeliest_smoothness,
    require_samples,
    widen_by_folds,
)
from planner.measure.fit.operators import DIGITS, Unlearned, round_digits
from planner.measure.sample.samples import Sample

FEWEST = 5

"""Fewest samples of a fabric to learn from."""

PER_OCTAVE = 4

"""Medians that represent the samples of a curve between one size and twice it."""

NUM_SIZE_FOLDS = 4

"""Folds of each curve's sizes, each held out once."""

LENGTHS = np.array([2.0, 2.0, 2.0, 2.0, *[1.0] * len(KINDS)])

"""Prior lengths: doublings of bytes, ranks, nodes and ranks per node; kinds."""

APART = 1e-2

"""Length over which curves are independent."""

USABLE = 0.25

"""
Largest error of a logarithm on held-out numbers of ranks for which a process is shared between them.

With a larger error the law misses something that is not smooth, and the law alone is safer.
"""

FAR_OFF, MOST_DEVIATIONS = 0.25, 4.0

"""
Largest deviation of a sample from the law that the process sees: as a logarithm, and in standard deviations.

The first samples of a run are often cold starts.
"""


def collectives_alone(samples: Iterable[Sample]) -> list[Sample]:
    """Return the samples of collectives that ran alone."""
    return [one for one in samples if one.point.operator in KINDS and not one.point.beside]


def collective_samples(samples: Iterable[Sample]) -> Measured[Calls]:
    """
    Return the collectives of a table of samples that ran alone.

    Raises
    ------
    SpecError
        If there are none.
    """
    rows = collectives_alone(samples)
    if not rows:
        raise SpecError("samples", "none is a collective.", f"Collectives are: {', '.join(KINDS)}.")
    sizes = [one.point.sizes for one in rows]
    calls = calls_of(
        [one.point.operator for one in rows],
        nbytes=np.array([one.nbytes for one in sizes], dtype=float),
        ranks=np.array([one.ranks for one in sizes], dtype=float),
        nodes=np.array([one.nodes for one in sizes], dtype=float),
    )
    return Measured(calls=calls, seconds=np.array([one.timing.seconds for one in rows]))


def learn_collectives(samples: Measured[Calls], fabric: Fabric) -> SampledCollectives:
    """
    Learn times from samples of one fabric's collectives.

    Constants of the law are estimated, with datasheets as priors where they are known. Then a process learns the law's
    error on each curve by itself, or across numbers of ranks where that is closer on held-out ones. Numbers of ranks,
    and sizes, are held out in turn to calibrate the width of intervals.

    Parameters
    ----------
    samples
        At least ``FEWEST``, in any order.
    fabric
        Known facts of the fabric.

    Raises
    ------
    SpecError
        If there are too few samples, or SciPy is not installed.
    """
    samples = samples[(samples.calls.ranks > 1) & (samples.calls.nbytes > 0)]
    require_samples(len(samples), "a fabric", FEWEST)
    medians = curve_medians(samples)
    law = SampledCollectives(fabric=fabric, estimates=constants(medians, fabric))
    by_ranks, by_sizes = (_hold_out(samples, medians, law, by_ranks=by_ranks) for by_ranks in (True, False))
    tiers = []
    for leaves in (False, True):
        own = medians[(medians.calls.nodes > 1) == leaves]
        folds = (list(_folds(parts, leaves)) for parts in (by_ranks, by_sizes))
        tiers.append(_learn_deviations(own, law, *folds) if len(own) else None)
    return replace(law, inside=tiers[0], between=tiers[1])


def curve_medians(samples: Measured[Calls]) -> Measured[Calls]:
    """Return the medians of a curve's samples of nearly equal size."""
    sizes = _sizes(samples.calls)
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(zip(samples.calls.curves, sizes.tolist(), strict=True)):
        groups.setdefault((*key[0], key[1]), []).append(row)
    calls = samples.calls[np.array([rows[0] for rows in groups.values()])]
    sizes_of = np.exp2([np.mean(np.log2(samples.calls.nbytes[rows])) for rows in groups.values()])
    seconds = np.array([np.median(samples.seconds[rows]) for rows in groups.values()])
    return Measured(calls=replace(calls, nbytes=sizes_of), seconds=seconds)


# --- constants ---------------------------------------------------------------------------------------------
def constants(samples: Measured[Calls], fabric: Fabric, *, start: Estimates | None = None) -> Estimates:
    """
    Estimate the likeliest ``CONSTANTS``: large messages weigh more than small ones, whose times vary from run to run.

    Parameters
    ----------
    samples
        Samples of one fabric.
    fabric
        Known facts of the fabric.
    start
        Constants to begin with.
    """
    return estimate_constants(
        lambda values: law_seconds(values, samples.calls, fabric),
        samples.seconds,
        constant_priors(samples, fabric),
        weights=np.clip(samples.calls.nbytes / 2**20, 0.02, 64.0) ** 0.25,
        start=start,
    )


def constant_priors(samples: Measured[Calls], fabric: Fabric) -> dict[str, Known]:
    """
    Return the priors of the law's constants.

    Large messages reach three quarters or four fifths of datasheets, within a quarter (networks: within a factor of
    two). Without a datasheet, the best rate and the shortest time of the samples take its place, within a factor of
    about four.

    References
    ----------
    nccl-tests, ``doc/PERFORMANCE.md``, and published runs of it: bus bandwidth against the datasheets of links, 10 to
    20 us of the smallest collective.
    """
    leaves = samples.calls.nodes > 1
    launch, surely = _launch(samples, fabric)
    slower = launch / 15e-6
    known = _node_priors(samples[~leaves], fabric) | _network_priors(samples, fabric)
    wide = 0.0 if surely else 0.8
    known["step_seconds"] = Known(value=1.5e-6 * slower, width=0.7 + wide)
    known["segment_seconds"] = Known(value=0.3e-6 * slower, width=1.0 + wide)
    known["node_seconds"] = Known(value=8e-6 * slower, width=0.8 + wide)
    known["network_segment_seconds"] = Known(value=1e-6 * slower, width=1.0 + wide)
    for kind in KINDS:
        own = 0.4 if kind == "send" else 1.0
        further = 0.7 if kind == "send" else 1.5
        known[f"launch_seconds.{kind}"] = Known(value=own * launch, width=0.7 + wide)
        known[f"network_launch_seconds.{kind}"] = Known(value=further * launch, width=0.7 + wide)
        # shares are relative to all-reduce, whose bandwidth is the reference
        known[f"share.{kind}"] = Known(value=1.0, width=1e-3 if kind == "all_reduce" else 0.15)
        known[f"network_share.{kind}"] = Known(value=1.0, width=1e-3 if kind == "all_reduce" else 0.3)
    return {name: known[name] for name in CONSTANTS}


def _launch(samples: Measured[Calls], fabric: Fabric) -> tuple[float, bool]:
    """Return the seconds of a small collective, and True if they come from a datasheet."""
    if fabric.launch_seconds is not None:
        return fabric.launch_seconds, True
    return 0.5 * float(np.min(samples.seconds)), False


def _node_priors(samples: Measured[Calls], fabric: Fabric) -> dict[str, Known]:
    calls = samples.calls
    rates = calls.sent_bytes / samples.seconds
    parallel = np.maximum(calls.ranks_per_node - 1, 1.0) if fabric.is_mesh else np.ones(len(calls))
    is_slow = calls.ranks_per_node > (fabric.fast_peers or np.inf)
    bandwidth = _rate(fabric.bandwidth, (rates / parallel)[~is_slow], fraction=0.78, width=0.25)
    slow = fabric.slow_bandwidth if fabric.slow_bandwidth else None
    return {
        "bandwidth": bandwidth,
        "slow_bandwidth": _rate(slow, rates[is_slow], fraction=0.75, width=0.25),
        "summing_bandwidth": Known(value=0.83 * bandwidth.value, width=max(0.2, 0.8 * bandwidth.width)),
    }


def _network_priors(samples: Measured[Calls], fabric: Fabric) -> dict[str, Known]:
    leaves = samples[samples.calls.nodes > 1]
    rates = leaves.calls.sent_bytes / leaves.seconds
    return {
        "network_bandwidth": _rate(
            fabric.network_bandwidth, rates / leaves.calls.ranks_per_node, fraction=0.8, width=0.7
        ),
        "node_network_bandwidth": _rate(fabric.node_network_bandwidth, 1.5 * rates, fraction=0.8, width=0.7),
    }


UNKNOWN_BANDWIDTH = Known(value=1e10, width=2.0)

"""Prior bandwidth of links without a datasheet or a sample, in bytes per second."""


def _rate(datasheet: float | None, rates: Rows, *, fraction: float, width: float) -> Known:
    """Return the prior of a bandwidth, from its datasheet or the best rate of the samples."""
    if datasheet is not None:
        return Known(value=fraction * datasheet, width=width)
    if not len(rates):
        return UNKNOWN_BANDWIDTH
    return Known(value=1.25 * float(np.max(rates)), width=1.4)


# --- what is left ------------------------------------------------------------------------------------------
_Part: TypeAlias = tuple[Measured[Calls], Measured[Calls], SampledCollectives]

"""Known samples, held-out samples, and the law with constants from the known ones."""

_Tier: TypeAlias = tuple[Calls, HeldOutSamples]

"""Unseen calls inside nodes, or between them, with the errors of the law."""


def _hold_out(
    samples: Measured[Calls], medians: Measured[Calls], law: SampledCollectives, *, by_ranks: bool
) -> list[_Part]:
    """Hold out each number of ranks once, or each fold of sizes; none where there is only one."""
    folds, folds_of_medians = (one.calls.ranks if by_ranks else _size_folds(one.calls) for one in (samples, medians))
    parts = []
    for fold in np.unique(folds):
        known = medians[folds_of_medians != fold]
        if len(known):
            estimates = constants(known, law.fabric, start=law.estimates)
            parts.append((known, samples[folds == fold], replace(law, estimates=estimates)))
    return parts


def _folds(parts: Sequence[_Part], leaves: bool) -> Iterator[_Tier]:
    """Yield the samples of parts between nodes, or those inside a node, where some are unseen."""
    for *both, law in parts:
        known, unseen = (one[(one.calls.nodes > 1) == leaves] for one in both)
        calls = unseen.calls
        if not len(unseen):
            continue
        variance = law.estimates.variance(partial(law_seconds, calls=calls, fabric=law.fabric))
        errors = (calls.features, np.log(unseen.seconds / law.law(calls)))
        yield calls, HeldOutSamples(known=_clip_errors(known, law), unseen=errors, variance=variance)


def _size_folds(calls: Calls) -> NDArray[np.intp]:
    """Return the fold of each sample: sizes in turn, those of one median together; shape (rows,)."""
    sizes = _sizes(calls)
    return np.searchsorted(np.unique(sizes), sizes) % NUM_SIZE_FOLDS


def _sizes(calls: Calls) -> NDArray[np.intp]:
    """Return the rounded logarithms of bytes: equal values are one size; shape (rows,)."""
    return np.round(PER_OCTAVE * np.log2(calls.nbytes)).astype(np.intp)


def _learn_deviations(
    own: Measured[Calls], law: SampledCollectives, by_ranks: Sequence[_Tier], by_sizes: Sequence[_Tier]
) -> Deviations:
    """Learn the law's error with a process, and calibrate the width of intervals."""
    features, left = _clip_errors(own, law)
    sizes_alone = np.arange(len(LENGTHS)) > 0
    apart = likeliest_smoothness(features, left, lengths=np.where(sizes_alone, APART, LENGTHS), fixed=sizes_alone)
    shared = likeliest_smoothness(features, left, lengths=LENGTHS)
    # without held-out numbers of ranks there is no evidence that curves are similar
    is_closer = by_ranks and _error(by_ranks, shared) < min(_error(by_ranks, apart), USABLE)
    smoothness = shared if is_closer else apart
    near, elsewhere = (
        widen_by_folds([fold for _, fold in folds], smoothness.fit_process) for folds in (by_sizes, by_ranks)
    )
    return Deviations(
        process=smoothness.fit_process(features, left),
        curves=frozenset(own.calls.curves),
        lowest=np.min(features[:, :NUM_SIZES], axis=0),
        highest=np.max(features[:, :NUM_SIZES], axis=0),
        widening=near,
        widening_elsewhere=max(1.0, near, elsewhere),  # few numbers of ranks may agree by chance
    )


def _error(folds: Sequence[_Tier], smoothness: Smoothness) -> float:
    """Return the mean over curves of the median error on held-out samples."""
    by_curve: dict[tuple[int, int, int], list[float]] = {}
    for calls, fold in folds:
        errors, _ = fold.predict(smoothness.fit_process)
        for curve, error in zip(calls.curves, errors.tolist(), strict=True):
            by_curve.setdefault(curve, []).append(error)
    return float(np.mean([np.median(errors) for errors in by_curve.values()]))


def _clip_errors(samples: Measured[Calls], law: SampledCollectives) -> Errors:
    """Return the errors of the law, without outliers."""
    calls = samples.calls
    return calls.features, _clip_outliers(calls, np.log(samples.seconds / law.law(calls)))


def _clip_outliers(calls: Calls, left: Rows) -> Rows:
    """Clip outliers of the remaining error: far from zero, or from the median of neighbouring sizes of the curve."""
    if not len(left):
        return left
    most = max(FAR_OFF, MOST_DEVIATIONS * 1.48 * float(np.median(np.abs(left))))
    left = np.clip(left, -most, most)
    calm = left.copy()
    groups: dict[tuple[int, int, int], list[int]] = {}
    for row, curve in enumerate(calls.curves):
        groups.setdefault(curve, []).append(row)
    for rows in groups.values():
        order = np.array(rows)[np.argsort(calls.nbytes[rows])]
        around = [np.median(left[order[max(place - 2, 0) : place + 3]]) for place in range(len(order))]
        calm[order] = np.clip(left[order], np.subtract(around, FAR_OFF), np.add(around, FAR_OFF))
    return calm


def learn_fabric(samples: Sequence[Sample], fabric: Fabric) -> tuple[SampledFabric | None, SampledCollectives | None]:
    """
    Learn collectives for a device's file; return the record and the times; None where samples are missing or too few.

    Parameters
    ----------
    samples
        Samples of one machine, collectives and others.
    fabric
        Known facts of its links.

    Raises
    ------
    SpecError
        If SciPy is not installed.
    """
    if len(collectives_alone(samples)) < FEWEST:
        return None, None
    measured = collective_samples(samples)
    times = learn_collectives(measured, fabric)
    return _store(times, measured), times


def report_unlearned_collectives(samples: Sequence[Sample]) -> tuple[Unlearned, ...]:
    """Report collectives as unlearned if some but too few were sampled."""
    number = len(collectives_alone(samples))
    if number == 0 or number >= FEWEST:
        return ()
    return (("collectives", f"{number} samples; at least {FEWEST} are needed"),)


def _store(times: SampledCollectives, measured: Measured[Calls]) -> SampledFabric:
    errors = np.abs(np.log(times.seconds_of(measured.calls) / measured.seconds))
    estimates = times.estimates
    return SampledFabric(
        fabric=times.fabric,
        num_samples=len(measured),
        error=round_digits(float(np.median(errors))),
        constants={name: round_digits(value) for name, value in estimates.values.items()},
        covariance=_table(estimates.covariance.tolist()),
        inside=_tier(times.inside),
        between=_tier(times.between),
    )


def _tier(found: Deviations | None) -> SampledTier | None:
    if found is None:
        return None
    process = found.process
    features, values = process.build_samples()
    kinds = [KINDS[place] for place in np.argmax(features[:, NUM_SIZES:], axis=1)]
    nbytes, ranks, nodes = np.exp2(features[:, :3]).T
    rows = zip(kinds, nbytes.tolist(), np.round(ranks).tolist(), np.round(nodes).tolist(), values.tolist(), strict=True)
    return SampledTier(
        variance=round_digits(process.variance),
        noise=round_digits(process.noise),
        lengths=tuple(round_digits(one) for one in process.lengths),
        lowest=tuple(round_digits(one) for one in found.lowest),
        highest=tuple(round_digits(one) for one in found.highest),
        widening=round_digits(found.widening),
        widening_elsewhere=round_digits(found.widening_elsewhere),
        curves="\n".join(f"{KINDS[kind]} {ranks} {nodes}" for kind, ranks, nodes in sorted(found.curves)),
        rows="\n".join(f"{kind} {_table([numbers])}" for kind, *numbers in rows),
    )


def _table(rows: list[list[float]]) -> str:
    return "\n".join(" ".join(f"{number:.{DIGITS}g}" for number in row) for row in rows)
