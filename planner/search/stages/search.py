"""
Uneven stages: branch and bound over the decisions of the whole pipeline, CP-SAT for the layers of its ranks.

The first bound of every combination of degrees and features assumes that ranks share the model evenly. Combinations are
taken in its order. For each the possible contents of ranks are costed, and a second bound is computed from those that
fit. If that bound is below the best strategy so far, CP-SAT divides the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from constraints.cp_sat import MAX_TICKS, TICK_SECONDS, cp_model, seconds_to_floor_ticks
from constraints.stages import RANK_TICK_SECONDS, Pipeline, encode_stages, objective, options_of_dealings
from costmodel.facts.model import Model
from costmodel.models.patterns import LayerPattern, layer_pattern
from costmodel.record import record
from costmodel.step.layer import layer_parts
from costmodel.step.layouts import (
    PER_RANK,
    Balance,
    balance_of,
    balanced_bound_seconds,
    layout_cost,
    least_memory,
    least_recompute_seconds,
)
from costmodel.strategy import DECISIONS, Recompute, Schedule, Strategy, Vocabulary, default_microbatch_group
from costmodel.tables import microbatches
from planner.jobs.limits import StageChoice
from planner.jobs.problem import Problem
from planner.search.candidates import CostTable, Ints, Memory
from planner.search.candidates import fits as memory_fits
from planner.search.domains import FEATURES, cheap_recompute, job_choices
from planner.search.space import CandidateBlock, Space, strategy_of
from planner.search.stages.exchanges import least_layers
from planner.search.stages.options import (
    Mode,
    RankChoices,
    can_improve_incumbent,
    costs_of,
    ending_seconds,
    is_within_limits,
    layout_of,
    least_of_each,
    num_leading,
    options_of,
    rank_choices,
)

ROWS_AT_ONCE = 512
"""Rows whose features are bounded at once; affects memory only."""

FIRST_BATCH, BATCH_GROWTH, LARGEST_BATCH = 64, 8, 2**14
"""Numbers of combinations whose ranks are costed at once."""

MOST_FOUND = 5
"""Best strategies with even stages whose recomputation is tried, for any number of wanted plans."""

NOTHING_AGAIN = {"recompute": np.int64(Recompute.NONE), "activation_offload": np.False_}
"""Decisions without recomputation and offload: no step is faster."""

BALANCE = tuple(field.name for field in fields(Balance))


@record(frozen=True, kw_only=True, slots=True)
class StageSearchStats:
    """
    Effort of a search over uneven stages.

    Parameters
    ----------
    pipelines
        Combinations of decisions for the whole pipeline whose bound is within the cut.
    costed
        Combinations among them whose ranks were costed; results found meanwhile exclude the others.
    solved
        Combinations among them whose layers CP-SAT divided.
    """

    pipelines: int = 0
    costed: int = 0
    solved: int = 0

    def __add__(self, other: StageSearchStats) -> StageSearchStats:
        """Add two records."""
        return StageSearchStats(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        )


class Run(Protocol):
    """Interface of the search that a stage search belongs to."""

    problem: Problem
    cost_table: CostTable
    group_of_row: Ints

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit."""

    def cuts(self, groups: Ints) -> Ints:
        """Return the upper bound of each group, in ticks."""

    def leave(self, ticks: int) -> None:
        """Note that a strategy with these ticks may have been left out."""

    def solve(self, model: cp_model.CpModel) -> tuple[cp_model.CpSolverStatus, cp_model.CpSolver]:
        """Run CP-SAT."""

    def keep_uneven(self, group: int, strategy: Strategy, cost: Any) -> None:
        """Keep a strategy."""


@record(frozen=True, kw_only=True, slots=True)
class _Outer:
    """
    A combination of decisions for the whole pipeline, and the possible modes of its ranks.

    Its step takes at least ``seconds``, with ``constant_seconds`` for any contents of the ranks. A rank takes at least
    ``mean_seconds`` in the mean, a layer ``layer_seconds``.
    """

    seconds: float
    constant_seconds: float
    mean_seconds: float
    layer_seconds: float
    group: int
    decisions: dict[str, Any]
    modes: tuple[Mode, ...]
    pipeline: Pipeline


@record(frozen=True, kw_only=True, slots=True)
class _Inner:
    """One combination with the possible contents of its ranks."""

    outer: _Outer
    choices: RankChoices
    seconds: Any
    pace: Any
    ending: Any


def recompute_to_try(problem: Problem) -> tuple[int, ...]:
    """Return the recomputation to try in uneven stages: the job's own, or else the usual sets of modules."""
    own = job_choices(problem).get("recompute")
    return own or cheap_recompute(problem.facts.model, problem.facts.cluster.framework)


MOST_PLACES = 16
"""Longest pattern of layers with which interleaved pipelines are searched: their chunks may begin at any place."""


def alternating_pattern(model: Model) -> LayerPattern | None:
    """Return the order of a model's kinds of layers; None for one or two runs of equal layers."""
    return layer_pattern(model) if num_leading(model) is None else None


def interleaves_unevenly(pattern: LayerPattern | None) -> bool:
    """Tell whether chunks of interleaved pipelines may differ, by the pattern of a model with alternating layers."""
    return pattern is None or pattern.num_places <= MOST_PLACES


def stage_restrictions(problem: Problem, space: Space) -> Iterator[str]:
    """Yield a sentence for each restriction that the search over uneven stages adds by itself."""
    if problem.search.stages == StageChoice.EVEN:
        return
    if not {*space.features["recompute"].tolist()} <= {*recompute_to_try(problem)}:
        yield (
            "Uneven stages recompute nothing, whole layers, the modules that are cheap to recompute or what the best "
            "strategies with even stages do (search.allow.recompute changes that)."
        )
    pattern = alternating_pattern(problem.facts.model)
    if pattern is None or not (space.rows["vpp"] > 1).any():
        return
    if not interleaves_unevenly(pattern):
        yield "Stages of interleaved pipelines stay even: the model's layers repeat no short pattern."
    elif problem.search.stages == StageChoice.FREE:
        yield "Ranks with several chunks recompute all of their layers alike: the kinds of layers alternate."


class StageSearch:
    """
    One search over the uneven stages of a problem.

    Parameters
    ----------
    run
        The search that it is part of.
    found
        Recomputation of the best strategies with even stages, best first.
    """

    def __init__(self, run: Run, found: Sequence[Recompute]) -> None:
        self.run = run
        tried = {*recompute_to_try(run.problem), *found[:MOST_FOUND]}
        self.space = run.cost_table.space.keep_values(recompute=tried)
        self.facts = self.space.facts
        self.leading = num_leading(self.facts.model)
        self.pattern = alternating_pattern(self.facts.model)
        self.free = run.problem.search.stages == StageChoice.FREE
        self.fewest = least_layers(run.problem)
        self.num_outer = self.num_bounded = self.num_solved = 0
        self.least_ticks = 0

    @property
    def effort(self) -> StageSearchStats:
        """Effort so far."""
        return StageSearchStats(pipelines=self.num_outer, costed=self.num_bounded, solved=self.num_solved)

    def search(self) -> None:
        """Improve on the results of the run, or prove that no uneven stages do."""
        outer = sorted(self.outer(), key=lambda one: one.seconds)
        self.num_outer = len(outer)
        position, size = 0, FIRST_BATCH
        while position < len(outer):
            if self.run.seconds_left <= 0:
                self.run.leave(int(outer[position].seconds / TICK_SECONDS))
                return
            self.improve_all(outer[position : position + size])
            position, size = position + size, min(BATCH_GROWTH * size, LARGEST_BATCH)

    def cuts(self, some: Sequence[_Outer]) -> Ints:
        """Return the ticks that a strategy of each combination must undercut."""
        return self.run.cuts(np.array([one.group for one in some], dtype=np.int64))

    # --- outer ---------------------------------------------------------------------------------------------

    def outer(self) -> Iterator[_Outer]:
        """Yield combinations whose bound is within the cut and whose average rank fits into memory."""
        rows = self.rows()
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            if self.run.seconds_left <= 0:
                self.run.leave(self.least_ticks)
                return
            yield from self.combine_rows(some)

    def rows(self) -> Ints:
        """Return rows with 1F1B, with embedding and head at the ends, whose bound is within the cut."""
        columns = self.space.rows
        pipelined = (columns["pp"] > 1) | self.free
        is_default = (columns["schedule"] == Schedule.ONE_F_ONE_B) & (columns["vocabulary"] == Vocabulary.ENDS)
        is_default &= columns["group"] == default_microbatch_group(pp=columns["pp"], vpp=columns["vpp"])
        if not interleaves_unevenly(self.pattern):
            is_default &= columns["vpp"] == 1
        rows = np.flatnonzero(pipelined & is_default)
        if not len(rows):
            return rows
        bounds = seconds_to_floor_ticks(np.asarray(balanced_bound_seconds(self.facts, self.space.degrees(rows))))
        kept: Ints = rows[bounds <= self.run.cuts(self.run.group_of_row[rows])]
        self.least_ticks = int(bounds.min())
        return kept

    def combine_rows(self, rows: Ints) -> Iterator[_Outer]:
        """Yield the combinations of some rows."""
        rows = self.filter_rows(rows)
        if not len(rows):
            return
        block = self.space.block(rows)
        decisions = self.least_decisions(block)
        balance = balance_of(self.facts, decisions, self.least_recompute_seconds(block, decisions))
        axes = tuple(1 + FEATURES.index(name) for name in PER_RANK) if self.free else ()
        allowed = block.allowed.any(axis=axes, keepdims=True) if self.free else block.allowed
        of_each = [np.broadcast_to(getattr(balance, name), allowed.shape) for name in BALANCE]
        groups = self.run.group_of_row[rows]
        cuts = self.run.cuts(groups).reshape(-1, *(1,) * len(FEATURES))
        possible = allowed & (of_each[0] <= cuts * TICK_SECONDS)
        possible &= self.light_enough(block, allowed.shape) if possible.any() else False
        position, *features = np.nonzero(possible)
        columns = {name: values[position] for name, values in block.degrees.items()}
        columns |= {name: block.features[name][at] for name, at in zip(FEATURES, features, strict=True)}
        num_microbatches = np.broadcast_to(microbatches(self.facts, columns), position.shape).tolist()
        chosen = zip(*(columns[name].tolist() for name in DECISIONS), strict=True)
        balances = zip(*(values[possible].tolist() for values in of_each), strict=True)
        where = zip(position.tolist(), *(at.tolist() for at in features), strict=True)
        for values, own, each, number in zip(chosen, balances, where, num_microbatches, strict=True):
            decisions_of_one = dict(zip(DECISIONS, values, strict=True))
            yield _Outer(
                **dict(zip(BALANCE, own, strict=True)),
                group=int(groups[each[0]]),
                decisions=decisions_of_one,
                modes=self.modes(block, each[0], each[1:], decisions_of_one),
                pipeline=self.pipeline(decisions_of_one, number),
            )

    def filter_rows(self, rows: Ints) -> Ints:
        """Return rows whose bound is within the cut without any recomputation."""
        block = self.space.block(rows)
        seconds = balance_of(self.facts, {**block.decisions, **NOTHING_AGAIN}).seconds
        least: Any = np.broadcast_to(seconds, (len(rows), *seconds.shape[1:])).reshape(len(rows), -1).min(axis=1)
        near: Ints = rows[least <= self.run.cuts(self.run.group_of_row[rows]) * TICK_SECONDS]
        return near

    def least_decisions(self, block: CandidateBlock) -> Mapping[str, Any]:
        """Return the decisions of a box; without recomputation and offload where ranks choose them."""
        return {**block.decisions, **NOTHING_AGAIN} if self.free else block.decisions

    def least_recompute_seconds(self, block: CandidateBlock, decisions: Mapping[str, Any]) -> Any:
        """Return the least recomputation time with which ranks fit into memory, where they choose it."""
        if not self.free:
            return 0.0
        available_bytes = self.facts.cluster.device.memory_bytes - self.run.cost_table.headroom_bytes
        return least_recompute_seconds(self.facts, decisions, self.all_modes(block), available_bytes)

    def light_enough(self, block: CandidateBlock, shape: tuple[int, ...]) -> Any:
        """Tell whether an average rank fits with the modes that save most memory."""
        of_modes = [dict(zip(PER_RANK, map(np.asarray, mode), strict=True)) for mode in self.all_modes(block)]
        lightest = np.zeros(shape, dtype=bool)
        for own in of_modes if self.free else [{}]:
            lightest |= self.fit(*least_memory(self.facts, block.decisions | own))
        return lightest

    def fit(self, device: Any, host: Any) -> Any:
        """Tell whether bytes fit, by the memory rules."""
        memory = Memory(device_bytes=np.asarray(device), host_bytes=np.asarray(host))
        answer = memory_fits(self.facts, self.space.rules, memory, self.run.cost_table.headroom_bytes)
        return answer.device & answer.host

    def all_modes(self, block: CandidateBlock) -> list[Mode]:
        """List every pair of recomputation and offload that any of some rows may have."""
        return [
            (int(again), bool(off))
            for again in block.features["recompute"]
            for off in block.features["activation_offload"]
        ]

    def modes(
        self, block: CandidateBlock, position: int, features: Sequence[int], decisions: Mapping[str, Any]
    ) -> tuple[Mode, ...]:
        """Return the possible recomputation and offload of the ranks of one combination."""
        again, off = (FEATURES.index(name) for name in PER_RANK)
        if not self.free:
            return ((decisions["recompute"], decisions["activation_offload"]),)
        where: list[Any] = list(features)
        where[again] = where[off] = slice(None)
        table = block.of_class[(block.class_of_row[position], *where)]
        return tuple(
            mode for mode, allowed in zip(self.all_modes(block), table.ravel().tolist(), strict=True) if allowed
        )

    # --- inner ---------------------------------------------------------------------------------------------

    def improve_all(self, some: Sequence[_Outer]) -> None:
        """Divide the layers of each combination so that it is faster than the best, or prove that it cannot be."""
        shapes: dict[tuple[Any, ...], list[tuple[int, _Outer]]] = {}
        for one, cut in zip(some, self.cuts(some).tolist(), strict=True):
            most = self.most_layers(one, cut)
            if one.seconds <= cut * TICK_SECONDS and most * one.pipeline.pp >= one.pipeline.num_layers:
                shapes.setdefault((one.pipeline.pp, one.pipeline.vpp, one.modes), []).append((most, one))
        for (pp, vpp, modes), alike in shapes.items():
            if self.run.seconds_left <= 0:
                self.run.leave(int(min(one.seconds for _, one in alike) / TICK_SECONDS))
                continue
            full_of_some = self.free and {(Recompute.NONE, False), (Recompute.FULL, False)} <= set(modes)
            full_of_some &= vpp == 1 or self.pattern is None
            most = max(most for most, _ in alike)
            choices = rank_choices(self.facts.model, pp, vpp, most, modes, full_of_some, fewest=self.fewest)
            for each in self.promising(choices, [one for _, one in alike]):
                self.improve(each)

    def promising(self, choices: RankChoices, alike: Sequence[_Outer]) -> Iterator[_Inner]:
        """Yield the combinations of one shape that may be faster, with the possible contents of their ranks."""
        self.num_bounded += len(alike)
        costs = costs_of(self.facts, _columns(alike), choices)
        fits = self.fit(costs.device_bytes, costs.host_bytes)
        seconds, pace = (np.where(fits, values, np.inf) for values in (costs.seconds, costs.steady_state_seconds))
        least, least_pace = least_of_each(seconds, choices), least_of_each(pace, choices)
        left = np.flatnonzero(
            is_within_limits(
                choices,
                least_pace,
                costs.update_seconds,
                alike[0].pipeline,
                num_microbatches=np.array([one.pipeline.num_microbatches for one in alike]),
                limits=self.limits(alike),
            )
        )
        if not len(left):
            return
        few = [alike[index] for index in left.tolist()]
        ending = ending_seconds(self.facts, _columns(few), choices)
        still = self.can_improve_incumbent(few, choices, least[left], least_pace[left], least_of_each(ending, choices))
        for position in np.flatnonzero(still).tolist():
            own = left[position]
            yield _Inner(
                outer=few[position],
                choices=choices,
                seconds=seconds[own],
                pace=pace[own],
                ending=ending[position],
            )

    def can_improve_incumbent(
        self, alike: Sequence[_Outer], choices: RankChoices, seconds: Any, pace: Any, ending: Any
    ) -> Any:
        """Mark combinations of one shape that may be faster than the best, by the least times of their ranks."""
        return can_improve_incumbent(
            choices,
            seconds,
            pace,
            ending,
            alike[0].pipeline,
            num_microbatches=np.array([one.pipeline.num_microbatches for one in alike]),
            limits=self.limits(alike),
            of_kinds=layer_parts(self.facts, _columns(alike)).total if self.pattern else None,
        )

    def limits(self, some: Sequence[_Outer]) -> Any:
        """Return the seconds that the steps of combinations must undercut, without their constant parts."""
        return (self.cuts(some) - 0.5) * TICK_SECONDS - np.array([one.constant_seconds for one in some])

    def improve(self, one: _Inner) -> None:
        """Let CP-SAT divide the layers of one combination."""
        if self.run.seconds_left <= 0:
            self.run.leave(int(one.outer.seconds / TICK_SECONDS))
            return
        pipeline, limit = one.outer.pipeline, float(self.limits([one.outer])[0])
        least = (least_of_each(values, one.choices)[None] for values in (one.seconds, one.pace, one.ending))
        if not self.can_improve_incumbent([one.outer], one.choices, *least)[0]:
            return
        slowest = limit * pipeline.vpp / (pipeline.weight_of_slowest + 1)
        options, which = options_of(
            one.choices, one.seconds, one.pace, one.ending, slowest=slowest, alternate=self.pattern is not None
        )
        cut = min(int(np.ceil(limit * pipeline.vpp / RANK_TICK_SECONDS)), MAX_TICKS)
        if pipeline.pattern is not None and len(options):
            kept = options_of_dealings(options, pipeline, cut=cut)
            options, which = options.take(kept), which[kept]
        encoding = encode_stages(options, pipeline, cut=cut)
        if encoding is None:
            return
        self.num_solved += 1
        status, solver = self.run.solve(encoding.model)
        if status in (cp_model.FEASIBLE, cp_model.UNKNOWN):
            self.run.leave(int(one.outer.seconds / TICK_SECONDS))
        if status in (cp_model.FEASIBLE, cp_model.OPTIMAL):
            chosen = encoding.chosen(solver, options)
            assert objective(options, chosen, pipeline) == round(solver.objective_value)
            layout = layout_of(one.choices, which[chosen])
            strategy = replace(strategy_of(one.outer.decisions), layout=layout, **_most_common(layout))
            self.run.keep_uneven(one.outer.group, strategy, layout_cost(self.facts, strategy))

    def pipeline(self, decisions: Mapping[str, Any], num_microbatches: int) -> Pipeline:
        """Return the shape of a combination's pipeline."""
        return Pipeline(
            pp=decisions["pp"],
            vpp=decisions["vpp"],
            num_microbatches=num_microbatches,
            num_layers=self.facts.model.num_layers,
            num_leading=self.leading or 0,
            pattern=self.pattern,
        )

    def most_layers(self, one: _Outer, cut: int) -> int:
        """Return the largest number of layers of a rank in a step within the cut."""
        pipeline = one.pipeline
        if cut >= MAX_TICKS:
            return pipeline.num_layers
        rest = (cut + 1) * TICK_SECONDS - one.constant_seconds
        slowest = (pipeline.vpp * rest - pipeline.pp * one.mean_seconds) / max(pipeline.weight_of_slowest, 1)
        return min(int(max(slowest, 0.0) / one.layer_seconds), pipeline.num_layers)


def _columns(alike: Sequence[_Outer]) -> dict[str, Any]:
    """Return the decisions of combinations of one shape as arrays, with the shape's own as scalars."""
    shape = {"pp": alike[0].pipeline.pp, "vpp": alike[0].pipeline.vpp}
    return {name: np.array([one.decisions[name] for one in alike]) for name in DECISIONS} | shape


def _most_common(layout: Any) -> dict[str, Any]:
    """Return the decisions of most ranks; in a tie the first rank's."""
    again, off = layout.recompute, layout.activation_offload
    return {
        "recompute": max(dict.fromkeys(again), key=again.count),
        "activation_offload": max(dict.fromkeys(off), key=off.count),
    }
