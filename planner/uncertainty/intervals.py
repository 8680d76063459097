"""Intervals of predictions, from the errors on comparable measured runs that were left out of the fits."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.lowering import embedding_operators, head_operators, layer_operators
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.network.collectives import dense_data_group, layer_group, pipeline_group
from costmodel.record import record, strict_record
from costmodel.step.estimate import Part
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.timing.source import build_sampled_source
from costmodel.timing.work import Operator
from planner.uncertainty.counts import CHANGED, UNTUNED, UNTUNED_FACTOR, Gap, architecture_of, read_stored

if TYPE_CHECKING:
    from costmodel.timing.sampled_source import SampledSource

ROOFLINE_DEVIATION = 0.25
"""
Standard deviation of the logarithm of a roofline time with sampled rates: medians of 12 to 20 % on measured operators
(``python -m benchmarks.operators``, modified roofline).
"""


@record(frozen=True, kw_only=True, slots=True)
class TimedOperator:
    """
    One operator of a strategy in all of its layers, or the collectives of a group of ranks.

    Parameters
    ----------
    name
        Name in the cost model.
    share
        Its share of the step: for operators the share of the computation, for collectives the exposed share.
    relative_deviation
        Standard deviation of the logarithm of its time.
    origin
        Source of its time.
    is_sampled, is_outside
        True where samples timed it; True where its shape is outside of their range, so that their roofline is used.
    """

    name: str
    share: float
    relative_deviation: float
    origin: str
    is_sampled: bool
    is_outside: bool

    @property
    def doubt(self) -> float:
        """Its contribution to the error of a step, in logarithms: share times deviation."""
        return self.share * self.relative_deviation


Pass: TypeAlias = tuple[float, float, bool]
"""Seconds of a pass, the relative deviation of that time, and a flag: its sizes are outside the samples."""

COMMUNICATION = {"tp": "all_gather", "cp": "send", "ep": "all_to_all", "pp": "send", "dp": "all_gather"}
"""Groups of ranks with collectives in a step, and a kind that they use."""

USUAL_BYTES = 2.0**26
"""Bytes of a message at which the deviation of collectives' samples is taken."""


def list_timed_operators(facts: Facts, strategy: Strategy, breakdown: Sequence[Part]) -> tuple[TimedOperator, ...]:
    """
    Return operators and collectives of a strategy on a sampled device, the most uncertain first; () on others.

    Parameters
    ----------
    facts
        Model, cluster, workload.
    strategy
        Strategy of the step.
    breakdown
        Breakdown of its step.
    """
    device = facts.cluster.device
    if device.constants.times != "sampled":
        return ()
    source = build_sampled_source(device, facts.workload.precision.compute, cuda_graphs=strategy.cuda_graphs)
    passes: dict[str, list[Pass]] = defaultdict(list)
    origins: dict[str, Operator] = {}
    for operator, count in strategy_operators(facts, strategy):
        origins.setdefault(operator.name, operator)
        passes[operator.name] += [
            (count * seconds, deviation, is_outside) for seconds, deviation, is_outside in _passes(source, operator)
        ]
    total = sum(seconds for of_name in passes.values() for seconds, _, _ in of_name)
    groups = list(_groups(facts.cluster, strategy, breakdown))
    alone = 1.0 - sum(one.share for one in groups)
    operators = [
        _combine_passes(name, of_name, total / alone, source, origins[name]) for name, of_name in passes.items()
    ]
    found = [*operators, *groups]
    return tuple(sorted((one for one in found if one.share > 0), key=lambda one: -one.doubt))


def _groups(cluster: Cluster, strategy: Strategy, breakdown: Sequence[Part]) -> Iterator[TimedOperator]:
    """Yield the groups of ranks whose collectives are exposed in the step."""
    from costmodel.network.sampled_fabric import learn_collectives, members_and_nodes

    degrees = {"tp": strategy.tp, "cp": strategy.cp, "ep": strategy.ep, "etp": strategy.etp}
    sizes = {"tp": strategy.tp, "cp": strategy.cp, "dp": strategy.dp}
    groups = {
        **{name: layer_group(name, **degrees) for name in ("tp", "cp", "ep")},
        "dp": dense_data_group(**sizes),
        "pp": pipeline_group(**sizes, pp=strategy.pp),
    }
    times, samples = learn_collectives(cluster), cluster.device.calibration.samples
    step = sum(one.exposed_seconds for one in breakdown)
    for part in breakdown:
        if part.name not in COMMUNICATION or part.exposed_seconds <= 0:
            continue
        group = groups[part.name]
        members, nodes = members_and_nodes(cluster, ranks=group.ranks, stride=group.stride)
        case = {"nbytes": USUAL_BYTES, "ranks": members * nodes, "nodes": nodes}
        known = times is not None and (times.inside if nodes == 1 else times.between) is not None
        kind = COMMUNICATION[part.name]
        yield TimedOperator(
            name=f"{part.name} communication",
            share=part.exposed_seconds / step,
            relative_deviation=float(times.relative_deviation(kind, **case)) if times and known else ROOFLINE_DEVIATION,
            origin=f"{samples.origin if samples and known else 'networks'} of {cluster.device.name}",
            is_sampled=known,
            is_outside=bool(times.is_outside(kind, **case)) if times and known else False,
        )


def strategy_operators(facts: Facts, strategy: Strategy) -> Iterator[tuple[Operator, int]]:
    """Yield every operator of a strategy's micro-batch, with the number of layers that have it."""
    shape = strategy_shape(facts, strategy)
    for layer, count in facts.model.layer_counts.items():
        yield from ((operator, count) for operator in layer_operators(layer, shape))
    for operator in (*embedding_operators(facts.model, shape), *head_operators(facts.model, shape)):
        yield operator, 1


def strategy_shape(facts: Facts, strategy: Strategy) -> Shape:
    """Return the common shape of the operators of a strategy's micro-batch."""
    return layer_shape(
        facts.model,
        facts.cluster,
        facts.workload,
        tp=strategy.tp,
        cp=strategy.cp,
        ep=strategy.ep,
        etp=strategy.etp,
        mbs=strategy.mbs,
        sequence_parallel=strategy.sequence_parallel,
        token_dispatcher=strategy.token_dispatcher,
        cuda_graphs=strategy.cuda_graphs,
    )


def _passes(source: SampledSource, operator: Operator) -> Iterator[Pass]:
    """Yield seconds, deviation, and True if outside of the samples, of each pass of an operator."""
    from costmodel.timing.sampled_source import backward_passes, forward_passes

    for of_passes, seconds in (
        (forward_passes(operator), source.forward_seconds(operator)),
        (backward_passes(operator), source.backward_seconds(operator)),
    ):
        known = [source.find_pass(operator, of_pass) for of_pass in of_passes]
        if not all(known):
            yield float(seconds), ROOFLINE_DEVIATION, False
            continue
        laws = [one for one in known if one]
        parts = [float(law.seconds(sizes)) for law, sizes in laws]
        deviations = [law.relative_deviation(sizes) for law, sizes in laws]
        whole = sum(part * deviation for part, deviation in zip(parts, deviations, strict=True)) / sum(parts)
        yield float(seconds), whole, any(law.is_outside(sizes) for law, sizes in laws)


def _combine_passes(
    name: str, passes: list[Pass], total: float, source: SampledSource, operator: Operator
) -> TimedOperator:
    """Combine all passes of an operator: their errors are equal, and add up."""
    seconds = sum(seconds for seconds, _, _ in passes)
    doubt = sum(seconds * deviation for seconds, deviation, _ in passes)
    return TimedOperator(
        name=name,
        share=seconds / total if total else 0.0,
        relative_deviation=doubt / seconds if seconds else 0.0,
        origin=source.origin(operator),
        is_sampled=source.is_sampled(operator),
        is_outside=any(is_outside for _, _, is_outside in passes),
    )


def operators_deviation(operators: tuple[TimedOperator, ...]) -> float:
    r"""
    Return the standard deviation of the logarithm of a step's computation from the errors of operator times.

    .. math:: \sigma = \sqrt{\sum_i (w_i \sigma_i)^2}

    for operators of share w: errors of one operator are equal in all layers, those of different operators independent.
    """
    return math.sqrt(sum(one.doubt**2 for one in operators))


TABLE = "intervals.json"

COVERAGE = 0.8

"""Share of runs that lie inside an interval."""

FEWEST_GROUPS = 8

"""Groups of runs from which on their own errors make an interval: with fewer, one group determines an end of it."""

ONE_DEVICE, ONE_NODE, SEVERAL_NODES = "one device", "one node", "several nodes"

ANY = "any"


Unseen: TypeAlias = Literal["nothing", "model", "software"]
"""Property of a job that the runs of a fit did not have."""


UNSEEN_WORDS = {"nothing": "", "model": "other models", "software": "other software"}


@strict_record(frozen=True, kw_only=True, slots=True)
class Kind:
    """
    Kind of comparable runs.

    Parameters
    ----------
    device
        Architecture of the device, or ``any``.
    model
        ``dense``, ``moe``, ``hybrid`` or ``any``.
    scale
        ``one device``, ``one node``, ``several nodes`` or ``any``.
    unseen
        Property of the runs that was unseen by the fit that predicted them.
    """

    device: str = ANY
    model: str = ANY
    scale: str = ANY
    unseen: Unseen = "nothing"

    def broader(self) -> Iterator[Kind]:
        """Yield the kind and broader kinds for too few runs, nearest first."""
        yield self
        yield Kind(device=self.device, model=self.model, unseen=self.unseen)
        yield Kind(model=self.model, scale=self.scale, unseen=self.unseen)
        yield Kind(model=self.model, unseen=self.unseen)
        yield Kind(unseen=self.unseen)

    @property
    def text(self) -> str:
        """Kind in words."""
        words = [word for word in (self.device, self.model, self.scale) if word != ANY]
        found = ", ".join(words) or "all kinds"
        beside = UNSEEN_WORDS[self.unseen]
        return f"{found}; {beside} than those of the fit" if beside else found


@strict_record(frozen=True, kw_only=True, slots=True)
class Spread:
    """
    Errors of one kind of runs.

    Parameters
    ----------
    kind
        Kind of the runs.
    groups, rows
        Number of groups and rows, held out of every fit that predicted them.
    lower, upper
        Logarithms of measured over predicted time between which ``COVERAGE`` of them lie.
    """

    kind: Kind
    groups: int
    rows: int
    lower: float
    upper: float


@strict_record(frozen=True, kw_only=True, slots=True)
class Intervals:
    """
    Errors that give all intervals.

    Parameters
    ----------
    source
        Source of the errors.
    releases, models
        Measured releases of software, and sizes of models (:func:`size_of`), by architecture of the device.
    steps
        Errors of step times.
    differences
        Errors of the ratio of two layouts of one job, in logarithms and symmetric: a share of 1 - ``COVERAGE`` exceeds
        ``upper``.
    """

    source: str
    releases: dict[str, tuple[str, ...]]
    models: dict[str, tuple[tuple[int, int], ...]]
    steps: tuple[Spread, ...]
    differences: tuple[Spread, ...]


@cache
def intervals() -> Intervals:
    """Return the project's errors."""
    return read_stored(Intervals, TABLE, "planner.uncertainty")


def kind_of(model: Model, cluster: Cluster, *, unseen: Unseen = "nothing") -> Kind:
    """Return the kind of runs that a job is compared with, for something unseen by the fit."""
    scale = ONE_DEVICE if cluster.num_devices == 1 else ONE_NODE if cluster.num_nodes == 1 else SEVERAL_NODES
    return Kind(device=cluster.device.architecture or ANY, model=architecture_of(model), scale=scale, unseen=unseen)


def size_of(model: Model) -> tuple[int, int]:
    """Return hidden size and number of experts (0 for dense): models with equal values are costed alike."""
    return model.hidden_size, model.num_experts


def release_name(cluster: Cluster) -> str:
    """Return the release of a job's software by its own name, known or not; empty without software."""
    if cluster.unknown_release:
        return cluster.unknown_release
    return cluster.framework.name.removesuffix(CHANGED) if cluster.framework else ""


def unseen_of(model: Model, cluster: Cluster, known: Intervals) -> tuple[Unseen, ...]:
    """List unmeasured properties of a job on its device architecture: its software release, and its model size."""
    architecture = cluster.device.architecture or ANY
    found: list[Unseen] = []
    if release_name(cluster) not in known.releases.get(architecture, ()):
        found.append("software")
    if size_of(model) not in known.models.get(architecture, ()):
        found.append("model")
    return tuple(found) or ("nothing",)


def spread_of(spreads: Sequence[Spread], kind: Kind) -> Spread:
    """Return the errors of the nearest kind with enough measured runs."""
    known = {spread.kind: spread for spread in spreads}
    return next(known[broader] for broader in kind.broader() if broader in known)


# --- from errors to spreads ---------------------------------------------------------------------------------
@record(frozen=True, kw_only=True, slots=True)
class Error:
    """
    One error of a prediction, or of the ratio of two.

    Parameters
    ----------
    kind
        Kind of the run.
    group
        Group of runs with similar errors.
    log
        Logarithm of measured over predicted.
    """

    kind: Kind
    group: Hashable
    log: float


def fit_spread(kind: Kind, errors: Sequence[Error], *, symmetric: bool) -> Spread:
    """
    Return conformal quantiles, with equal weight for every group of runs.

    For an unseen model or unseen software they also hold with equal weight for every run. Groups are whole models or
    sources there. The large ones, which sweep sizes and layouts, are further off than the many small ones.

    References
    ----------
    Lei et al., "Distribution-Free Predictive Inference for Regression", arXiv:1604.04173: the level of n calibration
    points is raised by (n + 1) / n.
    """
    sizes = Counter(error.group for error in errors)
    weights = np.array([1 / sizes[error.group] for error in errors])
    level = min(COVERAGE * (1 + 1 / len(sizes)), 1.0)
    logs = np.array([error.log for error in errors])
    if symmetric:
        upper = find_weighted_quantile(np.abs(logs), weights, level)
        lower = -upper
    else:
        every = (weights,) if kind.unseen == "nothing" else (weights, np.ones(len(errors)))
        lower = min(find_weighted_quantile(logs, one, (1 - level) / 2) for one in every)
        upper = max(find_weighted_quantile(logs, one, (1 + level) / 2) for one in every)
    return Spread(kind=kind, groups=len(sizes), rows=len(errors), lower=round(lower, 4), upper=round(upper, 4))


def find_weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """
    Return the value below which a share of the weight lies, linear between the middles of the weights.

    >>> find_weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5)
    2.0
    """
    order = np.argsort(values)
    below = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return float(np.interp(level, below, values[order]))


# --- intervals of predictions -------------------------------------------------------------------------------
@record(frozen=True, kw_only=True, slots=True)
class Interval:
    """
    Interval of a measured step time.

    Parameters
    ----------
    low_seconds
        Its lower end.
    high_seconds
        Its upper end.
    basis
        Measured runs that the interval comes from.
    probability
        Share of measured steps that lie between the ends.
    """

    low_seconds: float
    high_seconds: float
    basis: str
    probability: float = COVERAGE


NORMAL_80 = 1.2816

"""Standard deviations of a normal distribution between which, on both sides, ``COVERAGE`` lies."""

UNSEEN_BY_GAP: dict[str, Unseen] = {
    **dict.fromkeys(("software", "software on device", "device", "release"), "software"),
    **dict.fromkeys(("kind", "family"), "model"),
}

"""Held-out runs whose errors represent a gap, by its dimension."""


def step_interval(
    model: Model,
    cluster: Cluster,
    *,
    step_seconds: float,
    operators_deviation: float = 0.0,
    gaps: Sequence[Gap] = (),
) -> Interval:
    """
    Return the interval of a prediction, by the device's own errors where it was calibrated on enough runs.

    Parameters
    ----------
    model, cluster
        The predicted job.
    step_seconds
        Predicted step.
    operators_deviation
        Standard deviation of its logarithm from sampled operator times. Errors of the composition and of the operators
        are independent, so that their squares add up.
    gaps
        Properties of it with few or no measured runs.
    """
    kind, untuned = kind_of(model, cluster), any(gap.dimension == "tuning" for gap in gaps)
    own = cluster.device.left_out_errors.get(UNTUNED if untuned else architecture_of(model), ())
    if len(own) >= FEWEST_GROUPS:
        errors = [Error(kind=kind, group=number, log=log) for number, log in enumerate(own)]
        spread, basis = fit_spread(kind, errors, symmetric=False), f"{len(own)} runs of {cluster.device.name}"
    else:
        spread, basis = _reach_own(*_spread_of_others(model, cluster, gaps), own, cluster.device.name)
    spread, basis = _widen_by_gaps(spread, basis, gaps)
    if untuned and not own:
        spread, basis = _widen_untuned(spread, basis)
    beside = NORMAL_80 * operators_deviation
    if beside:
        basis = f"the operators' samples (+- {math.expm1(beside):.1%}) and {basis}"
    return Interval(
        low_seconds=step_seconds * math.exp(-math.hypot(min(spread.lower, 0.0), beside) if beside else spread.lower),
        high_seconds=step_seconds * math.exp(math.hypot(max(spread.upper, 0.0), beside) if beside else spread.upper),
        basis=basis,
    )


def _spread_of_others(model: Model, cluster: Cluster, gaps: Sequence[Gap]) -> tuple[Spread, str]:
    """Return errors of comparable runs, and of other models or software where those are unmeasured: the widest ends."""
    known = intervals()
    by_gaps = (UNSEEN_BY_GAP[gap.dimension] for gap in gaps if not gap.runs and gap.dimension in UNSEEN_BY_GAP)
    unseen: tuple[Unseen, ...] = ("nothing", *unseen_of(model, cluster, known), *by_gaps)
    found = [spread_of(known.steps, kind_of(model, cluster, unseen=one)) for one in dict.fromkeys(unseen)]
    widest = max(found, key=lambda spread: spread.upper - spread.lower)
    spread = replace(widest, lower=min(spread.lower for spread in found), upper=max(spread.upper for spread in found))
    return spread, f"{spread.rows} measured runs in {spread.groups} groups ({spread.kind.text})"


def _reach_own(spread: Spread, basis: str, own: Sequence[float], device: str) -> tuple[Spread, str]:
    """Widen a spread to that around the median of a device's own few errors where that is outside of it."""
    if not own or spread.lower <= (middle := float(np.median(own))) <= spread.upper:
        return spread, basis
    lower, upper = min(spread.lower, middle + spread.lower), max(spread.upper, middle + spread.upper)
    return replace(spread, lower=lower, upper=upper), f"{basis} and {len(own)} runs of {device}"


def widens(gap: Gap) -> bool:
    """Return True if a gap is a separate error: no run has the property, and held-out runs do not represent it."""
    return gap.dimension not in UNSEEN_BY_GAP and (not gap.runs or gap.beyond > 1)


def _widen_by_gaps(spread: Spread, basis: str, gaps: Sequence[Gap]) -> tuple[Spread, str]:
    r"""
    Widen a spread for n unmeasured features, degrees or sizes: :math:`\sqrt{1 + n}` times as wide.

    Assumption: each is one more error, independent of the others and as large as that of comparable runs. There are no
    runs to measure it; the seven runs of ``benchmarks/effects`` with unseen features are off by as much or more.
    """
    others = [gap for gap in gaps if widens(gap)]
    if not others:
        return spread, basis
    factor = math.sqrt(1 + len(others))
    what = "one thing" if len(others) == 1 else f"{len(others)} things"
    widened = replace(spread, lower=factor * spread.lower, upper=factor * spread.upper)
    return widened, f"{basis} (times {factor:.2f} for {what} that no run shows)"


def _widen_untuned(spread: Spread, basis: str) -> tuple[Spread, str]:
    """Widen the slow end for a job without the features of tuned recipes, by an independent error."""
    upper = math.hypot(max(spread.upper, 0.0), math.log(UNTUNED_FACTOR))
    return replace(spread, upper=upper), f"{basis}, and up to {UNTUNED_FACTOR} times as long without tuning"


def noise_fraction(model: Model, cluster: Cluster) -> float:
    """
    Return the least predicted difference between two layouts of a job that exceeds the noise, as a fraction.

    It is much less than the error of one prediction, since shared errors cancel.
    """
    return math.expm1(spread_of(intervals().differences, kind_of(model, cluster)).upper)


PLACES = 401

"""Points of the integral over one plan's error."""

REACH = 6.0

"""Standard deviations at which the integral ends."""


def chances_fastest(step_seconds: Sequence[float], noise_fraction: float) -> list[float]:
    r"""
    Return the chance of each plan that its measured step is the shortest.

    .. math:: P_i = \int \varphi(z) \prod_{j \ne i}
        \Phi\left(z + \frac{\ln T_j - \ln T_i}{\sigma / \sqrt 2}\right) dz

    Derivation: shared errors of two layouts of one job cancel. Their difference has the standard deviation sigma, each
    of two independent errors sigma over the root of two. A plan is the fastest if all others, each with its own error,
    take longer.

    Parameters
    ----------
    step_seconds
        Predicted steps of the plans; one or more.
    noise_fraction
        Largest fraction, with a probability of 80 %, by which the ratio of two steps is off; 0 for exact predictions.

    Examples
    --------
    >>> [round(chance, 2) for chance in chances_fastest([1.0, 1.0], 0.05)]
    [0.5, 0.5]
    >>> [round(chance, 2) for chance in chances_fastest([1.0, 1.05], 0.05)]
    [0.9, 0.1]
    """
    logs = np.log(np.asarray(step_seconds, dtype=np.float64))
    deviation = math.log1p(noise_fraction) / NORMAL_80 / math.sqrt(2)
    if deviation <= 0:
        first = logs == logs.min()
        return [float(share) for share in first / first.sum()]
    apart = (logs[None, :] - logs[:, None]) / deviation
    errors = np.linspace(-REACH, REACH, PLACES)
    weights = np.exp(-(errors**2) / 2)
    slower = _normal(errors[None, None, :] + apart[:, :, None])
    slower[np.arange(len(logs)), np.arange(len(logs))] = 1.0
    chances = (slower.prod(axis=1) * weights).sum(axis=1) / weights.sum()
    return [float(chance) for chance in chances / chances.sum()]


def _normal(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the normal distribution's share below each value; the shape is kept."""
    return np.asarray([(1 + math.erf(value / math.sqrt(2))) / 2 for value in values.ravel()]).reshape(values.shape)
