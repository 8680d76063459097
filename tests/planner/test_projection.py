"""Small runs measured, the whole job predicted: ``planner trace project`` and ``planner plan --from``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.errors import SpecError
from planner.calibration.calibrate import Unfit
from planner.cli import main
from planner.jobs.problem import Problem, load
from planner.plan import estimate
from planner.projection.anchor import Anchor, anchor
from planner.projection.comparison import covered_fraction
from planner.projection.projected import ProjectedPart, project, projected_interval
from planner.projection.small_runs import small_runs
from planner.projection.wording import projection_text
from planner.runs.predictions import GIB, Case
from planner.uncertainty.intervals import Interval

DEVICE: dict[str, Any] = {
    "name": "core",
    "peak_flops": {"fp32": 1e11},
    "memory_bytes": 8 * GIB,
    "memory_bandwidth": 1e10,
    "devices_per_node": 4,
    "networks": [{"name": "loopback", "num_peers": 4, "bandwidth": 1e9, "latency": 1e-5}],
    "host_memory_bytes": 8 * GIB,
    "host_to_device_bandwidth": 1e10,
    "device_to_host_bandwidth": 1e10,
    "disk_write_bandwidth": 1e9,
    "disk_read_bandwidth": 1e9,
    "runtime_bytes": GIB,
    "host_processors": {"memory_bandwidth": 1e10},
    "calibration": {
        "name": "core",
        "matmul_efficiency": {"fp32": 0.5},
        "attention_efficiency": 0.5,
        "memory_efficiency": 0.5,
        "step_seconds": 0.05,
    },
}
"""A device that nobody calibrated: kernels have one factor, messages another, and a step some seconds."""

MODEL: dict[str, Any] = {
    "name": "tiny",
    "num_layers": 8,
    "hidden_size": 256,
    "num_heads": 4,
    "vocab_size": 512,
    "ffn_hidden_size": 1024,
}

JOB: dict[str, Any] = {
    "model": MODEL,
    "cluster": {"device": DEVICE, "num_devices": 4},
    "training": {"global_batch_size": 16, "sequence_length": 256, "tokens": 1e9, "precision": "fp32"},
    "strategy": {"tp": 1, "pp": 2, "mbs": 1, "recompute": "none"},
    "search": {"memory_headroom_gib": 0},
}

SMALL: dict[str, Any] = {"cluster.num_devices": 1, "training.global_batch_size": 4}
"""What each small run has less of: one device, a quarter of the batch."""


def a_job(**entries: Any) -> Problem:
    """The job with other sections."""
    return load({**JOB, **entries}, name="job")


def a_run(num_layers: int, **entries: Any) -> dict[str, Any]:
    """A small run of some layers in one stage."""
    return {
        "name": f"{num_layers} layers",
        "job": {"model.num_layers": num_layers, **SMALL},
        "strategy": {"pp": 1},
        **entries,
    }


def a_file(folder: Path, *runs: Mapping[str, Any]) -> Path:
    """A file of small runs."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({"runs": list(runs)}), encoding="utf-8")
    return path


def lines_of(folder: Path, *, num_layers: int) -> dict[str, float]:
    """Seconds of a small run by the model, by the lines of its breakdown."""
    small = small_runs([a_file(folder, a_run(num_layers, step_seconds=1.0))], a_job())[0]
    found = estimate(small.problem, small.strategy.decisions()).plan.estimate
    return {part.name: part.exposed_seconds for part in found.breakdown}


def anchored(folder: Path, *runs: Mapping[str, Any], job: Problem | None = None) -> Anchor:
    """What some small runs say of the device."""
    job = job or a_job()
    return anchor(job, small_runs([a_file(folder, *runs)], job))


def constant(found: Anchor, field: str) -> float:
    """The value that a constant got."""
    return next(one.after for one in found.moved if one.field == field)


class TestTimes:
    """What step times say of a device's constants."""

    def test_one_run_is_one_factor_on_what_it_contains(self, tmp_path: Path) -> None:
        """Kernels take twice as long as computed, all else as computed: their rate is half."""
        lines = lines_of(tmp_path, num_layers=2)
        seconds = sum(lines.values()) + lines["compute"]

        found = anchored(tmp_path, a_run(2, step_seconds=seconds))

        assert found.runs[0].anchored_seconds == pytest.approx(seconds, rel=0.01)
        assert constant(found, "measured.compute_scaling") == pytest.approx(0.5, rel=0.05)

    def test_two_numbers_of_layers_tell_a_layer_from_a_step(self, tmp_path: Path) -> None:
        """Kernels as computed and 0.25 s more in each step: the runs' difference is a layer's, the rest the step's."""
        few, many = (sum(lines_of(tmp_path, num_layers=count).values()) for count in (1, 8))

        found = anchored(tmp_path, a_run(1, step_seconds=few + 0.25), a_run(8, step_seconds=many + 0.25))

        assert constant(found, "measured.compute_scaling") == pytest.approx(1.0, rel=0.02)
        assert constant(found, "step_seconds") == pytest.approx(0.05 + 0.25, rel=0.05)

    def test_what_no_run_has_stays_the_models(self, tmp_path: Path) -> None:
        """One device sends nothing: the factor on messages is not among the constants that moved."""
        found = anchored(tmp_path, a_run(2, step_seconds=1.0))

        assert "measured.communication_scaling" not in [one.field for one in found.moved]

    def test_the_whole_job_is_an_ordinary_estimate_on_the_device_that_follows(self, tmp_path: Path) -> None:
        """Layers and their passes twice as long: so is what the whole job computes; its transfers stay."""
        lines = lines_of(tmp_path, num_layers=2)
        path = a_file(tmp_path, a_run(2, step_seconds=sum(lines.values()) + lines["compute"]))

        found = project(a_job(), {}, small_runs([path], a_job()))

        parts = {part.name: part for part in found.parts}
        assert parts["compute"].seconds == pytest.approx(2 * parts["compute"].model_seconds, rel=0.05)
        assert parts["pp"].seconds == pytest.approx(parts["pp"].model_seconds)
        assert sum(part.seconds for part in found.parts) == pytest.approx(found.step_seconds)
        assert (parts["compute"].measured_fraction, parts["pp"].measured_fraction) == (1.0, 0.0)

    def test_a_device_of_the_catalog_moves_its_own_constants(self, tmp_path: Path) -> None:
        """A tenth slower than predicted: explained within 2 %, by constants between their physical bounds."""
        job = a_job(model="llama3-8b", cluster={"device": "h100-80gb-sxm", "num_devices": 64}, training=TRAINING)
        run = {**a_run(4), "job": {"model.num_layers": 4, "cluster.num_devices": 8}, "step_seconds": 1.0}
        model = anchor_of(tmp_path, run, job).runs[0].model_seconds

        found = anchor_of(tmp_path, {**run, "step_seconds": 1.1 * model}, job)

        assert found.runs[0].anchored_seconds == pytest.approx(1.1 * model, rel=0.02)
        assert 0.45 <= constant(found, "matmul_efficiency.bf16") < 0.75

    def test_a_run_that_differs_moves_constants_by_less(self, tmp_path: Path) -> None:
        """Of another sequence length it holds with the noise of two layouts, and the report says why."""
        lines = lines_of(tmp_path, num_layers=2)
        seconds = sum(lines.values()) + 0.2 * lines["compute"]
        run = a_run(2, step_seconds=seconds)
        other = {**run, "job": {**run["job"], "training.sequence_length": 512}, "step_seconds": 2 * seconds}

        alike, different = anchored(tmp_path, run).runs[0], anchored(tmp_path, other).runs[0]

        assert alike.differences == ()
        assert different.differences == ("sequences of 512 tokens, not 256",)
        assert different.noise > alike.noise

    def test_layers_that_no_run_has_are_not_measured(self) -> None:
        """Three dense layers of four with experts' share three quarters of the model."""
        mixed = {**MODEL, "num_layers": 4, "num_experts": 4, "top_k": 2, "first_dense_layers": 3}
        whole = a_job(model={**mixed, "expert_ffn_hidden_size": 512}, strategy={})
        dense = load({**whole.document, "model": {"base": whole.document["model"], "num_layers": 2}})

        case = Case(run=None, problem=dense, strategy=None)  # type: ignore[arg-type]  # layers alone are compared

        assert covered_fraction([case], whole.facts.model) == 0.75


TRAINING: dict[str, Any] = {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e12}


def anchor_of(folder: Path, run: Mapping[str, Any], job: Problem) -> Anchor:
    """What one run says of a job's device."""
    return anchor(job, small_runs([a_file(folder, run)], job))


class TestMemory:
    """What peaks say of a device."""

    def test_bytes_that_no_formula_has_are_added_to_the_device(self, tmp_path: Path) -> None:
        """A peak half a GiB above the predicted one: the device's own bytes are 1.5 GiB in place of 1."""
        model = anchored(tmp_path, a_run(2, step_seconds=1.0)).runs[0].model_bytes

        found = anchored(tmp_path, a_run(2, step_seconds=1.0, peak_memory_gib=model / GIB + 0.5))

        assert found.memory_bytes == pytest.approx(0.5 * GIB)
        assert found.device["runtime_bytes"] == pytest.approx(1.5 * GIB)

    def test_at_most_it_grows_with_all_else(self, tmp_path: Path) -> None:
        """A peak twice the predicted one: at most that of the job is twice the predicted one, too."""
        model = anchored(tmp_path, a_run(2, step_seconds=1.0)).runs[0].model_bytes
        path = a_file(tmp_path, a_run(2, step_seconds=1.0, peak_memory_gib=2 * model / GIB))

        found = project(a_job(), {}, small_runs([path], a_job()))

        before = found.model.plan.estimate.device_bytes
        assert found.peak_bytes == pytest.approx(before + model)
        assert found.most_peak_bytes == pytest.approx(max(2 * before, before + model))

    def test_without_a_peak_there_is_no_bound(self, tmp_path: Path) -> None:
        """The report says that the peak is the model's."""
        found = project(a_job(), {}, small_runs([a_file(tmp_path, a_run(2, step_seconds=1.0))], a_job()))

        assert found.most_peak_bytes is None
        assert "no small run has peak_memory_gib" in projection_text(found)


class TestInterval:
    """How much of an answer was measured."""

    def test_measured_seconds_have_the_runs_noise_and_the_others_the_models(self) -> None:
        """8 s within exp(+-1.2816 x 0.02) = 2.6 %, 2 s between 0.9 and 1.2 of themselves."""
        parts = [part_of("compute", 8.0, 1.0), part_of("bubble", 2.0, 0.0)]
        of_model = Interval(low_seconds=9.0, high_seconds=12.0, basis="runs")

        found = projected_interval(parts, 0.02, of_model, 10.0)

        reach = math.exp(1.2816 * 0.02)
        assert found.low_seconds == pytest.approx(8 / reach + 1.8)
        assert found.high_seconds == pytest.approx(8 * reach + 2.4)
        assert found.basis == "80% measured (+- 2.6%), the rest by runs"


def part_of(name: str, seconds: float, measured: float) -> ProjectedPart:
    """A line of a step."""
    return ProjectedPart(name=name, model_seconds=seconds, seconds=seconds, measured_fraction=measured)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "milliseconds": ({"step_seconds": 1500.0}, "Is it in seconds?"),
    "bytes": ({"step_seconds": 1.0, "peak_memory_gib": 3e9}, "Is it in GiB?"),
    "nothing": ({}, "nothing was measured"),
    "negative": ({"step_seconds": -1.0}, "runs.0.step_seconds: must be more than 0"),
    "misspelt": ({"seconds": 1.0}, "runs.0.seconds: no such entry"),
    "both": ({"step_seconds": 1.0, "traces": ["a.json"]}, "keep one"),
    "kind": ({"step_seconds": 1.0, "peak_memory_gib": 2.0, "memory_kind": "resident"}, "expected one of allocated"),
    "section": ({"step_seconds": 1.0, "job": {"search.pin.tp": 1}}, "is nothing that a small run changes"),
    "model": ({"step_seconds": 1.0, "job": {"model": "llama3-8b"}}, "a small run is of the job's own model"),
    "layers": ({"step_seconds": 1.0, "job": {"model.num_layers": 9, **SMALL}}, "is 9, tiny has 8"),
    "width": ({"step_seconds": 1.0, "job": {"model.hidden_size": 128, **SMALL}}, "hidden_size: no such entry"),
    "heads": ({"step_seconds": 1.0, "job": {"model.num_kv_heads": 2, **SMALL}}, "has layers that the job has not"),
    "device": (
        {"step_seconds": 1.0, "job": {"cluster.device.name": "other", **SMALL}},
        "its times say nothing of another",
    ),
    "precision": (
        {"step_seconds": 1.0, "job": {"training.precision": {"base": "fp32", "gradient_bytes": 2}, **SMALL}},
        "its kernels are others",
    ),
    "stages": ({"step_seconds": 1.0, "strategy": {"pp": 1, "vpp": 64}}, "virtual"),
}
"""Entries of a small run that are wrong, and part of what is said."""


class TestBadInput:
    """Files of small runs that say nothing, or nothing of the job."""

    @pytest.mark.parametrize("name", WRONG)
    def test_is_refused_with_its_place(self, tmp_path: Path, name: str) -> None:
        """The message names the run and what is wrong with it."""
        entries, expected = WRONG[name]

        with pytest.raises(SpecError, match=r"small\.yaml|2 layers") as error:
            anchored(tmp_path, {**a_run(2), **entries})

        assert expected in str(error.value)

    def test_runs_that_contradict_each_other(self, tmp_path: Path) -> None:
        """The same configuration once in 1 s and once in 1.5 s."""
        with pytest.raises(Unfit, match="contradict each other"):
            anchored(tmp_path, a_run(2, step_seconds=1.0), a_run(2, step_seconds=1.5))

    def test_more_layers_in_much_less_time(self, tmp_path: Path) -> None:
        """Eight layers in a third of the time of two: no constants explain both."""
        with pytest.raises(SpecError, match="no constants within physical bounds come closer"):
            anchored(tmp_path, a_run(2, step_seconds=3.0), a_run(8, step_seconds=1.0))

    def test_peaks_alone(self, tmp_path: Path) -> None:
        """Memory without any step time is no anchor of a step."""
        with pytest.raises(SpecError, match="none of them has a step time"):
            anchored(tmp_path, a_run(2, peak_memory_gib=2.0))

    def test_a_trace_alone(self, tmp_path: Path) -> None:
        """It does not say of which job it is."""
        with pytest.raises(SpecError, match="does not say of which job"):
            small_runs([tmp_path / "rank0.json.gz"], a_job())

    def test_an_empty_list(self, tmp_path: Path) -> None:
        """A file without runs."""
        with pytest.raises(SpecError, match="runs"):
            small_runs([a_file(tmp_path)], a_job())

    def test_a_table_of_another_model(self, tmp_path: Path) -> None:
        """A row of a table of runs is complete, and may be of another width."""
        path = tmp_path / "runs.csv"
        path.write_text(
            "id,model,cluster.device,cluster.num_devices,training.global_batch_size,training.sequence_length,"
            "strategy.mbs,strategy.tp,strategy.pp,step_seconds\n"
            "a,llama2-7b,h100-80gb-sxm,8,64,4096,1,1,1,8.0\n",
            encoding="utf-8",
        )
        job = a_job(model="llama3-70b", cluster={"device": "h100-80gb-sxm", "num_devices": 64}, training=TRAINING)

        with pytest.raises(SpecError, match="has hidden_size 4096, the job 8192"):
            anchor(job, small_runs([path], job))


class TestCommands:
    """``planner trace project`` and ``planner plan --from``."""

    def test_project_prints_what_was_measured_and_writes_the_device(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The device that it writes gives the same step to ``planner estimate``."""
        job, small, device = self.files(tmp_path)

        code = main(["trace", "project", str(small), "--job", str(job), "--device", str(device)])

        text = capsys.readouterr().out
        entry = yaml.safe_load(device.read_text(encoding="utf-8"))
        changed = load({**JOB, "cluster": {"device": entry, "num_devices": 4}})
        assert code == 0
        assert f"Step of the whole job: {estimate(changed, {}).plan.step_seconds:,.3f} s" in text
        assert "measured in kind" in text

    def test_plan_searches_on_the_device_that_follows(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The report names it; what the small runs say goes to stderr."""
        job, small, _ = self.files(tmp_path)

        code = main(["plan", str(job), "--from", str(small), "--fastest"])

        shown = capsys.readouterr()
        assert code == 0
        assert "core, anchored" in shown.out
        assert "planner: 2 layers: 2.000 s measured" in shown.err

    def test_a_decision_may_follow_the_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The job's strategy with one micro-batch of two sequences: the run differs in that."""
        job, small, _ = self.files(tmp_path)

        main(["trace", "project", str(small), "mbs=2", "--job", str(job)])

        assert "differs: mbs = 1, not 2" in capsys.readouterr().out

    @staticmethod
    def files(folder: Path) -> tuple[Path, Path, Path]:
        """A job, a small run of it, and where the device goes."""
        job = folder / "job.yaml"
        job.write_text(yaml.safe_dump(JOB), encoding="utf-8")
        return job, a_file(folder, a_run(2, step_seconds=2.0)), folder / "measured.yaml"
