"""Files of traces: those of several ranks, or one alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from costmodel.errors import SpecError
from planner.measure.traces.events import Trace
from planner.measure.traces.reading.assembly import assemble_trace
from planner.measure.traces.reading.columns import Columns
from planner.measure.traces.reading.described import read_description
from planner.measure.traces.reading.document import Document
from planner.measure.traces.reading.doubts import MOST_NAMED, doubts, losses, no_events
from planner.measure.traces.reading.sources import Progress, Source

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
        Its ``doubts`` list missing information. Of a broken file, everything before the broken place is kept.

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
    lost, about, last = losses(document, columns, text), read_description(document.top), columns.start[-1]
    trace = assemble_trace(columns, about, where)
    until = about.base + last - trace.begin if document.truncated else None  # else it broke behind the events
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


def read_recordings(paths: Sequence[str | Path], *, progress: Progress | None = None) -> tuple[Trace, ...]:
    """
    Read the traces of one run or of several: one run after the other, each in the order of its ranks.

    Parameters
    ----------
    paths, progress
        As in :func:`read_traces`; several runs may have several files of a rank.

    Raises
    ------
    SpecError
        As :func:`read_traces` does within a run, and if a file is named twice.
    """
    several = [os.path.realpath(path) for path in paths]
    for place, path in enumerate(several):
        if path in several[:place]:
            raise SpecError(str(paths[place]), "is named twice.")
    traces = _read(paths, progress)
    runs = runs_of([_add_known_rank(trace) or trace for trace in traces])
    return _one_run(traces) if len(runs) == 1 else tuple(trace for run in runs for trace in _one_run(run))


def runs_of(traces: Sequence[Trace]) -> tuple[tuple[Trace, ...], ...]:
    """
    Group traces by run.

    Traces of different ranks are one run. Where a rank occurs twice, a run is traces of different ranks with the same
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
        f"Traces of {len(traces):,} of {world_size:,} ranks were read, not of {some}: how long collectives wait for "
        "those is unknown, and stays as recorded. Record every rank, or one of each pipeline stage.",
    )
