"""Rows on published results: a doubt in a prediction above every run, the best run, the nearest layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.report.section import group_rows
from planner.report.wording import seconds

if TYPE_CHECKING:
    from planner.report.records.plan import PlanRecord
    from planner.report.records.published import BestRunRecord, PublishedLayoutRecord
    from planner.report.records.reports import ReportRecord


def doubt_rows(plan: PlanRecord | None) -> Iterator[tuple[str, str]]:
    """Build the row that doubts a plan predicted far above every published run; it comes first in a report."""
    if plan is not None and plan.record is not None and plan.record.is_doubtful:
        record, step = plan.record, f"{seconds(plan.record.step_time_seconds)} s per step of this job"
        yield "doubt", f"predicted {record.above_fraction:.0%} above the {_run_text(record)}, {step}"


def publication_rows(whole: ReportRecord, *, is_short: bool = False) -> Iterator[tuple[str, str]]:
    """Build the rows on the nearest published layout and the best run; a short answer omits forbidden layouts."""
    layout = None if whole.published and is_short and whole.published.broken_rules else whole.published
    rows = [layout_text(layout, is_short=is_short)] if layout else []
    if whole.plans and (record := whole.plans[0].record) is not None and not record.is_doubtful:
        side = "above" if record.above_fraction >= 0 else "below"
        rows.append(f"{_run_text(record)}; this plan is predicted {abs(record.above_fraction):.0%} {side}")
    yield from group_rows("published", rows)


def layout_text(layout: PublishedLayoutRecord, *, is_short: bool = False) -> str:
    """
    Compare a published layout with the first plan.

    The long form lists all changes made to the layout, and the reason that the search does not try it.
    """
    figures = f"{layout.title}: {seconds(layout.step_time_seconds)} s, {layout.slower_fraction:+.1%}"
    forbidden = [f"forbidden: {layout.broken_rules[0]}"] if layout.broken_rules else []
    if forbidden:
        figures = layout.title  # what no run can have is no step to compare with
    is_told = not is_short or layout.slower_fraction < 0  # a faster layout wants a reason
    reason = layout.outside[0].partition(" (search.")[0] if layout.outside and is_told and not forbidden else ""
    left_out = [f"not searched: {reason}"] if reason else []
    notes = layout.notes[:1] if is_short else layout.notes
    return "; ".join((figures, *notes, *(text.rstrip(".") for text in (*forbidden, *left_out))))


def _run_text(record: BestRunRecord) -> str:
    """
    Describe a published run: its rate, its release and devices, and its precision recipe unless that is bf16.

    A run of another model is given by its MFU, since its tokens cost other FLOPs.
    """
    precision = [] if record.precision == "bf16" else [record.precision]
    notes = [record.notes] if record.notes else []
    if not record.same_model:
        where = ", ".join([record.label, *precision, f"{record.num_devices:,} {record.device}", *notes])
        return f"nearest published run: {record.model}, {record.mfu:.1%} MFU ({where})"
    at = [] if record.same_sequence else [f"sequences of {record.sequence_length:,} tokens"]
    where = ", ".join([record.label, *precision, f"{record.num_devices:,} GPUs", *at, *notes])
    return f"best published run: {record.tokens_per_second_per_gpu:,.0f} tokens/s/GPU ({where})"
