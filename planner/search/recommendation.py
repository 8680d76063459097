"""
The plan that an expert would start: the first in an order of preference, among all plans nearly as fast as the fastest.

All strategies within the tolerance, with any combination of settings, are in the tables of one CP-SAT model
(:mod:`planner.search.margin`). Each gets its rank in the order. The model returns the least rank, and of equal ranks
the fastest strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.cp_sat import MIB_BYTES, TICK_SECONDS, cp_model, seconds_to_ticks
from constraints.rule import every
from costmodel.record import record
from costmodel.step.estimate import estimate
from costmodel.strategy import DECISIONS, Recompute, Sharding, Strategy
from costmodel.tables import tabulate
from planner.jobs.problem import Problem
from planner.search.alternatives import AlternativeOutcome
from planner.search.branch_and_bound import Status, bound_rows
from planner.search.candidates import OWN, CostTable, Ints, capacity, sort_by_preference
from planner.search.domains import problem_rules, resources_of
from planner.search.listed import find_broken_rules
from planner.search.margin import Margin, build_model, join_candidates, tabulate_margin
from planner.search.solver import Clock, OutOfTimeError, new_solver
from planner.search.space import build_space, strategy_of
from planner.uncertainty.counts import architecture_of, read_counts
from planner.uncertainty.features import FEWEST_RUNS, evidence_rules, unproven_of

MEMORY_STEP = 0.02
"""Least gain of free memory, as a share of the device's memory, that makes a plan better by it."""

COMFORTABLE = 0.85
"""
Share of a device's memory beyond which a plan is tight.

In the grid of nanotron on 80 GB (``benchmarks.grid``) a doubled micro-batch loses a third of the speed in 37 of 448
runs below 60 GB. Above 60 GB it does in 3 of 25 runs, above 66 in 1 of 6, above 70 in 8 of 8.
"""

MOST_COMPARED = 1_000_000
"""Most strategies within the tolerance that are ranked; with more the tolerance is narrowed."""

MOST_ASKED = 5_000
"""Strategies of the least ranks, among those that arrays say may be chosen, that the model holds."""

Amount = Callable[[Problem, Mapping[str, Any]], Any]
"""Function of decisions, ``device_mebibytes`` and ``is_uneven``, each a scalar or an array of one shape."""

# --- the order ---------------------------------------------------------------------------------------------


@record(frozen=True, kw_only=True, slots=True)
class Criterion:
    """
    One criterion of the order: a number, the less the better.

    Parameters
    ----------
    name
        Name in reports.
    words
        Text of the number, with ``{}`` for the number.
    reason
        Reason why less of it is better.
    amount
        Computes the number.
    """

    name: str
    words: str
    reason: str
    amount: Amount

    def text(self, amount: float) -> str:
        """Return an amount in words."""
        return self.words.format(f"{amount:,g}")


def _degree(name: str, reason: str) -> Criterion:
    """Order plans by a degree."""
    return Criterion(name=name, words=f"{name} {{}}", reason=reason, amount=lambda _, decisions: decisions[name])


def _is_unproven(problem: Problem, decisions: Mapping[str, Any]) -> Any:
    """True where too few measured runs have a feature or a pair of them; without bold features there is none."""
    rules = evidence_rules(problem.facts, ()) if problem.search.is_bold else ()
    return np.logical_not(every(tabulate(rule, problem.facts, decisions) for rule in rules))


def _num_unmeasured(problem: Problem, decisions: Mapping[str, Any]) -> Any:
    """Number of degrees above 1 that too few measured runs of the job's model family have, with any software."""
    known, kind = read_counts(), architecture_of(problem.facts.model)
    rare = [name for name in ("tp", "cp", "pp", "ep") if known.count_at_least(name, 2, kind) < FEWEST_RUNS]
    return sum((np.greater(decisions[name], 1) for name in rare), start=np.zeros(np.shape(decisions["tp"])))


def _leaves_domain(problem: Problem, decisions: Mapping[str, Any]) -> Any:
    return np.greater(decisions["ep"] * decisions["etp"], problem.facts.cluster.scale_up_size)


def _num_recomputed(_: Problem, decisions: Mapping[str, Any]) -> Any:
    """Number of recomputed modules; infinite for whole layers."""
    values, where = np.unique(decisions["recompute"], return_inverse=True)
    counts = np.array([count_modules(Recompute(value)) for value in values.tolist()])
    return counts[where.reshape(np.shape(decisions["recompute"]))]


def count_modules(recompute: Recompute) -> float:
    """Return the number of modules that are recomputed; infinite for whole layers."""
    named = {Recompute.NONE: 0.0, Recompute.SELECTIVE: 1.0, Recompute.FULL: float("inf")}
    return named.get(recompute, float(recompute.text.count("+") + 1))


def _is_tight(problem: Problem, decisions: Mapping[str, Any]) -> Any:
    return np.greater(
        decisions["device_mebibytes"] * MIB_BYTES, COMFORTABLE * problem.facts.cluster.device.memory_bytes
    )


def _memory_steps(problem: Problem, decisions: Mapping[str, Any]) -> Any:
    """Bytes of the fullest device, rounded down to steps of ``MEMORY_STEP``."""
    step = MEMORY_STEP * problem.facts.cluster.device.memory_bytes
    return np.floor(decisions["device_mebibytes"] * MIB_BYTES / step) * step


ORDER: tuple[Criterion, ...] = (
    Criterion(
        name="unproven",
        words="{} unproven",
        reason="too few measured runs have it",
        amount=_is_unproven,
    ),
    Criterion(
        name="unmeasured",
        words="{} degrees of a kind never measured",
        reason="too few measured runs of such models have it",
        amount=_num_unmeasured,
    ),
    Criterion(
        name="offload",
        words="{} offloaded",
        reason="copies share the host's port with everything else that crosses it",
        amount=lambda _, decisions: np.add(
            decisions["optimizer_offload"], decisions["activation_offload"], dtype=float
        ),
    ),
    Criterion(
        name="fsdp",
        words="{} with FSDP",
        reason="weights are gathered and gradients scattered in every layer",
        amount=lambda _, decisions: np.equal(decisions["sharding"], Sharding.WEIGHTS),
    ),
    Criterion(
        name="wide_ep",
        words="{} domains left by experts",
        reason="expert-parallel communication leaves the scale-up domain",
        amount=_leaves_domain,
    ),
    Criterion(
        name="tight",
        words="{} tight",
        reason=f"beyond {COMFORTABLE:.0%} of the memory routing, fragments and libraries may take the rest",
        amount=_is_tight,
    ),
    _degree("tp", "communication in every layer, and smaller matmuls"),
    _degree("cp", "communication in every attention"),
    _degree("pp", "idle time, and stages to balance"),
    _degree("vpp", "more messages between pipeline ranks, and more activations in flight"),
    Criterion(
        name="stages",
        words="{} uneven layouts",
        reason="a custom pipeline layout must be rewritten when the model or the pipeline changes",
        amount=lambda _, decisions: decisions["is_uneven"],
    ),
    Criterion(
        name="recompute",
        words="{} recomputed modules",
        reason="recomputes activations that a simpler plan keeps",
        amount=_num_recomputed,
    ),
    Criterion(
        name="memory",
        words="{} GiB used",
        reason="leaves less memory for errors of the prediction",
        amount=_memory_steps,
    ),
)
"""Criteria in order: of two plans the one is better that is better by the first criterion in which they differ."""


# --- the recommendation ------------------------------------------------------------------------------------


@record(frozen=True, kw_only=True, slots=True)
class Preference:
    """
    A criterion by which the recommended plan is better than the fastest one.

    Parameters
    ----------
    name
        Name of the criterion.
    text, instead_of
        Amount in the recommended and in the fastest plan, in words.
    reason
        Reason why less of it is better.
    """

    name: str
    text: str
    instead_of: str
    reason: str


@record(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """
    The recommended plan: the first in the order, among all plans nearly as fast as the fastest.

    Parameters
    ----------
    problem, strategy
        Recommended strategy, and the job with its settings.
    fastest_problem, fastest
        Fastest strategy and its job; equal to the recommended one if no other is better by the order.
    preferred
        Criteria by which the recommended plan is better.
    tolerance_fraction
        Largest difference to the fastest plan, as a fraction of its step.
    is_complete
        True where time and memory sufficed to compare everything.
    """

    problem: Problem
    strategy: Strategy
    fastest_problem: Problem
    fastest: Strategy
    preferred: tuple[Preference, ...]
    tolerance_fraction: float
    is_complete: bool

    @property
    def is_fastest(self) -> bool:
        """True where the fastest plan is the first in the order."""
        return self.strategy == self.fastest and self.problem.settings == self.fastest_problem.settings


@record(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """A strategy with its amount by each criterion, its step in ticks, and its device memory."""

    problem: Problem
    strategy: Strategy
    amounts: tuple[float, ...]
    ticks: int
    device_mebibytes: int

    @property
    def key(self) -> tuple[tuple[float, ...], int]:
        """Sort key: by the order, then by the step."""
        return self.amounts, self.ticks


def recommend(
    problem: Problem,
    best: tuple[Problem, Strategy, float],
    searched: Sequence[AlternativeOutcome],
    ranked: Sequence[tuple[Problem, Strategy]],
    published: Sequence[tuple[Problem, Strategy, float]],
    clock: Clock,
) -> Recommendation:
    """
    Choose the first strategy in the order within the tolerance of the fastest one.

    Parameters
    ----------
    problem
        The job.
    best
        The fastest strategy, with the job of its settings and the seconds of its step.
    searched
        The job with each combination of settings, and the result of its search.
    ranked
        The best strategies of these searches; those with uneven stages are compared as well.
    published
        Published layouts that are plans for the job; they are compared as well.
    clock
        Clock of the time limit.
    """
    chosen, strategy, seconds = best
    limit, fastest = seconds * (1 + problem.search.tolerance), _judge(chosen, strategy)
    same_nodes = [one for one in searched if one.problem.search.num_nodes == chosen.search.num_nodes]
    whole = [(job, each) for job, each, _ in published]
    whole += [one for one in ranked if one[1].layout is not None]
    whole += [(one.problem, each) for one in same_nodes for each in _list_whole(one.problem)]
    found = [fastest, *(one for one in (_judge(*each) for each in whole) if one.ticks <= _ticks(limit))]
    is_complete, margins = True, list[tuple[Problem, Margin]]()
    for one in same_nodes:
        # Without bold features other search bounds hold, so that more plain strategies are tried.
        plain = [one.searched.change_limits(is_bold=False)] if problem.search.is_bold else []
        for job in (one.searched, *plain):
            margin, is_all = _tabulate_within(one, job, (fastest.ticks, _ticks(limit)), clock)
            margins += [(one.problem, margin)] if margin else []
            is_complete &= is_all
    try:
        first = choose_first(margins, clock)
        found += [first] if first else []
    except OutOfTimeError:
        is_complete = False
    recommended = min(found, key=lambda one: one.key)
    return Recommendation(
        problem=recommended.problem,
        strategy=recommended.strategy,
        fastest_problem=chosen,
        fastest=strategy,
        preferred=tuple(_list_preferences(recommended, fastest)),
        tolerance_fraction=problem.search.tolerance,
        is_complete=is_complete,
    )


def _ticks(seconds: float) -> int:
    return int(seconds_to_ticks(np.asarray(seconds)))


def _judge(problem: Problem, strategy: Strategy) -> _Candidate:
    """Estimate one strategy; of uneven stages the worst one counts."""
    found = estimate(problem.facts, strategy)
    decisions, layout = strategy.decisions(), strategy.layout
    if layout is not None:
        sets = [Recompute.FULL] if any(layout.full_layers) else [strategy.recompute, *layout.recompute]
        decisions["recompute"] = max(sets, key=count_modules)
        decisions["activation_offload"] = strategy.activation_offload or any(layout.activation_offload)
    mebibytes = min(ceil(found.device_bytes / MIB_BYTES), capacity(problem).device_mebibytes)  # as in the model
    given = decisions | {"device_mebibytes": mebibytes, "is_uneven": layout is not None}
    return _Candidate(
        problem=problem,
        strategy=strategy,
        amounts=tuple(float(one.amount(problem, given)) for one in ORDER),
        ticks=_ticks(found.step_seconds),
        device_mebibytes=mebibytes,
    )


def _list_whole(problem: Problem) -> Iterator[Strategy]:
    """Yield the whole strategies of the job's list that its rules allow."""
    candidate_list = problem.search.candidates
    if candidate_list is None or not candidate_list.whole:
        return
    rules = problem_rules(problem)
    for strategy in candidate_list.whole:
        found = estimate(problem.facts, strategy)
        resources = resources_of(found, problem.search.memory_headroom_bytes)
        if not find_broken_rules(problem, rules, strategy, resources):
            yield strategy


def _tabulate_within(
    one: AlternativeOutcome, job: Problem, ticks: tuple[int, int], clock: Clock
) -> tuple[Margin | None, bool]:
    """
    Return the strategies with some settings within a limit, and tell whether these are all.

    ``ticks`` are those of the fastest strategy and of the limit. If strategies are too many, the faster ones are
    returned.
    """
    if one.outcome.status == Status.UNKNOWN or clock.is_over:
        return None, False
    (fastest, cut), is_complete = ticks, one.outcome.status != Status.FEASIBLE
    while cut >= fastest:
        try:
            return _tabulate(one, job, cut, clock), is_complete
        except OutOfTimeError:
            return None, False
        except MemoryError:
            cut, is_complete = (cut + fastest) // 2 if cut > fastest else -1, False
    return None, False


def _tabulate(one: AlternativeOutcome, job: Problem, cut: int, clock: Clock) -> Margin:
    """Return the strategies of a job up to a cut: those of its search, or tabulated anew where it has fewer."""
    known = one.outcome.margin
    if job is one.searched and known is not None and known.is_complete and cut <= known.cut:
        return known.limit(cut)
    job = job.change_limits(faster_than_seconds=cut * TICK_SECONDS)
    space = build_space(job)
    bounds = bound_rows(space, OWN.lower_bound, lambda: not clock.is_over)
    table = CostTable.build(job, space, OWN)
    return tabulate_margin(table, np.flatnonzero(bounds <= cut), cut, clock, most=MOST_COMPARED)


def choose_first(margins: Sequence[tuple[Problem, Margin]], clock: Clock) -> _Candidate | None:
    """
    Let CP-SAT choose the first strategy in the order of several margins; None where none is within their cuts.

    Among equal ones the first margin's is taken. Each margin comes with the job of its settings.
    """
    jobs = [job for job, one in margins if one.usable.any()]
    some = [one for _, one in margins if one.usable.any()]
    if not some:
        return None
    found, part = join_candidates(some)
    usable, (amounts, ranks) = np.concatenate([one.usable for one in some]), _rank(jobs, some)
    kept = np.arange(len(found))
    if usable.sum() > MOST_ASKED:
        order = np.lexsort([found.ticks, ranks, ~usable])
        kept = np.union1d(order[:MOST_ASKED], np.flatnonzero(~usable))
    starts = np.searchsorted(part, np.arange(len(some)))
    asked = [one.take(kept[part[kept] == number] - starts[number]) for number, one in enumerate(some)]
    joint = build_model(asked, ranks=ranks[kept])
    solver = new_solver(clock.seconds_left)
    status = solver.solve(joint.model)
    if status == cp_model.INFEASIBLE:
        return None
    if status != cp_model.OPTIMAL:
        raise OutOfTimeError
    ticks = solver.value(joint.variables["ticks"])
    equal = np.flatnonzero((ranks == solver.value(joint.variables["rank"])) & (found.ticks == ticks) & usable)
    chosen = int(min(equal[sort_by_preference(found.take(equal))], key=lambda index: part[index]))
    return _Candidate(
        problem=jobs[part[chosen]],
        strategy=strategy_of({name: int(found.decisions[name][chosen]) for name in DECISIONS}),
        amounts=tuple(amounts[:, chosen].tolist()),
        ticks=ticks,
        device_mebibytes=int(found.device_mebibytes[chosen]),
    )


def _rank(jobs: Sequence[Problem], margins: Sequence[Margin]) -> tuple[NDArray[np.float64], Ints]:
    """
    Return the amounts of each strategy, shape (criteria, N), and its rank in the order, shape (N,).

    The amounts are those for the job itself, also where a margin is of the job without bold features.
    """
    tables = []
    for job, margin in zip(jobs, margins, strict=True):
        found, shape = margin.candidates, np.shape(margin.candidates.ticks)
        given = {**found.decisions, "device_mebibytes": found.device_mebibytes, "is_uneven": np.zeros(shape, bool)}
        tables.append([np.broadcast_to(one.amount(job, given), shape) for one in ORDER])
    amounts = np.concatenate(tables, axis=1, dtype=np.float64)
    _, ranks = np.unique(amounts, axis=1, return_inverse=True)
    return amounts, ranks.ravel().astype(np.int64)


def _list_preferences(found: _Candidate, fastest: _Candidate) -> Iterator[Preference]:
    """Yield the criteria by which a plan is better than the fastest one."""
    for number, criterion in enumerate(ORDER):
        if found.amounts[number] < fastest.amounts[number]:
            yield Preference(
                name=criterion.name,
                text=criterion.text(_show(found, number)),
                instead_of=criterion.text(_show(fastest, number)),
                reason=criterion.reason,
            )


def _show(one: _Candidate, number: int) -> float:
    """Return the amount that a report shows: all unproven features, memory in gibibytes."""
    name = ORDER[number].name
    if name == "unproven":
        return len(unproven_of(one.problem.facts, one.strategy))
    return round(one.device_mebibytes / 2**10, 1) if name == "memory" else one.amounts[number]
