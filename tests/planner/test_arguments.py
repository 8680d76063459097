"""Arguments of the public verbs: paths as text, and what is of no type that a verb takes is wrong input."""

import pytest

from costmodel.errors import SpecError
from planner.api import compare, estimate, explain, import_job, load, plan, read_any, read_plan, render
from tests.cases import in_one_case
from tests.planner.test_job import JOB_TEXT


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    """A job that was read."""
    path = tmp_path_factory.mktemp("jobs") / "job.yaml"
    path.write_text(JOB_TEXT)
    return load(str(path))


def test_a_saved_plan_is_read_by_the_text_of_its_path(problem, tmp_path):
    """As scripts have it: ``read_plan("plan.json")``."""
    report = estimate(problem, {})
    (tmp_path / "keep.json").write_text(render(report, "json"))

    assert read_plan(str(tmp_path / "keep.json")).plan.strategy == report.plan.strategy


@in_one_case("path", [None, [], 3, b"job.yaml"], ids=repr)
@in_one_case("verb", [load, read_plan, import_job, read_any])
def test_what_is_no_path_is_wrong_input(verb, path):
    """One sentence that says what was expected and seen."""
    with pytest.raises(SpecError, match=r"expected .*, got "):
        verb(path)


@in_one_case("verb", [plan, lambda job: estimate(job, {}), explain, compare])
@in_one_case("job", [None, {"model": "llama3-8b"}, "job.yaml"], ids=repr)
def test_what_was_not_read_is_wrong_input(verb, job):
    """Jobs are read first: ``plan(load(...))``."""
    with pytest.raises(SpecError, match=r"expected a job as load returns it, got "):
        verb(job)


@pytest.mark.parametrize("decisions", [["tp=8"], 8], ids=repr)
def test_decisions_are_a_line_or_a_mapping(decisions, problem):
    """Nothing else."""
    with pytest.raises(SpecError, match=r"strategy: expected a line such as .*, or a mapping such as \{tp: 8\}, got "):
        estimate(problem, decisions)
