"""
Uneven stages: branch and bound over what decides for the whole pipeline, CP-SAT inside for what its ranks hold.

A bound of every combination of degrees and features comes first, of ranks that share the model evenly. Combinations are
taken in its order. For each the possible contents of ranks are costed, a second bound is made of those that fit, and
CP-SAT shares the layers out, faster than the best strategy so far or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
from ortools.sat.python import cp_model

from constraints.encoding import MAX_TICKS, TICK_SECONDS, seconds_to_floor_ticks
from constraints.stages import RANK_TICK_SECONDS, Pipeline, encode_stages, objective
from costmodel.layouts import (
    PER_RANK,
    Balance,
    balance_of,
    balanced_bound_seconds,
    layout_cost,
    least_memory,
    squeeze_seconds,
)
from costmodel.strategy import DECISIONS, Recompute, Schedule, Strategy, Vocabulary, usual_group
from costmodel.tables import microbatches
from planner.candidates import Ints, Memory, Tabulator
from planner.candidates import fits as memory_fits
from planner.problem import Problem, StageChoice
from planner.space import FEATURES, Box, strategy_of
from planner.stage_options import (
    Held,
    Mode,
    costs_of,
    ending_seconds,
    held_by_ranks,
    layout_of,
    least_of_each,
    may_undercut,
    num_leading,
    options_of,
)

ROWS_AT_ONCE = 512
"""Rows whose features are bounded at once; a matter of memory only."""

FIRST_BATCH, BATCH_GROWTH, LARGEST_BATCH = 64, 4, 2048
"""Combinations whose ranks are costed at once."""

BALANCE = tuple(field.name for field in fields(Balance))


@dataclass(frozen=True, kw_only=True, slots=True)
class StageEffort:
    """
    What a stage search had to do.

    Parameters
    ----------
    pipelines
        Combinations of decisions for the whole pipeline whose bound is within the cut.
    costed
        Those of them whose ranks were costed; what was found meanwhile excludes the others.
    solved
        Those of them whose layers CP-SAT shared out.
    """

    pipelines: int = 0
    costed: int = 0
    solved: int = 0


class Run(Protocol):
    """What a stage search needs of the search that it is a part of."""

    problem: Problem
    tabulator: Tabulator
    group_of_row: Ints

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""

    def cut_of(self, group: int) -> int:
        """Ticks above which nothing of a group is of interest."""

    def leave(self, ticks: int) -> None:
        """Note that something as fast as this was left unresolved."""

    def solve(self, model: cp_model.CpModel) -> tuple[cp_model.CpSolverStatus, cp_model.CpSolver]:
        """Run CP-SAT."""

    def found(self, group: int, strategy: Strategy, cost: Any) -> None:
        """Note a strategy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outer:
    """
    A combination of decisions for the whole pipeline, and the modes that its ranks may have.

    Its step takes at least ``seconds``, of which ``constant_seconds`` whatever the ranks hold; a rank takes
    ``mean_seconds`` in the mean at least, and a layer ``layer_seconds``.
    """

    seconds: float
    constant_seconds: float
    mean_seconds: float
    layer_seconds: float
    row: int
    decisions: dict[str, Any]
    modes: tuple[Mode, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inner:
    """One combination with what its ranks may hold."""

    outer: _Outer
    pipeline: Pipeline
    held: Held
    seconds: Any
    ending: Any


class StageSearch:
    """One run over the uneven stages of a problem."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.space = run.tabulator.space
        self.facts = self.space.facts
        self.leading = num_leading(self.facts.model)
        self.free = run.problem.search.stages == StageChoice.FREE
        self.num_outer = self.num_bounded = self.num_solved = 0
        self.least_ticks = 0

    @property
    def effort(self) -> StageEffort:
        """What it took so far."""
        return StageEffort(pipelines=self.num_outer, costed=self.num_bounded, solved=self.num_solved)

    def search(self) -> None:
        """Improve on what the run has found, or prove that no uneven stages do."""
        if self.leading is None:
            return
        outer = sorted(self.outer(), key=lambda one: one.seconds)
        self.num_outer = len(outer)
        position, size = 0, FIRST_BATCH
        while position < len(outer):
            if self.run.seconds_left <= 0:
                self.run.leave(int(outer[position].seconds / TICK_SECONDS))
                return
            some = outer[position : position + size]
            self.improve_all([one for one in some if one.seconds <= self.cut(one) * TICK_SECONDS])
            position, size = position + size, min(BATCH_GROWTH * size, LARGEST_BATCH)

    def cut(self, one: _Outer) -> int:
        """Ticks that a strategy must undercut to be of interest."""
        return self.run.cut_of(int(self.run.group_of_row[one.row]))

    # --- outer ---------------------------------------------------------------------------------------------

    def outer(self) -> Iterator[_Outer]:
        """Combinations whose bound is within the cut and whose average rank fits into memory."""
        rows = self.rows()
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            if self.run.seconds_left <= 0:
                self.run.leave(self.least_ticks)
                return
            yield from self.of_rows(some)

    def rows(self) -> Ints:
        """Rows of pipelines in 1F1B with embedding and head at their ends, whose bound is within the cut."""
        columns = self.space.rows
        pipelined = (columns["pp"] > 1) | self.free
        usual = (columns["schedule"] == Schedule.ONE_F_ONE_B) & (columns["vocabulary"] == Vocabulary.ENDS)
        usual &= columns["group"] == usual_group(pp=columns["pp"], vpp=columns["vpp"])
        rows = np.flatnonzero(pipelined & usual)
        if not len(rows):
            return rows
        bounds = seconds_to_floor_ticks(np.asarray(balanced_bound_seconds(self.facts, self.space.degrees(rows))))
        cuts = np.array([self.run.cut_of(int(group)) for group in self.run.group_of_row[rows]])
        kept: Ints = rows[bounds <= cuts]
        self.least_ticks = int(bounds.min())
        return kept

    def of_rows(self, rows: Ints) -> Iterator[_Outer]:
        """The combinations of some rows."""
        box = self.space.box(rows)
        decisions = box.decisions
        if self.free:
            decisions = decisions | {"recompute": np.int64(Recompute.NONE), "activation_offload": np.False_}
        balance = balance_of(self.facts, decisions, self.squeeze_seconds(box, decisions))
        axes = tuple(1 + FEATURES.index(name) for name in PER_RANK) if self.free else ()
        allowed = box.allowed.any(axis=axes, keepdims=True) if self.free else box.allowed
        of_each = [np.broadcast_to(getattr(balance, name), allowed.shape) for name in BALANCE]
        cuts = np.array([self.run.cut_of(int(group)) for group in self.run.group_of_row[rows]])
        cuts = cuts.reshape(-1, *(1,) * len(FEATURES))
        possible = allowed & (of_each[0] <= cuts * TICK_SECONDS)
        possible &= self.light_enough(box, allowed.shape) if possible.any() else False
        for index in np.argwhere(possible):
            position, features = index[0], index[1:]
            chosen = {name: values[position] for name, values in box.degrees.items()}
            chosen |= {name: box.features[name][at] for name, at in zip(FEATURES, features, strict=True)}
            yield _Outer(
                **{name: float(values[tuple(index)]) for name, values in zip(BALANCE, of_each, strict=True)},
                row=int(rows[position]),
                decisions={name: chosen[name].item() for name in DECISIONS},
                modes=self.modes(box, int(position), features),
            )

    def squeeze_seconds(self, box: Box, decisions: Mapping[str, Any]) -> Any:
        """What ranks spend at least to fit into memory, where they choose how."""
        if not self.free:
            return 0.0
        room = self.facts.cluster.device.memory_bytes - self.run.tabulator.headroom_bytes
        return squeeze_seconds(self.facts, decisions, self.all_modes(box), room)

    def light_enough(self, box: Box, shape: tuple[int, ...]) -> Any:
        """Whether an average rank fits with what saves most memory."""
        lightest = np.zeros(shape, dtype=bool)
        modes = self.all_modes(box) if self.free else [None]
        for mode in modes:
            own = (
                box.decisions
                if mode is None
                else box.decisions | dict(zip(PER_RANK, map(np.asarray, mode), strict=True))
            )
            device, host = least_memory(self.facts, own)
            both = self.fit(device, host)
            lightest |= np.broadcast_to(both, shape)
        return lightest

    def fit(self, device: Any, host: Any) -> Any:
        """Whether bytes fit, by the memory rules."""
        memory = Memory(device_bytes=np.asarray(device), host_bytes=np.asarray(host))
        answer = memory_fits(self.facts, self.space.rules, memory, self.run.tabulator.headroom_bytes)
        return answer.device & answer.host

    def all_modes(self, box: Box) -> list[Mode]:
        """Every pair of recomputation and offload that any of some rows may have."""
        return [
            (int(again), bool(off)) for again in box.features["recompute"] for off in box.features["activation_offload"]
        ]

    def modes(self, box: Box, position: int, features: Any) -> tuple[Mode, ...]:
        """What the ranks of one combination may do with their activations."""
        again, off = (FEATURES.index(name) for name in PER_RANK)
        if not self.free:
            pair = box.features["recompute"][features[again]], box.features["activation_offload"][features[off]]
            return ((int(pair[0]), bool(pair[1])),)
        where: list[Any] = list(features)
        where[again] = where[off] = slice(None)
        table = box.allowed[(position, *where)]
        return tuple(mode for mode, allowed in zip(self.all_modes(box), table.ravel().tolist(), strict=True) if allowed)

    # --- inner ---------------------------------------------------------------------------------------------

    def improve_all(self, some: Sequence[_Outer]) -> None:
        """Share the layers out in each of some combinations, faster than the best so far, or find that it cannot be."""
        shapes: dict[tuple[Any, ...], list[tuple[int, _Outer]]] = {}
        for one in some:
            most = self.most_layers(one)
            if most * one.decisions["pp"] >= self.facts.model.num_layers:
                shapes.setdefault((one.decisions["pp"], one.decisions["vpp"], one.modes), []).append((most, one))
        for (pp, vpp, modes), alike in shapes.items():
            if self.run.seconds_left <= 0:
                self.run.leave(int(min(one.seconds for _, one in alike) / TICK_SECONDS))
                continue
            full_of_some = self.free and {(Recompute.NONE, False), (Recompute.FULL, False)} <= set(modes)
            most = max(most for most, _ in alike)
            held = held_by_ranks(self.facts.model, pp, vpp, most, modes, full_of_some)
            for each in self.promising(held, [one for _, one in alike]):
                self.improve(each)

    def promising(self, held: Held, alike: Sequence[_Outer]) -> Iterator[_Inner]:
        """Of combinations of one shape those that may be of interest, with what their ranks may hold."""
        self.num_bounded += len(alike)
        columns: dict[str, Any] = {name: np.array([one.decisions[name] for one in alike]) for name in DECISIONS}
        pipelines = [self.pipeline(one) for one in alike]
        costs = costs_of(self.facts, columns | {"pp": pipelines[0].pp, "vpp": pipelines[0].vpp}, held)
        seconds = np.where(self.fit(costs.device_bytes, costs.host_bytes), costs.seconds, np.inf)
        left = np.flatnonzero(self.may_undercut(alike, held, seconds, costs.update_seconds))
        if not len(left):
            return
        some = {name: values[left] for name, values in columns.items()}
        ending = ending_seconds(self.facts, some | {"pp": pipelines[0].pp, "vpp": pipelines[0].vpp}, held)
        few = [alike[index] for index in left.tolist()]
        still = self.may_undercut(few, held, seconds[left], least_of_each(ending, held))
        for position in np.flatnonzero(still).tolist():
            index = int(left[position])
            yield _Inner(
                outer=alike[index],
                pipeline=pipelines[index],
                held=held,
                seconds=seconds[index],
                ending=ending[position],
            )

    def may_undercut(self, alike: Sequence[_Outer], held: Held, seconds: Any, least_ending: Any) -> Any:
        """Which combinations of one shape may be faster than the best so far, from what their ranks take."""
        pipelines = [self.pipeline(one) for one in alike]
        return may_undercut(
            held,
            least_of_each(seconds, held),
            least_ending,
            pipelines[0],
            num_microbatches=np.array([pipeline.num_microbatches for pipeline in pipelines]),
            limits=np.array([self.limit(one) for one in alike]),
        )

    def limit(self, one: _Outer) -> float:
        """Seconds that the step of a combination must undercut, without its constant part."""
        return (self.cut(one) - 0.5) * TICK_SECONDS - one.constant_seconds

    def improve(self, one: _Inner) -> None:
        """Let CP-SAT share the layers of one combination out."""
        if self.run.seconds_left <= 0:
            self.run.leave(int(one.outer.seconds / TICK_SECONDS))
            return
        limit = self.limit(one.outer)
        least_ending = least_of_each(one.ending, one.held)[None]
        if not self.may_undercut([one.outer], one.held, one.seconds[None], least_ending)[0]:
            return
        slowest = limit * one.pipeline.vpp / (one.pipeline.weight_of_slowest + 1)
        options, which = options_of(one.held, one.seconds, one.ending, slowest=slowest)
        cut = min(int(np.ceil(limit * one.pipeline.vpp / RANK_TICK_SECONDS)), MAX_TICKS)
        encoding = encode_stages(options, one.pipeline, cut=cut)
        if encoding is None:
            return
        self.num_solved += 1
        status, solver = self.run.solve(encoding.model)
        if status in (cp_model.FEASIBLE, cp_model.UNKNOWN):
            self.run.leave(int(one.outer.seconds / TICK_SECONDS))
        if status in (cp_model.FEASIBLE, cp_model.OPTIMAL):
            chosen = encoding.chosen(solver, options)
            assert objective(options, chosen, one.pipeline) == round(solver.objective_value)
            layout = layout_of(one.held, which[chosen])
            strategy = replace(strategy_of(one.outer.decisions), layout=layout, **_most_common(layout))
            self.run.found(int(self.run.group_of_row[one.outer.row]), strategy, layout_cost(self.facts, strategy))

    def pipeline(self, one: _Outer) -> Pipeline:
        """The shape of a combination's pipeline."""
        return Pipeline(
            pp=one.decisions["pp"],
            vpp=one.decisions["vpp"],
            num_microbatches=int(microbatches(self.facts, one.decisions)),
            num_layers=self.facts.model.num_layers,
            num_leading=self.leading or 0,
        )

    def most_layers(self, one: _Outer) -> int:
        """How many layers a rank may hold in a step within the cut."""
        cut, pipeline = self.cut(one), self.pipeline(one)
        if cut >= MAX_TICKS:
            return pipeline.num_layers
        rest = (cut + 1) * TICK_SECONDS - one.constant_seconds
        slowest = (pipeline.vpp * rest - pipeline.pp * one.mean_seconds) / max(pipeline.weight_of_slowest, 1)
        return min(int(max(slowest, 0.0) / one.layer_seconds), pipeline.num_layers)


def _most_common(layout: Any) -> dict[str, Any]:
    """The decisions of most ranks; of equally many the first rank's."""
    again, off = layout.recompute, layout.activation_offload
    return {
        "recompute": max(dict.fromkeys(again), key=again.count),
        "activation_offload": max(dict.fromkeys(off), key=off.count),
    }
