"""Collected rows become columns of a job file: tiny rows, one fact each."""

from __future__ import annotations

import csv

import pytest
import yaml

import planner
from benchmarks.measured_runs import convert
from benchmarks.measured_runs.__main__ import FOLDER, convert_files, main
from benchmarks.measured_runs.columns import COLLECTED, JOB, models_file, table
from planner.jobs.strategy_file import read_given
from tests.cases import in_one_case, read_table

CASES = read_table("collected_rows")
ROW = dict.fromkeys(COLLECTED, "") | CASES["row"]
MOE = CASES["moe"]


def explicit(models=None, **cells: str) -> dict[str, str]:
    """One row converted."""
    (row,) = convert([{**ROW, **cells}], models or {}).rows
    return row


def said(prefix: str, row: dict[str, str]) -> dict[str, str]:
    """What a row says under a section."""
    return {key.removeprefix(prefix): cell for key, cell in row.items() if key.startswith(prefix) and cell}


@pytest.fixture(scope="module")
def ours():
    """The project's own table and models, converted now."""
    return convert_files(FOLDER / "collected" / "runs.csv", FOLDER / "collected" / "models.yaml")


# --- the files --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_generated_files_are_current(ours):
    """``python -m benchmarks.measured_runs`` writes them."""
    assert (FOLDER / "runs.csv").read_text(encoding="utf-8") == table(ours.rows)
    assert (FOLDER / "models.yaml").read_text(encoding="utf-8") == models_file(ours.models, ours.comments)


def test_nothing_of_ours_is_refused(ours):
    """Every cell of the public table is understood; seven runs of InternEvo are printed twice."""
    with (FOLDER / "collected" / "runs.csv").open(encoding="utf-8", newline="") as file:
        collected = list(csv.DictReader(file))

    assert not [row["id"] for row in ours.rows if row["refused"]]
    assert [row["id"] for row in ours.rows] == [row["id"] for row in collected]
    assert sum(row["usable"] == "1" for row in ours.rows) == sum(row["usable"] == "1" for row in collected) - 7


@pytest.mark.slow
def test_every_strategy_reads_as_one_of_a_job(ours):
    """All decisions that job files have today are in their words."""
    later = ("token_dispatcher", "cuda_graphs")
    for row in ours.rows:
        strategy = {name: yaml.safe_load(cell) for name, cell in said("strategy.", row).items() if name not in later}
        given = read_given(strategy)
        assert len(given.decisions) + (given.layout is not None) == len(strategy)


def test_every_model_is_one(ours):
    """Usable rows name a model of the file, and none that is unknown."""
    usable = {row["model"] for row in ours.rows if row["usable"] == "1"}

    assert usable <= set(ours.models)
    assert not [name for name in usable if "unknown" in ours.models[name]]


def test_the_device_of_a_site_loads():
    """Four A100 per node behind a network of 1.2 GB/s (their own collectives)."""
    job = {
        "model": "llama2-7b",
        "cluster": {"device": "devices/a100-80gb-sxm-perlmutter.yaml", "num_devices": 128},
        "training": {"global_batch_size": 128, "sequence_length": 2048, "tokens": 1e12},
    }

    device = planner.load(job, folder=FOLDER).facts.cluster.device

    assert device.devices_per_node == 4
    assert [(one.name, one.num_peers, one.is_mesh) for one in device.networks[:1]] == [("nvlink", 4, True)]
    assert device.networks[-1].bandwidth == 1.2e9
    assert device.networks[-1].is_half_duplex


def test_the_command_converts_another_table(tmp_path, capsys):
    """With the devices of sites beside it; refused rows are told and make the exit code 1."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    with (folder / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows([ROW, {**ROW, "id": "b", "dtype": "int7"}])
    (folder / "in.yaml").write_text("{}")
    arguments = ["--runs", str(folder / "in.csv"), "--models", str(folder / "in.yaml"), "-o", str(folder / "out")]

    assert main(arguments) == 1
    assert "b: dtype: 'int7' is no known recipe." in capsys.readouterr().out
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["devices", "models.yaml", "runs.csv"]
    assert main(["--runs", str(folder / "none.csv"), *arguments[2:]]) == 2


# --- what a row says ---------------------------------------------------------------------------------------------


def test_a_plain_row_is_a_job_and_a_strategy():
    """Counts of pandas are whole numbers; what the row does not say is empty."""
    row = explicit()

    assert said("cluster.", row) == {
        "device": "h100-80gb-sxm",
        "num_devices": "64",
        "devices_per_node": "8",
        "scale_up_size": "8",
        "framework": "megatron-bridge-26.04",
    }
    assert said("training.", row) == {"global_batch_size": "128", "sequence_length": "8192", "precision": "bf16"}
    degrees = {"tp": "2", "cp": "1", "pp": "4", "dp": "8", "ep": "1", "vpp": "2", "mbs": "1"}
    assert said("strategy.", row) == degrees
    assert said("settings.", row) == {}
    assert (row["model"], row["step_seconds"], row["refused"]) == ("llama3-8b", "5.5", "")


def test_the_older_form_lacks_columns_only():
    """What they would say stays empty; a dispatcher that its notes name is not lost."""
    assert "token_dispatcher" not in ROW
    assert explicit(**MOE, notes="GA=8; dispatcher=hybridep")["strategy.token_dispatcher"] == "hybridep"
    assert explicit(**MOE)["strategy.token_dispatcher"] == ""


@in_one_case(("cells", "expected"), CASES["overlaps"])
def test_overlaps_are_said_of_what_there_is(cells, expected):
    """No tensor-parallel overlap without split norms, none of a pipeline with one chunk; silence says nothing."""
    row = explicit(**cells)

    assert [row[f"strategy.{name}_overlap"] for name in ("tp", "ep", "pp", "dp")] == expected
    assert row["strategy.cp_overlap"] == ""


@in_one_case(("cells", "column", "expected"), CASES["converted"])
def test_cells_are_said_in_the_words_of_job_files(cells, column, expected):
    """
    Columns before notes, conditions as the decisions themselves have them; settings only where the row says.

    Links of a node are shared by its devices: 4 x 100 Gbit/s for eight are 6.25 GB/s each. A framework is the release
    that a row tells, else the one of its date; case says nothing.
    """
    row = explicit(**cells)

    assert (row[column], row["refused"]) == (expected, "")


def test_sites_are_of_their_source_alone():
    """Jean Zay's NVLinks, 4 of 12 x 25 GB/s, are of BigScience's rows; Perlmutter's device of those measured there."""
    bloom = explicit(source="BLOOM / BigScience tuning tables", gpu="a100-80g-sxm")
    there = {"source": "Zhang et al. 2025", "id": "gm25-perlmutter-1", "gpu": "a100-80g-sxm"}

    assert bloom["cluster.scale_up_bandwidth"] == "1e+11"
    assert explicit(**there)["cluster.device"] == "devices/a100-80gb-sxm-perlmutter.yaml"
    assert explicit(**{**there, "id": "gm25-vista-1"})["cluster.device"] == "a100-80gb-sxm"
    assert explicit(gpu="tpu-v5p")["cluster.device"] == "tpu-v5p"


def test_a_framework_without_an_entry_is_named_in_the_notes():
    """Nothing is lost."""
    row = explicit(framework="MaxText (JAX)", notes="fast")

    assert (row["cluster.framework"], row["notes"]) == ("", "fast; framework: MaxText (JAX)")


def test_what_has_no_formula_is_named():
    """In the report's words; routing without drops is no token drop."""
    row = explicit(overlaps="everything", offload="activations:expert_fc1", notes="schedule ZB-9, token drop")

    assert row["not_modelled"].split("; ") == [
        "schedule ZB-9: as 1F1B",
        "offload of single modules: as none",
        "overlap of everything: as none",
        "token drop: as balanced and dropless",
    ]
    assert explicit(notes="router force-balanced, token-dropless")["not_modelled"] == ""


def test_a_run_that_is_printed_twice_counts_once():
    """The second copy says whose it is; without the first it stands."""
    first, second = {**ROW, "id": "internevo-tgs-tp1-z8-n64"}, {**ROW, "id": "internevo-flops-ckF-n64-mb2x4"}

    rows = convert([first, second], {}).rows
    (alone,) = convert([second], {}).rows

    assert [row["usable"] for row in rows] == ["1", "0"]
    assert rows[1]["quality"] == "excluded: the same run as internevo-tgs-tp1-z8-n64, printed twice"
    assert alone["usable"] == "1"


def test_adapters_are_a_kind_of_their_own():
    """The cost model trains every parameter."""
    assert explicit(kind="finetune", notes="LoRA fine-tuning, packed")["kind"] == "adapters"
    assert explicit(kind="finetune", notes="SFT fine-tuning")["kind"] == "finetune"


# --- what is wrong -----------------------------------------------------------------------------------------------


NOT_UTF_8 = ({"notes": "caf\udce9"}, "notes: is not UTF-8: it has the byte 0xe9.")


@in_one_case(("cells", "reason"), [*CASES["refused"], NOT_UTF_8])
def test_a_wrong_row_is_refused_alone(cells, reason):
    """With the reason, and what could be read; the next one is converted."""
    wrong, right = convert([{**ROW, **cells}, {**ROW, "id": "next"}], {}).rows

    assert reason in wrong["refused"]
    assert wrong["id"] == (cells.get("id", "a-row") or "line 2")
    assert (right["id"], right["refused"]) == ("next", "")


def test_what_could_be_read_of_a_refused_row_is_there():
    """Its measurement, too; two faults are both told."""
    row = explicit(dtype="int7", recompute="some")

    assert (row["strategy.tp"], row["step_seconds"], row["training.precision"]) == ("2", "5.5", "")
    assert "dtype" in row["refused"]
    assert "recompute" in row["refused"]


@pytest.mark.parametrize("cells", [{"usable": "0"}, {"quality": "excluded: slow"}, {"mbs": ""}])
def test_nothing_is_refused_of_a_row_that_nobody_predicts(cells):
    """Not usable, excluded, or without a layout."""
    assert explicit(dtype="int7", **cells)["refused"] == ""


def test_records_that_are_no_rows_say_so():
    """Too few cells, too many, columns that are missing, an id that was there."""
    few, many = {**ROW, "notes": None}, {**ROW, "id": "b", None: ["x"]}
    columns = {column: cell for column, cell in ROW.items() if column not in ("gpu", "tp")}

    rows = convert([few, many, columns, ROW, ROW], {}).rows

    assert [row["refused"] for row in rows] == [
        "row: has fewer cells than the header.",
        "row: has more cells than the header.",
        "gpu: no such column; 2 of 34 are missing.",
        "",
        "id: 'a-row' is the id of an earlier row too.",
    ]


def test_cells_that_are_too_long_cost_their_record_alone(tmp_path):
    """Python's reader gives up on them and goes on."""
    path, models = tmp_path / "in.csv", tmp_path / "in.yaml"
    lines = [",".join(ROW), ",".join(ROW.values()), "x" * 200_000, ",".join({**ROW, "id": "b"}.values())]
    path.write_text("\n".join(lines) + "\n")
    models.write_text("{}")

    rows = convert_files(path, models).rows

    assert [row["refused"][:29] for row in rows] == ["", "row: cannot be read as CSV: f", ""]


def test_columns_of_a_job_have_their_sections():
    """Nothing but sections of a job file, and the model."""
    sections = {"model", "cluster", "training", "settings", "strategy"}

    assert {column.partition(".")[0] for column in JOB} == sections
