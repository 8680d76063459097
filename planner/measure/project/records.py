"""Records of a projection's JSON."""

from __future__ import annotations

from collections.abc import Iterator

from planner.measure.project.anchor import Anchor, AnchorRun
from planner.measure.project.projected import Projection
from planner.report.records.record import Figure, Record, entry
from planner.uncertainty.intervals import COVERAGE


class ProjectedIntervalRecord(Record):
    """Interval of the measured step."""

    low_seconds: Figure = entry("Its lower end.")
    high_seconds: Figure = entry("Its upper end.")
    basis: str = entry("Measured runs behind the interval.")
    probability: Figure = entry("Share of measured steps that lie between the ends.")


class ProjectedPartRecord(Record):
    """One line of the job's step."""

    name: str = entry("Name of the line.")
    model_seconds: Figure = entry("Exposed seconds without the small runs.")
    seconds: Figure = entry("Exposed seconds with them.")
    measured_fraction: Figure = entry("Share of it that a small run measured directly.")


class SmallRunRecord(Record):
    """One small run, measured and predicted."""

    name: str = entry("Name of the run.", "case.run.id")
    measured_seconds: Figure | None = entry("Measured step; null where only its memory was measured.")
    model_seconds: Figure = entry("Step predicted without the small runs.")
    anchored_seconds: Figure = entry("Step predicted with them.")
    measured_bytes: Figure | None = entry("Measured peak; null where it was not measured.")
    model_bytes: Figure = entry("Peak predicted without them, as the measurement would see it.")
    noise: Figure = entry("Standard deviation of the logarithm with which its time applies to the job.")
    differences: list[str] = entry("Differences from the job beyond its size.")
    doubts: list[str] = entry("Doubts about the run.")

    @classmethod
    def of(cls, one: AnchorRun) -> SmallRunRecord:
        """Build the record of a run."""
        return cls.read(one, differences=list(one.differences), doubts=list(one.case.run.doubts))


class MovedRecord(Record):
    """A constant that the small runs moved."""

    field: str = entry("Its dotted name in a calibration.")
    before: Figure = entry("Its value without them.")
    after: Figure = entry("Its value with them.")


class ProjectionRecord(Record):
    """Answer of ``planner trace project``."""

    step_seconds: Figure = entry("The projected step.")
    step_seconds_of_model: Figure = entry("The step without the small runs.", "model.plan.step_seconds")
    interval: ProjectedIntervalRecord = entry("Interval of the measured step.")
    measured_fraction: Figure = entry("Share of the step's seconds that was measured directly.")
    noise: Figure = entry("Standard deviation of the logarithm of repeated runs.", "anchor.noise")
    open_deviation: Figure = entry("Standard deviation of the logarithm from uncertain constants.")
    peak_bytes: Figure = entry("The projected peak of the fullest device.")
    peak_bytes_of_model: Figure = entry("The peak without the small runs.", "model.plan.estimate.device_bytes")
    most_peak_bytes: Figure | None = entry("Upper bound of the peak; null where no peak was measured.")
    memory_bytes: Figure = entry("Memory of a device.", "report.plan.memory_bytes")
    parts: list[ProjectedPartRecord] = entry("The job's step, line by line.")
    small_runs: list[SmallRunRecord] = entry("The small runs.")
    constants: list[MovedRecord] = entry("The constants that changed.")
    advice: list[str] = entry("Advice on further small runs.")

    @classmethod
    def of(cls, found: Projection) -> ProjectionRecord:
        """Build the record of a projection."""
        return cls.read(
            found,
            interval=ProjectedIntervalRecord.read(found.interval, probability=COVERAGE),
            parts=list(found.parts),
            small_runs=[SmallRunRecord.of(one) for one in found.anchor.runs],
            constants=list(found.anchor.moved),
            advice=list(advice_lines(found.anchor)),
        )


def advice_lines(found: Anchor) -> Iterator[str]:
    """Advise a run with another number of layers if all have the same: it separates a layer's seconds from a step's."""
    counts = {one.case.facts.model.num_layers for one in found.timed}
    if len(counts) == 1:
        yield (
            f"all small runs have {_layers(counts.pop())}, so seconds of a layer cannot be separated from those of a "
            "step: add a run with another number of layers"
        )


def _layers(number: int) -> str:
    return f"{number} layers" if number > 1 else "1 layer"
