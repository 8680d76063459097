"""Doubts about a trace: information that is missing, its consequence, and how to record it."""

from __future__ import annotations

from collections.abc import Iterator

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
    return (*_doubt_recording(trace), *_doubt_waits(trace), *_doubt_communication(trace), *_doubt_run(trace))


def _doubt_recording(trace: Trace) -> Iterator[str]:
    if not trace.has_device:
        yield (
            "Nothing ran on a device, or it was not recorded: only the host's events are known. Where there is a "
            "device, record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    if not len(trace.of(Category.CALL, Category.OPERATOR)):
        yield (
            "The host was not recorded: launches of kernels, and waits for them, are unknown. Record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    if not _has_name(trace, r"ProfilerStep#", Category.ANNOTATION):
        yield (
            "No iterations are marked: they are inferred, or the whole trace is taken for one. Record with "
            "schedule=torch.profiler.schedule(...) and call step() of the profiler after each iteration."
        )


def _doubt_waits(trace: Trace) -> Iterator[str]:
    kernels, correlation = trace.of(*ON_STREAMS), trace.events.correlation
    calls = trace.of(Category.CALL)
    launched = np.isin(correlation[kernels], correlation[calls]) & (correlation[kernels] != UNKNOWN)
    num_missing = len(kernels) - int(np.count_nonzero(launched))
    if len(calls) and num_missing > LEAST_UNLAUNCHED * len(kernels):
        yield (
            f"{num_missing:,} of {len(kernels):,} kernels and copies have no launch: they were launched before the "
            "recording began. Synchronise the device before it begins, or leave the first iteration out."
        )
    is_recorded = any(wait.of == "stream_event" for wait in trace.waits)
    if not is_recorded and _has_name(trace, r"StreamWaitEvent", Category.CALL):
        yield (
            "For which events streams wait is not recorded; it is inferred. On NVIDIA devices record with "
            "experimental_config=torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)."
        )
    if not trace.operands and len(trace.of(Category.OPERATOR)):
        yield (
            "Shapes are not recorded: kernels cannot be timed for other sizes, nor operators learned. Record with "
            "record_shapes=True."
        )


def _doubt_communication(trace: Trace) -> Iterator[str]:
    messages = trace.events.message[trace.of(*ON_STREAMS)]
    sent = [trace.messages[place] for place in messages[messages != UNKNOWN].tolist()]
    silent = [message.library for message in sent if message.num_ranks == 0]
    if silent:
        yield (
            f"{len(silent):,} of {len(sent):,} communications have no recorded size or group "
            f"({', '.join(sorted(set(silent)))}): their times are used as they are, and ranks do not wait for each "
            "other in them. Recent releases of PyTorch record both for collectives and single sends and receives, but "
            "not for their batches and token dispatchers."
        )
    if (trace.world_size or 1) > 1 and not trace.messages and trace.has_device:
        yield f"The job has {trace.world_size} ranks, but nothing in the trace communicates as far as names tell."


def _doubt_run(trace: Trace) -> Iterator[str]:
    has_operators = bool(len(trace.of(Category.OPERATOR)))
    if has_operators and not _has_name(trace, TRAINING, Category.OPERATOR, Category.ANNOTATION):
        yield "There is no backward pass and no optimizer: this is inference, or a part of an iteration."
    if trace.rank is None:
        yield "The trace does not record its rank; PyTorch writes it where torch.distributed is initialised."


def _has_name(trace: Trace, pattern: str, *categories: Category) -> bool:
    """True where an event of some categories has a name that the pattern finds."""
    return bool(trace.named(pattern)[trace.of(*categories)].any())
