"""Times of a graph's tasks at other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record
from costmodel.timing.sampled_source import SampledPasses
from planner.measure.traces.events import UNKNOWN, Integers, Trace
from planner.measure.traces.graph import ExecutionGraph, Kind, Waiting
from planner.measure.traces.shapes.pieces import Alike, alike, pieces_of
from planner.measure.traces.shapes.sizes import Explanations, Sizes
from planner.measure.traces.shapes.work import Machine, machine, overhead_of

DTYPES: Mapping[str, str] = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}

"""Names of types in samples."""


def find_sampled_ratio(one: Alike, samples: SampledPasses) -> float | None:
    """
    Return the sampled time of an operator in the other job over that in the recorded one; None where none is sampled.

    Each matmul of a trace counts as a forward matmul of its sizes, and attention as causal.

    Parameters
    ----------
    one
        The operator.
    samples
        Samples of the same machine.
    """
    shape = one.shape
    if shape is None or shape.kind not in ("matmul", "attention") or shape.dtype not in DTYPES:
        return None
    is_backward = shape.kind == "attention" and "backward" in one.operator
    is_batched = shape.expected == "batched matmul"
    name = "batched_matmul" if is_batched else shape.kind
    known = samples.get(name, "backward" if is_backward else "forward", DTYPES[shape.dtype])
    if known is None:
        return None
    (before,), (after,) = shape.sizes, one.explained
    columns = _attention if shape.kind == "attention" else _matmul
    seconds = [float(known.seconds(columns(sizes))) for sizes in (before, after.after)]
    return seconds[1] / seconds[0]


def _matmul(sizes: tuple[float, ...]) -> dict[str, float]:
    m, n, k, *batch = sizes
    return {"m": m, "n": n, "k": k} | ({"batch": batch[0]} if batch else {})


def _attention(sizes: tuple[float, ...]) -> dict[str, float]:
    """Name the sizes of PyTorch's queries: sequences, heads, tokens, width; keys are assumed to have as many heads."""
    *_, heads, queries, width, keys = (1.0, *sizes)
    sequences = sizes[0] if len(sizes) > 4 else 1.0
    return {
        "sequences": sequences,
        "queries": queries,
        "keys": keys,
        "heads": heads,
        "kv_heads": heads,
        "qk_head_dim": width,
        "v_head_dim": width,
        "causal": 1.0,
    }


SHARE = 0.01

"""Share of the total time above which a doubt is reported."""

BEYOND = 4.0

"""Ratio to the largest recorded operator of its kind above which a time is reported as extrapolated."""

MOST = 3

"""Examples in a sentence."""

Notes: TypeAlias = tuple[tuple[Alike, ...], Machine]

"""Kinds of operators and kernels of a rank's trace; rates and overhead that its machine achieved."""


def unsized_fraction(ranks: Sequence[Notes]) -> float:
    """Share of the total time that is in kernels without a recorded operator with sizes."""
    kinds = [one for own, _ in ranks for one in own]
    return sum(one.total for one in _find_unsized(kinds)) / max(sum(one.total for one in kinds), 1)


def _find_unsized(kinds: Sequence[Alike]) -> list[Alike]:
    return [one for one in kinds if one.works and one.shape is None and one.kernel and not one.on_weights]


def sentences(ranks: Sequence[Notes]) -> tuple[str, ...]:
    """
    Describe uncertain times, with their share of the total time.

    Parameters
    ----------
    ranks
        Notes of each trace.
    """
    kinds = [one for own, _ in ranks for one in own]
    total = sum(one.total for one in kinds)
    working = [one for one in kinds if one.works]
    unnamed = _find_unsized(kinds)
    unknown = [one for one in working if any(each.unknown for each in one.explained)]
    several = [one for one in working if not all(each.is_sure for each in one.explained)]
    beyond = [one for own, here in ranks for one in own if one.works and one.after.flops > BEYOND * here.largest_flops]
    cases = (
        (unnamed, "kernels without an operator with recorded sizes: they are kept. Record with record_shapes=True"),
        (unknown, "operators with sizes that the job does not have: these sizes are kept"),
        (several, "operators whose sizes fit several quantities of the job: the most common was taken"),
        (beyond, f"operators that would compute more than {BEYOND:.0f} times the largest recorded FLOPs: extrapolated"),
    )
    found = ((sum(one.total for one in some) / max(total, 1), text, some) for some, text in cases)
    return tuple(_sentence(share, text, some) for share, text, some in found if share > SHARE)


def _sentence(share: float, text: str, some: Sequence[Alike]) -> str:
    longest = sorted(some, key=lambda one: -one.total)
    examples = list(dict.fromkeys(one.text for one in longest))[:MOST]
    return f"{share:.0%} of the time are {text} ({'; '.join(examples)})."


class Rule(IntEnum):
    """Source of a task's time at other sizes."""

    KEPT = 0
    """Recorded time: the task communicates, or no operator with tensors launched it."""
    SCALED = 1
    """Scaled by the work of the operators that launched the task, with rates and overhead of this trace."""
    SAMPLED = 2
    """Ratio of sampled times at both sizes."""
    PARAMETERS = 3
    """Scaled by the number of parameters: the task updates them, and has no tensors with sizes."""


@record(frozen=True, kw_only=True, slots=True)
class Retimed:
    """
    Times of a graph's tasks at other sizes; arrays of shape (tasks,).

    Parameters
    ----------
    duration
        Nanoseconds.
    how
        A :class:`Rule`; for a task of several operators that of the longest.
    doubts
        Sentences on sizes that are unexplained or ambiguous, on kept times, and on extrapolated ones.
    unsized_fraction
        Share of the total time that is kept because its operators have no sizes.
    """

    duration: Integers
    how: NDArray[np.int8]
    doubts: tuple[str, ...]
    unsized_fraction: float = 0.0


def retime_tasks(
    graph: ExecutionGraph, before: Sizes, after: Sizes, *, samples: SampledPasses | None = None
) -> Retimed:
    r"""
    Time the tasks of a graph at other sizes.

    The time of an operator is a fixed part and a part in proportion to its work. The fixed part is on threads the time
    of the smallest operator of its name, on devices at most the shortest kernel.

    .. math:: t' = t_0 + (t - t_0) \frac{w(\text{after})}{w(\text{before})}, \qquad w = \max(F / R, Q / B)

    F and Q are its FLOPs and bytes by the sizes of its inputs, R and B the rates of large operators in this trace. On
    threads each operator inside a task is timed by itself; its own time is work only where it is most of its time.
    Collectives and gaps between tasks are kept.

    Parameters
    ----------
    graph
        As recorded, or with other passes and messages.
    before, after
        Sizes of the recorded job, and of the other one.
    samples
        Samples of the same machine: sampled matmuls and attention use the ratio of their sampled times instead.

    Raises
    ------
    SpecError
        If the models of both jobs have different parts.
    """
    explanations = Explanations(before, after)
    tasks, notes = graph.tasks, list[Notes]()
    duration, how = tasks.duration.copy(), np.zeros(len(tasks), dtype=np.int8)
    for number, trace in enumerate(graph.traces):
        timed = _find_timed(graph, number)
        if not len(timed):
            continue
        rows, place = np.unique(tasks.event[timed], return_inverse=True)
        found, note = _time_rows(trace, rows, explanations, before.sequence_length, samples)
        notes.append(note)
        measured = trace.events.duration[rows]
        same = tasks.duration[timed] == measured[place]
        share = found.duration / np.maximum(measured, 1)
        duration[timed] = np.where(same, found.duration[place], np.rint(tasks.duration[timed] * share[place]))
        how[timed] = found.how[place]
    return Retimed(duration=duration, how=how, doubts=sentences(notes), unsized_fraction=unsized_fraction(notes))


def _find_timed(graph: ExecutionGraph, number: int) -> NDArray[np.intp]:
    """Return tasks of a trace that neither communicate nor wait; tasks of threads only where there is no device."""
    tasks = graph.tasks
    works = (tasks.message == UNKNOWN) & (tasks.collective == UNKNOWN) & (tasks.waiting == Waiting.NOTHING)
    if graph.traces[number].has_device:
        works &= np.isin(tasks.kind, (Kind.COMPUTE, Kind.COPY))
    has_event = (tasks.trace == number) & (tasks.event != UNKNOWN)
    found: NDArray[np.intp] = np.flatnonzero(works & has_event)
    return found


def _time_rows(
    trace: Trace,
    rows: NDArray[np.intp],
    explanations: Explanations,
    sequence_length: int,
    samples: SampledPasses | None,
) -> tuple[Retimed, Notes]:
    """Time events that are not nested in each other, and note uncertain times."""
    pieces = pieces_of(trace, rows)
    kinds, kind = alike(trace, pieces, explanations, sequence_length=sequence_length)
    here = _machine(kinds, on_device=trace.has_device)
    overheads = [here.overhead] * len(kinds) if trace.has_device else _overheads(kinds, here)
    changes = [
        _change(one, overhead, here, explanations, samples) for one, overhead in zip(kinds, overheads, strict=True)
    ]
    overhead, factor, rule = (np.array(column) for column in zip(*changes, strict=True))
    taken = np.minimum(overhead[kind], pieces.nanoseconds)
    other = np.rint(taken + (pieces.nanoseconds - taken) * factor[kind]).astype(np.int64)
    longest = np.lexsort((pieces.nanoseconds, pieces.place))
    how = np.zeros(len(rows), dtype=np.int8)
    how[pieces.place[longest]] = rule[kind[longest]]
    total = np.zeros(len(rows), dtype=np.int64)
    np.add.at(total, pieces.place, other)
    return Retimed(duration=total, how=how, doubts=()), (kinds, here)


def _change(
    one: Alike, overhead: float, here: Machine, explanations: Explanations, samples: SampledPasses | None
) -> tuple[float, float, Rule]:
    """Return the overhead of an operator, the factor of the rest of its time, and the reason."""
    if one.shape is None and one.on_weights and one.kernel:
        return overhead, explanations.parameters, Rule.PARAMETERS
    if one.shape is None or not one.changes or not one.works:
        return 0.0, 1.0, Rule.KEPT
    sampled = find_sampled_ratio(one, samples) if samples else None
    if sampled is not None:
        return 0.0, sampled, Rule.SAMPLED
    before, after = here.seconds(one.before), here.seconds(one.after)
    return overhead, after / before if before else 1.0, Rule.SCALED


def _machine(kinds: Sequence[Alike], *, on_device: bool) -> Machine:
    working = [one for one in kinds if one.shape is not None and one.works]
    return machine(
        [one.before for one in working],
        np.array([one.nanoseconds for one in working]),
        np.array([one.nanoseconds for one in kinds]),
        on_device=on_device,
    )


def _overheads(kinds: Sequence[Alike], here: Machine) -> list[float]:
    """Return the overhead of each operator of threads, from operators of the same name."""
    by_name: dict[str, list[Alike]] = {}
    for one in kinds:
        by_name.setdefault(one.kernel or one.operator, []).append(one)
    found = {
        name: overhead_of(
            np.array([here.seconds(one.before) for one in several]),
            np.array([one.nanoseconds for one in several]),
            least=here.overhead,
        )
        for name, several in by_name.items()
    }
    return [found[one.kernel or one.operator] for one in kinds]
