"""
Rows of a file of measured runs, each as a job and a completed strategy, and the published recipes of the catalog.

Rows are validated one by one, and refused with a reason where they are wrong. A column is a fact about the measurement
(``COLUMNS``), or a dotted key of a job file, such as ``training.global_batch_size`` or ``strategy.tp``. An empty cell
means that the source does not state it.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from costmodel import catalog
from costmodel.catalog.files import read_table
from costmodel.catalog.releases import Release, release_of, stands_in
from costmodel.errors import PlanningError, SpecError, did_you_mean
from costmodel.facts.device import Cluster
from costmodel.facts.framework import Settings, lacks
from costmodel.models.patterns import Shape, shape_in
from costmodel.quantities import COUNT, GIBIBYTES, SECONDS
from costmodel.record import record
from costmodel.step.layouts import strategy_bytes
from costmodel.strategy import Recompute, Strategy, TokenDispatcher
from costmodel.tables import Facts
from costmodel.validation import shown
from planner.jobs.cluster import CATALOG, Fitted, device_path
from planner.jobs.document import decision_value, nest_entries, parse_count, read_text, similar_files
from planner.jobs.entries import RECORDS, SECTIONS, kinds
from planner.jobs.problem import Problem, load
from planner.jobs.strategy_file import (
    ENTRIES,
    StrategyFile,
    complete_strategy,
    read_given,
    require_features,
)

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

PLANNED = "planned"

"""Kind of a run that was not measured yet; ``planner calibrate`` orders these by their information."""

KINDS = ("pretrain", "proxy", "finetune", "adapters", "oom", "component", PLANNED)

MEMORY_KINDS = ("allocated", "reserved", "nvidia-smi", "unspecified")

SHORT_NAMES = {
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

"""Names that people give to columns, each with the column that is read; as a comment its cells would be lost."""

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
        Clauses, without a full stop, on names that were replaced by known ones.
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
    if short := [column for column in columns if column in SHORT_NAMES]:
        hint = f"Write {', '.join(SHORT_NAMES[column] for column in short)}."
        raise SpecError(f"{where}: {', '.join(short)}", "no such column.", hint)
    missing = [column for column in REQUIRED if column not in columns]
    if missing:
        problem = f"no such column; {len(missing)} of {len(REQUIRED)} are missing."
        raise SpecError(f"{where}: {missing[0]}", problem, did_you_mean(missing[0], columns))
    for column in columns:
        if "." in column and not is_job_key(column):
            section = column.partition(".")[0]
            raise SpecError(f"{where}: {column}", "is not a key of a job file.", did_you_mean(section, SECTIONS))
        _require_entry(column, where)
    if twice := [column for column, number in Counter(filter(None, columns)).items() if number > 1]:
        raise SpecError(f"{where}: {twice[0]}", "is the name of two columns.", "Leave one out, or rename it.")


def _require_entry(column: str, where: str) -> None:
    """Refuse a column of a section whose entry no job has: every cell of it would be lost."""
    section, _, entry = column.partition(".")
    known = _entries_of(section)
    if known and entry and entry.partition(".")[0] not in known:
        hint = did_you_mean(entry, known) or f"Known: {', '.join(sorted(known))}."
        raise SpecError(f"{where}: {column}", f"is no entry of {section}.", hint)


def _entries_of(section: str) -> tuple[str, ...]:
    """Return the entries of a section of a job file; none for a model, whose keys are those of its family."""
    if section == "strategy":
        return ENTRIES
    record_of = {**RECORDS, "settings": Settings}.get(section)
    return tuple(one.name for one in fields(record_of)) if record_of else ()


def find_time_column(path: Path) -> str:
    """Return the column of a table that probably holds step times, but is not called ``step_seconds``; "" if none."""
    with path.open(encoding="utf-8-sig", errors=BROKEN_BYTES, newline="") as file:
        columns = next(csv.reader(file), [])
    if "step_seconds" in columns:
        return ""
    others = [one for one in columns if "." not in one and one not in COLUMNS and not one.startswith("predicted")]
    near = difflib.get_close_matches("step_seconds", others, n=1)
    return next(iter([*near, *(one for one in others if any(word in one.lower() for word in TIME_WORDS))]), "")


TIME_WORDS = ("step", "iter", "second", "time")

"""Words in names that people give to a column of step times."""


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
        raise SpecError("id", "is empty.", "Give each row an id of its own.")


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


TOKENS = 1e12

"""Tokens of a whole training; a step does not depend on them."""

IMPOSSIBLE_MEMORY = 1.2

"""
Predicted peak over the device's memory above which the row must lack a setting: the software with the worst predictions
of memory is off by 18 % in the mean.
"""


class Unpredictable(PlanningError):
    """The row is valid, but the cost model has no formula for its measurement."""


@record(frozen=True, kw_only=True, slots=True)
class References:
    """
    Models, paths and devices that rows refer to, with jobs that were already built.

    Parameters
    ----------
    models
        Values for a job file's ``model``, by the keys of the rows; other keys are names of the catalog or paths.
    folder
        Folder of relative paths.
    fitted
        Constants instead of the catalog's.
    device
        Device that replaces unknown ones; empty if they are refused.
    problems, clusters
        Jobs and clusters by their input.
    """

    models: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    fitted: Fitted = CATALOG
    device: str = ""
    problems: dict[str, Problem] = field(default_factory=dict)
    clusters: dict[int, Facts] = field(default_factory=dict)

    def refit(self, fitted: Fitted) -> References:
        """Return these references with other constants: jobs are kept, clusters are built again."""
        return replace(self, fitted=fitted, clusters={})

    def facts(self, problem: Problem) -> Facts:
        """Return the facts of a job with these references' constants, shared by all rows of the job."""
        if self.fitted is CATALOG or problem.machine is None:
            return problem.facts
        if id(problem) not in self.clusters:
            cluster = problem.machine.cluster(self.fitted)
            made = Facts(model=problem.facts.model, cluster=cluster, workload=problem.facts.workload)
            self.clusters[id(problem)] = made
        return self.clusters[id(problem)]


def references(models: Path | None, folder: Path = Path()) -> References:
    """
    Read the references of rows.

    Parameters
    ----------
    models
        YAML of models by key, each a value of a job file's ``model``; None if rows name models of the catalog, or the
        path of their ``config.json``.
    folder
        Folder of relative paths in rows.

    Raises
    ------
    SpecError
        If the file cannot be read, or is not a mapping.
    """
    if models is None:
        return References(folder=folder)
    text = read_text(models)
    try:
        entries = yaml.load(text, Loader=catalog.LOADER)
    except yaml.YAMLError as error:
        raise SpecError(str(models), f"cannot be read as YAML: {error}.") from None
    if not isinstance(entries, dict):
        problem = f"expected a mapping of names to models, got {shown(entries)}."
        raise SpecError(str(models), problem, "Write a line such as my-model: {base: llama3-8b, num_layers: 40}.")
    return References(models={str(name): entry for name, entry in entries.items()}, folder=folder)


def require_a_step(run: Run) -> None:
    """
    Refuse rows that are not a training step of the whole model.

    Raises
    ------
    Unpredictable
        For single layers and for adapters.
    """
    if run.kind == "component":
        raise Unpredictable("a single layer, not a training step")
    if run.kind == "adapters":
        raise Unpredictable("fine-tuning of adapters: the cost model trains every parameter")


def job_of(run: Run, known: References) -> dict[str, Any]:
    """
    Return the job of a row, without its strategy, for :func:`planner.jobs.problem.load`.

    Raises
    ------
    SpecError
        If the row names an unknown model.
    Unpredictable
        If the sizes of its model are unknown.
    """
    sections = {name: entry for name, entry in run.entries.items() if name not in ("model", "strategy")}
    training = {"tokens": TOKENS, **sections.get("training", {})}
    return {**sections, "cluster": _cluster(run, known), "model": _model(run, known), "training": training}


def _cluster(run: Run, known: References) -> dict[str, Any]:
    """Return the row's cluster; an unknown device is replaced by the given one."""
    entries = run.entries["cluster"]
    name = entries.get("device")
    is_unknown = (
        isinstance(name, str) and catalog.find_unique_device(name) is None and device_path(name, known.folder) is None
    )
    return {**entries, "device": known.device} if known.device and is_unknown else entries


def _model(run: Run, known: References) -> Any:
    entries = run.entries["model"]
    changes = {name: value for name, value in entries.items() if name != "base"} if isinstance(entries, Mapping) else {}
    key = run.model
    entry = known.models.get(key, key)
    if isinstance(entry, Mapping) and "unknown" in entry:
        raise Unpredictable(str(entry["unknown"]))
    if isinstance(entry, str) and entry not in catalog.model_names() and not ("/" in entry or entry.endswith(".json")):
        hint = did_you_mean(key, known.models or catalog.model_names())
        raise SpecError("model", f"{key!r} is neither in the file of models nor in the catalog.", hint)
    if isinstance(entry, Mapping) and "base" in entry:
        return {**entry, **changes} if set(entry) - {"source"} != {"base"} or changes else entry["base"]
    return {"base": entry, **changes} if changes else entry


def problem_of(run: Run, known: References) -> Problem:
    """Load the job of a row as a user's job; rows of one job share it."""
    job = job_of(run, known)
    key = json.dumps(job, sort_keys=True, default=str)
    if key not in known.problems:
        known.problems[key] = load(job, name=run.id, folder=known.folder)
    return known.problems[key]


def strategy_of(run: Run, problem: Problem) -> tuple[Strategy, bool]:
    """
    Return the whole strategy of a row, with its framework's defaults; and True if some of it is inferred.

    A row of a dense model may name neither recomputation nor offload although it could not run without. It then has the
    recomputation of its framework's recipes. Such rows are not used in fits.

    Raises
    ------
    SpecError
        If a decision is unknown or impossible.
    """
    given = read_given(run.entries.get("strategy", {}))
    facts = problem.facts
    require_features(facts.cluster, given.decisions, "strategy")
    strategy = complete_strategy(facts, given)
    needed = facts.cluster.framework.recompute_if_needed if facts.cluster.framework else None
    if needed is None or facts.model.has_experts or unreported_peak_bytes(run, facts, strategy) is None:
        return strategy, False
    recompute = decision_value("recompute", needed, "recompute_if_needed")
    return complete_strategy(
        facts, StrategyFile(decisions={**given.decisions, "recompute": recompute}, layout=given.layout)
    ), True


def unreported_peak_bytes(run: Run, facts: Facts, strategy: Strategy) -> float | None:
    """Return the peak of a row without recomputation and offload if it exceeds the device's memory, else None."""
    if not leaves_out_recompute(run, strategy):
        return None
    peak, _ = strategy_bytes(facts, strategy)
    return peak if peak > IMPOSSIBLE_MEMORY * facts.cluster.device.memory_bytes else None


def leaves_out_recompute(run: Run, strategy: Strategy) -> bool:
    """Return True if a row that ran names neither recomputation nor offload, where its framework's default is none."""
    says = run.get("strategy.recompute") is not None or run.get("strategy.activation_offload") is not None
    return not says and run.kind != "oom" and strategy.recompute == Recompute.NONE


DISPATCHER = "token_dispatcher"

SPELLED: Mapping[str, TokenDispatcher] = {
    "alltoall": TokenDispatcher.ALLTOALL,
    "a2a": TokenDispatcher.ALLTOALL,
    "allgather": TokenDispatcher.ALLTOALL,
    "deepep": TokenDispatcher.DEEPEP,
    "hybridep": TokenDispatcher.HYBRIDEP,
}

"""Letters in names of dispatchers, and the dispatcher that moves tokens in the same way."""

LIKE = 0.75

"""Least share of letters that a name has in common with a dispatcher's."""


def replace_unknown_names(run: Run, cluster: Cluster) -> Run:
    """
    Return a row with known names in place of unknown ones, and its doubts.

    Parameters
    ----------
    run
        The row.
    cluster
        Its cluster, with the nearest release of its framework.
    """
    doubts: list[str] = []
    if cluster.framework is not None and cluster.unknown_release:
        doubts.append(stands_in(cluster.unknown_release, cluster.framework.name))
    strategy = dict(run.entries.get("strategy", {}))
    asked = strategy.get(DISPATCHER)
    if isinstance(asked, str) and asked not in {one.text for one in TokenDispatcher}:
        doubts += _resolve_dispatcher(strategy, asked, cluster)
    if not doubts and asked == strategy.get(DISPATCHER):
        return run
    return replace(run, entries={**run.entries, "strategy": strategy}, doubts=(*run.doubts, *doubts))


def _resolve_dispatcher(strategy: dict[str, Any], asked: str, cluster: Cluster) -> list[str]:
    """Put the nearest dispatcher of the framework into a strategy, or none for its default; return the doubt."""
    letters = "".join(one for one in asked.lower() if one.isascii() and one.isalnum())
    nearest = nearest_dispatcher(letters)
    framework = cluster.framework
    if nearest is None or (framework is not None and lacks(framework, DISPATCHER, int(nearest))):
        strategy.pop(DISPATCHER)
        return [f"token dispatcher {shown(asked)} is not known: costed as the framework's default"]
    strategy[DISPATCHER] = nearest.text
    if letters == nearest.text:
        return []
    return [f"token dispatcher {shown(asked)} is not known: costed as {nearest.text}, its nearest relative"]


def nearest_dispatcher(letters: str) -> TokenDispatcher | None:
    """
    Return the dispatcher whose letters are in a name, or nearly; None if none matches.

    >>> nearest_dispatcher("deepepv2"), nearest_dispatcher("hybirdep"), nearest_dispatcher("mori")
    (<TokenDispatcher.DEEPEP: 1>, <TokenDispatcher.HYBRIDEP: 2>, None)
    """
    spelled = next((one for part, one in SPELLED.items() if part in letters), None)
    if spelled is not None:
        return spelled
    near = difflib.get_close_matches(letters[:80], SPELLED, n=1, cutoff=LIKE)
    return SPELLED[near[0]] if near else None


TABLES = ("recipes/megatron-bridge.csv", "recipes/dgxc-benchmarking.csv")

PUBLISHER = "NVIDIA"
"""Publisher of the recipes in both tables."""

SEPARATOR = ";"


@record(frozen=True, kw_only=True, slots=True)
class Recipe:
    """
    One published layout; it is not known to be measured, or to be the best one.

    Parameters
    ----------
    cells
        Row of the table: job and decisions, by the columns of tables of measured runs.
    """

    cells: Mapping[str, str] = field(hash=False)

    @property
    def id(self) -> str:
        """Unique name."""
        return self.cells["id"]

    @property
    def name(self) -> str:
        """Published name."""
        return self.cells["recipe"]

    @property
    def source(self) -> str:
        """Project, tag and file that publish it."""
        return f"{self.cells['source']} {self.cells['source_ref']}"

    @property
    def releases(self) -> tuple[str, ...]:
        """Numbers of the releases that have it, oldest first."""
        return tuple(self.cells["releases"].split(SEPARATOR))

    @property
    def stack(self) -> str:
        """Software, such as ``megatron-bridge``."""
        return self.cells["cluster.framework"].rpartition("-")[0]

    @property
    def scales(self) -> tuple[int, ...]:
        """Numbers of devices for which it is published."""
        return tuple(map(int, self.cells["scales"].split(SEPARATOR)))

    @property
    def model(self) -> str:
        """Name of its model."""
        return self.cells["model"]

    @property
    def shape(self) -> Shape | None:
        """Shape of its model; None where the model is not known."""
        return shape_in(self.cells)

    @property
    def device(self) -> str:
        """Name of its device."""
        return self.cells["cluster.device"]

    @property
    def precision(self) -> str:
        """Name of its precision recipe."""
        return self.cells["training.precision"]

    @property
    def sequence_length(self) -> int | None:
        """Tokens per sequence; None where the source does not say."""
        return int(self.cells["training.sequence_length"]) if self.cells["training.sequence_length"] else None

    @property
    def batch_per_device(self) -> float:
        """Sequences per step and device."""
        return int(self.cells["training.global_batch_size"]) / int(self.cells["cluster.num_devices"])

    @property
    def refused(self) -> str:
        """Reason why it cannot run or be read; empty where it can."""
        return self.cells.get("refused", "")

    def framework(self, release: str) -> Release:
        """Return one of its releases, to be compared with others."""
        found = release_of(f"{self.stack}-{release}")
        assert found is not None, f"{self.id} names the release {release}"
        return found


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return every published recipe."""
    return tuple(Recipe(cells=row) for table in TABLES for row in read_table(table))


def recipe(name: str, among: Sequence[Recipe] = ()) -> Recipe:
    """
    Return the recipe with an id or a published name; with several layouts of one name, the newest.

    Parameters
    ----------
    name
        The id or the published name.
    among
        Recipes to suggest where there is no such name; empty: all.

    Raises
    ------
    SpecError
        If there is none; the hint suggests a name.
    """
    same = [one for one in recipes() if one.id == name]
    same = same or [one for one in recipes() if one.name.lower() == name.lower()]
    if not same:
        meant = among or recipes()
        known = [one.id for one in meant] + [one.name for one in meant]
        some = f"For this job: {', '.join(one.id for one in among[:MOST_LISTED])}." if among else LISTED
        raise SpecError("recipe", f"{shown(name)} is not known.", did_you_mean(name, known) or some)
    return max(same, key=lambda one: one.framework(one.releases[-1]).number)


MOST_LISTED = 5
"""Recipes that a message lists."""

LISTED = "planner catalog recipes MODEL DEVICE lists them."


def select_recipes(words: Sequence[str]) -> tuple[Recipe, ...]:
    """
    Return the recipes that all words describe: a model, a device, a precision or a release.

    Raises
    ------
    SpecError
        If a word is none of these.

    >>> {one.device for one in select_recipes(["llama3-70b", "h100", "bf16"])}
    {'h100-80gb-sxm'}
    """
    spelt = [_spell(word) for word in words]
    return tuple(one for one in recipes() if all(_says(one, word) for word in spelt))


def _says(one: Recipe, word: str) -> bool:
    return word in (one.model, one.device, one.precision, *one.releases)


def _spell(word: str) -> str:
    """Spell a word as the recipes do: devices and models may have any of their names."""
    own = _words(recipes())
    if word in own:
        return word
    found = catalog.find_unique_device(word)
    if found is not None and found.device in own:
        return found.device
    if (model := catalog.hub_names().get(word)) in own:
        return str(model)
    if (
        found is not None
        or catalog.means_several(word)
        or word in catalog.model_names()
        or word in catalog.precisions()
    ):
        raise SpecError("catalog", f"no published recipe is for {shown(word)}.", LISTED)
    raise SpecError("catalog", f"{shown(word)} is no model, device, precision or release.", did_you_mean(word, own))


def _words(of: Iterable[Recipe]) -> dict[str, None]:
    return dict.fromkeys(word for one in of for word in (one.model, one.device, one.precision, *one.releases))
