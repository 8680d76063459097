"""Explanations and comparisons as plain data for programs; :mod:`planner.report.document` has the other reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodel.strategy import decision_text
from costmodel.tables import microbatches
from planner.explanation.compare import Comparison
from planner.explanation.explain import Binding, Difference, Explanation
from planner.report.document import (
    FORMAT_VERSION,
    Plain,
    conflict_document,
    document,
    finite,
    plan_document,
    setting_document,
    strategy_document,
)

if TYPE_CHECKING:
    from costmodel.strategy import Strategy
    from planner.plan import EstimateReport, PlanReport


def any_json_text(report: PlanReport | EstimateReport | Explanation | Comparison) -> str:
    """The document as strict JSON."""
    if isinstance(report, Comparison):
        whole = comparison_document(report)
    else:
        whole = explanation_document(report) if isinstance(report, Explanation) else document(report)
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def explanation_document(explanation: Explanation) -> Plain:
    """The whole explanation; what is infinite or undefined is None."""
    report, best, given = explanation.report, explanation.best, explanation.given
    conflict = explanation.conflict
    of_conflict = explanation.question or report
    whole = {
        "format_version": FORMAT_VERSION,
        "kind": "explanation",
        **setting_document(report),
        "status": str(report.outcome.status),
        "best": plan_document(best) if best else None,
        "bindings": [_binding(explanation, one) for one in explanation.bindings],
        "not_binding": list(explanation.idle),
        "asked": {name: decision_text(name, value) for name, value in explanation.asked.items()},
        "opposed_entries": list(explanation.opposed),
        "status_of_asked": str(explanation.question.outcome.status) if explanation.question else None,
        "given": plan_document(given) if given else None,
        "broken_rules": list(explanation.broken_rules),
        "slower_seconds": given.step_seconds - best.step_seconds if given and best else None,
        "differences": _differences(explanation.differences),
        "conflict": conflict_document(of_conflict, conflict) if conflict else None,
        "left_out": list(explanation.left_out),
    }
    plain: Plain = finite(whole)
    return plain


def comparison_document(comparison: Comparison) -> Plain:
    """The whole comparison; what is infinite or undefined is None."""
    report, given, best = comparison.report, comparison.given, comparison.best
    whole = {
        "format_version": FORMAT_VERSION,
        "kind": "comparison",
        **setting_document(report),
        "status": str(report.outcome.status),
        "best": plan_document(best) if best else None,
        "given": plan_document(given.plan),
        "allowed": not given.broken_rules,
        "broken_rules": list(given.broken_rules),
        "assumed": {name: decision_text(name, value) for name, value in given.assumed.items()},
        "saved_seconds_per_step": comparison.saved_seconds if best else None,
        "saved_fraction": comparison.saved_fraction if best else None,
        "saved_days": comparison.saved_days if best else None,
        "saved_gpu_hours": comparison.saved_gpu_hours if best else None,
        "within_noise": comparison.is_within_noise if best else None,
        "differences": _differences(comparison.differences),
        "conflict": conflict_document(report, report.outcome.conflict) if report.outcome.conflict else None,
    }
    plain: Plain = finite(whole)
    return plain


def _differences(lines: Sequence[Difference]) -> list[Plain]:
    return [
        {
            "name": line.name,
            "best_seconds": line.best_seconds,
            "given_seconds": line.given_seconds,
            "difference_seconds": line.seconds,
        }
        for line in lines
    ]


def _binding(explanation: Explanation, binding: Binding) -> Plain:
    return {
        "kind": str(binding.kind),
        "constraint": binding.what,
        "step_time_seconds": binding.step_seconds,
        "saved_seconds": binding.saved_seconds,
        "proven": binding.is_proven,
        "strategy": _strategy(explanation, binding.strategy),
        "next_faster": {
            "strategy": _strategy(explanation, binding.next_strategy),
            "step_time_seconds": binding.next_seconds,
            "missing_bytes": binding.missing_bytes,
        }
        if binding.next_strategy
        else None,
    }


def _strategy(explanation: Explanation, strategy: Strategy | None) -> Plain | None:
    if strategy is None:
        return None
    number = int(microbatches(explanation.problem.facts, strategy.decisions()))
    return strategy_document(strategy, num_microbatches=number)
