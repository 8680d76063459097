"""Doubts about a trace: information that is missing, its consequence, and how to record it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from costmodel.errors import SpecError
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Trace
from planner.measure.traces.reading.columns import Columns
from planner.measure.traces.reading.document import Document
from planner.measure.traces.reading.sources import EXPORT, Source

LEAST_UNLAUNCHED = 0.05
"""Share of kernels without a launch above which it is reported: a few are always cut off at the beginning."""

TRAINING = r"Backward|autograd::engine|Optimizer\.step"
"""Names that occur only in training."""

MOST_NAMED = 8
"""Ranks that a sentence lists."""


# --- of a file -------------------------------------------------------------------------------------------------


def no_events(where: str, document: Document, columns: Columns, text: Source) -> SpecError:
    """Return the error for a file without events."""
    if text.broken:
        return SpecError(where, f"is broken before its first event: {text.broken}.", "Copy it again.")
    if "nodes" in document.top:
        return SpecError(where, "is an execution trace, which holds no times.", EXPORT)
    if columns.num_left_out or document.num_broken:
        num_wrong = columns.num_left_out + document.num_broken
        return SpecError(where, f"holds {num_wrong:,} events, none of which has times that are numbers.", EXPORT)
    if columns.seen:
        seen = ", ".join(f"'{category}'" for category in sorted(columns.seen)[:MOST_NAMED])
        return SpecError(where, f"holds no events of PyTorch's profiler, only of other categories: {seen}.", EXPORT)
    if document.truncated:
        return SpecError(where, "ends before its first event, or is no JSON.", EXPORT)
    return SpecError(where, "holds no events.", EXPORT)


def losses(document: Document, columns: Columns, text: Source) -> tuple[str, ...]:
    """Describe the parts of the file that are not in the trace."""
    found = []
    if text.broken or document.truncated:
        why = text.broken or "the text ends inside of the list of events, or is not JSON"
        found.append(
            f"The file is broken: {why}. Events behind that are missing, and so are entries that stand there. "
            "Copy it again, or record again and wait until the profiler has written it."
        )
    if document.num_broken:
        found.append(f"{_events(document.num_broken)} left out that are no JSON.")
    if columns.num_left_out:
        found.append(
            f"{_events(columns.num_left_out)} left out whose names, times or numbers are none, or exceed 63 bits."
        )
    num_negative = int(np.count_nonzero(np.frombuffer(columns.duration, dtype=np.int64) < 0))
    if num_negative:
        found.append(f"{_events(num_negative)} taken as without duration, because they end before they begin.")
    return tuple(found)


def _events(number: int) -> str:
    return f"{number:,} event was" if number == 1 else f"{number:,} events were"


# --- of a trace ------------------------------------------------------------------------------------------------


def doubts(trace: Trace) -> tuple[str, ...]:
    """Describe the information that a trace lacks, its consequence, and how to record it."""
    return tuple(doubt for check in CHECKS if (doubt := check(trace)))


def _doubt_device(trace: Trace) -> str:
    if trace.has_device:
        return ""
    return (
        "Nothing ran on a device, or it was not recorded: only the host's events are known. Where there is a device, "
        "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
    )


def _doubt_host(trace: Trace) -> str:
    if len(trace.of(Category.CALL, Category.OPERATOR)):
        return ""
    return (
        "The host was not recorded: launches of kernels, and waits for them, are unknown. Record with "
        "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
    )


def _doubt_steps(trace: Trace) -> str:
    if _has_name(trace, r"ProfilerStep#", Category.ANNOTATION):
        return ""
    return (
        "No iterations are marked: they are inferred, or the whole trace is taken for one. Record with "
        "schedule=torch.profiler.schedule(...) and call step() of the profiler after each iteration."
    )


def _doubt_launches(trace: Trace) -> str:
    kernels = trace.of(*ON_STREAMS)
    calls = trace.of(Category.CALL)
    wanted = trace.events.correlation[kernels]
    launched = np.isin(wanted, trace.events.correlation[calls]) & (wanted != UNKNOWN)
    num_missing = len(kernels) - int(np.count_nonzero(launched))
    if not len(calls) or num_missing <= LEAST_UNLAUNCHED * len(kernels):
        return ""
    return (
        f"{num_missing:,} of {len(kernels):,} kernels and copies have no launch: they were launched before the "
        "recording began. Synchronise the device before it begins, or leave the first iteration out."
    )


def _doubt_waits(trace: Trace) -> str:
    if not _has_name(trace, r"StreamWaitEvent", Category.CALL) or _waits_for_events(trace):
        return ""
    return (
        "For which events streams wait is not recorded; it is inferred. On NVIDIA devices record with "
        "experimental_config=torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)."
    )


def _waits_for_events(trace: Trace) -> bool:
    return any(wait.of == "stream_event" for wait in trace.waits)


def _doubt_shapes(trace: Trace) -> str:
    if trace.operands or not len(trace.of(Category.OPERATOR)):
        return ""
    return (
        "Shapes are not recorded: kernels cannot be timed for other sizes, nor operators learned. Record with "
        "record_shapes=True."
    )


def _doubt_sizes(trace: Trace) -> str:
    rows = trace.of(*ON_STREAMS)
    rows = rows[trace.events.message[rows] != UNKNOWN]
    silent = np.array([message.num_ranks == 0 for message in trace.messages], dtype=bool)
    num_silent = int(np.count_nonzero(silent[trace.events.message[rows]])) if len(rows) else 0
    if not num_silent:
        return ""
    libraries = sorted(
        {trace.messages[place].library for place in np.unique(trace.events.message[rows]) if silent[place]}
    )
    return (
        f"{num_silent:,} of {len(rows):,} communications have no recorded size or group ({', '.join(libraries)}): "
        "their times are used as they are, and ranks do not wait for each other in them. Recent releases of PyTorch "
        "record both for collectives and single sends and receives, but not for their batches and token dispatchers."
    )


def _doubt_communication(trace: Trace) -> str:
    if (trace.world_size or 1) == 1 or trace.messages or not trace.has_device:
        return ""
    return f"The job has {trace.world_size} ranks, but nothing in the trace communicates as far as names tell."


def _doubt_backward(trace: Trace) -> str:
    operators = len(trace.of(Category.OPERATOR))
    if not operators or _has_name(
        trace, r"Backward|autograd::engine|Optimizer\.step", Category.OPERATOR, Category.ANNOTATION
    ):
        return ""
    return "There is no backward pass and no optimizer: this is inference, or a part of an iteration."


def _doubt_rank(trace: Trace) -> str:
    if trace.rank is not None:
        return ""
    return "The trace does not record its rank; PyTorch writes it where torch.distributed is initialised."


CHECKS: Sequence[Callable[[Trace], str]] = (
    _doubt_device,
    _doubt_host,
    _doubt_steps,
    _doubt_launches,
    _doubt_waits,
    _doubt_shapes,
    _doubt_sizes,
    _doubt_communication,
    _doubt_backward,
    _doubt_rank,
)
"""Checks of a trace; each returns a sentence, or ""."""


def _has_name(trace: Trace, pattern: str, *categories: Category) -> bool:
    """True where an event of some categories has a name that the pattern finds."""
    used = np.unique(trace.events.name[trace.of(*categories)])
    return any(re.search(pattern, trace.names[place]) for place in used)
