"""One row predicted: step time, memory, whether it fits; or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import isfinite

from pydantic import ValidationError

from constraints.memory import fits_in_device_memory
from costmodel.errors import SpecError
from costmodel.flops import model_flops_per_token
from costmodel.layouts import strategy_cost
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.calibration.intervals import Interval, step_interval
from planner.runs.architectures import Unpredictable, architecture_of
from planner.runs.facts import References, facts_of
from planner.runs.layouts import not_modelled, require_a_step, strategy_of, variant_of
from planner.runs.software import software_of
from planner.runs.table import NotRun, Run

GIB = 2**30

LOWEST_UTILIZATION = 0.001
"""Model FLOP/s over the peak below which a step time cannot be in seconds; the slowest honest rows reach 0.02."""

MEMORY_TOLERANCE = 1.05
IMPOSSIBLE_MEMORY = 1.2
"""Predicted peak over the device's memory from which on a run did something that its row does not say: the software
whose memory is predicted worst is off by 18 % in the mean."""

LOWEST_MEMORY_FRACTION = 1 / 500
"""Of the device's memory: a peak outside of these is not in GiB."""

WITHOUT_DRIVER = ("reserved",)
"""Memory kinds that see the framework's allocator alone."""

WITHOUT_RUNTIME = ("allocated", "unspecified")
"""Memory kinds that do not see what driver, communication library and allocator take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """
    A row and what the cost model says about it.

    Parameters
    ----------
    run
        The row.
    architecture
        ``dense``, ``moe`` or ``hybrid``.
    facts
        What ran on what.
    strategy
        The row's layout with the framework's defaults.
    step_seconds, peak_memory_gib
        Predicted; the memory as the row's ``memory_kind`` would see it.
    fits
        Whether it fits into the device's memory, by the planner's own rule.
    variant
        What of the layout the strategy cannot express: schedule, head, recomputed modules, offloaded layers.
    missing
        What of the row the cost model has no formula for.
    """

    run: Run
    architecture: str
    facts: Facts
    strategy: Strategy
    step_seconds: float
    peak_memory_gib: float
    fits: bool
    variant: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def num_layers(self) -> int:
        """Of the model that ran."""
        return self.facts.model.num_layers

    @property
    def interval(self) -> Interval:
        """Where the measured step time lies, by the errors on comparable runs."""
        return step_interval(self.facts.model, self.facts.cluster, step_seconds=self.step_seconds)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """
    A row as the cost model takes it.

    Parameters
    ----------
    run
        The row.
    facts, strategy
        What it means.
    """

    run: Run
    facts: Facts
    strategy: Strategy

    @property
    def architecture(self) -> str:
        """``dense``, ``moe`` or ``hybrid``."""
        return architecture_of(self.facts.model)


def predictions(rows: Iterable[Run | NotRun], known: References) -> Iterator[Prediction | NotRun]:
    """Predict every row that can be, and give the reason for each of the others; in the order of the file."""
    for row in rows:
        yield row if isinstance(row, NotRun) else _predicted(row, known)


def cases(rows: Iterable[Run | NotRun], known: References) -> Iterator[Case | NotRun]:
    """Every row that can be predicted, and the reason for each of the others; in the order of the file."""
    for row in rows:
        yield row if isinstance(row, NotRun) else _case_or_reason(row, known)


def left_unsaid(one: Case) -> NotRun | None:
    """
    The reason why nothing is fitted to a row that names neither recomputation nor offload, and could not run without.

    The step time is that of what really ran, which its row does not say.
    """
    peak = _impossible_bytes(one.run, one.facts, strategy_of(one.run, one.facts))
    if peak is None:
        return None
    memory = one.facts.cluster.device.memory_bytes
    reason = (
        f"recompute is empty, and without any the layout takes {peak / GIB:.0f} of {memory / GIB:.0f} GiB: say what "
        "was recomputed or offloaded ('none', if nothing)."
    )
    return _not_predicted(one.run, reason, is_refused=True)


def _impossible_bytes(run: Run, facts: Facts, strategy: Strategy) -> float | None:
    """The peak of a row that names neither recomputation nor offload, where it cannot have run so."""
    if run.recompute or run.offload or run.kind == "oom":
        return None
    peak = float(strategy_cost(facts, strategy).device_bytes)
    return peak if peak > IMPOSSIBLE_MEMORY * facts.cluster.device.memory_bytes else None


def _as_it_fits(run: Run, facts: Facts, strategy: Strategy) -> Strategy:
    """
    The strategy of a row, with what its framework recomputes where it is silent and cannot have run without.

    That is inferred, not said: nothing is fitted to it (:func:`left_unsaid`).
    """
    needed = software_of(run).recompute_of_need
    if needed is None or facts.model.has_experts or _impossible_bytes(run, facts, strategy) is None:
        return strategy
    return replace(strategy, recompute=needed)


def _predicted(run: Run, known: References) -> Prediction | NotRun:
    found = _case_or_reason(run, known)
    if isinstance(found, NotRun):
        return found
    prediction = predict(found)
    if isfinite(prediction.step_seconds + prediction.peak_memory_gib):
        return prediction
    reason = f"the measured operator times of '{run.gpu}' do not cover the shapes of this layout"
    return _not_predicted(run, reason, is_refused=False)


def _case_or_reason(run: Run, known: References) -> Case | NotRun:
    try:
        return case(run, known)
    except Unpredictable as error:
        return _not_predicted(run, str(error), is_refused=False)
    except SpecError as error:
        return _not_predicted(run, str(error), is_refused=True)
    except ValidationError as error:
        first = error.errors()[0]
        return _not_predicted(run, f"{error.title}.{first['loc'][0]}: {first['msg']}.", is_refused=True)


def _not_predicted(run: Run, reason: str, *, is_refused: bool) -> NotRun:
    return NotRun(
        id=run.id,
        reason=reason,
        is_usable=True,
        is_refused=is_refused,
        step_seconds=run.step_seconds,
        peak_memory_gib=run.peak_memory_gib,
    )


def case(run: Run, known: References) -> Case:
    """
    One row's facts and strategy.

    Raises
    ------
    SpecError
        If the row is wrong.
    Unpredictable
        If the cost model has no formula for it.
    """
    require_a_step(run)
    facts = facts_of(run, known)
    _require_plausible(run, facts)
    return Case(run=run, facts=facts, strategy=_as_it_fits(run, facts, strategy_of(run, facts)))


def predict(one: Case) -> Prediction:
    """Predict one row."""
    run, facts = one.run, one.facts
    ours = strategy_cost(facts, one.strategy)
    device_bytes = float(ours.device_bytes)
    return Prediction(
        run=run,
        architecture=one.architecture,
        facts=facts,
        strategy=one.strategy,
        step_seconds=float(ours.step_seconds),
        peak_memory_gib=_seen_bytes(run, facts, device_bytes) / GIB,
        fits=bool(fits_in_device_memory(facts.cluster, device_bytes=device_bytes, memory_headroom_bytes=0.0)),
        variant=variant_of(run),
        missing=not_modelled(run, facts, one.strategy),
    )


def _seen_bytes(run: Run, facts: Facts, device_bytes: float) -> float:
    """The peak as the row's kind of measurement sees it."""
    profile = facts.cluster.device.profile
    if run.memory_kind in WITHOUT_RUNTIME:
        return (device_bytes - profile.runtime_bytes) / (1 + profile.retention.fragmentation)
    if run.memory_kind in WITHOUT_DRIVER:
        return device_bytes - profile.runtime_bytes
    return device_bytes


def _require_plausible(run: Run, facts: Facts) -> None:
    """Measurements are possible on the device: units that are off by a thousand are not."""
    device, workload = facts.cluster.device, facts.workload
    if run.step_seconds is not None:
        tokens = workload.global_batch_size * workload.sequence_length
        flops = tokens * model_flops_per_token(facts.model, workload.sequence_length, "causal")
        peak = device.peak_flops[workload.precision.compute] * facts.cluster.num_devices
        used = flops / run.step_seconds / peak
        if not LOWEST_UTILIZATION <= used <= 1:
            problem = f"{run.step_seconds:g} s would use {used:.3g} of the devices' peak. Is it in seconds?"
            raise SpecError("step_time_s", problem)
    if run.peak_memory_gib is not None:
        used = run.peak_memory_gib * GIB / device.memory_bytes
        if not LOWEST_MEMORY_FRACTION <= used <= MEMORY_TOLERANCE:
            problem = f"{run.peak_memory_gib:g} would be {used:.3g} of the device's memory. Is it in GiB?"
            raise SpecError("peak_memory_gib", problem)
