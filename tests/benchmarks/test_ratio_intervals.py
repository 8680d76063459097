"""Errors of ratios by the kind of change, and the table of measured runs that the planner names."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.effects.intervals import PairError, coverages, fitted_errors, inside, left_out_hits
from benchmarks.plans.measured import FILE, measured, text_of
from planner.uncertainty.changes import Change, change_errors
from planner.uncertainty.records import read_measured_runs
from tests.builders_runs import project_results, project_table
from tests.cases import require_near


def drawn(size, factor=1.0, changes=(Change.DEGREES,), groups=200, seed=0):
    """Pairs whose logarithms are normal, with 80 % of them within ``factor * size``."""
    logs = np.random.default_rng(seed).normal(0, factor * size / 1.2816, 5 * groups)
    return [
        PairError(
            source=f"source {i % 10}", group=(seed, i % groups), changes=frozenset(changes), distance=1.0, log=log
        )
        for i, log in enumerate(logs)
    ]


def test_a_kind_of_change_gets_its_own_factor():
    """Errors of recomputation twice as large as those of degrees; both intervals hold 80 %."""
    degrees, recompute = drawn(0.1), drawn(0.1, 2.0, (Change.RECOMPUTE,), seed=1)

    errors = fitted_errors([*degrees, *recompute])

    half = {change: errors.half_width(frozenset({change}), 1.0) for change in (Change.DEGREES, Change.RECOMPUTE)}
    assert half[Change.DEGREES] == pytest.approx(0.1, rel=0.06)
    assert half[Change.RECOMPUTE] == pytest.approx(0.2, rel=0.06)


def test_kinds_that_only_change_together_share_the_error():
    """Two kinds, always together: each gets half of the square, so that their interval holds 80 %."""
    both = (Change.GRAPHS, Change.EP_OVERLAP)

    errors = fitted_errors([*drawn(0.1), *drawn(0.2, changes=both, seed=1)])

    factors = {one.change: one for one in errors.factors}
    assert not factors[Change.GRAPHS].alone
    assert errors.half_width(frozenset(both), 1.0) == pytest.approx(0.2, rel=0.06)


def test_kinds_of_few_groups_have_the_error_of_all():
    """Seven groups are too few."""
    errors = fitted_errors([*drawn(0.1), *drawn(0.3, changes=(Change.OFFLOAD,), groups=7, seed=1)])

    assert Change.OFFLOAD not in {one.change for one in errors.factors}
    assert errors.half_width(frozenset({Change.OFFLOAD}), 1.0) == pytest.approx(0.1, rel=0.1)


def test_sources_left_out_are_covered():
    """Pairs of one distribution: 80 % of each source's lie in the interval of the others', within chance."""
    hits = left_out_hits(drawn(0.1))

    shares = coverages(hits)

    assert len(hits) == 1000
    assert shares["pairs"] == pytest.approx(0.8, abs=0.04)  # 2.5 standard deviations of 1,000 draws are 3 %
    assert all(
        hit == inside(fitted_errors([p for p, _ in hits if p.source != pair.source]), pair) for pair, hit in hits[:3]
    )


def test_the_shipped_law_covers_what_it_says():
    """Between 75 and 85 % of the pairs of sources that were left out; no change has more than its own error."""
    errors = change_errors()

    assert 0.75 <= errors.coverage["pairs"] <= 0.85
    assert 0.75 <= errors.coverage["groups"] <= 0.85
    assert {one.change for one in errors.factors} >= {Change.DEGREES, Change.PRECISION, Change.GRAPHS, Change.RECOMPUTE}


@pytest.mark.slow
def test_the_table_of_runs_is_that_of_the_measured_rows():
    """Every step is the row's own; below 200 kB, and as this version predicts them."""
    rows = {one.id: one for one in project_table()[0]}
    shipped = [run for runs in read_measured_runs().values() for run in runs]
    lines = FILE.read_text(encoding="utf-8").splitlines()

    assert FILE.stat().st_size < 200_000
    assert len(shipped) == len(lines) - 1 > 800
    assert all(run.step_seconds == pytest.approx(rows[run.id].step_seconds, rel=1e-4) for run in shipped)
    require_near(text_of(measured(project_results())), FILE.read_text(encoding="utf-8"))
