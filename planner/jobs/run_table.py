"""
Rows of a file of measured runs: read, validated one by one, refused with a reason where they are wrong.

A column is a fact about the measurement (``COLUMNS``), or a dotted key of a job file, such as
``training.global_batch_size`` or ``strategy.tp``. An empty cell means that the source does not state it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.quantities import COUNT, GIBIBYTES, SECONDS
from costmodel.record import record
from costmodel.validation import shown
from planner.jobs.document import nest_entries, parse_count, similar_files
from planner.jobs.entries import Job, kinds

Pair: TypeAlias = tuple[str, str, Callable[[Any, Any], bool], str]


def require_no_contradiction(cell: Callable[[str], Any]) -> None:
    """
    Refuse a row whose settings and decisions exclude each other.

    A row that leaves one of both open is not wrong: its framework's default ran.

    Parameters
    ----------
    cell
        Function that returns a column's value in the row, None where it is empty.

    Raises
    ------
    SpecError
        With both columns.
    """
    for column, other, excludes, why in (*PAIRS, *_processors(cell)):
        value, other_value = cell(column), cell(other)
        if value is not None and other_value is not None and excludes(value, other_value):
            raise SpecError(column, f"{shown(value)} contradicts {other} = {shown(other_value)}: {why}.")


def _is_in_16_bits(precision: Any) -> bool:
    name = precision.get("base") if isinstance(precision, Mapping) else precision
    return name in ("bf16", "fp16")


def _are_modules(graphs: Any) -> bool:
    return graphs not in ("none", "full_iteration")


PAIRS: tuple[Pair, ...] = (
    (
        "settings.fp8_param_gather",
        "training.precision",
        lambda gather, precision: gather == 1 and _is_in_16_bits(precision),
        "there are no 8-bit weights to gather",
    ),
    (
        "settings.optimizer_group",
        "strategy.sharding",
        lambda _, sharding: sharding == "none",
        "no ranks share optimizer states",
    ),
    (
        "settings.offloaded_layers",
        "strategy.activation_offload",
        lambda _, offload: offload == 0,
        "no layer is offloaded",
    ),
    *(
        (name, "strategy.optimizer_offload", lambda _, offload: offload == 0, "no optimizer state is offloaded")
        for name in ("settings.offloaded_states", "settings.offloaded_masters", "settings.offload_overlap")
    ),
    (
        "strategy.cuda_graphs",
        "strategy.recompute",
        lambda graphs, recompute: _are_modules(graphs) and recompute == "full",
        "layers that are recomputed whole are in no graph of modules",
    ),
    (
        "strategy.sequence_parallel",
        "strategy.tp",
        lambda parallel, tp: parallel == 1 and tp == 1,
        "there are no ranks to split a sequence over",
    ),
    (
        "strategy.vpp",
        "strategy.pp",
        lambda vpp, pp: pp == 1 and isinstance(vpp, int) and vpp > 1,
        "one stage has no virtual ones",
    ),
    (
        "strategy.token_dispatcher",
        "strategy.ep",
        lambda dispatcher, ep: ep == 1 and dispatcher != "alltoall",
        "no token leaves its device",
    ),
    (
        "strategy.ep_overlap",
        "strategy.ep",
        lambda overlap, ep: overlap == 1 and ep == 1,
        "no token leaves its device",
    ),
    (
        "settings.communication_sms",
        "strategy.ep",
        lambda _, ep: ep == 1,
        "no token leaves its device",
    ),
    (
        "settings.communication_sms",
        "strategy.token_dispatcher",
        lambda _, dispatcher: dispatcher == "alltoall",
        "an all-to-all has no kernels that take processors of their own",
    ),
)

"""Two columns, a test that their values exclude each other, and the reason."""


def _processors(cell: Callable[[str], Any]) -> Iterator[Pair]:
    """Yield communication SMs against the processors of a device in the catalog."""
    name = cell("cluster.device")
    most = catalog.device(name).num_processors if isinstance(name, str) and catalog.find_unique_device(name) else None
    if most is not None:
        why = f"it has {most} processors"
        yield "settings.communication_sms", "cluster.device", lambda sms, _: isinstance(sms, int) and sms > most, why


REQUIRED = ("id", "model", "cluster.device", "cluster.num_devices")

"""Columns without which a row cannot be predicted."""

ESSENTIAL = ("training.global_batch_size", "training.sequence_length", "strategy.mbs", "strategy.tp", "strategy.pp")

"""Cells without which a row has no layout."""

COLUMNS = (
    "id",
    "source",
    "date",
    "kind",
    "usable",
    "quality",
    "refused",
    "step_seconds",
    "tokens_per_second_per_device",
    "tflops_per_device",
    "peak_memory_gib",
    "memory_kind",
    "not_modelled",
)

"""Columns besides keys of a job; other columns without a dot are comments."""

SECTIONS = tuple(one.name for one in fields(Job))

"""First words of the keys of a job."""

PLANNED = "planned"

"""Kind of a run that was not measured yet; ``planner calibrate`` orders these by their information."""

KINDS = ("pretrain", "proxy", "finetune", "adapters", "oom", "component", PLANNED)

MEMORY_KINDS = ("allocated", "reserved", "nvidia-smi", "unspecified")

FORMER = {
    "gpu": "cluster.device",
    "n_gpus": "cluster.num_devices",
    "seq_len": "training.sequence_length",
    "gbs": "training.global_batch_size",
    "mbs": "strategy.mbs",
    "tp": "strategy.tp",
    "pp": "strategy.pp",
    "dtype": "training.precision",
    "recompute": "strategy.recompute",
    "framework": "cluster.framework",
    "step_time_s": "step_seconds",
}

"""Columns of the tables of 0.1, which identify such a table, and their present names."""

CONVERTER = "python -m benchmarks.measured_runs --runs OLD.csv -o FOLDER, in the project's checkout, converts a table."

FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}

"""Spellings of true and false; pandas writes ``1.0`` in a column with empty cells, spreadsheets ``TRUE``."""

UNITS = {"step_seconds": SECONDS, "peak_memory_gib": GIBIBYTES}

"""Measurements that may be written with a unit."""

LONGEST_ID = 200

THROUGHPUT_TOLERANCE = 0.1

"""Largest difference between step time and tokens per second: the coarsest printed throughput is rounded to 4 %."""


@record(frozen=True, kw_only=True, slots=True)
class Run:
    """
    One measured run as its row states it.

    Parameters
    ----------
    id, source, date, kind
        Its origin, and its kind.
    entries
        Entries of the job in the row: sections and entries as in a job file, including ``strategy``.
    step_seconds, tokens_per_second, tflops, peak_memory_gib, memory_kind
        Measurements, per device; None where there are none.
    not_modelled
        Features without a formula in the cost model.
    doubts
        Doubts, without a full stop: names that were replaced by known ones.
    """

    id: str
    source: str
    date: str
    kind: str
    entries: Mapping[str, Any] = field(hash=False)
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    tflops: float | None = None
    peak_memory_gib: float | None = None
    memory_kind: str = ""
    not_modelled: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def get(self, key: str) -> Any:
        """Return the row's value under a dotted key; None where it has none."""
        value: Any = self.entries
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @property
    def model(self) -> str:
        """Key of its model."""
        model = self.entries["model"]
        return str(model["base"] if isinstance(model, Mapping) else model)

    @property
    def device(self) -> str:
        """Name of its device."""
        return Path(str(self.get("cluster.device"))).stem

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return int(self.get("cluster.num_devices"))


@record(frozen=True, kw_only=True, slots=True)
class RejectedRow:
    """
    A row that is not predicted.

    Parameters
    ----------
    id
        Id of the row, or its line.
    reason
        Reason, a full sentence or the row's own words.
    is_usable, is_refused
        True where the file offers the row for prediction; True where the row itself has an error.
    step_seconds, peak_memory_gib
        Measurements, where they can be read.
    """

    id: str
    reason: str
    is_usable: bool
    is_refused: bool
    step_seconds: float | None = None
    peak_memory_gib: float | None = None


def read(path: Path) -> Iterator[Run | RejectedRow]:
    """
    Yield every row of a file, valid or not.

    Parameters
    ----------
    path
        CSV with the columns ``REQUIRED`` and others.

    Raises
    ------
    SpecError
        If there is no table to read: no such file, no header, or one that is not text.
    """
    try:
        with path.open(encoding="utf-8-sig", errors=BROKEN_BYTES, newline="") as file:
            yield from read_rows(csv.DictReader(file), str(path))
    except FileNotFoundError:
        raise SpecError(str(path), "no such file.", similar_files(path)) from None
    except (OSError, csv.Error) as error:
        raise SpecError(str(path), f"cannot be read as CSV: {getattr(error, 'strerror', None) or error}.") from None


BROKEN_BYTES = "surrogateescape"

"""Error handler that keeps bytes which are not UTF-8 in a cell until its row is refused."""


def read_rows(reader: csv.DictReader[str], where: str) -> Iterator[Run | RejectedRow]:
    """Yield the rows of an open table; errors as in :func:`read`."""
    if not reader.fieldnames:
        raise SpecError(where, "is empty; its first line must name the columns.")
    if any(_find_broken_byte(name) is not None for name in reader.fieldnames):
        raise SpecError(where, "cannot be read as CSV: its first line is not UTF-8.")
    _require_columns(reader.fieldnames, where)
    seen: set[str] = set()
    for cells in _records(reader):
        row = _row(cells, line=reader.reader.line_num, seen=seen)
        yield row
        if isinstance(row, Run) or not row.is_refused:
            seen.add(row.id)


def is_job_key(column: str) -> bool:
    """Return True if a column is a key of a job file."""
    return column == "model" or ("." in column and column.partition(".")[0] in SECTIONS)


def _require_columns(columns: Sequence[str], where: str) -> None:
    missing = [column for column in REQUIRED if column not in columns]
    former = [column for column in FORMER if column in columns]
    if missing and len(former) > 1:
        renamed = ", ".join(f"{column} -> {FORMER[column]}" for column in former)
        raise SpecError(where, f"has columns of an older format, which were renamed: {renamed}.", CONVERTER)
    if missing:
        problem = f"no such column; {len(missing)} of {len(REQUIRED)} are missing."
        raise SpecError(f"{where}: {missing[0]}", problem, did_you_mean(missing[0], columns))
    known = {*COLUMNS}
    for column in columns:
        if "." in column and not is_job_key(column):
            section = column.partition(".")[0]
            raise SpecError(f"{where}: {column}", "is not a key of a job file.", did_you_mean(section, SECTIONS))
        if column in FORMER and column not in known:
            raise SpecError(f"{where}: {column}", f"is called {FORMER[column]} now.")


def _records(reader: csv.DictReader[str]) -> Iterator[Mapping[str, str] | csv.Error]:
    """Yield every record, or its error: after a cell that is too long, the reader continues with the next line."""
    while True:
        try:
            cells: Mapping[str, str] | csv.Error = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = error
        yield cells


def _row(cells: Mapping[str, str] | csv.Error, *, line: int, seen: set[str]) -> Run | RejectedRow:
    if isinstance(cells, csv.Error):
        return _not_run({}, line, f"row: cannot be read as CSV: {cells}.", is_refused=True)
    try:
        _require_whole(cells)
        if cells["id"].strip() in seen:
            raise SpecError("id", f"{shown(cells['id'].strip())} is the id of an earlier row too.")
        if reason := _not_offered(cells):
            return _not_run(cells, line, reason, is_usable=False)
        if cells.get("refused", "").strip():
            return _not_run(cells, line, cells["refused"].strip(), is_refused=True)
        if missing := [column for column in ESSENTIAL if not cells.get(column, "").strip()]:
            return _not_run(cells, line, f"no layout: the row lacks {', '.join(missing)}")
        return read_run(cells)
    except SpecError as error:
        return _not_run(cells, line, str(error), is_refused=True)


def _require_whole(cells: Mapping[str, str]) -> None:
    if None in cells or None in cells.values():
        problem = "has fewer cells than the header" if None in cells.values() else "has more cells than the header"
        raise SpecError("row", f"{problem}.")
    for column, cell in cells.items():
        if (byte := _find_broken_byte(cell)) is not None:
            raise SpecError(column, f"is not UTF-8: it has the byte 0x{byte:02x}.")
    if not cells["id"].strip():
        raise SpecError("id", "is empty.")


def _find_broken_byte(cell: str) -> int | None:
    """Return the first byte of a cell that is not UTF-8."""
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError as error:
        return ord(cell[error.start]) & 0xFF
    return None


def _not_offered(cells: Mapping[str, str]) -> str:
    """Return the reason that the file does not offer a row for prediction; "" if it does."""
    usable, quality = cells.get("usable", "1").strip(), cells.get("quality", "").strip()
    if not usable:
        raise SpecError("usable", "expected 0 or 1, got nothing.")
    if usable.lower() not in FLAGS:
        raise SpecError("usable", f"expected 0 or 1, got {shown(usable)}.")
    if quality.startswith("excluded"):
        return quality
    return "" if FLAGS[usable.lower()] else "usable = 0: layout or architecture not complete, or no measurement"


def _not_run(
    cells: Mapping[str, str], line: int, reason: str, *, is_usable: bool = True, is_refused: bool = False
) -> RejectedRow:
    return RejectedRow(
        id=_printable_id(cells.get("id") or "") or f"line {line}",
        reason=reason,
        is_usable=is_usable,
        is_refused=is_refused,
        step_seconds=_number_or_none(cells.get("step_seconds")),
        peak_memory_gib=_number_or_none(cells.get("peak_memory_gib")),
    )


def _printable_id(cell: str) -> str:
    """Return the cell with a mark for each byte that is not UTF-8; "" where it is too long to be an id."""
    return cell.encode("utf-8", BROKEN_BYTES).decode("utf-8", "replace").strip() if len(cell) <= LONGEST_ID else ""


def _number_or_none(cell: str | None) -> float | None:
    try:
        number = float(cell) if cell else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


# --- one row -----------------------------------------------------------------------------------------------
def read_run(cells: Mapping[str, str]) -> Run:
    """
    Read a row that is offered and has a layout.

    Raises
    ------
    SpecError
        If a cell is wrong, or the row contradicts itself.
    """
    run = Run(
        id=cells["id"].strip(),
        source=cells.get("source", "").strip(),
        date=cells.get("date", "").strip(),
        kind=_choice(cells, "kind", ("", *KINDS)) or "pretrain",
        entries=_entries(cells),
        step_seconds=positive_or_none(cells, "step_seconds"),
        tokens_per_second=positive_or_none(cells, "tokens_per_second_per_device"),
        tflops=positive_or_none(cells, "tflops_per_device"),
        peak_memory_gib=positive_or_none(cells, "peak_memory_gib"),
        memory_kind=_choice(cells, "memory_kind", ("", *MEMORY_KINDS)),
        not_modelled=tuple(part.strip() for part in cells.get("not_modelled", "").split(";") if part.strip()),
    )
    _require_consistent(run)
    require_no_contradiction(run.get)
    return run


def _entries(cells: Mapping[str, str]) -> dict[str, Any]:
    """Return the cells of a job's keys, nested as in a job file."""
    model = cells["model"].strip()
    said = {column: cell.strip() for column, cell in cells.items() if is_job_key(column) and column != "model"}
    entries = nest_entries({column: plain(cell, column) for column, cell in said.items() if cell})
    entries["model"] = {"base": model, **entries["model"]} if entries.get("model") else model
    return entries


def plain(cell: str, column: str) -> Any:
    """
    Read a cell as YAML; numbers that a spreadsheet wrote as 8.0 are whole, and may have the units of job files.

    >>> plain("8k", "training.sequence_length")
    8192
    >>> plain("8.0", "strategy.tp"), plain("true", "strategy.dp_overlap"), plain("{layers: [3, 4]}", "strategy.layout")
    (8, True, {'layers': [3, 4]})
    """
    if cell[0] in "{[":
        try:
            return yaml.load(cell, Loader=catalog.LOADER)
        except yaml.YAMLError:
            raise SpecError(column, f"cannot be read as YAML: {shown(cell)}.") from None
    lowered = cell.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    number = _number_or_none(cell)
    if number is None or not (cell[0].isdigit() or cell[0] in "+-."):
        kind = kinds().get(column, COUNT if column.startswith("strategy.") else None)
        return parse_count(cell, column, kind) if kind else cell
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _require_consistent(run: Run) -> None:
    """Raise if cells of the row contradict each other."""
    if run.kind == "oom" and run.step_seconds is not None:
        raise SpecError("step_seconds", f"must be empty for a run that did not fit, got {run.step_seconds:g}.")
    if run.kind == PLANNED and run.step_seconds is not None:
        raise SpecError("step_seconds", f"must be empty for a planned run, got {run.step_seconds:g}.")
    if run.kind not in ("oom", PLANNED) and run.step_seconds is None and run.peak_memory_gib is None:
        raise SpecError("step_seconds", "is empty, as is peak_memory_gib; nothing was measured.")
    counts = {key: _count(run, key) for key in ("cluster.num_devices", *ESSENTIAL)}
    degrees = [counts["strategy.tp"], _count(run, "strategy.cp", 1), counts["strategy.pp"]]
    num_devices, product = counts["cluster.num_devices"], math.prod(degrees)
    if num_devices % product:
        raise SpecError("cluster.num_devices", f"{num_devices} is not a multiple of tp x cp x pp = {product}.")
    dp = num_devices // product
    if (stated := run.get("strategy.dp")) is not None and stated != dp:
        raise SpecError("strategy.dp", f"is {stated}, but num_devices / (tp x cp x pp) gives {dp}.")
    tokens_per_second = run.tokens_per_second
    if run.step_seconds is not None and tokens_per_second is not None:
        tokens = counts["training.global_batch_size"] * counts["training.sequence_length"]
        from_time = tokens / num_devices / run.step_seconds
        if abs(tokens_per_second / from_time - 1) > THROUGHPUT_TOLERANCE:
            problem = f"{tokens_per_second:g} does not agree with step_seconds, batch and sequence: {from_time:g}."
            raise SpecError("tokens_per_second_per_device", problem)


def _count(run: Run, key: str, default: int | None = None) -> int:
    value = run.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise SpecError(key, f"expected a whole number from 1 to {MOST:,}, got {shown(value)}.")
    return value


MOST = 10**9

"""Largest count in a row."""


def _choice(cells: Mapping[str, str], column: str, choices: tuple[str, ...]) -> str:
    cell = cells.get(column, "").strip()
    if cell not in choices:
        raise SpecError(column, f"unknown entry {shown(cell)}.", did_you_mean(cell, [c for c in choices if c]))
    return cell


def positive_or_none(cells: Mapping[str, str], column: str) -> float | None:
    """Return a finite number above 0, or None for an empty cell; raise a :class:`SpecError` for anything else."""
    cell = cells.get(column, "").strip()
    if not cell:
        return None
    given = parse_count(cell, column, UNITS[column]) if column in UNITS else cell
    try:
        number = float(str(given))
    except ValueError:
        raise SpecError(column, f"expected a number, got {shown(cell)}.") from None
    if not math.isfinite(number) or number <= 0:
        raise SpecError(column, f"must be a number above 0, got {shown(cell)}.")
    return number
