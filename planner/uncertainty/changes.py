"""Interval of the ratio of two steps: shared errors cancel, others grow with the difference between the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from functools import cache

from costmodel.record import record, strict_record
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.uncertainty.counts import MATTERS_ABOVE, read_stored, value_of
from planner.uncertainty.intervals import Interval, release_name

TABLE = "changes.json"

SAME_DISTANCE = 1e-9
"""Distance up to which two predictions are equal: sums of equal numbers."""


class Change(StrEnum):
    """Kinds of differences between two strategies or their jobs."""

    DEGREES = "degrees"
    SCHEDULE = "schedule"
    VOCABULARY = "vocabulary"
    SHARDING = "sharding"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"
    DISPATCHER = "token dispatcher"
    GRAPHS = "CUDA graphs"
    EP_OVERLAP = "EP overlap"
    OVERLAP = "other overlap"
    SETTINGS = "settings"
    PRECISION = "precision"
    RELEASE = "release"
    DEVICES = "number of devices"
    BATCH = "batch"
    SEQUENCE = "sequence length"
    DEVICE = "device"
    MODEL = "model"


BY_DECISION: Mapping[str, Change] = {
    **dict.fromkeys(
        ("tp", "cp", "pp", "ep", "etp", "vpp", "group", "mbs", "sequence_parallel", "layout"), Change.DEGREES
    ),
    "schedule": Change.SCHEDULE,
    "vocabulary": Change.VOCABULARY,
    "sharding": Change.SHARDING,
    "recompute": Change.RECOMPUTE,
    "activation_offload": Change.OFFLOAD,
    "optimizer_offload": Change.OFFLOAD,
    "token_dispatcher": Change.DISPATCHER,
    "cuda_graphs": Change.GRAPHS,
    "ep_overlap": Change.EP_OVERLAP,
    **dict.fromkeys(("tp_overlap", "cp_overlap", "pp_overlap", "dp_overlap"), Change.OVERLAP),
}
"""Kind of change of each decision; dp follows from the others and the number of devices."""

BY_SETTING: Mapping[str, Change] = {
    "fp8_param_gather": Change.PRECISION,
    "communication_sms": Change.DISPATCHER,
    "delay_wgrad": Change.EP_OVERLAP,
    "optimizer_group": Change.SHARDING,
    "cp_comm_type": Change.OVERLAP,
    **dict.fromkeys(("offloaded_layers", "offloaded_states", "offloaded_masters", "offload_overlap"), Change.OFFLOAD),
}
"""Settings that belong to a more specific kind of change; all others are ``SETTINGS``."""


@record(frozen=True, kw_only=True, slots=True)
class Costed:
    """
    A strategy with its predicted step.

    Parameters
    ----------
    facts, strategy
        Model, devices and workload; the decisions.
    step_seconds, exposed_seconds
        Its step, and the part of it in each line of the breakdown.
    """

    facts: Facts
    strategy: Strategy
    step_seconds: float
    exposed_seconds: Mapping[str, float]

    @property
    def tokens_per_device(self) -> float:
        """Tokens of a step, per device."""
        work = self.facts.workload
        return work.global_batch_size * work.sequence_length / self.facts.cluster.num_devices


def changes_between(one: Costed, other: Costed) -> frozenset[Change]:
    """Return the kinds of all differences between two strategies and their jobs."""
    return frozenset(_changes(one, other))


def _changes(one: Costed, other: Costed) -> Iterator[Change]:
    for name, change in BY_DECISION.items():
        ours, theirs = getattr(one.strategy, name), getattr(other.strategy, name)
        if ours != theirs and (name not in MATTERS_ABOVE or _matters_in_both(name, one.strategy, other.strategy)):
            yield change
    yield from _changes_of_jobs(one.facts, other.facts)


def _matters_in_both(name: str, one: Strategy, other: Strategy) -> bool:
    """Return True if a decision has an effect in both; if in only one, a degree differs and counts."""
    return value_of(one, name) is not None and value_of(other, name) is not None


def _changes_of_jobs(one: Facts, other: Facts) -> Iterator[Change]:
    ours, theirs = one.cluster, other.cluster
    for field in fields(ours.settings):
        if getattr(ours.settings, field.name) != getattr(theirs.settings, field.name):
            yield BY_SETTING.get(field.name, Change.SETTINGS)
    pairs = {
        Change.PRECISION: (one.workload.precision.name, other.workload.precision.name),
        Change.RELEASE: (release_name(ours), release_name(theirs)),
        Change.DEVICES: (ours.num_devices, theirs.num_devices),
        Change.BATCH: (one.workload.global_batch_size, other.workload.global_batch_size),
        Change.SEQUENCE: (one.workload.sequence_length, other.workload.sequence_length),
        Change.DEVICE: (ours.device.name, theirs.device.name),
        Change.MODEL: (one.model.kinds, other.model.kinds),
    }
    yield from (change for change, (mine, others) in pairs.items() if mine != others)
    if ours.framework == theirs.framework and ours.device != theirs.device:  # a release differs by device
        yield Change.DEVICE


def distance(one: Costed, other: Costed) -> float:
    """
    Return the share of a step in which the predicted steps of two strategies differ, by device and token, line by line.

    Longer and shorter lines both count, so two strategies may be far apart and equally fast. It is 0 if every line
    takes equal time in both.
    """
    names = {*one.exposed_seconds, *other.exposed_seconds}
    ours, theirs = 1 / one.tokens_per_device, 1 / other.tokens_per_device
    apart = sum(
        abs(one.exposed_seconds.get(name, 0.0) * ours - other.exposed_seconds.get(name, 0.0) * theirs) for name in names
    )
    return apart / math.sqrt(one.step_seconds * ours * other.step_seconds * theirs)


# --- the law -----------------------------------------------------------------------------------------------


@strict_record(frozen=True, kw_only=True, slots=True)
class Factor:
    """
    Errors of one kind of change, relative to those of all kinds.

    Parameters
    ----------
    change
        The kind.
    factor
        Its errors over those of the law.
    groups, pairs
        Groups and pairs of measured runs with this change.
    alone
        True where these change nothing else; if not, each kind of change has an equal part of the square of their
        error.
    """

    change: Change
    factor: float
    groups: int
    pairs: int
    alone: bool


@strict_record(frozen=True, kw_only=True, slots=True)
class ChangeErrors:
    r"""
    Errors of ratios of two steps.

    .. math:: h^2 = h_{release}^2 + \sum_{k} f_k^2 (n^2 + r^2 D)

    h is half of the 80 % interval of the logarithm, the sum goes over the kinds of change k, D is the distance of the
    two predictions. Derivation: a step is a sum of parts that are predicted with independent errors. Equal parts of
    both steps cancel. The squares of the other errors add up, so that the square grows with the differing share of the
    step. Kinds of change are independent, so their squares add up, too. A release changes effects without a formula:
    its error does not depend on the distance.

    Parameters
    ----------
    source
        The command that measured them, and the runs.
    floor, rate, release
        n, r and the error of a release.
    factors
        Kinds of change with enough groups.
    other
        The factor of all other kinds.
    coverage
        Share of pairs inside the intervals from pairs of other sources.
    """

    source: str
    floor: float
    rate: float
    release: float
    factors: tuple[Factor, ...]
    other: float
    coverage: dict[str, float]

    def half_width(self, changes: frozenset[Change], apart: float, *, num_unshown: int = 0) -> float:
        """
        Return half of the interval of the logarithm of a ratio.

        Parameters
        ----------
        changes, apart
            Kinds of change, and the distance of the two predictions.
        num_unshown
            Features of only one of the two with few or no runs: one more kind of change each.
        """
        known = {one.change: one.factor for one in self.factors}
        factors = [known.get(change, self.other) for change in changes if change != Change.RELEASE]
        factors += [self.other] * num_unshown
        if not factors and apart > SAME_DISTANCE:
            factors = [self.other]
        variance = sum(factor**2 for factor in factors) * (self.floor**2 + self.rate**2 * apart)
        return math.sqrt(variance + (self.release**2 if Change.RELEASE in changes else 0.0))


@cache
def change_errors() -> ChangeErrors:
    """Return the project's errors of ratios."""
    return read_stored(ChangeErrors, TABLE, "planner.uncertainty")


def ratio_interval(
    first: Costed, second: Costed, own: tuple[Interval, Interval], *, num_unshown: int = 0
) -> tuple[float, float, str]:
    """
    Return both ends of the interval of a measured ratio of two steps over the predicted one, and its errors in words.

    It is never wider than for independent errors of both steps; both ends are 1 for one strategy of one job.

    Parameters
    ----------
    first, second
        Both predictions.
    own
        Intervals of the two steps.
    num_unshown
        Features of only one of the two with few or no runs.
    """
    changes, errors = changes_between(first, second), change_errors()
    ours, theirs = (_logs(one, interval) for one, interval in zip((first, second), own, strict=True))
    low, high = -math.hypot(theirs[0], ours[1]), math.hypot(theirs[1], ours[0])
    basis = "errors of the two steps, taken as independent"
    if Change.MODEL not in changes:
        half = errors.half_width(changes, distance(first, second), num_unshown=num_unshown)
        if -half > low or half < high:
            low, high, basis = max(low, -half), min(high, half), _basis(errors, changes)
    return math.exp(low), math.exp(high), basis


def _logs(one: Costed, interval: Interval) -> tuple[float, float]:
    low, high = interval.low_seconds, interval.high_seconds
    return min(math.log(low / one.step_seconds), 0.0), max(math.log(high / one.step_seconds), 0.0)


def _basis(errors: ChangeErrors, changes: frozenset[Change]) -> str:
    if not changes:
        return "both are the same strategy for the same job"
    known = {one.change: one for one in errors.factors}
    shown = [
        f"{change} ({known[change].pairs:,} pairs)" if change in known else str(change) for change in sorted(changes)
    ]
    return f"errors of ratios of measured runs that differ in {', '.join(shown)}"
