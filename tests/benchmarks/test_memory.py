"""The chance that runs are given to fit, their groups left out: the goals of ``benchmarks.plans.memory``."""

from __future__ import annotations

import pytest

from benchmarks.plans.laws import chances_without_groups, fit_laws
from benchmarks.plans.memory import LEAST_CAUGHT, MOST_WRONG_SHARE, below_half, document, uses_of
from planner.uncertainty.peaks import laws
from tests.builders_runs import project_predictions
from tests.cases import require_near

pytestmark = pytest.mark.slow  # all measured runs are predicted


@pytest.fixture(scope="module")
def uses():
    """What the project's runs tell."""
    return uses_of(project_predictions())


def test_what_ran_out_of_memory_is_expected_to(uses):
    """Of 13 at least 10 get a chance below one half, of what ran at most 2 %."""
    chances = chances_without_groups(uses)

    assert below_half(uses, chances, has_run=False) >= LEAST_CAUGHT
    assert below_half(uses, chances, has_run=True) <= MOST_WRONG_SHARE * sum(use.has_run for use in uses)


def test_the_shipped_laws_are_those_of_the_shipped_runs(uses):
    """The planner's file is what the benchmark writes."""
    require_near(document(fit_laws(uses)), document([*laws().values()]))
