"""Tests of rules tabulated over the values of their decisions."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from constraints.relations import list_binding, narrow_domains
from costmodel.tables import Facts
from planner.search.questions import search
from tests.builders_problem import a_problem

ASKED: list[list[int]] = []


def tp_is_at_most_eight(*, tp: Any) -> Any:
    """Tp is at most 8."""
    ASKED.append(tp.tolist())
    return tp <= 8


def test_rule_that_held_is_not_asked_about_fewer_values() -> None:
    """A rule that held for all values is asked again only where a job has a value more."""
    facts: Any = Facts(model=None, cluster=None, workload=None)  # type: ignore[arg-type]
    found = [list_binding(facts, (tp_is_at_most_eight,), {"tp": np.array(tp)}) for tp in ([1, 2, 8], [2, 8], [8, 16])]
    assert (ASKED, found) == ([[1, 2, 8], [8, 16]], [(), (), (tp_is_at_most_eight,)])


def test_planned_job_can_be_pickled() -> None:
    """A job whose own rules held, such as a pinned degree, is sent to another process after its search."""
    problem = a_problem(pin={"tp": 1})
    search(problem)
    problem.facts.forget()  # as every verb does
    assert pickle.loads(pickle.dumps(problem)).search.pin == problem.search.pin


def test_rule_that_another_makes_needless_is_not_binding() -> None:
    """A rule that only values break which another rule excludes is left out, and the other one stays."""

    def tp_is_one(*, tp: Any) -> Any:
        """Tp is 1."""
        return tp == 1

    def pp_is_one_beside_tp(*, tp: Any, pp: Any) -> Any:
        """Pp is 1 where tp splits layers."""
        return (tp == 1) | (pp == 1)

    facts: Any = Facts(model=None, cluster=None, workload=None)  # type: ignore[arg-type]
    rules, domains = (pp_is_one_beside_tp, tp_is_one), {"tp": np.array([1, 2]), "pp": np.array([1, 2])}
    assert list_binding(facts, rules, domains) == (tp_is_one,)
    assert narrow_domains(facts, rules, domains)["tp"].tolist() == [1]


def test_all_rules_are_binding_where_one_leaves_nothing() -> None:
    """Combinations of the other decisions are still cut by the other rules."""

    def tp_is_none(*, tp: Any) -> Any:
        """Tp has no value."""
        return tp == 0

    def pp_is_one(*, pp: Any, tp: Any) -> Any:
        """Pp is 1."""
        return (pp == 1) & (tp > 0)

    facts: Any = Facts(model=None, cluster=None, workload=None)  # type: ignore[arg-type]
    domains = {"tp": np.array([1, 2]), "pp": np.array([1, 2])}
    assert list_binding(facts, (pp_is_one, tp_is_none), domains) == (pp_is_one, tp_is_none)
