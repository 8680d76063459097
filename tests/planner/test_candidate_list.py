"""Lists of strategies: read, searched, and what the rules leave of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from constraints.rule import sentence
from constraints.rules import physics
from costmodel.errors import SpecError
from costmodel.strategy import Recompute
from planner.jobs.candidate_list import MAX_ROWS, read_candidate_list
from planner.jobs.problem import load
from planner.report import render
from planner.search.branch_and_bound import Status
from planner.search.listed import check_list
from planner.search.space import build_space
from planner.verbs.plan import plan
from planner.verbs.repairs import search_or_explain
from tests.builders_problem import a_problem, limits_of
from tests.planner.test_job import a_job


@pytest.fixture
def read(tmp_path):
    """Writes a file and reads it as a list."""

    def write_and_read(text, name="mine.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_candidate_list(path)

    return write_and_read


def with_candidates(problem, candidate_list):
    """The problem with these strategies only."""
    return replace(problem, search=replace(problem.search, candidates=candidate_list))


def test_empty_cells_are_left_open(read):
    """Spaces around cells and empty lines do not count."""
    candidate_list = read("tp, recompute ,tp_overlap\n8,none,true\n\n4, ,\n,full,false\n")

    assert candidate_list.rows == (
        {"tp": 8, "recompute": Recompute.NONE, "tp_overlap": 1},
        {"tp": 4},
        {"recompute": Recompute.FULL, "tp_overlap": 0},
    )
    assert candidate_list.places == ("line 2", "line 4", "line 5")


def test_yaml_lists_mappings(read):
    """The same in another spelling."""
    assert read("[{tp: 8, recompute: none}, {pp: 4}]", "mine.yaml").rows == ({"tp": 8, "recompute": 0}, {"pp": 4})


BAD_LISTS = [
    ("mine.csv", "tpp\n8\n", "mine.csv, line 1, column 1: 'tpp' is no decision. Did you mean 'tp'?"),
    ("mine.csv", "tp,tp\n8,8\n", "mine.csv, line 1, column 2: 'tp' is written twice."),
    ("mine.csv", "tp,pp\n8,4\n8,x\n", "mine.csv, line 3, pp: expected a whole number, got 'x'."),
    ("mine.csv", "tp\n8,4\n", "mine.csv, line 2: has 2 cells, the header 1."),
    ("mine.csv", "tp,pp\n,\n", "mine.csv, line 2: gives no decision, and so would allow every strategy."),
    ("mine.csv", "tp,recompute\n8,ful\n", "got 'ful'. Did you mean 'full'?"),
    ("mine.csv", "", "mine.csv: holds no strategy."),
    ("mine.csv", "tp\n" + "8\n" * (MAX_ROWS + 1), "mine.csv: holds more than 10,000 strategies."),
    ("mine.yaml", "tp: 8", "mine.yaml: expected a list of strategies such as [{tp: 8, pp: 4}], got {'tp': 8}."),
    ("mine.yaml", "[{tp: 8}, 8]", "mine.yaml, entry 2: expected decisions such as {tp: 8}, got 8."),
    ("mine.txt", "tp\n8", "search.candidates: "),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD_LISTS)
def test_a_wrong_list_is_refused_with_its_place(read, name, text, message):
    """File, line or entry, decision."""
    with pytest.raises(SpecError) as caught:
        read(text, name)

    assert message in str(caught.value)


def test_a_list_lies_beside_the_job(tmp_path):
    """It is among the files that were read, so that no report overwrites it."""
    (tmp_path / "mine.csv").write_text("tp\n2\n")
    path = tmp_path / "job.yaml"
    path.write_text(str(a_job(search={"candidates": "mine.csv"})))

    problem = load(path)

    assert problem.search.candidates.rows == ({"tp": 2},)
    assert problem.sources[-1] == tmp_path / "mine.csv"


def test_only_listed_strategies_are_found(read):
    """The best of the list is not the best of all; the search chooses what the row leaves open."""
    problem = a_problem()
    candidate_list = read("tp,pp,recompute\n2,2,full\n4,1,full\n")

    outcome = search_or_explain(with_candidates(problem, candidate_list))

    (strategy,) = outcome.strategies
    assert outcome.status == Status.OPTIMAL
    assert {"tp": strategy.tp, "pp": strategy.pp, "recompute": strategy.recompute} in candidate_list.rows
    alone = [search_or_explain(replace(problem, search=limits_of(pin=row))).step_seconds for row in candidate_list.rows]
    assert outcome.step_seconds == min(alone)


def test_a_list_goes_beyond_what_the_search_tries(read):
    """A micro-batch of 32, recomputation by module."""
    problem = a_problem(workload={"global_batch_size": 64})

    outcome = search_or_explain(with_candidates(problem, read("mbs,recompute\n32,mlp+norms\n")))

    assert outcome.strategies[0].mbs == 32
    assert outcome.strategies[0].recompute == Recompute.of("mlp", "norms")


def test_impossible_rows_are_counted_with_their_rules(read):
    """Three ranks do not divide eight devices' heads; a pipeline of one rank has nothing to overlap."""
    problem = a_problem()
    candidate_list = read("tp,pp,pp_overlap\n2,2,false\n16,1,false\n1,1,true\n")
    problem = with_candidates(problem, candidate_list)

    found = check_list(problem, build_space(problem))

    assert (found.num_rows, found.num_impossible) == (3, 2)
    first, other = found.impossible
    assert (first.place, other.place) == ("line 3", "line 4")
    assert sentence(physics.tp_stays_inside_a_scale_up_domain) in first.rules
    assert any("pipeline" in rule for rule in other.rules)


def test_a_list_without_a_possible_row_is_explained(read):
    """Nothing fits; list and limit are named together, and the report has both."""
    problem = a_problem(pin={"tp": 4})
    report = plan(with_candidates(problem, read("tp,recompute\n2,none\n1,full\n")))

    assert report.exit_code == 1
    assert any(
        {"search.pin: tp is 4.", "search.candidates: the strategy is one of the 2 in mine.csv."} <= set(rules)
        for rules in report.outcome.conflict.exclusive
    )
    assert report.outcome.conflict.release == ("search.pin: tp is 4.",)
    assert "line 2      forbidden: search.pin: tp is 4." in render(report)
