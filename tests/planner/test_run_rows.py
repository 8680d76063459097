"""Rows of measured runs: read as they are, refused alone and with their reason."""

from __future__ import annotations

import csv

import pytest

from costmodel.errors import SpecError
from planner.jobs.run_jobs import REQUIRED, SHORT_NAMES, RejectedRow, Run, plain, read, references
from planner.measure.runs.predictions import Prediction
from tests.builders_runs import GOOD, a_file, a_run, results_of, rows_of
from tests.cases import in_one_case, read_table

REFUSED = read_table("run_rows")["refused"]


@in_one_case(("cells", "sentence"), REFUSED.values())
def test_a_wrong_row_is_refused_with_its_reason_and_the_rest_goes_on(tmp_path, cells, sentence):
    """One bad row between two good ones costs nothing but itself."""
    rows = ({"id": "first"}, {"id": "bad", **cells}, {"id": "last"})

    first, bad, last = results_of(tmp_path, *rows)

    assert [type(one) for one in (first, bad, last)] == [Prediction, RejectedRow, Prediction]
    assert (bad.is_refused, bad.is_usable) == (True, True)
    assert sentence in bad.reason


CONTRADICTIONS = read_table("run_rows")["contradictions"]


@in_one_case(("cells", "sentence", "in_order"), CONTRADICTIONS.values())
def test_rows_that_contradict_themselves_are_refused_alone(tmp_path, cells, sentence, in_order):
    """Both columns are named; the same setting beside another value, and rows around it, are read."""
    first, bad, last = rows_of(tmp_path, {"id": "first"}, {"id": "bad", **cells}, {"id": "last", **in_order})

    assert [type(one) for one in (first, bad, last)] == [Run, RejectedRow, Run]
    assert bad.is_refused
    assert bad.reason.startswith(sentence)


def test_a_cell_that_a_row_leaves_open_contradicts_nothing(tmp_path):
    """Its framework's default is what ran."""
    assert isinstance(rows_of(tmp_path, read_table("run_rows")["stated_alone"])[0], Run)


SKIPPED = {
    "not usable": ({"usable": "0"}, "usable = 0"),
    "excluded": ({"quality": "excluded: slower than its repeats"}, "excluded: slower"),
    "no layout": ({"strategy.tp": "", "strategy.pp": ""}, "no layout: the row lacks strategy.tp, strategy.pp"),
    "unknown architecture": ({"model": "deepseek-v4-flash"}, "unknown architecture"),
    "one layer": ({"kind": "component"}, "a single layer"),
    "adapters": ({"kind": "adapters"}, "adapters"),
}


@in_one_case(("cells", "reason"), SKIPPED.values())
def test_a_row_that_cannot_be_predicted_is_not_refused(tmp_path, cells, reason):
    """Nothing is wrong with the row; the reason stands where the prediction would."""
    (row,) = results_of(tmp_path, cells)

    assert isinstance(row, RejectedRow)
    assert not row.is_refused
    assert reason in row.reason


# --- columns -----------------------------------------------------------------------------------------------


def without(*columns: str) -> tuple[str, ...]:
    """Columns of the table but for some."""
    return tuple(column for column in GOOD if column not in columns)


@in_one_case("column", REQUIRED)
def test_a_table_without_a_column_that_it_needs_is_none(tmp_path, column):
    """The error names the column."""
    path = a_file(tmp_path, {}, columns=without(column))

    with pytest.raises(SpecError, match=rf"{column}: no such column; 1 of 4 are missing\."):
        list(read(path))


def test_a_misspelt_column_is_named(tmp_path):
    """What may have been meant stands behind."""
    path = a_file(tmp_path, {"modle": "llama3-8b"}, columns=("id", "modle", *REQUIRED[2:]))

    with pytest.raises(SpecError, match="Did you mean 'modle'"):
        list(read(path))


def test_columns_of_no_section_of_a_job_are_refused(tmp_path):
    """A dot makes a key of a job file of it; columns without one are for people."""
    with pytest.raises(SpecError, match=r"strategi\.tp: is not a key of a job file\. Did you mean 'strategy'"):
        rows_of(tmp_path, {"strategi.tp": "2"})
    assert isinstance(rows_of(tmp_path, {"operator": "somebody"})[0], Run)


@in_one_case("column", SHORT_NAMES)
def test_a_short_name_of_a_column_is_not_overlooked(tmp_path, column):
    """Its cells would silently be a comment; all such names of a table are told at once."""
    with pytest.raises(SpecError, match=f"{column}: no such column. Write .*{SHORT_NAMES[column]}.$"):
        rows_of(tmp_path, {"dtype": "bf16", column: "1"})


def test_rows_without_the_cells_of_a_layout_are_skipped(tmp_path):
    """A table may lack a column that another one has; then no row of it says so."""
    rows = list(read(a_file(tmp_path, {}, {"id": "b"}, columns=without("training.global_batch_size"))))

    assert [row.reason for row in rows if isinstance(row, RejectedRow)] == [
        "no layout: the row lacks training.global_batch_size"
    ] * 2


# --- cells -------------------------------------------------------------------------------------------------


@in_one_case(("cell", "value"), read_table("run_rows")["cells"])
def test_cells_are_what_a_job_file_would_hold(cell, value):
    """Numbers that pandas wrote as 8.0 are whole; a schedule that begins with a digit is none."""
    assert plain(cell, "column") == value
    assert type(plain(cell, "column")) is type(value)


def test_yes_and_no_as_programs_write_them(tmp_path):
    """Pandas and spreadsheets spell ``usable`` in their own ways; a row that is not is skipped, not refused."""
    for cell in ("1", "1.0", "True", "true", "TRUE", " 1 "):
        assert a_run(tmp_path, usable=cell).id == "good"
    for cell in ("0", "0.0", "False", "false"):
        (skipped,) = rows_of(tmp_path, {"usable": cell})
        assert isinstance(skipped, RejectedRow)
        assert (skipped.is_refused, skipped.is_usable) == (False, False)


def test_a_row_says_what_its_cells_say(tmp_path):
    """Sections and entries as a job file has them; an empty cell is nothing, not an empty text."""
    run = a_run(tmp_path, model__num_layers="7", strategy__tp="2.0", cluster__internode_bandwidth="2.5e10")

    assert run.entries["model"] == {"base": "llama3-8b", "num_layers": 7}
    assert run.get("strategy") == {"tp": 2, "pp": 1, "mbs": 1}
    assert run.get("cluster.internode_bandwidth") == 25_000_000_000
    assert run.get("strategy.recompute") is None
    assert run.get("no.such.key") is None
    assert (run.model, run.device, run.num_devices) == ("llama3-8b", "h100-80gb-sxm", 64)


def test_the_device_of_a_path_is_its_name(tmp_path):
    """What groups rows is the file's name without folder and ending."""
    assert a_run(tmp_path, cluster__device="devices/ours.yaml").device == "ours"


# --- lines -------------------------------------------------------------------------------------------------


def test_a_short_line_and_an_id_used_twice_are_refused(tmp_path):
    """Cells that slipped to the left are not guessed at."""
    path = a_file(tmp_path, {}, {})
    path.write_text(path.read_text() + "short,ok\n" + "," * (len(GOOD) + 3) + "\n")

    first, second, short, long = read(path)

    assert isinstance(first, Run)
    assert "id: 'good' is the id of an earlier row too." in second.reason
    assert "fewer cells" in short.reason
    assert "more cells" in long.reason
    assert all(row.is_refused for row in (second, short, long))


def test_a_byte_that_is_not_utf_8_costs_its_row_alone(tmp_path):
    """Latin-1 in the notes of one row and in the id of another; what is printed of them is text."""
    path = a_file(tmp_path, {"id": "first"}, {"id": "notes", "notes": "M?nchen"}, {"id": "n?me"}, {"id": "last"})
    path.write_bytes(path.read_bytes().replace(b"?", b"\xfc"))

    first, notes, name, last = read(path)

    assert [type(one) for one in (first, last)] == [Run, Run]
    assert (notes.id, notes.reason) == ("notes", "notes: is not UTF-8: it has the byte 0xfc.")
    assert (name.id, name.is_refused) == ("n\ufffdme", True)


def test_a_cell_that_is_too_long_costs_its_row_alone(tmp_path):
    """131,073 characters are one more than Python's csv module takes; the row is known by its line."""
    first, long, last = rows_of(tmp_path, {"id": "first"}, {"id": "long", "notes": "x" * 131_073}, {"id": "last"})

    assert [type(one) for one in (first, long, last)] == [Run, RejectedRow, Run]
    assert (long.id, long.is_refused) == ("line 3", True)
    assert "field limit (131072)" in long.reason


def test_a_long_cell_of_several_lines_is_refused_line_by_line(tmp_path):
    """Where such a cell ends is not known: what follows of it is no row either, and has no text for a name."""
    long = {"id": "long", "notes": ("x" * 100_000 + "\n") * 3 + "end"}

    first, *others, last = rows_of(tmp_path, {"id": "first"}, long, {"id": "last"})

    assert [type(one) for one in (first, last)] == [Run, Run]
    assert [one.id for one in others][:2] == ["line 4", "line 5"]
    assert max(len(one.id) for one in others) < 10
    assert all(isinstance(one, RejectedRow) and one.is_refused for one in others)


def test_a_header_that_is_not_utf_8_is_no_table(tmp_path):
    """UTF-16, as spreadsheets write it: there are no columns to go by."""
    path = a_file(tmp_path, {})
    path.write_bytes(path.read_text().encode("utf-16"))

    with pytest.raises(SpecError, match="its first line is not UTF-8"):
        list(read(path))


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    """Spreadsheets begin UTF-8 with one."""
    path = a_file(tmp_path, {})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert isinstance(next(read(path)), Run)


def test_the_id_of_a_refused_row_is_free(tmp_path):
    """A correction below a wrong row is predicted; blanks around an id do not make it another."""
    wrong, corrected, again = rows_of(tmp_path, {"id": "a", "step_seconds": "-1"}, {"id": "a"}, {"id": " a "})

    assert [type(one) for one in (wrong, corrected, again)] == [RejectedRow, Run, RejectedRow]
    assert corrected.id == "a"
    assert again.reason == "id: 'a' is the id of an earlier row too."


def test_what_was_measured_is_known_of_rows_that_are_not_predicted(tmp_path):
    """Where it can be read."""
    skipped, refused = rows_of(
        tmp_path, {"id": "a", "usable": "0"}, {"id": "b", "strategy.tp": "3", "peak_memory_gib": "x"}
    )

    assert (skipped.step_seconds, skipped.peak_memory_gib) == (2.1, 60)
    assert (refused.step_seconds, refused.peak_memory_gib) == (2.1, None)


def test_the_order_of_columns_is_nobodys_business(tmp_path):
    """A table of a program that writes them backwards says the same."""
    there = a_run(tmp_path)
    back = next(read(a_file(tmp_path, {}, columns=tuple(reversed(GOOD)))))

    assert isinstance(back, Run)
    assert back.entries == there.entries


def test_models_are_a_mapping_of_names(tmp_path):
    """A file of models that is none is told with its path."""
    path = tmp_path / "models.yaml"
    for text, problem in (("[1, 2]", "expected a mapping of names to models"), ("{a: [", "cannot be read as YAML")):
        path.write_text(text)
        with pytest.raises(SpecError, match=problem):
            references(path)
    with pytest.raises(SpecError, match=r"no such file. Did you mean '.*models.yaml'"):
        references(tmp_path / "model.yaml")


def test_a_file_of_rows_has_the_columns_of_todays_table(tmp_path):
    """What tests write here is what the project's own table has."""
    with a_file(tmp_path, {}).open() as file:
        assert tuple(next(csv.reader(file))) == tuple(GOOD)
