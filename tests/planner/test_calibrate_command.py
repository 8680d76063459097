"""``planner calibrate``: from runs to a device that a job can use, or the reason why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from costmodel import catalog
from planner import load
from planner.calibration.advice import _candidates
from planner.calibration.calibrate import _configuration, calibrate
from planner.calibration.cases import seconds_of
from planner.calibration.wording import calibration_text
from planner.cli import main
from planner.runs.facts import references
from planner.runs.predictions import Case, cases
from planner.runs.table import read
from tests.benchmarks.test_accuracy import a_file

LAYOUTS: tuple[dict[str, str], ...] = (
    {"id": "a", "model": "llama3-8b", "n_gpus": "8", "tp": "1", "mbs": "1", "recompute": "full"},
    {"id": "b", "model": "llama3-8b", "n_gpus": "8", "tp": "2", "mbs": "1"},
    {"id": "c", "model": "llama3-8b", "n_gpus": "8", "tp": "4", "mbs": "2"},
    {"id": "d", "model": "llama3-8b", "n_gpus": "16", "tp": "2", "pp": "2", "mbs": "1"},
    {"id": "e", "model": "llama2-7b", "n_gpus": "8", "tp": "2", "mbs": "1", "seq_len": "4096"},
    {"id": "f", "model": "llama2-7b", "n_gpus": "8", "tp": "1", "mbs": "1", "seq_len": "4096", "recompute": "full"},
    {"id": "g", "model": "llama2-13b", "n_gpus": "8", "tp": "4", "mbs": "1", "seq_len": "4096"},
    {"id": "h", "model": "llama2-13b", "n_gpus": "16", "tp": "2", "pp": "2", "mbs": "1", "seq_len": "4096"},
)
"""Runs on H100 of models in the catalog; their times are made by a test."""


def runs_of(folder: Path, efficiency: float, *more: dict[str, str]) -> Path:
    """The layouts as an H100 with another efficiency of matmuls would run them."""
    plain = [{**layout, "peak_memory_gib": "", "memory_kind": "", "step_time_s": "10"} for layout in LAYOUTS]
    device = catalog.device("h100-80gb-sxm")
    profile = replace(device.profile, matmul_efficiency={dtype: efficiency for dtype in device.peak_flops})
    known = references(None)
    other = known.with_profiles({device.name: replace(device, profile=profile)}, {})
    made = [one for one in cases(read(a_file(folder, *plain)), known) if isinstance(one, Case)]
    timed = [{**row, "step_time_s": f"{seconds_of(one, other):.6g}"} for row, one in zip(plain, made, strict=True)]
    return a_file(folder, *timed, *({**timed[0], **row} for row in more))


def command(runs: Path, output: Path, *options: str) -> int:
    """Run it."""
    return main(["calibrate", "--runs", str(runs), "-o", str(output), *options])


def test_the_profile_that_made_the_runs_is_found_again(tmp_path):
    """Matmuls at 0.60: the fit halves the catalog's distance, and predicts runs left out twice as well."""
    catalogs = catalog.device("h100-80gb-sxm").profile.matmul_efficiency["bf16"]
    found = calibrate(runs_of(tmp_path, 0.60), references(None), name="mine")

    (matmul,) = [one for one in found.determined if one.constant.fields[0] == "profile.matmul_efficiency.bf16"]
    assert abs(matmul.value - 0.60) < 0.5 * abs(catalogs - 0.60)
    assert found.error_left_out < 0.5 * found.error_before
    assert found.num_groups >= 3


def test_the_file_is_a_device_of_a_job(tmp_path, capsys):
    """Written, named as its file, and planned with at once; the report says what to expect and what to measure."""
    code = command(runs_of(tmp_path, 0.60), tmp_path / "mine.yaml")

    job: dict[str, Any] = {
        "model": "llama3-8b",
        "cluster": {"device": str(tmp_path / "mine.yaml"), "num_devices": 8},
        "training": {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e12},
    }
    problem = load(job)
    out = capsys.readouterr().out
    assert code == 0
    assert problem.facts.cluster.device.name == "mine"
    assert problem.sources == (tmp_path / "mine.yaml",)
    assert "planner calibrate" in problem.facts.cluster.device.sources["profile.matmul_efficiency"]
    assert "of runs left out of the fit" in out
    assert "Worth measuring next" in out


def test_a_device_file_that_is_not_there(tmp_path):
    """The path is named."""
    job = {
        "model": "llama3-8b",
        "cluster": {"device": "./none.yaml", "num_devices": 8},
        "training": {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e12},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    assert main(["plan", str(tmp_path / "job.yaml")]) == 2


def test_an_existing_file_is_kept_without_force(tmp_path, capsys):
    """Nothing is fitted before that is known."""
    output = tmp_path / "mine.yaml"
    output.write_text("precious")

    refused = command(runs_of(tmp_path, 0.60), output)
    kept = output.read_text()
    forced = command(runs_of(tmp_path, 0.60), output, "--force")

    assert (refused, kept, forced) == (2, "precious", 0)
    assert "--force" in capsys.readouterr().err
    assert output.read_text() != "precious"


def test_refused_rows_are_named_and_the_rest_is_fitted(tmp_path, capsys):
    """Milliseconds, an unknown device, a layout that does not divide or that cannot have fitted: eight runs fitted."""
    bad = (
        {"id": "memory", "model": "llama3-8b", "seq_len": "8192", "mbs": "16", "gbs": "128", "recompute": ""},
        {"id": "ms", "step_time_s": "2100000"},
        {"id": "gpu", "gpu": "h1000"},
        {"id": "layout", "tp": "3"},
        {"id": "model", "model": "llama9-8b"},
    )

    code = command(runs_of(tmp_path, 0.60, *bad), tmp_path / "mine.yaml")

    out = capsys.readouterr().out
    assert code == 1
    assert all(f"refused: {row['id']}: " in out for row in bad)
    assert "8 runs of h100-80gb-sxm fitted" in out


def test_too_few_runs_are_not_fitted(tmp_path, capsys):
    """One good row among refused ones: exit code 4, no file."""
    runs = a_file(tmp_path, {"model": "llama3-8b"}, {"id": "bad", "step_time_s": "-1"})

    code = command(runs, tmp_path / "mine.yaml")

    assert code == 4
    assert not (tmp_path / "mine.yaml").exists()
    assert "Too few runs: 1 with a step time" in capsys.readouterr().err


def test_contradictory_runs_are_not_fitted(tmp_path, capsys):
    """The same configuration in 1 and in 3 times the time."""
    runs = runs_of(tmp_path, 0.60)
    rows = runs.read_text().splitlines()
    cells = rows[1].split(",")
    column = rows[0].split(",").index("step_time_s")
    cells[0], cells[column] = "again", str(3 * float(cells[column]))
    runs.write_text("\n".join([*rows, ",".join(cells)]) + "\n")

    code = command(runs, tmp_path / "mine.yaml")

    assert code == 4
    assert "contradict each other: 'a' took" in capsys.readouterr().err


def cases_of(folder: Path, *rows: dict[str, str]) -> list[Case]:
    """Rows as the cost model takes them."""
    found = list(cases(read(a_file(folder, *rows)), references(None)))
    assert all(isinstance(one, Case) for one in found)
    return [one for one in found if isinstance(one, Case)]


def test_rows_that_differ_in_their_zero_group_are_two_configurations(tmp_path):
    """InternEvo's rows name the group in their ids alone: 8, all, and silent, which is 8; so do notes a dispatcher."""
    row = {"framework": "InternEvo", "gpu": "a100-80g-sxm", "tp": "1", "step_time_s": "8"}
    ids = ("a-tp1-z8-n64", "a-tp1-z-1-n64", "silent")

    eight, everyone, silent = map(_configuration, cases_of(tmp_path, *({**row, "id": name} for name in ids)))

    assert eight == silent
    assert eight != everyone


def test_a_fit_that_is_no_better_than_the_catalog_is_not_called_enough(tmp_path):
    """The constants are known well, but runs left out are predicted as the catalog does: that is the verdict."""
    found = calibrate(runs_of(tmp_path, 0.60), references(None), name="mine")
    known_well = replace(found, advice=replace(found.advice, num_more=0, spread=0.01))

    better = calibration_text(known_well, "mine.yaml")
    no_better = calibration_text(replace(known_well, error_left_out=found.error_before), "mine.yaml")

    assert "The runs are enough" in better
    assert "no better than the catalog" not in better
    assert "The runs are enough" not in no_better
    assert "The fit is no better than the catalog on runs that it did not see" in no_better


def test_runs_of_another_device_are_called_so(tmp_path, capsys):
    """Eight runs on H100, none on the device that was chosen."""
    code = command(runs_of(tmp_path, 0.60), tmp_path / "mine.yaml", "--device", "a100-80gb-sxm")

    assert code == 4
    assert "Runs not of the chosen device, but of h100-80gb-sxm: 8." in capsys.readouterr().err


def test_suggestions_that_differ_in_precision_say_so(tmp_path):
    """One job in 16 and in 8 bits; where a row is silent, the default of its software, which is no third job."""
    rows = ({"id": f"in {dtype}", "dtype": dtype} for dtype in ("bf16", "", "fp8_current"))

    texts = [one.run.id for one in _candidates(cases_of(tmp_path, *rows), references(None))]

    assert len(texts) == len(set(texts))
    assert {text.split(", ")[2] for text in texts} == {"bf16", "fp8_current"}


def test_runs_that_no_device_explains_are_not_fitted(tmp_path, capsys):
    """All of them ten times slower than the model could be with any profile: something else ran."""
    runs = runs_of(tmp_path, 0.045)

    code = command(runs, tmp_path / "mine.yaml")

    assert code == 4
    assert "within the physical bounds no profile" in capsys.readouterr().err


def test_an_unknown_device_starts_from_a_named_one(tmp_path):
    """``--device`` names the relative whose profile is the prior."""
    runs = runs_of(tmp_path, 0.60)
    runs.write_text(runs.read_text().replace("h100-80g-sxm", "our-hopper"))

    unknown = command(runs, tmp_path / "mine.yaml")
    named = command(runs, tmp_path / "mine.yaml", "--device", "h100-80gb-sxm")

    assert (unknown, named) == (4, 0)


def test_a_model_may_be_a_config(tmp_path):
    """A path relative to the file of runs."""
    config = Path(__file__).parents[2] / "benchmarks" / "jobs" / "llama-3.1-405b" / "config.json"
    (tmp_path / "config.json").write_text(config.read_text())
    row = {"model": "./config.json", "n_gpus": "512", "gbs": "256", "tp": "8", "pp": "8", "step_time_s": "25"}
    cells = {**row, "peak_memory_gib": "", "memory_kind": ""}

    (one,) = cases(read(a_file(tmp_path, cells)), references(None, folder=tmp_path))

    assert isinstance(one, Case)
    assert one.facts.model.num_layers == 126
