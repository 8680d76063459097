"""The job's pin, allow and forbid as rules."""

from __future__ import annotations

import numpy as np

from constraints.limits import limit_rules, limited
from constraints.rule import family, sentence
from constraints.verdict import violated
from costmodel.strategy import Recompute, Sharding
from tests.builders_problem import a_problem

FACTS = a_problem().facts


def test_a_pin_allows_its_value_only():
    """The rule takes one value as well as an array of them."""
    (rule,) = limit_rules(pin={"tp": 8}, allow={}, forbid=())

    assert [bool(holds) for holds in rule(tp=np.array([4, 8]))] == [False, True]
    assert violated(FACTS, {"tp": 4}, rules=[rule]) == (rule,)
    assert sentence(rule) == "search.pin: tp is 8."
    assert family(rule) == "limits"


def test_allow_names_its_values_as_the_job_file_spells_them():
    """Enums by name; a long list is cut short."""
    sharding, tp = limit_rules(
        pin={}, allow={"sharding": (Sharding.NONE, Sharding.OPTIMIZER), "tp": tuple(range(1, 11))}, forbid=()
    )

    assert sentence(sharding) == "search.allow: sharding is none or optimizer."
    assert sentence(tp) == "search.allow: tp is 1, 2, 3, 4, 5, 6, 7, 8 or 2 more."
    assert bool(sharding(sharding=Sharding.OPTIMIZER))
    assert not bool(sharding(sharding=Sharding.WEIGHTS))


def test_forbid_refuses_the_combination_and_nothing_else():
    """Each of its values alone stays allowed."""
    (rule,) = limit_rules(pin={}, allow={}, forbid=[{"recompute": Recompute.FULL, "tp_overlap": 1}])

    assert sentence(rule) == "search.forbid: not both recompute is full and tp_overlap is true."
    assert not bool(rule(recompute=2, tp_overlap=True))
    assert bool(rule(recompute=2, tp_overlap=False))
    assert bool(rule(recompute=1, tp_overlap=True))


def test_a_pinned_decision_keeps_its_pin_alone():
    """Pin and allow of one decision leave what both contain."""
    assert limited(pin={"tp": 4}, allow={"tp": (2, 4), "cp": (1, 2)}) == {"tp": (4,), "cp": (1, 2)}
    assert limited(pin={"tp": 8}, allow={"tp": (2, 4)}) == {"tp": ()}
