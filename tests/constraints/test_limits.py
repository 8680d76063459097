"""The job's pin, allow, limits and forbid as rules."""

from __future__ import annotations

import numpy as np

from constraints import find_violations
from constraints.limits import Bound, limit_rules, list_limits
from constraints.rule import family, sentence
from costmodel.strategy import Recompute, Sharding
from tests.builders_problem import a_problem
from tests.cases import in_one_case

FACTS = a_problem().facts


def test_a_pin_allows_its_value_only():
    """The rule takes one value as well as an array of them."""
    (rule,) = limit_rules(pin={"tp": 8}, allow={}, forbid=())

    assert [bool(holds) for holds in rule(tp=np.array([4, 8]))] == [False, True]
    assert find_violations(FACTS, {"tp": 4}, rules=[rule]) == (rule,)
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
    assert list_limits(pin={"tp": 4}, allow={"tp": (2, 4), "cp": (1, 2)}) == {"tp": (4,), "cp": (1, 2)}
    assert list_limits(pin={"tp": 8}, allow={"tp": (2, 4)}) == {"tp": ()}


KEPT = [
    ("<=", [1, 2], "search.limits: tp is at most 2."),
    ("<", [1], "search.limits: tp is below 2."),
    (">=", [2, 4], "search.limits: tp is at least 2."),
    (">", [4], "search.limits: tp is above 2."),
    ("==", [2], "search.limits: tp is 2."),
    ("!=", [1, 4], "search.limits: tp is not 2."),
]


@in_one_case(("relation", "kept", "says"), KEPT)
def test_a_bound_keeps_what_it_says(relation, kept, says):
    """Of 1, 2 and 4, against 2."""
    (rule,) = limit_rules(pin={}, allow={}, forbid=(), limits=[Bound(names=("tp",), relation=relation, number=2)])

    assert [tp for tp in (1, 2, 4) if rule(tp=tp)] == kept
    assert sentence(rule) == says


def test_a_bound_of_a_product_does_not_overflow():
    """The fourth power of 10^9 is beyond 64 bits, and still more than 16."""
    degrees = ("tp", "cp", "pp", "dp")
    (rule,) = limit_rules(pin={}, allow={}, forbid=(), limits=[Bound(names=degrees, relation="<=", number=16)])

    assert not rule(**dict.fromkeys(degrees, np.int64(10**9)))
    assert rule(**dict.fromkeys(degrees, 2))


def test_micro_batches_are_bounded_like_a_decision():
    """Sixteen sequences over four ranks, one at a time: four."""
    (rule,) = limit_rules(
        pin={}, allow={}, forbid=(), limits=[Bound(names=("num_microbatches",), relation=">=", number=4)]
    )

    assert not find_violations(FACTS, {"dp": 4, "mbs": 1}, rules=[rule])
    assert find_violations(FACTS, {"dp": 4, "mbs": 2}, rules=[rule]) == (rule,)


def test_a_forbidden_combination_may_hold_bounds():
    """Only full recomputation on long pipelines is refused."""
    (rule,) = limit_rules(
        pin={}, allow={}, forbid=[{"recompute": Recompute.FULL, "pp": Bound(names=("pp",), relation=">=", number=16)}]
    )

    assert sentence(rule) == "search.forbid: not both recompute is full and pp is at least 16."
    assert [bool(rule(recompute=2, pp=pp)) for pp in (8, 16)] == [True, False]
    assert bool(rule(recompute=1, pp=16))


def test_an_equality_leaves_one_value_as_a_pin_does():
    """Beside an allow that excludes it, none."""
    bounds = [Bound(names=("tp",), relation="==", number=8), Bound(names=("pp",), relation=">=", number=4)]

    assert list_limits(pin={}, allow={"tp": (4, 8)}, limits=bounds) == {"tp": (8,)}
    assert list_limits(pin={}, allow={"tp": (2, 4)}, limits=bounds) == {"tp": ()}
