"""The ground of a gain: its interval, the part from unproven features, measured runs of the two strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.records.record import Figure, Record, entry

if TYPE_CHECKING:
    from planner.verbs.gain import Gain, MeasuredSide


class UnprovenPartRecord(Record):
    """Part of a gain that rests on one unproven feature."""

    text: str = entry("The feature in words.")
    decisions: list[str] = entry("Names of the decisions that make it.", "names")
    fraction: Figure = entry("Part of the gain that is lost without it, as a fraction of the given step.")
    is_needed: bool = entry("True if the plan cannot run without it, so that all of the gain rests on it.")


class MeasuredSideRecord(Record):
    """A measured run with the degrees of one of the two strategies."""

    side: str = entry("given or best.")
    id: str = entry("The run's name in the project's table.", "match.run.id")
    source: str = entry("Its publisher.", "match.run.source")
    release: str = entry("Its software and release.", "match.run.release")
    unlike: list[str] = entry("Features and release in which it differs from the strategy.", "match.unlike")
    step_time_seconds: Figure = entry("Its measured step.", "match.run.step_seconds")
    predicted_seconds: Figure = entry("Its step as predicted, as it ran.", "match.run.predicted_seconds")
    error_fraction: Figure = entry("Predicted over measured step, minus 1.", "match.run.error_fraction")
    corrected_seconds: Figure = entry("The strategy's step with this error taken out.")

    @classmethod
    def build(cls, side: MeasuredSide) -> MeasuredSideRecord:
        """Build the record of a measured run."""
        return cls.read(side, side="given" if side.is_given else "best")


class GainRecord(Record):
    """Share of the given step that the best plan saves; per device and token where the two batches differ."""

    fraction: Figure = entry("Share of the given step that is saved; negative: lost.")
    low_fraction: Figure = entry("Lower end of the interval of the measured gain.")
    high_fraction: Figure = entry("Upper end of the interval of the measured gain.")
    probability: Figure = entry("Chance that the measured gain lies between them.")
    is_sure: bool = entry("True if both ends are on one side of zero, so that one is faster beyond doubt.")
    basis: str = entry("Errors that the interval follows from.")
    changes: list[str] = entry("Kinds of everything that differs between the two.")
    unproven: list[UnprovenPartRecord] = entry(
        "Features of the best plan alone that no measured run shows, the largest part of the gain first."
    )
    unproven_fraction: Figure = entry("Part of the gain that is lost without all of them.")
    measured: list[MeasuredSideRecord] = entry("Measured runs with the degrees of either strategy.")
    measured_fraction: Figure | None = entry("The gain with the model's errors on them taken out; null without any.")

    @classmethod
    def build(cls, gain: Gain | None) -> GainRecord | None:
        """Build the record of a gain, if there is one."""
        if gain is None:
            return None
        return cls.read(
            gain,
            changes=[change.value for change in gain.changes],
            measured=[MeasuredSideRecord.build(one) for one in gain.measured],
        )
