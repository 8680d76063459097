"""The verb ``compare``: gain of the recommended plan, or of another job's strategy, over a given strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.models.flops import parameters
from costmodel.record import record
from costmodel.strategy import DECISIONS, Strategy
from costmodel.tables import Facts
from planner.jobs.problem import Problem, require_problem
from planner.jobs.strategy_file import StrategyFile
from planner.results import EXIT_CODES, Displayed, EstimateReport, Plan, PlanReport
from planner.uncertainty.changes import Costed, changes_between, ratio_interval
from planner.uncertainty.counts import Gap
from planner.uncertainty.features import unproven_of
from planner.uncertainty.intervals import COVERAGE, widens
from planner.uncertainty.records import nearest_run
from planner.verbs.explain import Difference, differences
from planner.verbs.plan import estimate, judge_strategy, plan


@record(frozen=True, kw_only=True, slots=True)
class UnprovenPart:
    """
    Part of a gain that rests on one unproven feature of the better plan.

    Parameters
    ----------
    text
        The feature in words.
    decisions
        Names of the decisions that make it.
    fraction
        Lost part of the gain if these decisions are as in the given strategy; all of it if the plan cannot run so.
    is_needed
        True where the plan cannot run without it.
    """

    text: str
    decisions: tuple[str, ...]
    fraction: float
    is_needed: bool


@record(frozen=True, kw_only=True, slots=True)
class MeasuredSide:
    """
    A measured run with the degrees of one of the two strategies.

    Parameters
    ----------
    side
        given or best.
    id
        Name of the run in the project's table.
    source
        Its publisher.
    release
        Its software and release.
    unlike
        Features and release in which it differs from the strategy.
    step_time_seconds
        Its measured step.
    predicted_seconds
        Its step as predicted, as it ran.
    error_fraction
        Predicted over measured step, minus 1.
    corrected_seconds
        Predicted step of the strategy, corrected by this error. Without differences it is the measured step itself.
    """

    side: str
    id: str
    source: str
    release: str
    unlike: tuple[str, ...]
    step_time_seconds: float
    predicted_seconds: float
    error_fraction: float
    corrected_seconds: float


@record(frozen=True, kw_only=True, slots=True)
class Gain:
    """
    Share of the given step that another plan saves; per device and token where the two batches differ.

    Parameters
    ----------
    fraction
        Predicted share; negative: a loss.
    low_fraction
        Lower end of the interval of the measured gain.
    high_fraction
        Upper end of the interval of the measured gain.
    probability
        Chance that the measured gain lies between them.
    is_sure
        True if both ends are on one side of zero, so that one is faster beyond doubt.
    basis
        Errors that the interval follows from.
    changes
        Kinds of everything that differs between the two.
    unproven
        Features of the better plan alone that no measured run shows, the largest part of the gain first.
    unproven_fraction
        Part of the gain that is lost without all of them.
    measured
        Measured runs with the degrees of either strategy.
    measured_fraction
        The gain with the model's errors on them taken out; null without any.
    """

    fraction: float
    low_fraction: float
    high_fraction: float
    probability: float = COVERAGE
    is_sure: bool
    basis: str
    changes: tuple[str, ...]
    unproven: tuple[UnprovenPart, ...] = ()
    unproven_fraction: float = 0.0
    measured: tuple[MeasuredSide, ...] = ()
    measured_fraction: float | None = None


def gain_of(given: Plan, best: Plan) -> Gain:
    """Return the gain of a plan over a given one, with its ground."""
    gain = gain_interval(given, best)
    seconds_per_token = _token_ratio(given, best)
    parts = tuple(_unproven_parts(given, best, gain.fraction)) if gain.fraction > 0 else ()
    measured = tuple(_find_measured(given, best))
    corrected = {one.side: one.corrected_seconds for one in measured}
    ours, theirs = corrected.get("given", given.step_seconds), corrected.get("best", best.step_seconds)
    return replace(
        gain,
        unproven=tuple(sorted(parts, key=lambda part: -part.fraction)),
        unproven_fraction=_loss_without(given, best, parts, gain.fraction)[0] if parts else 0.0,
        measured=measured,
        measured_fraction=1 - theirs / ours * seconds_per_token if measured else None,
    )


def gain_interval(given: Plan, best: Plan) -> Gain:
    """Return the gain of a plan over a given one, with its interval alone."""
    ours, theirs = _cost(given), _cost(best)
    apart = {*map(_name, filter(widens, given.gaps))} ^ {*map(_name, filter(widens, best.gaps))}
    lowest, highest, basis = ratio_interval(ours, theirs, (given.interval, best.interval), num_unshown=len(apart))
    ratio = (1 + best.slower_fraction(given)) * _token_ratio(given, best)
    low, high = 1 - ratio * highest, 1 - ratio * lowest
    return Gain(
        fraction=1 - ratio,
        low_fraction=low,
        high_fraction=high,
        is_sure=low > 0 or high < 0,
        basis=basis,
        changes=tuple(sorted(changes_between(ours, theirs))),
    )


def _token_ratio(given: Plan, best: Plan) -> float:
    """Return the factor from the ratio of two steps to the ratio of device times per token."""
    return _cost(given).tokens_per_device / _cost(best).tokens_per_device if _is_scaled(given, best) else 1.0


def _is_scaled(given: Plan, best: Plan) -> bool:
    ours, theirs = given.facts.workload, best.facts.workload
    return (ours.global_batch_size, ours.sequence_length) != (theirs.global_batch_size, theirs.sequence_length)


def _cost(plan: Plan) -> Costed:
    exposed = {part.name: part.exposed_seconds for part in plan.estimate.breakdown}
    return Costed(facts=plan.facts, strategy=plan.strategy, step_seconds=plan.step_seconds, exposed_seconds=exposed)


def _name(gap: Gap) -> tuple[str, str]:
    return gap.dimension, gap.value


# --- unproven features -------------------------------------------------------------------------------------
def _unproven_parts(given: Plan, best: Plan, fraction: float) -> Iterator[UnprovenPart]:
    known = {one.text for one in unproven_of(given.facts, given.strategy)}
    for one in unproven_of(best.facts, best.strategy):
        if one.text not in known:
            part = UnprovenPart(text=one.text, decisions=one.names, fraction=fraction, is_needed=True)
            lost, is_needed = _loss_without(given, best, [part], fraction)
            yield replace(part, fraction=lost, is_needed=is_needed)


def _loss_without(given: Plan, best: Plan, parts: Sequence[UnprovenPart], fraction: float) -> tuple[float, bool]:
    """Return the lost part of the gain if features are as in the given strategy, and a flag: the plan needs them."""
    named = {name for part in parts for name in part.decisions}
    own = {name: getattr(given.strategy, name) for name in named if name in DECISIONS}
    changed = replace(best.strategy, **own)
    seconds = None if changed == best.strategy else _seconds_with(best, changed)
    if seconds is None:
        return fraction, True
    left = 1 - seconds / given.step_seconds * _token_ratio(given, best)
    return min(max(fraction - left, 0.0), fraction), False


def _seconds_with(best: Plan, strategy: Strategy) -> float | None:
    """Return the step with some decisions changed; None where rules forbid it or it cannot be costed."""
    try:
        found = judge_strategy(best.problem, strategy)
        broken = {*found.broken_rules} - {*judge_strategy(best.problem, best.strategy).broken_rules}
    except SpecError:
        return None
    return None if broken else found.plan.step_seconds


# --- measured runs -----------------------------------------------------------------------------------------
def _find_measured(given: Plan, best: Plan) -> Iterator[MeasuredSide]:
    for side, own in (("given", given), ("best", best)):
        if match := nearest_run(own.facts, own.strategy):
            run, unlike = match
            yield MeasuredSide(
                side=side,
                id=run.id,
                source=run.source,
                release=run.release,
                unlike=unlike,
                step_time_seconds=run.step_seconds,
                predicted_seconds=run.predicted_seconds,
                error_fraction=run.error_fraction,
                corrected_seconds=own.step_seconds / (1 + run.error_fraction) if unlike else run.step_seconds,
            )


@record(frozen=True, kw_only=True, slots=True)
class Side:
    """
    One of two jobs that are compared.

    Parameters
    ----------
    name
        Name of the job.
    what
        Description of the compared strategy.
    report
        Estimate of the strategy.
    notes
        Entries that were left out or assumed when the job was read, a sentence each.
    exit_code
        0: estimated, or proven to be the fastest; 3: the fastest strategy within the time limit.
    """

    name: str
    what: str
    report: EstimateReport
    notes: tuple[str, ...] = ()
    exit_code: int = 0


@record(frozen=True, kw_only=True, slots=True)
class Unlike:
    """
    One difference between two jobs.

    Parameters
    ----------
    what
        Name of the differing part, such as model or cluster.
    given, best
        Its text in the first and in the second job.
    """

    what: str
    given: str
    best: str


@record(frozen=True, kw_only=True, slots=True)
class Comparison(Displayed):
    """
    A given strategy compared with the recommended plan, or the strategies of two jobs compared with each other.

    Parameters
    ----------
    report
        Report of the job: its best plan, or the reason why no strategy fits. With two jobs, the second job's.
    given
        Estimate of the given strategy, with the rules that forbid it. With two jobs, the first job's.
    sides
        The two jobs, first and second; empty where one job's strategy is compared with its recommended plan.
    given_name
        Name of the given strategy and its changes for the job; empty where it has no name.
    """

    report: PlanReport | EstimateReport
    given: EstimateReport
    sides: tuple[Side, ...] = ()
    given_name: str = ""

    @property
    def problem(self) -> Problem:
        """The job."""
        return self.report.problem

    @property
    def best(self) -> Plan | None:
        """Recommended plan of the job, or the second job's; None if none fits or time ran out."""
        return next(iter(self.report.plans), None)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Differences in time between the given strategy and the best plan, the largest first."""
        return differences(self.best, self.given.plan) if self.best else ()

    @property
    def saved_seconds(self) -> float:
        """Difference of the step times; negative where rules forbid a faster strategy."""
        return self.given.plan.step_seconds - self._best.step_seconds

    @property
    def saved_fraction(self) -> float:
        """Time saved per step, as a share of the given strategy's step."""
        return self.saved_seconds / self.given.plan.step_seconds

    @property
    def saved_days(self) -> float:
        """Days saved in the whole training."""
        return self.given.plan.schedule.days - self._best.schedule.days

    @property
    def saved_gpu_hours(self) -> float:
        """GPU-hours saved in the whole training."""
        return self.given.plan.schedule.gpu_hours - self._best.schedule.gpu_hours

    @property
    def is_within_noise(self) -> bool:
        """True where the predictions cannot tell the two apart: the interval of their difference holds zero."""
        return not gain_interval(self.given.plan, self._best).is_sure

    @property
    def gain(self) -> Gain | None:
        """Gain of the best plan, with its certainty and its ground; None without a plan."""
        return gain_of(self.given.plan, self.best) if self.best else None

    @property
    def exit_code(self) -> int:
        """0: compared with a proven plan; 1: infeasible; 3: the time limit came before the proof."""
        if isinstance(self.report, EstimateReport):
            return max((side.exit_code for side in self.sides), default=0)
        return EXIT_CODES[self.report.outcome.status]

    @property
    def status(self) -> str:
        """Status of the search for the best plan; with two jobs ``compared``."""
        return "compared" if isinstance(self.report, EstimateReport) else self.report.outcome.status

    @property
    def unlike(self) -> tuple[Unlike, ...]:
        """Differences between the two jobs."""
        return tuple(_unlike(self.given, self.report)) if self.sides else ()

    @property
    def same_step(self) -> bool:
        """True where both steps train the same model on the same number of tokens, so that their times compare."""
        return not {one.what for one in self.unlike} & {"model", "batch"}

    @property
    def same_run(self) -> bool:
        """True where both trainings train the same model on the same number of tokens, so that their days compare."""
        return not {one.what for one in self.unlike} & {"model", "tokens"}

    @property
    def _best(self) -> Plan:
        assert self.best is not None, "there is no plan to compare with"
        return self.best


def compare(problem: Problem, decisions: Mapping[str, object] | str | StrategyFile | None = None) -> Comparison:
    """
    Compare a given strategy with the recommended plan.

    Parameters
    ----------
    problem
        The job; its ``strategy`` is the given one.
    decisions
        Decisions over the job's strategy, or a whole strategy, as :func:`planner.verbs.plan.estimate` takes them.

    Raises
    ------
    SpecError
        If no strategy is given, if a name or a value is wrong, or if the strategy has no cost.
    """
    require_problem(problem)
    given = problem.given
    if not decisions and given.is_empty:
        hint = "Give the job a 'strategy', or decisions such as TP8 PP4."
        raise SpecError("strategy", "is required: there is nothing to compare the recommended plan with.", hint)
    return compare_with_plan(problem, estimate(problem, decisions or {}))


def compare_with_plan(problem: Problem, given: EstimateReport) -> Comparison:
    """Compare a strategy that was costed already with its job's recommended plan."""
    return Comparison(given=given, report=plan_for_comparison(problem))


def plan_for_comparison(problem: Problem) -> PlanReport:
    """Plan a job as ``planner plan`` does; strategies are compared with its first plan."""
    return plan(replace(problem, top=1), certified=False)


# --- two jobs ----------------------------------------------------------------------------------------------
def side_of(report: PlanReport | EstimateReport, name: str, notes: tuple[str, ...] = ()) -> Side:
    """
    Return a job as a side of a comparison: with its given strategy, or with its recommended one.

    Parameters
    ----------
    report
        Result of :func:`planner.verbs.plan.estimate` or :func:`planned`.
    name
        Name of the job.
    notes
        Entries that were left out or assumed when the job was read.

    Raises
    ------
    SpecError
        If the report has no plan.
    """
    if isinstance(report, EstimateReport):
        return Side(name=name, what="its strategy", report=report, notes=notes)
    if not report.plans:
        raise SpecError(name, "has no plan: there is nothing to compare.")
    code = report.exit_code
    what = "its recommended plan" if code == 0 else "the plan that was found within the time limit"
    return Side(
        name=name,
        what=what,
        report=judge_strategy(report.plans[0].problem, report.plans[0].strategy),
        notes=notes,
        exit_code=code,
    )


def compare_two(first: Side, second: Side) -> Comparison:
    """
    Compare the strategies of two jobs, which may differ in model, cluster and batch.

    >>> from planner import estimate, load
    >>> job = {"model": "llama3-8b", "training": {"global_batch_size": 128, "sequence_length": 8192, "tokens": 1e12}}
    >>> jobs = [load({**job, "cluster": {"device": "h100-80gb-sxm", "num_devices": each}}) for each in (64, 128)]
    >>> sides = [side_of(estimate(one, {"tp": 2}), "mine") for one in jobs]
    >>> [(one.what, one.given, one.best) for one in compare_two(*sides).unlike]
    [('cluster', '64 x h100-80gb-sxm', '128 x h100-80gb-sxm')]
    """
    return Comparison(given=first.report, report=second.report, sides=(first, second))


def _unlike(one: PlanReport | EstimateReport, other: PlanReport | EstimateReport) -> Iterator[Unlike]:
    facts, others = one.chosen.facts, other.chosen.facts
    texts = _texts(others)
    for what, text in _texts(facts).items():
        if text != texts[what] or (what == "model" and _plain(facts.model) != _plain(others.model)):
            yield Unlike(what=what, given=text, best=texts[what])


def _texts(facts: Facts) -> dict[str, str]:
    """Return the texts of the parts in which jobs may differ."""
    cluster, work = facts.cluster, facts.workload
    return {
        "model": f"{facts.model.name}, {parameters(facts.model):,} parameters",
        "cluster": f"{cluster.num_devices:,} x {cluster.device.name}",
        "node": f"{cluster.device.devices_per_node} GPUs",
        "framework": cluster.framework.name if cluster.framework else "none",
        "batch": f"{work.global_batch_size:,} x {work.sequence_length:,} tokens",
        "tokens": f"{work.tokens:,.0f}",
        "precision": work.precision.name,
    }


def _plain(model: Model) -> Model:
    return replace(model, name="", source="")
