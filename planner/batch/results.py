"""
The results file: one line of JSON per job, appended as jobs finish, rewritten only on request.

The writing process holds a lock on it. A last line that was cut by a full disk or a killed process is removed. Any
other line that is no result is moved into a file next to it. The jobs of both are planned again.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

from costmodel.errors import SpecError, alternatives, optional_library
from costmodel.validation import shown
from planner.batch.choices import METRICS
from planner.batch.job_result import FORMAT_VERSION, KIND, LOST, JobOutcome, JobResult, JobStatus, line_of
from planner.jobs.document import similar_files
from planner.report.records import write_csv

MAX_LINE_BYTES = 2**26

"""Largest line; a whole report of a pipeline of thousands of ranks has a few megabytes."""

BEGIN = f'{{"kind":"{KIND}",'.encode()

"""The first bytes of every line."""

OF_PLAN: tuple[tuple[str, Any], ...] = (("strategy", None), ("settings", {}))

FIGURES = (*(name for name, _ in METRICS.values()), "days")

"""Entries of a plan that are mappings, with None where every plan must have them, and entries that are numbers."""

LARGEST_FIGURE = 1e300

ABOUT_LINES = "A results file has one JSON object per line, as planner batch writes them."

MOST_DOUBTFUL = 16

"""Lines at the beginning of a file that may be no results; with more it is not taken for a results file."""

BROKEN = ".broken"

"""Ending of the file that gets the lines that are no results, byte for byte."""


def read_results(path: Path, *, notify: Callable[[str], None] = lambda _: None) -> Iterator[dict[str, Any]]:
    """
    Read the lines of a results file.

    Parameters
    ----------
    path
        Path of the file.
    notify
        Gets a sentence about each line that is no result and is omitted.

    Raises
    ------
    SpecError
        If it cannot be read or is no results file.
    """
    with _errors(path, "read"), path.open("rb") as stream:
        yield from (line for line, _ in _lines(stream, path, notify) if line is not None)


def _lines(
    stream: BinaryIO, path: Path, notify: Callable[[str], None]
) -> Iterator[tuple[dict[str, Any] | None, bytes]]:
    """
    Yield each line as data and as raw bytes; the data of a line that is no result are None.

    A last line that was cut is omitted. A file whose first lines are no results is refused, unless the first line
    begins as every line does or a result follows.
    """
    doubtful: list[tuple[bytes, SpecError]] = []
    for number, raw in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES), b""), start=1):
        result, before, mistake = _result_in(raw, f"{path}, line {number}")
        if result is None and _is_torn(raw, number):
            notify(f"{path}: the last line, {number}, was cut short; its job counts as not planned.")
            break
        if result is None and (doubtful or (number == 1 and not raw.startswith(BEGIN))):
            doubtful.append((raw, mistake))
            if len(doubtful) > MOST_DOUBTFUL:
                break
            continue
        for one, problem in doubtful:
            yield from _report_broken(one, str(problem), notify)
        doubtful = []
        if before:
            yield from _report_broken(before, str(mistake), notify)
        if result is not None:
            yield result, raw[len(before) :]
    if doubtful:
        raise doubtful[0][1]


def _report_broken(raw: bytes, mistake: str, notify: Callable[[str], None]) -> Iterator[tuple[None, bytes]]:
    notify(f"{mistake.removesuffix(ABOUT_LINES).strip()} It is left out; its job counts as not planned.")
    yield None, raw


def _result_in(raw: bytes, where: str) -> tuple[dict[str, Any] | None, bytes, SpecError]:
    """
    Return the result of a line, which may follow a line that was cut; the bytes before it, and the mistake in them.

    Raises
    ------
    SpecError
        If the result is of another version.
    """
    start = shown(raw[:60].decode("utf-8", "replace"))
    error = SpecError(where, f"is no result: {start}.", ABOUT_LINES)
    places = [0, *([last] if (last := raw.rfind(BEGIN)) > 0 else [])]
    for place in places:
        line = _line(raw[place:])
        if line is None or line.get("kind") != KIND:
            continue
        version = line.get("format_version")
        if isinstance(version, int) and version != FORMAT_VERSION:
            problem = f"has format_version {shown(version)}, this planner reads and writes {FORMAT_VERSION}."
            raise SpecError(where, problem, "Write to another file.")
        mistake = _mistake(line)
        if not mistake:
            return line, raw[:place], error
        error = SpecError(where, f"is no whole result: {mistake}.", ABOUT_LINES)
    return None, raw, error


def _line(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("key"), str) else None


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _mistake(line: Mapping[str, Any]) -> str:
    """Return the mistake in a line; empty: it is a result. Entries that earlier versions lack may be missing."""
    if not re.fullmatch(r"([0-9a-f]{2})+", line["key"]):
        return f"key: expected hexadecimal digits, got {shown(line['key'])}"
    if line.get("format_version") != FORMAT_VERSION:
        return f"format_version: expected {FORMAT_VERSION}, got {shown(line.get('format_version'))}"
    if line.get("status") not in list(JobStatus):
        return f"status: expected {alternatives(list(JobStatus))}, got {shown(line.get('status'))}"
    plans = line.get("plans", [])
    if not isinstance(plans, list):
        return f"expected a list of plans, got {shown(plans)}"
    records = [("overrides", line.get("overrides", {})), *(("a plan", plan) for plan in plans)]
    records += [
        (name, plan.get(name, default)) for plan in plans if isinstance(plan, dict) for name, default in OF_PLAN
    ]
    for name, record in records:
        if not isinstance(record, dict):
            return f"{name}: expected a mapping, got {shown(record)}"
    for gaps in (plan.get("gaps", []) for plan in plans):
        if not isinstance(gaps, list) or not all(isinstance(gap, dict) and "sentence" in gap for gap in gaps):
            return f"gaps: expected a list of mappings with a sentence, got {shown(gaps)}"
    wrong = [(name, plan[name]) for plan in plans for name in FIGURES if not _is_figure(plan.get(name))]
    return f"{wrong[0][0]}: expected a number, got {shown(wrong[0][1])}" if wrong else ""


def _is_figure(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) < LARGEST_FIGURE)


def _is_torn(raw: bytes, number: int) -> bool:
    """True if the bytes are only the beginning of a result's line; in the first line a brace alone does not count."""
    is_ours = raw.startswith(BEGIN) or (len(raw) > int(number == 1) and BEGIN.startswith(raw))
    return is_ours and not raw.endswith(b"\n") and len(raw) < MAX_LINE_BYTES and _line(raw) is None


@contextmanager
def _errors(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SpecError(str(path), "no such file or folder.", similar_files(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(shown(str(path)), f"cannot be {verb}: {reason}.") from None


class ResultsFile:
    """
    A results file that this process alone writes to.

    Parameters
    ----------
    path
        Path of the file, which need not exist.
    retry_lost
        Remove lines of jobs that were lost (timed out, worker died, failed), so that they are planned again.
    notify
        Gets sentences about repairs of the file.

    Raises
    ------
    SpecError
        If it is no results file (then it is not touched), another process writes to it, or it cannot be written.
    """

    def __init__(self, path: Path, *, retry_lost: bool = False, notify: Callable[[str], None] = lambda _: None) -> None:
        self.path = path
        self._has_plan: dict[bytes, bool | None] = {}
        self._num_lost = self._num_broken = 0
        with _errors(path, "written"):
            self._file = _lock(path)
        try:
            is_regular = stat.S_ISREG(os.fstat(self._file).st_mode)
            self._end = self._read(notify) if is_regular else 0
            if self._num_broken:
                self._move_broken(notify)
            if retry_lost and self._num_lost:
                self._leave_out_lost(notify)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def claim(self, key: str) -> bool:
        """Claim a job; return false if it has been planned or claimed before."""
        raw = bytes.fromhex(key)
        if raw in self._has_plan:
            return False
        self._has_plan[raw] = None
        return True

    def lacks_plan(self, key: str) -> bool:
        """True if the file has a line without a plan for this job."""
        return self._has_plan.get(bytes.fromhex(key)) is False

    def add(self, result: JobResult) -> None:
        """
        Append one line, whole or not at all.

        Raises
        ------
        SpecError
            If it cannot be written, as on a full disk; the lines before stay as they are.
        """
        # File names may hold bytes that are no text: \udcff in JSON, too.
        data = line_of(result).encode("utf-8", "backslashreplace")
        try:
            _write(self._file, data)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise SpecError(
                str(self.path),
                f"cannot be written: {error.strerror}.",
                "Its lines are whole; the same command goes on from there.",
            ) from None
        self._end += len(data)
        self._has_plan[bytes.fromhex(result.key)] = bool(result.plans)

    def close(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, notify: Callable[[str], None]) -> int:
        """Read the finished jobs, remove a cut line, and return the end of the file in bytes."""
        end = 0
        last = b"\n"
        with _errors(self.path, "read"), open(self._file, "rb", closefd=False) as stream:
            stream.seek(0)
            for line, last in _lines(stream, self.path, notify):
                end += len(last)
                if line is None:
                    self._num_broken += 1
                    continue
                self._has_plan[bytes.fromhex(line["key"])] = bool(line.get("plans"))
                self._num_lost += line.get("status") in LOST
        with _errors(self.path, "written"):
            if os.fstat(self._file).st_size > end:
                os.ftruncate(self._file, end)
            if not last.endswith(b"\n"):
                _write(self._file, b"\n")
                end += 1
        return end

    def _move_broken(self, notify: Callable[[str], None]) -> None:
        """Move lines that are no results into the file ``.broken``; they are copied first, so that none is lost."""
        beside = self.path.with_name(self.path.name + BROKEN)
        with _errors(beside, "written"), beside.open("ab") as stream:
            for line, raw in self._all_lines():
                if line is None:
                    stream.write(raw if raw.endswith(b"\n") else raw + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self._rewrite(lambda line: line is not None)
        count = (
            "1 line that is no result is"
            if self._num_broken == 1
            else f"{self._num_broken:,} lines that are no results are"
        )
        notify(f"{self.path}: {count} moved to {beside}; their jobs are planned again.")

    def _leave_out_lost(self, notify: Callable[[str], None]) -> None:
        """Remove lines of lost jobs."""
        for line, _ in self._all_lines():
            if line is not None and line.get("status") in LOST:
                self._has_plan.pop(bytes.fromhex(line["key"]), None)
        self._rewrite(lambda line: line is not None and line.get("status") not in LOST)
        notify(f"{self.path}: {self._num_lost:,} lines of jobs that were lost are taken away, to plan them again.")

    def _all_lines(self) -> Iterator[tuple[dict[str, Any] | None, bytes]]:
        with _errors(self.path, "read"), self.path.open("rb") as stream:
            yield from _lines(stream, self.path, lambda _: None)

    def _rewrite(self, keeps: Callable[[dict[str, Any] | None], bool]) -> None:
        """Write the lines to keep into a draft and rename it, so that nobody ever reads half of the file."""
        draft = self.path.with_name(f".{self.path.name[:100]}.{os.getpid()}.tmp")
        with _errors(draft, "written"):
            new = _lock(draft)
            try:
                os.ftruncate(new, 0)
                for line, raw in self._all_lines():
                    if keeps(line):
                        _write(new, raw)
                draft.replace(self.path)
            except BaseException:
                os.close(new)
                draft.unlink(missing_ok=True)
                raise
        os.close(self._file)
        self._file, self._end = new, os.fstat(new).st_size


def _lock(path: Path) -> int:
    """Open the file for appending, with a lock that the system releases when this process ends."""
    try:
        import fcntl
    except ImportError:
        raise SpecError(str(path), "cannot be locked: this system has no POSIX locks.") from None
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(file, path):
                return file
        except BlockingIOError:
            os.close(file)
            raise SpecError(str(path), "another batch writes to it.", "Wait for it, or name another file.") from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _is_still(file: int, path: Path) -> bool:
    """True if the path still leads to the file that was opened."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _write(file: int, data: bytes) -> None:
    """Write all data; the system may take a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


Cell: TypeAlias = bool | int | float | str | None

Row: TypeAlias = dict[str, Cell]

Lines: TypeAlias = Callable[[], Iterable[Mapping[str, Any]]]

OF_OUTCOME = tuple(entry.name for entry in fields(JobOutcome) if entry.name not in ("plans", "report"))

OF_LINE = ("name", "source", *OF_OUTCOME, "key")

"""Entries of a line on the job itself."""

ROWS_AT_ONCE = 10_000

"""Rows of one group of a Parquet file; memory holds one group at a time."""

WIDENING = (bool, int, float, str)

"""Types of cells; a column with several has the last of them."""

LARGEST_INT = 2**63

"""Least integer that exceeds 64 bits; job files may have such numbers."""

PARQUET, CSV = ".parquet", ".csv"


def row_of(line: Mapping[str, Any], plan: Mapping[str, Any] | None) -> Row:
    """
    Build the row of one plan of a job; a job without a plan has a row, too.

    Overrides and chosen settings are columns by their dotted keys, decisions by their names.
    """
    figures = dict(plan or {})
    if "gaps" in figures:
        figures["gaps"] = "; ".join(sentences(figures))
    strategy = figures.pop("strategy", {})
    chosen = {f"settings.{name}": value for name, value in figures.pop("settings", {}).items()}
    own = {name: line.get(name) for name in OF_LINE}
    # Twice: the first to stand in front, the second because an override may have a name of ours.
    cells = {**own, **line.get("overrides", {}), **own, **figures, **strategy, **chosen}
    return {name: _cell(value) for name, value in cells.items()}


def sentences(plan: Mapping[str, Any]) -> list[str]:
    """Return the sentences on extrapolated properties of a plan; empty for lines of earlier versions."""
    return [str(gap["sentence"]) for gap in plan.get("gaps", ())]


def _cell(value: Any) -> Cell:
    if isinstance(value, int) and abs(value) >= LARGEST_INT:
        return float(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value)


def require_writable(path: Path) -> None:
    """
    Refuse a table that could not be written, before the work begins.

    Raises
    ------
    SpecError
        If its ending is neither Parquet's nor CSV's, its folder is missing, or pyarrow is not installed for Parquet.
    """
    if path.suffix not in (PARQUET, CSV):
        raise SpecError(str(path), f"expected a file that ends with {PARQUET} or {CSV}.")
    if not os.path.isdir(path.parent) or os.path.isdir(path):
        problem = "is a directory" if os.path.isdir(path) else f"there is no folder '{path.parent}' to write to"
        raise SpecError(str(path), f"{problem}.")
    if path.suffix == PARQUET:
        _pyarrow()


def write_table(lines: Lines, path: Path) -> None:
    """
    Write results as a table.

    Parameters
    ----------
    lines
        Returns the lines of a results file; called twice, first to find the columns.
    path
        File to write, by its ending Parquet or CSV; nobody ever reads half of it.
    """
    kinds = _kinds(_rows(lines()))
    with _draft(path) as draft:
        if path.suffix == PARQUET:
            _write_parquet(_rows(lines()), kinds, draft)
        else:
            with draft.open("w", encoding="utf-8", newline="") as stream:
                write_csv(stream, list(kinds), _rows(lines()))


def _rows(lines: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for line in lines:
        for plan in line.get("plans") or [None]:
            yield row_of(line, plan)


def _kinds(rows: Iterable[Row]) -> dict[str, type]:
    """Return the type of each column: the widest one of its cells."""
    kinds: dict[str, type] = {}
    for row in rows:
        for name, cell in row.items():
            seen = kinds.setdefault(name, bool)
            if cell is not None and WIDENING.index(type(cell)) > WIDENING.index(seen):
                kinds[name] = type(cell)
    return kinds


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield a draft next to the file to write, and rename it in the end."""
    draft = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        raise SpecError(str(path), f"cannot be written: {error.strerror or error}.") from None
    finally:
        draft.unlink(missing_ok=True)


def _write_parquet(rows: Iterator[Row], kinds: Mapping[str, type], path: Path) -> None:
    pyarrow = _pyarrow()
    from pyarrow import parquet

    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, ROWS_AT_ONCE)):
            cells = [{name: None if cell is None else kinds[name](cell) for name, cell in row.items()} for row in group]
            writer.write_table(pyarrow.Table.from_pylist(cells, schema=schema))


def _pyarrow() -> Any:
    return optional_library("pyarrow", "table", "Parquet needs pyarrow, which is not installed.", extra="parquet")
