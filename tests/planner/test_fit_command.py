"""``planner calibrate``: from samples to a device that a job can use, or the reason why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from costmodel.errors import SpecError
from costmodel.timing.sampled_source import load_learned_times
from planner import estimate, load, plan, render
from planner.cli import main
from planner.jobs.cluster import device_text
from planner.measure.fit.device import fit_device
from planner.measure.fit.operators import learn_operators
from planner.measure.sample.samples import Point, Sample, Sizes
from planner.measure.sample.shapes import doubtful_points, job_shapes, points_of
from planner.measure.sample.table import SamplesFile
from planner.uncertainty.intervals import list_timed_operators, operators_deviation, strategy_operators
from tests.builders_samples import (
    A_MACHINE,
    BYTES_PER_SECOND,
    FLOPS_PER_SECOND,
    matmul_points,
    row_points,
    samples_of,
    true_seconds,
)

pytest.importorskip("sklearn")

NETWORKS = [
    {"name": "links", "num_peers": 4, "bandwidth": 2e11, "latency": 2e-6},
    {"name": "fabric", "num_peers": 4096, "bandwidth": 2.5e10, "latency": 1e-5},
]
FACTS: dict[str, Any] = {"networks": NETWORKS}
TRAINING = {"global_batch_size": 64, "sequence_length": 2048, "tokens": 1e11}
COPY = Point(operator="copy", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=2**28))
POINTS = [
    *matmul_points(rows=(256, 2048, 16384), widths=(1024, 8192)),
    *row_points("rms_norm"),
    Point(operator="launch", pass_="forward", dtype="fp32", sizes=Sizes(n=1000)),
    COPY,
]


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Matmuls, norms, a copy and launches of a machine that nobody has."""
    return samples_of(POINTS)


@pytest.fixture(scope="module")
def device_file(samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes of them."""
    folder = tmp_path_factory.mktemp("fit")
    table, facts, written = folder / "samples.csv", folder / "facts.yaml", folder / "my-cluster.yaml"
    rows = SamplesFile(table, A_MACHINE)
    for one in samples:
        rows.add(one.point, one.timing)
    facts.write_text(yaml.safe_dump(FACTS))
    assert main(["calibrate", str(table), "--device", str(facts), "-o", str(written)]) == 0
    return written


def a_job(device: object, **changes: Any) -> dict[str, Any]:
    """Llama-3-8B on 16 such devices."""
    cluster = {"device": device, "num_devices": 16, "framework": "megatron-lm-0.17"}
    return {"model": "llama3-8b", "cluster": cluster, "training": TRAINING, **changes}


class TestDevice:
    @pytest.mark.slow
    def test_the_file_says_what_the_machine_does(self, device_file: Path):
        entry = yaml.safe_load(device_file.read_text())
        assert entry["name"] == "my-cluster"
        assert (entry["memory_bytes"], entry["devices_per_node"], entry["num_processors"]) == (64 * 10**9, 4, 100)
        assert entry["peak_flops"]["bf16"] == pytest.approx(FLOPS_PER_SECOND, rel=0.05)
        assert entry["memory_bandwidth"] == pytest.approx(BYTES_PER_SECOND, rel=0.05)
        assert entry["calibration"]["launch_overhead_seconds"] == pytest.approx(3e-6, rel=0.05)
        assert entry["calibration"]["times"] == "sampled"
        assert {one["operator"] for one in entry["calibration"]["samples"]["operators"]} == {"matmul", "rms_norm"}
        assert all(one["error"] < 0.1 for one in entry["calibration"]["samples"]["operators"])

    @pytest.mark.slow
    def test_every_number_has_a_source(self, device_file: Path):
        entry = yaml.safe_load(device_file.read_text())
        own = set(entry) - {"name", "calibration", "sources"}
        assert own == set(entry["sources"])
        assert entry["sources"]["networks"] == "facts given to planner calibrate"
        assert entry["sources"]["peak_flops"].startswith("planner calibrate: ")
        assert entry["sources"]["disk_write_bandwidth"].startswith("assumption")

    @pytest.mark.slow
    def test_shapes_between_the_samples_take_what_they_would(self, samples: list[Sample]):
        operators, unlearned = learn_operators(samples, num_processors=100)
        assert not unlearned
        law = next(one for one in operators if (one.operator, one.of_pass) == ("matmul", "wgrad"))
        known = load_learned_times(a_file_of(operators), 100)("matmul", "wgrad", "bf16")
        assert law.num_samples == 12
        sizes = Sizes(m=4096, n=3072, k=3072)
        true = true_seconds(Point(operator="matmul", pass_="wgrad", dtype="bf16", sizes=sizes))
        assert known.seconds({"m": 4096, "n": 3072, "k": 3072}) == pytest.approx(true, rel=0.1)

    @pytest.mark.slow
    def test_facts_of_the_catalog_fill_what_is_missing(self, samples: list[Sample]):
        entry = fit_device(samples, name="mine", facts={"base": "h100-80gb-sxm"}).entry
        assert entry["networks"][0]["name"]
        assert entry["architecture"] == "hopper"
        assert entry["memory_bandwidth"] == pytest.approx(3.35e12)
        assert entry["calibration"]["base"] == "hopper"

    @pytest.mark.slow
    def test_a_device_file_survives_being_written(self, samples: list[Sample]):
        entry = fit_device(samples, name="mine", facts=FACTS).entry
        text = device_text(entry)
        assert yaml.safe_load(text) == entry
        assert "rows: |" in text, "tables are lines, not one long text"


def a_file_of(operators: Any) -> Any:
    """Samples as a device has them."""
    from costmodel.facts.calibration import Samples

    return Samples(machine="Accelerator X", operators=operators)


class TestPlans:
    def test_a_plan_names_its_samples_and_what_they_leave_open(self, device_file: Path):
        found = plan(load(a_job(str(device_file), top=1)))
        best = found.plans[0]
        timed = {one.name: one for one in best.operators}
        assert timed["qkv"].is_sampled
        assert not timed["core_attention"].is_sampled
        assert timed["core_attention"].relative_deviation > timed["qkv"].relative_deviation
        assert sum(timed[name].share for name in timed) == pytest.approx(1.0)
        assert "the operators' samples" in best.interval.basis
        text = render(found, "table")
        assert "Least certain operator times" in text
        assert "samples of my-cluster" in text

    def test_points_that_would_make_plans_surer_begin_with_the_least_sure(self, device_file: Path):
        """Each once: that operator's sizes in both plans, then others of it; all sizes of the plans are there."""
        problem = load(a_job(str(device_file), top=2))
        plans = plan(problem).plans
        own = [
            (operator.name, point)
            for one in plans
            for operator, _ in strategy_operators(one.facts, one.strategy)
            for point in points_of(operator)
        ]
        first = {point for name, point in own if name == plans[0].operators[0].name}

        points = doubtful_points(plans, job_shapes(problem))

        assert {*points[: len(first)]} == first
        assert {point for _, point in own} < {*points}
        assert len({*points}) == len(points)

    def test_what_is_less_sure_widens_the_interval(self, device_file: Path):
        problem = load(a_job(str(device_file), top=1, strategy={"tp": 4, "mbs": 1}))
        given = estimate(problem, {"tp": 4, "mbs": 1}, searched=False).plan
        operators = list_timed_operators(problem.facts, given.strategy, given.estimate.breakdown)
        links = next(one for one in operators if one.name == "tp communication")
        assert (links.origin, links.is_sampled) == ("networks of my-cluster", False)
        assert links.share == pytest.approx(
            sum(one.exposed_seconds for one in given.estimate.breakdown if one.name == "tp") / given.step_seconds
        )
        surer = tuple(replace(one, relative_deviation=0.001) for one in operators)
        assert operators_deviation(surer) < operators_deviation(operators)

    def test_devices_of_the_catalog_have_none(self):
        best = estimate(load(a_job("h100-80gb-sxm")), {"tp": 4, "mbs": 1}, searched=False).plans[0]
        assert best.operators == ()
        assert "samples" not in best.interval.basis


class TestRefusals:
    def test_what_samples_do_not_say_is_asked_for(self, samples: list[Sample]):
        with pytest.raises(SpecError, match="the samples of 'Accelerator X' lack networks"):
            fit_device(samples, name="mine")

    def test_facts_of_another_device_are_noticed(self, samples: list[Sample]):
        with pytest.raises(SpecError, match="but the fastest sampled matmul reaches"):
            fit_device(samples, name="mine", facts={**FACTS, "peak_flops": {"bf16": 1e14}})

    @pytest.mark.parametrize(
        ("facts", "problem"),
        [
            ({"memory_bytes": 80}, "the unit is bytes"),
            ({"networks": [{"name": "a", "num_peers": 8, "bandwidth": 450, "latency": 4}]}, "bytes per second"),
            ({"networks": {"name": "a"}}, "expected a list of levels"),
            ({"networks": []}, "expected a list of levels"),
            ({"networks": [5]}, r"networks\.0"),
            ({"sources": "hi"}, "expected a mapping"),
            ({"base": "h101"}, "is not in the catalog"),
            ({"base": 100}, r"facts\.base: expected a name, got 100"),
            ({"base": "h100-80gb-sxm", "peak_flops": {"bf16": 1e16}}, "fastest sampled matmul reaches"),
        ],
    )
    def test_facts_in_other_units_or_forms_are_refused(
        self, samples: list[Sample], facts: dict[str, Any], problem: str
    ):
        with pytest.raises(SpecError, match=problem):
            fit_device(samples, name="mine", facts={**FACTS, **facts})

    def test_a_plan_beyond_the_sampled_networks_is_refused(self, device_file: Path):
        with pytest.raises(SpecError, match="nobody sampled what is beyond"):
            load({**a_job(str(device_file)), "cluster": {"device": str(device_file), "num_devices": 8192}})

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"rows": "1 2"}, "line 1 is '1 2', expected 4 numbers"),
            ({"rows": ""}, "has no lines"),
            ({"rows": "64 64 64 1ms"}, "line 1 is '64 64 64 1ms', expected 4 numbers"),
            ({"rows": "64 64 64 nan"}, "line 1 is"),
            ({"rows": "64 64 64 -0.1"}, "seconds is -0.1, expected more than 0"),
            ({"lengths": [0.0] * 9}, "must be more than 0"),
            ({"lengths": [1.0]}, "has 1 numbers, expected 9"),
            ({"columns": ["m", "n", "z"]}, "lacks the size 'k'"),
        ],
    )
    def test_a_file_edited_by_hand_is_refused_with_the_place(
        self, device_file: Path, changes: dict[str, Any], problem: str
    ):
        entry = yaml.safe_load(device_file.read_text())
        operators = entry["calibration"]["samples"]["operators"]
        next(one for one in operators if one["operator"] == "matmul").update(changes)
        with pytest.raises(SpecError, match=problem):
            plan(load(a_job(entry)))

    @pytest.mark.slow
    def test_facts_that_are_none_are_named(self, samples: list[Sample]):
        with pytest.raises(SpecError, match="memory_byte: no such entry"):
            fit_device(samples, name="mine", facts={**FACTS, "memory_byte": 1e9})

    def test_a_table_without_rows_makes_no_device(self):
        with pytest.raises(SpecError, match="samples: there are none"):
            fit_device([], name="mine", facts=FACTS)

    def test_samples_without_matmuls_make_no_device(self):
        with pytest.raises(SpecError, match="have 0 different forward matmuls"):
            fit_device(samples_of(row_points("rms_norm")), name="mine", facts=FACTS)

    def test_garbage_is_not_learned(self, samples: list[Sample]):
        random = np.random.default_rng(1)
        noisy = [
            replace(one, timing=replace(one.timing, seconds=one.timing.seconds * float(np.exp(random.normal(0, 2)))))
            for one in samples
            if one.point.operator == "rms_norm"
        ]
        operators, unlearned = learn_operators(noisy, num_processors=100)
        assert operators == ()
        assert all("contradict each other" in reason for _, reason in unlearned)

    def test_without_learned_matmuls_there_is_no_device(self, samples: list[Sample]):
        """A machine on which something else runs times them from alike to a hundred times longer."""
        random = np.random.default_rng(1)
        noisy = [
            replace(
                one, timing=replace(one.timing, seconds=one.timing.seconds * float(np.exp(random.normal(0, 2) ** 2)))
            )
            if one.point.operator == "matmul"
            else one
            for one in samples
        ]
        with pytest.raises(SpecError, match=r"matmuls could not be learned: matmul forward.* Sample again, on an idle"):
            fit_device(noisy, name="mine", facts=FACTS)

    def test_nothing_is_overwritten(self, device_file: Path, capsys: pytest.CaptureFixture[str]):
        table = device_file.with_name("samples.csv")
        facts = device_file.with_name("facts.yaml")
        assert main(["calibrate", str(table), "--device", str(facts), "-o", str(device_file)]) == 2
        assert "exists already" in capsys.readouterr().err

    def test_a_table_of_something_else_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        table = tmp_path / "other.csv"
        table.write_text("a,b\n1,2\n")
        assert main(["calibrate", str(table), "-o", str(tmp_path / "device.yaml")]) == 2
        assert "its columns are a, b. Runs have id, model and cluster.device" in capsys.readouterr().err
        assert not (tmp_path / "device.yaml").exists()
