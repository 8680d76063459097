"""Samples extracted from traces, and a device's file: figures learned from samples, and constants of traces alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.memory import updated_parameters
from costmodel.record import record
from costmodel.timing.sampled_source import MATMULS
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import complete_strategy
from planner.measure.fit.device import FittedDevice, change_device, fit_device, num_matmuls, render_fit
from planner.measure.fit.operators import FEWEST, round_digits
from planner.measure.sample.samples import TRACED, Machine, Point, Sample, Sizes, Timing
from planner.measure.sample.shapes import job_shapes
from planner.measure.sample.table import SamplesFile
from planner.measure.traces.events import UNKNOWN, Category, Trace, overlap_nanoseconds
from planner.measure.traces.operators import (
    ALONE,
    Other,
    Sent,
    Slowdown,
    TracedOperators,
    communication_overlap_nanoseconds,
    find_messages,
    find_operators,
    late_launches,
    slowdown_beside_communication,
)
from planner.measure.traces.reading import runs_of
from planner.measure.traces.structure import Parts, Phase, parts
from planner.report.section import count

EXPERT = "expert_"

"""Prefix of the names of routed experts' operators in the cost model."""

ROUTED = ("m", "rows", "batch")

"""Sizes of an expert's operators that the router decides: rows, and the number of experts with tokens."""

Kept = tuple[str, tuple[tuple[str, int], ...]]

"""Operator and sizes that the router does not decide; all kinds of matmuls are one."""


def drop_routed_sizes(operator: str, sizes: Mapping[str, int]) -> Kept:
    """
    Return the operator and the sizes that the router does not decide.

    The planner distributes tokens to experts evenly, a router never does. Experts may run one after the other, each by
    a matmul, or as one grouped matmul.

    Parameters
    ----------
    operator, sizes
        Names in the table of samples.

    >>> drop_routed_sizes("matmul", {"m": 37, "n": 8, "k": 4}) == drop_routed_sizes(
    ...     "grouped_matmul", {"batch": 2, "m": 64, "n": 8, "k": 4}
    ... )
    True
    """
    kept = tuple(sorted((name, value) for name, value in sizes.items() if name not in ROUTED))
    return "matmul" if operator in MATMULS else operator, kept


NANOSECONDS = 1e9

SHOWN = 5

"""Names of unknown operators that a message lists, the longest first."""

COPIES = {"HtoD": "host_to_device", "DtoH": "device_to_host", "DtoD": "copy"}

"""Samples of copies by a part of the profiler's name."""

PAGEABLE = "Pageable"

"""Part of the names of copies with unpinned host memory: they do not run at a link's speed."""

COPY_DTYPE = "bf16"

"""Type in the rows of copies, which move bytes of any type."""

LOWER_BOUND = (
    "{number} collectives were not recorded on all ranks: their time is the least of all repeats, with the shortest "
    "wait. Record all ranks of a group to remove waits."
)

SEVERAL = "Ranks occur twice: traces are assigned to {number} runs by the time of their recording."

LEFT_OUT = (
    "{number} times next to communication are left out of the samples: operators of equal sizes also ran alone, and "
    "the planner adds the cost of overlap itself."
)

ONLY_BESIDE = "{number} operators and sizes ran only overlapped with communication: "

DIVIDED = "their time is divided by {factor:.3f}, the slowdown of kernels that ran both alone and overlapped."

NOT_DIVIDED = "the slowdown remains in their times, since no kernel ran both alone and overlapped."


@record(frozen=True, kw_only=True, slots=True)
class Extracted:
    """
    Samples extracted from traces, and the rest.

    Parameters
    ----------
    samples
        Rows of the table of samples.
    by_trace
        Operators of each trace, in the order of the traces.
    others
        Computation that became no sample, of all traces together, the longest first.
    unknown_messages
        Messages without a size, or of a kind that is not sampled: their number by name.
    slowdown
        Slowdown of kernels next to communication, which samples do not contain; None where it is unknown.
    doubts
        Sentences on assumptions, and on missing information in the traces.
    """

    samples: tuple[Sample, ...]
    by_trace: tuple[TracedOperators, ...]
    others: tuple[Other, ...]
    unknown_messages: Mapping[str, int]
    slowdown: Slowdown | None
    doubts: tuple[str, ...]

    @property
    def known_fraction(self) -> float:
        """Share of the recorded computation that became samples."""
        total = sum(one.nanoseconds for one in self.by_trace)
        return sum(part.nanoseconds for one in self.by_trace for part in one.operators) / total if total else 0.0


def extract_samples(traces: Sequence[Trace], problem: Problem | None = None) -> Extracted:
    """
    Extract samples of the operators and collectives in traces.

    Each row is one operator, pass, type and size: seconds are the median over all times that it ran alone. Operators
    are slower next to communication, which the planner adds itself where they overlap. Such times count only for sizes
    that never ran alone, divided by the slowdown of kernels that ran both ways.

    Parameters
    ----------
    traces
        Traces of ranks of one job, or of several jobs on one kind of machine.
    problem
        Their job; its strategy gives the number of parameters that ranks update where the traces do not.

    Raises
    ------
    SpecError
        If the traces are of different devices.
    """
    machine = machine_of(traces)
    by_trace = tuple(find_operators(trace, parameters=_updated_parameters(problem, trace)) for trace in traces)
    slowdown = slowdown_beside_communication(traces)
    operators, overlapped = _times_alone((*_operators(by_trace), *_copies(traces)), slowdown)
    points = [*operators, *_launches(traces)]
    devices_per_node = max((len(trace.devices) for trace in traces), default=0)
    found = [find_messages(run, devices_per_node) for run in runs_of(traces)]
    collectives, bounds = _choose_collectives(one for messages, _ in found for one in messages)
    several: dict[Point, list[float]] = defaultdict(list)
    for point, seconds in (*points, *collectives):
        several[point].append(seconds)
    samples = tuple(
        Sample(point=point, timing=Timing.summarize(seconds), machine=machine) for point, seconds in several.items()
    )
    doubts = dict.fromkeys(sentence for several in _doubts(by_trace, traces) for sentence in several)
    bound = (LOWER_BOUND.format(number=bounds),) if bounds else ()
    return Extracted(
        samples=samples,
        by_trace=by_trace,
        others=_sum_others(by_trace),
        unknown_messages=sum((unknown for _, unknown in found), Counter()),
        slowdown=slowdown,
        doubts=(*doubts, *overlapped, *bound),
    )


def _updated_parameters(problem: Problem | None, trace: Trace) -> int | None:
    """
    Return the parameters that a job's rank updates in a step; None where they are unknown.

    Ranks of a stage are neighbours: pipelines are the outermost dimension of ranks in Megatron-LM
    (``parallel_state.py``, order ``tp-cp-ep-dp-pp``) and in torchtitan (``parallel_dims.py``).
    """
    if problem is None or not problem.given.decisions:
        return None
    strategy = complete_strategy(problem.facts, problem.given, problem.search.max_devices)
    if trace.rank is None and strategy.pp > 1:
        return None
    pp_rank = (trace.rank or 0) * strategy.pp // strategy.num_devices
    return round(updated_parameters(problem.facts, strategy.decisions(), pp_rank=min(pp_rank, strategy.pp - 1)))


def _doubts(by_trace: Iterable[TracedOperators], traces: Sequence[Trace]) -> Iterator[tuple[str, ...]]:
    yield from (one.doubts for one in by_trace)
    yield from (one.doubts for one in traces)
    runs = runs_of(traces)
    if len(runs) > 1:
        yield (SEVERAL.format(number=len(runs)),)


def machine_of(traces: Sequence[Trace]) -> Machine:
    """
    Return the machine of traces, marked as traced.

    Raises
    ------
    SpecError
        If they are of different devices.
    """
    first = traces[0]
    names = {trace.source: trace.devices[0].name if trace.devices else "" for trace in traces}
    if len(set(names.values())) > 1:
        shown = ", ".join(sorted({name or "no device" for name in names.values()}))
        raise SpecError("traces", f"are of different devices: {shown}.", "Extract a table for each.")
    if not first.has_device:
        return Machine(device="host processors", driver="", software=TRACED)
    one = first.devices[0] if first.devices else None
    platform = "hip" if any(name.startswith("hip") for name in first.names) else "cuda"
    return Machine(
        device=(one.name if one else "") or "unknown device",
        driver="",
        software=f"{TRACED}, {platform} kernels",
        memory_bytes=one.memory_bytes or None if one else None,
        num_processors=one.num_processors or None if one else None,
        devices_per_node=len(first.devices) or None,
    )


Measured = tuple[Point, float]


def _times_alone(
    found: Iterable[tuple[Point, float, float]], slowdown: Slowdown | None
) -> tuple[list[Measured], tuple[str, ...]]:
    r"""
    Return the seconds of points that ran alone, else their estimated time alone; and sentences on that.

    If a share s of t seconds was next to communication, f times slower, :math:`t (1 - s + s / f)` are its own.

    Parameters
    ----------
    found
        Points with their seconds, and the share of these next to communication.
    slowdown
        f; None where it is unknown, and assumed to be 1.
    """
    several: dict[Point, list[tuple[float, float]]] = defaultdict(list)
    for point, seconds, share in found:
        several[point].append((seconds, share))
    factor = max(slowdown[0], 1.0) if slowdown else 1.0
    made: list[Measured] = []
    num_left_out = num_only_beside = 0
    for point, times in several.items():
        alone = [(point, seconds) for seconds, share in times if share <= ALONE]
        num_left_out += len(times) - len(alone) if alone else 0
        num_only_beside += not alone
        made += alone or [(point, seconds * (1 - share + share / factor)) for seconds, share in times]
    how = DIVIDED.format(factor=factor) if slowdown else NOT_DIVIDED
    left_out = (LEFT_OUT.format(number=num_left_out),) if num_left_out else ()
    return made, (*left_out, *((ONLY_BESIDE.format(number=num_only_beside) + how,) if num_only_beside else ()))


def _operators(by_trace: Iterable[TracedOperators]) -> Iterator[tuple[Point, float, float]]:
    for one in (part for of_trace in by_trace for part in of_trace.operators):
        if one.nanoseconds > 0:
            sizes = dict(one.sizes)
            causal = bool(sizes.pop("causal")) if "causal" in sizes else None
            yield (
                Point(one.operator, one.of_pass, one.dtype, Sizes(causal=causal, **sizes)),
                one.nanoseconds / NANOSECONDS,
                one.beside / one.nanoseconds,
            )


def _copies(traces: Iterable[Trace]) -> Iterator[tuple[Point, float, float]]:
    for trace in traces:
        rows = trace.find_rows(Category.COPY)
        for row, beside in zip(rows.tolist(), communication_overlap_nanoseconds(trace, rows).tolist(), strict=True):
            name, nbytes, ns = trace.name_of(row), int(trace.events.nbytes[row]), int(trace.events.duration[row])
            kind = next((sample for part, sample in COPIES.items() if part in name), None)
            if kind and nbytes > 0 and ns > 0 and PAGEABLE not in name:
                yield Point(kind, "forward", COPY_DTYPE, Sizes(nbytes=nbytes)), ns / NANOSECONDS, beside / ns


def _launches(traces: Iterable[Trace]) -> Iterator[Measured]:
    """Yield the CPU launch overhead of a kernel in each trace."""
    for trace in traces:
        between = late_launches(trace)
        if len(between):
            yield Point("launch", "forward", COPY_DTYPE, Sizes(n=len(between))), float(np.median(between)) / NANOSECONDS


def _choose_collectives(messages: Iterable[Sent]) -> tuple[list[Measured], int]:
    """Return collectives, and the number of points with only a bound: the least of all repeats."""
    complete: list[Measured] = []
    bounds: dict[Point, float] = {}
    for point, nanoseconds, is_complete in messages:
        seconds = nanoseconds / NANOSECONDS
        if is_complete:
            complete.append((point, seconds))
        else:
            bounds[point] = min(seconds, bounds.get(point, seconds))
    known = {point for point, _ in complete}
    least = [(point, seconds) for point, seconds in bounds.items() if point not in known]
    return [*complete, *least], len(least)


def _sum_others(by_trace: Iterable[TracedOperators]) -> tuple[Other, ...]:
    found: dict[str, Other] = {}
    for one in (other for of_trace in by_trace for other in of_trace.others):
        if before := found.get(one.name):
            one = replace(one, count=before.count + one.count, nanoseconds=before.nanoseconds + one.nanoseconds)
        found[one.name] = one
    return tuple(sorted(found.values(), key=lambda one: -one.nanoseconds))


def write_samples(found: Extracted, path: Path) -> None:
    """
    Write the samples as a new table, replacing an existing one.

    Raises
    ------
    SpecError
        If there are none, or the file cannot be written.
    """
    if not found.samples:
        reasons = "; ".join(dict.fromkeys(f"{one.name}: {one.reason}" for one in found.others[:SHOWN]))
        problem = f"have no operators that the planner samples. {reasons or 'They have no computation'}."
        raise SpecError("traces", problem, " ".join(found.doubts[:SHOWN]))
    path.unlink(missing_ok=True)
    table = SamplesFile(path, found.samples[0].machine)
    for one in found.samples:
        table.add(one.point, one.timing)


def missing_operators(problem: Problem, found: Extracted) -> tuple[str, ...]:
    """
    List operators of a job, with their pass, that traces time at no size that the job may have.

    The number of rows of routed experts is ignored: the router decides it.
    """
    known = {one.point for one in found.samples}
    routed = set(map(_key_without_router, known))
    return tuple(
        f"{name} {of_pass}"
        for (name, of_pass), points in job_shapes(problem).groups.items()
        if not known.intersection(points)
        and not (name.startswith(EXPERT) and routed.intersection(map(_key_without_router, points)))
    )


def _key_without_router(point: Point) -> tuple[Kept, str, str]:
    return drop_routed_sizes(point.operator, point.sizes.applicable), point.pass_, point.dtype


# --- a device's file -----------------------------------------------------------------------------------------
MOST_SLOWDOWN = 10.0

"""Largest factor that a calibration allows."""

WITHOUT_SHAPES = "Shapes were not recorded: record with torch.profiler.profile(record_shapes=True)."

WITHOUT_BASE = (
    "Launches and the slowdown next to communication need no matmuls: they are added to a device of the "
    "catalog that --device names, such as h100-80gb-sxm."
)


Constant: TypeAlias = tuple[str, float, str]
"""
Name and value of a constant of a device's calibration that is measured in traces, and how it follows from them.

The last becomes the file's source.
"""


@record(frozen=True, kw_only=True, slots=True)
class HostTime:
    """
    Time of a rank's thread outside of the planner's operators, in seconds.

    Parameters
    ----------
    per_microbatch, per_layer, per_operator
        Time in both passes of a micro-batch; per layer, None where no layers were found; per pass of an operator.
    per_step
        Time of an iteration outside of its passes.
    """

    per_microbatch: float
    per_layer: float | None
    per_operator: float
    per_step: float


def fit_device_file(
    traces: Sequence[Trace], found: Extracted, *, name: str, facts: Mapping[str, Any] | None
) -> tuple[FittedDevice, tuple[Constant, ...]]:
    """
    Fit the device of traces, and the constants that only traces show.

    The time of computing threads between operators grows with their number, so each operator gets its share. Traces
    with too few matmuls to learn from only change the constants of the base device of the facts.

    Parameters
    ----------
    traces, found
        Traces, and the samples extracted from them.
    name, facts
        As in :func:`planner.measure.fit.device.fit_device`.

    Raises
    ------
    SpecError
        As there; if there are too few matmuls and no base, or no constants either.
    """
    facts = facts or {}
    reason = _doubt_matmuls(traces, found)
    if reason:
        return _add_to_base(traces, found, name=name, facts=facts, reason=reason)
    hosts = host_times(traces, found.by_trace)
    beside = median(one.per_operator for one in hosts) if hosts else 0.0
    fitted = fit_device(found.samples, name=name, facts=facts, host_seconds=beside)
    constants = tuple(measure_constants(traces, found.slowdown, hosts))
    _add(fitted.entry, constants)
    return fitted, constants


def _doubt_matmuls(traces: Sequence[Trace], found: Extracted) -> str:
    """Return the reason that operators cannot be learned; "" if they can."""
    number = num_matmuls(found.samples)
    if number >= FEWEST:
        return ""
    longest = found.others[0] if found.others else None
    why = f"Most of the rest is {longest.name}: {longest.reason}." if longest else "Nothing else computes."
    if not any(trace.operands for trace in traces):
        why = WITHOUT_SHAPES
    return f"have {number} forward matmuls of different sizes and one dtype; {FEWEST} are needed. {why}"


def _add_to_base(
    traces: Sequence[Trace], found: Extracted, *, name: str, facts: Mapping[str, Any], reason: str
) -> tuple[FittedDevice, tuple[Constant, ...]]:
    """Add constants of the traces to the base device of the facts, without learned operators."""
    constants = tuple(measure_constants(traces, found.slowdown, ()))
    if "base" not in facts:
        raise SpecError("traces", reason, WITHOUT_BASE)
    if not constants:
        raise SpecError("traces", reason, "They show no other constants of a device, such as launches.")
    entry = change_device(facts, name=name)
    _add(entry, constants)
    catalog.device_of(entry, "facts")
    fitted = FittedDevice(
        entry=entry,
        operators=(),
        collectives=None,
        unlearned=(("all operators", f"traces {reason.rstrip('.')}"),),
        num_samples=len(found.samples),
        machine=str(found.samples[0].machine),
    )
    return fitted, constants


def _add(entry: Mapping[str, Any], constants: Iterable[Constant]) -> None:
    calibration = entry["calibration"]
    for name, value, meaning in constants:
        calibration[name] = round_digits(value)
        calibration["sources"][name] = f"planner trace extract: {meaning}"


def host_times(traces: Sequence[Trace], by_trace: Sequence[TracedOperators]) -> tuple[HostTime, ...]:
    """Measure the time of threads outside of operators, in traces without a device."""
    pairs = zip(traces, by_trace, strict=True)
    return tuple(host_time(trace, of_trace, parts(trace)) for trace, of_trace in pairs if not trace.has_device)


def measure_constants(
    traces: Sequence[Trace], slowdown: Slowdown | None, hosts: Sequence[HostTime]
) -> Iterator[Constant]:
    """Yield constants of the calibration that traces show, each at most once."""
    if slowdown:
        factor, kernels = slowdown
        yield (
            "overlap_slowdown_compute",
            min(max(factor, 1.0), MOST_SLOWDOWN),
            f"{kernels} kernels that ran alone and next to communication, {factor:.3f} times as long",
        )
    between = np.concatenate([late_launches(trace) for trace in traces])
    if len(between):
        yield (
            "launch_overhead_seconds",
            float(np.median(between)) / NANOSECONDS,
            f"median of {len(between)} late kernel launches",
        )
    if hosts:
        yield (
            "step_seconds",
            median(one.per_step for one in hosts),
            "time of the thread outside of the planner's operators and of the passes of a step",
        )


def host_time(trace: Trace, operators: TracedOperators, of: Parts) -> HostTime:
    """
    Measure the time of a computing thread outside of the planner's operators.

    It is all time that is neither such an operator nor a wait for another rank: Python, autograd between its nodes,
    copies and views. Medians over iterations; passes end with the last event of a backward pass.

    Parameters
    ----------
    trace
        Trace of one rank, without a device.
    operators, of
        Its operators, and the parts of its events.
    """
    events, summary = trace.events, of
    known = np.flatnonzero((operators.owner != UNKNOWN) & (events.category == Category.OPERATOR))
    others = np.flatnonzero(events.message != UNKNOWN)
    covering = np.concatenate([known, others])
    passes, steps, number_of_passes = [], [], 0
    number_of = Counter(one.iteration for one in operators.operators)
    for number, one in enumerate(summary.iterations):
        mine = covering[events.track[covering] == one.thread]
        inside = (of.iteration == number) & np.isin(of.phase, (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE))
        inside &= (events.track == one.thread) & (events.category == Category.OPERATOR)
        if not inside.any():
            continue
        bounds = [one.begin, int(events.start[inside].min()), int(events.end[inside].max()), one.end]
        begins, ends = np.array(bounds[:-1]), np.array(bounds[1:])
        free = ends - begins - overlap_nanoseconds(begins, ends, events.start[mine], events.end[mine])
        passes.append(int(free[1]))
        steps.append(int(free[0] + free[2]))
        number_of_passes = max(number_of_passes, number_of[number])
    if not passes:
        return HostTime(per_microbatch=0.0, per_layer=None, per_operator=0.0, per_step=0.0)
    per_step = median(passes) / NANOSECONDS
    per_microbatch = per_step / max(summary.num_microbatches, 1)
    return HostTime(
        per_microbatch=per_microbatch,
        per_layer=per_microbatch / summary.num_layers if summary.num_layers else None,
        per_operator=per_step / max(number_of_passes, 1),
        per_step=median(steps) / NANOSECONDS,
    )


PROFILED = (
    "All times are of steps under the profiler, which slows the host: predicted steps are longer than those without. "
    "One step measured without it corrects that: planner trace project (docs/guides/traces.md, section 6)."
)

MOST_OTHERS = 12

"""Names of unconverted operators that are listed, the longest first."""


def write_extraction_text(
    found: Extracted, path: str, *, hosts: Sequence[HostTime], missing: Sequence[str] | None
) -> str:
    """
    Write the report of a table.

    Parameters
    ----------
    found, path
        The extracted samples, and the path of their table.
    hosts
        Times of threads outside of operators, of traces without a device.
    missing
        Operators of a job that the traces do not time; None where no job was given.
    """
    return "\n".join(_lines(found, path, hosts, missing))


def _lines(found: Extracted, path: str, hosts: Sequence[HostTime], missing: Sequence[str] | None) -> Iterator[str]:
    machine = found.samples[0].machine.device if found.samples else "nothing"
    samples, traces = count(len(found.samples), "sample"), count(len(found.by_trace), "trace")
    yield f"{samples} of {machine} from {traces}; table written to {path}"
    yield f"{found.known_fraction:.1%} of the recorded computation became samples."
    total = sum(one.nanoseconds for one in found.by_trace)
    if found.others and total:
        yield ""
        yield f"{'not converted':<50} {'times':>7} {'share':>7}  why"
        for one in found.others[:MOST_OTHERS]:
            yield f"{_short(one.name):<50} {one.count:>7} {one.nanoseconds / total:>7.2%}  {one.reason}"
        rest = found.others[MOST_OTHERS:]
        if rest:
            share = sum(one.nanoseconds for one in rest) / total
            yield f"{f'{len(rest)} other names':<50} {sum(one.count for one in rest):>7} {share:>7.2%}"
    for name, number in found.unknown_messages.items():
        yield f"{_short(name):<50} {number:>7} {'':>7}  communication without a size, or of a kind that is not sampled"
    for one_host in hosts[:1]:
        yield ""
        layer = f", {one_host.per_layer * 1e3:,.3g} ms for each layer" if one_host.per_layer else ""
        yield (
            f"between operators the thread takes {one_host.per_microbatch * 1e3:,.3g} ms for each micro-batch{layer}, "
            f"and {one_host.per_step * 1e3:,.3g} ms for each step"
        )
    if missing is not None:
        yield ""
        said = (
            f"operators of the job missing in all traces: {', '.join(missing)}"
            if missing
            else "the traces have all operators"
        )
        yield f"{said} (of its sizes over tp, ep and micro-batches)"
    for sentence in (PROFILED, *found.doubts):
        yield f"  {sentence}"


def _short(name: str) -> str:
    return name if len(name) <= 50 else f"{name[:47]}..."


def device_report(fitted: FittedDevice, constants: Sequence[Constant], path: str) -> str:
    """Write the report of a device's file: learned operators, and constants from the traces."""
    lines = [render_fit(fitted, path)]
    if any(one.num_samples < FEWEST for one in fitted.operators):
        lines.append(
            f"Errors of operators with fewer than {FEWEST} samples are assumed: none of their shapes was held out."
        )
    if constants:
        lines += ["", f"{'constant from the traces':<34} {'value':>12}  from"]
        lines += [f"{name:<34} {value:>12.4g}  {meaning}" for name, value, meaning in constants]
    return "\n".join(lines)
