"""Ground of a gain: its certainty, its share from unproven features, and measured runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import SpecError
from costmodel.strategy import DECISIONS, Strategy
from planner.results import Plan
from planner.uncertainty.changes import Change, Costed, changes_between, ratio_interval
from planner.uncertainty.evidence.features import unproven_of
from planner.uncertainty.evidence.ground import Gap
from planner.uncertainty.intervals import COVERAGE, widens
from planner.uncertainty.measured import Match, nearest_run
from planner.verbs.plan import judge_strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class UnprovenPart:
    """
    Part of a gain that rests on one unproven feature of the better plan.

    Parameters
    ----------
    text, names
        The feature in words; its decisions.
    fraction
        Lost part of the gain if these decisions are as in the given strategy; all of it if the plan cannot run so.
    is_needed
        True where the plan cannot run without it.
    """

    text: str
    names: tuple[str, ...]
    fraction: float
    is_needed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSide:
    """
    A measured run of one of the two strategies.

    Parameters
    ----------
    is_given
        True for the given strategy's run, False for the better plan's.
    match
        The run, and its differences.
    corrected_seconds
        Predicted step of the strategy, corrected by the model's error on the run. Without differences it is the
        measured step itself.
    """

    is_given: bool
    match: Match
    corrected_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """
    Share of the given strategy's step that another plan saves, with its ground.

    If the steps train different numbers of tokens, the share is of the device time per token.

    Parameters
    ----------
    fraction
        Predicted share; negative: a loss.
    low_fraction, high_fraction
        Ends of its interval, which holds the measured gain with a probability of ``COVERAGE``.
    basis
        Errors from which the interval follows.
    changes
        Kinds of all differences.
    unproven
        Features of the better plan alone that no measured run has, the largest part first.
    unproven_fraction
        Lost part of the gain without all of them.
    measured
        Measured runs of the two.
    measured_fraction
        Gain corrected by the model's errors on these runs; None without any.
    """

    fraction: float
    low_fraction: float
    high_fraction: float
    basis: str
    changes: tuple[Change, ...]
    unproven: tuple[UnprovenPart, ...] = ()
    unproven_fraction: float = 0.0
    measured: tuple[MeasuredSide, ...] = ()
    measured_fraction: float | None = None

    @property
    def probability(self) -> float:
        """Chance that the measured gain lies in the interval."""
        return COVERAGE

    @property
    def is_sure(self) -> bool:
        """True where the interval lies on one side of zero: one of the two is faster beyond doubt."""
        return self.low_fraction > 0 or self.high_fraction < 0


def gain_of(given: Plan, best: Plan) -> Gain:
    """Return the gain of a plan over a given one, with its ground."""
    gain = gain_interval(given, best)
    seconds_per_token = _token_ratio(given, best)
    parts = tuple(_unproven_parts(given, best, gain.fraction)) if gain.fraction > 0 else ()
    measured = tuple(_find_measured(given, best))
    corrected = {one.is_given: one.corrected_seconds for one in measured}
    ours, theirs = corrected.get(True, given.step_seconds), corrected.get(False, best.step_seconds)
    return replace(
        gain,
        unproven=tuple(sorted(parts, key=lambda part: -part.fraction)),
        unproven_fraction=_loss_without(given, best, parts, gain.fraction)[0] if parts else 0.0,
        measured=measured,
        measured_fraction=1 - theirs / ours * seconds_per_token if measured else None,
    )


def gain_interval(given: Plan, best: Plan) -> Gain:
    """Return the gain of a plan over a given one, with its interval alone."""
    ours, theirs = _cost(given), _cost(best)
    apart = {*map(_name, filter(widens, given.gaps))} ^ {*map(_name, filter(widens, best.gaps))}
    interval = ratio_interval(ours, theirs, (given.interval, best.interval), num_unshown=len(apart))
    ratio = (1 + best.slower_fraction(given)) * _token_ratio(given, best)
    return Gain(
        fraction=1 - ratio,
        low_fraction=1 - ratio * interval.high,
        high_fraction=1 - ratio * interval.low,
        basis=interval.basis,
        changes=tuple(sorted(changes_between(ours, theirs))),
    )


def _token_ratio(given: Plan, best: Plan) -> float:
    """Return the factor from the ratio of two steps to the ratio of device times per token."""
    return _cost(given).tokens_per_device / _cost(best).tokens_per_device if _is_scaled(given, best) else 1.0


def _is_scaled(given: Plan, best: Plan) -> bool:
    ours, theirs = given.facts.workload, best.facts.workload
    return (ours.global_batch_size, ours.sequence_length) != (theirs.global_batch_size, theirs.sequence_length)


def _cost(plan: Plan) -> Costed:
    exposed = {part.name: part.exposed_seconds for part in plan.estimate.breakdown}
    return Costed(facts=plan.facts, strategy=plan.strategy, step_seconds=plan.step_seconds, exposed_seconds=exposed)


def _name(gap: Gap) -> tuple[str, str]:
    return gap.dimension, gap.value


# --- unproven features -------------------------------------------------------------------------------------


def _unproven_parts(given: Plan, best: Plan, fraction: float) -> Iterator[UnprovenPart]:
    known = {one.text for one in unproven_of(given.facts, given.strategy)}
    for one in unproven_of(best.facts, best.strategy):
        if one.text not in known:
            part = UnprovenPart(text=one.text, names=one.names, fraction=fraction, is_needed=True)
            lost, is_needed = _loss_without(given, best, [part], fraction)
            yield replace(part, fraction=lost, is_needed=is_needed)


def _loss_without(given: Plan, best: Plan, parts: Sequence[UnprovenPart], fraction: float) -> tuple[float, bool]:
    """Return the lost part of the gain if features are as in the given strategy, and a flag: the plan needs them."""
    named = {name for part in parts for name in part.names}
    own = {name: getattr(given.strategy, name) for name in named if name in DECISIONS}
    changed = replace(best.strategy, **own)
    seconds = None if changed == best.strategy else _seconds_with(best, changed)
    if seconds is None:
        return fraction, True
    left = 1 - seconds / given.step_seconds * _token_ratio(given, best)
    return min(max(fraction - left, 0.0), fraction), False


def _seconds_with(best: Plan, strategy: Strategy) -> float | None:
    """Return the step with some decisions changed; None where rules forbid it or it cannot be costed."""
    try:
        found = judge_strategy(best.problem, strategy)
        broken = {*found.broken_rules} - {*judge_strategy(best.problem, best.strategy).broken_rules}
    except SpecError:
        return None
    return None if broken else found.plan.step_seconds


# --- measured runs -----------------------------------------------------------------------------------------


def _find_measured(given: Plan, best: Plan) -> Iterator[MeasuredSide]:
    for plan in (given, best):
        if match := nearest_run(plan.facts, plan.strategy):
            seconds = match.run.step_seconds
            if match.unlike:
                seconds = plan.step_seconds / (1 + match.run.error_fraction)
            yield MeasuredSide(is_given=plan is given, match=match, corrected_seconds=seconds)
