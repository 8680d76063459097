"""A list of strategies as a rule."""

from __future__ import annotations

import random

import numpy as np

from constraints.limits import CandidateList, candidate_list_rules
from constraints.rule import sentence

NAMES = ("tp", "cp", "pp", "recompute")


def a_candidate_list(*rows):
    """Rows without a file."""
    return CandidateList(source="some.csv", rows=rows, places=tuple(map(str, range(len(rows)))))


def test_a_strategy_is_listed_exactly_where_a_row_says_so():
    """Random lists with open cells against a loop over the rows, for all combinations of small values at once."""
    chooser = random.Random(1)
    table = np.meshgrid(*[np.arange(5)] * len(NAMES), indexing="ij", sparse=True)
    for _ in range(15):
        rows = [
            {name: chooser.randrange(5) for name in chooser.sample(NAMES, chooser.randint(1, 4))}
            for _ in range(chooser.randint(1, 12))
        ]
        rule = candidate_list_rules(a_candidate_list(*rows), ())[0]
        columns = dict(zip(NAMES, table, strict=True))
        asked = {name: columns[name] for name in NAMES if any(name in row for row in rows)}

        answers = np.broadcast_to(rule(**asked), (5, 5, 5, 5))

        for cell in np.ndindex(5, 5, 5, 5):
            values = dict(zip(NAMES, cell, strict=True))
            assert answers[cell] == any(row.items() <= values.items() for row in rows)


def test_beginnings_are_asked_only_where_every_row_limits_them():
    """The second row leaves tp open, so that no tp can be refused before pp is known."""
    rules = candidate_list_rules(a_candidate_list({"tp": 2, "pp": 4}, {"pp": 8}), ("tp", "pp", "cp"))

    assert len(rules) == 1
    assert [bool(rules[0](tp=tp, pp=pp)) for tp, pp in [(2, 4), (4, 4), (4, 8)]] == [True, False, True]


def test_the_sentence_says_how_many_there_are():
    """And where they stand."""
    rules = candidate_list_rules(a_candidate_list({"tp": 2}, {"tp": 4}), ("pp", "tp"))

    assert {sentence(rule) for rule in rules} == {"search.candidates: the strategy is one of the 2 in some.csv."}
