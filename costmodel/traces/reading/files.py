"""Files of traces: one of each rank, or of one alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from costmodel.errors import SpecError
from costmodel.traces.events import Trace
from costmodel.traces.reading.assembly import assembled
from costmodel.traces.reading.columns import Columns
from costmodel.traces.reading.described import described
from costmodel.traces.reading.document import Document
from costmodel.traces.reading.doubts import doubts, mended
from costmodel.traces.reading.sources import EXPORT, Progress, Source


def read_trace(path: str | Path, *, progress: Progress | None = None) -> Trace:
    """
    The trace of one rank, from a file that PyTorch's profiler wrote (``export_chrome_trace``), plain or with gzip.

    Parameters
    ----------
    path
        The file.
    progress
        Called now and then with the fraction of the file that has been read.

    Returns
    -------
    Trace
        Its ``doubts`` say what is missing; what was read of a file that is broken further on is kept.

    Raises
    ------
    SpecError
        If it cannot be read, is another format, holds no events, or more than memory does.
    """
    where = str(path)
    text = Source(Path(path), progress)
    document, columns = Document(text, where), Columns(where)
    for events in document.batches():
        columns.add(events)
    if not len(columns):
        raise _no_events(where, document, columns, text)
    losses = mended(document, columns, text)
    trace = assembled(columns, described(document.top), where)
    return replace(trace, doubts=(*losses, *doubts(trace)))


def _no_events(where, document, columns, text):
    return SpecError(where, "no events")


def read_traces(paths: Iterable[str | Path], *, progress=None) -> tuple[Trace, ...]:
    return tuple(read_trace(path) for path in paths)
