"""
Branch and bound over the rows of the space, with CP-SAT inside, to a proven optimum.

Rows are taken in the order of a lower bound of their step time, which depends on their degrees alone. For each batch of
rows, only the recomputation and offloading that may fit and win are kept. They are costed with all other features. The
best strategies so far, by arrays, cut the rest: rows and strategies that are slower than a margin above them are
skipped. When no row is left, one CP-SAT model with every rule and the memory chooses among all that were costed. It
names the fastest strategy, then the fastest of another group, and so on.

Ties are broken outside the solver (:func:`planner.search.candidates.sort_by_preference`).

The objective ``total_time`` orders strategies as ``step_time`` does. Failures, recovery and the cost of a checkpoint
are facts of the job; with them given, its total time grows with its step time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import field, replace
from enum import StrEnum
from logging import DEBUG

import numpy as np

from constraints import find_violations
from constraints.conflict import Conflict
from constraints.cp_sat import (
    MAX_TICKS,
    TICK_SECONDS,
    Candidates,
    concatenate_candidates,
    cp_model,
    seconds_to_floor_ticks,
    seconds_to_ticks,
)
from costmodel.events import log_event
from costmodel.pipelines.stages import settle_layout
from costmodel.record import record
from costmodel.step.layouts import layout_cost, strategy_seconds, summed_strategy_seconds
from costmodel.step.step import FLOAT_NOISE, Cost, summed_seconds
from costmodel.strategy import DECISIONS, Strategy
from costmodel.tables import Facts
from planner.jobs.problem import Problem
from planner.search.candidates import (
    CostTable,
    Formulas,
    Found,
    IncumbentPool,
    Ints,
    Rivals,
    SearchStats,
    SecondsFunction,
    sort_by_preference,
)
from planner.search.listed import cost_whole, rules_for
from planner.search.margin import Margin, keep_fastest
from planner.search.solver import Clock, new_solver
from planner.search.space import CandidateBlock, Space, build_space
from planner.search.uneven import (
    MOST_FOUND,
    StageSearch,
    descend,
    least_layers,
    stage_restrictions,
    write_out_layout,
)

FIRST_BATCH_ROWS, BATCH_GROWTH, LARGEST_BATCH_ROWS = 256, 4, 16384
"""
Rows whose features are tabulated at once: enough for numpy to be fast, few enough to stay small.

Once the wanted strategies have rivals to beat, all rows that are left are one batch of at most the largest size.
"""

FEW_ROWS, FIRST_ROWS = 64, 8
"""Rows of a batch with the least bounds, whose strategies cut the others; those costed before any strategy is found."""

BOUND_ROWS, MEMORY_ROWS = 2**15, 2**12
"""Rows whose bounds, and rows whose memory is computed at once; the clock is read between such blocks."""

CHECK_SECONDS = 2e-3
"""Time reserved for each strategy in hand, to evaluate it again at the end."""

INFEASIBILITY_CHECK_ROWS = 2**12
"""Rows without a fitting strategy after which the search checks that any row has one."""

SHORTEST_SECONDS = 1e-3
"""Least time of one solve or batch."""

GROUP_DECISIONS = ("tp", "cp", "pp", "dp", "ep")
"""Decisions that define a group of strategies; only the best of a group is reported."""

VPP = DECISIONS.index("vpp")

ROUNDING_BOUND_SECONDS = TICK_SECONDS
"""Half a tick for the reported strategy, half a tick for the strategy that it is compared with."""


class Status(StrEnum):
    """Status at the end of a search."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@record(frozen=True, kw_only=True, slots=True)
class Outcome:
    """
    Result of the search.

    Parameters
    ----------
    status
        ``optimal``: nothing in the space is faster. With ``top`` strategies they are the best of as many groups, or the
        best variants where the problem wants all. ``feasible``: time ran out with strategies in hand. ``infeasible``:
        the conflict gives the reason. ``unknown``: time ran out without a strategy.
    strategies
        Best first, each with another combination of tp, cp, pp, dp and ep unless all variants are wanted.
    step_seconds
        Step time of each strategy that the search compares, in floats.
    lower_bound_seconds
        Lower bound of all strategies of the space, except for the rounding bound; infinite where none exists.
    gap
        Largest possible distance of the best strategy from the bound, as a fraction of its time; 0 when optimal.
    rounding_bound_seconds
        Error that rounding to the solver's ticks may cause.
    effort
        Sizes and times.
    space
        Searched space.
    even
        For each strategy with uneven stages, the best strategy of its group with even stages.
    conflict
        Reason why no strategy fits, if it was asked for (:mod:`planner.verbs`).
    ticks
        Step of the best strategy in the solver's ticks, the least possible; 0 without a strategy.
    row_bounds
        Lower bound of each row of the space in ticks.
    stages_differ
        True where uneven stages were searched. The proof for them compares sums over ranks alone.
    margin
        Every strategy with even stages within the tolerance of the fastest one; None where none was asked for.
    """

    status: Status
    strategies: tuple[Strategy, ...]
    step_seconds: tuple[float, ...]
    lower_bound_seconds: float
    gap: float
    rounding_bound_seconds: float
    effort: SearchStats
    space: Space
    even: tuple[Strategy | None, ...] = ()
    conflict: Conflict | None = None
    ticks: int = 0
    row_bounds: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False, compare=False)
    stages_differ: bool = False
    margin: Margin | None = field(default=None, repr=False, compare=False)


class Search:
    """
    The search of a job with one value of each setting; its state is the incumbents, the bounds and the clock.

    :mod:`planner.search.questions` runs its three parts: tabulate, collect_candidates, finish.

    Parameters
    ----------
    problem
        Job to plan, each setting with one value.
    formulas
        Formulas of cost.
    tolerance
        Margin above the fastest strategy up to which all strategies are tabulated, as a fraction of its step.
    """

    def __init__(self, problem: Problem, formulas: Formulas, tolerance: float = 0.0) -> None:
        self.clock = Clock(seconds=problem.search.time_limit_seconds)
        self.rivals = Rivals()
        self.groups: dict[Hashable, int] = {}
        self.problem = problem
        self.formulas = formulas
        self.space = build_space(problem)
        log_event(__name__, "space built", strategies=self.space.size, rows=self.space.num_rows)
        self.cost_table = CostTable.build(problem, self.space, formulas)
        self.incumbents = IncumbentPool(top=problem.top, tolerance=tolerance)
        self.even: dict[Hashable, Strategy] = {}
        self.row_bounds = bound_rows(self.space, formulas.lower_bound, lambda: self.seconds_left > 0)
        self.bounds = self.row_bounds.copy()  # raised where the memory of a row is bounded as well
        self.group_of_row = self.space.groups(GROUP_DECISIONS)
        self.unresolved_ticks = MAX_TICKS
        self.tabulated = np.zeros(self.space.num_rows, dtype=bool)
        self.costed: list[tuple[Candidates, Ints]] = []
        self.margin: Margin | None = None
        self.stats = SearchStats()
        self.pace = SHORTEST_SECONDS / LARGEST_BATCH_ROWS

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit, less the time of the final check of the strategies in hand."""
        checks = CHECK_SECONDS * min(len(self.incumbents.groups), self.incumbents.top)
        return self.clock.seconds_left - checks

    def compete_with(self, rivals: Rivals) -> None:
        """Cut by the results of other searches for the same job; groups are tuples of ``GROUP_DECISIONS``."""
        first = np.unique(self.group_of_row, return_index=True)[1]
        columns = [self.space.rows[name][first].tolist() for name in GROUP_DECISIONS]
        self.groups = {group: number for number, group in enumerate(zip(*columns, strict=True))}
        ticks = {self.groups.get(group, group): value for group, value in rivals.ticks.items()}
        summed = {self.groups.get(group, group): value for group, value in rivals.summed_ticks.items()}
        self.rivals = Rivals(ticks=ticks, summed_ticks=summed)
        self.incumbents.rivals = ticks

    def tabulate(self) -> None:
        """Tabulate rows, best bound first, until none is left that may matter."""
        for rows in self.batches():
            self.tabulated[rows] = True
            for block, row in self.affordable(*self.promising(rows)):
                self.compete(block, self.group_of_row[row])

    def finish(self, chosen: Mapping[Hashable, Found]) -> Outcome:
        """Search uneven stages in addition to the chosen strategies with even ones, and return the result."""
        if self.problem.variants != "all":
            near = {group: one for group, one in self.incumbents.groups.items() if one.ticks <= self.incumbents.reach}
            others = sorted(near.items(), key=lambda each: (each[0] not in chosen, each[1]))
            self.incumbents.groups = {**dict(others[: self.incumbents.top]), **chosen}
        if self.stages_may_differ:
            self.share_out()
        if self.problem.variants != "all":
            groups = self.incumbents.groups.items()
            self.incumbents.groups = {group: one for group, one in groups if group in chosen or one.layout}
        cost_whole(self)
        return self.outcome()

    def share_out(self) -> None:
        """
        Search uneven stages by the sum over their ranks, and keep those that are faster as simulated.

        A solver can add up ranks, but it does not know which ranks wait for a slow one. So the best results are
        improved layer by layer (:mod:`planner.search.uneven`). So are the best even stages of interleaved
        pipelines with alternating kinds of layers.
        """
        log_event(__name__, "uneven stages are looked for", even_groups=len(self.incumbents.groups))
        even = dict(self.incumbents.groups)
        self.even = {group: found.strategy for group, found in even.items()}
        self.incumbents.groups = self.sum_ranks(even)
        self.incumbents.rivals = self.rivals.summed_ticks
        stages = StageSearch(self, [found.strategy.recompute for found in self.incumbents.best])
        stages.search()
        self.stats += stages.effort
        layouts = {group: found for group, found in self.incumbents.groups.items() if self.differs(found.strategy)}
        self.incumbents.groups, self.incumbents.rivals = {}, self.rivals.ticks
        for group, found in even.items():
            self.keep(group, found)
        for group, found in layouts.items():
            self.keep(group, self.reprice(found, strategy_seconds))
        for group, found in self.leading():
            if found.layout or (stages.pattern is not None and found.values[VPP] > 1):
                self.exchange(group, found.strategy)

    def leading(self) -> list[tuple[Hashable, Found]]:
        """Return the best strategies with their groups, best first: ``top`` of them, but at least ``MOST_FOUND``."""
        return sorted(self.incumbents.groups.items(), key=lambda each: each[1])[: max(self.incumbents.top, MOST_FOUND)]

    def exchange(self, group: Hashable, strategy: Strategy) -> None:
        """Move layers of an interleaved pipeline between its virtual stages while that makes it faster."""
        start, fewest = write_out_layout(self.space.facts, strategy), least_layers(self.problem)
        better, cost = descend(self.space.facts, start, self.fits, lambda: self.seconds_left > 0, fewest=fewest)
        if better.layout != start.layout and self.differs(better):
            seconds = np.asarray(cost.step_seconds)
            self.keep(group, replace(self.build_found(better, cost), ticks=int(seconds_to_ticks(seconds))))

    def differs(self, strategy: Strategy) -> bool:
        """Tell whether stages differ from those that the decisions mean; those were searched before."""
        layout = strategy.layout
        return layout is not None and settle_layout(strategy, self.space.facts.model, layout).layout is not None

    def fits(self, cost: Cost) -> bool:
        """Tell whether a strategy is within the memory."""
        return bool(self.cost_table.capacity.holds(*self.cost_table.mebibytes(cost)))

    def sum_ranks(self, even: Mapping[Hashable, Found]) -> dict[Hashable, Found]:
        """Return strategies with even stages, with the ticks of the sum over their ranks."""
        if not even:
            return {}
        each = [found.strategy.decisions() for found in even.values()]
        decisions = {name: np.array([one[name] for one in each]) for name in DECISIONS}
        ticks = seconds_to_ticks(summed_seconds(self.space.facts, decisions))
        return {
            group: replace(found, ticks=own) for (group, found), own in zip(even.items(), ticks.tolist(), strict=True)
        }

    def reprice(self, found: Found, law: Callable[[Facts, Strategy], float]) -> Found:
        """Return a strategy with the ticks of another cost formula."""
        return replace(found, ticks=int(seconds_to_ticks(np.asarray(law(self.space.facts, found.strategy)))))

    @property
    def stages_may_differ(self) -> bool:
        """True where uneven stages are searched."""
        return self.problem.search.stages != "even" and not self.space.rules.timed and self.space.num_rows > 0

    def promising(self, rows: Ints) -> tuple[CandidateBlock, Ints, Ints]:
        """Return the part of some rows that may matter, with the space's row and a bound in ticks of each."""
        every_set = self.problem.variants == "all" or bool(self.space.rules.timed)  # also needless ones
        cuts = self.reaches(self.group_of_row[rows])
        block, row, ticks, pruned = self.cost_table.promising(rows, cuts, every_set=every_set)
        self.stats += pruned
        return block, row, ticks

    def affordable(self, block: CandidateBlock, row: Ints, ticks: Ints) -> Iterator[tuple[CandidateBlock, Ints]]:
        """
        Yield a box in parts, those with the least bounds first; each result cuts the later parts.

        The size of a part follows from the time left and the pace so far. The rest is left out when time is up.
        """
        waiting, size = np.argsort(ticks, kind="stable"), FEW_ROWS if self.incumbents.groups else FIRST_ROWS
        while len(waiting):
            if self.seconds_left <= 0:
                self.leave(int(ticks[waiting].min()))
                return
            size = max(1, int(min(size, self.seconds_left / (self.pace * block.width))))
            part, began = np.sort(waiting[:size]), self.clock.usage_seconds
            yield block.take(part), row[part]
            self.pace = max(self.clock.usage_seconds - began, SHORTEST_SECONDS) / (len(part) * block.width)
            waiting, size = waiting[size:], max(FEW_ROWS, BATCH_GROWTH * size)
            within = ticks[waiting] <= self.reaches(self.group_of_row[row[waiting]])
            num_cut = int(block.row_sizes[waiting[~within]].sum())
            self.stats += SearchStats(num_tabulated=num_cut, num_bounded_tabulated=num_cut)
            waiting = waiting[within]

    def compete(self, block: CandidateBlock, groups: Ints) -> None:
        """Cost a box; keep the best strategy of each group, and all that are of interest besides it."""
        reaches = self.reaches(groups)
        costed = self.cost_table.cost(block, reaches)
        if self.problem.variants == "all":  # each is compared by itself, without a solver
            kept, _ = costed.select(reaches)
            kept = kept.take(sort_by_preference(kept)[: self.incumbents.top])
            self.incumbents.add_all(Found.build(kept, index) for index in range(len(kept)))
        else:
            best, row = costed.best(self.cuts(groups), groups)
            self.incumbents.add_candidates(best, groups[row])
            kept, row = costed.select(self.reaches(groups), self.incumbents.margin)
            self.costed.append((kept, groups[row]))
        self.stats += costed.count_left_out(reaches, kept)

    def cuts(self, groups: Ints) -> Ints:
        """Return the upper bound of each group, in ticks."""
        return (
            np.full(len(groups), self.incumbents.cut)
            if self.problem.variants == "all"
            else self.incumbents.cuts(groups)
        )

    def reaches(self, groups: Ints) -> Ints:
        """Return the ticks above which no strategy of each group is of interest."""
        return self.cuts(groups) if self.problem.variants == "all" else self.incumbents.reaches(groups)

    def keep_uneven(self, group: int, strategy: Strategy, cost: Cost) -> None:
        """Keep a strategy with uneven stages."""
        self.keep(group, self.build_found(strategy, cost))

    def build_found(self, strategy: Strategy, cost: Cost) -> Found:
        """Return a strategy with uneven stages, with the ticks of the sum over its ranks."""
        device, host = self.cost_table.mebibytes(cost)
        return Found(
            seconds=float(cost.step_seconds),
            ticks=int(seconds_to_ticks(np.asarray(summed_strategy_seconds(self.space.facts, strategy)))),
            device_mebibytes=int(device),
            host_mebibytes=int(host),
            values=tuple(int(value) for value in strategy.decisions().values()),
            layout=strategy.layout,
        )

    def keep(self, group: Hashable, found: Found) -> None:
        """Keep a strategy if it is among the best."""
        if self.problem.variants == "all":
            self.incumbents.add_all([found])
        else:
            self.incumbents.add(group, found)

    # --- branch --------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Ints]:
        """Yield rows that may still matter, best bound first, until none is left or time is up."""
        order = np.argsort(self.bounds, kind="stable")
        position, size, doubted = 0, FIRST_BATCH_ROWS, False
        while position < len(order) and self.bounds[order[position]] <= self.incumbents.reach:
            if self.seconds_left <= 0:
                self.leave(int(self.bounds[order[position]]))
                return
            if position >= INFEASIBILITY_CHECK_ROWS and not self.incumbents.groups and not doubted:
                doubted = True
                feasible = self.feasible_row()
                if feasible is None:
                    return
                yield np.array([feasible])
                continue
            rows, began = order[position : position + size], self.clock.usage_seconds
            self.log_progress(position, int(self.bounds[order[position]]))
            yield from self.best_first(rows[self.bounds[rows] <= self.incumbents.reach])
            affordable = int(self.seconds_left * len(rows) / max(self.clock.usage_seconds - began, SHORTEST_SECONDS))
            growth = LARGEST_BATCH_ROWS if self.incumbents.cut < MAX_TICKS else BATCH_GROWTH
            position, size = position + size, max(1, min(growth * size, LARGEST_BATCH_ROWS, affordable))

    def best_first(self, rows: Ints) -> Iterator[Ints]:
        """Yield a few rows with the least bounds by time and memory, which cut the others, then ever more."""
        if len(rows) > FEW_ROWS:
            bounds = self.cost_table.bound_by_memory(rows, self.incumbents.reach)
            unfit = rows[bounds > MAX_TICKS]
            self.tabulated[unfit] = True
            num_unfit = int(self.space.row_sizes[unfit].sum())
            self.stats += SearchStats(num_tabulated=num_unfit, num_unfit_tabulated=num_unfit)
            self.bounds[rows] = np.maximum(self.bounds[rows], bounds)
            rows = rows[np.argsort(bounds, kind="stable")]
        size = FEW_ROWS
        while len(rows := rows[self.bounds[rows] <= self.incumbents.reach]):
            if self.seconds_left <= 0:
                self.leave(int(self.bounds[rows].min()))
                return
            yield np.sort(rows[:size])
            rows, size = rows[size:], BATCH_GROWTH * size

    def log_progress(self, position: int, bound: int) -> None:
        """Log the progress: rows done, the best step so far, and its lower bound."""
        best = min((found.ticks for found in self.incumbents.best), default=MAX_TICKS)
        known = {"best_seconds": best * TICK_SECONDS, "gap": 1 - bound / best} if 0 < best < MAX_TICKS else {}
        log_event(__name__, "searching", level=DEBUG, **known, bound_seconds=bound * TICK_SECONDS, rows=position)

    def leave(self, ticks: int) -> None:
        """Note that time is up, and that a strategy with these ticks may have been left out."""
        self.unresolved_ticks = min(self.unresolved_ticks, ticks)

    def feasible_row(self) -> int | None:
        """Return a row with a strategy that fits into memory, however slow; None ends the search."""
        for start in range(0, self.space.num_rows, MEMORY_ROWS):
            if self.seconds_left <= 0:
                self.leave(int(self.bounds.min()))
                return None
            fitting = self.cost_table.fitting(np.arange(start, min(start + MEMORY_ROWS, self.space.num_rows)))
            if len(fitting):
                return int(fitting[0])
        return None

    # --- decide --------------------------------------------------------------------------------------------

    def collect_candidates(self) -> Margin:
        """Return the costed strategies that may be among the best; keep those of the margin for later questions."""
        candidates = concatenate_candidates(one for one, _ in self.costed)
        groups = np.concatenate([np.zeros(0, dtype=np.int64), *(own for _, own in self.costed)])
        usable = self.cost_table.usable(candidates)
        self.costed.clear()
        reaches = np.where(usable, self.incumbents.reaches(groups), self.incumbents.margin)
        kept = np.flatnonzero((candidates.ticks <= reaches) & keep_fastest(candidates.ticks, usable))
        num_allowed = int(candidates.allowed.sum())
        candidates, groups, usable = candidates.take(kept), groups[kept], usable[kept]
        num_candidates, num_unfit = int(candidates.allowed.sum()), int((candidates.allowed & ~usable).sum())
        num_cut = num_allowed - num_candidates
        self.stats += SearchStats(num_cut=num_cut, num_candidates=num_candidates, num_unfit=num_unfit)
        found = Margin(
            problem=self.problem,
            space=self.space,
            candidates=candidates,
            cut=self.incumbents.margin,
            is_complete=self.unresolved_ticks > self.incumbents.margin,
        )
        is_wanted = self.incumbents.tolerance and self.incumbents.margin >= 0
        self.margin = found.limit(self.incumbents.margin) if is_wanted else None
        near = np.flatnonzero(candidates.ticks <= np.where(usable, self.incumbents.cuts(groups), self.incumbents.cut))
        return replace(found.take(near), cut=self.incumbents.cut)

    def solve(
        self, model: cp_model.CpModel, *, of_tables: bool = False
    ) -> tuple[cp_model.CpSolverStatus, cp_model.CpSolver]:
        """Run CP-SAT with the settings of :func:`new_solver`."""
        solver, began = new_solver(self.seconds_left, of_tables=of_tables), self.clock.usage_seconds
        status = solver.solve(model)
        self.stats += SearchStats(num_solves=1, solve_seconds=self.clock.usage_seconds - began)
        assert status != cp_model.MODEL_INVALID, model.validate()
        return status, solver

    # --- report --------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """Return the strategies found so far, with their proof."""
        leading = self.leading()[: self.incumbents.top]
        best = [found for _, found in leading]
        proven = min(self.unresolved_ticks, best[0].ticks if best else MAX_TICKS)
        finished = self.unresolved_ticks == MAX_TICKS or self.unresolved_ticks > self.incumbents.cut
        return Outcome(
            status=_status(bool(best), finished),
            strategies=tuple(found.strategy for found in best),
            step_seconds=tuple(self.checked_seconds(found) for found in best),
            even=tuple(self.even.get(group) if found.layout else None for group, found in leading),
            lower_bound_seconds=proven * TICK_SECONDS if proven < MAX_TICKS else float("inf"),
            gap=(best[0].ticks - proven) / max(best[0].ticks, 1) if best else float("inf"),
            rounding_bound_seconds=ROUNDING_BOUND_SECONDS,
            effort=self.effort(),
            space=self.space,
            ticks=best[0].ticks if best else 0,
            row_bounds=self.row_bounds,
            stages_differ=self.stages_may_differ and bool((self.space.rows["pp"] > 1).any()),
            margin=self.margin,
        )

    def checked_seconds(self, found: Found) -> float:
        """Return the step time of a strategy; assert that uneven stages, which no model has, break no rule."""
        if found.layout is None:
            return found.seconds
        again, facts = layout_cost(self.space.facts, found.strategy), self.space.facts
        asked = rules_for(self.problem, self.space.rules, found.strategy)
        broken = find_violations(facts, found.strategy.decisions() | self.resources(again), rules=asked)
        assert not broken, f"the search chose {found.strategy}, which breaks {broken}"
        seconds = float(again.step_seconds)
        assert found.ticks == MAX_TICKS or abs(seconds / TICK_SECONDS - found.ticks) <= 1, (seconds, found)
        return seconds

    def resources(self, cost: Cost) -> dict[str, object]:
        """Return the figures of a strategy that rules of memory and time need."""
        figures = {
            "device_bytes": cost.device_bytes * (1 - FLOAT_NOISE),
            "host_bytes": cost.host_bytes * (1 - FLOAT_NOISE),
            "memory_headroom_bytes": self.cost_table.headroom_bytes,
        }
        if self.space.rules.timed:
            figures |= {"step_seconds": cost.step_seconds, "bubble_seconds": cost.bubble_seconds * (1 - FLOAT_NOISE)}
        return figures

    def effort(self) -> SearchStats:
        """Return the effort so far."""
        return replace(
            self.stats,
            raw_size=self.space.raw_size,
            size=self.space.size,
            bounds=(*self.space.rules.bound_sentences, *stage_restrictions(self.problem, self.space)),
            num_rows=self.space.num_rows,
            num_rows_tabulated=int(self.tabulated.sum()),
            num_bounded=int(self.space.row_sizes[~self.tabulated & (self.bounds > self.incumbents.cut)].sum()),
        )


def _status(found: bool, finished: bool) -> Status:
    if finished:
        return Status.OPTIMAL if found else Status.INFEASIBLE
    return Status.FEASIBLE if found else Status.UNKNOWN


def bound_rows(space: Space, lower_bound: SecondsFunction, has_time: Callable[[], bool]) -> Ints:
    """Return a lower bound of each row in ticks, rounded down; 0 where time ran out before."""
    bounds, num_parts = np.zeros(space.num_rows, dtype=np.int64), -(-space.num_rows // BOUND_ROWS)
    for part in range(num_parts):
        if part and not has_time():
            break
        some = slice(part, None, num_parts)  # from everywhere: the first part makes the tables of nearly all rows
        seconds = np.asarray(lower_bound(space.facts, space.degrees(some)), dtype=np.float64)
        bounds[some] = seconds_to_floor_ticks(np.nan_to_num(seconds, nan=0.0, posinf=np.inf))
    return bounds
