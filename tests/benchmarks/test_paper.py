"""The paper's benchmark: what counts, and that it notices each of MoFa's formulas broken by 3 %."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any

import pytest

from benchmarks.paper.checks import Basis, Check, all_checks
from benchmarks.paper.literature import literature_checks
from tests.cases import read_table

PACKAGES = ("costmodel", "planner", "benchmarks", "constraints")


def clear_caches() -> None:
    """Forget every result of the cost model; the catalog has none, and takes a second to read."""
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES) and not name.startswith("costmodel.catalog"):
            for value in list(vars(module).values()):
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()


def scale(result: Any, factor: float) -> Any:
    """Return a result times a factor."""
    return tuple(scale(one, factor) for one in result) if isinstance(result, tuple) else factor * result


@pytest.fixture
def break_formula(monkeypatch) -> Iterator[Callable[[Any, str, float], None]]:
    """Break a function wherever it is used, or a method; results are forgotten before and afterwards."""

    def broken(owner: Any, name: str, factor: float) -> None:
        formula = getattr(owner, name)

        def wrong(*given: Any, **named: Any) -> Any:
            return scale(formula(*given, **named), factor)

        places = [owner, *(module for key, module in sys.modules.items() if key.startswith(PACKAGES))]
        for place in places:
            if getattr(place, name, None) is formula:
                monkeypatch.setattr(place, name, wrong)
        clear_caches()

    yield broken
    monkeypatch.undo()
    clear_caches()


FORMULAS = read_table("paper_formulas")


@pytest.mark.slow
def test_numbers_that_we_compute_are_counted_apart_from_printed_ones():
    """The 60 sums of printed parts use no formula of ours; steps of Table 5 are among those that count."""
    found = {check.name: check for check in all_checks()}

    printed = [one for check in found.values() if check.basis == Basis.PRINTED for one in check.comparisons]
    assert len(printed) == 60
    steps = [check for name, check in found.items() if name.startswith("Table 5: step")]
    assert [(len(check.comparisons), check.basis) for check in steps] == [(1, Basis.COMPUTED), (4, Basis.FITTED)]
    assert [name for name, check in found.items() if not check.holds] == []


def test_numbers_of_the_literature_hold():
    """Each is a sum by hand in the check itself."""
    found = list(literature_checks())

    assert [one.label for check in found for one in check.comparisons if not one.holds] == []
    assert {check.basis for check in found} == {Basis.LITERATURE}


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.97, 1.03])
@pytest.mark.parametrize(("owner", "name", "noticing"), FORMULAS.values(), ids=FORMULAS)
def test_the_benchmark_notices_a_broken_formula(break_formula, owner, name, noticing, factor):
    """3 % less or more of one formula, and a number beside a printed one or one of the literature does not hold."""
    break_formula(resolve_name(owner), name, factor)

    found = resolve_name(f"benchmarks.paper.{noticing}")()

    assert not all(check.holds for check in ([found] if isinstance(found, Check) else found))
