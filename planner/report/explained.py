"""An explanation as plain data for programs; the other reports as :mod:`planner.report.document` has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from costmodel.tables import microbatches
from planner.explain import Binding, Explanation
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
from planner.values import decision_text

if TYPE_CHECKING:
    from costmodel.strategy import Strategy
    from planner.plan import EstimateReport, PlanReport


def any_json_text(report: PlanReport | EstimateReport | Explanation) -> str:
    """The document as strict JSON."""
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
        "differences": [
            {
                "name": line.name,
                "best_seconds": line.best_seconds,
                "given_seconds": line.given_seconds,
                "difference_seconds": line.seconds,
            }
            for line in explanation.differences
        ],
        "conflict": conflict_document(of_conflict, conflict) if conflict else None,
        "left_out": list(explanation.left_out),
    }
    plain: Plain = finite(whole)
    return plain


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
