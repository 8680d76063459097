"""Prediction of one row: its job is loaded and its strategy estimated; or the reason that it cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import isfinite

from pydantic import ValidationError

from constraints.rules.physics import fits_in_device_memory
from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from costmodel.memory import seen_bytes
from costmodel.record import record
from costmodel.step.estimate import estimate
from costmodel.strategy import Sharding, Strategy
from costmodel.tables import Facts
from planner.jobs.problem import Problem
from planner.jobs.run_jobs import (
    References,
    RejectedRow,
    Run,
    Unpredictable,
    leaves_out_recompute,
    problem_of,
    replace_unknown_names,
    require_a_step,
    strategy_of,
    unreported_peak_bytes,
)
from planner.measure.runs.plausibility import require_of_the_model, require_plausible, require_possible
from planner.uncertainty.counts import architecture_of, list_gaps
from planner.uncertainty.intervals import Interval, step_interval
from planner.uncertainty.records import strategy_interval


@record(frozen=True, kw_only=True, slots=True)
class Case:
    """
    A row as input of the cost model.

    Parameters
    ----------
    run
        The row.
    problem
        Its job.
    strategy
        Its layout with the framework's defaults.
    is_inferred
        True where it could not have run as stated, and has the recomputation of its framework's recipes.
    """

    run: Run
    problem: Problem
    strategy: Strategy
    is_inferred: bool = False

    @property
    def facts(self) -> Facts:
        """Facts of the job."""
        return self.problem.facts

    @property
    def architecture(self) -> str:
        """``dense``, ``moe`` or ``hybrid``."""
        return architecture_of(self.facts.model)


@record(frozen=True, kw_only=True, slots=True)
class Prediction(Case):
    """
    A row with its prediction.

    Parameters
    ----------
    step_seconds
        Predicted step time.
    device_bytes
        Predicted peak of the fullest device, in total.
    peak_memory_gib
        Predicted peak as the row's ``memory_kind`` would measure it.
    fits
        True where it fits into the device's memory, by the planner's own rule.
    missing
        Features of the row without a formula in the cost model.
    is_silent
        True where the row names neither recomputation nor offload, so that its memory is uncertain.
    """

    step_seconds: float
    device_bytes: float
    peak_memory_gib: float
    fits: bool
    missing: tuple[str, ...]
    is_silent: bool = False

    @property
    def num_layers(self) -> int:
        """Layers of the model that ran."""
        return self.facts.model.num_layers

    @property
    def interval(self) -> Interval:
        """Interval of the measured step time, from errors on comparable runs."""
        gaps = [gap for gap in list_gaps(self.facts, self.strategy) if gap.dimension == "tuning"]
        return step_interval(self.facts.model, self.facts.cluster, step_seconds=self.step_seconds, gaps=gaps)

    @property
    def time_error(self) -> float | None:
        """Predicted over measured step time, minus 1."""
        return None if self.run.step_seconds is None else self.step_seconds / self.run.step_seconds - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, minus 1; None for runs that did not get to their peak."""
        if self.run.peak_memory_gib is None or self.run.kind == "oom":
            return None
        return self.peak_memory_gib / self.run.peak_memory_gib - 1


def predictions(rows: Iterable[Run | RejectedRow], known: References) -> Iterator[Prediction | RejectedRow]:
    """Predict every possible row, and give the reason for each of the others; in the order of the file."""
    for row in rows:
        yield row if isinstance(row, RejectedRow) else _predict_row(row, known)


def cases(rows: Iterable[Run | RejectedRow], known: References) -> Iterator[Case | RejectedRow]:
    """Yield the case of every predictable row, and the reason for each of the others; in the order of the file."""
    for row in rows:
        yield row if isinstance(row, RejectedRow) else _case_or_reason(row, known)


def find_unreported_recompute(one: Case) -> RejectedRow | None:
    """
    Return the reason to exclude a row from fits that could not run without recomputation or offload, but names neither.

    Its step time is that of an unknown recomputation.
    """
    if one.is_inferred:
        problem = "recompute is empty, and without any the layout does not fit"
    else:
        peak = unreported_peak_bytes(one.run, one.facts, one.strategy)
        if peak is None:
            return None
        needed, memory = (size / GIB_BYTES for size in (peak, one.facts.cluster.device.memory_bytes))
        problem = f"recompute is empty, and without any the layout takes {needed:.0f} of {memory:.0f} GiB"
    return not_predicted(
        one.run, f"{problem}: name the recomputation and offload that ran ('none' if there was none).", is_refused=True
    )


def _predict_row(run: Run, known: References) -> Prediction | RejectedRow:
    found = _case_or_reason(run, known)
    if isinstance(found, RejectedRow):
        return found
    prediction = predict(found, known)
    if isfinite(prediction.step_seconds + prediction.peak_memory_gib):
        return prediction
    reason = f"the measured operator times of '{run.device}' do not cover the shapes of this layout"
    return not_predicted(run, reason, is_refused=False)


def _case_or_reason(run: Run, known: References) -> Case | RejectedRow:
    try:
        return case(run, known)
    except Unpredictable as error:
        return not_predicted(run, str(error), is_refused=False)
    except SpecError as error:
        return not_predicted(run, str(error), is_refused=True)
    except ValidationError as error:
        first = error.errors()[0]
        return not_predicted(run, f"{error.title}.{first['loc'][0]}: {first['msg']}.", is_refused=True)


def not_predicted(run: Run, reason: str, *, is_refused: bool) -> RejectedRow:
    """Return a row with the reason that it is not predicted."""
    return RejectedRow(
        id=run.id,
        reason=reason,
        is_usable=True,
        is_refused=is_refused,
        step_seconds=run.step_seconds,
        peak_memory_gib=run.peak_memory_gib,
    )


def case(run: Run, known: References) -> Case:
    """
    Build one row's job and strategy.

    Raises
    ------
    SpecError
        If the row is wrong.
    Unpredictable
        If the cost model has no formula for it.
    """
    require_a_step(run)
    problem = problem_of(run, known)
    require_of_the_model(run, problem.facts)
    require_plausible(run, problem.facts)
    run = replace_unknown_names(run, problem.facts.cluster)
    strategy, is_inferred = strategy_of(run, problem)
    require_possible(problem.facts, strategy)
    return Case(run=run, problem=problem, strategy=strategy, is_inferred=is_inferred)


def state_interval(one: Case, step_seconds: float) -> Interval:
    """Return the interval that ``planner estimate`` states of a case's measured step, for some predicted seconds."""
    return strategy_interval(one.facts, replace(estimate(one.facts, one.strategy), step_seconds=step_seconds))


def find_missed_interval(one: Case, *predicted_seconds: float) -> Interval | None:
    """Return the stated interval of the first prediction where a case's measured step lies in that of none."""
    stated = [state_interval(one, seconds) for seconds in predicted_seconds]
    measured = one.run.step_seconds or 0.0
    return None if any(each.low_seconds <= measured <= each.high_seconds for each in stated) else stated[0]


def predict(one: Case, known: References) -> Prediction:
    """Predict one row, as ``planner estimate`` does."""
    run, facts = one.run, known.facts(one.problem)
    estimated = estimate(facts, one.strategy)
    device_bytes = estimated.device_bytes
    return Prediction(
        run=run,
        problem=one.problem,
        strategy=one.strategy,
        is_inferred=one.is_inferred,
        step_seconds=estimated.step_seconds,
        device_bytes=device_bytes,
        peak_memory_gib=seen_bytes(facts.cluster.device, device_bytes, run.memory_kind, one.strategy) / GIB_BYTES,
        fits=bool(fits_in_device_memory(facts.cluster, device_bytes=device_bytes, memory_headroom_bytes=0.0)),
        missing=tuple(_missing(one)),
        is_silent=one.is_inferred or leaves_out_recompute(run, one.strategy),
    )


def _missing(one: Case) -> Iterator[str]:
    """Yield features of a row without a formula in the cost model, in the words of the report."""
    run, strategy = one.run, one.strategy
    yield from run.not_modelled
    yield from run.doubts
    if strategy.sharding == Sharding.WEIGHTS and strategy.pp > 1:
        yield "sharded weights in a pipeline: outside the rules"
    if strategy.layout is None and one.facts.model.num_layers % (strategy.pp * strategy.vpp):
        yield "uneven stages: in the cost model's own layout"
    if strategy.ep > 1 and run.get("strategy.token_dispatcher") is None:
        yield "token dispatcher not stated: the framework's default"
