"""
The table of samples: a CSV or Parquet file, checked when it is read, extended sample by sample.

Rows are counted as in spreadsheets: the names of the columns are row 1.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError, alternatives, did_you_mean, optional_library
from costmodel.validation import shown
from planner.jobs.document import similar_files
from planner.measure.sample.bench import least_flops, moved_bytes
from planner.measure.sample.samples import (
    COLLECTIVES,
    DTYPES,
    OPERATORS,
    PASSES,
    SIZE_COLUMNS,
    Machine,
    Point,
    Sample,
    Sizes,
    Timing,
)

MACHINE_COUNTS = ("memory_bytes", "num_processors", "devices_per_node")
"""Columns with the size of the machine; they are optional, and do not identify a machine."""

_MEASUREMENT = ("seconds", "spread", "repeats", "beside", "device", "driver", "clock_mhz", "software")
COLUMNS = ("operator", "pass", "dtype", *SIZE_COLUMNS, *_MEASUREMENT, *MACHINE_COUNTS)
"""Columns of the table; names end in their unit, or are counts. Empty cells do not apply."""

PARQUET, CSV = ".parquet", ".csv"

FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
"""Spellings of true and false."""

FASTEST, SLOWEST = 1e17, 1e6
"""FLOPs per second that no device reaches, and that each one exceeds."""

LARGE_FLOPS = 1e9
"""FLOPs above which the launch is negligible."""

MEMORY_RATES = {"GPU": (1e11, 1e14), "CPU": (5e8, 1e13)}
"""Range of a memory's best rate in bytes per second: HBM1 to ten times HBM3e; from one core on."""

MATMUL_RATES = {"GPU": (3e12, FASTEST), "CPU": (SLOWEST, FASTEST)}
"""Range of the best rate of 16-bit matmuls in FLOPs per second; a table in milliseconds is off by a thousand."""

STREAMED_BYTES, SATURATING_FLOPS = 2**26, 1e11
"""Sizes of points that reach these rates."""

LEAST_RANKS = 2
"""Fewest ranks of a collective."""

CLOCK_TOLERANCE = 0.1
"""Largest relative difference between clocks of one table."""

Notify = Callable[[str], None]


def ignore(_: str) -> None:
    """Ignore a message."""


def read_samples(path: str | os.PathLike[str], *, notify: Notify = ignore) -> tuple[Sample, ...]:
    """
    Read the samples of a table.

    Parameters
    ----------
    path
        A CSV or Parquet file, by its ending.
    notify
        Receives a sentence about a truncated last row, which is left out.

    Raises
    ------
    SpecError
        For the first error, with row and column.
    """
    rows, _, problem = _rows(Path(path))
    if problem:
        notify(problem)
    return _samples(Path(path), rows)


class SamplesFile:
    """
    A table that grows by one sample at a time; if a run is killed, only the sample in progress is lost.

    Parameters
    ----------
    path
        File, new or existing; its suffix chooses CSV or Parquet.
    machine
        Machine of the run; existing samples must be of the same machine.
    notify
        Receives a sentence about a truncated last row, which is removed.

    Raises
    ------
    SpecError
        If it is not a table of samples (then it is not changed), is of another machine, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], machine: Machine, *, notify: Notify = ignore) -> None:
        self.path = Path(path)
        texts: dict[str, Any] = {name: _line(getattr(machine, name)) for name in _TEXTS}
        self.machine = replace(machine, **texts)
        _require_writable(self.path)
        try:
            self._samples = list(self._open(notify))
        except OSError as error:
            raise SpecError(str(self.path), f"cannot be written: {error.strerror or error}.") from None
        self.known = {sample.point for sample in self._samples}
        self._state = self._stat()

    def add(self, point: Point, timing: Timing) -> Sample:
        """
        Append a sample, whole or not at all.

        Raises
        ------
        SpecError
            If it cannot be written, or another process has written to the file.
        """
        sample = Sample(point=point, timing=timing, machine=self.machine)
        if self._stat() != self._state:
            raise SpecError(str(self.path), "has changed since it was read: another run writes to it.")
        self._samples.append(sample)
        try:
            if self.path.suffix == PARQUET:
                _write_parquet(self.path, self._samples)
            else:
                self._append(_csv_text([_cells(sample)]))
        except OSError as error:
            raise SpecError(str(self.path), f"cannot be written: {error.strerror or error}.") from None
        self.known.add(point)
        self._state = self._stat()
        return sample

    def _open(self, notify: Notify) -> tuple[Sample, ...]:
        header = _csv_text([COLUMNS])
        if not self.path.exists() or header.encode().startswith(self.path.read_bytes().removesuffix(b"\n")):
            if self.path.suffix == CSV:
                self.path.write_text(header, encoding="utf-8", newline="")
            return ()
        rows, end, problem = _rows(self.path)
        samples = _samples(self.path, rows)
        if samples:
            _require_same_machine(str(self.path), "this machine", self.machine, "the table", samples[0].machine)
        if self.path.suffix == CSV:
            with self.path.open(encoding="utf-8", newline="") as stream:
                if stream.readline() != header:
                    raise SpecError(str(self.path), "has other columns, or another order.", "Write to another file.")
        if problem:
            notify(problem)
            os.truncate(self.path, end)
        return samples

    def _append(self, text: str) -> None:
        """Append text in one piece; remove a part that was written if the rest cannot be."""
        end = self.path.stat().st_size
        try:
            with self.path.open("ab", buffering=0) as stream:
                data = text.encode()
                if stream.write(data) != len(data):
                    raise OSError("the disk is full")
        except OSError:
            os.truncate(self.path, end)
            raise

    def _stat(self) -> tuple[int, int]:
        """Return the size and time of the file, which change when another process writes."""
        if not self.path.exists():
            return (0, 0)
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns


# --- reading ---------------------------------------------------------------------------------------------------


def _rows(path: Path) -> tuple[list[dict[str, str]], int, str]:
    """Read cells as text, the byte at which whole rows end, and a sentence about a truncated row."""
    _require_suffix(path)
    try:
        if path.suffix == PARQUET:
            return _parquet_rows(path), 0, ""
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        rows = list(csv.reader(io.StringIO(data[:end].decode("utf-8-sig"), newline="")))
    except FileNotFoundError:
        raise SpecError(str(path), "no such file or folder.", similar_files(path)) from None
    except (OSError, ValueError, csv.Error) as error:
        raise SpecError(str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if not rows:
        raise SpecError(str(path), "is empty or a single line; a table of samples begins with its columns.")
    _require_columns(path, rows[0])
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]):
            raise SpecError(f"{path}, row {number}", f"has {len(row)} cells, the first row {len(rows[0])}.")
    cut = "" if end == len(data) else f"{path}: row {len(rows) + 1} was cut short and counts as not measured."
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]], end, cut


def _parquet_rows(path: Path) -> list[dict[str, str]]:
    _pyarrow()
    from pyarrow import parquet

    table = parquet.read_table(path)
    _require_columns(path, table.column_names)
    return [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in table.to_pylist()]


def _require_columns(path: Path, columns: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in (*columns, *MACHINE_COUNTS)]
    unknown = [name for name in columns if name not in COLUMNS]
    if not missing:
        return
    hints = [f"'{name}': {did_you_mean(name, missing)}" for name in unknown]
    near = [hint for hint in hints if "Did you mean" in hint]
    hint = f"It has {', '.join(shown(name) for name in unknown[:5])}. {' '.join(near[:3])}" if unknown else ""
    raise SpecError(
        f"{path}, row 1",
        f"lacks the columns {', '.join(missing)}; a table of samples has {', '.join(COLUMNS)}.",
        hint.strip(),
    )


def _samples(path: Path, rows: Sequence[Mapping[str, str]]) -> tuple[Sample, ...]:
    samples = tuple(_sample(f"{path}, row {number}", row) for number, row in enumerate(rows, start=2))
    for number, sample in enumerate(samples[1:], start=3):
        _require_same_machine(f"{path}, row {number}", "this row", sample.machine, "row 2", samples[0].machine)
    _require_plausible_rates(path, samples)
    return samples


def _sample(where: str, row: Mapping[str, str]) -> Sample:
    operator = _one_of(where, row, "operator", tuple(OPERATORS))
    kind = OPERATORS[operator]
    point = Point(
        operator=operator,
        pass_=_one_of(where, row, "pass", tuple(name for name in PASSES if name in kind.passes)),
        dtype=_one_of(where, row, "dtype", DTYPES),
        sizes=_sizes(where, row, operator),
        beside=row["beside"].strip(),
    )
    seconds = _number(where, row, "seconds", least=0.0, exclusive=True, allowed="a finite number above 0")
    _require_plausible(where, point, seconds)
    timing = Timing(
        seconds=seconds,
        spread=_number(where, row, "spread", least=0.0, allowed="a finite number of at least 0"),
        repeats=_count(where, row, "repeats"),
    )
    if not row["device"].strip():
        raise SpecError(f"{where}, device", "is empty; expected the name of the device.")
    return Sample(point=point, timing=timing, machine=_machine(where, row))


def _one_of(where: str, row: Mapping[str, str], column: str, allowed: tuple[str, ...]) -> str:
    seen = row[column].strip()
    if seen not in allowed:
        problem = f"is {shown(seen)}; {row['operator']} allows {alternatives(allowed)}."
        problem = f"is {shown(seen)}, which is not an operator." if column == "operator" else problem
        raise SpecError(f"{where}, {column}", problem, did_you_mean(seen, allowed))
    return seen


def _sizes(where: str, row: Mapping[str, str], operator: str) -> Sizes:
    kind = OPERATORS[operator]
    values: dict[str, Any] = {}
    for column in SIZE_COLUMNS:
        seen = row[column].strip()
        if not seen and column in kind.needs:
            raise SpecError(f"{where}, {column}", f"is empty; {operator} has {', '.join(kind.needs)}.")
        if seen and column not in (*kind.needs, *kind.may):
            problem = f"is {shown(seen)}; expected an empty cell, as {operator} has {', '.join(kind.needs)}."
            raise SpecError(f"{where}, {column}", problem)
        if seen:
            values[column] = _flag(where, row, column) if column == "causal" else _count(where, row, column)
    if operator in COLLECTIVES and (values["ranks"] < LEAST_RANKS or values["ranks"] % values["nodes"]):
        problem = f"is {values['ranks']}; expected at least 2, equally many on each of {values['nodes']} nodes."
        raise SpecError(f"{where}, ranks", problem)
    return Sizes(**values)


def _flag(where: str, row: Mapping[str, str], column: str) -> bool:
    seen = row[column].strip().lower()
    if seen not in FLAGS:
        raise SpecError(f"{where}, {column}", f"is {shown(row[column])}; expected true or false.")
    return FLAGS[seen]


def _count(where: str, row: Mapping[str, str], column: str) -> int:
    allowed = "a whole number of at least 1"
    value = _number(where, row, column, least=1.0, allowed=allowed)
    if value != int(value):
        raise SpecError(f"{where}, {column}", f"is {shown(row[column])}; expected {allowed}.")
    return int(value)


def _number(
    where: str, row: Mapping[str, str], column: str, *, least: float, allowed: str, exclusive: bool = False
) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least or (exclusive and value == least):
        raise SpecError(f"{where}, {column}", f"is {shown(row[column])}; expected {allowed}.")
    return value


def _require_plausible(where: str, point: Point, seconds: float) -> None:
    """Raise if a time cannot be in seconds: milliseconds or microseconds give impossible rates."""
    flops = least_flops(point)
    rate = flops / seconds
    if rate > FASTEST:
        judged = f"more than the {FASTEST:.0e} that a device reaches"
    elif flops > LARGE_FLOPS and rate < SLOWEST:
        judged = f"less than the {SLOWEST:.0e} that a device reaches"
    else:
        return
    problem = f"is {seconds:g}, which for {flops:.3g} FLOPs means {rate:.3g} FLOP/s, {judged}."
    raise SpecError(f"{where}, seconds", problem, "The unit of this column is seconds.")


def _require_plausible_rates(path: Path, samples: Sequence[Sample]) -> None:
    """Raise if a whole table cannot be in seconds: single rows in milliseconds may still have possible rates."""
    for is_rated, amount, rates, unit in (
        (_streams_memory, moved_bytes, MEMORY_RATES, "bytes"),
        (_is_large_matmul, least_flops, MATMUL_RATES, "FLOPs"),
    ):
        found = [
            (amount(one.point) / one.timing.seconds, number)
            for number, one in enumerate(samples, start=2)
            if is_rated(one.point)
        ]
        if not found:
            continue
        best, number = max(found)
        device = "GPU" if is_gpu(samples[0].machine) else "CPU"
        low, high = rates[device]
        if not low <= best <= high:
            problem = (
                f"the best rate is {best:.2g} {unit} per second; a {device}'s is between {low:.0e} and {high:.0e}."
            )
            raise SpecError(f"{path}, row {number}, seconds", problem, "The unit of this column is seconds.")


def _streams_memory(point: Point) -> bool:
    return point.operator in ("copy", "residual", "adam") and not point.beside and moved_bytes(point) >= STREAMED_BYTES


def _is_large_matmul(point: Point) -> bool:
    return point.operator == "matmul" and point.dtype in ("bf16", "fp16") and least_flops(point) >= SATURATING_FLOPS


def is_gpu(machine: Machine) -> bool:
    """Tell whether samples are of a GPU: it has a driver, and torch was built for it."""
    return bool(machine.driver) or ", cuda " in machine.software or ", hip " in machine.software


def _machine(where: str, row: Mapping[str, str]) -> Machine:
    clock = None
    if row["clock_mhz"].strip():
        clock = _number(where, row, "clock_mhz", least=0.0, exclusive=True, allowed="a clock in MHz or nothing")
    given: dict[str, Any] = {name: row[name].strip() for name in _TEXTS}
    given |= {name: _count(where, row, name) for name in MACHINE_COUNTS if row.get(name, "").strip()}
    return Machine(clock_mhz=clock, **given)


_TEXTS = ("device", "driver", "software")


def _require_same_machine(where: str, here: str, one: Machine, there: str, other: Machine) -> None:
    for name in _TEXTS:
        mine, others = getattr(one, name), getattr(other, name)
        if mine != others:
            problem = f"{here} has {shown(mine)}, {there} {shown(others)}; one table is of one machine."
            raise SpecError(f"{where}, {name}", problem, "Write to a file for each.")
    clocks = (one.clock_mhz, other.clock_mhz)
    if clocks[0] and clocks[1] and max(clocks[0], clocks[1]) > (1 + CLOCK_TOLERANCE) * min(clocks[0], clocks[1]):
        problem = f"{here} has {clocks[0]:g} MHz, {there} {clocks[1]:g} MHz; at most 10 % apart are allowed."
        raise SpecError(f"{where}, clock_mhz", problem, "Write to a file for each.")


# --- writing ---------------------------------------------------------------------------------------------------


def _require_suffix(path: Path) -> None:
    if path.suffix not in (PARQUET, CSV):
        raise SpecError(str(path), f"expected a file that ends with {CSV} or {PARQUET}.")


def _require_writable(path: Path) -> None:
    _require_suffix(path)
    if not path.parent.is_dir() or path.is_dir():
        problem = "is a directory" if path.is_dir() else f"there is no folder '{path.parent}' to write to"
        raise SpecError(str(path), f"{problem}.")
    if path.suffix == PARQUET:
        _pyarrow()


def _values(sample: Sample) -> Iterator[bool | int | float | str | None]:
    point, timing, machine = sample.point, sample.timing, sample.machine
    yield from (point.operator, point.pass_, point.dtype)
    yield from (getattr(point.sizes, name) for name in SIZE_COLUMNS)
    yield from (timing.seconds, timing.spread, timing.repeats)
    yield from (point.beside, machine.device, machine.driver, machine.clock_mhz, machine.software)
    yield from (getattr(machine, name) for name in MACHINE_COUNTS)


def _cells(sample: Sample) -> list[str]:
    return [
        "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for value in _values(sample)
    ]


def _csv_text(rows: Sequence[Sequence[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _line(text: str) -> str:
    """Join text to one line, as rows need."""
    return " ".join(text.split())


def _write_parquet(path: Path, samples: Sequence[Sample]) -> None:
    """Write all samples to a new file that replaces the old one: Parquet cannot append rows."""
    pyarrow = _pyarrow()
    from pyarrow import parquet

    texts = ("operator", "pass", "dtype", "beside", *_TEXTS)
    types = {name: pyarrow.string() for name in texts} | {"causal": pyarrow.bool_()}
    types |= {name: pyarrow.float64() for name in ("seconds", "spread", "clock_mhz")}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.int64())) for name in COLUMNS])
    rows = [dict(zip(COLUMNS, _values(sample), strict=True)) for sample in samples]
    draft = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _pyarrow() -> Any:
    return optional_library("pyarrow", "samples", "Parquet needs pyarrow, which is not installed.", extra="sample")
