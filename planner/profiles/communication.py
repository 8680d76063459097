"""Collective times of one fabric learned from samples: constants of its law, what is left, how wide intervals are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from costmodel.facts.samples import Fabric
from costmodel.network.estimates import Estimates
from costmodel.network.link_law import CONSTANTS, KINDS, NUM_SIZES, Calls, calls_of, law_seconds
from costmodel.network.sampled import Deviations, SampledCollectives
from costmodel.operators.gaussian_process import GaussianProcess, Rows, projected
from planner.profiles.estimation import Known, Smoothness, estimated, likeliest_smoothness
from planner.profiles.learning import widening
from planner.sampling.samples import Sample

FEWEST = 5
"""Samples of a fabric from which anything is learned."""

PER_OCTAVE = 4
"""Medians that stand for the samples of a curve between one size and twice it."""

NUM_SIZE_FOLDS = 4
"""Parts of each curve's sizes, each left out once."""

LENGTHS = np.array([2.0, 2.0, 2.0, 2.0, *[1.0] * len(KINDS)])
"""Lengths known before: doublings of bytes, ranks, nodes and ranks per node; kinds."""

NUM_POINTS = 300
"""Support points of a process."""

APART = 1e-2
"""Length over which curves have nothing in common."""

USABLE = 0.25
"""
Error of a logarithm on numbers of ranks that were left out, up to which a process is shared between such numbers.

Where it is larger, the law misses something that no smoothness tells, and the law alone is the safer guess.
"""

FAR_OFF, MOST_DEVIATIONS = 0.25, 4.0
"""
Logarithm, and standard deviations of the law's error, by which a sample is off at most, as far as the process knows.

The first of a run are often cold starts.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """
    Collectives and how long they took.

    Parameters
    ----------
    calls
        What was measured.
    seconds
        Shape (rows,).
    """

    calls: Calls
    seconds: Rows

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Measured:
        """Some of the rows."""
        return Measured(calls=self.calls[rows], seconds=self.seconds[rows])

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.seconds)


def collectives_alone(samples: Iterable[Sample]) -> list[Sample]:
    """Those samples that are collectives and ran alone."""
    return [one for one in samples if one.point.operator in KINDS and not one.point.beside]


def collective_samples(samples: Iterable[Sample]) -> Measured:
    """
    Those rows of a table of samples that are collectives and ran alone.

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


def learned_collectives(samples: Measured, fabric: Fabric) -> SampledCollectives:
    """
    Times learned from samples of one fabric's collectives.

    Constants of the law are estimated, about what datasheets say where they are known. Then a process learns the law's
    error on each curve by itself, or by numbers of ranks too where that is closer on those that were left out. Whole
    numbers of ranks, and sizes, are left out in turn to see how wide intervals must be.

    Parameters
    ----------
    samples
        At least ``FEWEST``, in any order.
    fabric
        What is known of it.

    Raises
    ------
    SpecError
        If there are too few samples, a time is no positive number, or SciPy is not installed.
    """
    if not np.all((samples.seconds > 0) & np.isfinite(samples.seconds)):
        raise SpecError("samples", "there are times that are no positive numbers.")
    samples = samples[(samples.calls.ranks > 1) & (samples.calls.nbytes > 0)]
    if len(samples) < FEWEST:
        raise SpecError("samples", f"{len(samples)} of a fabric are too few.", f"At least {FEWEST} are needed.")
    medians = thinned(samples)
    law = SampledCollectives(fabric=fabric, estimates=constants(medians, fabric))
    by_ranks, by_sizes = (_left_out(samples, medians, law, by_ranks=by_ranks) for by_ranks in (True, False))
    tiers: list[Deviations | None] = []
    for leaves in (False, True):
        own = medians[(medians.calls.nodes > 1) == leaves]
        parts = ([part.of(leaves) for part in all_parts] for all_parts in (by_ranks, by_sizes))
        tiers.append(
            _deviations(own, law, *([one for one in some if len(one.unseen)] for some in parts)) if len(own) else None
        )
    return replace(law, inside=tiers[0], between=tiers[1])


def thinned(samples: Measured) -> Measured:
    """Medians of a curve's samples of nearly the same size."""
    sizes = _sizes(samples.calls)
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(zip(samples.calls.curves, sizes.tolist(), strict=True)):
        groups.setdefault((*key[0], key[1]), []).append(row)
    calls = samples.calls[np.array([rows[0] for rows in groups.values()])]
    sizes_of = np.exp2([np.mean(np.log2(samples.calls.nbytes[rows])) for rows in groups.values()])
    seconds = np.array([np.median(samples.seconds[rows]) for rows in groups.values()])
    return Measured(calls=replace(calls, nbytes=sizes_of), seconds=seconds)


# --- constants ---------------------------------------------------------------------------------------------


def constants(samples: Measured, fabric: Fabric, *, start: Estimates | None = None) -> Estimates:
    """
    The likeliest ``CONSTANTS``: large messages say more than small ones, whose times wander from run to run.

    Parameters
    ----------
    samples
        Of one fabric.
    fabric
        What is known of it.
    start
        Constants to begin with.
    """
    return estimated(
        lambda values: law_seconds(values, samples.calls, fabric),
        samples.seconds,
        known_constants(samples, fabric),
        weights=np.clip(samples.calls.nbytes / 2**20, 0.02, 64.0) ** 0.25,
        start=start,
    )


def known_constants(samples: Measured, fabric: Fabric) -> dict[str, Known]:
    """
    What is known of the law's constants before they are estimated.

    Datasheets are reached to three quarters or four fifths, within a quarter (networks: within a factor of two). Where
    there is none, the best rate and the shortest time of the samples stand for it, within a factor of four or so.

    References
    ----------
    nccl-tests, ``doc/PERFORMANCE.md``, and published runs of it: bus bandwidth beside links' datasheets, 10 to 20 us of
    the smallest collective.
    """
    leaves = samples.calls.nodes > 1
    launch, surely = _launch(samples, fabric)
    slower = launch / 15e-6
    known = _known_inside(samples[~leaves], fabric) | _known_between(samples, fabric)
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
        # an all-reduce's shares are one: bandwidths are its own
        known[f"share.{kind}"] = Known(value=1.0, width=1e-3 if kind == "all_reduce" else 0.15)
        known[f"network_share.{kind}"] = Known(value=1.0, width=1e-3 if kind == "all_reduce" else 0.3)
    return {name: known[name] for name in CONSTANTS}


def _launch(samples: Measured, fabric: Fabric) -> tuple[float, bool]:
    """Seconds of a small collective, and whether a datasheet says them."""
    if fabric.launch_seconds is not None:
        return fabric.launch_seconds, True
    return 0.5 * float(np.min(samples.seconds)), False


def _known_inside(samples: Measured, fabric: Fabric) -> dict[str, Known]:
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


def _known_between(samples: Measured, fabric: Fabric) -> dict[str, Known]:
    leaves = samples[samples.calls.nodes > 1]
    rates = leaves.calls.sent_bytes / leaves.seconds
    return {
        "network_bandwidth": _rate(
            fabric.network_bandwidth, rates / leaves.calls.ranks_per_node, fraction=0.8, width=0.7
        ),
        "node_network_bandwidth": _rate(fabric.node_network_bandwidth, 1.5 * rates, fraction=0.8, width=0.7),
    }


UNKNOWN_BANDWIDTH = Known(value=1e10, width=2.0)
"""Bytes per second of links of which neither a datasheet nor a sample is known."""


def _rate(datasheet: float | None, rates: Rows, *, fraction: float, width: float) -> Known:
    """A bandwidth by its datasheet, or by the best rate seen."""
    if datasheet is not None:
        return Known(value=fraction * datasheet, width=width)
    if not len(rates):
        return UNKNOWN_BANDWIDTH
    return Known(value=1.25 * float(np.max(rates)), width=1.4)


# --- what is left ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Samples that are known, others that are not, and the law's constants by those that are."""

    known: Measured
    unseen: Measured
    law: SampledCollectives

    def of(self, leaves: bool) -> _Part:
        """Those between nodes, or inside a node."""
        known, unseen = ((one.calls.nodes > 1) == leaves for one in (self.known, self.unseen))
        return _Part(known=self.known[known], unseen=self.unseen[unseen], law=self.law)


def _left_out(samples: Measured, medians: Measured, law: SampledCollectives, *, by_ranks: bool) -> list[_Part]:
    """Each number of ranks left out once, or every so many sizes of each curve; none where there is but one."""
    folds, folds_of_medians = (one.calls.ranks if by_ranks else _size_folds(one.calls) for one in (samples, medians))
    parts = []
    for fold in np.unique(folds):
        known = medians[folds_of_medians != fold]
        if len(known):
            estimates = constants(known, law.fabric, start=law.estimates)
            parts.append(_Part(known=known, unseen=samples[folds == fold], law=replace(law, estimates=estimates)))
    return parts


def _size_folds(calls: Calls) -> NDArray[np.intp]:
    """Sizes dealt in turn, by size; those that one median stands for stay together; shape (rows,)."""
    sizes = _sizes(calls)
    return np.searchsorted(np.unique(sizes), sizes) % NUM_SIZE_FOLDS


def _sizes(calls: Calls) -> NDArray[np.intp]:
    """Logarithms of bytes, rounded: those that are equal are one size; shape (rows,)."""
    return np.round(PER_OCTAVE * np.log2(calls.nbytes)).astype(np.intp)


def _deviations(own: Measured, law: SampledCollectives, by_ranks: list[_Part], by_sizes: list[_Part]) -> Deviations:
    """What a process learns of the law's error, and how wide intervals must be."""
    left = _calm(own.calls, np.log(own.seconds / law.law(own.calls)))
    sizes_alone = np.arange(len(LENGTHS)) > 0
    apart = likeliest_smoothness(
        own.calls.features, left, lengths=np.where(sizes_alone, APART, LENGTHS), fixed=sizes_alone
    )
    shared = likeliest_smoothness(own.calls.features, left, lengths=LENGTHS)
    # without numbers of ranks that were left out nothing says that curves resemble each other
    is_closer = by_ranks and _error(by_ranks, shared) < min(_error(by_ranks, apart), USABLE)
    smoothness = shared if is_closer else apart
    sizes = own.calls.features[:, :NUM_SIZES]
    near = _widening(by_sizes, smoothness)
    return Deviations(
        process=_process(own.calls, left, smoothness),
        curves=frozenset(own.calls.curves),
        lowest=np.min(sizes, axis=0),
        highest=np.max(sizes, axis=0),
        widening=near,
        widening_elsewhere=max(1.0, near, _widening(by_ranks, smoothness)),  # few numbers of ranks may agree by chance
    )


def _error(parts: list[_Part], smoothness: Smoothness) -> float:
    """Mean over curves of the median error on what was left out."""
    by_curve: dict[tuple[int, int, int], list[float]] = {}
    for part in parts:
        errors, _ = _foretold(part, smoothness)
        for curve, error in zip(part.unseen.calls.curves, errors.tolist(), strict=True):
            by_curve.setdefault(curve, []).append(error)
    return float(np.mean([np.median(errors) for errors in by_curve.values()]))


def _widening(parts: list[_Part], smoothness: Smoothness) -> float:
    scores = [np.divide(*_foretold(part, smoothness)) for part in parts]
    return widening(np.concatenate(scores)) if scores else 1.0


def _foretold(part: _Part, smoothness: Smoothness) -> tuple[Rows, Rows]:
    """Absolute errors of logarithms on what was left out, and the standard deviations foretold for them."""
    calls, law = part.unseen.calls, part.law
    errors = np.log(part.unseen.seconds / law.law(calls))
    variance = np.full(len(calls), smoothness.variance + smoothness.noise)
    if len(part.known):
        known = part.known
        process = _process(known.calls, _calm(known.calls, np.log(known.seconds / law.law(known.calls))), smoothness)
        errors = errors - process.mean(calls.features)
        variance = process.deviation(calls.features) ** 2
    variance = variance + law.estimates.variance(lambda values: law_seconds(values, calls, law.fabric))
    return np.abs(errors), np.sqrt(variance)


def _process(calls: Calls, left: Rows, smoothness: Smoothness) -> GaussianProcess:
    return projected(
        calls.features,
        left,
        lengths=smoothness.lengths,
        variance=smoothness.variance,
        noise=smoothness.noise,
        num_points=NUM_POINTS,
        offset=0.0,
    )


def _calm(calls: Calls, left: Rows) -> Rows:
    """What is left without outliers: near nought, and near the median of the samples of its curve next in size."""
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
