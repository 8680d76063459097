"""Entries on links in a device's file, from samples of collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.facts.samples import Fabric, SampledFabric, SampledTier
from costmodel.network.link_law import KINDS, NUM_SIZES, Calls
from costmodel.network.sampled import Deviations, SampledCollectives
from planner.measure.fit.communication import (
    FEWEST,
    collective_samples,
    collectives_alone,
    learn_collectives,
)
from planner.measure.fit.estimation import Measured
from planner.measure.fit.operators import DIGITS, Unlearned, round_digits
from planner.measure.sample.samples import Sample


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
    return (Unlearned(name="collectives", reason=f"{number} samples; at least {FEWEST} are needed"),)


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
    features, values = process.to_samples()
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
