"""The sections of a report in reading order; console and Markdown lay out the same ones."""

from __future__ import annotations

from collections.abc import Iterator

from planner.report.compared import comparison_sections
from planner.report.conflicts import forbidden_rules_sections, none_text, nothing_sections, preference_sections
from planner.report.costs import costs_sections
from planner.report.devices import nearby_sections
from planner.report.document import AnyReport
from planner.report.memory import memory_section
from planner.report.proof import alternatives_sections, candidates_sections, search_section
from planner.report.published import doubt_rows, publication_rows
from planner.report.reasons import explanation_sections
from planner.report.recommended import recommendation_sections
from planner.report.records.outcome import EVEN
from planner.report.records.plan import NumberedPlanRecord
from planner.report.records.recommended import RecommendationRecord
from planner.report.records.reports import EstimateReportRecord, PlanReportRecord, ReportRecord, report_record
from planner.report.results import breakdown_section, loss_sections, operator_sections, results_section, run_section
from planner.report.section import Section
from planner.report.setting import conventions_section, setting_section
from planner.report.strategies import completion_rows, settings_sections, stages_sections, strategies_section
from planner.report.wording import seconds
from planner.results import EstimateReport, PlanReport
from planner.verbs.compare import Comparison
from planner.verbs.explain import Explanation


def all_sections(report: AnyReport) -> Iterator[Section]:
    """Build the sections of any report, in reading order."""
    if isinstance(report, Comparison):
        return comparison_sections(report)
    return explanation_sections(report) if isinstance(report, Explanation) else _sections(report)


def _sections(report: PlanReport | EstimateReport) -> Iterator[Section]:
    whole = report_record(report)
    yield heading_section(report, whole)
    yield from forbidden_sections(whole)
    if isinstance(whole, PlanReportRecord) and not whole.plans:
        yield from nothing_sections(whole, whole.conflict)
    plans = whole.plans
    if plans:
        best, of_best = plans[0], " of strategy 1" if len(plans) > 1 else ""
        yield decisions_section(whole)
        yield from settings_sections(plans)
        yield from recommendation_sections(recommendation_of(whole))
        yield from stages_sections(best.strategy, of_best)
        yield results_section(report, plans)
        yield from operator_sections(whole.operators, of_best)
        if isinstance(whole, PlanReportRecord):
            yield from nearby_sections(whole)
        yield from loss_sections(plans)
        yield breakdown_section(best, of_best)
        yield memory_section(whole, best, of_best)
        yield run_section(whole, best, of_best)
        yield from costs_sections(whole, plans, of_best)
    if isinstance(report, PlanReport) and isinstance(whole, PlanReportRecord):
        yield from candidates_sections(whole)
        yield from alternatives_sections(whole)
        yield search_section(report, whole)
    yield conventions_section(whole)


def decisions_section(whole: ReportRecord) -> Section:
    """Build the table of the decisions of a report's strategies."""
    advice = recommendation_of(whole)
    is_simplest = advice is not None and not advice.is_fastest
    strategies = [plan.strategy for plan in whole.plans]
    return strategies_section(strategies, variants=whole.job.variants, is_first_simplest=is_simplest)


def recommendation_of(whole: ReportRecord) -> RecommendationRecord | None:
    """Return the recommendation of a report; None for estimates, and where nothing is recommended."""
    return whole.recommendation if isinstance(whole, PlanReportRecord) else None


def heading_section(report: PlanReport | EstimateReport, whole: ReportRecord) -> Section:
    """Build the section on the job, with the answer in a line."""
    best = whole.plans[0] if whole.plans else None
    idle = whole.idle if isinstance(whole, PlanReportRecord) else None
    answer = ("answer", _answer(report, whole))
    small = whole.small_runs if isinstance(whole, PlanReportRecord) else ()
    rows = (
        *doubt_rows(best),
        answer,
        *publication_rows(whole),
        *(("small runs" if number == 0 else "", text) for number, text in enumerate(small)),
    )
    return setting_section(report.problem, whole, *rows, best=best, lines=line_rows(report, best), idle=idle)


def line_rows(report: PlanReport | EstimateReport, best: NumberedPlanRecord | None) -> list[tuple[str, str]]:
    """Build the rows with the first plan in one line, and with the completed decisions of a given one."""
    rows = [("line", best.line)] if best else []
    return [*rows, *(completion_rows(report) if isinstance(report, EstimateReport) else ())]


def forbidden_sections(whole: ReportRecord) -> Iterator[Section]:
    """Build the sections on the rules that forbid a given strategy."""
    if isinstance(whole, EstimateReportRecord):
        yield from forbidden_rules_sections(
            whole.broken_rules, "The figures below are predicted regardless of these rules."
        )
        yield from preference_sections(whole.broken_preferences)


def _proof(whole: PlanReportRecord, noise_fraction: float) -> str:
    """Word the proof for the fastest plan, with the model error of differences between layouts."""
    noise = f"in the cost model (model error {noise_fraction:.1%})"
    if whole.idle is not None and not whole.idle.is_proven:
        noise += ", among plans that use all GPUs"
    advice = whole.recommendation
    fastest = advice.fastest_strategy if advice else whole.plans[0].strategy
    is_uneven = whole.bound_of == EVEN and fastest.has_own_stages
    proof = f"proven {'faster than any even stages' if is_uneven else 'optimal'} {noise}"
    return proof if advice is None or advice.is_fastest else f"{_preference(advice)}: {proof}"


def _preference(advice: RecommendationRecord) -> str:
    """Word the preference over the fastest plan."""
    return f"preferred to the fastest plan, {seconds(advice.fastest_step_time_seconds)} s"


def _unproven(advice: RecommendationRecord | None) -> str:
    beside = "" if advice is None or advice.is_fastest else f"{_preference(advice)}, "
    return f"{beside}not proven optimal"


def proof_text(report: PlanReport | EstimateReport, whole: PlanReportRecord) -> str:
    """Word the proof for a report's first plan."""
    return _proof(whole, report.plans[0].noise_fraction) if report.exit_code == 0 else _unproven(whole.recommendation)


def _answer(report: PlanReport | EstimateReport, whole: ReportRecord) -> str:
    if isinstance(whole, EstimateReportRecord):
        alone = "no rule forbids it, but the search leaves it out" if whole.broken_preferences else "no rule forbids it"
        proof = "forbidden" if whole.broken_rules else alone
    elif whole.plans:
        proof = proof_text(report, whole)
    else:
        return none_text(whole.conflict)
    best = whole.plans[0]
    return (
        f"{seconds(best.step_time_seconds)} s per step, {best.tokens_per_second_per_gpu:,.1f} tokens/s/GPU, "
        f"MFU {best.mfu:.1%}, {best.training_run.days:,.2f} days; {proof}"
    )
