"""
The certificate: a CP-SAT model that holds all rules is infeasible if it must be faster than the answer.

The search filters arrays by the rules and selects among the rest. The certificate asks one CP-SAT model
(:mod:`constraints.joint`), with a variable per decision and every rule as constraints, for a strategy within the memory
that is faster than the answer. Arrays prepare the tables of that model, from the rows of degrees whose lower bound is
below the answer. If the rows are few, their features are tabulated whether or not a rule allows them. If they are many,
only allowed features are, without needless sets of modules to recompute. Entries that lower bounds of memory and time
exclude are left out. So the certificate relies on rows and bounds of the search, but on none of its cuts, folds,
batches and choices. It reports the number of rows that the bounds excluded.

It covers strategies with even stages. Uneven stages have models of their own (:mod:`constraints.stages`); during the
search each is asked for a strategy faster than the answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

import numpy as np

from constraints.cp_sat import cp_model
from constraints.encoding import TICK_SECONDS, most_seconds, seconds_to_floor_ticks, seconds_to_ticks
from constraints.joint import CostTables, JointModel, joint_model, narrowed
from costmodel.events import log_event
from costmodel.strategy import DECISIONS, OVERLAPS, Strategy
from planner.jobs.problem import Problem
from planner.jobs.setting_choices import text_of
from planner.search.branch_and_bound import Outcome, Status
from planner.search.candidates import (
    MODES,
    OWN,
    CostTable,
    Formulas,
    Ints,
    capacity,
    memory_by_mode,
    satisfy_time_rules,
)
from planner.search.clock import Clock, OutOfTimeError
from planner.search.domains import feature_values, free_replicas, row_domains
from planner.search.solver import new_solver
from planner.search.space import CandidateBlock, Space, spread, strategy_of

MAX_ENTRIES = 100_000
"""Rows of both cost tables up to which a model is built: more would take hundreds of MB and a minute to solve."""

LONGEST_SECONDS = 10.0
"""Longest time of a certificate, within the time limit; the slowest of all jobs tried took two seconds."""

THOROUGH_CELLS = 2**16
"""Modes of rows up to which all are bounded; with more, arrays leave out those that the rules forbid."""

FEW_CELLS = 2**16
"""Number of strategies up to which they are costed at once, without a bound first."""

ROWS_AT_ONCE, CELLS_AT_ONCE = 2**13, 2**18
"""Rows that are bounded, strategies that are costed at once; affects memory, and how often the clock is read."""


class Verdict(StrEnum):
    """Verdict of a certificate on an answer."""

    CERTIFIED = "certified"
    NOT_CERTIFIED = "not certified"
    REFUTED = "refuted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """
    Answer of CP-SAT to the question for the fastest strategy that is no slower than an answer.

    Parameters
    ----------
    verdict
        ``certified``: no strategy is faster. ``not certified``: CP-SAT could not be asked, for the given reason.
        ``refuted``: a strategy is faster, which is a fault of the search.
    reason
        Reason why CP-SAT could not be asked; empty where it was.
    below_seconds
        Step of the answer; no strategy may be faster.
    num_decisions, num_rules, num_constraints
        Variables of decisions; rules in the model; constraints made from them.
    num_rows, num_rows_bounded
        Rows of degrees; rows among them that their lower bound alone excludes.
    num_combinations, num_strategies
        Rows of the model's cost tables: memory; step time of strategies that fit.
    is_thorough
        True where the tables hold features that the rules forbid, so that the model's own rules exclude them.
    seconds
        Time of the certificate.
    better
        The faster strategy, if there is one.
    """

    verdict: Verdict
    reason: str = ""
    below_seconds: float
    num_decisions: int = len(DECISIONS)
    num_rules: int = 0
    num_constraints: int = 0
    num_rows: int = 0
    num_rows_bounded: int = 0
    num_combinations: int = 0
    num_strategies: int = 0
    is_thorough: bool = True
    seconds: float = 0.0
    better: Strategy | None = None


class _TooLargeError(Exception):
    """A model has more entries than allowed."""


def certify(problem: Problem, outcome: Outcome, clock: Clock, formulas: Formulas = OWN) -> Certificate | None:
    """
    Ask CP-SAT for the fastest strategy up to the best one of a result; None where it has none.

    Parameters
    ----------
    problem
        Planned job.
    outcome
        Result of the search, with the ticks of its best strategy.
    clock
        Clock of the time limit.
    formulas
        Formulas of cost; those of the search.
    """
    if not outcome.strategies:
        return None
    log_event(__name__, "CP-SAT checks the answer", below_seconds=outcome.ticks * TICK_SECONDS)
    asked = Certificate(
        verdict=Verdict.NOT_CERTIFIED,
        below_seconds=outcome.ticks * TICK_SECONDS,
        num_rules=len(outcome.space.rules.every),
        num_rows=outcome.space.num_rows,
    )
    if outcome.status != Status.OPTIMAL:
        return replace(asked, reason="time ran out before the search's own proof")
    began = time.perf_counter()
    clock = Clock(seconds=min(clock.seconds_left, LONGEST_SECONDS))
    try:
        answer = _ask(problem, outcome, asked, clock, formulas)
    except OutOfTimeError:
        answer = replace(asked, reason=_time_reason(clock))
    except _TooLargeError:
        answer = replace(asked, reason=f"its cost tables have more than {MAX_ENTRIES:,} rows")
    except MemoryError:
        answer = replace(asked, reason="the model does not fit into memory")
    return replace(answer, seconds=time.perf_counter() - began)


def _time_reason(clock: Clock) -> str:
    """Say which time was short."""
    if clock.seconds <= 0:
        return "the search took all of the time limit (--time-limit S allows for more)"
    return f"it was not done within {clock.seconds:.3g} s"


def certify_all(searched: Sequence[tuple[Problem, Outcome]], outcome: Outcome, clock: Clock) -> Certificate | None:
    """
    Ask CP-SAT for the fastest strategy up to an answer, with each combination of settings; None without an answer.

    Parameters
    ----------
    searched
        The job with each combination, and the result of its search.
    outcome
        Result of all combinations together, with the ticks of its best strategy.
    clock
        Clock of the time limit.

    Returns
    -------
    Certificate | None
        The worst verdict with its reason; numbers are sums over the combinations.
    """
    found: list[Certificate] = []
    for position, (problem, own) in enumerate(searched):
        asked = replace(own, strategies=outcome.strategies, ticks=outcome.ticks, status=outcome.status)
        share = Clock(seconds=clock.seconds_left / (len(searched) - position))
        one = certify(problem, asked, share)
        if one is None:
            return None
        with_settings = f"{text_of(problem.settings)}: {one.reason}" if one.reason and problem.settings else one.reason
        found.append(replace(one, reason=with_settings))
    worst = max(found, key=lambda one: SEVERITY.index(one.verdict))
    if len(found) == 1:
        return worst
    return replace(
        worst,
        **{name: sum(getattr(one, name) for one in found) for name in SUMMED},
        num_rules=max(one.num_rules for one in found),
        is_thorough=all(one.is_thorough for one in found),
    )


SEVERITY = (Verdict.CERTIFIED, Verdict.NOT_CERTIFIED, Verdict.REFUTED)
"""Verdicts, the worst one last."""

SUMMED = ("num_constraints", "num_rows", "num_rows_bounded", "num_combinations", "num_strategies", "seconds")
"""Numbers of certificates that add up over combinations of settings."""


def _ask(problem: Problem, outcome: Outcome, asked: Certificate, clock: Clock, formulas: Formulas) -> Certificate:
    """Ask for the fastest strategy up to a result's best one, and check that none is faster."""
    space, rows = outcome.space, _rows(outcome)
    tables = _tables(problem, outcome, clock, formulas)
    asked = replace(
        asked,
        is_thorough=_are_few(space, rows),
        num_rows_bounded=space.num_rows - len(rows),
        num_combinations=len(tables.device_mebibytes),
        num_strategies=len(tables.ticks),
    )
    joint = _model(problem, outcome, tables, tables.domains)
    asked = replace(asked, num_constraints=joint.num_constraints)
    clock.require()
    solver = new_solver(clock.seconds_left)
    status = solver.solve(joint.model)
    assert status != cp_model.MODEL_INVALID, joint.model.validate()
    if status == cp_model.INFEASIBLE:
        return replace(asked, verdict=Verdict.CERTIFIED)
    if status == cp_model.UNKNOWN:
        raise OutOfTimeError
    if round(solver.objective_value) >= outcome.ticks:
        if status == cp_model.FEASIBLE:
            raise OutOfTimeError
        return replace(asked, verdict=Verdict.CERTIFIED)
    values = {name: solver.value(joint.variables[name]) for name in DECISIONS}
    return replace(asked, verdict=Verdict.REFUTED, better=strategy_of(values))


def written_model(problem: Problem, outcome: Outcome, formulas: Formulas = OWN) -> JointModel | None:
    """
    Build the model for other solvers: all values of the job's decisions, and steps up to the answer's.

    If the answer has even stages, the model's optimum is as fast as the answer. If not, the model is infeasible: no
    strategy with even stages is as fast.

    Parameters
    ----------
    problem
        Planned job.
    outcome
        Result of the search.
    formulas
        Formulas of cost; those of the search.

    Returns
    -------
    JointModel | None
        None if the outcome has no strategy, or the tables have too many rows.
    """
    if not outcome.strategies:
        return None
    try:
        tables = _tables(problem, outcome, Clock(seconds=problem.search.time_limit_seconds), formulas)
    except (_TooLargeError, OutOfTimeError):
        return None
    return _model(problem, outcome, tables, all_values(problem))


def _model(problem: Problem, outcome: Outcome, tables: CostTables, domains: Mapping[str, Ints]) -> JointModel:
    """Build the joint model of a problem, up to the step of a search's result."""
    space = outcome.space
    rules = (*space.rules.rows, *space.rules.mixed)
    return joint_model(space.facts, rules, domains, tables, capacity=capacity(problem), cut=outcome.ticks)


def all_values(problem: Problem) -> dict[str, Ints]:
    """Return every value of each decision that the job leaves open, before any rule."""
    degrees = row_domains(problem)
    tp, cp, pp = (degrees[name] for name in ("tp", "cp", "pp"))
    following = problem.facts.cluster.num_devices // np.multiply.outer(np.multiply.outer(tp, cp), pp)
    degrees["dp"] = np.array([*np.maximum(following, 1).ravel().tolist(), *free_replicas(problem)])
    return {name: np.unique(values).astype(np.int64) for name, values in (degrees | feature_values(problem)).items()}


# --- cost tables -------------------------------------------------------------------------------------------


class _OtherAxesError(Exception):
    """Memory depends on an overlap that earlier blocks did not depend on; ``time_only`` are the other overlaps."""

    def __init__(self, time_only: tuple[str, ...]) -> None:
        self.time_only = time_only
        super().__init__()


def _rows(outcome: Outcome) -> Ints:
    """Return the rows whose lower bound is up to the step of a search's result."""
    return np.flatnonzero(outcome.row_bounds <= outcome.ticks)


def _tables(problem: Problem, outcome: Outcome, clock: Clock, formulas: Formulas) -> CostTables:
    """
    Make the cost tables up to the step of a search's result; with few rows features are not filtered by the rules.

    Combinations are left out if a bound of their memory exceeds device or host, or if a bound of their time is slower.
    """
    costs, rows, cut = CostTable.of(problem, outcome.space, formulas), _rows(outcome), outcome.ticks
    every_set = bool(costs.space.rules.timed)
    if _are_few(costs.space, rows):
        every_set = True
        costs, rows = _whatever_the_rules(costs, rows)
    blocks, time_only = list(_promising(costs, rows, cut, clock, every_set=every_set)), OVERLAPS
    while True:
        try:
            return _stack_tables(list(_parts(costs, blocks, cut, clock, time_only)), time_only)
        except _OtherAxesError as error:
            time_only = error.time_only


def _are_few(space: Space, rows: Ints) -> bool:
    """Tell whether the modes of some rows are few enough to be tabulated without the rules."""
    return len(rows) * prod(len(space.features[name]) for name in MODES) <= THOROUGH_CELLS


def _whatever_the_rules(costs: CostTable, rows: Ints) -> tuple[CostTable, Ints]:
    """Return the space with every combination of features, except values that no strategy of some rows can have."""
    space = costs.space
    degrees = {name: np.unique(values) for name, values in space.degrees(rows).items()}
    rules = (*space.rules.rows, *space.rules.mixed)
    left = narrowed(space.facts, rules, degrees | {name: np.unique(values) for name, values in space.features.items()})
    kept = np.logical_and.reduce([np.isin(space.rows[name][rows], left[name]) for name in degrees])
    features = {name: values[np.isin(values, left[name])] for name, values in space.features.items()}
    shape = tuple(len(values) for values in features.values())
    whole = replace(
        space,
        features=features,
        feature_class=np.zeros(space.num_rows, dtype=np.int64),
        allowed=np.ones((1, *shape), dtype=bool),
    )
    return replace(costs, space=whole), rows[kept] if all(shape) else rows[:0]


def _parts(
    costs: CostTable, blocks: Iterable[CandidateBlock], cut: int, clock: Clock, time_only: tuple[str, ...]
) -> Iterator[CostTables]:
    """Yield the cost tables of one box after the other."""
    num_entries = 0
    for block in blocks:
        clock.require()
        part = _part(costs, block, cut, time_only)
        num_entries += len(part.device_mebibytes) + len(part.ticks)
        if num_entries > MAX_ENTRIES:
            raise _TooLargeError
        yield part


def _promising(costs: CostTable, rows: Ints, cut: int, clock: Clock, *, every_set: bool) -> Iterator[CandidateBlock]:
    """Yield the part of some rows that may fit and take at most ``cut`` ticks, in boxes of few strategies."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        clock.require()
        some = rows[start : start + ROWS_AT_ONCE]
        block = costs.space.block(some)
        if len(some) * block.width > FEW_CELLS:
            block, *_ = costs.promising(some, np.full(len(some), cut), every_set=every_set)
        if len(block.class_of_row) * block.width > FEW_CELLS:
            block = _split_shardings(costs, block, cut)
        width = max(1, CELLS_AT_ONCE // block.width)
        for first in range(0, len(block.class_of_row), width):
            yield block.take(np.arange(first, min(first + width, len(block.class_of_row))))


def _split_shardings(costs: CostTable, block: CandidateBlock, cut: int) -> CandidateBlock:
    """Split off the shardings of a box that may fit and take at most ``cut`` ticks, each as a row."""
    shardings = {"sharding": block.features["sharding"]}
    fewest = {name: block.features[name].min() for name in OVERLAPS}
    least = costs.formulas.memory(costs.space.facts, spread(block.degrees, shardings) | fewest)
    kept = np.array(np.broadcast_to(costs.may_fit(least), (len(block.class_of_row), len(shardings["sharding"]))))
    kept &= np.asarray(block.of_class.any(axis=tuple(range(2, block.of_class.ndim))))[block.class_of_row]
    row, sharding = np.nonzero(kept)
    columns = {name: values[row] for name, values in block.degrees.items()} | fewest
    columns["sharding"] = shardings["sharding"][sharding]
    seconds = np.asarray(costs.formulas.least_seconds(costs.space.facts, columns))
    kept[row, sharding] = seconds_to_floor_ticks(seconds) <= cut
    return block.split(kept, ("sharding",))[0]


def _part(costs: CostTable, block: CandidateBlock, cut: int, time_only: tuple[str, ...]) -> CostTables:
    """Make the cost tables of a box; ``time_only`` are the overlaps that change time alone."""
    num_rows = len(block.class_of_row)
    found = costs.formulas.cost(costs.space.facts, block.decisions, at_most=most_seconds(np.array(cut)))
    memory, own = memory_by_mode(found, num_rows, block.features)
    if own.overlaps != time_only:
        if not set(time_only) <= set(own.overlaps):
            raise _OtherAxesError(tuple(name for name in time_only if name in own.overlaps))
        memory, own = memory_by_mode(found, num_rows, block.features, time_only)
    shape = (num_rows, *(len(values) for values in block.features.values()))
    seconds = np.where(satisfy_time_rules(costs.space.facts, costs.space.rules, found), found.step_seconds, np.inf)
    ticks = own.flat(seconds_to_ticks(np.broadcast_to(seconds, shape)))
    within = ticks <= cut
    row, mode = np.nonzero(within.any(axis=-1))
    device, host = (use[row, mode] for use in costs.mebibytes(memory))
    fits = np.flatnonzero((device <= costs.capacity.device_mebibytes) & (host <= costs.capacity.host_mebibytes))
    position, other = np.nonzero(within[row[fits], mode[fits]])
    chosen = fits[position]
    of_features = own.chosen(block.features, mode, np.zeros_like(mode))
    of_others = own.chosen(block.features, mode[chosen], other)
    columns = {name: values[row] for name, values in block.degrees.items()} | of_features
    return CostTables(
        combinations={name: columns[name].astype(np.int64) for name in DECISIONS if name not in time_only},
        device_mebibytes=device,
        host_mebibytes=host,
        combination=chosen,
        others={name: of_others[name].astype(np.int64) for name in time_only},
        ticks=ticks[row[chosen], mode[chosen], other],
    )


def _stack_tables(parts: Sequence[CostTables], time_only: tuple[str, ...]) -> CostTables:
    """Stack cost tables."""
    firsts = np.cumsum([0, *(len(part.device_mebibytes) for part in parts)])
    empty = np.zeros(0, dtype=np.int64)

    def stack(columns: Iterable[Ints]) -> Ints:
        return np.concatenate([empty, *columns])

    return CostTables(
        combinations={
            name: stack(part.combinations[name] for part in parts) for name in DECISIONS if name not in time_only
        },
        device_mebibytes=stack(part.device_mebibytes for part in parts),
        host_mebibytes=stack(part.host_mebibytes for part in parts),
        combination=stack(first + part.combination for first, part in zip(firsts, parts, strict=False)),
        others={name: stack(part.others[name] for part in parts) for name in time_only},
        ticks=stack(part.ticks for part in parts),
    )
