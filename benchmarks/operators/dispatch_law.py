"""
Times of token dispatch by a law: links, copies to ranks inside a node, and copying processors.

The constants of the law and its remaining error are learned from samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError, did_you_mean
from costmodel.network.link_law import Estimates
from costmodel.record import record
from costmodel.tables import Table
from costmodel.timing.gaussian_process import GaussianProcess, Rows
from costmodel.timing.sampled_source import NORMAL_90
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

PAYLOADS = ("fp8", "bf16", "combine")

"""Payloads: tokens to experts in eight or sixteen bits, or experts' outputs back, summed on the way."""

TIERS = ("links", "network")

"""Tiers: all ranks share a scale-up domain, or nodes exchange tokens over network adapters."""

NODE = 8

"""Number of devices for which the links' efficiency is given."""


@record(frozen=True, kw_only=True, slots=True)
class Exchanges(Table):
    """
    Dispatches and combines, one per row.

    Parameters
    ----------
    implementations, devices
        Names of the library that exchanges tokens, and of the device; shape (rows,).
    payloads
        Places in ``PAYLOADS``; shape (rows,).
    ranks, nodes
        Devices that exchange tokens, and the number of their nodes; shape (rows,).
    processors
        Multiprocessors that copy; shape (rows,).
    token_bytes
        Bytes of a token with its scales; shape (rows,).
    top_k
        Experts that a token visits; shape (rows,).
    includes_call
        True if the time is that of the call, including the work around the exchange; shape (rows,).
    link_bandwidth, network_bandwidth
        Bytes per second that a device sends by its links and by its adapter, from datasheets; shape (rows,).
    """

    implementations: NDArray[np.str_]
    devices: NDArray[np.str_]
    payloads: NDArray[np.intp]
    ranks: Rows
    nodes: Rows
    processors: Rows
    token_bytes: Rows
    top_k: Rows
    includes_call: NDArray[np.bool_]
    link_bandwidth: Rows
    network_bandwidth: Rows

    @property
    def leaves(self) -> NDArray[np.bool_]:
        """True where tokens are exchanged between nodes; shape (rows,)."""
        leaves: NDArray[np.bool_] = self.nodes > 1
        return leaves


def num_visited_places(places: Rows, top_k: Rows) -> Rows:
    r"""
    Number of different places among m that k choices visit; shape (rows,).

    .. math:: u(m) = m (1 - (1 - 1/m)^k)

    Derivation: a place is missed by all k with a chance of :math:`(1 - 1/m)^k`. All places are equally likely, and each
    has so many experts that one choice hardly affects the next.
    """
    number: Rows = places * (1 - (1 - 1 / places) ** top_k)
    return number


def constant_names(implementations: tuple[str, ...]) -> tuple[str, ...]:
    """
    Return the names of the law's constants.

    Parameters
    ----------
    implementations
        Names of implementations; each has its own constants.
    """
    shared = ("network_efficiency", "link_efficiency", "link_decay", *(f"sharpness.{tier}" for tier in TIERS))
    own = [
        f"{name}.{implementation}.{tier}"
        for implementation in implementations
        for tier in TIERS
        for name in (
            "processor_bandwidth",
            *(f"token_seconds.{payload}" for payload in PAYLOADS),
            "call_token_seconds",
            "call_seconds_per_byte",
        )
    ]
    return (*shared, *own, *(f"rank_seconds.{implementation}" for implementation in implementations))


def seconds_per_byte(constants: Mapping[str, float], exchanges: Exchanges) -> Rows:
    r"""
    Seconds for each byte that a rank exchanges: once to each target node or, inside a node, to each rank.

    .. math:: T / Q = (l^s + f^s + c^s)^{1/s} + o

    Links, fan-out and copies work at the same time, so that the slowest counts, and s sets how sharply.

    - Links l. One share of the bytes that a rank sends to N nodes stays at home: :math:`l = (N - 1) / (N e B_d)`.
    Inside
      one node, n ranks: :math:`l = (n - 1) / (n e' B_1) \cdot (n / 8)^d`.
    - Fan-out f of a network: each byte that arrives at a node is copied over its links to all target ranks. It is
    :math:`f = u(n) / (u(N) e' B_1)` (:func:`num_visited_places`).
    - Copies c. One of P processors passes a token of b bytes in b / r + t seconds. With scales inside a node it takes
      :math:`t_n n` more: :math:`c = (1 / r + (t + t_n n) / b) / P`.
    - Work of a call around the exchange, o: seconds per token and per byte.

    Derivation: bytes over bandwidths of each part; a power mean lies between the maximum and the sum.

    References
    ----------
    DeepEP, README.md and docs/README_Hybrid-EP.md: bandwidths and how they are counted. DeepSeek-V3, arXiv:2412.19437,
    section 3.2.2: over InfiniBand to each node once, then over NVLink.
    """
    leaves, ranks, nodes = exchanges.leaves, exchanges.ranks, exchanges.nodes
    network = constants["network_efficiency"] * exchanges.network_bandwidth
    links = constants["link_efficiency"] * exchanges.link_bandwidth
    inside = (ranks - 1) / ranks / links * (ranks / NODE) ** constants["link_decay"]
    link = np.where(leaves, (nodes - 1) / nodes / network, inside)
    fan = np.where(
        leaves, num_visited_places(ranks, exchanges.top_k) / num_visited_places(nodes, exchanges.top_k) / links, 0.0
    )
    copies = _copying(constants, exchanges)
    sharpness = np.where(leaves, constants["sharpness.network"], constants["sharpness.links"])
    busy = (link**sharpness + fan**sharpness + copies**sharpness) ** (1 / sharpness)
    around = _own(constants, "call_token_seconds", exchanges) / exchanges.token_bytes + _own(
        constants, "call_seconds_per_byte", exchanges
    )
    seconds: Rows = busy + np.where(exchanges.includes_call, around, 0.0)
    return seconds


def _copying(constants: Mapping[str, float], exchanges: Exchanges) -> Rows:
    """Return the seconds per byte of the copying processors; shape (rows,)."""
    tokens = np.array([_own(constants, f"token_seconds.{payload}", exchanges) for payload in PAYLOADS])
    scaled = (exchanges.payloads == PAYLOADS.index("fp8")) & ~exchanges.leaves
    ranks = np.array([constants[f"rank_seconds.{name}"] for name in exchanges.implementations.tolist()])
    each = tokens[exchanges.payloads, np.arange(len(exchanges))] + np.where(scaled, ranks * exchanges.ranks, 0.0)
    copying: Rows = 1 / _own(constants, "processor_bandwidth", exchanges) + each / exchanges.token_bytes
    return copying / exchanges.processors


def _own(constants: Mapping[str, float], name: str, exchanges: Exchanges) -> Rows:
    """Return a constant of each row's implementation and tier; shape (rows,)."""
    pairs = zip(exchanges.implementations.tolist(), exchanges.leaves.tolist(), strict=True)
    return np.array([constants[f"{name}.{implementation}.{TIERS[leaves]}"] for implementation, leaves in pairs])


@record(frozen=True, kw_only=True, slots=True)
class SampledDispatch:
    r"""
    Seconds of dispatches and combines, learned from samples.

    .. math:: T = T_{law} \cdot e^{g(x)}

    Parameters
    ----------
    implementations, devices
        Sampled implementations and devices.
    with_calls
        Implementations whose kernels and calls were both timed, so that the law knows the time of calls. For others all
        times are taken as they are.
    estimates
        Estimates of the law's constants (:func:`constant_names`).
    process
        Gaussian process of the logarithm of measured over computed seconds, by :meth:`features`.
    widening
        Factor on the standard deviation, so that a 90 % interval holds 90 % of the left-out numbers of ranks.
    """

    implementations: tuple[str, ...]
    devices: tuple[str, ...]
    with_calls: frozenset[str]
    estimates: Estimates
    process: GaussianProcess | None = None
    widening: float = 1.0

    def seconds(self, exchanges: Exchanges, nbytes: Rows | float) -> Rows:
        """
        Return the expected seconds; shape (rows,).

        Parameters
        ----------
        exchanges
            Dispatches and combines.
        nbytes
            Bytes of a rank, as in :func:`seconds_per_byte`.

        Raises
        ------
        SpecError
            If an implementation was not sampled.
        """
        learned = self.process.mean(self.features(exchanges)) if self.process else 0.0
        seconds: Rows = nbytes * self.law(exchanges) * np.exp(learned)
        return seconds

    def law(self, exchanges: Exchanges) -> Rows:
        """Return the seconds per byte of the law alone; shape (rows,)."""
        return seconds_per_byte(self.estimates.values, self.known(exchanges))

    def relative_deviation(self, exchanges: Exchanges) -> Rows:
        """Return the standard deviation of the logarithm of a measured time; shape (rows,)."""
        variance = self.process.deviation(self.features(exchanges)) ** 2 if self.process else np.zeros(len(exchanges))
        known = self.known(exchanges)
        variance = variance + self.estimates.variance(lambda constants: seconds_per_byte(constants, known))
        deviation: Rows = self.widening * np.sqrt(variance)
        return deviation

    def interval(self, exchanges: Exchanges, nbytes: Rows | float) -> tuple[Rows, Rows]:
        """Return the 90 % interval of measured times, in seconds; each of shape (rows,)."""
        seconds, factor = self.seconds(exchanges, nbytes), np.exp(NORMAL_90 * self.relative_deviation(exchanges))
        return seconds / factor, seconds * factor

    def known(self, exchanges: Exchanges) -> Exchanges:
        """Return the exchanges, with the time of calls only for implementations whose calls were sampled."""
        unknown = sorted(set(exchanges.implementations.tolist()) - set(self.implementations))
        if unknown:
            hint = did_you_mean(unknown[0], self.implementations)
            raise SpecError("implementation", f"{unknown[0]!r} was not sampled.", hint)
        calls = exchanges.includes_call & np.isin(exchanges.implementations, list(self.with_calls))
        fields = {name: getattr(exchanges, name) for name in exchanges.__slots__}
        return Exchanges(**{**fields, "includes_call": calls})

    def features(self, exchanges: Exchanges) -> Rows:
        """Return log2 of ranks and processors; payload, timing, tier, implementation and device as columns."""
        columns = [
            np.log2(exchanges.ranks),
            np.log2(exchanges.processors),
            *(exchanges.payloads == place for place in range(len(PAYLOADS) - 1)),
            exchanges.includes_call,
            exchanges.leaves,
            *(exchanges.implementations == name for name in self.implementations),
            *(exchanges.devices == name for name in self.devices),
        ]
        return np.column_stack(columns).astype(float)


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
