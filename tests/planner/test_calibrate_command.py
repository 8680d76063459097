"""``planner calibrate``: from runs to a device that a job can use, or the reason why not."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from costmodel import catalog
from planner import estimate, load
from planner.cli import main
from planner.jobs.cluster import Fitted, device_text
from planner.jobs.document import read_mapping
from planner.jobs.run_jobs import References, read, references
from planner.measure.calibrate import advice
from planner.measure.calibrate.advice import Suggestion, _candidates
from planner.measure.calibrate.calibrate import (
    Calibration,
    Unfit,
    _configuration,
    calibrate,
    describe_odd_rows,
    list_missed,
    require_explained,
)
from planner.measure.calibrate.cases import seconds_of
from planner.measure.calibrate.fit import Fit
from planner.measure.calibrate.published import worth_of_one
from planner.measure.calibrate.wording import calibration_text
from planner.measure.runs.predictions import Case, cases, state_interval
from tests.builders_runs import a_file, rows_of
from tests.schemas import valid

TRAINING: dict[str, Any] = {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e12}

SHORT = {
    "n_gpus": "cluster.num_devices",
    "tp": "strategy.tp",
    "pp": "strategy.pp",
    "mbs": "strategy.mbs",
    "recompute": "strategy.recompute",
    "seq_len": "training.sequence_length",
    "gbs": "training.global_batch_size",
}
"""Columns of these tests, briefly."""


def row(**cells: str) -> dict[str, str]:
    """Cells by column."""
    return {SHORT.get(name, name): cell for name, cell in cells.items()}


LAYOUTS: tuple[dict[str, str], ...] = (
    row(id="a", model="llama3-8b", n_gpus="8", tp="1", mbs="1", recompute="full"),
    row(id="b", model="llama3-8b", n_gpus="8", tp="2", mbs="1"),
    row(id="c", model="llama3-8b", n_gpus="8", tp="4", mbs="2"),
    row(id="d", model="llama3-8b", n_gpus="16", tp="2", pp="2", mbs="1"),
    row(id="e", model="llama2-7b", n_gpus="8", tp="2", mbs="1", seq_len="4096"),
    row(id="f", model="llama2-7b", n_gpus="8", tp="1", mbs="1", seq_len="4096", recompute="full"),
    row(id="g", model="llama2-13b", n_gpus="8", tp="4", mbs="1", seq_len="4096"),
    row(id="h", model="llama2-13b", n_gpus="16", tp="2", pp="2", mbs="1", seq_len="4096"),
)
"""Runs on H100 of models in the catalog; their times are made by a test."""


FEW = LAYOUTS[::4]
"""Enough to be fitted, for tests that are about files and rows: a fit of all of them takes nine times as long."""


def runs_of(
    folder: Path, efficiency: float, *more: dict[str, str], layouts: Sequence[dict[str, str]] = LAYOUTS
) -> Path:
    """The layouts as an H100 with another efficiency of matmuls would run them."""
    plain = [{**layout, "peak_memory_gib": "", "memory_kind": "", "step_seconds": "10"} for layout in layouts]
    known = references(None)
    dtypes = catalog.calibration("hopper").constants.matmul_efficiency
    changed = {"hopper": {f"matmul_efficiency.{dtype}": efficiency for dtype in dtypes}}
    other = known.refit(Fitted(constants=changed))
    made = [one for one in cases(rows_of(folder, *plain), known) if isinstance(one, Case)]
    timed = [{**of, "step_seconds": f"{seconds_of(one, other):.6g}"} for of, one in zip(plain, made, strict=True)]
    return a_file(folder, *timed, *({**timed[0], **of} for of in more))


def command(runs: Path, output: Path, *options: str) -> int:
    """Run it."""
    return main(["calibrate", str(runs), "-o", str(output), *options])


def calibrated(path: Path, layouts: Sequence[dict[str, str]]) -> tuple[Path, Calibration]:
    """Runs of an H100 with matmuls at 0.60, calibrated by the command; its folder, and what it found."""
    found = []

    def kept(*given: Any, **options: Any) -> Calibration:
        found.append(calibrate(*given, **options))
        return found[0]

    with (path / "out.txt").open("w") as file, redirect_stdout(file), pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.measure.calibrate.calibrate.calibrate", kept)
        assert command(runs_of(path, 0.60, layouts=layouts), path / "mine.yaml") == 0
    return path, found[0]


@pytest.fixture(scope="module")
def by_all(tmp_path_factory) -> tuple[Path, Calibration]:
    """The device of all layouts, held out in three parts, with advice on a few others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.measure.calibrate.calibrate.MOST_FOLDS", 3)
        patch.setattr(advice, "MOST_CANDIDATES", 16)
        return calibrated(tmp_path_factory.mktemp("all"), LAYOUTS)


@pytest.fixture(scope="module")
def by_few(tmp_path_factory) -> tuple[Path, Calibration]:
    """The device of a few layouts, with advice on as few others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice, "MOST_CANDIDATES", 4)
        return calibrated(tmp_path_factory.mktemp("few"), FEW)


@pytest.fixture
def folder(by_few) -> Path:
    """Where ``runs.csv`` is, and ``mine.yaml``, which the command wrote."""
    return by_few[0]


@pytest.fixture
def found(by_few) -> Calibration:
    """The same in Python."""
    return by_few[1]


@pytest.fixture(autouse=True)
def _little_advice(monkeypatch):
    """Few other layouts are looked at, but where all runs are fitted: advice costs more than a fit."""
    monkeypatch.setattr(advice, "MOST_CANDIDATES", 4)


@pytest.mark.slow
def test_the_constants_that_made_the_runs_are_found_again(by_all):
    """Matmuls at 0.60: the fit halves the catalog's distance, and predicts runs left out twice as well."""
    _, found = by_all
    catalogs = catalog.calibration("hopper").constants.matmul_efficiency["bf16"]

    (matmul,) = [one for one in found.determined if one.constant.fields[0] == "matmul_efficiency.bf16"]
    assert abs(matmul.value - 0.60) < 0.5 * abs(catalogs - 0.60)
    assert (found.error_left_out or 1.0) < 0.5 * found.error_before
    assert found.num_groups >= 3


def a_job(device: str, **cluster: Any) -> dict[str, Any]:
    """Eight devices."""
    return {"model": "llama3-8b", "cluster": {"device": device, "num_devices": 8, **cluster}, "training": TRAINING}


@pytest.mark.slow
def test_the_file_is_a_device_of_a_job(by_all):
    """Written, named as its file, and planned with at once; the report says what to expect and what to measure."""
    folder, _ = by_all
    problem = load(a_job(str(folder / "mine.yaml")))
    out = (folder / "out.txt").read_text()
    device = problem.facts.cluster.device
    assert (device.name, device.calibration.name) == ("mine", "mine")
    assert problem.sources == (folder / "mine.yaml",)
    assert "planner calibrate" in device.calibration.sources["matmul_efficiency"]
    assert "planner calibrate" in device.sources["left_out_errors"]
    assert {name: len(errors) for name, errors in device.left_out_errors.items()} == {"dense": len(LAYOUTS)}
    assert "to expect on other layouts of these jobs, as on held-out runs" in out
    narrowed = re.findall(r"from \+- (\d+)% to \+- (\d+)%", out)
    assert all(int(after) <= 0.95 * int(before) for before, after in narrowed), "by a tenth, but for rounding"


@pytest.mark.slow
def test_what_is_written_is_the_catalogs_calibration_and_the_fitted_constants(folder, found):
    """A base by name and numbers that differ from it; what no run depends on is not repeated."""
    text = (folder / "mine.yaml").read_text()
    valid("device", read_mapping(folder / "mine.yaml"))
    written = yaml.safe_load(text)["calibration"]
    numbers = {name: value for name, value in written.items() if name not in ("base", "name", "sources")}
    fields = {field.partition(".")[0] for one in found.determined for field in one.constant.fields}
    assert text == device_text(found.device)
    assert (written["base"], written["name"]) == ("hopper", "mine")
    assert set(numbers) == fields
    assert set(written["sources"]) == fields
    assert "scan_efficiency" not in numbers  # No run has Mamba layers.


@pytest.mark.slow
def test_constants_of_the_file_act(by_all):
    """A job on it is as fast as the fit says: its calibration in place of the catalog's, everything else the same."""
    folder, found = by_all
    pinned = {"strategy": {"tp": 2, "mbs": 1}}

    theirs, ours = (
        estimate(load({**a_job(device, framework="megatron-core-0.16"), **pinned}), {}).plan
        for device in ("h100-80gb-sxm", str(folder / "mine.yaml"))
    )
    constants = load(a_job(str(folder / "mine.yaml"))).facts.cluster.device.calibration.constants

    (matmul,) = [one for one in found.determined if one.constant.fields[0] == "matmul_efficiency.bf16"]
    assert constants.matmul_efficiency["bf16"] == pytest.approx(matmul.value, rel=1e-5)
    assert constants.scan_efficiency == catalog.calibration("hopper").constants.scan_efficiency
    assert ours.step_seconds > 1.05 * theirs.step_seconds
    assert ours.estimate.device_bytes == theirs.estimate.device_bytes
    assert f"{len(LAYOUTS)} runs of mine" in ours.interval.basis


@pytest.mark.slow
def test_the_file_predicts_its_runs_as_the_fit_did(folder, found):
    """Rows on the written device are as far off as the calibration said of the runs that it was fitted to."""
    runs = folder / "again.csv"
    runs.write_text((folder / "runs.csv").read_text().replace("h100-80gb-sxm", "./mine.yaml"))

    again = [one for one in cases(list(read(runs)), References(folder=folder)) if isinstance(one, Case)]
    errors = [abs(seconds_of(one, References()) / (one.run.step_seconds or 0.0) - 1) for one in again]

    assert len(errors) == len(FEW)
    assert sum(errors) / len(errors) == pytest.approx(found.error_fitted, abs=1e-4)


def test_a_file_may_be_changed_by_a_job_that_reads_it(folder, capsys):
    """Its name is a path relative to the job, and what a job says of its cluster stands above it."""
    (folder / "job.yaml").write_text(yaml.safe_dump(a_job("./mine.yaml", internode_bandwidth=25e9)))

    code = main(["estimate", str(folder / "job.yaml"), "tp=2", "--format", "json"])

    assert code == 0
    assert json.loads(capsys.readouterr().out)["step_time_seconds"] > 0


def test_a_device_file_that_is_not_there(tmp_path):
    """The path is named."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(a_job("./none.yaml")))

    assert main(["plan", str(tmp_path / "job.yaml")]) == 2


@pytest.mark.slow
def test_refused_rows_are_named_and_the_rest_is_fitted(tmp_path, capsys):
    """Milliseconds, an unknown device, a layout that does not divide or that cannot have fitted: the rest is fitted."""
    bad = (
        row(id="memory", mbs="16", gbs="128", recompute=""),
        {"id": "ms", "step_seconds": "2100000"},
        {"id": "device", "cluster.device": "h1000"},
        {"id": "layout", "strategy.tp": "3"},
        {"id": "model", "model": "llama9-8b"},
        {"id": "framework", "cluster.framework": "megatron-cor-0.16"},
    )

    code = command(runs_of(tmp_path, 0.60, *bad, layouts=FEW), tmp_path / "mine.yaml")

    out = capsys.readouterr().out
    assert code == 1
    assert all(f"refused: {one['id']}: " in out for one in bad)
    assert f"{len(FEW)} runs of h100-80gb-sxm fitted" in out
    assert "cluster.framework: 'megatron-cor-0.16' is not in the catalog. Did you mean 'megatron-core-0.16'" in out


@pytest.mark.slow
def test_a_row_far_from_all_others_is_named(tmp_path):
    """Nine times too slow is possible, and hardly the step of that layout."""
    runs = runs_of(tmp_path, 0.6, row(id="minutes", tp="2", recompute="none", step_seconds="150"), layouts=FEW)

    found = calibrate(runs, references(None), name="own")

    missed, odd = found.doubts
    stated = r"'minutes' took 150 s, not [\d.]+ to [\d.]+ s, the interval of 80% of measured steps by the errors on"
    assert re.match(stated, missed)
    assert re.match(r"'minutes' took [\d.]+ times the fit's prediction, outside the spread of the other rows", odd)
    assert all(f"1 doubtful: {doubt}" in calibration_text(found, "own.yaml") for doubt in found.doubts)


UNTUNED = row(id="plain", model="qwen3-30b-a3b", n_gpus="16", tp="1", mbs="1", seq_len="4096", recompute="full")
UNTUNED |= {"step_seconds": "10", "peak_memory_gib": "", "memory_kind": "", "strategy.ep": "8"}
UNTUNED |= {"strategy.token_dispatcher": "alltoall", "strategy.cuda_graphs": "none"}
TUNED = {**UNTUNED, "id": "tuned", "strategy.token_dispatcher": "deepep"}


def a_fit(*factors: float) -> Fit:
    """A fit by which rows took so many times as long as predicted."""
    return Fit(logs=np.zeros(0), jacobian=np.zeros((len(factors), 0)), residuals=-np.log(factors))


def test_runs_are_held_against_the_interval_that_is_stated_of_each(tmp_path):
    """All-to-all at micro-batch 1 without graphs may take twice as long, a tuned recipe not; nine times is too much."""
    plain, tuned = timed = cases_of(tmp_path, UNTUNED, TUNED)
    planned = estimate(plain.problem, plain.strategy.decisions()).plan
    ((missed, stated),) = list_missed(timed, a_fit(2.0, 2.0), a_fit(2.0, 2.0))

    assert state_interval(plain, planned.step_seconds) == planned.interval
    assert (missed, list_missed(timed, a_fit(2.0, 2.0), a_fit(2.0, 1.0))) == (tuned, [])
    with pytest.raises(Unfit) as caught:
        require_explained([tuned], [(tuned, stated)], a_fit(2.0))
    assert (
        f"100% off in the median. 'tuned' took 10 s, not {stated.low_seconds:.4g} to {stated.high_seconds:.4g} s, "
        f"the interval of 80% of measured steps by the errors on"
    ) in str(caught.value)
    require_explained(timed, [(tuned, stated)], a_fit(2.0, 2.0))
    assert [one.run.id for one, _ in list_missed(timed, a_fit(3.0, 9.0), a_fit(3.0, 9.0))] == ["tuned", "plain"]


def test_rows_of_two_populations_are_said_in_one_sentence(tmp_path):
    """Four as predicted and two three times as slow are no two odd rows."""
    (one,) = cases_of(tmp_path, {})
    factors = (1.0, 1.05, 3.0, 1.0, 3.0, 1.0)
    timed = [replace(one, run=replace(one.run, id=f"row {number}")) for number in range(len(factors))]

    (said,) = describe_odd_rows(timed, -np.log(factors))

    first = "'row 2', 'row 4' took 3 times the fit's prediction, the 4 other rows 1 times the fit's prediction"
    assert said == f"{first}: two populations, for a calibration each"


@pytest.mark.parametrize(
    ("factors", "odd"),
    [
        ((2.0, 2.1, 1.9, 20.0), [3]),
        ((2.0, 2.1, 1.9, 0.2), [3]),
        ((2.0, 2.0, 2.0, 2.5), []),  # 3.5 times the 0.088 of published stacks is a factor of 1.36.
        ((2.0, 2.0, 2.0, 2.8), [3]),
        ((1.0, 2.0, 4.0, 8.0, 0.5), []),
        ((20.0, 2.0, 0.2, 2.1, 1.9, 2.0), [0, 2]),
        ((1.0, 10.0), []),  # Which one is?
    ],
)
def test_rows_outside_the_spread_of_the_others_are_odd(factors, odd, tmp_path):
    """However slow all are; a few that agree by chance are no narrow spread, and two cannot be told apart."""
    (one,) = cases_of(tmp_path, {})
    timed = [replace(one, run=replace(one.run, id=f"row {number}")) for number in range(len(factors))]

    found = list(describe_odd_rows(timed, -np.log(factors)))

    assert [text.split("'")[1] for text in found] == [f"row {number}" for number in odd]
    assert all(f"took {factors[number]:.2g} times" in text for number, text in zip(odd, found, strict=True))


def test_too_few_runs_are_not_fitted(tmp_path, capsys):
    """None but a refused row: exit code 4, no file."""
    runs = a_file(tmp_path, {"id": "bad", "step_seconds": "-1"})

    code = command(runs, tmp_path / "mine.yaml")

    assert code == 4
    assert not (tmp_path / "mine.yaml").exists()
    assert "Too few runs: none with a step time, and 1 rows were refused" in capsys.readouterr().err


@pytest.mark.parametrize("column", ["step_second", "iteration_time"])
def test_a_step_time_in_a_column_of_another_name_is_pointed_at(column, tmp_path, capsys):
    """Without it the runs would have no time, and nobody would say why."""
    runs = a_file(tmp_path, {"step_seconds": "10"})
    runs.write_text(runs.read_text().replace("step_seconds", column, 1))

    assert command(runs, tmp_path / "mine.yaml") == 4
    assert f"No column is step_seconds: rename '{column}' if" in capsys.readouterr().err


@pytest.mark.slow
def test_one_run_moves_constants_by_the_scatter_of_layouts_and_is_called_unchecked(tmp_path, capsys):
    """One run 20 % slower than predicted: the fit takes some of it, and no less than what it leaves is to expect."""
    plain = {**LAYOUTS[0], "peak_memory_gib": "", "memory_kind": "", "step_seconds": "10"}
    (made,) = cases_of(tmp_path, plain)
    slow = {**plain, "step_seconds": f"{1.2 * seconds_of(made, references(None)):.6g}"}

    code = command(a_file(tmp_path, slow), tmp_path / "mine.yaml")

    out = capsys.readouterr().out
    of_catalog, to_expect, fitted = (float(error) for error in re.findall(r"(?m)^ +([\d.]+)%  (?:by|to|of)", out))
    assert code == 0
    assert of_catalog == pytest.approx(100 / 6, abs=0.1)
    assert 0.2 * of_catalog < fitted < 0.9 * of_catalog
    assert to_expect == pytest.approx(max(100 * worth_of_one([made]).after, fitted), abs=0.06)
    assert "% to expect on other runs of this model, as the fit leaves of this one; " in " ".join(out.split())
    assert "one run is not checked by any other" in out
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text())["left_out_errors"] == {}


@pytest.mark.slow
def test_before_anything_is_measured_the_order_is_said(tmp_path, capsys):
    """Planned runs alone: nothing is fitted, all are listed, each lowers the expected error; the curve stands below."""
    rows = [{**of, "kind": "planned", "step_seconds": "", "peak_memory_gib": ""} for of in LAYOUTS[:4]]

    code = command(a_file(tmp_path, *rows), tmp_path / "mine.yaml")

    out = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(out) if "(none of them)" in line)
    listed = [line.split() for line in out[begin + 1 : begin + 1 + len(rows)]]
    errors = [float(out[begin].split()[-1].rstrip("%")), *(float(line[-1].rstrip("%")) for line in listed)]
    assert code == 4
    assert not (tmp_path / "mine.yaml").exists()
    assert {line[0] for line in listed} == {of["id"] for of in rows}
    assert errors == sorted(errors, reverse=True)
    assert "published stacks (dense models)" in "\n".join(out)


def test_planned_runs_beside_measured_ones_are_said_too(found, tmp_path):
    """The report of a fit ends with the order of the runs that the file plans."""
    (one,) = cases_of(tmp_path, {"id": "tomorrow", "kind": "planned", "step_seconds": "", "peak_memory_gib": ""})

    text = calibration_text(replace(found, first=([one], (0.08, 0.03))), "mine.yaml")

    assert "Measure first: 1 planned runs" in text
    assert text.index("8.0%") < text.index("tomorrow") < text.rindex("3.0%")


def test_contradictory_runs_are_not_fitted(tmp_path, capsys):
    """The same configuration in 1 and in 3 times the time."""
    (first, *_) = csv.DictReader(runs_of(tmp_path, 0.60, layouts=FEW).read_text().splitlines())
    again = {"id": "again", "step_seconds": str(3 * float(first["step_seconds"]))}
    runs = a_file(tmp_path, first, {**first, **again})

    code = command(runs, tmp_path / "mine.yaml")

    assert code == 4
    error = capsys.readouterr().err
    assert "contradict each other: 'a' took" in error
    assert "Neither states strategy.sharding, strategy.dp_overlap: they may differ there." in error


def cases_of(folder: Path, *rows: dict[str, str]) -> list[Case]:
    """Rows as the cost model takes them."""
    found = list(cases(rows_of(folder, *rows), references(None)))
    assert all(isinstance(one, Case) for one in found)
    return [one for one in found if isinstance(one, Case)]


def test_rows_that_differ_in_a_setting_are_two_configurations(tmp_path):
    """InternEvo shares states among 8 ranks where a row says nothing; all of them are another configuration."""
    here = {"cluster.framework": "internevo-0.2", "cluster.device": "a100-80gb-sxm", "strategy.tp": "1"}
    rows = ({**here, "id": group, "settings.optimizer_group": group, "step_seconds": "8"} for group in ("8", "all", ""))

    eight, everyone, silent = map(_configuration, cases_of(tmp_path, *({**of, "id": f"x{of['id']}"} for of in rows)))

    assert eight == silent
    assert eight != everyone


def test_a_fit_that_is_no_better_than_the_catalog_is_not_called_enough(found):
    """The constants are known well, but runs left out are predicted as the catalog does: that is the verdict."""
    known_well = replace(found, num_runs=8, advice=replace(found.advice, num_more=0, spread=0.01))

    better = calibration_text(known_well, "mine.yaml")
    no_better = calibration_text(replace(known_well, error_left_out=found.error_before), "mine.yaml")

    assert "The runs are enough" in better
    assert "no better than the catalog" not in better
    assert "The runs are enough" not in no_better
    assert "No fit clearly beats the catalog on held-out runs" in no_better


def test_few_runs_are_not_called_enough(found):
    """Three runs tell the constants well; published stacks gained up to eight."""
    few = replace(found, num_runs=3, advice=replace(found.advice, num_more=0, spread=0.01))

    text = calibration_text(few, "mine.yaml")

    assert "The runs are enough" not in text
    assert "up to 8 runs helped" in text


def test_runs_that_narrow_constants_are_suggested(found, tmp_path):
    """With the constant that each narrows most."""
    (case,) = cases_of(tmp_path, {})
    one = Suggestion(run=case.run, constant="matmul_efficiency", width_before=0.3, width_after=0.1)

    text = calibration_text(replace(found, advice=replace(found.advice, suggestions=(one,))), "mine.yaml")

    assert f"Worth measuring next\n  {one.run.id}: narrows matmul_efficiency from +- 30% to +- 10%" in text


def test_runs_of_another_device_are_called_so(tmp_path, capsys):
    """Runs on H100, none on the device that was chosen."""
    code = command(runs_of(tmp_path, 0.60, layouts=FEW), tmp_path / "mine.yaml", "--device", "a100-80gb-sxm")

    assert code == 4
    assert "Runs not of the chosen device, but of h100-80gb-sxm: 2." in capsys.readouterr().err


def test_suggestions_that_differ_in_precision_say_so(tmp_path):
    """One job in 16 and in 8 bits; where a row is silent, the default of its software, which is no third job."""
    rows = ({"id": f"in {dtype}", "training.precision": dtype} for dtype in ("bf16", "", "fp8_current"))

    texts = [one.run.id for one in _candidates(cases_of(tmp_path, *rows), references(None))]

    assert len(texts) == len(set(texts))
    assert {text.split(", ")[2] for text in texts} == {"bf16", "fp8_current"}


@pytest.mark.slow
def test_runs_that_no_device_explains_are_not_fitted(tmp_path, capsys):
    """All of them ten times slower than the model could be with any calibration: something else ran."""
    runs = runs_of(tmp_path, 0.045, layouts=FEW)

    code = command(runs, tmp_path / "mine.yaml")

    assert code == 4
    assert "within the physical bounds the closest calibration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("h100-80gb-sxn", "device: 'h100-80gb-sxn' is not in the catalog. Did you mean 'h100-80gb-sxm'?"),
        ("a100", "device: 'a100' means several devices. Write a100-40gb-sxm, a100-80gb-sxm,"),
        ("mine.yaml", "--device: mine.yaml is a file; a fit to runs starts from a device of the catalog. Name it."),
    ],
)
def test_a_device_that_no_fit_can_start_from_is_refused(tmp_path, capsys, device, message):
    """Unknown or of several meanings, with the names that are meant; a file, with the name to give."""
    code = command(runs_of(tmp_path, 0.60, layouts=FEW), tmp_path / "new.yaml", "--device", device)

    assert (code, (tmp_path / "new.yaml").exists()) == (2, False)
    assert message in capsys.readouterr().err


def test_a_table_of_short_names_is_refused_with_what_to_write(tmp_path, capsys):
    """All of them at once; nothing is written."""
    path = tmp_path / "short.csv"
    path.write_text("id,gpu,n_gpus,model,seq_len,step_time_s\na,h100-80g-sxm,8,llama3-8b,8192,9\n")

    code = command(path, tmp_path / "mine.yaml")

    err = capsys.readouterr().err
    assert code == 2
    assert "gpu, n_gpus, seq_len, step_time_s: no such column. Write cluster.device, cluster.num_devices, tra" in err
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.slow
def test_rows_may_name_a_device_file(tmp_path):
    """A device based on the catalog's: fitted around that calibration; a job on it has the rows' nodes of four, too."""
    (tmp_path / "ours.yaml").write_text("{base: h100-80gb-sxm, name: ours, memory_bytes: 9.0e+10}\n")
    rows = csv.DictReader(runs_of(tmp_path, 0.60, layouts=FEW).read_text().splitlines())
    nodes = {"cluster.device": "./ours.yaml", "cluster.devices_per_node": "4", "cluster.scale_up_size": "4"}
    runs = a_file(tmp_path, *[{**one, **nodes} for one in rows])

    assert command(runs, tmp_path / "mine.yaml") == 0

    cluster = load(a_job(str(tmp_path / "mine.yaml"))).facts.cluster
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text())["calibration"]["base"] == "hopper"
    assert (cluster.device.devices_per_node, cluster.scale_up_size) == (4, 4)


@pytest.mark.slow
def test_models_and_the_device_to_start_from_may_be_given(tmp_path, capsys):
    """
    ``--models``: architectures by names of the column ``model``; an existing file is kept without ``--force``.

    ``--device`` names the relative whose calibration is the prior, by the catalog's name or the driver's; without it
    nobody knows the rows' device.
    """
    runs, output = runs_of(tmp_path, 0.60, layouts=FEW), tmp_path / "mine.yaml"
    runs.write_text(runs.read_text().replace("llama3-8b", "ours").replace("h100-80gb-sxm", "our-hopper"))
    (tmp_path / "models.yaml").write_text("ours: llama3-8b\n")
    given = ("--force", "--models", str(tmp_path / "models.yaml"))
    output.write_text("precious")

    assert command(runs, output) == 2
    assert output.read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert command(runs, output, *given) == 4
    assert "'our-hopper' is not in the catalog" in capsys.readouterr().err
    assert command(runs, output, *given, "--device", "NVIDIA H100 80GB HBM3") == 0
    assert "2 runs of h100-80gb-sxm fitted" in capsys.readouterr().out
    assert yaml.safe_load(output.read_text())["calibration"]["base"] == "hopper"


@pytest.mark.slow
def test_rows_of_two_devices_need_a_choice(tmp_path, capsys):
    """Half on H100, half on H200: somebody has to say which one is to be calibrated."""
    runs = runs_of(tmp_path, 0.60, layouts=FEW)
    runs.write_text(runs.read_text().replace("h100-80gb-sxm", "h200", 1))

    both = command(runs, tmp_path / "mine.yaml")
    chosen = command(runs, tmp_path / "mine.yaml", "--device", "h200")

    assert (both, chosen) == (2, 0)
    assert "are of 2 devices: h100-80gb-sxm, h200." in capsys.readouterr().err
