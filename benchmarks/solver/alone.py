"""
Rules of the model that decide alone: without one of them CP-SAT finds strategies of a job that only this rule forbids.

The model has all rules of a job but one, whose negation it asks for; costs and memory are left out. Jobs are small and
lift the search's own bounds, so that models, frameworks and targets with rules of their own each have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import wraps
from math import inf
from typing import Any

import numpy as np

from benchmarks.inputs import job_document, read_yaml
from constraints import MEMORY_RULES, RULES, TARGET_RULES, Rule
from constraints.cp_sat import cp_model
from constraints.joint import JointModel, Part
from constraints.relations import narrow
from planner import load
from planner.jobs.problem import Problem
from planner.search.domains import all_values, problem_rules
from planner.search.solver import new_solver

LEAST_ALONE = 130
"""Rules that must decide alone in some job."""


def a_job(
    model: str,
    *,
    num_devices: int = 48,
    device: str = "h100-80gb-sxm",
    batch: int = 96,
    length: int = 4096,
    precision: str = "bf16",
    framework: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **search: Any,
) -> Problem:
    """A job with unproven features."""
    return load(
        job_document(
            model,
            device,
            num_devices,
            batch,
            length,
            framework=framework,
            precision=precision,
            settings=settings or {},
            search={"evidence": "any", **search},
        )
    )


def named_jobs() -> Iterator[tuple[str, Problem]]:
    """Yield the jobs of ``alone.yaml`` with their names."""
    for name, entries in read_yaml(__file__)["jobs"].items():
        yield name, a_job(**entries)


def find_alone(problem: Problem, asked: Sequence[Rule]) -> Iterator[Rule]:
    """Yield the rules of a job among some that alone exclude a strategy."""
    rules, values = problem_rules(problem), all_values(problem)
    every = (*rules.rows, *rules.mixed)
    for rule in every:
        if rule in asked and narrow(problem.facts, [rule], values, 0)[1]:
            others = [one for one in every if one is not rule]
            made = JointModel([Part(facts=problem.facts, rules=[*others, negate(rule)])], values)
            if new_solver(inf, of_tables=False).solve(made.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                yield rule


def negate(rule: Rule) -> Rule:
    """Return the rule that holds where another does not."""

    @wraps(rule)
    def holds(*facts: Any, **decisions: Any) -> Any:
        return np.logical_not(rule(*facts, **decisions))

    return holds


def run_alone() -> Iterator[str]:
    """Print which job shows each rule, and rules that decide alone in none; a sentence if these are too many."""
    left = {rule: rule.__name__ for rule in (*RULES, *(one for own in TARGET_RULES.values() for one in own))}
    left = {rule: name for rule, name in left.items() if rule not in MEMORY_RULES}
    number = len(left)
    for name, problem in named_jobs():
        found = list(find_alone(problem, [*left]))
        if found:
            print(f"{name}: {', '.join(left.pop(rule) for rule in found)}")
    print(
        f"{number - len(left)} of {number} rules each change the solutions of a job above, left out alone. Elsewhere "
        f"other rules or the values that are tried exclude as much: {', '.join(left.values())}."
    )
    if number - len(left) < LEAST_ALONE:
        yield f"only {number - len(left)} rules decide alone in a job."
