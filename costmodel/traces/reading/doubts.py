"""What a trace lacks, what that means, and how to record it."""

from __future__ import annotations

from costmodel.traces.events import Trace
from costmodel.traces.reading.columns import Columns
from costmodel.traces.reading.document import Document
from costmodel.traces.reading.sources import Source


def mended(document: Document, columns: Columns, text: Source) -> tuple[str, ...]:
    """What was left out of the file."""
    return ()


def doubts(trace: Trace) -> tuple[str, ...]:
    return ()
