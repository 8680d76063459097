"""The jobs of a batch: files and folders, times the rows of a CSV file, times the combinations of a sweep."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown
from costmodel.version import version
from planner.batch.choices import MAX_JOBS
from planner.jobs.cluster import config_path, device_path
from planner.jobs.document import (
    NOWHERE,
    Document,
    Place,
    Plain,
    mapping_from_python,
    open_csv,
    parse,
    read_document,
    set_entry,
    similar_files,
    split_assignment,
)

MAX_VALUES = 1_000_000

"""Largest number of values of one entry."""

RANGE = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})(?:\.\.([0-9]{1,12}))?")

NEARLY_RANGE = re.compile(r"[+-]?[0-9][^/\s]*\.\.[^/\s]*|\w*\.\.[0-9]+")

"""Text that looks like a range but is none: two dots next to a number, and no path."""

CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}


def read_axis(assignment: str) -> tuple[str, tuple[Plain, ...]]:
    """
    Read ``key=value,value``: the dotted path of a job's entry, and at least one value that it takes in turn.

    Raises
    ------
    SpecError
        If it is no assignment, or a value is missing or a range empty.

    >>> read_axis("cluster.num_devices=64..512,768..1024..128")
    ('cluster.num_devices', (64, 128, 256, 512, 768, 896, 1024))
    >>> read_axis("search.allow.pp=[4, 8],[16]")
    ('search.allow.pp', ([4, 8], [16]))
    """
    name, equals, text = assignment.partition("=")
    key, _ = split_assignment(f"{name}{equals}")
    values = [value for item in _items(text) for value in _values(item, key)]
    return key, tuple(values)


def _items(text: str) -> Iterator[str]:
    """Split a text at commas that are outside brackets and quotes."""
    closing: list[str] = []
    begin = 0
    for index, letter in enumerate(text):
        quoted = bool(closing) and closing[-1] in "\"'"
        if closing and letter == closing[-1]:
            closing.pop()
        elif not quoted and letter in CLOSING:
            closing.append(CLOSING[letter])
        elif not closing and letter == ",":
            yield text[begin:index]
            begin = index + 1
    yield text[begin:]


def _values(item: str, key: str) -> Iterator[Plain]:
    if not item.strip():
        raise SpecError(key, "lacks a value.", "Write key=value, key=512,1024 or key=64..8192.")
    found = RANGE.fullmatch(item.strip())
    if not found:
        if NEARLY_RANGE.fullmatch(item.strip()):
            raise SpecError(
                key, f"{shown(item.strip())} is no range of whole numbers.", "Write 64..8192 or 64..512..64."
            )
        yield parse(item, key)
        return
    first, last, step = int(found[1]), int(found[2]), int(found[3]) if found[3] else None
    if first < 1 or last < first or step == 0:
        raise SpecError(key, f"the range {shown(item.strip())} holds nothing.", "Write 64..8192 or 64..512..64.")
    if step and (last - first) // step >= MAX_VALUES:
        raise SpecError(key, f"the range {shown(item.strip())} has more than {MAX_VALUES:,} values.")
    while first <= last:
        yield first
        first = first + step if step else 2 * first


KEY_BYTES = 16


def fingerprint(name: str, document: Mapping[str, Plain], folder: Path, mistake: str | None = None) -> str:
    """
    Hash a job: its name, its entries, the files that it names, and the version of this package.

    Parameters
    ----------
    name
        Name of the job.
    document
        Entries of the job, overrides included.
    folder
        Folder that its paths are relative to; not part of the hash.
    mistake
        Reason that it could not be read.
    """
    files = [_hash_file(path) for path in _input_files(document, folder)]
    text = json.dumps([version(), name, document, files, mistake], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * KEY_BYTES]


def _hash_file(path: Path) -> str:
    try:
        stat = path.stat()
        return _hash_content(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError):
        return "cannot be read"


@lru_cache(maxsize=2**10)
def _hash_content(path: Path, changed_ns: int, size: int) -> str:
    """Hash a file; as long as it does not change, once."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _input_files(document: Mapping[str, Plain], folder: Path) -> Iterator[Path]:
    """Yield the files that :func:`planner.load` would read; wrong names are skipped, as ``load`` reports them."""
    model, cluster, search = (document.get(name) for name in ("model", "cluster", "search"))
    try:
        path = config_path(model, folder) if isinstance(model, str) else None
    except SpecError:
        path = None
    if path is not None:
        yield path
    device = cluster.get("device") if isinstance(cluster, dict) else None
    if isinstance(device, str) and (path := device_path(device, folder)) is not None:
        yield path
    candidates = search.get("candidates") if isinstance(search, dict) else None
    if isinstance(candidates, str):
        yield folder / os.path.expanduser(candidates)


NAME_COLUMN = "name"

ENDINGS = (".yaml", ".yml")

Overrides: TypeAlias = dict[str, Plain]


@record(frozen=True, kw_only=True, slots=True)
class BatchJob:
    """
    One job of a batch, ready to be sent to a worker.

    Parameters
    ----------
    key
        Fingerprint of the job; by default computed from its entries.
    name
        Its name: its file, its row, its swept values.
    source
        File that it was read from.
    overrides
        Entries that differ from its source, by dotted key.
    document
        Its entries, overrides included.
    folder
        Folder that its paths are relative to.
    mistake
        Reason that it cannot be read; None where it can.
    places
        Places where its entries were written, by dotted path.
    """

    key: str = ""
    name: str = "job"
    source: str = "job"
    overrides: Mapping[str, Plain] = field(default_factory=dict)
    document: Mapping[str, Plain] = field(default_factory=dict)
    folder: str = ""
    mistake: str | None = None
    places: Mapping[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """
        Compute the key if none is given.

        Raises
        ------
        SpecError
            If the document holds values that no job file can have.
        """
        if not self.key:
            document = mapping_from_python(self.document)
            key = fingerprint(self.name, document, Path(self.folder), self.mistake)
            object.__setattr__(self, "key", key)


class JobSet:
    """
    All jobs of a batch, made one at a time while iterating.

    Parameters
    ----------
    sources
        Job files, and folders whose job files are taken in the order of their names.
    rows
        CSV file whose columns are dotted keys, besides an optional ``name``; each row is one variant of each job.
    assignments
        ``key=value``, where several values are swept; every combination is one variant.
    max_jobs
        Largest number of jobs.

    Raises
    ------
    SpecError
        If a source is not there, the CSV file cannot be read, or there are too many jobs or none.
    """

    def __init__(
        self,
        sources: Sequence[str | os.PathLike[str]],
        *,
        rows: str | os.PathLike[str] | None = None,
        assignments: Iterable[str] = (),
        max_jobs: int = MAX_JOBS,
    ) -> None:
        self.files = tuple(path for source in sources for path in _job_files(Path(source)))
        self.rows = None if rows is None else Path(rows)
        self.num_rows = 1 if self.rows is None else sum(1 for _ in read_rows(self.rows))
        self.axes = tuple(read_axis(assignment) for assignment in assignments)
        for key, count in Counter(key for key, _ in self.axes).items():
            if count > 1:
                raise SpecError(key, "is given twice.", "Write all its values after one key=.")
        self._require_few(max_jobs)

    def __len__(self) -> int:
        return self._count()

    def __iter__(self) -> Iterator[BatchJob]:
        for path in self.files:
            try:
                base: Document | SpecError = read_document(path)
            except SpecError as error:
                base = error
            for row in (Row(),) if self.rows is None else read_rows(self.rows):
                for swept, label in _combinations(self.axes):
                    yield _job(path, base, row, swept, label)

    def _count(self) -> int:
        """Count the jobs; ``len`` itself refuses numbers beyond the machine's integers."""
        return len(self.files) * self.num_rows * prod(len(values) for _, values in self.axes)

    def _require_few(self, max_jobs: int) -> None:
        if not self.num_rows:
            raise SpecError(str(self.rows), "has a header but no rows.", "Each row is one variant of each job.")
        if self._count() == 0:
            raise SpecError("jobs", "there are none.", "Name job files, or a folder that holds some.")
        if self._count() > max_jobs:
            factors = [f"{len(self.files):,} files"]
            factors += [] if self.rows is None else [f"{self.num_rows:,} rows"]
            factors += [f"{len(values):,} of {key}" for key, values in self.axes if len(values) > 1]
            made_of = " x ".join(factors)
            raise SpecError(
                "jobs",
                f"{made_of} make {self._count():,}, more than {max_jobs:,}.",
                "Sweep less, or in several batches.",
            )


def make_job(job: BatchJob | str | os.PathLike[str] | Mapping[str, Any], *, name: str = "") -> BatchJob:
    """
    Make a job of a batch from a job file or its entries.

    An error becomes the ``mistake`` of the job, so that one wrong job does not stop the others.

    Parameters
    ----------
    job
        The file, or its entries.
    name
        Name of the job besides its file.
    """
    if isinstance(job, BatchJob):
        return job
    path = Path(job) if isinstance(job, (str, os.PathLike)) else None
    base: Document | SpecError
    try:
        if path is not None:
            base = read_document(path)
        elif isinstance(job, Mapping):
            base = Document(entries=mapping_from_python(job))
        else:
            raise SpecError("jobs", f"expected the path of a job file or a job as a mapping, got {shown(job)}.")
    except SpecError as error:
        base = error
    return _job(path, base, Row(name=name), {}, "")


# --- files -------------------------------------------------------------------------------------------------
def _job_files(source: Path) -> Iterator[Path]:
    try:
        if not source.is_dir():
            if not source.exists():
                raise SpecError(str(source), "no such file or folder.", similar_files(source))
            yield source
            return
        found = sorted(path for path in source.iterdir() if path.suffix in ENDINGS and path.is_file())
    except (OSError, ValueError) as error:
        raise SpecError(shown(str(source)), f"cannot be read: {error}.") from None
    if not found:
        raise SpecError(str(source), f"holds no job files ({', '.join(ENDINGS)}).")
    yield from found


# --- rows --------------------------------------------------------------------------------------------------
@record(frozen=True, kw_only=True, slots=True)
class Row:
    """
    One row of a CSV file of overrides.

    Parameters
    ----------
    name
        Name of the row; empty: there is no file of rows.
    cells
        Texts by dotted key; empty cells are left out.
    mistake
        Mistake in the row.
    where
        File and line.
    """

    name: str = ""
    cells: Mapping[str, str] = field(default_factory=dict)
    mistake: str | None = None
    where: str = ""


def read_rows(path: Path) -> Iterator[Row]:
    """
    Yield the rows of a CSV file of overrides, which may be long.

    Raises
    ------
    SpecError
        If it cannot be read, or its header is no list of dotted keys.
    """
    lines = _csv_lines(path)
    header = _read_header(path, next(lines, (0, []))[1])
    for number, (line, cells) in enumerate(lines, start=1):
        given = {key: cell for key, cell in zip(header, cells, strict=False) if cell.strip()}
        where, mistake = f"{path}, line {line}", None
        if len(cells) > len(header):
            mistake = f"{where}: has {len(cells)} cells, the header {len(header)}."
        name = given.pop(NAME_COLUMN, f"row {number}").strip()
        yield Row(name=name, cells=given, mistake=mistake, where=where)


def _read_header(path: Path, cells: Sequence[str]) -> tuple[str, ...]:
    header = tuple(cell.strip() for cell in cells)
    if not header:
        raise SpecError(str(path), "is empty.", "Its first row names entries, such as cluster.num_devices.")
    for key in header:
        if header.count(key) > 1:
            raise SpecError(str(path), f"has the column {shown(key)} twice.", "Take one out.")
        split_assignment(f"{key}=")
    return header


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    with open_csv(path) as reader:
        yield from ((reader.line_num, cells) for cells in reader if cells)


# --- one job -----------------------------------------------------------------------------------------------
def _combinations(axes: Sequence[tuple[str, tuple[Plain, ...]]]) -> Iterator[tuple[Overrides, str]]:
    """Yield every choice of one value per axis, with a label of its swept values."""
    swept = [key for key, values in axes if len(values) > 1]
    for chosen in product(*(values for _, values in axes)):
        overrides = {key: value for (key, _), value in zip(axes, chosen, strict=True)}
        yield overrides, " ".join(f"{key}={_text(overrides[key])}" for key in swept)


def _text(value: Plain) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _job(
    path: Path | None,
    base: Document | SpecError,
    row: Row,
    swept: Overrides,
    label: str,
) -> BatchJob:
    folder = os.path.realpath(Path() if path is None else path.parent)
    name = " ".join(filter(None, ["job" if path is None else path.stem, row.name, label]))
    overrides: Overrides = {}
    document: dict[str, Plain] = {}
    places: dict[str, Place] = {}
    mistake = row.mistake or (str(base) if isinstance(base, SpecError) else None)
    if not mistake and not isinstance(base, SpecError):
        try:
            document = copy.deepcopy(base.entries)
            overrides = {key: parse(text, key) for key, text in row.cells.items()} | swept
            for key, value in overrides.items():
                set_entry(document, key, copy.deepcopy(value))
            of_row = {key: Place(where=row.where, text=text) for key, text in row.cells.items()}
            places = {**base.places, **of_row, **dict.fromkeys(swept, NOWHERE)}
        except SpecError as error:
            mistake = ": ".join(filter(None, (row.where, str(error))))
    return BatchJob(
        key=fingerprint(name, document, Path(folder), mistake),
        name=name,
        source="job" if path is None else str(path),
        overrides=overrides,
        document=document,
        folder=folder,
        mistake=mistake,
        places=places,
    )
