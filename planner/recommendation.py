"""
The plan that an expert would start: the first in an order of preference, among all plans nearly as fast as the fastest.

Each criterion of the order in turn asks a search for a plan that is better by it, within the tolerance, and no worse by
the criteria before. If there is one, the search continues from it; if there is none, that is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from constraints.limits import Bound
from costmodel.step.estimate import estimate
from costmodel.strategy import Recompute, Sharding, Strategy
from planner.jobs.limits import StageChoice
from planner.jobs.problem import Problem
from planner.recipes.published import find_published
from planner.search.branch_and_bound import SHORTEST_SECONDS, Status
from planner.search.domains import default_recompute
from planner.search.limited import search_below
from planner.uncertainty.evidence.counts import measured_ground
from planner.uncertainty.evidence.features import FEWEST_RUNS, unproven_of
from planner.uncertainty.evidence.kinds import architecture_of

if TYPE_CHECKING:
    from planner.search.clock import Clock

MEMORY_STEP = 0.02
"""Least gain of free memory, as a share of the device's memory, that makes a plan better by it."""

COMFORTABLE = 0.85
"""
Share of a device's memory beyond which a plan is tight.

In the grid of nanotron on 80 GB (``benchmarks.grid``) a doubled micro-batch loses a third of the speed in 37 of 448
runs below 60 GB. Above 60 GB it does in 3 of 25 runs, above 66 in 1 of 6, above 70 in 8 of 8.
"""

# --- the order ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
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
        Computes the number of a strategy for a job.
    below
        Restricts the job to smaller numbers; None where the job fixes the number itself.
    keeping
        Restricts the job to numbers that are not larger.
    """

    name: str
    words: str
    reason: str
    amount: Callable[[Problem, Strategy], float]
    below: Callable[[Problem, float], Problem | None]
    keeping: Callable[[Problem, float], Problem]

    def text(self, amount: float) -> str:
        """Return an amount in words."""
        return self.words.format(f"{amount:,g}")


def _degree(name: str, reason: str) -> Criterion:
    """Order plans by a degree."""

    def limit_degree(problem: Problem, most: float) -> Problem:
        return _add_bound(problem, Bound(names=(name,), relation="<=", number=int(most)))

    return Criterion(
        name=name,
        words=f"{name} {{}}",
        reason=reason,
        amount=lambda _, strategy: getattr(strategy, name),
        below=lambda problem, amount: None if name in problem.search.pin else limit_degree(problem, amount - 1),
        keeping=limit_degree,
    )


def _add_bound(problem: Problem, bound: Bound) -> Problem:
    return problem.with_limits(limits=(*problem.search.limits, bound))


def _num_unproven(problem: Problem, strategy: Strategy) -> float:
    return len(unproven_of(problem.facts, strategy)) if problem.search.is_bold else 0


def _rare_degrees(problem: Problem) -> tuple[str, ...]:
    """Return degrees that too few measured runs of the job's model family have above 1, with any software."""
    known, kind = measured_ground(), architecture_of(problem.facts.model)
    return tuple(name for name in ("tp", "cp", "pp", "ep") if known.reaching(name, 2, kind) < FEWEST_RUNS)


def _num_unmeasured(problem: Problem, strategy: Strategy) -> float:
    return float(sum(getattr(strategy, name) > 1 for name in _rare_degrees(problem)))


def _limit_to_measured(problem: Problem, _: float = 0) -> Problem:
    free = (name for name in _rare_degrees(problem) if name not in problem.search.pin)
    bounds = tuple(Bound(names=(name,), relation="<=", number=1) for name in free)
    return problem.with_limits(limits=(*problem.search.limits, *bounds))


def _require_evidence(problem: Problem, _: float = 0) -> Problem:
    return problem.with_limits(is_bold=False)


def _keeping_unproven(problem: Problem, amount: float) -> Problem:
    return problem if amount or not problem.search.is_bold else _require_evidence(problem)


def _leaves_domain(problem: Problem, strategy: Strategy) -> float:
    return float(strategy.ep * strategy.etp > problem.facts.cluster.scale_up_size)


def _inside_domain(problem: Problem, _: float = 0) -> Problem:
    size = problem.facts.cluster.scale_up_size
    return _add_bound(problem, Bound(names=("ep", "etp"), relation="<=", number=size))


def num_recomputed(_: Problem, strategy: Strategy) -> float:
    """Return the largest number of recomputed modules of a pipeline rank; infinite for whole layers."""
    layout = strategy.layout
    if layout is not None and any(layout.full_layers):
        return float("inf")
    return max(map(_num_modules, (strategy.recompute, *(layout.recompute if layout else ()))))


def _num_modules(recompute: Recompute) -> float:
    named = {Recompute.NONE: 0.0, Recompute.SELECTIVE: 1.0, Recompute.FULL: float("inf")}
    return named.get(recompute, float(recompute.text.count("+") + 1))


def _recomputing_at_most(problem: Problem, amount: float, *, less: bool = False) -> Problem | None:
    facts, limits = problem.facts, problem.search
    known = limits.allow.get("recompute", default_recompute(facts.model, facts.cluster.framework))
    own = [int(value) for value in known if _num_modules(Recompute(value)) < amount + (0 if less else 0.5)]
    if "recompute" in limits.pin or not own:
        return None
    return problem.with_limits(allow={**limits.allow, "recompute": tuple(own)}, stages=_plain_stages(problem))


def _plain_stages(problem: Problem) -> StageChoice:
    """Return stages that differ in layers at most, where the job allows more."""
    stages = problem.search.stages
    return StageChoice.LAYERS if stages == StageChoice.FREE else stages


def _used_bytes(problem: Problem, strategy: Strategy) -> float:
    return estimate(problem.facts, strategy).device_bytes


def _leaving_more(problem: Problem, used: float) -> Problem:
    memory = problem.facts.cluster.device.memory_bytes
    return problem.with_limits(memory_headroom_bytes=memory * (1 + MEMORY_STEP) - used)


def _is_tight(problem: Problem, strategy: Strategy) -> float:
    return float(_used_bytes(problem, strategy) > COMFORTABLE * problem.facts.cluster.device.memory_bytes)


def _comfortable(problem: Problem, _: float = 0) -> Problem:
    left = (1 - COMFORTABLE) * problem.facts.cluster.device.memory_bytes
    return problem.with_limits(memory_headroom_bytes=max(problem.search.memory_headroom_bytes, left))


def _offloads(_: Problem, strategy: Strategy) -> float:
    layout = strategy.layout
    is_copied = strategy.activation_offload or (layout is not None and any(layout.activation_offload))
    return float(strategy.optimizer_offload) + float(is_copied)


def _forbid_offload(problem: Problem, amount: float = 0) -> Problem | None:
    limits, names = problem.search, ("optimizer_offload", "activation_offload")
    asked = [name for name in names if limits.pin.get(name) or limits.allow.get(name) == (1,)]
    if asked:
        return None
    allow = {**limits.allow, **dict.fromkeys((name for name in names if name not in limits.pin), (0,))}
    return problem.with_limits(allow=allow, stages=_plain_stages(problem))


def _gathers(_: Problem, strategy: Strategy) -> float:
    return float(strategy.sharding == Sharding.WEIGHTS)


def _forbid_fsdp(problem: Problem, _: float = 0) -> Problem | None:
    if "sharding" in problem.search.pin:
        return None
    return _add_bound(problem, Bound(names=("sharding",), relation="<=", number=int(Sharding.GRADIENTS)))


def _keep_zero(change: Callable[..., Problem | None]) -> Callable[[Problem, float], Problem]:
    """Make a restriction that keeps a plan's zero amount; with another amount the job stays as it is."""
    return lambda problem, amount: problem if amount else change(problem) or problem


ORDER: tuple[Criterion, ...] = (
    Criterion(
        name="unproven",
        words="{} unproven",
        reason="too few measured runs have it",
        amount=_num_unproven,
        below=_require_evidence,
        keeping=_keeping_unproven,
    ),
    Criterion(
        name="unmeasured",
        words="{} degrees of a kind never measured",
        reason="too few measured runs of such models have it",
        amount=_num_unmeasured,
        below=_limit_to_measured,
        keeping=_keep_zero(_limit_to_measured),
    ),
    Criterion(
        name="offload",
        words="{} offloaded",
        reason="copies share the host's port with everything else that crosses it",
        amount=_offloads,
        below=_forbid_offload,
        keeping=_keep_zero(_forbid_offload),
    ),
    Criterion(
        name="fsdp",
        words="{} with FSDP",
        reason="weights are gathered and gradients scattered in every layer",
        amount=_gathers,
        below=_forbid_fsdp,
        keeping=_keep_zero(_forbid_fsdp),
    ),
    Criterion(
        name="wide_ep",
        words="{} domains left by experts",
        reason="expert-parallel communication leaves the scale-up domain",
        amount=_leaves_domain,
        below=_inside_domain,
        keeping=_keep_zero(_inside_domain),
    ),
    Criterion(
        name="tight",
        words="{} tight",
        reason=f"beyond {COMFORTABLE:.0%} of the memory routing, fragments and libraries may take the rest",
        amount=_is_tight,
        below=_comfortable,
        keeping=_keep_zero(_comfortable),
    ),
    _degree("tp", "communication in every layer, and smaller matmuls"),
    _degree("cp", "communication in every attention"),
    _degree("pp", "idle time, and stages to balance"),
    _degree("vpp", "more messages between pipeline ranks, and more activations in flight"),
    Criterion(
        name="stages",
        words="{} uneven layouts",
        reason="a layout by hand, which every change of the model or the pipeline changes",
        amount=lambda _, strategy: float(strategy.layout is not None),
        below=lambda problem, _: problem.with_limits(stages=StageChoice.EVEN),
        keeping=_keep_zero(lambda problem: problem.with_limits(stages=StageChoice.EVEN)),
    ),
    Criterion(
        name="recompute",
        words="{} recomputed modules",
        reason="computes again what a simpler plan keeps",
        amount=num_recomputed,
        below=lambda problem, amount: _recomputing_at_most(problem, amount, less=True),
        keeping=lambda problem, amount: _recomputing_at_most(problem, amount) or problem,
    ),
    Criterion(
        name="memory",
        words="{} GiB used",
        reason="less room for what predictions do not know",
        amount=_used_bytes,
        below=_leaving_more,
        keeping=lambda problem, _: problem,
    ),
)
"""Criteria in order: of two plans the one is better that is better by the first criterion in which they differ."""

MOST_STEPS = 8
"""Number of times that one criterion may improve a plan."""


# --- the recommendation ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
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
        True where time sufficed to try everything.
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


def recommend(problem: Problem, best: tuple[Problem, Strategy, float], clock: Clock) -> Recommendation:
    """
    Choose the first strategy in the order within the tolerance of the fastest one.

    Parameters
    ----------
    problem
        The job.
    best
        The fastest strategy, with the job of its settings and the seconds of its step.
    clock
        Clock of the time limit.
    """
    chosen, strategy, seconds = best
    limit, fastest = seconds * (1 + problem.search.tolerance), _Found(chosen, strategy, seconds)
    layouts = [found for one in find_published(problem) if (found := _Found(*one)).seconds <= limit]
    run = _Run(limit_seconds=limit, layouts=layouts, clock=clock)
    found = run.first(_keep_devices(problem, chosen), fastest)
    return Recommendation(
        problem=found.problem,
        strategy=found.strategy,
        fastest_problem=chosen,
        fastest=strategy,
        preferred=tuple(_list_preferences(found, fastest)),
        tolerance_fraction=problem.search.tolerance,
        is_complete=run.is_complete,
    )


def _keep_devices(problem: Problem, fastest: Problem) -> Problem:
    """Restrict a job to the numbers of nodes on which its fastest plan was found, if devices stay idle."""
    limits = fastest.search
    return problem.with_limits(num_nodes=limits.num_nodes, max_devices=limits.max_devices)


@dataclass(frozen=True, slots=True)
class _Found:
    problem: Problem
    strategy: Strategy
    seconds: float

    def amount(self, criterion: Criterion) -> float:
        return criterion.amount(self.problem, self.strategy)


def _list_preferences(found: _Found, fastest: _Found) -> Iterator[Preference]:
    """Yield the criteria by which a plan is better than the fastest one; bytes in gibibytes."""
    for criterion in ORDER:
        own, other = found.amount(criterion), fastest.amount(criterion)
        if own < other:
            unit = 2**30 if criterion.name == "memory" else 1
            yield Preference(
                name=criterion.name,
                text=criterion.text(round(own / unit, 1)),
                instead_of=criterion.text(round(other / unit, 1)),
                reason=criterion.reason,
            )


@dataclass(kw_only=True, slots=True)
class _Run:
    """The searches for one job within the limit, and its published layouts."""

    limit_seconds: float
    layouts: Sequence[_Found]
    clock: Clock
    is_complete: bool = True

    def first(self, problem: Problem, found: _Found) -> _Found:
        """Improve a plan by each criterion in turn."""
        layouts = self.layouts
        for criterion in ORDER:
            for _ in range(MOST_STEPS):
                amount = found.amount(criterion)
                question = criterion.below(problem, amount) if amount > _least(criterion) else None
                others = [] if question is None else [*self.search(question), *layouts]
                better = [one for one in others if one.amount(criterion) < amount]
                if not better:
                    break
                found = min(better, key=lambda one: one.seconds)
            kept = found.amount(criterion)
            problem = criterion.keeping(problem, kept)
            layouts = [one for one in layouts if one.amount(criterion) <= kept]
        return found

    def search(self, problem: Problem) -> list[_Found]:
        """Search the fastest strategy of a job within the limit; empty without one."""
        best: list[_Found] = []
        limit = self.limit_seconds
        for one in problem.each:
            if self.clock.is_over:
                self.is_complete = False
                return best
            left = max(self.clock.seconds_left, SHORTEST_SECONDS)
            outcome = search_below(one.with_limits(time_limit_seconds=left), limit)
            self.is_complete &= outcome.status in (Status.OPTIMAL, Status.INFEASIBLE)
            if outcome.strategies and outcome.step_seconds[0] <= limit:
                best, limit = [_Found(one, outcome.strategies[0], outcome.step_seconds[0])], outcome.step_seconds[0]
        return best


def _least(criterion: Criterion) -> float:
    """Return the smallest possible amount."""
    return 1 if criterion.name in ("tp", "cp", "pp", "vpp") else 0
