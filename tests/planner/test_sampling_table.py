"""The table of samples: what goes in comes out, what is wrong is refused by row and column, what is cut is left out."""

from __future__ import annotations

import csv
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.measure.sample.samples import Machine, Point, Sizes, Timing
from planner.measure.sample.table import COLUMNS, MACHINE_COUNTS, SamplesFile, read_samples
from tests.cases import read_table

MACHINE = Machine(
    device="Test GPU",
    driver="570.1",
    software="torch 2.13.0",
    clock_mhz=1980.0,
    memory_bytes=80 * 10**9,
    num_processors=132,
    devices_per_node=8,
)

ATTENTION = Point(
    operator="attention",
    pass_="backward",
    dtype="bf16",
    sizes=Sizes(
        sequences=2, queries=64, keys=64, heads=8, kv_heads=2, qk_head_dim=192, v_head_dim=128, causal=False, window=16
    ),
)

A_COPY = Point(operator="copy", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**28))

A_LARGE_MATMUL = Point(operator="matmul", pass_="forward", dtype="bf16", sizes=Sizes(m=8192, n=8192, k=4096))

A_COLLECTIVE = Point(operator="all_gather", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**20, ranks=16, nodes=2))

TIMING = Timing(seconds=0.001, spread=0.02, repeats=10)


def a_matmul(m: int = 1024, **changes: str) -> Point:
    """A square matmul, 2.1 GFLOP by default."""
    return Point(
        **{"operator": "matmul", "pass_": "forward", "dtype": "bf16", **changes}, sizes=Sizes(m=m, n=1024, k=1024)
    )


def a_table(path: Path, *points: Point, machine: Machine = MACHINE) -> Path:
    """Points of a millisecond each."""
    table = SamplesFile(path, machine)
    for point in points:
        table.add(point, TIMING)
    return path


def changed(path: Path, column: str, value: str, *, row: int = 2) -> Path:
    """The table with another cell; rows are counted as spreadsheets do."""
    rows = list(csv.reader(path.read_text().splitlines()))
    rows[row - 1][rows[0].index(column)] = value
    path.write_text("".join(",".join(one) + "\n" for one in rows))
    return path


def message(path: Path) -> str:
    """What a reader says about a table."""
    with pytest.raises(SpecError) as caught:
        read_samples(path)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_goes_in_comes_out(tmp_path, suffix):
    """Points, timings and machine, with yes, no and empty cells, in both formats."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="the extra 'sample' is not installed")
    points = (ATTENTION, a_matmul(), a_matmul(beside="copy"), A_COLLECTIVE)

    samples = read_samples(a_table(tmp_path / f"samples{suffix}", *points))

    assert tuple(sample.point for sample in samples) == points
    assert {(sample.timing, sample.machine) for sample in samples} == {(TIMING, MACHINE)}


def test_sizes_of_the_machine_are_no_other_machine(tmp_path):
    """A run that sees fewer devices goes on; a table without these columns is read."""
    path = a_table(tmp_path / "samples.csv", a_matmul())
    SamplesFile(path, replace(MACHINE, devices_per_node=2)).add(A_COLLECTIVE, TIMING)
    rows = [row[: -len(MACHINE_COUNTS)] for row in csv.reader(path.read_text().splitlines())]
    (tmp_path / "old.csv").write_text("".join(",".join(row) + "\n" for row in rows))

    assert [one.machine.devices_per_node for one in read_samples(path)] == [8, 2]
    assert {one.machine.memory_bytes for one in read_samples(tmp_path / "old.csv")} == {None}


@pytest.mark.parametrize(("ranks", "nodes"), [("1", "1"), ("16", "3")])
def test_ranks_of_a_collective_are_equally_many_on_each_node(tmp_path, ranks, nodes):
    """One rank communicates nothing, 16 on three nodes are no group that is measured."""
    path = changed(a_table(tmp_path / "samples.csv", A_COLLECTIVE), "ranks", ranks)

    assert f"row 2, ranks: is {ranks}; expected at least 2" in message(changed(path, "nodes", nodes))


def test_columns_say_their_units(tmp_path):
    """The first row is the table's columns in order; cells that do not apply are empty."""
    header, row = csv.reader(a_table(tmp_path / "samples.csv", a_matmul(512)).read_text().splitlines())
    cells = dict(zip(header, row, strict=True))

    assert header == list(COLUMNS)
    assert {"pass", "seconds", "clock_mhz", "nbytes", "kv_heads", "beside"} <= set(header)
    assert (cells["m"], cells["seconds"], cells["heads"], cells["causal"]) == ("512", "0.001", "", "")


@pytest.mark.parametrize(("column", "value", "said"), read_table("sampling_table")["wrong_cells_are_refused"])
def test_wrong_cells_are_refused(tmp_path, column, value, said):
    """Row, column, what was seen, what is allowed."""
    table = changed(a_table(tmp_path / "samples.csv", ATTENTION, a_matmul()), column, value, row=3)

    assert said in message(table)


def test_a_mask_is_a_flag(tmp_path):
    """There is one or none."""
    table = changed(a_table(tmp_path / "samples.csv", ATTENTION), "causal", "maybe")

    assert "row 2, causal: is 'maybe'; expected true or false." in message(table)


@pytest.mark.parametrize(("seconds", "rate"), [("2e-9", "more than the 1e+17"), ("3000", "less than the 1e+06")])
def test_times_in_another_unit_are_refused(tmp_path, seconds, rate):
    """2.1 GFLOP in 2 ns are 1.07e18 FLOP/s, in 3,000 s 0.7 MFLOP/s."""
    table = changed(a_table(tmp_path / "samples.csv", a_matmul()), "seconds", seconds)

    assert rate in message(table)
    assert "The unit of this column is seconds." in message(table)


@pytest.mark.parametrize(
    ("point", "seconds", "said"),
    [
        # 512 MiB of an H100's 3.35e12 bytes/s take 0.16 ms, a matmul of 0.55 TFLOP at 700 TFLOP/s 0.79 ms
        (A_COPY, "0.16", "the best rate is 3.4e+09 bytes per second; a GPU's is between 1e+11 and 1e+14."),
        (A_COPY, "0.16e-6", "the best rate is 3.4e+15 bytes per second"),
        (A_LARGE_MATMUL, "0.79", "the best rate is 7e+11 FLOPs per second; a GPU's is between 3e+12"),
    ],
)
def test_whole_tables_in_milliseconds_are_refused(tmp_path, point, seconds, said):
    """A thousandth of a rate is that of a device of long ago, which no single row tells."""
    table = changed(a_table(tmp_path / "samples.csv", point), "seconds", seconds)

    assert said in message(table)
    assert "row 2, seconds" in message(table)


def test_rates_of_a_host_are_those_of_a_host(tmp_path):
    """What would be milliseconds of a GPU are seconds of a CPU; the best row counts, others may be slow."""
    host = Machine(device="Test CPU", driver="", software="torch 2.13.0")
    table = a_table(tmp_path / "samples.csv", A_COPY, A_LARGE_MATMUL, machine=host)

    assert len(read_samples(changed(table, "seconds", "0.16"))) == 2


def test_small_matmuls_may_be_slow(tmp_path):
    """2 MFLOP in 10 s are slower than any device, but below the FLOPs that say something."""
    table = changed(a_table(tmp_path / "samples.csv", a_matmul(1)), "seconds", "10")

    assert read_samples(table)[0].timing.seconds == 10


def test_clocks_near_each_other_are_one(tmp_path):
    """1,900 of 1,980 MHz are 4 % less."""
    table = changed(a_table(tmp_path / "samples.csv", ATTENTION, a_matmul()), "clock_mhz", "1900", row=3)

    assert len(read_samples(table)) == 2


def test_somebody_elses_table_is_refused(tmp_path):
    """It names what is missing, and which of its columns were perhaps meant."""
    path = tmp_path / "ops.csv"
    path.write_text("op,direction,dtype,m,n,k,second,devices\ngemm,fwd,bf16,1,2,3,4,5\n")

    said = message(path)

    assert "lacks the columns operator, pass, batch" in said
    assert "'second': Did you mean 'seconds'?" in said
    assert "'devices': Did you mean 'device'?" in said


def test_cells_that_are_missing_are_noticed(tmp_path):
    """A row that is shorter than the columns is not shifted into them."""
    path = a_table(tmp_path / "samples.csv", a_matmul())
    path.write_text(path.read_text() + "matmul,forward,bf16\n")

    assert "row 3: has 3 cells, the first row 34." in message(path)


@pytest.mark.parametrize("left", [1, 20, 100])
def test_a_killed_run_loses_the_sample_in_progress(tmp_path, left):
    """A last row without its end is left out by readers, and taken away by whoever goes on."""
    path = a_table(tmp_path / "samples.csv", ATTENTION, a_matmul())
    text = path.read_text()
    path.write_text(text[: text.rindex("\n", 0, -1) + 1 + left])
    notes: list[str] = []

    assert [sample.point for sample in read_samples(path, notify=notes.append)] == [ATTENTION]
    table = SamplesFile(path, MACHINE, notify=notes.append)
    table.add(a_matmul(), TIMING)

    assert [sample.point for sample in read_samples(path)] == [ATTENTION, a_matmul()]
    assert path.read_text() == text
    assert notes == [f"{path}: row 3 was cut short and counts as not measured."] * 2


@pytest.mark.parametrize("begin", ["", "opera", ",".join(COLUMNS)])
def test_a_run_killed_in_the_first_row_begins_anew(tmp_path, begin):
    """Nothing was measured yet."""
    path = tmp_path / "samples.csv"
    path.write_text(begin)

    assert [sample.point for sample in read_samples(a_table(path, a_matmul()))] == [a_matmul()]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file or folder"),
        (b"one line", "is empty or a single line; a table of samples begins with its columns"),
        (b"\xff\xfe\n", "cannot be read: 'utf-8' codec"),
    ],
)
def test_files_that_are_no_table(tmp_path, content, said):
    """None, one of a single line, and one that is no text."""
    path = tmp_path / "samples.csv"
    if content is not None:
        path.write_bytes(content)

    assert f"samples.csv: {said}" in message(path)


def test_columns_in_another_order_are_not_added_to(tmp_path):
    """Rows of this run would not fit; the table stays as it was."""
    path = a_table(tmp_path / "samples.csv", a_matmul())
    rows = [row[::-1] for row in csv.reader(path.read_text().splitlines())]
    path.write_text("".join(",".join(row) + "\n" for row in rows))

    with pytest.raises(SpecError, match=r"has other columns, or another order\. Write to another file"):
        SamplesFile(path, MACHINE)

    assert [sample.point for sample in read_samples(path)] == [a_matmul()]


def test_a_full_disk_loses_the_sample_and_nothing_else(tmp_path):
    """A file that may not grow by a row keeps its rows whole."""
    path = a_table(tmp_path / "samples.csv", a_matmul())
    text, table = path.read_text(), SamplesFile(path, MACHINE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(text) + 10, hard))
    try:
        with pytest.raises(SpecError, match=r"samples\.csv: cannot be written"):
            table.add(ATTENTION, TIMING)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert path.read_text() == text


def test_another_file_is_not_touched(tmp_path):
    """Whoever names the wrong file keeps it, a last line without its end included."""
    path = tmp_path / "notes.csv"
    path.write_text("id,text\n1,buy milk")

    with pytest.raises(SpecError, match="lacks the columns"):
        SamplesFile(path, MACHINE)

    assert path.read_text() == "id,text\n1,buy milk"


@pytest.mark.parametrize(
    ("other", "column"),
    [
        (Machine(device="Other GPU", driver="570.1", software="torch 2.13.0"), "device"),
        (Machine(device="Test GPU", driver="580.2", software="torch 2.13.0"), "driver"),
        (Machine(device="Test GPU", driver="570.1", software="torch 2.13.0", clock_mhz=1200.0), "clock_mhz"),
    ],
)
def test_a_table_goes_on_where_it_began(tmp_path, other, column):
    """Samples of another machine want a file of their own."""
    path = a_table(tmp_path / "samples.csv", a_matmul())

    with pytest.raises(SpecError, match=f"samples.csv, {column}: this machine has") as caught:
        SamplesFile(path, other)

    assert "Write to a file for each." in str(caught.value)


def test_two_runs_in_one_file_notice(tmp_path):
    """The second one's row makes the first one stop."""
    first = SamplesFile(tmp_path / "samples.csv", MACHINE)
    SamplesFile(tmp_path / "samples.csv", MACHINE).add(a_matmul(), TIMING)

    with pytest.raises(SpecError, match="another run writes to it"):
        first.add(ATTENTION, TIMING)

    assert [sample.point for sample in read_samples(tmp_path / "samples.csv")] == [a_matmul()]


def test_names_with_commas_and_lines_stay_in_their_cell(tmp_path):
    """Names of devices are whatever the driver says."""
    odd = Machine(device='GPU "X",\n 80 GB', driver="", software="a, b")

    (sample,) = read_samples(a_table(tmp_path / "samples.csv", a_matmul(), machine=odd))

    assert sample.machine == Machine(device='GPU "X", 80 GB', driver="", software="a, b")


@pytest.mark.parametrize("name", ["samples.json", "no/samples.csv"])
def test_where_nothing_can_be_written(tmp_path, name):
    """An ending that says no format, a folder that is not there: before anything is measured."""
    with pytest.raises(SpecError, match=r"expected a file that ends with|there is no folder"):
        SamplesFile(tmp_path / name, MACHINE)
