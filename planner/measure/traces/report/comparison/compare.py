"""The planner's step of a job, compared with the traced one part by part, on the pipeline ranks of the traces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.record import record
from costmodel.step.estimate import rank_breakdowns
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem
from planner.measure.traces.events import Trace
from planner.measure.traces.iterations import Iteration, is_whole, iterations
from planner.measure.traces.report.comparison.traced import (
    KINDS,
    MODEL_PARTS,
    OTHER,
    PlannedParts,
    TracedParts,
    device_doubt,
    has_other_layers,
    name_device,
    names_by_size,
    split_planned_step,
    stage_operators,
)
from planner.measure.traces.report.extraction import NANOSECONDS
from planner.measure.traces.report.replay.text import printable
from planner.report.console import sections_text
from planner.report.records import finite
from planner.report.section import NOTHING, Screen, Section, number_rows
from planner.results import Plan
from planner.uncertainty.intervals import strategy_operators
from planner.verbs.plan import estimate


@record(frozen=True, slots=True)
class ComparedPart:
    """
    One part of both steps.

    Parameters
    ----------
    name
        Name of the part.
    predicted_seconds, traced_seconds
        Seconds that it adds to each step; all parts sum to the step.
    predicted_hidden_seconds, traced_hidden_seconds
        Seconds of communication overlapped with computation.
    difference_seconds
        Seconds by which the prediction is longer.
    """

    name: str
    predicted_seconds: float
    traced_seconds: float
    predicted_hidden_seconds: float
    traced_hidden_seconds: float
    difference_seconds: float


@record(frozen=True, kw_only=True, slots=True)
class ComparedRank:
    """
    A traced rank.

    Parameters
    ----------
    rank
        Its number; None where its trace does not record it.
    stage
        Its pipeline rank in the job, from 0.
    iteration, num_iterations
        Name of the compared iteration, and number of iterations in the trace.
    traced_seconds
        Seconds of that iteration.
    """

    rank: int | None
    stage: int
    iteration: str
    num_iterations: int
    traced_seconds: float


@record(frozen=True, kw_only=True, slots=True)
class ComparedStep:
    """
    A job's step as planned and as traced.

    Parameters
    ----------
    job
        Name of the job.
    predicted_seconds, traced_seconds
        The planner's step, and the traced one.
    error
        Predicted over traced, less 1.
    num_ranks, ranks
        Number of traced ranks; each of them, with its iteration.
    num_stages
        Pipeline ranks of the job.
    device, traced_device
        Device of the job, and device of the traces.
    operator_times
        Sources of the planner's operator times.
    parts
        In the order of a step; each side is the mean over the traced ranks.
    doubts
        Sentences on missing information in the traces, and on parts that could not be compared.
    is_other_job
        True if next to nothing of the traced computation can belong to the job: the difference says nothing.
    """

    job: str
    predicted_seconds: float
    traced_seconds: float
    error: float
    num_ranks: int
    ranks: tuple[ComparedRank, ...]
    num_stages: int
    device: str
    traced_device: str
    operator_times: tuple[str, ...]
    parts: tuple[ComparedPart, ...]
    doubts: tuple[str, ...]
    is_other_job: bool = False


OTHER_JOB = (
    "The trace is of another job: next to none of its computation has sizes of this one, or it is that of an image "
    "model. The difference of the steps says nothing. Pass the job that was recorded."
)
"""The sentence on a trace that the job cannot explain."""

TOO_SHORT = (
    "The trace is of another job, or of a part of a step: {device} at its peak takes {least:,.3g} s for the FLOPs of "
    "this job's step, the trace {traced:,.3g} s. The difference says nothing. Pass the job that was recorded."
)
"""The sentence on a trace that is shorter than any step of the job, whether it has sizes or none."""


def compare_with_traces(problem: Problem, traces: Sequence[Trace]) -> ComparedStep:
    """
    Compare the planner's step of a job with the traced one.

    Both are of the same ranks: the planner's parts are those of the traced pipeline ranks. All ranks take the same
    step, but a rank without the head, or with fewer layers, computes less of it and waits longer. Traced operators are
    identified by their sizes: those of the job's operators under its strategy. Several operators of equal size share a
    traced time, in proportion to their number.

    Parameters
    ----------
    problem
        A job with its strategy.
    traces
        Traces of ranks that ran it.

    Raises
    ------
    SpecError
        If the job has no strategy, or a trace has no whole iteration or no rank.
    """
    report = estimate(problem, {}, searched=False)
    facts, strategy = report.plan.facts, report.plan.strategy
    stages = [_stage(trace, strategy) for trace in traces]
    breakdowns = rank_breakdowns(facts, strategy)
    planned = {stage: split_planned_step(facts, strategy, breakdowns[stage], stage) for stage in dict.fromkeys(stages)}
    own = {stage: names_by_size(stage_operators(facts, strategy, stage)) for stage in planned}
    whole_model = names_by_size(strategy_operators(facts, strategy))
    chosen = _choose_iterations([_whole_iterations(trace) for trace in traces])
    traced = [
        TracedParts(trace, iteration, (own[stage], whole_model), strategy)
        for trace, iteration, stage in zip(traces, chosen, stages, strict=True)
    ]
    layers, m = [rank.num_layers for rank in report.plan.estimate.ranks], report.plan.estimate.num_microbatches
    said = [
        (
            *trace.doubts,
            *_doubts(trace, strategy),
            *_doubt_layers(of_rank, layers[stage], m, facts.model),
            *of_rank.doubts(),
        )
        for trace, of_rank, stage in zip(traces, traced, stages, strict=True)
    ]
    other = OTHER_JOB if any(one.is_of_another_job for one in traced) else ""
    other = other or _find_short(report.plan, traces, chosen)
    differs = device_doubt(traces, facts.cluster.device)
    if differs and not other:
        differs = f"{differs} Most of the difference comes from that."
    parts = _parts([planned[stage] for stage in stages], traced)
    predicted, measured = sum(one.predicted_seconds for one in parts), sum(one.traced_seconds for one in parts)
    return ComparedStep(
        job=problem.name,
        predicted_seconds=predicted,
        traced_seconds=measured,
        error=predicted / measured - 1,
        num_ranks=len(traces),
        ranks=tuple(map(_rank, traces, stages, chosen)),
        num_stages=strategy.pp,
        device=facts.cluster.device.name,
        traced_device=name_device(traces),
        operator_times=tuple(dict.fromkeys(report.conventions.operator_times.values())),
        parts=parts,
        doubts=(
            *((other,) if other else ()),
            *((differs,) if differs else ()),
            *_merge_doubts(traces, said),
        ),
        is_other_job=bool(other),
    )


def _find_short(plan: Plan, traces: Sequence[Trace], chosen: Sequence[Iteration]) -> str:
    """Return a sentence if a device that was traced cannot compute the job's step in the traced time; else ""."""
    named = catalog.find_unique_device(name_device(traces))
    devices = [named.device] if named else [name for name in catalog.devices() if catalog.device(name).architecture]
    fastest = max((catalog.device(name) for name in devices), key=lambda device: max(device.peak_flops.values()))
    least = plan.model_flops_per_second_per_device * plan.step_seconds / max(fastest.peak_flops.values())
    traced = float(np.mean([one.duration for one in chosen])) / NANOSECONDS
    return TOO_SHORT.format(device=fastest.name, least=least, traced=traced) if traced < least else ""


def _parts(planned: Sequence[PlannedParts], traced: Sequence[TracedParts]) -> tuple[ComparedPart, ...]:
    """Average both sides over the ranks, for all parts that either has."""
    predicted, hidden = _mean(exposed for exposed, _ in planned), _mean(hidden for _, hidden in planned)
    spent, traced_hidden = _mean(one.exposed for one in traced), _mean(one.hidden for one in traced)
    found = []
    for name in (*KINDS, *dict.fromkeys(MODEL_PARTS.values()), OTHER):
        seconds = predicted.get(name, 0.0), spent.get(name, 0.0) / NANOSECONDS
        overlapped = hidden.get(name, 0.0), traced_hidden.get(name, 0.0) / NANOSECONDS
        if any((*seconds, *overlapped)):
            found.append(ComparedPart(name, *seconds, *overlapped, seconds[0] - seconds[1]))
    return tuple(found)


def _mean(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    several = list(ranks)
    names = dict.fromkeys(name for one in several for name in one)
    return {name: float(np.mean([one.get(name, 0.0) for one in several])) for name in names}


# --- which rank, which iteration ---------------------------------------------------------------------------
def _stage(trace: Trace, strategy: Strategy) -> int:
    """Return the pipeline rank of a trace: stages are the outermost groups of ranks, as frameworks number them."""
    if strategy.pp == 1:
        return 0
    if trace.rank is None:
        raise SpecError(
            trace.source,
            f"does not record its rank, and the job has {strategy.pp} pipeline stages.",
            "PyTorch writes it where torch.distributed is initialised. With several files put it into their names: "
            "'rank3.json.gz'.",
        )
    num_ranks = trace.world_size or _num_ranks(strategy)
    if num_ranks % strategy.pp or trace.rank >= num_ranks:
        raise SpecError(
            trace.source,
            f"is of rank {trace.rank} of {num_ranks}, which does not fit the job's {strategy.pp} pipeline stages.",
            "Give the job with the strategy that was traced.",
        )
    return trace.rank // (num_ranks // strategy.pp)


def _num_ranks(strategy: Strategy) -> int:
    return strategy.tp * strategy.cp * strategy.dp * strategy.pp


def _rank(trace: Trace, stage: int, iteration: Iteration) -> ComparedRank:
    return ComparedRank(
        rank=trace.rank,
        stage=stage,
        iteration=iteration.name,
        num_iterations=len(iterations(trace)),
        traced_seconds=iteration.duration / NANOSECONDS,
    )


def _whole_iterations(trace: Trace) -> tuple[Iteration, ...]:
    every = iterations(trace)
    whole = tuple(one for one in every if is_whole(trace, one))
    if not any(one.duration for one in every):
        raise SpecError(trace.source, "has no iteration that takes any time.")
    if not whole:
        raise SpecError(
            trace.source,
            f"ends inside of {every[0].name}, and has no other iteration: its file is broken.",
            "Copy it again, or record again and wait until the profiler has written it.",
        )
    return tuple(one for one in whole if one.duration)


def _choose_iterations(several: Sequence[tuple[Iteration, ...]]) -> list[Iteration]:
    """Choose one iteration for all ranks: the one of median mean length, the shorter one of two."""
    by_name = [{one.name: one for one in own} for own in several]
    common = [name for name in by_name[0] if all(name in own for own in by_name)]
    if not common:
        return [median_iteration(own) for own in several]
    means = {name: np.mean([own[name].duration for own in by_name]) for name in common}
    name = sorted(common, key=lambda one: means[one])[(len(common) - 1) // 2]
    return [own[name] for own in by_name]


def median_iteration(steps: Sequence[Iteration]) -> Iteration:
    """Return the iteration of median length, the shorter one of two."""
    return sorted(steps, key=lambda one: one.duration)[(len(steps) - 1) // 2]


# --- doubts ------------------------------------------------------------------------------------------------
def _doubts(trace: Trace, strategy: Strategy) -> Iterator[str]:
    """Yield conflicts of a rank's trace with the job, and omitted iterations."""
    if trace.world_size not in (None, _num_ranks(strategy)):
        yield f"The trace's job has {trace.world_size} ranks, the strategy {_num_ranks(strategy)}."
    cut = [one.name for one in iterations(trace) if not is_whole(trace, one)]
    if cut:
        yield f"The file ends inside of {', '.join(cut)}, which is left out."


def _doubt_layers(traced: TracedParts, num_layers: int, num_microbatches: int, model: Model) -> Iterator[str]:
    found = traced.summary
    if has_other_layers(found, [num_layers], num_microbatches, model):
        yield (
            f"The trace shows {found.num_layers} x {found.num_microbatches} layers x micro-batches in an iteration (by "
            f"{found.layers_from}), the job has {num_layers} x {num_microbatches} on that rank. If it is another job, "
            "most differences come from that."
        )


def _merge_doubts(traces: Sequence[Trace], said: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield each sentence once, with its ranks where it does not apply to all."""
    for sentence in dict.fromkeys(one for own in said for one in own):
        ranks = [trace.rank for trace, own in zip(traces, said, strict=True) if sentence in own]
        if len(ranks) == len(traces) or None in ranks:
            yield sentence
        else:
            yield f"Rank {', '.join(map(str, ranks))}: {sentence}"


HEADER = ("part", "planner", "trace", "difference", "of the step", "hidden: planner", "hidden: trace")


def write_comparison_text(found: ComparedStep, screen: Screen) -> str:
    """Write the comparison as text: its ranks and devices, a table, the largest difference, and doubts."""
    return sections_text(_sections(found), screen)


def _sections(found: ComparedStep) -> Iterator[Section]:
    planned, traced = (f"{1e3 * one:,.2f} ms" for one in (found.predicted_seconds, found.traced_seconds))
    verdict = "not comparable, the trace is of another job" if found.is_other_job else f"{found.error:+.1%}"
    yield Section(
        title=f"{printable(found.job)}: the planner's step and the traced one",
        rows=(
            ("answer", f"{planned} planned, {traced} traced: {verdict}"),
            ("ranks", _ranks(found)),
            ("iteration", _iterations(found.ranks)),
            ("device", f"{found.device} in the job, {printable(found.traced_device)} in the trace"),
            *((("operator times", ", ".join(found.operator_times)),) if found.operator_times else ()),
        ),
    )
    yield _table(found)
    if found.doubts:
        yield Section(title="Missing, inferred or not comparable", rows=number_rows(map(printable, found.doubts)))


def _ranks(found: ComparedStep) -> str:
    """Describe the ranks, their stages, and the averaging of the columns."""
    if found.ranks[0].rank is None:
        return "one, whose number was not recorded; both columns are of it"
    several, stages = len(found.ranks) > 1, sorted({one.stage for one in found.ranks})
    text = ", ".join(str(one.rank) for one in found.ranks)
    if found.num_stages > 1:
        text += (
            f", on pipeline stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))} of 0 to {found.num_stages - 1}"
        )
    return f"{text}; both columns are {'means over them' if several else 'of it'}"


def _iterations(ranks: Sequence[ComparedRank]) -> str:
    """Describe the iteration of each rank."""
    names = list(dict.fromkeys(one.iteration for one in ranks))
    number = max(one.num_iterations for one in ranks)
    which = f"{', '.join(map(printable, names))}, of median length of {number}" if number > 1 else printable(names[0])
    return which + ("" if len(ranks) == 1 or len(names) > 1 else ", the same on all ranks")


def _table(found: ComparedStep) -> Section:
    seconds = found.predicted_seconds, found.traced_seconds
    whole = ComparedPart("step", *seconds, 0.0, 0.0, seconds[0] - seconds[1])
    rows = [_row(one, found.traced_seconds) for one in (*found.parts, whole)]
    is_hidden = any(one.predicted_hidden_seconds or one.traced_hidden_seconds for one in found.parts)
    columns = len(HEADER) if is_hidden else len(HEADER) - 2
    worst = max(found.parts, key=lambda one: abs(one.difference_seconds))
    notes = [
        f"They differ most in {worst.name}: {worst.difference_seconds / found.traced_seconds:+.1%} of the traced step."
    ]
    if is_hidden:
        notes.append("Hidden: communication overlapped with computation, which adds nothing to the step.")
    if any(one.name == OTHER and one.traced_seconds for one in found.parts):
        notes.append("Other: traced computation outside of the job's operators with sizes.")
    return Section(
        title="Breakdown of the step, ms",
        header=HEADER[:columns],
        rows=tuple(row[:columns] for row in rows),
        notes=tuple(notes),
    )


def _row(one: ComparedPart, step: float) -> tuple[str, ...]:
    hidden = (one.predicted_hidden_seconds, one.traced_hidden_seconds)
    return (
        one.name,
        _milliseconds(one.predicted_seconds),
        _milliseconds(one.traced_seconds),
        f"{1e3 * one.difference_seconds:+,.2f}",
        f"{one.difference_seconds / step:+.1%}",
        *(_milliseconds(value) if any(hidden) else "" for value in hidden),
    )


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:,.2f}" if value else NOTHING


def write_comparison_json(found: ComparedStep) -> str:
    """Write the comparison as JSON, in seconds."""
    return json.dumps(finite(asdict(found)), indent=2)
