"""The algebra of rules that exclude each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from constraints.conflict import Classes, hitting_sets, necessary, smallest_sets

SETS = st.lists(st.frozensets(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=6)


@settings(max_examples=40)
@given(SETS)
def test_hitting_sets_share_an_element_with_each_set_and_none_is_idle(sets):
    """Without any one of its elements, a hitting set misses a set."""
    for hitting in hitting_sets(sets):
        assert all(hitting & one for one in sets)
        assert all(any(not (hitting - {element}) & one for one in sets) for element in hitting)


@settings(max_examples=40)
@given(SETS)
def test_hitting_sets_of_hitting_sets_are_the_smallest_sets(sets):
    """Conflicts and repairs determine each other (Reiter 1987)."""
    assert set(hitting_sets(hitting_sets(sets))) == set(smallest_sets(sets))


def test_without_a_repair_there_is_no_conflict_to_name():
    """No candidate at all: the empty set of rules already excludes everything."""
    assert hitting_sets([]) == [frozenset()]


def test_necessary_keeps_what_the_contradiction_needs():
    """Below 3 and above 5 exclude each other; below 10 does not matter."""
    rules = [lambda x: x < 10, lambda x: x < 3, lambda x: x > 5]

    kept = necessary(rules, lambda some: any(all(rule(x) for rule in some) for x in range(20)))

    assert kept == rules[1:]


def test_classes_split_by_the_rules_that_are_broken():
    """Four candidates, two rules: one breaks none, one the first, one the second, one both."""
    classes = Classes.one(4).refine(np.array([False, True, False, True]), "first")

    classes = classes.refine(np.array([False, False, True, True]), "second")

    assert [sorted(classes.broken[index]) for index in classes.index] == [
        [],
        ["first"],
        ["second"],
        ["first", "second"],
    ]
    assert classes.index[classes.first].tolist() == list(range(classes.count))
