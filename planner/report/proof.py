"""The proof, as sections: status, bound, gap, what the search had to do, what the rules leave of a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.report.section import Section
from planner.report.wording import count

if TYPE_CHECKING:
    from planner.plan import PlanReport
    from planner.report.records.outcome import EffortRecord
    from planner.report.records.plan import PlanRecord
    from planner.report.records.reports import PlanReportRecord
    from planner.search.branch_and_bound import SearchStats


def listed_sections(whole: PlanReportRecord) -> Iterator[Section]:
    """What the rules leave of the job's candidates."""
    known = whole.candidates
    if known is None:
        return
    possible = known.num_rows - known.num_impossible
    more = known.num_impossible - len(known.impossible)
    yield Section(
        title=f"Candidates of {known.source}",
        rows=(
            ("considered", f"{count(known.num_rows, 'candidate')}; rules but those of memory allow {possible:,}"),
            *((one.place, f"forbidden: {' '.join(one.rules) or _NO_COMPLETION}") for one in known.impossible),
        ),
        notes=(f"{more:,} more are forbidden.",) if more else (),
    )


_NO_COMPLETION = "no values of the decisions that it leaves open satisfy all rules."


def search_section(report: PlanReport, whole: PlanReportRecord) -> Section:
    """The proof: status, bound, gap, and what the search had to do."""
    search, effort = whole.search, report.outcome.effort
    return Section(
        title="Search",
        rows=(
            ("status", _status_text(whole)),
            *_bound(whole),
            (
                "space",
                f"{search.num_raw_strategies:,} strategies; {search.num_strategies:,} allowed by all rules but memory, "
                f"with {search.num_rows:,} combinations of degrees",
            ),
            (
                "looked at",
                f"{search.num_rows_tabulated:,} combinations of degrees with all their features, "
                f"{search.num_strategies_tabulated:,} strategies",
            ),
            ("left out", _left_out(effort)),
            ("solver", _solver(whole, effort)),
            *_pipelines(search),
            ("time", f"{search.build_seconds:.2f} s for tables and models, {search.solve_seconds:.2f} s in CP-SAT"),
            *_total_time(whole),
        )
        if search.num_rows
        else (
            ("status", _status_text(whole)),
            ("space", f"{search.num_raw_strategies:,} strategies, the rules allow none"),
        ),
    )


def _solver(whole: PlanReportRecord, effort: SearchStats) -> str:
    """What the solver chose from."""
    search = whole.search
    if whole.job.variants == "all" and not search.num_solves:
        return "had nothing to choose: every strategy that fits was compared as it is"
    candidates, solves = count(search.num_candidates, "candidate"), count(search.num_solves, "CP-SAT solve")
    return f"{candidates} in {solves}, {effort.num_unfit:,} of them too large for the memory"


def _left_out(effort: SearchStats) -> str:
    """What was never handed to the solver, and for what reason."""
    pruned = effort.pruned
    reasons = {
        "by the bound of their degrees": effort.num_bounded,
        "by the bound without overlaps": pruned.bounded,
        "by a rule of the time": pruned.infeasible_time,
        "by faster overlaps": pruned.folded,
        "by what was found already": pruned.cut,
        "by one that is better in time and memory": pruned.dominated,
        "by the memory": pruned.unfit,
        "not looked at": effort.size - pruned.tabulated - effort.num_bounded,
    }
    return ", ".join(f"{number:,} {reason}" for reason, number in reasons.items() if number > 0) or "nothing"


def _status_text(whole: PlanReportRecord) -> str:
    match whole.status:
        case "optimal":
            return "optimal: proven, the rules allow nothing faster"
        case "infeasible":
            return "infeasible: proven, nothing fits"
        case "feasible" if whole.gap == 0:
            return "feasible: strategy 1 is proven fastest; time ran out before the proof for the others"
        case "feasible":
            return "feasible: time ran out before the proof"
    return "unknown: time ran out before a strategy was found"


def _bound(whole: PlanReportRecord) -> Iterator[tuple[str, str]]:
    if whole.lower_bound_seconds is not None:
        gap = f", gap {whole.gap:.2%}" if whole.gap is not None else ""
        rounding = f"rounding hides at most {whole.rounding_bound_seconds * 1e6:g} us"
        yield "lower bound", f"{whole.lower_bound_seconds:,.6f} s per step{gap}; {rounding}"
    if any(_differs(plan) for plan in whole.plans[:1]):
        yield "closed form", f"{_closed_forms(whole)}. Steps above are played through."


def _closed_forms(whole: PlanReportRecord) -> str:
    """What is proven: of the strategies that are listed one may play faster than the one whose closed form is least."""
    forms = [plan.closed_form_step_time_seconds for plan in whole.plans]
    least = forms.index(min(forms))
    first = f"{forms[0]:,.6f} s for strategy 1"
    if not least:
        return f"{first}: what is compared and proven"
    return f"{first}, {forms[least]:,.6f} s for strategy {least + 1}: the least is what is compared and proven"


def _differs(plan: PlanRecord) -> bool:
    return abs(plan.step_time_seconds / plan.closed_form_step_time_seconds - 1) > SAME_FRACTION


SAME_FRACTION = 1e-5
"""Difference between the closed form and the step as played that nobody would see."""


def _pipelines(search: EffortRecord) -> Iterator[tuple[str, str]]:
    """What the search over uneven stages had to do."""
    if search.num_pipelines:
        yield (
            "stages",
            f"{count(search.num_pipelines, 'pipeline')} within the bound of evenly shared layers; the ranks "
            f"of {search.num_pipelines_costed:,} costed, the layers of {search.num_pipelines_solved:,} shared out by "
            "CP-SAT",
        )


def _total_time(whole: PlanReportRecord) -> Iterator[tuple[str, str]]:
    if whole.job.objective == "total_time":
        yield "objective", "total time, which grows with the step time: the order is the same"
