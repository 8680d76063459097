"""Read plans back from a JSON report, to export or compare them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import require_type, shown
from planner.jobs.completion import complete_strategy
from planner.jobs.document import read_text
from planner.jobs.problem import Problem, load
from planner.jobs.strategy_file import read_given
from planner.results import Plan
from planner.verbs.plan import evaluate

FORMAT_VERSION = 1
"""Version of JSON reports; grows when an entry changes its name, unit or meaning; new entries do not count."""

MAX_BYTES = 2**28
"""Largest size of a report; it has some kilobytes per pipeline rank and plan."""

HINT = "Make one with: planner plan JOB.yaml --format json -o plan.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedPlan:
    """
    A plan of a report.

    Parameters
    ----------
    problem
        Job of the plan.
    plan
        The plan, costed again.
    step_seconds
        Step time in the report.
    """

    problem: Problem
    plan: Plan
    step_seconds: float

    @property
    def drift_fraction(self) -> float:
        """Relative difference of its step between this version of the planner and the report."""
        return self.plan.step_seconds / self.step_seconds - 1


def read_plan(path: str | os.PathLike[str], number: int = 1) -> SavedPlan:
    """
    Read one plan of a JSON report, as ``planner plan`` and ``planner estimate`` write it.

    Parameters
    ----------
    path
        The file.
    number
        Number of the plan, from 1, best first.

    Raises
    ------
    SpecError
        If the file is no such report, has another format version, or has no plan with that number.
    """
    require_type(path, (str, os.PathLike), "path", "the path of a JSON report")
    require_type(number, int, "number", "a whole number")
    path = Path(path)
    report = _report(path)
    plans = report.get("plans") if report.get("kind") == "plan" else [report]
    if not isinstance(plans, list):
        raise SpecError(str(path), f"is no complete report: expected a list of plans, got {shown(plans)}.", HINT)
    if not plans:
        raise SpecError(str(path), f"holds no plan: its status is {shown(report.get('status'))}.")
    if not 1 <= number <= len(plans):
        raise SpecError(str(path), f"has plans 1 to {len(plans)}, not {number}.")
    try:
        chosen = plans[number - 1]
        problem = _problem(report, chosen.get("settings") or {})
        given = read_given(chosen["strategy"], f"{path}: strategy")
        step_seconds = float(chosen["step_time_seconds"])
        if not 0 < step_seconds < math.inf:
            raise ValueError(f"the step time is {shown(chosen['step_time_seconds'])}")
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise SpecError(str(path), f"is no complete report: {error}.", HINT) from None
    strategy = complete_strategy(problem.facts, given)
    return SavedPlan(problem=problem, plan=evaluate(problem, strategy), step_seconds=step_seconds)


def _report(path: Path) -> Mapping[str, Any]:
    text = read_text(path, MAX_BYTES)
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(str(path), f"is not JSON: {error}.", HINT) from None
    if not isinstance(report, dict) or "format_version" not in report:
        raise SpecError(str(path), "is no report of this planner.", HINT)
    if report["format_version"] != FORMAT_VERSION:
        version = shown(report["format_version"])
        raise SpecError(str(path), f"has format version {version}; this planner reads {FORMAT_VERSION}.", HINT)
    if report.get("kind") not in ("plan", "estimate"):
        raise SpecError(str(path), f"is a report of kind {shown(report.get('kind'))}, expected plan or estimate.", HINT)
    return report


def _problem(report: Mapping[str, Any], settings: Mapping[str, Any]) -> Problem:
    """Load the job of a report, with a plan's settings and the names from the report."""
    document = report["job"]["document"]
    problem = load({**document, "settings": {**(document.get("settings") or {}), **settings}})
    said = report["model"]
    model = replace(problem.facts.model, name=_text(said["name"], "name"), source=_text(said["source"], "source"))
    facts = replace(problem.facts, model=model)
    return replace(problem, name=_text(report["job"]["name"], "name"), facts=facts, settings=settings)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}, expected text")
    return value
