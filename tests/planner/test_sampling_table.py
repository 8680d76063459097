"""The table of samples: what goes in comes out, what is wrong is refused by row and column, what is cut is left out."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.sampling.samples import Machine, Point, Sizes, Timing
from planner.sampling.table import COLUMNS, SamplesFile, read_samples

MACHINE = Machine(device="Test GPU", driver="570.1", software="torch 2.13.0", clock_mhz=1980.0)

ATTENTION = Point(
    operator="attention",
    pass_="backward",
    dtype="bf16",
    sizes=Sizes(
        sequences=2, queries=64, keys=64, heads=8, kv_heads=2, qk_head_dim=192, v_head_dim=128, causal=False, window=16
    ),
)

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
    points = (ATTENTION, a_matmul(), a_matmul(beside="copy"))

    samples = read_samples(a_table(tmp_path / f"samples{suffix}", *points))

    assert tuple(sample.point for sample in samples) == points
    assert {(sample.timing, sample.machine) for sample in samples} == {(TIMING, MACHINE)}


def test_columns_say_their_units(tmp_path):
    """The first row is the table's columns in order; cells that do not apply are empty."""
    header, row = csv.reader(a_table(tmp_path / "samples.csv", a_matmul(512)).read_text().splitlines())
    cells = dict(zip(header, row, strict=True))

    assert header == list(COLUMNS)
    assert {"pass", "seconds", "clock_mhz", "nbytes", "kv_heads", "beside"} <= set(header)
    assert (cells["m"], cells["seconds"], cells["heads"], cells["causal"]) == ("512", "0.001", "", "")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("seconds", "-0.001", "row 3, seconds: is '-0.001'; expected a finite number above 0."),
        ("seconds", "0", "row 3, seconds: is '0'; expected a finite number above 0."),
        ("seconds", "inf", "row 3, seconds: is 'inf'; expected a finite number above 0."),
        ("seconds", "nan", "row 3, seconds: is 'nan'; expected a finite number above 0."),
        ("seconds", "fast", "row 3, seconds: is 'fast'; expected a finite number above 0."),
        ("operator", "matmull", "row 3, operator: is 'matmull', which is none. Did you mean 'matmul'?"),
        ("pass", "backward", "of matmul allowed are forward, dgrad or wgrad."),
        ("dtype", "bf61", "Did you mean 'bf16'?"),
        ("m", "", "row 3, m: is empty; matmul has m, n, k."),
        ("m", "1.5", "row 3, m: is '1.5'; expected a whole number of at least 1."),
        ("heads", "8", "row 3, heads: is '8'; expected an empty cell, as matmul has m, n, k."),
        ("repeats", "0", "row 3, repeats: is '0'; expected a whole number of at least 1."),
        (
            "device",
            "Other GPU",
            "row 3, device: this row has 'Other GPU', row 2 'Test GPU'; one table is of one machine.",
        ),
        ("software", "torch 2.6.0", "row 3, software: this row has 'torch 2.6.0'"),
        ("clock_mhz", "1500", "row 3, clock_mhz: this row has 1500 MHz, row 2 1980 MHz; at most 10 % apart"),
    ],
)
def test_wrong_cells_are_refused(tmp_path, column, value, said):
    """Row, column, what was seen, what is allowed."""
    table = changed(a_table(tmp_path / "samples.csv", ATTENTION, a_matmul()), column, value, row=3)

    assert said in message(table)


@pytest.mark.parametrize(
    ("seconds", "rate"),
    [("2e-9", "more than the 1e+17"), ("3000", "less than the 1e+06")],
)
def test_times_in_another_unit_are_refused(tmp_path, seconds, rate):
    """2.1 GFLOP in 2 ns are 1.07e18 FLOP/s, in 3,000 s 0.7 MFLOP/s."""
    table = changed(a_table(tmp_path / "samples.csv", a_matmul()), "seconds", seconds)

    assert rate in message(table)
    assert "The unit of this column is seconds." in message(table)


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
