"""The error of a stack's other runs before and after a calibration with some of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.accuracy.rows import share_work
from benchmarks.learning_curve.stacks import Stack
from benchmarks.output import format_generated
from costmodel.record import record
from planner.measure.calibrate.advice import Discrepancy, distances, greedy, joint_covariance
from planner.measure.calibrate.calibrate import fold_rows, run_weights, stack_fit
from planner.measure.calibrate.cases import Array, Predictor, log_measured_seconds, seconds_of
from planner.measure.calibrate.constants import replace_constants
from planner.measure.calibrate.fit import Fit, fit_as_far_as_useful, mean_error, priors_of
from planner.measure.calibrate.wording import Worth, models_of

RUNS = (2, 4, 8, 16)

FEWEST_OTHERS = 4

"""Runs of a stack that must be left to be predicted."""

MOST_OTHERS = 40

"""Of these, evenly over the table, what is predicted anew."""

Way = Literal["first", "any"]


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
        Own runs.
    before, after
        Mean absolute errors of its other runs' step times.
    said
        Error that the calibration says to expect.
    """

    stack: str
    models: Literal["dense", "experts"]
    chosen: Way
    runs: int
    before: float
    after: float
    said: float = 0.0


def points(stacks: Sequence[Stack], *, num_draws: int) -> Iterator[Point]:
    """
    The learning curve of every stack, calibrated by the fit of ``planner calibrate``, linear in the logarithms.

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
            yield from _point(stack, "first", runs, [order[:runs]])
            yield from _point(stack, "any", runs, [one[:runs] for one in draws])


def advised(stack: Stack) -> list[int]:
    """Rows in the order in which ``planner calibrate`` would have them measured."""
    return greedy(joint_covariance(stack.rows, stack.slopes, priors_of(stack.constants).sigma))[0]


def _point(stack: Stack, chosen: Way, runs: int, choices: Sequence[list[int]]) -> Iterator[Point]:
    errors = []
    for own in choices:
        others = stack.others(own)
        if len(own) == runs and len(others) >= FEWEST_OTHERS:
            change, said = linear_change(stack, own)
            errors.append([*(mean_error(logs[others]) for logs in (-stack.surprise, change - stack.surprise)), said])
    if errors:
        before, after, said = np.mean(errors, axis=0).tolist()
        models = models_of(stack.rows)
        yield Point(stack=stack.name, models=models, chosen=chosen, runs=runs, before=before, after=after, said=said)


def exact_points(stacks: Sequence[Stack], runs: int, num_processes: int) -> list[Point]:
    """The points of runs measured first by the very functions of ``planner calibrate`` and ``planner estimate``."""

    def work(index: int) -> list[Point]:
        return list(_exact(stacks[index], runs))

    return [one for found in share_work(work, len(stacks), num_processes) for one in found]


def _exact(stack: Stack, runs: int) -> Iterator[Point]:
    own = advised(stack)[:runs]
    others = stack.others(own)
    if len(own) < runs or len(others) < FEWEST_OTHERS:
        return
    predictor, _, found, _ = stack_fit([stack.rows[index] for index in own], stack.known, stack.base)
    fitted = replace_constants(stack.known, predictor.constants, np.exp(found.logs))
    evenly = sorted({*np.linspace(0, len(others) - 1, MOST_OTHERS).astype(int).tolist()})
    rest = [stack.rows[others[index]] for index in evenly]
    times = log_measured_seconds(rest)
    before, after = (
        mean_error(np.log([seconds_of(one, known) for one in rest]) - times) for known in (stack.known, fitted)
    )
    yield Point(stack=stack.name, models=models_of(stack.rows), chosen="first", runs=runs, before=before, after=after)


@record(frozen=True, kw_only=True, slots=True)
class Linear(Predictor):
    """Own runs of a stack, linear in the logarithms of the constants."""

    slopes: Array
    surprise: Array

    @property
    def start(self) -> Fit:
        """The prediction before the fit."""
        return Fit(logs=priors_of(self.constants).mean, jacobian=self.slopes, residuals=-self.surprise)

    def logarithms(self, logs: Array) -> Array:
        """Logarithms of the rows' predicted seconds."""
        return log_measured_seconds(self.cases) - self.surprise + self.slopes @ (logs - self.start.logs)

    def estimate_logarithms(self, logs: Array, rows: NDArray[np.bool_] | None = None) -> Array:
        """Return the logarithms of predicted seconds of all or some rows."""
        return np.asarray(self.logarithms(logs)[slice(None) if rows is None else rows])

    def jacobian(self, logs: Array, before: Array | None = None) -> Array:
        """Derivatives, everywhere the same."""
        return self.slopes


def linear_change(stack: Stack, own: Sequence[int]) -> tuple[Array, float]:
    """Return what a calibration with own runs adds to the logarithms of all rows of a stack, and the error it says."""
    timed = [stack.rows[index] for index in own]
    within = [replace(one, lower=min(one.lower, one.prior), upper=max(one.upper, one.prior)) for one in stack.constants]
    linear = Linear(
        cases=timed,
        constants=within,
        known=stack.known,
        slopes=stack.slopes[own],
        surprise=stack.surprise[own],
    )
    found, left_out = fit_as_far_as_useful(linear, linear.start, run_weights, folds=fold_rows(timed))
    return np.asarray(stack.slopes @ (found.logs - linear.start.logs)), mean_error(left_out)


# --- over stacks -------------------------------------------------------------------------------------------
def worths(found: Sequence[Point]) -> Iterator[Worth]:
    """Medians and quartiles over stacks, by models, choice and number of runs."""
    for models in ("all", "dense", "experts"):
        for chosen in ("first", "any"):
            for runs in RUNS:
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


def document(found: Sequence[Point]) -> str:
    """``planner/measure/calibrate/learning_curve.json``."""
    source = (
        "python -m benchmarks.learning_curve --write: stacks of benchmarks/measured_runs, each predicted by a fit "
        "without its source, calibrated with own runs, error on its other runs"
    )
    plain = {"source": source, "worth": [asdict(one) for one in worths(found)]}
    return format_generated(plain)


def lines(found: Sequence[Point]) -> Iterator[str]:
    """Tables: each stack; medians over stacks."""
    titles = {"first": "runs that the advice measures first", "any": "any runs, mean over draws"}
    for chosen, title in titles.items():
        yield f"\nOwn runs: {title}; mean error of the other runs before > after"
        yield f"{'stack':<62}{'models':>8}" + "".join(f"{runs:>16}" for runs in RUNS)
        for name in dict.fromkeys(one.stack for one in found):
            of_stack = {one.runs: one for one in found if (one.stack, one.chosen) == (name, chosen)}
            if of_stack:
                models = next(iter(of_stack.values())).models
                yield f"{name[:60]:<62}{models:>8}" + "".join(_cell(of_stack.get(runs)) for runs in RUNS)
    yield f"\n{'over stacks':<16}{'runs':>5}{'stacks':>8}{'before':>8}{'after':>8}{'ratio':>8}{'quartiles':>16}"
    for one in worths(found):
        yield (
            f"{one.models + ', ' + one.chosen:<16}{one.runs:>5}{one.stacks:>8}{one.before:>8.1%}{one.after:>8.1%}"
            f"{one.ratio:>8.2f}{f'{one.quarter:.2f} to {one.three_quarters:.2f}':>16}"
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
    return f"{'-':>16}" if one is None else f"{f'{one.before:.1%} > {one.after:.1%}':>16}"


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
        found = likeliest([one for name, one in seen if name != source])
        numbers = (found.model, found.layout, found.reach, found.repeat)
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


def likeliest(seen: Sequence[_Seen]) -> Discrepancy:
    r"""
    Maximise the likelihood of the surprises of stacks, normal with the covariance of a calibration's design.

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

    model, layout, reach, repeat = np.exp(minimize(cost, begin, method="L-BFGS-B").x).tolist()
    return Discrepancy(model=model, layout=layout, reach=reach, repeat=repeat)
