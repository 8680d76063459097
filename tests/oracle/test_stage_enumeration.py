"""
Uneven stages against plain enumeration: 3,000 random pipelines and 200 whole problems, many with alternating layers.

The enumeration is nested loops: every way to share the layers out, every choice of each rank, in floats. Of the project
it uses the formulas of one rank's cost and of their sum, not the solver, the bounds, the reductions or the batches. The
sum of the ranks is what layouts are proven by; plain pipelines take no longer, which the oracle's simulator plays.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model

from constraints.stages import (
    Pipeline,
    StageOptions,
    encode_stages,
    objective,
    options_of_dealings,
    read_solution,
)
from costmodel.facts.model import Model
from costmodel.models.flops import head_layers
from costmodel.models.patterns import LayerPattern, shortest_pattern
from costmodel.pipelines.stages import layers_per_chunk
from costmodel.step import layouts as staged
from costmodel.strategy import Recompute, StageLayout, Strategy
from costmodel.tables import Facts, microbatches
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import Status
from planner.search.questions import search
from planner.search.space import build_space, strategy_of
from tests.builders import a_model, a_moe_model
from tests.builders_problem import a_problem, a_timed_device, is_allowed, limits_of
from tests.oracle import blocks, in_step, name_of
from tests.oracle.pipeline_simulator import simulate

SEEDS, ALTERNATING_SEEDS = (blocks(in_step(num), 200, few=range(60)) for num in (2000, 1000))
NUM_PROBLEMS, NUM_ALTERNATING_PROBLEMS, PER_TEST = in_step(100), in_step(100), 20

HUGE = 2**50


# --- single pipelines --------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seeds", SEEDS, ids=name_of)
def test_the_model_of_a_pipeline_finds_what_enumeration_finds(seeds):
    """Random options of up to five ranks: the same least objective, or none in both."""
    found = []
    for seed in seeds:
        options, pipeline = random_pipeline(random.Random(seed))

        least = least_objective(options, pipeline)

        assert solved_objective(options, pipeline) == least, seed
        found.append(least)
    assert None in found
    assert len({least for least in found if least is not None}) > len(seeds) // 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seeds", ALTERNATING_SEEDS, ids=name_of)
def test_the_model_of_alternating_layers_finds_what_enumeration_finds(seeds):
    """
    Two or three kinds in random orders, chunks anywhere: the same least objective, or none in both.

    Options of dealings are all that the best needs: the least objective is theirs, and most options are left out.
    """
    found, num_left_out, num_kept = [], 0, 0
    for seed in seeds:
        options, pipeline, order = random_alternating_pipeline(random.Random(seed))

        least = least_alternating_objective(options, pipeline, order)
        kept = options_of_dealings(options, pipeline, cut=HUGE if least is None else least + 1)

        assert solved_objective(options, pipeline) == least, seed
        assert (solved_objective(options.take(kept), pipeline) if kept.any() else None) == least, seed
        found.append(least)
        num_left_out += int((~kept).sum())
        num_kept += int(kept.sum())
    assert len(set(found)) > len(seeds) // 3
    assert num_left_out > num_kept


def least_alternating_objective(options: StageOptions, pipeline: Pipeline, order: list[int]) -> int | None:
    """By loops over the options of all ranks, of which those count that hold what their chunks meet in the order."""
    of_rank = [np.flatnonzero(options.rank == rank).tolist() for rank in range(pipeline.pp)]
    values = []
    for chosen in product(*of_rank):
        if sum(int(options.num_layers[one]) for one in chosen) != pipeline.num_layers:
            continue
        met: list[list[int]] = [[] for _ in chosen]
        met_in_full: list[list[int]] = [[] for _ in chosen]
        rest = list(order)
        for chunk in range(pipeline.vpp):
            for rank, one in enumerate(chosen):
                size, full = options.chunks[one, [chunk, pipeline.vpp + chunk]].tolist()
                met_in_full[rank] += rest[:full]
                met[rank] += rest[:size]
                rest = rest[size:]
        held = [options.chunks[one, 2 * pipeline.vpp :].tolist() for one in chosen]
        kinds = range(len(held[0]) // 2)
        if held != [
            [own.count(kind) for own in (whole, full) for kind in kinds]
            for whole, full in zip(met, met_in_full, strict=True)
        ]:
            continue
        values.append(objective(options, np.array(chosen), pipeline))
    return min(values, default=None)


def random_alternating_pipeline(chooser: random.Random) -> tuple[StageOptions, Pipeline, list[int]]:
    """Ranks whose chunks begin anywhere, at random or at the cuts of some dealings, in an order of layers."""
    pp, vpp, num_kinds = chooser.choice([1, 2, 3]), chooser.choice([1, 1, 2, 3]), chooser.choice([2, 3])
    num_layers = chooser.randint(max(pp * vpp - 2, 2), 2 * pp * vpp + 1)
    period = [chooser.randrange(num_kinds) for _ in range(chooser.choice([2, 3, 4, num_layers]))]
    order = [chooser.randrange(num_kinds) for _ in range(chooser.choice([0, 0, 1, 2]))] + period * num_layers
    order = order[:num_layers]
    rows = []
    for choice in range(chooser.randint(1, 5)):
        cuts = sorted(chooser.randint(0, num_layers) for _ in range(pp * vpp - 1))
        cuts = [0, *cuts, num_layers]
        for rank in range(pp):
            pairs = [(cuts[stage], cuts[stage + 1]) for stage in range(rank, pp * vpp, pp)]
            if chooser.random() < 0.3:
                pairs = [tuple(sorted(chooser.choices(range(num_layers + 1), k=2))) for _ in pairs]
            full = [chooser.choice([0, 0, chooser.randint(0, end - start)]) for start, end in pairs]
            of_all = [kind for start, end in pairs for kind in order[start:end]]
            in_full = [kind for (start, _), num in zip(pairs, full, strict=True) for kind in order[start : start + num]]
            kinds = [own.count(kind) for own in (of_all, in_full) for kind in range(num_kinds)]
            sizes = [end - start for start, end in pairs]
            rows.append((rank, choice, sizes, full, kinds, chooser.randint(1, 90), chooser.randint(0, 30)))
    rows.sort(key=lambda row: row[0])
    start, length = shortest_pattern(order)
    pattern = LayerPattern(kinds=np.array(order[: start + length]), start_of_period=start, num_kinds=num_kinds)
    m = chooser.randint(1, 40)
    pipeline = Pipeline(pp=pp, vpp=vpp, num_microbatches=m, num_layers=num_layers, num_leading=0, pattern=pattern)
    return alternating_options(rows), pipeline, order


def alternating_options(rows: list[tuple[int, int, list[int], list[int], list[int], int, int]]) -> StageOptions:
    """Options of such rows: rank, choice, layers of chunks, those in full, kinds, time, of the ending."""
    rank, choice, sizes, full, kinds, ticks, ending = (
        np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
    )
    return StageOptions(
        rank=rank,
        choice=choice,
        num_layers=sizes.sum(axis=1),
        num_leading=np.zeros_like(rank),
        continues=np.zeros_like(rank, dtype=bool),
        ticks=ticks,
        pace_ticks=ticks,
        ending_ticks=ending,
        chunks=np.concatenate([sizes, full, kinds], axis=1),
    )


def solved_objective(options: StageOptions, pipeline: Pipeline) -> int | None:
    """By CP-SAT, and recomputed from what it chose."""
    encoding = encode_stages(options, pipeline, cut=HUGE)
    if encoding is None:
        return None
    model, classes = encoding
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    chosen = read_solution(classes, solver, options)
    assert options.rank[chosen].tolist() == list(range(pipeline.pp))
    assert options.num_layers[chosen].sum() == pipeline.num_layers
    assert objective(options, chosen, pipeline) == round(solver.objective_value)
    return objective(options, chosen, pipeline)


def least_objective(options: StageOptions, pipeline: Pipeline) -> int | None:
    """By loops over the options of all ranks."""
    of_rank = [np.flatnonzero(options.rank == rank).tolist() for rank in range(pipeline.pp)]
    weight = pipeline.num_microbatches * pipeline.vpp - 1
    values = []
    for chosen in product(*of_rank):
        layers, leading = (
            sum(int(column[one]) for one in chosen) for column in (options.num_layers, options.num_leading)
        )
        if layers != pipeline.num_layers or leading != pipeline.num_leading:
            continue
        open_before = [all(options.continues[one] for one in chosen[:rank]) for rank in range(pipeline.pp)]
        if any(options.num_leading[one] and not may for one, may in zip(chosen, open_before, strict=True)):
            continue
        ticks = [int(options.ticks[one]) for one in chosen]
        ending = max(int(options.ending_ticks[one]) for one in chosen)
        pace = max(int(options.pace_ticks[one]) for one in chosen)
        values.append(weight * pace + sum(ticks) + pipeline.vpp * ending)
    return min(values, default=None)


def random_pipeline(chooser: random.Random) -> tuple[StageOptions, Pipeline]:
    """Ranks of which some are alike, with options of random times; sometimes a leading kind of layer."""
    pp, vpp = chooser.choice([1, 2, 3, 4, 5]), chooser.choice([1, 2, 4])
    leading = chooser.choice([0, 0, 1, 2])
    num_layers = chooser.randint(max(pp, leading), 3 * pp)
    kinds = [random_options(chooser, 0) for _ in range(2)]
    rows = []
    for rank in range(pp):
        own = random_options(chooser, leading) if rank <= leading or chooser.random() < 0.3 else chooser.choice(kinds)
        rows += [(rank, *option) for option in own if rank <= leading or not option[2]]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    options = StageOptions(
        rank=columns[0],
        choice=columns[1],
        num_layers=columns[2],
        num_leading=columns[3] if leading else np.zeros_like(columns[3]),
        continues=columns[4].astype(bool),
        ticks=columns[5],
        pace_ticks=columns[5] + columns[7],
        ending_ticks=columns[6],
        chunks=np.zeros((len(rows), 0), dtype=np.int64),
    )
    pipeline = Pipeline(
        pp=pp, vpp=vpp, num_microbatches=chooser.randint(1, 40), num_layers=num_layers, num_leading=leading
    )
    return options, pipeline


def random_options(chooser: random.Random, leading: int) -> list[tuple[int, int, int, bool, int, int, int]]:
    """Choice, layers, leading ones, whether the next rank may go on with them, time, of the ending, waiting."""
    rows = []
    for choice in range(chooser.randint(2, 6)):
        num = chooser.randint(0, 4)
        first = chooser.randint(0, min(leading, num))
        times = chooser.randint(1, 50) + 20 * num, chooser.randint(0, 30), chooser.choice([0, 0, 15])
        rows.append((choice, num, first, first == num, *times))
    return rows


# --- whole problems ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alternates", "first_seed"),
    [(False, seed) for seed in range(0, NUM_PROBLEMS, PER_TEST)]
    + [(True, seed) for seed in range(0, NUM_ALTERNATING_PROBLEMS, PER_TEST)],
)
def test_the_search_over_stages_finds_what_enumeration_finds(alternates, first_seed):
    """
    Small models on devices of which few strategies fit: an answer where one fits, as long as its ranks take if played.

    Neither the layout with the least sum over its ranks nor any even strategy is faster, both played through. Layers
    that alternate have windows, experts in every second one, or Mamba in odd orders.
    """
    statuses, uneven = [], 0
    for seed in range(first_seed, first_seed + PER_TEST):
        problem = a_random_problem(random.Random(seed), an_alternating_model if alternates else a_model_in_runs)

        outcome = search(problem)

        rounding = 2 * outcome.rounding_bound_seconds
        costs: dict[Any, Any] = {}
        expected = best_summed_seconds(problem, rounding)
        even = min((played_seconds(problem, one, costs) for one in alike(problem)), default=np.inf)
        assert outcome.status == (Status.OPTIMAL if np.isfinite(expected) else Status.INFEASIBLE), seed
        if np.isfinite(expected):
            best = outcome.strategies[0]
            assert outcome.step_seconds[0] <= min(expected, even) + rounding, seed
            assert outcome.step_seconds[0] == pytest.approx(played_seconds(problem, best, {}), abs=rounding), seed
            uneven += best.layout is not None
        statuses.append(outcome.status)
    assert uneven
    assert Status.OPTIMAL in statuses


def best_summed_seconds(problem: Problem, rounding: float) -> float:
    """The step, played through, of the layout with the least sum over its ranks, the slowest of equals; or infinite."""
    costs: dict[Any, Any] = {}
    found = list(strategies(problem))
    cost_ranks(problem.facts, found, costs)
    every = [(step_seconds(problem, one, costs), one) for one in found]
    least = min((seconds for seconds, _ in every), default=np.inf)
    if not np.isfinite(least):
        return np.inf
    return max(played_seconds(problem, one, costs) for seconds, one in every if seconds <= least + rounding)


def dealt_out(model: Model, strategy: Strategy) -> Strategy:
    """A strategy with the layers of its stages as they are dealt."""
    num_chunks, mtp_layers = strategy.pp * strategy.vpp, len(model.mtp_layers)
    sizes = layers_per_chunk(model.num_layers, num_chunks=num_chunks, mtp_layers=mtp_layers)
    return laid_out(strategy, sizes, [(strategy.recompute, 0, strategy.activation_offload)] * strategy.pp)


def played_seconds(problem: Problem, strategy: Strategy, costs: dict[Any, Any]) -> float:
    """The step of one strategy with the ranks' passes played through in place of their sum."""
    facts, m = problem.facts, int(microbatches(problem.facts, strategy.decisions()))
    if strategy.layout is None:
        strategy = dealt_out(facts.model, strategy)
    summed = step_seconds(problem, strategy, costs)
    if not np.isfinite(summed) or (strategy.vpp > 1 and m % strategy.pp):
        return summed  # interleaved ranks have an order for whole groups alone
    passes = staged.layout_passes(facts, strategy)
    forward, backward = passes.forward.tolist(), (passes.backward + passes.weight).tolist()
    ranks = staged.rank_costs(facts, staged.rank_decisions(strategy), staged.contents_of(strategy, facts.model))
    _, waiting = staged.joined_seconds(ranks, vpp=strategy.vpp, num_microbatches=m)
    played = simulate(forward, backward, pp=strategy.pp, num_microbatches=m).seconds
    return summed - float(m * ranks.seconds.max() + waiting) + played


def strategies(problem: Problem) -> Iterator[Strategy]:
    """Every strategy that the rules but those of memory allow, with every layout of its stages."""
    for one in alike(problem):
        yield from layouts(problem, one)


def alike(problem: Problem) -> Iterator[Strategy]:
    """Every strategy that the rules but those of memory allow, without a layout."""
    space = build_space(problem)
    rows = {name: values.tolist() for name, values in space.rows.items()}
    for index in range(space.num_rows):
        degrees = {name: values[index] for name, values in rows.items()}
        for features in product(*(values.tolist() for values in space.features.values())):
            decisions = degrees | dict(zip(space.features, features, strict=True))
            if is_allowed(problem.facts, decisions, space.rules.mixed):
                yield strategy_of(decisions)


def layouts(problem: Problem, strategy: Strategy) -> Iterator[Strategy]:
    """A strategy with the layers of its stages as they are dealt, and with every other layout that it may have."""
    facts, pp, vpp = problem.facts, strategy.pp, strategy.vpp
    yield dealt_out(facts.model, strategy)
    if problem.search.stages == "layers":
        own_mode = (strategy.recompute, 0, strategy.activation_offload)
        for sizes in shared_out(facts.model, pp, vpp):
            yield laid_out(strategy, sizes, [own_mode] * pp)
        return
    if strategy.recompute != Recompute.NONE or strategy.activation_offload:
        return
    modes = [
        (again, 0, bool(offload))
        for again in problem.search.allow.get("recompute", (0,))
        for offload in problem.search.allow.get("activation_offload", (0,))
        if not (again == Recompute.FULL and offload)
    ]
    for sizes in shared_out(facts.model, pp, vpp):
        of_ranks = [sum(sizes[rank::pp]) for rank in range(pp)]
        some_in_full = any(again == Recompute.FULL for again, _, _ in modes) and (vpp == 1 or in_runs(facts.model))
        of_each = [modes + [(Recompute.NONE, n, False) for n in range(1, held) if some_in_full] for held in of_ranks]
        for chosen in product(*of_each):
            yield laid_out(strategy, sizes, list(chosen))


def in_runs(model: Model) -> bool:
    """Whether there is at most one change of kinds among the layers."""
    return sum(one != other for one, other in pairwise(model.layers)) <= 1


def shared_out(model: Model, pp: int, vpp: int) -> Iterator[tuple[int, ...]]:
    """Layers of each virtual stage: any number per rank, chunks as even as they come, none empty but the ends."""
    if pp == 1:
        yield (model.num_layers,)
        return
    for of_ranks in product(range(model.num_layers + 1), repeat=pp):
        if sum(of_ranks) != model.num_layers:
            continue
        ways = [[most_even(of, vpp)] for of in of_ranks[:-1]] + [list(last_ways(of_ranks[-1], vpp, head_layers(model)))]
        for chunks in product(*ways):
            stages = tuple(chunks[rank][chunk] for chunk in range(vpp) for rank in range(pp))
            if 0 not in stages[1:-1]:
                yield stages


def last_ways(num_layers: int, vpp: int, head: float) -> Iterator[tuple[int, ...]]:
    """The last rank's chunks: its last one about equal to the others with the head, the others as even as they come."""
    if vpp == 1:
        yield (num_layers,)
        return
    equal = round((num_layers + head) / vpp - head)
    for last in range(math.ceil(num_layers / vpp) + 1):
        if equal - 1 <= last <= equal + 2 or last == 0 > equal + 2:
            yield (*most_even(num_layers - last, vpp - 1), last)


def most_even(num_layers: int, vpp: int) -> tuple[int, ...]:
    """Of all ways to cut layers into chunks the one whose chunks differ least, then the one with the longest last."""
    ways = (sizes for sizes in product(range(num_layers + 1), repeat=vpp) if sum(sizes) == num_layers)
    return min(ways, key=lambda sizes: (sorted(sizes, reverse=True), sizes))


def laid_out(strategy: Strategy, sizes: tuple[int, ...], modes: list[tuple[int, int, bool]]) -> Strategy:
    """A strategy with a layout."""
    layout = StageLayout(
        layers=sizes,
        recompute=tuple(Recompute(again) for again, _, _ in modes),
        full_layers=tuple(full for _, full, _ in modes),
        activation_offload=tuple(offload for _, _, offload in modes),
    )
    return replace(strategy, layout=layout)


def cost_ranks(facts: Facts, strategies: Iterable[Strategy], costs: dict[Any, Any]) -> None:
    """Add the costs of ranks that are not known; strategies that differ in their layouts alone have theirs at once."""
    known, new = set[Any](), dict[Any, list[Strategy]]()
    for one in strategies:
        if left := [key for key in keys_of(one) if key not in costs and key not in known]:
            known.update(left)
            new.setdefault(left[0][0], []).append(one)
    for ones in new.values():
        contents = [staged.contents_of(one, facts.model) for one in ones]
        joined = {
            one.name: np.concatenate([getattr(own, one.name) for own in contents]) for one in fields(staged.Contents)
        }
        each = [staged.rank_decisions(one) for one in ones]
        modes = {name: np.concatenate([own[name] for own in each]) for name in staged.PER_RANK}
        whole = staged.rank_costs(facts, {**each[0], **modes}, staged.Contents(**joined))
        columns = (np.asarray(getattr(whole, name)).tolist() for name in COLUMNS)
        costs.update(zip((key for one in ones for key in keys_of(one)), zip(*columns, strict=True), strict=True))


@lru_cache(maxsize=2**15)
def keys_of(strategy: Strategy) -> list[tuple[Any, ...]]:
    """Keys of all that the cost of each rank depends on: the decisions that all ranks share come first."""
    layout, pp = strategy.layout, strategy.pp
    assert layout is not None
    shared = tuple(value for name, value in strategy.decisions().items() if name not in staged.PER_RANK)
    before = [0, *accumulate(layout.layers)]
    modes = zip(layout.recompute, layout.full_layers, layout.activation_offload, strict=True)
    return [(shared, rank, tuple(before[rank:-1:pp]), layout.layers[rank::pp], *own) for rank, own in enumerate(modes)]


def step_seconds(problem: Problem, strategy: Strategy, costs: dict[Any, Any]) -> float:
    """The step of one strategy rank by rank; infinite where a rank does not fit."""
    facts, keys = problem.facts, keys_of(strategy)
    cost_ranks(facts, [strategy], costs)
    ranks = [costs[key] for key in keys]
    every = staged.RankCosts(
        **{name: np.array(column) for name, column in zip(COLUMNS, zip(*ranks, strict=True), strict=True)}
    )
    capacity = facts.cluster.device.memory_bytes - problem.search.memory_headroom_bytes
    if every.device_bytes.max() > capacity or every.host_bytes.max() > facts.cluster.device.host_memory_bytes:
        return np.inf
    constant = keys[0][0], "constant"
    if constant not in costs:
        costs[constant] = float(staged.constant_seconds(facts, strategy.decisions()))
    m = int(microbatches(facts, strategy.decisions()))
    joined, _ = staged.joined_seconds(every, vpp=strategy.vpp, num_microbatches=m)
    return joined + costs[constant]


COLUMNS = ("seconds", "steady_state_seconds", "ending_seconds", "device_bytes", "host_bytes")


def a_random_problem(
    chooser: random.Random, model_of: Callable[[random.Random, dict[str, Any], dict[str, Any]], Model]
) -> Problem:
    """Three to six layers on two to eight devices, whose memory holds few of the strategies."""
    sizes, first = random_sizes(chooser), chooser.choice([1, 2])
    experts = {"num_experts": 4, "top_k": 2, "expert_ffn_hidden_size": 512, "first_dense_layers": first}
    model = model_of(chooser, sizes, experts)
    pin = dict.fromkeys(("cp_overlap", "ep_overlap", "pp_overlap", "tp_overlap", "token_dispatcher"), 0)
    pin |= {"cp": 1, "etp": 1, "optimizer_offload": int(chooser.random() < 0.2)}
    allow: dict[str, tuple[int, ...]] = {"pp": (1, 2, 3), "tp": (1,), "mbs": (chooser.choice([1, 2]),), "vpp": (1, 2)}
    allow["recompute"] = chooser.choice([(0,), (0, 2), (0, 1, 2)])
    allow["activation_offload"] = chooser.choice([(0,), (0, 1)])
    allow |= {name: chooser.choice([(0,), (1,)]) for name in ("sharding", "dp_overlap")}
    allow["cuda_graphs"] = chooser.choice([(0,), (0, 1)])
    problem = a_problem(
        model,
        num_devices=chooser.choice([2, 3, 4, 6]),
        device=a_timed_device(devices_per_node=8),
        workload={"global_batch_size": chooser.choice([8, 12, 24]), "sequence_length": chooser.choice([128, 512])},
    )
    stages = chooser.choice(["layers", "free", "free"])
    limits = limits_of(pin=pin, allow=allow, framework_rules=False, preferences=chooser.random() < 0.5)
    problem = replace(problem, search=replace(limits, stages=stages))
    return tight(problem, chooser)


def random_sizes(chooser: random.Random) -> dict[str, Any]:
    """Three to five narrow layers."""
    return {
        "hidden_size": chooser.choice([256, 512]),
        "num_layers": chooser.choice([3, 4, 5]),
        "num_heads": 4,
        "head_dim": 64,
        "num_kv_heads": 4,
        "ffn_hidden_size": 1024,
        "vocab_size": chooser.choice([1000, 8000]),
    }


def a_model_in_runs(chooser: random.Random, sizes: dict[str, Any], experts: dict[str, Any]) -> Model:
    """Equal layers, or dense ones in front of those with experts."""
    return a_moe_model(**sizes, **experts) if chooser.random() < 0.4 else a_model(**sizes)


MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 64, "mamba_state_size": 64, "mamba_num_groups": 2}


def an_alternating_model(chooser: random.Random, sizes: dict[str, Any], experts: dict[str, Any]) -> Model:
    """Layers with and without a window in turn, with and without experts, or single blocks in an odd order."""
    sizes = {**sizes, "num_layers": chooser.choice([4, 5, 6])}
    way = chooser.choice(["window", "experts", "blocks"])
    if way == "experts":
        return a_moe_model(**sizes, **{**experts, "first_dense_layers": 0, "moe_layer_interval": 2})
    if way == "blocks":
        letters = ["M", "*", *(chooser.choice("M-*") for _ in range(sizes["num_layers"] - 3)), "M"]
        return a_model(**sizes, **MAMBA, pattern="".join(letters))
    model = a_model(**sizes)
    [attention] = {layer.attention for layer in model.layers}
    narrow = replace(model.layers[0], attention=replace(attention, window=chooser.choice([16, 64])))
    every = chooser.choice([2, 3])
    layers = tuple(layer if index % every else narrow for index, layer in enumerate(model.layers))
    return replace(model, layers=layers)


def tight(problem: Problem, chooser: random.Random) -> Problem:
    """The problem on devices that hold a random share of what even strategies take."""
    from costmodel.step.step import cost

    space = build_space(problem)
    if not space.num_rows:
        return problem
    costs = cost(problem.facts, space.block(np.arange(space.num_rows)).decisions)
    device = float(np.quantile(costs.device_bytes, chooser.choice([0.0, 0.05, 0.2, 0.5, 1.0])))
    host = float(np.max(costs.host_bytes)) * chooser.choice([0.3, 0.7, 1.5]) + 1.0
    changed = replace(
        problem.facts.cluster.device,
        memory_bytes=device * chooser.choice([0.93, 1.0, 1.0, 1.05]) + 0.5,
        host_memory_bytes=host,
    )
    facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=changed))
    return replace(problem, facts=facts)
