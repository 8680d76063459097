"""The rows of a file of measured runs: read, validated one by one, refused with a reason where they are wrong."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown

COLUMNS = (
    "id",
    "quality",
    "source",
    "date",
    "framework",
    "kind",
    "usable",
    "gpu",
    "n_gpus",
    "gpus_per_node",
    "nvlink_domain",
    "model",
    "seq_len",
    "gbs",
    "mbs",
    "tp",
    "cp",
    "ep",
    "etp",
    "pp",
    "vp",
    "dp",
    "sp",
    "dtype",
    "recompute",
    "optimizer",
    "offload",
    "overlaps",
    "cuda_graph",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "peak_memory_gib",
    "memory_kind",
    "notes",
)
"""What the benchmark reads; the other columns of ``runs.csv`` may be missing."""

ESSENTIAL = ("n_gpus", "seq_len", "gbs", "mbs", "tp", "pp")
"""Without one of them there is no layout to predict."""

KINDS = ("pretrain", "proxy", "finetune", "oom", "component")
MEMORY_KINDS = ("allocated", "reserved", "nvidia-smi", "unspecified")
MOST_CHUNKS = "max (1 layer per chunk)"
"""What the Zero-Bubble rows write into ``vp``."""

MOST = 10**9
"""Of whatever a row counts."""

FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
"""How programs write yes and no; pandas makes ``1.0`` of a column with empty cells, spreadsheets ``TRUE``."""

LONGEST_ID = 200

SUMS_OF_PARTS = "vtrain-single-"
"""How ids of vTrain's runs on one node begin."""

THROUGHPUT_TOLERANCE = 0.1
"""How far step time and tokens per second may disagree: the coarsest printed throughput is rounded to 4 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """
    One measured run as its row states it; None where the source does not say.

    Parameters
    ----------
    id, source, date, framework, kind
        Where it comes from, and what was run.
    gpu, num_devices, devices_per_node, scale_up_size
        Hardware.
    model, sequence_length, global_batch_size
        Work.
    mbs, tp, cp, ep, etp, pp, vpp, dp, sequence_parallel
        Layout; ``vpp`` is 0 where the row says one layer per chunk.
    dtype, recompute, optimizer, offload, overlaps, cuda_graph
        Features, in the words of the row; empty where the source does not say.
    step_seconds, peak_memory_gib, memory_kind
        Measurements.
    notes
        How the row was derived, what is odd about it.
    """

    id: str
    source: str
    date: str
    framework: str
    kind: str
    gpu: str
    num_devices: int
    devices_per_node: int | None
    scale_up_size: int | None
    model: str
    sequence_length: int
    global_batch_size: int
    mbs: int
    tp: int
    cp: int
    ep: int
    etp: int | None
    pp: int
    vpp: int | None
    dp: int | None
    sequence_parallel: bool | None
    dtype: str
    recompute: str
    optimizer: str
    offload: str
    overlaps: str
    cuda_graph: str
    step_seconds: float | None
    peak_memory_gib: float | None
    memory_kind: str
    notes: str

    @property
    def is_sum_of_parts(self) -> bool:
        """Whether its step is a sum of layers that were timed alone (``benchmarks/measured_runs/README.md``)."""
        return self.id.startswith(SUMS_OF_PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class NotRun:
    """
    A row that is not predicted.

    Parameters
    ----------
    id
        As the row has it, or its line.
    reason
        Why, a full sentence or the row's own words.
    is_usable, is_refused
        Whether the file offers the row for prediction; whether something is wrong with the row itself.
    step_seconds, peak_memory_gib
        Measurements, where they can be read.
    """

    id: str
    reason: str
    is_usable: bool
    is_refused: bool
    step_seconds: float | None = None
    peak_memory_gib: float | None = None


def read(path: Path) -> Iterator[Run | NotRun]:
    """
    Every row of a file, valid or not.

    Parameters
    ----------
    path
        CSV with the columns ``COLUMNS``.

    Raises
    ------
    SpecError
        If there is no table to read: no such file, no header, or one that is not text.
    """
    try:
        with path.open(encoding="utf-8-sig", errors=BROKEN_BYTES, newline="") as file:
            yield from _rows(csv.DictReader(file), str(path))
    except (OSError, csv.Error) as error:
        raise SpecError(str(path), f"cannot be read as CSV: {getattr(error, 'strerror', None) or error}.") from None


BROKEN_BYTES = "surrogateescape"
"""How bytes that are no UTF-8 stay in a cell until its row is refused."""


def _rows(reader: csv.DictReader[str], where: str) -> Iterator[Run | NotRun]:
    if not reader.fieldnames:
        raise SpecError(where, "is empty; its first line must name the columns.")
    if any(_broken_byte(name) is not None for name in reader.fieldnames):
        raise SpecError(where, "cannot be read as CSV: its first line is not UTF-8.")
    missing = [column for column in COLUMNS if column not in reader.fieldnames]
    seen: set[str] = set()
    for cells in _records(reader):
        row = _row(cells, line=reader.reader.line_num, missing=missing, seen=seen)
        yield row
        if isinstance(row, Run) or not row.is_refused:
            seen.add(row.id)


def _records(reader: csv.DictReader[str]) -> Iterator[Mapping[str, str] | csv.Error]:
    """Every record, or why it is none: after a cell that is too long, the reader goes on with the next line."""
    while True:
        try:
            cells: Mapping[str, str] | csv.Error = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = error
        yield cells


def _row(cells: Mapping[str, str] | csv.Error, *, line: int, missing: Sequence[str], seen: set[str]) -> Run | NotRun:
    if isinstance(cells, csv.Error):
        return _not_run({}, line, f"row: cannot be read as CSV: {cells}.", is_refused=True)
    try:
        _require_whole(cells, missing)
        if cells["id"].strip() in seen:
            raise SpecError("id", f"{shown(cells['id'].strip())} is the id of an earlier row too.")
        if reason := _not_offered(cells):
            return _not_run(cells, line, reason, is_usable=False)
        if unsaid := [column for column in ESSENTIAL if not cells[column].strip()]:
            return _not_run(cells, line, f"no layout: the row does not say {', '.join(unsaid)}")
        return _run(cells)
    except SpecError as error:
        return _not_run(cells, line, str(error), is_refused=True)


def _require_whole(cells: Mapping[str, str], missing: Sequence[str]) -> None:
    if missing:
        raise SpecError(missing[0], f"no such column; {len(missing)} of {len(COLUMNS)} are missing.")
    if None in cells or None in cells.values():
        problem = "has fewer cells than the header" if None in cells.values() else "has more cells than the header"
        raise SpecError("row", f"{problem}.")
    for column, cell in cells.items():
        if (byte := _broken_byte(cell)) is not None:
            raise SpecError(column, f"is not UTF-8: it has the byte 0x{byte:02x}.")
    if not cells["id"].strip():
        raise SpecError("id", "is empty.")


def _broken_byte(cell: str) -> int | None:
    """The first byte of a cell that is no UTF-8."""
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError as error:
        return ord(cell[error.start]) & 0xFF
    return None


def _not_offered(cells: Mapping[str, str]) -> str:
    """Why the file itself does not offer a row for prediction; empty if it does."""
    is_usable = _flag_or_none(cells, "usable")
    if is_usable is None:
        raise SpecError("usable", "expected 0 or 1, got nothing.")
    if cells["quality"].startswith("excluded"):
        return cells["quality"]
    if not is_usable:
        return "usable = 0: layout or architecture not complete, or no measurement"
    return ""


def _not_run(
    cells: Mapping[str, str], line: int, reason: str, *, is_usable: bool = True, is_refused: bool = False
) -> NotRun:
    return NotRun(
        id=_printable_id(cells.get("id") or "") or f"line {line}",
        reason=reason,
        is_usable=is_usable,
        is_refused=is_refused,
        step_seconds=_number_or_none(cells.get("step_time_s")),
        peak_memory_gib=_number_or_none(cells.get("peak_memory_gib")),
    )


def _printable_id(cell: str) -> str:
    """The cell with a mark for each byte that is no UTF-8; empty where it is no name, but the rest of a broken cell."""
    return cell.encode("utf-8", BROKEN_BYTES).decode("utf-8", "replace").strip() if len(cell) <= LONGEST_ID else ""


def _number_or_none(cell: str | None) -> float | None:
    try:
        number = float(cell) if cell else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


# --- one row -----------------------------------------------------------------------------------------------


def _run(cells: Mapping[str, str]) -> Run:
    run = Run(
        **{name: cells[name].strip() for name in _TEXTS},
        **{name: cells[name].strip().lower() for name in _WORDS},
        kind=_choice(cells, "kind", KINDS),
        num_devices=_count(cells, "n_gpus"),
        devices_per_node=_count_or_none(cells, "gpus_per_node"),
        scale_up_size=_count_or_none(cells, "nvlink_domain"),
        sequence_length=_count(cells, "seq_len"),
        global_batch_size=_count(cells, "gbs"),
        mbs=_count(cells, "mbs"),
        tp=_count(cells, "tp"),
        cp=_count_or_none(cells, "cp") or 1,
        ep=_count_or_none(cells, "ep") or 1,
        etp=_count_or_none(cells, "etp"),
        pp=_count(cells, "pp"),
        vpp=0 if cells["vp"].strip() == MOST_CHUNKS else _count_or_none(cells, "vp"),
        dp=_count_or_none(cells, "dp"),
        sequence_parallel=_flag_or_none(cells, "sp"),
        step_seconds=_positive_or_none(cells, "step_time_s"),
        peak_memory_gib=_positive_or_none(cells, "peak_memory_gib"),
        memory_kind=_choice(cells, "memory_kind", ("", *MEMORY_KINDS)),
    )
    _require_consistent(run, _positive_or_none(cells, "tokens_per_s_per_gpu"))
    return run


_TEXTS = (
    "id",
    "source",
    "date",
    "framework",
    "gpu",
    "model",
    "notes",
)
_WORDS = ("dtype", "recompute", "optimizer", "offload", "overlaps", "cuda_graph")
"""Texts of few words, in which case says nothing."""


def _require_consistent(run: Run, tokens_per_second: float | None) -> None:
    """What the row says about itself agrees."""
    if run.kind == "oom" and run.step_seconds is not None:
        raise SpecError("step_time_s", f"must be empty for a run that did not fit, got {run.step_seconds:g}.")
    if run.kind != "oom" and run.step_seconds is None and run.peak_memory_gib is None:
        raise SpecError("step_time_s", "is empty, as is peak_memory_gib; nothing was measured.")
    if run.num_devices % (run.tp * run.cp * run.pp):
        problem = f"{run.num_devices} is not a multiple of tp x cp x pp = {run.tp * run.cp * run.pp}."
        raise SpecError("n_gpus", problem)
    dp = run.num_devices // (run.tp * run.cp * run.pp)
    if run.dp is not None and run.dp != dp:
        raise SpecError("dp", f"{run.dp} is not n_gpus / (tp x cp x pp) = {dp}.")
    if run.step_seconds is not None and tokens_per_second is not None:
        from_time = run.global_batch_size * run.sequence_length / run.num_devices / run.step_seconds
        if abs(tokens_per_second / from_time - 1) > THROUGHPUT_TOLERANCE:
            problem = f"{tokens_per_second:g} does not agree with step_time_s, gbs, seq_len: {from_time:g}."
            raise SpecError("tokens_per_s_per_gpu", problem)


def _choice(cells: Mapping[str, str], column: str, choices: tuple[str, ...]) -> str:
    cell = cells[column].strip()
    if cell not in choices:
        raise SpecError(column, f"unknown entry {shown(cell)}.", did_you_mean(cell, [c for c in choices if c]))
    return cell


def _number(cells: Mapping[str, str], column: str) -> float:
    cell = cells[column].strip()
    try:
        number = float(cell)
    except ValueError:
        raise SpecError(column, "is empty." if not cell else f"expected a number, got {shown(cell)}.") from None
    if not math.isfinite(number) or number <= 0:
        raise SpecError(column, f"must be a number above 0, got {shown(cell)}.")
    return number


def _count(cells: Mapping[str, str], column: str) -> int:
    number = _number(cells, column)
    if number > MOST:
        raise SpecError(column, f"must be at most {MOST:,}, got {shown(cells[column])}.")
    if number != int(number):
        raise SpecError(column, f"must be a whole number, got {shown(cells[column])}.")
    return int(number)


def _count_or_none(cells: Mapping[str, str], column: str) -> int | None:
    return _count(cells, column) if cells[column].strip() else None


def _positive_or_none(cells: Mapping[str, str], column: str) -> float | None:
    return _number(cells, column) if cells[column].strip() else None


def _flag_or_none(cells: Mapping[str, str], column: str) -> bool | None:
    cell = cells[column].strip()
    if cell and cell.lower() not in FLAGS:
        raise SpecError(column, f"expected 0 or 1, got {shown(cell)}.")
    return FLAGS.get(cell.lower())
