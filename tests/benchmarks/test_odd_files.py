"""Measured runs of other files: parts of the project's own, changed rows, tables as collected."""

from __future__ import annotations

import csv
import json

import pytest
import yaml

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.left_out.folds import HELD_OUT, read_held_out
from benchmarks.accuracy.metrics import FOLDER, NEWER, RUNS, read_table
from benchmarks.measured_runs.columns import COLLECTED
from planner.jobs.run_jobs import RejectedRow
from planner.measure.runs.predictions import Prediction, predictions
from tests.benchmarks.test_conversion import ROW
from tests.builders_runs import project_table

HEADER, *LINES = RUNS.read_text(encoding="utf-8").splitlines()


def report_of(folder, lines, *arguments: str) -> dict:
    """What the command writes of some lines of the project's own file."""
    path, written = folder / "some.csv", folder / "some.json"
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    assert main(["--runs", str(path), "--json", str(written), *arguments]) == 0
    return json.loads(written.read_text())


def test_a_file_of_one_group(tmp_path):
    """Nothing is left to make an interval of; the rest is told."""
    report = report_of(tmp_path, LINES[:1])

    assert report["left_out"]["rows"] == 1
    assert report["left_out"]["coverages"] == []


def test_a_row_that_was_changed_is_not_judged_by_what_was_predicted_for_another(tmp_path):
    """Its id is known, but not what it measured."""
    changed = LINES[0].replace(",fp8_current,", ",mxfp8,")

    assert changed != LINES[0]
    assert report_of(tmp_path, [changed, *LINES[1:2]])["left_out"]["rows"] == 1


def test_predictions_without_their_group_are_of_rows_that_there_are():
    """Each of them has a step time and is predicted today."""
    rows = {row.id: row for table in (project_table(), read_table(NEWER)) for row in table[0]}

    stored = read_held_out(HELD_OUT)

    assert stored
    assert [
        name for name in stored if isinstance(rows.get(name, NOT), RejectedRow) or rows[name].step_seconds is None
    ] == []


NOT = RejectedRow(id="", reason="", is_usable=False, is_refused=False)


# --- tables as collected -----------------------------------------------------------------------------------

COLLECTED_ROW = {**ROW, "id": "a", "framework": "Megatron-Core", "pp": "1.0", "step_time_s": "2.1"} | dict.fromkeys(
    ("gpus_per_node", "nvlink_domain", "cp", "ep", "vp", "dp"), ""
)


def collected(folder, *rows: dict[str, str]):
    """A table of such rows."""
    path = folder / "collected.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLLECTED)
        writer.writeheader()
        writer.writerows({**COLLECTED_ROW, **row} for row in rows)
    return path


def test_a_table_as_collected_is_converted_on_the_way(tmp_path):
    """The same prediction as of the explicit row; what is refused is refused alone, by the words of its own column."""
    path = collected(tmp_path, {}, {"id": "b", "tp": "3"}, {"id": "c", "step_time_s": "2100"}, {"id": "d"})

    rows, known = read_table(path)
    a, b, c, d = predictions(rows, known)

    assert isinstance(a, Prediction)
    assert isinstance(d, Prediction)
    assert a.strategy == d.strategy
    assert (a.strategy.tp, a.strategy.dp, a.run.device) == (2, 32, "h100-80gb-sxm")
    assert [one.is_refused for one in (b, c)] == [True, True]
    assert "n_gpus: 64 is not a multiple of tp x cp x pp = 3." in b.reason
    assert "Is it in seconds?" in c.reason


@pytest.mark.slow
def test_a_byte_of_a_collected_table_that_is_not_utf_8_costs_its_row_alone(tmp_path, capsys):
    """Latin-1 in the notes of one row and in the id of another; what is printed of them is text."""
    path = collected(tmp_path, {"id": "first"}, {"id": "notes", "notes": "M?nchen"}, {"id": "n?me"}, {"id": "last"})
    path.write_bytes(path.read_bytes().replace(b"?", b"\xfc"))

    code = main(["--runs", str(path), "--rows", str(tmp_path / "out.csv")])

    out = capsys.readouterr().out
    assert code == 1
    assert "predicted: 2" in out
    assert "notes: notes: is not UTF-8: it has the byte 0xfc." in out
    assert "n\ufffdme: id: is not UTF-8" in out


def test_architectures_of_a_collected_table_may_be_others(tmp_path):
    """In the words of those who collect them; what one lacks costs its own rows."""
    models = yaml.safe_load((FOLDER / "collected" / "models.yaml").read_text(encoding="utf-8"))
    broken = {name: value for name, value in models["llama3-8b"].items() if name != "ffn_hidden"}
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"ours": broken, "llama3-8b": models["llama3-8b"]}))
    path = collected(tmp_path, {"model": "ours"}, {"id": "b"})

    ours, llama = predictions(*read_table(path, tmp_path / "models.yaml"))

    assert isinstance(ours, RejectedRow)
    assert "ffn_hidden" in ours.reason
    assert isinstance(llama, Prediction)
