"""Extraction of samples from traces: rows of ``planner sample``'s table, medians over all times of an operator."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from costmodel.errors import SpecError
from costmodel.memory import updated_parameters
from costmodel.record import record
from costmodel.timing.sampled_source import ELEMENT_BYTES, MATMULS
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import complete_strategy
from planner.measure.sample.job_shapes import job_shapes
from planner.measure.sample.samples import TRACED, Machine, Point, Sample, Sizes, Timing
from planner.measure.sample.table import SamplesFile
from planner.measure.traces.events import Category, Trace
from planner.measure.traces.operators import Other, TracedOperators, find_operators
from planner.measure.traces.operators.device import (
    ALONE,
    Slowdown,
    TracedMessage,
    communication_overlap_nanoseconds,
    find_messages,
    late_launches,
    slowdown_beside_communication,
)
from planner.measure.traces.reading import runs_of

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
    messages, unknown = messages_of(traces)
    slowdown = slowdown_beside_communication(traces)
    operators, overlapped = _times_alone((*_operators(by_trace), *_copies(traces)), slowdown)
    points = [*operators, *_launches(traces)]
    devices_per_node = max((len(trace.devices) for trace in traces), default=0)
    collectives, bounds = _collectives(messages, devices_per_node)
    several: dict[Point, list[float]] = defaultdict(list)
    for point, seconds in (*points, *collectives):
        several[point].append(seconds)
    samples = tuple(Sample(point=point, timing=_timing(seconds), machine=machine) for point, seconds in several.items())
    doubts = dict.fromkeys(sentence for several in _doubts(by_trace, traces) for sentence in several)
    bound = (LOWER_BOUND.format(number=bounds),) if bounds else ()
    return Extracted(
        samples=samples,
        by_trace=by_trace,
        others=_sum_others(by_trace),
        unknown_messages=unknown,
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


def messages_of(traces: Sequence[Trace]) -> tuple[tuple[TracedMessage, ...], Mapping[str, int]]:
    """Find the messages of traces, joined over the ranks of each run."""
    unknown: Counter[str] = Counter()
    found: list[TracedMessage] = []
    for run in runs_of(traces):
        messages, missing = find_messages(run)
        found += messages
        unknown.update(missing)
    return tuple(found), unknown


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
        rows = trace.of(Category.COPY)
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


def _collectives(messages: Iterable[TracedMessage], devices_per_node: int) -> tuple[list[Measured], int]:
    """Return collectives with their nodes, and the number of points with only a bound: the least of all repeats."""
    complete: list[Measured] = []
    bounds: dict[Point, float] = {}
    for one in messages:
        nodes = _nodes(one, devices_per_node)
        if one.num_ranks < 2 or one.num_ranks % nodes or one.dtype not in ELEMENT_BYTES:
            continue
        point = Point(one.kind, "forward", one.dtype, Sizes(nbytes=one.nbytes, ranks=one.num_ranks, nodes=nodes))
        seconds = one.nanoseconds / NANOSECONDS
        if one.is_complete:
            complete.append((point, seconds))
        else:
            bounds[point] = min(seconds, bounds.get(point, seconds))
    known = {point for point, _ in complete}
    least = [(point, seconds) for point, seconds in bounds.items() if point not in known]
    return [*complete, *least], len(least)


def _nodes(one: TracedMessage, devices_per_node: int) -> int:
    """Return the number of hosts of a group: by its ranks, or the fewest with as many devices; threads are on one."""
    if not devices_per_node:
        return 1
    if one.ranks:
        return len({rank // devices_per_node for rank in one.ranks})
    return -(-one.num_ranks // devices_per_node)


def _timing(seconds: Sequence[float]) -> Timing:
    if len(seconds) == 1:
        return Timing(seconds[0], spread=0.0, repeats=1)
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(seconds=median, spread=(high - low) / 2 / median, repeats=len(seconds))


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
    return drop_routed_sizes(point.operator, point.sizes.given), point.pass_, point.dtype
