"""
The plan that one would run: the simplest of those whose steps predictions cannot tell from the fastest one's.

What makes a plan less simple is taken from the fastest one, what is riskiest first. The search runs again without it,
for whatever is faster than the noise allows. Where it finds something the feature stays out, so that nothing is left
that could be taken away alone. That all of them are needless is tried first, which answers for most jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.strategy import Recompute, Schedule, Strategy, decision_text
from planner.jobs.limits import StageChoice
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import SHORTEST_SECONDS, Status
from planner.search.domains import default_features
from planner.search.limited import search_below
from planner.uncertainty.intervals import noise_fraction
from planner.uncertainty.peaks import ANY
from planner.uncertainty.shown import unshown

if TYPE_CHECKING:
    from planner.search.clock import Clock

MOST_FRACTION = 0.05
"""Time that simplicity may cost at most, as a fraction of the step, however large the noise: more is for its owner."""

OFFLOAD_FRACTION = 0.1
"""What offload must gain at least."""

OFFLOAD = ("optimizer_offload", "activation_offload")

STAGES = "stages"
"""The name of uneven stages among features, which are no single decision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """
    Something that a strategy has and a simpler one has not.

    Parameters
    ----------
    name
        The decision, or ``stages``.
    text
        In words.
    risk
        What it risks.
    """

    name: str
    text: str
    risk: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """
    The simplest plan within the noise, beside the fastest one.

    Parameters
    ----------
    problem, strategy
        The recommended strategy, and the job with the settings that it is for.
    fastest_problem, fastest
        The fastest one, which is the same where nothing simpler is as fast.
    given_up
        What the fastest one has and the recommended one has not.
    kept
        What the recommended one has because without it no plan is as fast.
    tolerance_fraction
        How much slower than the fastest it may be.
    is_complete
        Whether time sufficed to try everything.
    """

    problem: Problem
    strategy: Strategy
    fastest_problem: Problem
    fastest: Strategy
    given_up: tuple[Feature, ...]
    kept: tuple[Feature, ...]
    tolerance_fraction: float
    is_complete: bool

    @property
    def is_fastest(self) -> bool:
        """Whether the fastest plan is the simplest within the noise."""
        return self.strategy == self.fastest and self.problem == self.fastest_problem


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    problem: Problem
    strategy: Strategy
    seconds: float


def recommended(problem: Problem, best: tuple[Problem, Strategy, float], clock: Clock) -> Recommendation:
    """
    The simplest strategy within the noise of the fastest one.

    Parameters
    ----------
    problem
        The job.
    best
        The fastest strategy, with the job of its settings and the seconds of its step.
    clock
        How long this may take.
    """
    fastest = _Found(problem=best[0], strategy=best[1], seconds=best[2])
    tolerance = min(noise_fraction(fastest.problem.facts.model, fastest.problem.facts.cluster), MOST_FRACTION)
    run = _Run(problem=_on_its_devices(problem, best[0]), fastest=fastest, tolerance=tolerance, clock=clock)
    found = run.simplest()
    had, has = (features(one.problem, one.strategy) for one in (fastest, found))
    return Recommendation(
        problem=found.problem,
        strategy=found.strategy,
        fastest_problem=fastest.problem,
        fastest=fastest.strategy,
        given_up=tuple(one for one in had if one.name not in {other.name for other in has}),
        kept=tuple(has),
        tolerance_fraction=max(OFFLOAD_FRACTION, tolerance) if run.has_given_up_offload else tolerance,
        is_complete=run.is_complete,
    )


def _on_its_devices(problem: Problem, fastest: Problem) -> Problem:
    """A job on the numbers of nodes among which its fastest plan was found, where devices stay idle."""
    limits = fastest.search
    return problem.with_limits(num_nodes=limits.num_nodes, max_devices=limits.max_devices)


# --- features ----------------------------------------------------------------------------------------------


def features(problem: Problem, strategy: Strategy) -> list[Feature]:
    """What makes a strategy less simple, the riskiest first."""
    return list(_features(problem, strategy))


def _features(problem: Problem, strategy: Strategy) -> Iterator[Feature]:
    if strategy.optimizer_offload:
        risk = "no public run has it, and hosts update at very different rates"
        yield Feature(name="optimizer_offload", text="optimizer states in host memory", risk=risk)
    layout = strategy.layout
    if strategy.activation_offload or (layout and any(layout.activation_offload)):
        risk = "copies share the host's port with everything else that crosses it"
        yield Feature(name="activation_offload", text="activations in host memory", risk=risk)
    for new in unshown(problem.facts.cluster, strategy):
        if new.name not in (*OFFLOAD, "schedule"):
            text = f"{new.name} = {decision_text(new.name, new.value)}"
            software = "any software" if new.stack == ANY else new.stack
            risk = f"none of {new.runs:,} measured runs of {software} has it"
            yield Feature(name=new.name, text=text, risk=risk)
    if strategy.schedule != Schedule.ONE_F_ONE_B:
        text = f"schedule {strategy.schedule.text}"
        yield Feature(name="schedule", text=text, risk="few frameworks have it, and few runs")
    if layout is not None:
        risk = "a layout by hand, which every change of the model or the pipeline changes"
        yield Feature(name=STAGES, text="uneven stages", risk=risk)
    if strategy.recompute != Recompute.NONE or (layout and any(layout.recompute)):
        yield Feature(name="recompute", text="recomputation", risk="computes again what a simpler plan keeps")
    if strategy.vpp > 1:
        risk = "more messages between pipeline ranks, and more activations in flight"
        yield Feature(name="vpp", text=f"{strategy.vpp} virtual stages per rank", risk=risk)


SIMPLE: Mapping[str, int] = {
    "optimizer_offload": 0,
    "activation_offload": 0,
    "schedule": int(Schedule.ONE_F_ONE_B),
    "recompute": int(Recompute.NONE),
    "vpp": 1,
}
"""Values of decisions without which a strategy has a feature, the riskiest first."""


def without(problem: Problem, feature: Feature, strategy: Strategy) -> Problem | None:
    """
    A job without a feature; None where the job asks for it.

    Parameters
    ----------
    problem
        The job.
    feature
        What is to be left out.
    strategy
        The strategy that has it.
    """
    limits, name = problem.search, feature.name
    if name == STAGES:
        return problem.with_limits(stages=StageChoice.EVEN)
    if name in SIMPLE:
        return _plain(problem, [name]) if _may_be_simple(problem, name) else None
    if name in limits.pin:
        return None
    known = limits.allow.get(name, default_features(problem.facts).get(name, ()))
    others = tuple(int(value) for value in known if value != getattr(strategy, name))
    return problem.with_limits(allow={**limits.allow, name: others}) if others else None


# --- searches ----------------------------------------------------------------------------------------------


def _no_riskier(problem: Problem, feature: Feature, strategy: Strategy) -> Problem:
    """A job in which nothing riskier than a feature takes its place."""
    risks = list(SIMPLE)
    riskier = risks[: risks.index(feature.name)] if feature.name in SIMPLE else OFFLOAD
    lacks = [name for name in riskier if int(getattr(strategy, name)) == SIMPLE[name]]
    return _plain(problem, [name for name in lacks if _may_be_simple(problem, name)])


def _may_be_simple(problem: Problem, name: str) -> bool:
    """Whether a job leaves open that a decision has its simple value."""
    limits, simple = problem.search, SIMPLE[name]
    return name not in limits.pin and simple in limits.allow.get(name, (simple,))


def _plain(problem: Problem, names: Iterable[str]) -> Problem:
    """A job in which some decisions have their simple values."""
    return problem.with_limits(pin={**problem.search.pin, **{name: SIMPLE[name] for name in names}})


@dataclass(kw_only=True, slots=True)
class _Run:
    """The searches for one job, with even stages; each must be faster than the tolerance allows."""

    problem: Problem
    fastest: _Found
    tolerance: float
    clock: Clock
    is_complete: bool = True
    has_given_up_offload: bool = False

    def simplest(self) -> _Found:
        """What is left when nothing can be taken away."""
        had = features(self.fastest.problem, self.fastest.strategy)
        plain = self.without_all(had) if len(had) > 1 else None
        return plain or self.without_each()

    def without_all(self, had: Sequence[Feature]) -> _Found | None:
        """The fastest without all that the fastest one has; None where it is too slow, or has something else."""
        problem: Problem | None = self.problem.with_limits(stages=StageChoice.EVEN)
        for feature in had:
            problem = problem and without(problem, feature, self.fastest.strategy)
        if problem is None:
            return None
        found = self.search(problem, self.limit(self.fastest.seconds))
        return found if found and not features(found.problem, found.strategy) else None

    def without_each(self) -> _Found:
        """One feature after the other."""
        problem, found = self.problem, self.fastest
        tried: set[str] = set()
        while untried := [one for one in features(found.problem, found.strategy) if one.name not in tried]:
            feature = untried[0]
            tried.add(feature.name)
            simpler = without(problem, feature, found.strategy)
            for one in self.tries(_no_riskier(simpler, feature, found.strategy), feature) if simpler else ():
                better = self.search(one, self.limit(found.seconds, is_offload=feature.name in OFFLOAD))
                if better:
                    problem, found = one, better
                    self.has_given_up_offload |= feature.name in OFFLOAD
                    break
        return found

    def tries(self, simpler: Problem, feature: Feature) -> list[Problem]:
        """Uneven stages are no way to be simpler, but they are simpler than offload."""
        even = simpler.with_limits(stages=StageChoice.EVEN)
        is_offload = feature.name in OFFLOAD and simpler.search.stages != StageChoice.EVEN
        return [even, simpler] if is_offload else [even]

    def limit(self, seconds: float, *, is_offload: bool = False) -> float:
        """The longest step that is still accepted; no longer than it is where it is beyond the tolerance already."""
        fraction = max(OFFLOAD_FRACTION, self.tolerance) if is_offload else self.tolerance
        return max(self.fastest.seconds * (1 + fraction), seconds)

    def search(self, problem: Problem, limit_seconds: float) -> _Found | None:
        """The fastest strategy of a job, unless it is slower than a limit."""
        best: _Found | None = None
        for one in problem.each:
            if self.clock.is_over:
                self.is_complete = False
                return best
            found = self.search_one(one, best.seconds if best else limit_seconds)
            best = found or best
        return best

    def search_one(self, problem: Problem, limit_seconds: float) -> _Found | None:
        left = max(self.clock.seconds_left, SHORTEST_SECONDS)
        outcome = search_below(problem.with_limits(time_limit_seconds=left), limit_seconds)
        self.is_complete &= outcome.status in (Status.OPTIMAL, Status.INFEASIBLE)
        found = zip(outcome.strategies, outcome.step_seconds, strict=True)
        within = [(seconds, strategy) for strategy, seconds in found if seconds <= limit_seconds]
        if not within:
            return None
        seconds, strategy = within[0]
        return _Found(problem=problem, strategy=strategy, seconds=seconds)
