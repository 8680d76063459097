"""
The certificate: a CP-SAT model that holds all rules is infeasible if it must be faster than the answer.

The certificate asks one CP-SAT model (:mod:`planner.search.margin`), with a variable per decision, every rule and the
memory as constraints, for a strategy that is faster than the answer. It believes nothing of the search: rows of degrees
are grown anew from the values of the job's decisions, in another order and with other lower bounds. If rows are few,
their features are costed whether or not a rule allows them.

It covers strategies with even stages. Uneven stages have models of their own (:mod:`constraints.stages`); during the
search each is asked for a strategy faster than the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Generic, Literal

import numpy as np

from constraints.conflict import Written
from constraints.cp_sat import TICK_SECONDS, concatenate_candidates, cp_model
from constraints.joint import JointModel
from constraints.relations import list_binding, narrow_domains
from constraints.rule import Rule
from costmodel.events import log_event
from costmodel.record import record
from costmodel.strategy import DECISIONS, FLAGS, Strategy
from costmodel.tables import distinct, tabulate
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import text_of
from planner.search import margin as tables
from planner.search.branch_and_bound import FEW_ROWS, Outcome, Status, bound_rows
from planner.search.candidates import MODES, OWN, CostTable, Formulas
from planner.search.domains import (
    ROW_DECISIONS,
    USES_ALL,
    Columns,
    all_values,
    fast_enough,
    feature_values,
    needs,
    problem_rules,
)
from planner.search.margin import FEW_CELLS, Margin, tabulate_margin
from planner.search.solver import Clock, OutOfTimeError, new_solver
from planner.search.space import space_of, strategy_of

LONGEST_SECONDS = 10.0
"""Longest time of a certificate, within the time limit; the slowest of all jobs tried took two seconds."""

THOROUGH_CELLS = 2**16
"""Modes of rows up to which all are bounded; with more, arrays leave out those that the rules forbid."""

NEAREST_ROWS = 16
"""
Rows with the least bounds, whose strategies that do not fit are in the model as well.

Arrays leave out strategies of other rows that a lower bound of their memory excludes.
"""

MANY_ROWS = 256
"""Rows up to which none is left out by the lower bound that the search has as well."""


@record(frozen=True, kw_only=True, slots=True)
class Certificate(Generic[Written]):
    """
    CP-SAT's answer when a model with all rules is asked for an even strategy that is faster than the plan.

    Parameters
    ----------
    verdict
        certified: none is; not certified: it could not be asked; refuted: one is, or none is as fast, a fault of the
        planner.
    reason
        Reason why it could not be asked; empty where it was.
    below_seconds
        The answer's step, than which none may be faster.
    num_decisions
        Variables of decisions.
    num_rules
        Rules that the model holds.
    num_constraints
        Constraints that they became; the others are domains, or hold for all values left.
    num_rows
        Combinations of degrees.
    num_rows_bounded
        Combinations of degrees that their lower bound excludes.
    num_combinations
        Combinations of the decisions that memory depends on, in the model's table.
    num_strategies
        Strategies that the rules and the memory allow and that are as fast, in its other table.
    is_thorough
        True if the tables hold all features, also those that the rules forbid.
    seconds
        Time that it took.
    better
        The faster strategy; null without one.
    """

    verdict: Literal["certified", "not certified", "refuted"]
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
    better: Written | None = None


def certify(
    searched: Sequence[tuple[Problem, Outcome]], outcome: Outcome, clock: Clock, formulas: Formulas = OWN
) -> Certificate[Strategy] | None:
    """
    Ask CP-SAT for the fastest strategy up to an answer, with any combination of settings; None without an answer.

    One model has all combinations. Combinations that cannot be tabulated are left out of it: it may still refute the
    answer.

    Parameters
    ----------
    searched
        The job with each combination, and the result of its search.
    outcome
        Result of all combinations together, with the ticks of its best strategy.
    clock
        Clock of the time limit.
    formulas
        Formulas of cost; those of the search.
    """
    if not outcome.strategies:
        return None
    log_event(__name__, "CP-SAT checks the answer", below_seconds=outcome.ticks * TICK_SECONDS)
    asked = Certificate[Strategy](
        verdict="not certified",
        below_seconds=outcome.ticks * TICK_SECONDS,
        num_rules=max(len(own.space.rules.every) for _, own in searched),
        num_rows=sum(own.space.num_rows for _, own in searched),
    )
    if outcome.status != Status.OPTIMAL:
        return replace(asked, reason="time ran out before the search's own proof")
    clock = Clock(seconds=min(clock.seconds_left, LONGEST_SECONDS * len(searched)))
    margins: list[Margin] = []
    for position, (problem, own) in enumerate(searched):
        share = Clock(seconds=clock.seconds_left / (len(searched) - position))
        with _reason(share) as reasons:
            margin, is_thorough = tabulate_anew(problem, outcome.ticks, share, formulas)
            num_bounded = asked.num_rows_bounded + max(0, own.space.num_rows - margin.num_rows)
            asked = replace(asked, num_rows_bounded=num_bounded, is_thorough=asked.is_thorough and is_thorough)
            margins.append(margin)
        if reasons and not asked.reason:
            where = f"{text_of(problem.settings)}: " if problem.settings else ""
            asked = replace(asked, reason=where + reasons[0])
    with _reason(clock) as reasons:
        asked = _ask(margins, asked, outcome, clock)
    return replace(asked, reason=asked.reason or "".join(reasons), seconds=clock.usage_seconds)


@contextmanager
def _reason(clock: Clock) -> Iterator[list[str]]:
    """Collect the reason why a part of the certificate could not be made."""
    reasons: list[str] = []
    try:
        yield reasons
    except OutOfTimeError:
        in_time = f"it was not done within {clock.seconds:.3g} s"
        none_left = "the search took all of the time limit (--time-limit S allows for more)"
        reasons.append(none_left if clock.seconds <= 0 else in_time)
    except MemoryError as error:
        own = str(error) if type(error) is MemoryError else ""  # not NumPy's, which speaks of an array
        reasons.append(own or "the model does not fit into memory")


def _ask(
    margins: Sequence[Margin], asked: Certificate[Strategy], outcome: Outcome, clock: Clock
) -> Certificate[Strategy]:
    """Ask for the fastest strategy up to an answer, and check that it is as fast. Uneven stages are in no model."""
    some, is_found = [one for one in margins if len(one.candidates)], False
    if some:
        joint = tables.build_model(some)
        asked = replace(
            asked,
            num_strategies=sum(int(one.usable.sum()) for one in some),
            num_combinations=joint.num_combinations,
            num_constraints=joint.num_constraints,
        )
        clock.require()
        solver = new_solver(clock.seconds_left)
        status = solver.solve(joint.model)
        assert status != cp_model.MODEL_INVALID, joint.model.validate()
        is_found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        if is_found and round(solver.objective_value) < outcome.ticks:
            values = {name: solver.value(joint.variables[name]) for name in DECISIONS}
            return replace(asked, verdict="refuted", reason="", better=strategy_of(values))
        if status not in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
            raise OutOfTimeError
    if asked.reason:
        return asked
    is_known = is_found or outcome.strategies[0].layout is not None
    return replace(asked, verdict="certified" if is_known else "refuted")


# --- rows of its own ---------------------------------------------------------------------------------------

ORDER_OF_GROWTH = ("tp", "cp", "pp", "dp", "mbs", "ep", "etp", "sequence_parallel", "vpp", "group", "schedule")
"""Order in which rows grow: the degrees that bound a step's layers first; the remaining decisions follow."""


def tabulate_anew(problem: Problem, ticks: int, clock: Clock, formulas: Formulas = OWN) -> tuple[Margin, bool]:
    """Tabulate every strategy up to some ticks; also tell whether features are in it that the rules forbid."""
    rules, features = problem_rules(problem), feature_values(problem)
    rows = _grow_rows(problem, rules.rows, ticks, clock)
    table = CostTable.build(problem, space_of(problem.facts, rules, rows, features, raw_size=0), formulas)
    near = np.arange(table.space.num_rows)
    bounds = bound_rows(table.space, OWN.lower_bound, lambda: not clock.is_over)
    if len(near) > MANY_ROWS:
        near, bounds = near[bounds <= ticks], bounds[bounds <= ticks]
    clock.require()
    if not len(near):
        nothing = concatenate_candidates(())
        return Margin(problem=problem, space=table.space, cut=ticks, candidates=nothing), True
    whole, nearest, fit = table, near[np.argsort(bounds, kind="stable")[:NEAREST_ROWS]], np.ones(len(near), dtype=bool)
    if len(near) > FEW_ROWS:
        fit = table.bound_by_memory(near, ticks) <= ticks
    is_thorough = int(fit.sum()) * prod(len(features[name]) for name in MODES) <= THOROUGH_CELLS
    if is_thorough and fit.any():
        shown = fit | np.isin(near, nearest)
        space, fit, near = table.space.take(near[shown]), fit[shown], np.arange(int(shown.sum()))
        domains = {name: distinct(values) for name, values in (space.rows | features).items()}
        possible = narrow_domains(problem.facts, (*rules.rows, *rules.mixed), domains)
        kept = {name: possible[name].tolist() for name in features}
        table = replace(table, space=space.keep_values(**kept))
    is_whole = fit.any() and len(near) * prod(map(len, table.space.features.values())) <= FEW_CELLS
    margin = tabulate_margin(table, near if is_whole else near[fit], ticks, clock, is_thorough=is_thorough)
    if fit.any() and not is_whole:  # arrays left out what does not fit
        found = concatenate_candidates([margin.candidates, whole.unfit(nearest, ticks)])
        _, once = np.unique(np.stack(list(found.decisions.values())), axis=1, return_index=True)
        margin = replace(margin, candidates=found.take(once))
    return replace(margin, num_rows=int(fit.sum())), is_thorough


def _grow_rows(problem: Problem, rules: Sequence[Rule], ticks: int, clock: Clock) -> Columns:
    """Return every combination of degrees that the rules allow; of many, those whose layers take at most some ticks."""
    domains = all_values(problem)
    rows: Columns = {}
    size, waiting = 1, list(list_binding(problem.facts, rules, domains))
    for name in (*ORDER_OF_GROWTH, *(other for other in ROW_DECISIONS if other not in ORDER_OF_GROWTH)):
        clock.require()
        values = domains[name].astype(bool) if name in FLAGS else domains[name]
        if name == "dp" and USES_ALL in rules:  # all other values break this rule
            rows[name] = problem.facts.cluster.num_devices // (rows["tp"] * rows["cp"] * rows["pp"])
        else:
            rows = {known: np.repeat(column, len(values)) for known, column in rows.items()}
            rows[name] = np.tile(values, size)
        asked = [rule for rule in waiting if needs(rule) <= set(rows)]
        waiting = [rule for rule in waiting if rule not in asked]
        if name == "dp" and len(rows[name]) > MANY_ROWS:
            asked += fast_enough(problem.change_limits(faster_than_seconds=(ticks + 1) * TICK_SECONDS))
        for rule in asked:
            holds = np.broadcast_to(np.asarray(tabulate(rule, problem.facts, rows)), rows[name].shape)
            if not holds.all():
                rows = {known: column[holds] for known, column in rows.items()}
        size = len(rows[name])
    return {name: rows[name] for name in ROW_DECISIONS}


def build_model_for_export(problem: Problem, outcome: Outcome, formulas: Formulas = OWN) -> JointModel | None:
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
        None if the outcome has no strategy, or time or memory do not suffice for the tables.
    """
    if not outcome.strategies:
        return None
    clock = Clock(seconds=problem.search.time_limit_seconds)
    try:
        margin, _ = tabulate_anew(problem, outcome.ticks, clock, formulas)
    except (MemoryError, OutOfTimeError):
        return None
    return tables.build_model([margin], all_values(problem))
