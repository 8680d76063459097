"""The sections of a study for people, and its rows of CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from planner.report.records import csv_table, names_of
from planner.report.records.study import (
    FeatureGainRecord,
    FeatureRecord,
    StudiedPlanRecord,
    StudyRecord,
)
from planner.report.section import DAY_SECONDS, NOTHING, Section, count, gib, mean_count, seconds, share, span
from planner.uncertainty.intervals import COVERAGE
from planner.verbs.study import Point, Series


# --- for people --------------------------------------------------------------------------------------------
def study_sections(whole: StudyRecord) -> Iterator[Section]:
    """Build the sections of a study, in reading order."""
    yield Section(title=title_of_study(whole), rows=tuple(heading_rows(whole)), notes=tuple(whole.notes))
    for series in whole.series:
        yield series_section(whole, series)
    yield from features_sections(whole)


def title_of_study(whole: StudyRecord) -> str:
    """Return the title of a study: its name, the model, and the devices."""
    return f"Study of {whole.study}: {whole.model} on {whole.num_devices:,} x {whole.device}"


def heading_rows(whole: StudyRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on the job's own plan and on the proof of the points."""
    yield "job", whole.job
    if whole.base is None:
        yield "plan", "no strategy fits" if whole.status == "infeasible" else "none within the time limit"
    else:
        yield "plan", whole.base.line
        if used := _usage(whole.base):
            yield "uses", used.removeprefix("uses ")
        low, high = whole.base.step_time_interval_seconds
        yield "step", f"{seconds(whole.base.step_time_seconds)} s ({COVERAGE:.0%}: {seconds(low)} to {seconds(high)} s)"
    yield "proof", proof_of_study(whole)


def proof_of_study(whole: StudyRecord) -> str:
    """Return the sentence on the proof of all points."""
    found: list[str] = [point.status for series in whole.series for point in series.points]
    found += [feature.status for feature in whole.features]
    late = sum(status not in PROVEN for status in (whole.status, *found))
    if late:
        return f"{count(late, 'search', 'searches')} of {1 + len(found)} ended at the time limit before a proof"
    return "every plan is proven the fastest in the cost model, and every missing one impossible"


PROVEN = ("optimal", "infeasible")
"""States of a search that are proofs."""

Column: TypeAlias = Callable[[Point[StudiedPlanRecord], StudiedPlanRecord], str]


def _range(plan: StudiedPlanRecord) -> str:
    return " to ".join(map(seconds, plan.step_time_interval_seconds))


OF_SPEED: Mapping[str, Column] = {
    "step, s": lambda point, plan: seconds(plan.step_time_seconds),
    f"{COVERAGE:.0%}": lambda point, plan: _range(plan),
    "tokens/s/GPU": lambda point, plan: f"{plan.tokens_per_second_per_gpu:,.1f}",
    "linearity": lambda point, plan: NOTHING if point.linearity_fraction is None else f"{point.linearity_fraction:.1%}",
    "idle for links": lambda point, plan: share(plan.site_links_seconds, plan.step_time_seconds),
    "MFU": lambda point, plan: f"{plan.mfu:.1%}",
    "peak GiB": lambda point, plan: gib(plan.peak_memory_bytes),
    "days": lambda point, plan: f"{plan.days:,.2f}",
    "plan": lambda point, plan: plan.line,
}
"""Columns of a study of plans."""

ONLY_OF = {"linearity": "scale", "idle for links": "sites"}
"""Columns of one study alone."""

OF_RELIABILITY: Mapping[str, Column] = {
    "checkpoint every": lambda point, plan: count(plan.checkpoint_interval_steps, "step"),
    "time": lambda point, plan: span(plan.checkpoint_interval_seconds),
    "failures": lambda point, plan: mean_count(plan.num_failures),
    "ETTR": lambda point, plan: f"{plan.ettr:.3%}",
    "days lost": lambda point, plan: f"{plan.interruption_seconds / DAY_SECONDS:,.3f}",
    "days": lambda point, plan: f"{plan.days:,.2f}",
}
"""Columns of a study of reliability."""


def series_section(whole: StudyRecord, series: Series[StudiedPlanRecord]) -> Section:
    """Build the table of the points of an entry."""
    columns = OF_RELIABILITY if whole.study == "reliability" else OF_SPEED
    kept = {name: one for name, one in columns.items() if ONLY_OF.get(name, whole.study) == whole.study}
    rows = [
        (
            point.text,
            *(column(point, point.plan) if point.plan else NOTHING for column in kept.values()),
            _mark(series, point),
        )
        for point in series.points
    ]
    is_idle = any(point.plan and _usage(point.plan) for point in series.points)
    notes = (_IDLE_NOTE,) if is_idle and columns is OF_SPEED else ()
    return Section(title=series.label, header=(series.name, *kept, "remark"), rows=tuple(rows), notes=notes)


_IDLE_NOTE = "Tokens/s/GPU and MFU count the GPUs that a plan uses, not those left idle."


def _usage(plan: StudiedPlanRecord) -> str:
    """Return the words on the GPUs that a plan uses where it leaves others idle; empty where it uses all."""
    if not plan.num_idle_devices:
        return ""
    return f"uses {plan.num_devices:,} of {plan.num_devices + plan.num_idle_devices:,} GPUs"


def _mark(series: Series[StudiedPlanRecord], point: Point[StudiedPlanRecord]) -> str:
    """Return the remark on a point: the job's own value, idle GPUs, a missing proof, or no plan."""
    if point.plan is None:
        return point.reason or "nothing fits" if point.status == "infeasible" else "time ran out"
    late = "" if point.status in PROVEN else "not proven"
    return ", ".join(filter(None, ("the job" if point.value == series.own else "", _usage(point.plan), late)))


# --- features ----------------------------------------------------------------------------------------------
def features_sections(whole: StudyRecord) -> Iterator[Section]:
    """Build the tables of the features that the plan has, and of those that it leaves out."""
    for is_in_plan, title, verb, other in (
        (True, "Features of the plan", "gain last", "the plan without it, s"),
        (False, "Features that the plan leaves out", "would cost", "the plan with it, s"),
    ):
        features = [one for one in whole.features if one.is_in_plan == is_in_plan]
        if features:
            best = "fastest plan without it, s" if is_in_plan else "fastest plan with it, s"
            header = ("feature", "gain alone", verb, f"{COVERAGE:.0%}", other, "peak GiB", best, "remark")
            yield Section(
                title=title,
                header=header,
                rows=tuple(tuple(_feature_cells(one)) for one in features),
                notes=(_GAIN_NOTE if is_in_plan else _COST_NOTE, *_rule_notes(features)),
            )


_GAIN_NOTE = (
    "Gains are shares of the step without the feature, as in MoFa's Table 6. Alone: the feature is added to a bare "
    "plan with the same degrees. Last: it is taken from the whole plan. The fastest plan without it is searched for "
    "anew, and proven; over the plan: its additional time over the plan's step."
)

_COST_NOTE = (
    "Gain alone: the feature is added to a bare plan, the share of that plan's step. Would cost, over the plan: "
    "additional time over the plan's step."
)


def cost_fraction(gain_fraction: float) -> float:
    """
    Return the additional time over the shorter step, from the share of the longer step that is saved.

    >>> cost_fraction(0.2)  # 4 s instead of 5 s: 1 s more is a quarter of 4 s
    0.25
    """
    return gain_fraction / (1 - gain_fraction)


def _feature_cells(feature: FeatureRecord) -> Iterator[str]:
    yield f"{feature.name}={feature.text}"
    yield f"{feature.alone.fraction:+.1%}" if feature.alone else NOTHING
    last = (feature.last.fraction, feature.last.low_fraction, feature.last.high_fraction)
    own, low, high = last if feature.is_in_plan else map(cost_fraction, last)
    yield f"{own:+.1%}"
    yield f"{low:+.1%} to {high:+.1%}"
    yield seconds(feature.other_step_seconds)
    yield gib(feature.other_peak_memory_bytes)
    yield seconds(feature.replanned.step_time_seconds) if feature.replanned else NOTHING
    yield feature_remark(feature)


def feature_remark(feature: FeatureRecord) -> str:
    """Return the remark on a feature: the additional time of the fastest other plan, or why there is none."""
    if feature.replanned_gain:
        cost = f"{cost_fraction(feature.replanned_gain.fraction):+.1%} over the plan"
        used = _usage(feature.replanned) if feature.replanned else ""
        return ", ".join(filter(None, (cost, used, "" if feature.status in PROVEN else "not proven")))
    if feature.status != "infeasible":
        return "time ran out"
    lacks = f"lacks {gib(feature.shortage_bytes)} GiB" if feature.shortage_bytes else ""
    enough = f"fits on {count(feature.enough_devices, 'GPU')}" if feature.enough_devices else ""
    return "; ".join(filter(None, ("nothing fits", lacks, enough)))


def _rule_notes(features: Sequence[FeatureRecord]) -> Iterator[str]:
    """Yield a note on each feature whose removal or addition a rule forbids."""
    for one in features:
        if one.other_broken_rules:
            change = "without" if one.is_in_plan else "with"
            yield f"The plan {change} {one.name}={one.text} is forbidden: {' '.join(one.other_broken_rules)}"


# --- for programs ------------------------------------------------------------------------------------------
OF_PLAN = tuple(name for name in names_of(StudiedPlanRecord) if name != "step_time_interval_seconds")

OF_POINT = ("study", "job", "series", "value", "text", "status", "reason", "linearity_fraction", *OF_PLAN)

GAINS = ("alone", "last", "replanned_gain")

OF_FEATURE = (
    "study",
    "job",
    *(name for name in names_of(FeatureRecord) if name not in (*GAINS, "replanned")),
    *(f"{name}_{entry}" for name in GAINS for entry in names_of(FeatureGainRecord)),
    *(f"replanned_{name}" for name in OF_PLAN),
)


def study_csv(whole: StudyRecord) -> str:
    """Format a header and a row per point, or per feature; cells that do not apply are empty."""
    columns = OF_FEATURE if whole.study == "features" else OF_POINT
    return csv_table(columns, (*_point_rows(whole), *_feature_rows(whole)))


def _point_rows(whole: StudyRecord) -> Iterator[dict[str, Any]]:
    for series in whole.series:
        for point in series.points:
            own = {name: getattr(point, name) for name in names_of(point) if name != "plan"}
            yield {"study": whole.study, "job": whole.job, "series": series.name, **own, **_plan_cells(point.plan)}


def _feature_rows(whole: StudyRecord) -> Iterator[dict[str, Any]]:
    for feature in whole.features:
        row = {name: value for name, value in feature if name in OF_FEATURE}
        for name in GAINS:
            gain: FeatureGainRecord | None = getattr(feature, name)
            row |= {f"{name}_{entry}": value for entry, value in gain or ()}
        row["other_broken_rules"] = " ".join(feature.other_broken_rules)
        replanned = {f"replanned_{name}": value for name, value in _plan_cells(feature.replanned).items()}
        yield {"study": whole.study, "job": whole.job, **row, **replanned}


def _plan_cells(plan: StudiedPlanRecord | None) -> dict[str, Any]:
    return {name: value for name, value in plan or () if name in OF_PLAN}
