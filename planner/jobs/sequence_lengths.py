"""Lengths of packed sequences: a histogram in the job, or a file with a length, or a length and its count, per line."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from costmodel.errors import NumberError, SpecError
from costmodel.facts.workload import SequenceLengths
from costmodel.quantities import COUNT, SEQUENCE, finite, number
from costmodel.validation import shown
from planner.jobs.document import HISTOGRAM, read_text
from planner.jobs.entries import TrainingSection

MAX_BYTES = 2**26
"""Size of a file of lengths; longer ones are written as lengths with counts."""

MAX_LENGTHS = 2**14
"""Largest number of different lengths."""

Histogram: TypeAlias = Mapping[str, Any]


def read_lengths(
    training: TrainingSection, folder: Path
) -> tuple[SequenceLengths | None, Histogram | None, Path | None]:
    """
    Read the lengths of the sequences that a job packs into samples; paths of its files are relative to the folder.

    Returns
    -------
    tuple
        The lengths, the histogram itself, and the file that names them; no lengths if every sample is one sequence.

    Raises
    ------
    SpecError
        If there is no such file, or a length or a count is impossible. Also if a length is beyond the sample.
    """
    entry, sequence_length, rank_tokens = (
        training.sequence_lengths,
        training.sequence_length,
        training.max_seqlen_per_dp_cp_rank,
    )
    if entry is None:
        problem = f"is {rank_tokens:,} without training.sequence_lengths, by which sequences are dealt."
        raise SpecError("training.max_seqlen_per_dp_cp_rank", problem, "Add the lengths, or take it out.")
    path: Path | None = None
    if isinstance(entry, str):
        path = folder / os.path.expanduser(entry)
        rows = _file_rows(path)
    else:
        rows = _entry_rows(entry)
    counts: defaultdict[int, float] = defaultdict(int)
    for where, length, count in rows:
        if length > sequence_length:
            raise SpecError(
                where,
                f"is {length:,} tokens, more than a sample has: training.sequence_length is {sequence_length:,}.",
                "Raise training.sequence_length, or give the lengths after long sequences are cut.",
            )
        counts[length] += count
        if len(counts) > MAX_LENGTHS:
            raise SpecError(
                where,
                f"is one length too many: at most {MAX_LENGTHS:,} different ones are allowed.",
                "Round them up to multiples of 64, as padding does.",
            )
    if not counts:
        raise SpecError(str(path or HISTOGRAM), "holds no length.", "Write {4k: 0.7, 32k: 0.3}.")
    histogram = {str(length): counts[length] for length in sorted(counts)}
    if [*counts] == [sequence_length] and rank_tokens is None:
        return None, histogram, path
    lengths = SequenceLengths(
        lengths=tuple(sorted(counts)), counts=tuple(map(float, histogram.values())), rank_tokens=rank_tokens
    )
    return lengths, histogram, path


def _entry_rows(entry: Histogram) -> Iterable[tuple[str, int, float]]:
    seen: dict[int, object] = {}
    for written, count in entry.items():
        where = f"{HISTOGRAM}.{written}"
        length = _length(str(written), where)
        if length in seen:
            raise SpecError(where, f"names the length {length:,} a second time, after {shown(seen[length])}.")
        seen[length] = written
        yield where, length, _count(count, where)


def _file_rows(path: Path) -> Iterable[tuple[str, int, float]]:
    """Yield place, length and count of each line; empty lines, comments (#) and a header are skipped."""
    for number_of, line in enumerate(read_text(path, MAX_BYTES).splitlines(), start=1):
        text, where = line.partition("#")[0].strip(), f"{path}, line {number_of}"
        if not text or (number_of == 1 and text.replace(" ", "").lower() in ("length", "length,count")):
            continue
        length, *count = (cell.strip() for cell in text.split(","))
        if len(count) > 1 or len(length.split()) != 1:
            raise SpecError(where, f"expected 'LENGTH' or 'LENGTH,COUNT', got {shown(text)}.", "Put a comma between.")
        yield where, _length(length, where), _count(count[0] if count else 1, where)


def _length(text: str, where: str) -> int:
    try:
        given = number(text, SEQUENCE)
        value = float(given)
    except NumberError as error:
        raise SpecError(where, error.problem, error.hint) from None
    except (ValueError, OverflowError):
        value = math.nan
    if not value.is_integer() or value < 1:
        raise SpecError(where, f"expected a length in tokens such as 4k or 4096, got {shown(text)}.")
    return int(value)


def _count(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SpecError(where, f"expected a number or a share of sequences, got {shown(value)}.")
    count = finite(str(value), COUNT, where)
    if not 0 < count <= 1e15:
        raise SpecError(where, f"expected a number or a share of sequences above 0, got {shown(value)}.")
    return int(count) if count.is_integer() else count
