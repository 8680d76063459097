"""The whole report of ``planner study``."""

from __future__ import annotations

from typing import Literal, cast

from constraints.conflict import Size
from planner.report.records import Figure, Record
from planner.report.records.plan import StrategyRecord
from planner.results import Plan
from planner.uncertainty.intervals import COVERAGE
from planner.verbs.compare import Gain
from planner.verbs.plan import FORMAT_VERSION
from planner.verbs.study_features import Feature
from planner.verbs.study_points import Point, Series, StudyReport


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

    line: str
    num_devices: int
    num_idle_devices: int
    step_time_seconds: Figure
    step_time_interval_seconds: list[Figure]
    step_time_interval_probability: Figure
    site_links_seconds: Figure
    tokens_per_second_per_gpu: Figure
    mfu: Figure
    peak_memory_bytes: Figure
    checkpoint_interval_steps: int
    checkpoint_interval_seconds: Figure
    num_steps: int
    num_failures: Figure
    effective_seconds: Figure
    interruption_seconds: Figure
    total_seconds: Figure
    ettr: Figure
    days: Figure

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return cast(Plan, self._sources[0])

    @classmethod
    def build(cls, plan: Plan | None) -> StudiedPlanRecord | None:
        """Build the record of a plan; None without one."""
        if plan is None:
            return None
        return cls.read(
            plan,
            plan.schedule,
            line=StrategyRecord.build(plan.problem, plan.strategy).line,
            num_devices=plan.cluster.num_devices,
            step_time_seconds=plan.step_seconds,
            step_time_interval_seconds=[plan.interval.low_seconds, plan.interval.high_seconds],
            step_time_interval_probability=COVERAGE,
            tokens_per_second_per_gpu=plan.tokens_per_second_per_device,
            peak_memory_bytes=plan.estimate.device_bytes,
            checkpoint_interval_steps=plan.schedule.interval_steps,
            checkpoint_interval_seconds=plan.schedule.interval_seconds,
            num_failures=plan.schedule.failures,
        )


class PointRecord(Record):
    """
    The fastest plan for one value of an entry.

    Parameters
    ----------
    value
        The value as a number, in the entry's base unit.
    text
        The value as it was written.
    status
        Status of its search: optimal and infeasible are proven.
    reason
        Reason that there is no plan, besides its status; empty for others.
    linearity_fraction
        Throughput of one device over that of the first point; null where the scale is not studied.
    plan
        The plan; null where there is none.
    """

    value: Figure
    text: str
    status: str
    reason: str
    linearity_fraction: Figure | None
    plan: StudiedPlanRecord | None

    @classmethod
    def build(cls, point: Point) -> PointRecord:
        """Build the record of a point."""
        return cls.read(point, plan=StudiedPlanRecord.build(point.plan))


class SeriesRecord(Record):
    """
    The points of one entry of the job.

    Parameters
    ----------
    name
        Word of the entry on the command line.
    label
        Words of the entry, with its unit.
    own
        The job's own value; null where it is not among the points.
    points
        Points in ascending order of their values.
    """

    name: str
    label: str
    own: Figure | None
    points: list[PointRecord]

    @classmethod
    def build(cls, series: Series) -> SeriesRecord:
        """Build the record of a series."""
        return cls.read(series, points=[PointRecord.build(one) for one in series.points])


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

    @classmethod
    def build(cls, gain: Gain | None) -> FeatureGainRecord | None:
        """Build the record of a gain; None without one."""
        return cls.read(gain) if gain else None


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
        That plan; null where none fits.
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
    other_step_seconds: Figure
    other_peak_memory_bytes: Figure
    other_broken_rules: list[str]
    replanned_gain: FeatureGainRecord | None
    status: str
    replanned: StudiedPlanRecord | None
    shortage_bytes: Figure | None
    enough_devices: int | None

    @classmethod
    def build(cls, feature: Feature) -> FeatureRecord:
        """Build the record of a feature."""
        conflict = feature.replanned.outcome.conflict
        return cls.read(
            feature,
            alone=FeatureGainRecord.build(feature.alone),
            other_step_seconds=feature.other.plan.step_seconds,
            other_peak_memory_bytes=feature.other.plan.estimate.device_bytes,
            other_broken_rules=list(feature.other.broken_rules),
            replanned_gain=FeatureGainRecord.build(feature.replanned_gain),
            replanned=StudiedPlanRecord.build(next(iter(feature.replanned.plans), None)),
            shortage_bytes=conflict.shortage_bytes if conflict else None,
            enough_devices=_enough_devices(conflict.size) if conflict and conflict.size else None,
        )


def _enough_devices(size: Size) -> int | None:
    return size.num_enough if size.num_devices is None else size.num_devices


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

    format_version: int
    kind: Literal["study"]
    study: str
    job: str
    model: str
    device: str
    num_devices: int
    status: str
    base: StudiedPlanRecord | None
    series: list[SeriesRecord]
    features: list[FeatureRecord]
    notes: list[str]

    @classmethod
    def build(cls, report: StudyReport) -> StudyRecord:
        """Build the record of a study."""
        facts = report.problem.facts
        return cls.read(
            report,
            format_version=FORMAT_VERSION,
            kind="study",
            study=report.name,
            job=report.problem.name,
            model=facts.model.name,
            device=facts.cluster.device.name,
            num_devices=facts.cluster.num_devices,
            base=StudiedPlanRecord.build(report.base),
            series=[SeriesRecord.build(one) for one in report.series],
            features=[FeatureRecord.build(one) for one in report.features],
            notes=list(report.notes),
        )
