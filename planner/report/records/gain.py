"""The ground of a gain: its interval, the part from unproven features, measured runs of the two strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.records.record import Figure, Record

if TYPE_CHECKING:
    from planner.verbs.gain import Gain, MeasuredSide


class UnprovenPartRecord(Record):
    """
    Part of a gain that rests on one unproven feature.

    Parameters
    ----------
    text
        The feature in words.
    decisions
        Names of the decisions that make it.
    fraction
        Part of the gain that is lost without it, as a fraction of the given step.
    is_needed
        True if the plan cannot run without it, so that all of the gain rests on it.
    """

    text: str
    decisions: list[str]
    fraction: Figure
    is_needed: bool


class MeasuredSideRecord(Record):
    """
    A measured run with the degrees of one of the two strategies.

    Parameters
    ----------
    side
        given or best.
    id
        The run's name in the project's table.
    source
        Its publisher.
    release
        Its software and release.
    unlike
        Features and release in which it differs from the strategy.
    step_time_seconds
        Its measured step.
    predicted_seconds
        Its step as predicted, as it ran.
    error_fraction
        Predicted over measured step, minus 1.
    corrected_seconds
        The strategy's step with this error taken out.
    """

    side: str
    id: str
    source: str
    release: str
    unlike: list[str]
    step_time_seconds: Figure
    predicted_seconds: Figure
    error_fraction: Figure
    corrected_seconds: Figure

    @classmethod
    def build(cls, side: MeasuredSide) -> MeasuredSideRecord:
        """Build the record of a measured run."""
        run = side.match.run
        return cls.read(
            side, side.match, run, side="given" if side.is_given else "best", step_time_seconds=run.step_seconds
        )


class GainRecord(Record):
    """
    Share of the given step that the best plan saves; per device and token where the two batches differ.

    Parameters
    ----------
    fraction
        Share of the given step that is saved; negative: lost.
    low_fraction
        Lower end of the interval of the measured gain.
    high_fraction
        Upper end of the interval of the measured gain.
    probability
        Chance that the measured gain lies between them.
    is_sure
        True if both ends are on one side of zero, so that one is faster beyond doubt.
    basis
        Errors that the interval follows from.
    changes
        Kinds of everything that differs between the two.
    unproven
        Features of the best plan alone that no measured run shows, the largest part of the gain first.
    unproven_fraction
        Part of the gain that is lost without all of them.
    measured
        Measured runs with the degrees of either strategy.
    measured_fraction
        The gain with the model's errors on them taken out; null without any.
    """

    fraction: Figure
    low_fraction: Figure
    high_fraction: Figure
    probability: Figure
    is_sure: bool
    basis: str
    changes: list[str]
    unproven: list[UnprovenPartRecord]
    unproven_fraction: Figure
    measured: list[MeasuredSideRecord]
    measured_fraction: Figure | None

    @classmethod
    def build(cls, gain: Gain | None) -> GainRecord | None:
        """Build the record of a gain, if there is one."""
        if gain is None:
            return None
        return cls.read(
            gain,
            unproven=[UnprovenPartRecord.read(one, decisions=one.names) for one in gain.unproven],
            measured=[MeasuredSideRecord.build(one) for one in gain.measured],
        )
