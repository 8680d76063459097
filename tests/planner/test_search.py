"""The search: proof, ties, several strategies, time limits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest

from costmodel.step import step
from costmodel.strategy import OVERLAPS, Recompute
from planner import plan, render
from planner.search import branch_and_bound as module
from planner.search import solver as clocks
from planner.search.branch_and_bound import GROUP_DECISIONS, Status
from planner.search.candidates import CostTable, Formulas
from planner.search.questions import search
from planner.search.space import build_space
from planner.verbs.repairs import search_or_explain
from tests.builders import a_model, a_moe_model
from tests.builders_cluster import GB
from tests.builders_problem import a_problem, a_timed_device

GRAPHLESS = {"token_dispatcher": 0, "cuda_graphs": 0}
OTHERS = dict.fromkeys(("sharding", "activation_offload", "optimizer_offload"), 0) | GRAPHLESS
PINS = {"recompute": 0, **OTHERS}


@dataclass(frozen=True)
class MadeUp:
    """A cost made up by a test."""

    step_seconds: object
    device_bytes: object = 0.0
    host_bytes: object = 0.0


@dataclass(frozen=True)
class WithBubble(MadeUp):
    """With the share that the pipeline idles."""

    bubble_seconds: object = 0.0


def nothing_is_known(facts, decisions, **_):
    """The loosest bound."""
    return np.zeros(np.shape(decisions["tp"]))


def nothing_is_needed(facts, decisions):
    """The loosest bound of the memory."""
    return MadeUp(step_seconds=np.float64(0))


def every_set_is_needed(facts, decisions, *, sets, **_):
    """No set of modules makes another one needless."""
    return np.zeros((len(decisions["tp"]), len(sets)), dtype=bool)


BLIND = Formulas(lower_bound=nothing_is_known, least_seconds=nothing_is_known, least_memory=nothing_is_needed)
"""The loosest bounds of all."""


def of_cost(cost):
    """Nothing is known of a made-up cost but itself."""
    whole = replace(BLIND, needless_sets=every_set_is_needed, memory=cost)
    return replace(whole, cost=lambda facts, decisions, **_: cost(facts, decisions))


def searched(problem, cost):
    """A search with a made-up cost."""
    return search_or_explain(problem, of_cost(cost))


def test_an_optimal_outcome_carries_its_proof():
    """The bound meets the value, the value is that of the strategy in floats."""
    problem = a_problem(a_moe_model(num_layers=4), num_devices=16)

    outcome = search_or_explain(problem)

    (strategy,) = outcome.strategies
    assert outcome.status == Status.OPTIMAL
    assert outcome.gap == 0
    assert outcome.step_seconds == (float(step.cost(problem.facts, strategy.decisions()).step_seconds),)
    assert abs(outcome.lower_bound_seconds - outcome.step_seconds[0]) <= outcome.rounding_bound_seconds
    assert outcome.conflict is None
    assert outcome.effort.num_rows_tabulated <= outcome.effort.num_rows


def test_the_bound_only_saves_work():
    """With bounds that know nothing, the same strategy comes out of more rows."""
    problem = a_problem(a_model(num_layers=4, hidden_size=512, ffn_hidden_size=2048), num_devices=16)

    with_bound, without = search_or_explain(problem), search_or_explain(problem, BLIND)

    assert with_bound.strategies == without.strategies
    assert with_bound.effort.num_rows_tabulated < without.effort.num_rows_tabulated == without.effort.num_rows


@pytest.mark.slow
@pytest.mark.parametrize(("memory_bytes", "variants"), [(0.12 * GB, "groups"), (2 * GB, "all")])
def test_modes_leave_out_nothing_that_matters(memory_bytes, variants):
    """What the memory and the bound of a row's modes exclude is not among the best ten; it is most of the space."""
    device = a_timed_device(memory_bytes=memory_bytes)
    problem = replace(
        a_problem(a_moe_model(num_layers=4), num_devices=16, device=device, top=10, pin={"cp": 1}), variants=variants
    )

    with_modes = search_or_explain(problem, Formulas(lower_bound=nothing_is_known))
    without = search_or_explain(problem, replace(BLIND, needless_sets=every_set_is_needed))

    assert with_modes.strategies == without.strategies != ()
    effort = with_modes.effort
    assert effort.num_bounded + effort.num_bounded_tabulated > effort.size / 3
    assert without.effort.num_bounded == without.effort.num_bounded_tabulated == 0


@pytest.mark.slow
def test_several_strategies_differ_in_their_degrees():
    """One per group, best first, and the first is that of a search for one."""
    problem = a_problem(a_moe_model(num_layers=4), num_devices=16)

    outcome = search_or_explain(replace(problem, top=8))

    groups = {tuple(getattr(strategy, name) for name in GROUP_DECISIONS) for strategy in outcome.strategies}
    assert len(groups) == len(outcome.strategies) == 8
    assert list(outcome.step_seconds) == sorted(outcome.step_seconds)
    assert outcome.strategies[0] == search_or_explain(problem).strategies[0]


def test_fewer_groups_than_wanted_are_all_listed():
    """Two devices and one sequence leave two groups."""
    outcome = search_or_explain(a_problem(a_model(), num_devices=2, workload={"global_batch_size": 1}, top=10))

    assert outcome.status == Status.OPTIMAL
    assert len(outcome.strategies) == 2


@pytest.mark.slow
def test_all_variants_are_the_best_whatever_their_group():
    """The list of groups is a part of it as far as it reaches, and its first is the same."""
    problem = a_problem(a_moe_model(num_layers=4), num_devices=16, top=40)

    groups, variants = search_or_explain(problem), search_or_explain(replace(problem, variants="all"))

    assert variants.status == Status.OPTIMAL
    assert len(set(variants.strategies)) == 40
    assert np.diff(variants.step_seconds).min() >= -variants.rounding_bound_seconds
    assert variants.strategies[0] == groups.strategies[0]
    reached = [
        one
        for one, seconds in zip(groups.strategies, groups.step_seconds, strict=True)
        if seconds < variants.step_seconds[-1] - variants.rounding_bound_seconds
    ]
    assert set(reached) <= set(variants.strategies)
    assert len({tuple(getattr(one, name) for name in GROUP_DECISIONS) for one in variants.strategies}) < 40


def test_variants_that_folding_and_dominance_would_drop_are_listed():
    """Two overlaps that save nothing and a recomputation that only costs: all eight combinations, best first."""
    free = ("tp_overlap", "dp_overlap", "recompute")
    pins = {"tp": 2, "pp": 1, "dp": 2, "mbs": 1, "cp": 1, **OTHERS, "sharding": 1}

    def cost(facts, decisions):
        slower = (decisions["recompute"] == Recompute.FULL) + 0.0
        overlaps = decisions["tp_overlap"] + 2 * decisions["dp_overlap"]
        return MadeUp(step_seconds=1.0 + slower + 0.1 * overlaps, device_bytes=1e6 + 1e6 * slower)

    problem = a_problem(num_devices=4, pin=pins, allow={"recompute": (0, 2)}, top=100)
    outcome = searched(replace(problem, variants="all"), cost)

    assert outcome.step_seconds == pytest.approx((1.0, 1.1, 1.2, 1.3, 2.0, 2.1, 2.2, 2.3))
    assert len({tuple(getattr(one, name) for name in free) for one in outcome.strategies}) == 8


@pytest.mark.slow
def test_every_strategy_is_accounted_for():
    """Bounded, cut, dominated or handed to the solver: together they are the space."""
    for variants in ("groups", "all"):
        problem = a_problem(a_moe_model(num_layers=4), num_devices=16, top=5)

        effort = search_or_explain(replace(problem, variants=variants)).effort

        assert effort.num_bounded + effort.num_tabulated == effort.size
        left_out = effort.num_untimed + effort.num_bounded_tabulated + effort.num_cut
        went_on = effort.num_tabulated - left_out - effort.num_needless - effort.num_unfit_tabulated
        assert went_on >= 5 if variants == "all" else went_on == effort.num_candidates


@pytest.mark.slow
def test_equal_times_are_decided_by_memory_then_by_decisions():
    """All strategies take a second; full recomputation is made smallest, everything else is equal."""

    def cost(facts, decisions):
        one = (decisions["recompute"] == Recompute.FULL) + 0.0
        return MadeUp(step_seconds=one * 0 + 1.0, device_bytes=GB - one * 1e8)

    outcome = searched(a_problem(pin=GRAPHLESS), cost)

    (strategy,) = outcome.strategies
    assert strategy.recompute == Recompute.FULL
    assert (strategy.tp, strategy.cp, strategy.pp, strategy.mbs, strategy.sharding) == (1, 1, 1, 1, 0)
    assert not any(getattr(strategy, name) for name in OVERLAPS)


def test_differences_below_a_tick_do_not_switch_overlaps_on():
    """A gain of a nanosecond is none."""

    def cost(facts, decisions):
        return MadeUp(step_seconds=1.0 - 1e-9 * decisions["tp_overlap"] - 1e-9 * decisions["dp_overlap"])

    outcome = searched(a_problem(pin=PINS), cost)

    assert not any(getattr(outcome.strategies[0], name) for name in OVERLAPS)


def test_a_pinned_overlap_stays_on_although_it_costs():
    """The fastest overlaps are chosen among the allowed ones."""

    def cost(facts, decisions):
        return MadeUp(step_seconds=1.0 + sum(decisions[name] for name in OVERLAPS))

    outcome = searched(a_problem(pin={"tp": 2, "tp_overlap": 1}), cost)

    assert [getattr(outcome.strategies[0], name) for name in OVERLAPS] == [True, False, False, False, False]


def test_an_overlap_that_takes_memory_is_used_only_where_it_fits():
    """It saves time everywhere, and its memory is there with full recomputation only, which is slower on its own."""

    def cost(facts, decisions):
        full = decisions["recompute"] == Recompute.FULL
        device_bytes = np.where(full, 0.2 * GB, 0.4 * GB) + 0.2 * GB * decisions["tp_overlap"]
        return MadeUp(step_seconds=3.0 + 0.5 * full - 1.0 * decisions["tp_overlap"], device_bytes=device_bytes)

    outcome = searched(a_problem(pin={"tp": 2}, device=a_timed_device(memory_bytes=0.5 * GB)), cost)

    assert outcome.step_seconds == (2.5,)
    assert outcome.strategies[0].tp_overlap
    assert outcome.strategies[0].recompute == Recompute.FULL


def test_memory_decides_to_the_byte():
    """The fastest strategy fits with one byte less of it, and does not with one byte too much."""
    needed = 0.5 * GB + 3

    def cost(facts, decisions):
        fast = decisions["recompute"] == Recompute.NONE
        return MadeUp(step_seconds=np.where(fast, 1.0, 2.0), device_bytes=np.where(fast, needed, 1.0))

    fits = searched(a_problem(pin=OTHERS, device=a_timed_device(memory_bytes=needed)), cost)
    does_not = searched(a_problem(pin=OTHERS, device=a_timed_device(memory_bytes=needed - 1)), cost)

    assert fits.step_seconds == (1.0,)
    assert does_not.step_seconds == (2.0,)


def test_memory_that_fits_exactly_survives_the_noise_of_floats():
    """A table and a scalar may sum in another order; the last bit is no reason to fail."""
    needed = 0.7 * GB

    def cost(facts, decisions):
        alone = np.ndim(decisions["tp"]) == 0
        return MadeUp(step_seconds=1.0, device_bytes=np.nextafter(needed, np.inf) if alone else needed)

    outcome = searched(a_problem(pin=PINS, device=a_timed_device(memory_bytes=needed)), cost)

    assert outcome.status == Status.OPTIMAL


def test_headroom_is_left_free():
    """The best strategy of a tight device changes when headroom is asked for."""
    problem = a_problem(a_model(num_layers=4, hidden_size=1024, ffn_hidden_size=4096, vocab_size=32000))
    best = search_or_explain(problem)
    used = float(step.cost(problem.facts, best.strategies[0].decisions()).device_bytes)
    limits = replace(problem.search, memory_headroom_bytes=problem.facts.cluster.device.memory_bytes - used + 1)

    cramped = search_or_explain(replace(problem, search=limits))

    assert cramped.status == Status.OPTIMAL
    assert cramped.step_seconds > best.step_seconds


def test_strategies_that_cannot_be_timed_are_left_out():
    """A measured profile has no time for some shapes: infinite or undefined."""

    def cost(facts, decisions):
        unknown = np.where(decisions["tp"] == 1, np.inf, np.nan)
        return MadeUp(step_seconds=np.where(decisions["tp"] == 2, 1.0, unknown) + 0.0 * decisions["tp_overlap"])

    outcome = searched(a_problem(pin=PINS), cost)

    assert outcome.strategies[0].tp == 2


def test_times_beyond_the_solver_still_have_an_answer():
    """A step of 10^20 seconds saturates the ticks."""
    outcome = searched(a_problem(pin=PINS), lambda facts, decisions: MadeUp(step_seconds=1e20 * decisions["tp"]))

    assert len(outcome.strategies) == 1


def test_without_time_there_is_no_claim():
    """Nothing found and nothing proven, but the bound of the rows holds."""
    problem = a_problem(time_limit_seconds=1e-9)

    outcome = search_or_explain(problem)

    assert outcome.status == Status.UNKNOWN
    assert outcome.strategies == ()
    assert 0 < outcome.lower_bound_seconds <= search_or_explain(a_problem()).step_seconds[0]
    assert outcome.conflict is None


@pytest.fixture
def clock(monkeypatch):
    """A clock of the processor and the wall that only what a test says moves on."""
    now = {"seconds": 0.0}
    for name in ("process_time", "perf_counter"):
        monkeypatch.setattr(clocks.time, name, lambda: now["seconds"])
    return now


def num_left(outcome):
    """Strategies that are neither costed nor excluded by a bound."""
    effort = outcome.effort
    return effort.size - effort.num_tabulated - effort.num_bounded


def test_a_report_says_what_is_left_when_time_runs_out(monkeypatch, clock):
    """All strategies but those of the first row, whose costs took all of the limit."""
    problem = a_problem(a_moe_model(num_layers=6), num_devices=32, workload={"global_batch_size": 64})
    monkeypatch.setattr(module, "FIRST_BATCH_ROWS", 1)
    original = CostTable.cost

    def cost(table, block, cuts):
        clock["seconds"] += 40.0
        return original(table, block, cuts)

    monkeypatch.setattr(CostTable, "cost", cost)
    report = plan(problem)

    text = " ".join(render(report, "table").split())
    assert report.exit_code == 3
    assert num_left(report.outcome) > 0
    assert f"left {num_left(report.outcome):,} strategies, neither costed nor excluded by a bound" in text


@pytest.mark.slow
def test_time_that_runs_out_leaves_a_gap(monkeypatch, clock):
    """The clock jumps after the first batch: a strategy in hand, bounded by the next row."""
    problem = a_problem(a_moe_model(num_layers=6), num_devices=32, workload={"global_batch_size": 64})
    monkeypatch.setattr(module, "FIRST_BATCH_ROWS", 1)

    def cost(facts, decisions, **at_most):
        clock["seconds"] += 40.0
        return step.cost(facts, decisions, **at_most)

    outcome = search_or_explain(problem, Formulas(cost=cost))

    best = search_or_explain(problem)
    assert outcome.status == Status.FEASIBLE
    assert num_left(outcome) > 0
    assert num_left(best) == 0
    assert 0 < outcome.gap < 1
    assert outcome.lower_bound_seconds <= best.lower_bound_seconds
    assert best.lower_bound_seconds <= outcome.step_seconds[0] + module.ROUNDING_BOUND_SECONDS


@pytest.mark.slow
def test_a_search_that_finds_nothing_for_long_asks_for_the_roomiest_row(monkeypatch):
    """The only row that fits comes last by its bound; then the search goes on from it."""
    monkeypatch.setattr(module, "INFEASIBILITY_CHECK_ROWS", 32)

    def cost(facts, decisions):
        last = decisions["tp"] * decisions["pp"] == 8
        return MadeUp(step_seconds=np.where(last, 9.0, 1.0), device_bytes=np.where(last, 0.0, 1e15))

    def lower_bound(facts, decisions):
        return cost(facts, decisions).step_seconds

    outcome = search_or_explain(a_problem(a_model(num_layers=8)), replace(of_cost(cost), lower_bound=lower_bound))

    assert outcome.status == Status.OPTIMAL
    assert outcome.step_seconds == (9.0,)


@pytest.mark.slow
def test_nothing_that_fits_is_proven_infeasible_early(monkeypatch):
    """After few rows memory alone is asked for."""
    monkeypatch.setattr(module, "INFEASIBILITY_CHECK_ROWS", 32)
    monkeypatch.setattr(module, "FIRST_BATCH_ROWS", 32)
    problem = a_problem(a_model(num_layers=8), device=a_timed_device(memory_bytes=1e6))

    outcome = search_or_explain(problem)

    assert outcome.status == Status.INFEASIBLE
    assert outcome.effort.num_rows_tabulated < outcome.effort.num_rows
    assert outcome.gap == outcome.lower_bound_seconds == np.inf


def test_an_empty_space_is_infeasible():
    """Seven heads and a pin of tp = 2."""
    outcome = search_or_explain(a_problem(a_model(num_heads=7, num_kv_heads=7, head_dim=8), pin={"tp": 2}))

    assert outcome.status == Status.INFEASIBLE
    assert outcome.effort.num_rows == 0


SCRIPT = """
import json
from dataclasses import asdict
from planner.verbs.repairs import search_or_explain
from tests.builders import a_moe_model
from tests.builders_problem import a_problem
outcome = search_or_explain(a_problem(a_moe_model(num_layers=4), num_devices=16, top=5))
print(json.dumps([[asdict(one) for one in outcome.strategies], outcome.step_seconds]))
"""


@pytest.mark.slow
def test_the_same_problem_gives_the_same_bytes():
    """Whatever the order of Python's sets."""
    here = search_or_explain(a_problem(a_moe_model(num_layers=4), num_devices=16, top=5))

    there = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"}
    )

    assert there.stdout.strip() == json.dumps([[asdict(one) for one in here.strategies], here.step_seconds])


def test_the_bubble_is_at_most_what_the_job_allows():
    """Pipelines of two are twice as fast and idle for a fifth; one tenth is allowed, so that nothing is pipelined."""

    def cost(facts, decisions):
        piped = decisions["pp"] > 1
        return WithBubble(step_seconds=np.where(piped, 1.0, 2.0), bubble_seconds=np.where(piped, 0.2, 0.0))

    free = searched(a_problem(pin=PINS), cost)
    bounded = searched(a_problem(pin=PINS, max_bubble_fraction=0.1), cost)
    just = searched(a_problem(pin=PINS, max_bubble_fraction=0.2), cost)

    assert free.strategies[0].pp == just.strategies[0].pp == 2
    assert bounded.strategies[0].pp == 1
    assert bounded.status == Status.OPTIMAL


def test_an_overlap_is_left_off_where_it_makes_the_bubble_too_large_a_share():
    """The bubble stays, the step shrinks: 1 of 10 s is within a tenth, 1 of 9 s is not."""

    def cost(facts, decisions):
        return WithBubble(step_seconds=10.0 - decisions["tp_overlap"], bubble_seconds=1.0)

    outcome = searched(a_problem(pin={"tp": 2, **PINS}, max_bubble_fraction=0.1), cost)

    assert outcome.step_seconds == (10.0,)
    assert not outcome.strategies[0].tp_overlap


def test_a_bubble_that_every_strategy_exceeds_is_named():
    """The pin demands a pipeline; without the bound there is a strategy."""
    problem = a_problem(a_model(num_layers=4), pin={"pp": 4}, max_bubble_fraction=1e-6)

    outcome = search_or_explain(problem)

    says = "search.max_bubble_fraction: the pipeline idles for at most 0.0001 % of the step."
    assert outcome.status == Status.INFEASIBLE
    assert outcome.conflict.exclusive == outcome.conflict.repairs == ((says,),)
    assert outcome.conflict.release == (says,)
    just = replace(problem.search, max_bubble_fraction=outcome.conflict.least_bubble_fraction * (1 + 1e-9))
    below = replace(problem.search, max_bubble_fraction=outcome.conflict.least_bubble_fraction * (1 - 1e-9))
    assert search(replace(problem, search=just)).status == Status.OPTIMAL
    assert search(replace(problem, search=below)).status == Status.INFEASIBLE


def test_what_else_excludes_everything_is_named_beside_a_bound_of_the_bubble():
    """Sixteen ranks have no place in a domain of eight, with the bound or without it."""
    outcome = search_or_explain(a_problem(pin={"tp": 16}, max_bubble_fraction=0.1))

    assert outcome.conflict.release == ("search.pin: tp is 16.",)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "variants"), [(1.0, "groups"), (1.0, "all")])
def test_a_time_limit_holds_within_a_fifth(clock, limit, variants):
    """Each row takes 10 ms to tabulate, its modes less; batches shrink to what the clock leaves."""
    model, batch = a_moe_model(num_layers=8), {"global_batch_size": 64}
    problem = a_problem(model, num_devices=64, workload=batch, top=1000, pin=GRAPHLESS)

    def cost(facts, decisions):
        strategies = np.broadcast(*decisions.values())
        clock["seconds"] += 0.01 * strategies.size / features * (strategies.ndim > 0)
        return step.cost(facts, decisions)

    features = build_space(problem).allowed[0].size
    limits = replace(problem.search, time_limit_seconds=limit)
    asked = replace(problem, search=limits, variants=variants)
    outcome = search_or_explain(asked, of_cost(cost))

    assert outcome.status == Status.FEASIBLE
    assert clock["seconds"] <= 1.2 * limit


def test_bounds_stop_with_the_time(clock, monkeypatch):
    """Each chunk of bounds takes a second; after the limit none is begun, and the bound that is left is none."""
    monkeypatch.setattr(module, "BOUND_ROWS", 16)
    problem = a_problem(a_moe_model(num_layers=8), num_devices=64, time_limit_seconds=2.5)

    def lower_bound(facts, decisions):
        clock["seconds"] += 1.0
        return step.lower_bound_seconds(facts, decisions)

    outcome = search_or_explain(problem, Formulas(lower_bound=lower_bound))

    assert outcome.effort.num_rows > 5 * 16
    assert clock["seconds"] == 3.0
    assert outcome.status == Status.UNKNOWN
    assert outcome.lower_bound_seconds == 0


def test_an_explanation_that_time_cuts_short_says_so(clock):
    """Nothing is proven about the reasons, but that nothing fits is."""
    problem = a_problem(a_model(num_layers=8), device=a_timed_device(memory_bytes=1e6), time_limit_seconds=100.0)

    def memory(facts, decisions):
        clock["seconds"] += 60.0
        return step.cost(facts, decisions)

    outcome = search_or_explain(problem, Formulas(memory=memory))

    assert outcome.status == Status.INFEASIBLE
    assert outcome.conflict.is_cut
    assert clock["seconds"] <= 180.0


def test_groups_that_time_leaves_no_solve_for_stay_open(clock):
    """The second solve would come after the limit: what it might have found bounds the gap."""
    problem = a_problem(a_moe_model(num_layers=4), num_devices=16, top=5, time_limit_seconds=5.0)
    original = module.Search.solve

    def solve(self, model, **settings):
        clock["seconds"] += 3.0
        return original(self, model, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Search, "solve", solve)
        outcome = search_or_explain(problem)

    assert outcome.effort.num_solves == 2
    assert outcome.status == Status.FEASIBLE


def test_fewer_devices_are_used_where_that_is_faster_or_all_that_fits():
    """Seven devices: four layers and four heads split over six of them at most, and six sequences feed them."""
    problem = a_problem(a_model(num_layers=4), num_devices=7, workload={"global_batch_size": 6})

    all_of_them, up_to_seven = (
        search_or_explain(problem),
        search_or_explain(replace(problem, search=replace(problem.search, max_devices=7))),
    )

    assert all_of_them.status == Status.INFEASIBLE
    strategy = up_to_seven.strategies[0]
    assert up_to_seven.status == Status.OPTIMAL
    assert 1 < strategy.tp * strategy.cp * strategy.pp * strategy.dp < 7


def test_too_few_devices_are_named_with_what_they_lack():
    """One device has no room; the bound of the devices is what to release."""
    model = a_model(num_layers=8, hidden_size=2048, ffn_hidden_size=8192, vocab_size=32000)
    problem = a_problem(model, device=a_timed_device(memory_bytes=4 * GB, host_memory_bytes=GB), max_devices=1)

    outcome = search_or_explain(problem)

    assert outcome.status == Status.INFEASIBLE
    assert outcome.conflict.release == ("search.max_devices: tp * cp * pp * dp is at most 1.",)
    assert search(replace(problem, search=replace(problem.search, max_devices=8))).status == Status.OPTIMAL
