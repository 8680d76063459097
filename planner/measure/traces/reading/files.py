"""Files of traces: those of several ranks, or one alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from costmodel.errors import SpecError
from planner.measure.traces.events import ON_STREAMS, UNKNOWN, Category, Trace
from planner.measure.traces.reading.arguments import read_description
from planner.measure.traces.reading.columns import Columns, assemble_trace
from planner.measure.traces.reading.document import EXPORT, Document, Progress, Source

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
            f"The file is broken: {why}. Later events and entries are missing. "
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
            "Nothing ran on a device, or it was not recorded: only the host's events are known. If there is a "
            "device, record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    if not len(trace.find_rows(Category.CALL, Category.OPERATOR)):
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
    kernels, correlation = trace.find_rows(*ON_STREAMS), trace.events.correlation
    calls = trace.find_rows(Category.CALL)
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
    if not trace.operands and len(trace.find_rows(Category.OPERATOR)):
        yield (
            "Shapes are not recorded: kernels cannot be timed for other sizes, nor operators learned. Record with "
            "record_shapes=True."
        )


def _doubt_communication(trace: Trace) -> Iterator[str]:
    messages = trace.events.message[trace.find_rows(*ON_STREAMS)]
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
    has_operators = bool(len(trace.find_rows(Category.OPERATOR)))
    if has_operators and not _has_name(trace, TRAINING, Category.OPERATOR, Category.ANNOTATION):
        yield "There is no backward pass and no optimizer: this is inference, or a part of an iteration."
    if trace.rank is None:
        yield "The trace does not record its rank; PyTorch writes it where torch.distributed is initialised."


def _has_name(trace: Trace, pattern: str, *categories: Category) -> bool:
    """True where an event of some categories has a name that the pattern finds."""
    return bool(trace.match_name(pattern)[trace.find_rows(*categories)].any())


RANK = re.compile(r"rank[-_.]?(\d{1,9})", re.IGNORECASE)

"""The rank in the name of a file."""


def read_trace(path: str | Path, *, progress: Progress | None = None) -> Trace:
    """
    Read the trace of one rank from a file that PyTorch's profiler wrote (``export_chrome_trace``), plain or with gzip.

    Parameters
    ----------
    path
        The file.
    progress
        Called repeatedly with the fraction of the file that has been read.

    Returns
    -------
    Trace
        Its ``doubts`` list missing information. In a broken file, everything before the broken place is kept.

    Raises
    ------
    SpecError
        If the file cannot be read, is another format, or holds no events or more than fit into memory.
    """
    where = str(path)
    text = Source(Path(path), progress)
    document, columns = Document(text, where), Columns(where)
    for events in document.batches():
        columns.add(events)
    if not len(columns):
        raise no_events(where, document, columns, text)
    lost, (about, library), last = losses(document, columns, text), read_description(document.top), columns.start[-1]
    trace = assemble_trace(columns, about, library, where)
    until = about["begin"] + last - trace.begin if document.truncated else None  # else it broke behind the events
    return replace(trace, whole_until=until, doubts=(*lost, *doubts(trace)))


def read_traces(paths: Sequence[str | Path], *, progress: Progress | None = None) -> tuple[Trace, ...]:
    """
    Read the traces of the ranks of one run, in the order of their ranks.

    Parameters
    ----------
    paths
        A file of each rank. A single file need not say its rank.
    progress
        Called repeatedly with the fraction of all files that has been read.

    Raises
    ------
    SpecError
        As :func:`read_trace` does, and if a rank occurs twice, is not known, or belongs to another run.
    """
    return _one_run(_read(paths, progress))


def read_recordings(paths: Sequence[str | Path]) -> tuple[Trace, ...]:
    """
    Read the traces of one run or of several: one run after the other, each in the order of its ranks.

    Parameters
    ----------
    paths
        As in :func:`read_traces`; several runs may have several files of a rank.

    Raises
    ------
    SpecError
        As :func:`read_traces` does within a run, and if a file is named twice.
    """
    several = [os.path.realpath(path) for path in paths]
    for place, path in enumerate(several):
        if path in several[:place]:
            raise SpecError(str(paths[place]), "is named twice.", "Name each file once.")
    traces = _read(paths, None)
    runs = runs_of([_add_known_rank(trace) or trace for trace in traces])
    return _one_run(traces) if len(runs) == 1 else tuple(trace for run in runs for trace in _one_run(run))


def runs_of(traces: Sequence[Trace]) -> tuple[tuple[Trace, ...], ...]:
    """
    Group traces by run.

    Traces of different ranks are one run. If a rank occurs twice, a run is traces of different ranks with the same
    world size whose times overlap. A trace without a rank is then a run of its own.

    Parameters
    ----------
    traces
        In any order.
    """
    ranks = [trace.rank for trace in traces]
    if len(set(ranks)) == len(ranks):
        return (tuple(traces),)
    runs: list[list[Trace]] = []
    for trace in sorted(traces, key=lambda one: one.begin):
        run = next((run for run in runs if all(_is_same_run(trace, other) for other in run)), None)
        if run is None:
            runs.append([trace])
        else:
            run.append(trace)
    return tuple(map(tuple, runs))


def _is_same_run(one: Trace, other: Trace) -> bool:
    """True where two traces are of different ranks of one run."""
    if None in (one.rank, other.rank) or one.rank == other.rank or one.world_size != other.world_size:
        return False
    ends = [trace.begin + int(trace.events.end.max(initial=0)) for trace in (one, other)]
    return max(one.begin, other.begin) <= min(ends)


def _read(paths: Sequence[str | Path], progress: Progress | None) -> list[Trace]:
    if not paths:
        raise SpecError("traces", "there are none.", "Name a file of each rank that was recorded.")
    return [read_trace(path, progress=_part_progress(progress, place, len(paths))) for place, path in enumerate(paths)]


def _one_run(traces: Sequence[Trace]) -> tuple[Trace, ...]:
    if len(traces) > 1:
        traces = sorted(map(_require_rank, traces), key=lambda trace: trace.rank or 0)
    _require_one_run(traces)
    missing = _missing_ranks(traces)
    return (replace(traces[0], doubts=(*traces[0].doubts, *missing)), *traces[1:])


def _part_progress(progress: Progress | None, place: int, num_files: int) -> Progress | None:
    """Return the progress of one file among several."""
    return (lambda fraction: progress((place + fraction) / num_files)) if progress else None


def _require_rank(trace: Trace) -> Trace:
    """
    Return the trace with its rank, from the name of the file where the trace does not say it.

    Raises
    ------
    SpecError
        If neither says it.
    """
    known = _add_known_rank(trace)
    if not known:
        raise SpecError(trace.source, "does not record its rank.", "Put it into the name: 'rank3.json.gz'.")
    return known


def _add_known_rank(trace: Trace) -> Trace | None:
    """Return the trace with its rank; None where neither the trace nor the name of its file says it."""
    if trace.rank is not None:
        return trace
    said = RANK.search(Path(trace.source).name)
    if not said:
        return None
    doubt = f"Its name says that the trace is of rank {int(said[1])}; the trace does not."
    return replace(trace, rank=int(said[1]), doubts=(*trace.doubts, doubt))


def _require_one_run(traces: Sequence[Trace]) -> None:
    by_rank: dict[int | None, str] = {}
    for trace in traces:
        if trace.rank in by_rank:
            raise SpecError(trace.source, f"is of rank {trace.rank}, and so is {by_rank[trace.rank]}.")
        by_rank[trace.rank] = trace.source
        if None not in (trace.rank, trace.world_size) and (trace.rank or 0) >= (trace.world_size or 1):
            raise SpecError(trace.source, f"is of rank {trace.rank}, but its job has {trace.world_size} ranks.")
    sizes = {trace.world_size: trace.source for trace in traces if trace.world_size is not None}
    if len(sizes) > 1:
        (size, source), (other_size, other) = list(sizes.items())[:2]
        raise SpecError(other, f"is of a job of {other_size} ranks, but {source} of one of {size}: different runs.")


def _missing_ranks(traces: Sequence[Trace]) -> tuple[str, ...]:
    world_size = max(trace.world_size or 1 for trace in traces)
    missing = sorted(set(range(world_size)) - {trace.rank or 0 for trace in traces})
    if not missing:
        return ()
    some = ", ".join(map(str, missing[:MOST_NAMED])) + (", ..." if len(missing) > MOST_NAMED else "")
    return (
        f"Traces of {len(traces):,} of {world_size:,} ranks were read, not of rank {some}: how long collectives wait "
        "for those is unknown, and stays as recorded. Record every rank, or one of each pipeline stage.",
    )
