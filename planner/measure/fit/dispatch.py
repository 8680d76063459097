"""Times of token dispatch, learned from samples: constants of a law, its remaining error, and intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from costmodel.network.estimates import Estimates
from costmodel.network.sampled_dispatch import (
    PAYLOADS,
    TIERS,
    Exchanges,
    SampledDispatch,
    constant_names,
    seconds_per_byte,
)
from costmodel.timing.gaussian_process import Rows, projected
from planner.measure.fit.estimation import Known, Smoothness, estimated, likeliest_smoothness
from planner.measure.fit.learning import widening

FEWEST = 5
"""Fewest samples to learn from."""

NUM_POINTS = 300
"""Support points of the process."""

FAR_OFF = 6.0
"""Largest deviation of a sample from the law that the process sees, in standard deviations."""

SHARED = {
    "network_efficiency": Known(value=0.88, width=0.1),
    "link_efficiency": Known(value=0.75, width=0.15),
    "link_decay": Known(value=0.03, width=1.0),
    "sharpness.links": Known(value=4.0, width=0.5),
    "sharpness.network": Known(value=4.0, width=0.5),
}
"""Priors of constants that all implementations share: shares of datasheets that large messages reach."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredExchanges:
    """
    Dispatches and combines, and the time of each byte.

    Parameters
    ----------
    exchanges
        The measured exchanges.
    seconds_per_byte
        One over the bandwidth; shape (rows,).
    """

    exchanges: Exchanges
    seconds_per_byte: Rows

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> MeasuredExchanges:
        """Return some of the rows."""
        return MeasuredExchanges(exchanges=self.exchanges[rows], seconds_per_byte=self.seconds_per_byte[rows])

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.seconds_per_byte)


def learned_dispatch(samples: MeasuredExchanges) -> SampledDispatch:
    """
    Learn times from samples of token exchanges, of all implementations and devices together.

    Raises
    ------
    SpecError
        If there are fewer than ``FEWEST`` samples, a time is not a positive number, or SciPy is not installed.
    """
    if not np.all((samples.seconds_per_byte > 0) & np.isfinite(samples.seconds_per_byte)):
        raise SpecError("samples", "some times are not positive numbers.")
    if len(samples) < FEWEST:
        raise SpecError("samples", f"{len(samples)} of token exchanges are too few.", f"At least {FEWEST} are needed.")
    law = _law(samples)
    features, left = law.features(samples.exchanges), _remaining_error(law, samples)
    smoothness = likeliest_smoothness(features, left, lengths=_lengths(features.shape[1]))
    times = _add_process(law, samples, smoothness)
    scores = []
    for ranks in np.unique(samples.exchanges.ranks):
        out = samples.exchanges.ranks == ranks
        known, unseen = samples[~out], samples[out]
        familiar = np.isin(unseen.exchanges.implementations, known.exchanges.implementations)
        if len(known) < FEWEST or not np.any(familiar):
            continue
        part = _add_process(_law(known, start=law), known, smoothness)
        scores.append(_scores(part, unseen[familiar]))
    return replace(times, widening=max(1.0, widening(np.concatenate(scores)))) if scores else times


def _scores(times: SampledDispatch, unseen: MeasuredExchanges) -> Rows:
    errors = np.abs(np.log(times.seconds(unseen.exchanges, 1.0) / unseen.seconds_per_byte))
    scores: Rows = errors / times.relative_deviation(unseen.exchanges)
    return scores


def _law(samples: MeasuredExchanges, *, start: SampledDispatch | None = None) -> SampledDispatch:
    """Estimate the constants of the law."""
    exchanges = samples.exchanges
    names = tuple(start.implementations if start else sorted(set(exchanges.implementations.tolist())))
    kernels, calls = (
        set(exchanges.implementations[rows].tolist()) for rows in (~exchanges.includes_call, exchanges.includes_call)
    )
    known = _priors(names)
    empty = Estimates(names=tuple(known), logarithms=np.zeros(len(known)), covariance=np.eye(len(known)))
    law = SampledDispatch(
        implementations=names,
        devices=tuple(start.devices if start else sorted(set(exchanges.devices.tolist()))),
        with_calls=frozenset(kernels & calls),
        estimates=empty,
    )
    counted = law.known(exchanges)
    found = estimated(
        lambda constants: seconds_per_byte(constants, counted),
        samples.seconds_per_byte,
        known,
        start=start.estimates if start else None,
        scale=0.05,
        related=2.0,
    )
    return replace(law, estimates=found)


def _priors(implementations: tuple[str, ...]) -> dict[str, Known]:
    """Return the priors of the law's constants: a processor copies about 40 GB/s, and a token adds about 1 us."""
    known = dict(SHARED)
    for name in implementations:
        known[f"rank_seconds.{name}"] = Known(value=3e-9, width=1.5)
        for tier in TIERS:
            own, far = f"{name}.{tier}", tier == "network"
            known[f"processor_bandwidth.{own}"] = Known(value=40e9, width=0.8)
            for payload in PAYLOADS:
                known[f"token_seconds.{payload}.{own}"] = Known(value=1e-6 if far else 0.3e-6, width=0.8)
            known[f"call_token_seconds.{own}"] = Known(value=20e-9 if far else 3e-9, width=1.0)
            known[f"call_seconds_per_byte.{own}"] = Known(value=1.5e-12 if far else 0.2e-12, width=1.0)
    return {name: known[name] for name in constant_names(implementations)}


def _remaining_error(law: SampledDispatch, samples: MeasuredExchanges) -> Rows:
    """Return logarithms of measured over computed times, clipped at ``FAR_OFF`` standard deviations."""
    left = np.log(samples.seconds_per_byte / law.law(samples.exchanges))
    most = FAR_OFF * max(1.48 * float(np.median(np.abs(left))), 0.01)
    return np.clip(left, -most, most)


def _lengths(count: int) -> Rows:
    """Return prior lengths: doublings of ranks and processors, then columns of zeros and ones."""
    return np.array([2.0, 1.5, *[1.5] * (count - 2)])


def _add_process(law: SampledDispatch, samples: MeasuredExchanges, smoothness: Smoothness) -> SampledDispatch:
    process = projected(
        law.features(samples.exchanges),
        _remaining_error(law, samples),
        lengths=smoothness.lengths,
        variance=smoothness.variance,
        noise=smoothness.noise,
        num_points=NUM_POINTS,
        offset=0.0,
    )
    return replace(law, process=process)
