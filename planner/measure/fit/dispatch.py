"""Times of token dispatch, learned from samples: constants of a law, its remaining error, and intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from costmodel.network.link_law import Estimates
from costmodel.network.sampled_fabric import (
    PAYLOADS,
    TIERS,
    Exchanges,
    SampledDispatch,
    constant_names,
    seconds_per_byte,
)
from costmodel.timing.gaussian_process import Rows
from planner.measure.fit.law import (
    Errors,
    HeldOutSamples,
    Known,
    Measured,
    estimate_constants,
    likeliest_smoothness,
    require_samples,
    widen_by_folds,
)

FEWEST = 5
"""Fewest samples to learn from."""

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


def learn_dispatch(samples: Measured[Exchanges]) -> SampledDispatch:
    """
    Learn times from samples of token exchanges, of all implementations and devices together.

    Parameters
    ----------
    samples
        Exchanges and their seconds per byte: one over the bandwidth.

    Raises
    ------
    SpecError
        If there are fewer than ``FEWEST`` samples, or SciPy is not installed.
    """
    require_samples(len(samples), "token exchanges", FEWEST)
    law = _law(samples)
    features, left = _clip_dispatch_errors(law, samples)
    smoothness = likeliest_smoothness(features, left, lengths=_lengths(features.shape[1]))
    folds = list(_folds(law, samples))
    wider = max(1.0, widen_by_folds(folds, smoothness.fit_process))
    return replace(law, process=smoothness.fit_process(features, left), widening=wider)


def _folds(law: SampledDispatch, samples: Measured[Exchanges]) -> Iterator[HeldOutSamples]:
    """Hold out each number of ranks once, where others have the implementation."""
    for ranks in np.unique(samples.calls.ranks):
        out = samples.calls.ranks == ranks
        known, unseen = samples[~out], samples[out]
        unseen = unseen[np.isin(unseen.calls.implementations, known.calls.implementations)]
        if len(known) < FEWEST or not len(unseen):
            continue
        part = _law(known, start=law)
        counted = part.known(unseen.calls)
        yield HeldOutSamples(
            known=_clip_dispatch_errors(part, known),
            unseen=(part.features(unseen.calls), np.log(unseen.seconds / part.law(unseen.calls))),
            variance=part.estimates.variance(partial(seconds_per_byte, exchanges=counted)),
        )


def _law(samples: Measured[Exchanges], *, start: SampledDispatch | None = None) -> SampledDispatch:
    """Estimate the constants of the law."""
    exchanges = samples.calls
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
    found = estimate_constants(
        lambda constants: seconds_per_byte(constants, counted),
        samples.seconds,
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


def _clip_dispatch_errors(law: SampledDispatch, samples: Measured[Exchanges]) -> Errors:
    """Return the errors of the law, clipped at ``FAR_OFF`` standard deviations."""
    left = np.log(samples.seconds / law.law(samples.calls))
    most = FAR_OFF * max(1.48 * float(np.median(np.abs(left))), 0.01)
    return law.features(samples.calls), np.clip(left, -most, most)


def _lengths(count: int) -> Rows:
    """Return prior lengths: doublings of ranks and processors, then columns of zeros and ones."""
    return np.array([2.0, 1.5, *[1.5] * (count - 2)])
