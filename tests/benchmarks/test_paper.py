"""The paper's benchmark: what counts, and that it notices each of MoFa's formulas broken by 3 %."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest

from benchmarks.paper.checks import Basis, all_checks
from benchmarks.paper.literature import literature_checks
from costmodel import memory, reliability
from costmodel.models import flops
from costmodel.network import collectives
from costmodel.pipelines import schedules
from costmodel.step import data_parallel, layer, overlap, rank_time
from costmodel.timing.roofline import MeasuredTimes, Roofline

PACKAGES = ("costmodel", "planner", "benchmarks", "constraints")


def clear_caches() -> None:
    """Forget every result of the cost model."""
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES):
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


FORMULAS: dict[str, tuple[Any, str]] = {
    "(1), (19) roofline": (Roofline, "forward_seconds"),
    "(1), (19) roofline, backward pass": (Roofline, "backward_seconds"),
    "(1) measured rates": (MeasuredTimes, "forward_seconds"),
    "(2) rings": (collectives, "_ring_seconds"),
    "(2) all-reduce": (collectives, "all_reduce"),
    "(3) bandwidth of many ranks": (collectives, "_bandwidth"),
    "(4) weights": (memory, "weight_bytes"),
    "(4) gradients": (memory, "gradient_bytes"),
    "(4), (25) optimizer": (memory, "optimizer_bytes"),
    "(5) chunks in flight": (schedules, "chunks_in_flight"),
    "(5), (31) kept activations": (memory, "kept_bytes"),
    "(33) offloaded activations": (memory, "activation_bytes"),
    "(9), (11) hops": (schedules, "p2p_exposed_seconds"),
    "(12) busy time": (schedules, "busy_seconds"),
    "(12) bubble": (schedules, "interleaved_bubble_seconds"),
    "(12) plain 1F1B": (schedules, "plain_seconds"),
    "(13), (24) DP by the measured law": (overlap, "measured_law_exposed_dp_seconds"),
    "(15) FLOPs": (flops, "model_flops_per_token"),
    "(15) FLOP/s": (flops, "flops_per_second_per_device"),
    "(20) TP": (overlap, "exposed_tp_seconds"),
    "(21) CP": (overlap, "exposed_cp_seconds"),
    "(22) EP": (overlap, "exposed_overlapped_seconds"),
    "(24) DP": (overlap, "exposed_dp_seconds"),
    "(23) transfers between ranks": (rank_time, "pp_seconds"),
    "(26) update": (data_parallel, "device_update_seconds"),
    "(28) update on the host": (data_parallel, "host_update_seconds"),
    "(30), (32) recomputation": (layer, "recompute_seconds"),
    "(34), (35) copies to the host": (layer, "host_copy_seconds"),
    "(39) total time": (reliability, "total_seconds"),
    "(41) MTTR": (reliability, "mttr_seconds"),
    "(44) interval": (reliability, "optimal_interval_steps"),
}


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
@pytest.mark.parametrize(("owner", "name"), FORMULAS.values(), ids=FORMULAS)
def test_the_benchmark_notices_a_broken_formula(break_formula, owner, name, factor):
    """3 % less or more of one formula, and a number beside a printed one or one of the literature does not hold."""
    break_formula(owner, name, factor)

    failed = (check for check in chain(literature_checks(), all_checks()) if not check.holds)

    assert next(failed, None) is not None
