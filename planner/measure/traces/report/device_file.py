"""A device's file from traces: figures learned from samples, and constants of traces alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.record import record
from planner.measure.fit.device import FittedDevice, change_device, fit_device, num_matmuls, render_fit
from planner.measure.fit.operators import FEWEST, round_digits
from planner.measure.traces.events import UNKNOWN, Category, Trace, overlap_nanoseconds
from planner.measure.traces.operators import TracedOperators
from planner.measure.traces.operators.device import Slowdown, late_launches
from planner.measure.traces.report.extraction import NANOSECONDS, Extracted
from planner.measure.traces.structure import Parts, Phase, parts

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
    events, summary = trace.events, of.summary
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
    "One step measured without it corrects that: planner trace project (docs/guides/traces.md, section 5)."
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
    yield f"{len(found.samples)} samples of {machine} from {len(found.by_trace)} traces; table written to {path}"
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
