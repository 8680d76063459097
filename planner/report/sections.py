"""The sections of a report in reading order; console and Markdown lay out the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from planner.report.conflicts import forbidden_rules_sections, none_text, nothing_sections, preference_sections
from planner.report.memory import memory_section
from planner.report.proof import alternatives_sections, candidates_sections, recommendation_sections, search_section
from planner.report.results import (
    breakdown_section,
    conventions_section,
    costs_sections,
    doubt_rows,
    line_rows,
    loss_sections,
    nearby_sections,
    operator_sections,
    proof_text,
    publication_rows,
    results_section,
    run_section,
    setting_section,
)
from planner.report.section import Section, group_rows, seconds
from planner.report.strategies import settings_sections, stages_sections, strategies_section

if TYPE_CHECKING:
    from planner.report.records.explained import ComparisonRecord, ExplanationRecord
    from planner.report.records.reports import ReportRecord

AnyRecord: TypeAlias = "ReportRecord | ExplanationRecord | ComparisonRecord"


def all_sections(whole: AnyRecord) -> Iterator[Section]:
    """Build the sections of any report, in reading order."""
    if whole.kind == "explanation":
        from planner.report.reasons import explanation_sections

        return explanation_sections(whole)
    if whole.kind == "comparison":
        from planner.report.compared import comparison_sections

        return comparison_sections(whole)
    return plan_sections(whole)


def plan_sections(whole: ReportRecord) -> Iterator[Section]:
    """Build the sections of a plan or an estimate, in reading order."""
    yield heading_section(whole)
    yield from forbidden_sections(whole)
    yield from nothing_sections(whole, whole.conflict)
    plans = whole.plans
    if plans:
        best, of_best = plans[0], " of strategy 1" if len(plans) > 1 else ""
        yield decisions_section(whole)
        yield from settings_sections(plans)
        yield from recommendation_sections(whole.recommendation)
        yield from stages_sections(best.strategy, of_best)
        yield results_section(whole)
        yield from operator_sections(whole.operators, of_best)
        yield from nearby_sections(whole)
        yield from loss_sections(plans)
        yield breakdown_section(best, of_best)
        yield memory_section(whole, best, of_best)
        yield run_section(whole, best, of_best)
        yield from costs_sections(whole, plans, of_best)
    if whole.kind == "plan":
        yield from candidates_sections(whole)
        yield from alternatives_sections(whole)
        yield search_section(whole)
    yield conventions_section(whole)


def decisions_section(whole: ReportRecord) -> Section:
    """Build the table of the decisions of a report's strategies."""
    is_simplest = whole.recommendation is not None and not whole.recommendation.is_fastest
    strategies = [plan.strategy for plan in whole.plans]
    return strategies_section(strategies, variants=whole.job.variants, is_first_simplest=is_simplest)


def heading_section(whole: ReportRecord) -> Section:
    """Build the section on the job, with the answer in a line."""
    best = whole.plans[0] if whole.plans else None
    rows = (
        *doubt_rows(best),
        ("answer", _answer(whole)),
        *publication_rows(whole),
        *group_rows("small runs", whole.small_runs),
    )
    return setting_section(whole, *rows, best=best, lines=line_rows(whole), idle=whole.idle)


def forbidden_sections(whole: ReportRecord) -> Iterator[Section]:
    """Build the sections on the rules that forbid a given strategy."""
    yield from forbidden_rules_sections(
        whole.broken_rules, "The figures below are predicted regardless of these rules."
    )
    yield from preference_sections(whole.broken_preferences)


def _answer(whole: ReportRecord) -> str:
    if not whole.plans:
        return none_text(whole.conflict)
    if whole.kind == "plan":
        proof = proof_text(whole)
    else:
        alone = "no rule forbids it, but the search leaves it out" if whole.broken_preferences else "no rule forbids it"
        proof = "forbidden" if whole.broken_rules else alone
    best = whole.plans[0]
    return (
        f"{seconds(best.step_time_seconds)} s per step, {best.tokens_per_second_per_gpu:,.1f} tokens/s/GPU, "
        f"MFU {best.mfu:.1%}, {best.training_run.days:,.2f} days; {proof}"
    )
