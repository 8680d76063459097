"""The error of a stack's other runs before and after a calibration with some of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.accuracy.fit import chosen_constants
from benchmarks.accuracy.jobs import share_work, source_weights
from benchmarks.accuracy.left_out.drawn import DERIVATIVES, fingerprints, read_derivatives, shipped_fit
from benchmarks.accuracy.left_out.folds import NEWEST, fitted_without, is_newest, release_text
from benchmarks.accuracy.metrics import read_fitted
from benchmarks.output import format_generated
from costmodel import catalog
from costmodel.record import record
from planner.jobs.cluster import Fitted
from planner.jobs.run_jobs import References
from planner.measure.calibrate.advice import distances, greedy, joint_covariance
from planner.measure.calibrate.calibrate import base_name, choose_fit, movable, stack_fit, try_fits
from planner.measure.calibrate.cases import Array, Predictor, log_measured_seconds, seconds_of
from planner.measure.calibrate.constants import Constant, prior_factors, replace_constants
from planner.measure.calibrate.fit import Candidates, Fit, mean_error, priors_of
from planner.measure.calibrate.published import FEWEST_STACKS, Gain, Worth, models_of
from planner.measure.runs.predictions import Case, Prediction, find_unreported_recompute, predictions

FEWEST_ROWS = 12
"""Fewest runs of a stack: 8 own runs and as many others as half of that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """
    All rows with a step time, linear in the logarithms of the constants around the catalog's.

    Parameters
    ----------
    rows, constants, known
        Rows; what is fitted; what rows refer to, with no factor of a framework beyond its prior.
    shipped
        The catalog's constants, with today's errors of the rows and the stored derivatives.
    is_fitted
        Rows that say what they recomputed.
    """

    rows: Sequence[Case]
    constants: tuple[Constant, ...]
    known: References
    shipped: Fit
    is_fitted: NDArray[np.bool_]


def measured() -> Measured:
    """Return the rows of the catalog's fit, predicted by today's code."""
    table, known = read_fitted()
    rows = [
        one for one in predictions(table, known) if isinstance(one, Prediction) and one.run.step_seconds is not None
    ]
    chosen = chosen_constants(rows, frameworks=True)
    return Measured(
        rows=rows,
        constants=chosen,
        known=known.refit(Fitted(factors=prior_factors())),
        shipped=shipped_fit(rows, chosen, read_derivatives(DERIVATIVES)),
        is_fitted=np.array([find_unreported_recompute(one) is None for one in rows]),
    )


def _at(one: Constant, value: float) -> Constant:
    return replace(one, prior=min(max(value, one.lower), one.upper))


@dataclass(frozen=True, kw_only=True)
class Stack:
    """
    Runs of one site and its software on one device, predicted by a fit that has seen none of them.

    Parameters
    ----------
    name, source, base
        Name of the stack; its source of runs; its device in the catalog.
    rows
        Its runs that say what they recomputed.
    known
        Their references, with the constants of the fit.
    constants
        Constants that runs of its device determine, with those constants as priors.
    slopes
        Derivatives of the rows' logarithms by these constants, shape (rows, constants).
    surprise
        Logarithms of measured over predicted seconds.
    """

    name: str
    source: str
    base: str
    rows: tuple[Case, ...]
    known: References
    constants: tuple[Constant, ...]
    slopes: Array
    surprise: Array

    @cached_property
    def configurations(self) -> tuple[tuple[object, ...], ...]:
        """Facts that repeats of a run share, whatever the release."""
        return tuple(_configuration(one) for one in self.rows)

    def others(self, own: Sequence[int]) -> list[int]:
        """Rows that are no repeats of own runs."""
        seen = {self.configurations[index] for index in own}
        return [index for index in range(len(self.rows)) if self.configurations[index] not in seen]

    def others_of_model(self, own: int) -> list[int]:
        """Rows of the model of one that are no repeats of it."""
        names = [(one.facts.model.name, one.facts.model.size) for one in self.rows]
        return [index for index in self.others([own]) if names[index] == names[own]]


def _configuration(one: Case) -> tuple[object, ...]:
    workload = one.facts.workload
    return (
        one.run.model,
        workload.precision.name,
        workload.sequence_length,
        workload.global_batch_size,
        one.run.num_devices,
        one.strategy,
    )


def stacks(known: Measured) -> Iterator[Stack]:
    """Each source on each of its devices, left out with all of that source; the newest releases on each of theirs."""
    sources = np.array([one.run.source for one in known.rows])
    devices = np.array([base_name(one) for one in known.rows])
    newest = np.array([is_newest(one) for one in known.rows])
    for name in sorted(set(sources.tolist())):
        yield from _of_devices(known, name, sources == name, devices)
    yield from _of_devices(known, f"{release_text(NEWEST)} and later", newest, devices)


def _of_devices(known: Measured, name: str, is_out: NDArray[np.bool_], devices: NDArray[np.str_]) -> Iterator[Stack]:
    large = [
        device
        for device in sorted(set(devices[is_out].tolist()))
        if (is_out & known.is_fitted & (devices == device)).sum() >= FEWEST_ROWS
    ]
    if not large:
        return
    logs = without(known, is_out)
    shipped = known.shipped
    surprise = -shipped.residuals - shipped.jacobian @ (logs - shipped.logs)
    references = replace_constants(known.known, known.constants, np.exp(logs))
    for device in large:
        chosen = is_out & known.is_fitted & (devices == device)
        chain = catalog.calibration_chain(catalog.device(device).calibration.name)
        columns = [index for index, one in enumerate(known.constants) if one.calibration in chain]
        yield Stack(
            name=f"{name}, {device}",
            source=name,
            base=device,
            rows=tuple(one for one, is_chosen in zip(known.rows, chosen, strict=True) if is_chosen),
            known=references,
            constants=tuple(_at(known.constants[index], float(np.exp(logs[index]))) for index in columns),
            slopes=shipped.jacobian[np.ix_(chosen, columns)],
            surprise=surprise[chosen],
        )


def without(known: Measured, is_out: NDArray[np.bool_]) -> Array:
    """Logarithms of the constants of a fit to all other rows, linear around the catalog's."""
    return fitted_without(
        known.rows,
        known.shipped,
        log_measured_seconds(known.rows),
        source_weights,
        priors_of(known.constants),
        unseen=is_out | ~known.is_fitted,
    )


RUNS = (2, 4, 8, 16)

FEWEST_OTHERS = 4

"""Runs of a stack that must be left to be predicted."""

MOST_OTHERS = 40

"""Largest number of other rows, even over the table, that are predicted anew."""

Way = Literal["first", "any"]
Models = Literal["dense", "experts"]


@record(frozen=True, kw_only=True, slots=True)
class Linear(Predictor):
    """
    Own runs of a stack, linear in the logarithms of the constants.

    Parameters
    ----------
    slopes
        Derivatives of the rows' logarithms.
    start
        The prediction before the fit.
    predicted
        Logarithms of its seconds.
    """

    slopes: Array
    start: Fit
    predicted: Array

    def logarithms(self, logs: Array) -> Array:
        """Logarithms of the rows' predicted seconds."""
        return np.asarray(self.predicted + self.slopes @ (logs - self.start.logs))

    def estimate_logarithms(self, logs: Array, rows: NDArray[np.bool_] | None = None) -> Array:
        """Return the logarithms of predicted seconds of all or some rows."""
        return np.asarray(self.logarithms(logs)[slice(None) if rows is None else rows])

    def jacobian(self, logs: Array, before: Array | None = None) -> Array:
        """Derivatives, everywhere the same."""
        return self.slopes


def linear(stack: Stack, own: Sequence[int]) -> tuple[Linear, Array]:
    """
    Return the linear model of a stack's own runs, and the slopes of all its rows.

    Both hold only the constants that the own runs may move.
    """
    timed = [stack.rows[index] for index in own]
    within = [replace(one, lower=min(one.lower, one.prior), upper=max(one.upper, one.prior)) for one in stack.constants]
    moves = movable(timed, within, stack.slopes[own])
    slopes = stack.slopes[:, moves]
    chosen = [one for one, is_moved in zip(within, moves, strict=True) if is_moved]
    surprise = stack.surprise[own]
    own_runs = Linear(
        cases=timed,
        constants=chosen,
        known=stack.known,
        slopes=slopes[own],
        start=Fit(logs=priors_of(chosen).mean, jacobian=slopes[own], residuals=-surprise),
        predicted=log_measured_seconds(timed) - surprise,
    )
    return own_runs, slopes


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """
    Own runs of a stack, fitted with each width of the priors.

    Parameters
    ----------
    stack, chosen, own, others
        The stack; choice of its own runs; rows of these, and of those that are predicted.
    found
        The fits; one where all own runs are of one configuration.
    predictor, slopes
        The own runs; derivatives of all rows of the stack.
    """

    stack: Stack
    chosen: Way
    own: Sequence[int]
    others: Sequence[int]
    predictor: Linear
    slopes: Array
    found: Candidates

    @property
    def models(self) -> Models:
        """Models of most of the own runs."""
        return models_of(self.predictor.cases)

    @property
    def before(self) -> float:
        """Error of the other runs with the catalog."""
        return mean_error(-self.stack.surprise[self.others])

    def after(self, found: Fit) -> float:
        """Error of the other runs with a fit."""
        change = self.slopes[self.others] @ (found.logs - self.predictor.start.logs)
        return mean_error(change - self.stack.surprise[self.others])


def trials(stacks: Sequence[Stack], *, num_draws: int) -> Iterator[Trial]:
    """
    Fit own runs of every stack as ``planner calibrate`` does, linear in the logarithms.

    Parameters
    ----------
    stacks
        Stacks.
    num_draws
        Random choices of own runs.
    """
    for stack in stacks:
        order = advised(stack)
        draws = [np.random.default_rng(seed).permutation(len(order)).tolist() for seed in range(num_draws)]
        for runs in RUNS:
            yield from _trials(stack, "first", [order[:runs]], runs)
            yield from _trials(stack, "any", [one[:runs] for one in draws], runs)
        for kind in ("dense", "experts"):
            alone = [[index] for index in draws[0] if models_of([stack.rows[index]]) == kind]
            yield from _trials(stack, "any", alone[:num_draws], 1)


def advised(stack: Stack) -> list[int]:
    """Rows in the order in which ``planner calibrate`` would have them measured."""
    return greedy(joint_covariance(stack.rows, stack.slopes, priors_of(stack.constants).sigma))[0]


def _trials(stack: Stack, chosen: Way, choices: Sequence[list[int]], runs: int) -> Iterator[Trial]:
    for own in choices:
        others = stack.others(own) if runs > 1 else stack.others_of_model(own[0])
        if len(own) == runs and len(others) >= (FEWEST_OTHERS if runs > 1 else 1):
            predictor, slopes = linear(stack, own)
            yield Trial(
                stack=stack,
                chosen=chosen,
                own=own,
                others=others,
                predictor=predictor,
                slopes=slopes,
                found=try_fits(predictor, predictor.start),
            )


MOST_GAIN = 1.0

"""Share of an error beyond which a loss counts no more: few others, all predicted well before."""


def summarize_gains(found: Sequence[Trial], *, without: str = "") -> Iterator[Gain]:
    """
    Summarize what any own runs gain, by their models, number and width of the priors.

    Parameters
    ----------
    found
        Fits.
    without
        A source whose stacks are left out.
    """
    of = defaultdict[tuple[Models, int, float], dict[str, list[float]]](lambda: defaultdict(list))
    for trial in found:
        if trial.chosen == "any" and trial.stack.source != without:
            for share, (fitted, _) in trial.found.items() if len(trial.found) > 1 else ():
                gain = max(1 - trial.after(fitted) / trial.before, -MOST_GAIN)
                of[trial.models, len(trial.own), share][trial.stack.name].append(gain)
    for (models, runs, share), by_stack in of.items():
        if len(by_stack) >= FEWEST_STACKS:
            means = [np.mean(gains) for gains in by_stack.values()]
            within = np.mean([np.var(gains) for gains in by_stack.values()])
            yield Gain(
                models=models,
                runs=runs,
                share=share,
                mean=round(float(np.mean(means)), 3),
                deviation=round(float(np.sqrt(np.var(means, ddof=1) + within)), 3),
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """
    One stack calibrated with a number of own runs.

    Parameters
    ----------
    stack, models
        Its name; ``dense`` or ``experts``.
    chosen
        Runs that ``planner calibrate`` says first, or any (the mean over draws).
    runs
        Own runs; of one the other runs of its model are predicted.
    before, after
        Mean absolute errors of its other runs' step times.
    median
        The one over the other, in the median over draws.
    said
        Error that the calibration says to expect.
    """

    stack: str
    models: Models
    chosen: Way
    runs: int
    before: float
    after: float
    median: float = 1.0
    said: float = 0.0


def points(found: Sequence[Trial]) -> Iterator[Point]:
    """Return the learning curve of every stack, whose fits are chosen by the gains on stacks of other sources."""
    same = defaultdict[tuple[str, Models, Way, int], list[Trial]](list)
    for trial in found:
        models = trial.models if len(trial.own) == 1 else models_of(trial.stack.rows)
        same[trial.stack.name, models, trial.chosen, len(trial.own)].append(trial)
    gains = {source: list(summarize_gains(found, without=source)) for source in {one.stack.source for one in found}}
    for (name, models, chosen, runs), of in same.items():
        errors = np.array([_errors(one, gains[one.stack.source]) for one in of])
        before, after, said = errors.mean(axis=0).tolist()
        yield Point(
            stack=name,
            models=models,
            chosen=chosen,
            runs=runs,
            before=before,
            after=after,
            median=float(np.median(errors[:, 1] / errors[:, 0])),
            said=said,
        )


def _errors(trial: Trial, gains: Sequence[Gain]) -> tuple[float, float, float]:
    """Return the error of other runs before and after, and the one that the calibration says; 0 of one run."""
    found, left_out = choose_fit(trial.found, trial.predictor.cases, trial.predictor.start, gains)
    return trial.before, trial.after(found), mean_error(left_out) if len(left_out) else 0.0


def exact_points(stacks: Sequence[Stack], gains: Sequence[Gain], runs: int, num_processes: int) -> list[Point]:
    """The points of runs measured first by the very functions of ``planner calibrate`` and ``planner estimate``."""

    def work(index: int) -> list[Point]:
        return list(_exact(stacks[index], gains, runs))

    return [one for found in share_work(work, len(stacks), num_processes) for one in found]


def _exact(stack: Stack, gains: Sequence[Gain], runs: int) -> Iterator[Point]:
    own = advised(stack)[:runs]
    others = stack.others(own)
    if len(own) < runs or len(others) < FEWEST_OTHERS:
        return
    predictor, _, found, _ = stack_fit([stack.rows[index] for index in own], stack.known, stack.base, gains)
    fitted = replace_constants(stack.known, predictor.constants, np.exp(found.logs))
    evenly = sorted({*np.linspace(0, len(others) - 1, MOST_OTHERS).astype(int).tolist()})
    rest = [stack.rows[others[index]] for index in evenly]
    times = log_measured_seconds(rest)
    before, after = (
        mean_error(np.log([seconds_of(one, known) for one in rest]) - times) for known in (stack.known, fitted)
    )
    yield Point(stack=stack.name, models=models_of(stack.rows), chosen="first", runs=runs, before=before, after=after)


# --- over stacks -------------------------------------------------------------------------------------------
def worths(found: Sequence[Point]) -> Iterator[Worth]:
    """Medians and quartiles over stacks, by models, choice and number of runs."""
    for models in ("all", "dense", "experts"):
        for chosen in ("first", "any"):
            for runs in (1, *RUNS):
                same = [
                    one for one in found if (one.chosen, one.runs) == (chosen, runs) and models in ("all", one.models)
                ]
                if same:
                    yield _worth(same, models)


def _worth(same: Sequence[Point], models: Any) -> Worth:
    quarter, ratio, three_quarters = np.quantile([one.after / one.before for one in same], (0.25, 0.5, 0.75))
    return Worth(
        models=models,
        chosen=same[0].chosen,
        runs=same[0].runs,
        stacks=len(same),
        before=round(float(np.median([one.before for one in same])), 4),
        after=round(float(np.median([one.after for one in same])), 4),
        quarter=round(float(quarter), 3),
        ratio=round(float(ratio), 3),
        three_quarters=round(float(three_quarters), 3),
    )


def document(found: Sequence[Point], gains: Sequence[Gain]) -> str:
    """``planner/measure/calibrate/learning_curve.json``."""
    source = (
        "python -m benchmarks.learning_curve --write: stacks of benchmarks/measured_runs, each predicted by a fit "
        "without its source, calibrated with own runs, error on its other runs"
    )
    plain = {
        "source": source,
        "made_by": fingerprints(),
        "gains": [asdict(one) for one in gains],
        "worth": [asdict(one) for one in worths(found)],
    }
    return format_generated(plain)


def lines(found: Sequence[Point]) -> Iterator[str]:
    """Tables: each stack; medians over stacks."""
    titles = {"first": "runs that the advice measures first", "any": "any runs, mean over draws"}
    for chosen, title in titles.items():
        yield f"\nOwn runs: {title}; mean error of the other runs before > after, said"
        yield f"{'stack':<62}{'models':>8}" + "".join(f"{runs:>20}" for runs in (1, *RUNS))
        for name, models in dict.fromkeys((one.stack, one.models) for one in found):
            key = (name, models, chosen)
            of_stack = {one.runs: one for one in found if (one.stack, one.models, one.chosen) == key}
            if of_stack:
                yield f"{name[:60]:<62}{models:>8}" + "".join(_cell(of_stack.get(runs)) for runs in (1, *RUNS))
    yield f"\n{'over stacks':<16}{'runs':>5}{'stacks':>8}{'before':>8}{'after':>8}{'ratio':>8}{'quartiles':>16}"
    for one in worths(found):
        yield (
            f"{one.models + ', ' + one.chosen:<16}{one.runs:>5}{one.stacks:>8}{one.before:>8.1%}{one.after:>8.1%}"
            f"{one.ratio:>8.2f}{f'{one.quarter:.2f} to {one.three_quarters:.2f}':>16}"
        )
    yield f"\n{'any runs':<16}{'stacks':>8}  worse in the median; in the mean; said not within {MOST_OFF:g} times"
    for runs in RUNS:
        same = [one for one in found if (one.chosen, one.runs) == ("any", runs)]
        of = (worse(same), [one for one in same if one.after > one.before], misjudged(same))
        yield f"{runs:<16}{len(same):>8}  " + "; ".join(", ".join(_name(one) for one in some) or "none" for some in of)


MOST_OFF = 1.5

"""Largest ratio of the error that a calibration says to the one that is seen."""


def worse(found: Sequence[Point]) -> list[Point]:
    """Return points whose other runs are predicted worse than by the catalog, in the median over draws."""
    return [one for one in found if one.median > 1]


def misjudged(found: Sequence[Point]) -> list[Point]:
    """Return points whose error is not the one that the calibration says."""
    return [one for one in found if not 1 / MOST_OFF <= one.said / one.after <= MOST_OFF]


def _name(one: Point) -> str:
    return (
        f"{one.stack[:20]} {one.stack.rpartition(', ')[2]} ({one.after / one.before:.2f}, {one.said / one.after:.2f})"
    )


def exact_lines(exact: Sequence[Point], found: Sequence[Point]) -> Iterator[str]:
    """Exact points beside linear ones."""
    linear = {(one.stack, one.chosen, one.runs): one for one in found}
    yield f"\n{'exact, runs measured first':<62}{'runs':>5}{'before > after':>17}{'ratio':>7}{'linear':>8}"
    for one in exact:
        other = linear[one.stack, one.chosen, one.runs]
        ratios = f"{one.after / one.before:>7.2f}{other.after / other.before:>8.2f}"
        yield f"{one.stack[:60]:<62}{one.runs:>5}{f'{one.before:.1%} > {one.after:.1%}':>17}{ratios}"
    yield f"{'median':<84}{np.median([one.after / one.before for one in exact]):>7.2f}"


def _cell(one: Point | None) -> str:
    return f"{'-':>20}" if one is None else f"{f'{one.before:.1%} > {one.after:.1%}, {one.said:.1%}':>20}"


MOST_ROWS = 50

"""Rows of a stack that are looked at, drawn once: large stacks say little more."""

WEIGHT = 20

"""Rows that a stack counts as, at most."""

FARTHEST = 0.3

"""Logarithm beyond which a row counts as that far off: something else ran, or a formula is missing."""

EXPECTED = (0.05, 0.05, 3.0, 0.03)

"""Deviations of models and layouts, reach, repeat: what is expected before, and where the search begins."""

WIDE = 1.0

"""Standard deviation of the logarithms of what is expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    surprise: Array
    explained: Array
    is_same: Array
    apart: Array


def spread_lines(stacks: Sequence[Stack]) -> Iterator[str]:
    """The deviations by all stacks, and without each source."""
    seen = [(stack.source, _seen(stack)) for stack in stacks]
    yield f"{'without':<60} {'model':>7} {'layout':>7} {'reach':>7} {'repeat':>7}"
    for source in ("", *dict.fromkeys(name for name, _ in seen)):
        numbers = likeliest([one for name, one in seen if name != source])
        yield f"{source[:58] or '(nothing)':<60} " + " ".join(f"{number:>7.3f}" for number in numbers)


def _seen(stack: Stack) -> _Seen:
    chosen = np.sort(np.random.default_rng(0).permutation(len(stack.rows))[:MOST_ROWS])
    rows = [stack.rows[index] for index in chosen]
    reach = stack.slopes[chosen] * priors_of(stack.constants).sigma
    names = np.array([one.facts.model.name for one in rows])
    return _Seen(
        surprise=np.clip(stack.surprise[chosen], -FARTHEST, FARTHEST),
        explained=reach @ reach.T,
        is_same=np.asarray(names[:, None] == names, dtype=np.float64),
        apart=distances(rows),
    )


def likeliest(seen: Sequence[_Seen]) -> list[float]:
    r"""
    Return the deviations of the likeliest surprises of stacks, normal with the covariance of a calibration's design.

    .. math:: \sum_s w_s \left(\tfrac12 r^T K^{-1} r + \tfrac12 \log |K|\right)
    """
    begin = np.log(EXPECTED)

    def cost(logs: Array) -> float:
        model, layout, reach, repeat = np.exp(logs)
        total = float((((logs - begin) / WIDE) ** 2).sum() / 2)
        for one in seen:
            common = one.is_same * (model**2 + layout**2 * np.exp(-one.apart / reach))
            lower = np.linalg.cholesky(one.explained + common + repeat**2 * np.eye(len(common)))
            white = np.linalg.solve(lower, one.surprise)
            share = min(1.0, WEIGHT / len(white))
            total += share * float(white @ white / 2 + np.log(np.diag(lower)).sum())
        return total

    found: list[float] = np.exp(minimize(cost, begin, method="L-BFGS-B").x).tolist()
    return found
