"""The whole report of ``planner study``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

from planner.report.records import Figure, Record, read_from
from planner.report.records.plan import decisions_of, step_ends
from planner.results import Plan
from planner.uncertainty.intervals import COVERAGE
from planner.verbs.plan import FORMAT_VERSION
from planner.verbs.study import Point, Series
from planner.verbs.study_features import Feature


class StudiedPlanRecord(Record):
    """
    The plan of a point.

    Parameters
    ----------
    line
        The plan in one line, as every verb takes it.
    num_devices
        Number of devices that it uses.
    num_idle_devices
        Number of devices that the job holds and the plan leaves idle.
    step_time_seconds
        Time of one optimizer step.
    step_time_interval_seconds
        Bounds between which a measured step lies.
    step_time_interval_probability
        Chance that a measured step lies between them.
    site_links_seconds
        Time of the step in which devices wait for the links between sites; 0 with one site.
    tokens_per_second_per_gpu
        Tokens that one device trains per second.
    mfu
        Model FLOPs over the peak.
    peak_memory_bytes
        Peak of the fullest pipeline rank.
    checkpoint_interval_steps
        Steps from one checkpoint to the next.
    checkpoint_interval_seconds
        Their time without interruptions.
    num_steps
        Optimizer steps of the whole training.
    num_failures
        Mean number of failures of the whole training.
    effective_seconds
        Time with progress.
    interruption_seconds
        Time without progress.
    total_seconds
        Time of the whole training.
    ettr
        Effective training time ratio: effective over total time.
    days
        Time of the whole training in days.
    """

    _inside = ("schedule",)

    line: str = read_from(lambda plan: decisions_of(plan).line)
    num_devices: int = read_from("cluster.num_devices")
    num_idle_devices: int
    step_time_seconds: Figure = read_from("step_seconds")
    step_time_interval_seconds: list[Figure] = read_from(step_ends)
    step_time_interval_probability: Figure = read_from(lambda _: COVERAGE)
    site_links_seconds: Figure
    tokens_per_second_per_gpu: Figure = read_from("tokens_per_second_per_device")
    mfu: Figure
    peak_memory_bytes: Figure = read_from("estimate.device_bytes")
    checkpoint_interval_steps: int = read_from("schedule.interval_steps")
    checkpoint_interval_seconds: Figure = read_from("schedule.interval_seconds")
    num_steps: int
    num_failures: Figure = read_from("schedule.failures")
    effective_seconds: Figure
    interruption_seconds: Figure
    total_seconds: Figure
    ettr: Figure
    days: Figure

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return cast(Plan, self._sources[0])


class FeatureGainRecord(Record):
    """
    A gain with its interval.

    Parameters
    ----------
    fraction
        Share of the other step that the plan saves; negative: a loss.
    low_fraction
        Lower bound of its interval.
    high_fraction
        Upper bound of its interval.
    """

    fraction: Figure
    low_fraction: Figure
    high_fraction: Figure


def _enough_devices(feature: Feature) -> int | None:
    size = getattr(feature.replanned.outcome.conflict, "size", None)
    return size and (size.num_devices_enough if size.num_devices is None else size.num_devices)


class FeatureRecord(Record):
    """
    One feature and its value.

    Parameters
    ----------
    name
        The decision.
    text
        Its value.
    is_in_plan
        True where the plan has it.
    alone
        Gain of the bare plan with this feature over the bare plan of the same degrees; null where it is not known.
    last
        Gain of the plan over the plan that differs in this feature alone.
    other_step_seconds
        Step of that plan.
    other_peak_memory_bytes
        Peak memory of that plan.
    other_broken_rules
        Sentences of the rules that forbid that plan.
    replanned_gain
        Gain of the plan over the fastest plan that differs in this feature; null where none fits.
    status
        Status of the search for it: optimal and infeasible are proven.
    replanned
        Plan of the new search; null where none fits.
    shortage_bytes
        Device memory that the closest strategy lacks where none fits; null where it is not known.
    enough_devices
        Fewest devices on which one fits, where none fits on the job's own; a doubling of these where time ran out. Null
        where none is known.
    """

    name: str
    text: str
    is_in_plan: bool
    alone: FeatureGainRecord | None
    last: FeatureGainRecord
    other_step_seconds: Figure = read_from("other.plan.step_seconds")
    other_peak_memory_bytes: Figure = read_from("other.plan.estimate.device_bytes")
    other_broken_rules: list[str] = read_from("other.broken_rules")
    replanned_gain: FeatureGainRecord | None
    status: str
    replanned: StudiedPlanRecord | None = read_from(lambda feature: next(iter(feature.replanned.plans), None))
    shortage_bytes: Figure | None = read_from(
        lambda feature: getattr(feature.replanned.outcome.conflict, "shortage_bytes", None)
    )
    enough_devices: int | None = read_from(_enough_devices)


def _write_series(report: Any) -> list[Series[StudiedPlanRecord]]:
    """Return the series of a report with the records of their plans."""

    def write(point: Any) -> Point[StudiedPlanRecord]:
        return replace(point, plan=point.plan and StudiedPlanRecord.read(point.plan))

    return [replace(one, points=tuple(map(write, one.points))) for one in report.series]


class StudyRecord(Record):
    """
    The report of planner study.

    Parameters
    ----------
    format_version
        Version of this format.
    kind
        Kind of the report.
    study
        Name of the study.
    job
        Name of the job.
    model
        Name of the model.
    device
        Name of the device.
    num_devices
        Devices of the job.
    status
        Status of the search for the job's own plan: optimal and infeasible are proven.
    base
        The job's own fastest plan; null where there is none.
    series
        The points of each entry that was changed.
    features
        Gains of the features of the plan, and costs of the others.
    notes
        Sentences on assumptions and on parts that do not apply.
    """

    format_version: int = read_from(lambda _: FORMAT_VERSION)
    kind: Literal["study"] = read_from(lambda _: "study")
    study: str = read_from("name")
    job: str = read_from("problem.name")
    model: str = read_from("problem.facts.model.name")
    device: str = read_from("problem.facts.cluster.device.name")
    num_devices: int = read_from("problem.facts.cluster.num_devices")
    status: str
    base: StudiedPlanRecord | None
    series: list[Series[StudiedPlanRecord]] = read_from(_write_series)
    features: list[FeatureRecord]
    notes: list[str]
