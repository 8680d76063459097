"""Devices that no run was measured on: answers say so, wide, in the device's own words; other names in every door."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from benchmarks.other_makers.__main__ import predicted_runs
from costmodel import catalog
from costmodel.errors import SpecError
from planner import estimate, load, render
from planner.frameworks import export
from planner.frameworks.launch import launched
from planner.jobs.run_jobs import job_of, read, references
from planner.measure.fit.device import change_device
from planner.measure.runs.predictions import predictions
from planner.report.describe import catalog_text, describe_catalog
from planner.uncertainty.counts import read_counts
from planner.uncertainty.intervals import step_interval
from tests.builders_job import a_document

JOB = a_document("llama3-8b", "16xh100-80gb-sxm", batch=64, sequence=4096, tokens=1e11, training={"precision": "bf16"})
MEASURED_WITH_OTHERS = ("a100-40gb-pcie", "a100-80gb-pcie", "a800-80gb-sxm", "h800")
UNMEASURED = [
    name
    for name in catalog.devices()
    if not read_counts().runs("device", name) and name not in MEASURED_WITH_OTHERS and not name.startswith("mofa")
]
FOREIGN = [name for name in UNMEASURED if catalog.device(name).silicon.maker != "NVIDIA"]


@cache
def report_on(device, **decisions):
    """A small job on a device."""
    return estimate(
        load(JOB, [f"cluster.device={device}"]), {"recompute": "none", "tp": 1, **decisions}, searched=False
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", UNMEASURED)
def test_answers_are_marked_as_extrapolated(name):
    """A gap names the device, and the interval is at least as wide as on an H100."""
    report, known = report_on(name), report_on("h100-80gb-sxm")
    plan, other = report.plans[0], known.plans[0]
    sentences = [gap.sentence for gap in plan.gaps]

    assert any(sentence.startswith(f"no measured run on {name}") for sentence in sentences)
    assert "Extrapolated: " in render(report, "table").replace("\n", " ")
    assert (
        plan.interval.high_seconds / plan.interval.low_seconds
        >= other.interval.high_seconds / other.interval.low_seconds
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FOREIGN)
def test_whose_constants_stand_for_an_architecture_is_said_and_widens(name):
    """
    Constants of Hopper are one more thing that no run shows there: root of two as wide as for a device alone.

    The innermost network is called as the device's own is, not as NVIDIA's.
    """
    plan = report_on(name).plans[0]
    gap = next(gap for gap in plan.gaps if gap.dimension == "architecture")
    facts = load(JOB, [f"cluster.device={name}"]).facts
    others = [one for one in plan.gaps if one.dimension != "architecture"]
    without = step_interval(facts.model, facts.cluster, step_seconds=plan.step_seconds, gaps=others)

    assert "are those of hopper" in gap.sentence
    assert plan.interval.high_seconds > without.high_seconds
    assert plan.interval.low_seconds < without.low_seconds
    text = render(report_on(name), "table")
    assert catalog.device(name).networks[0].name in text
    assert "nvlink" not in text.lower()
    assert "NVL72" not in text


def test_published_amd_runs():
    """AMD Primus on MI325X and MI355X (2026), fitted to nothing: dense runs within 10 %, Mixtral within 25 %."""
    ratios = {one.run.id: one.run.step_seconds / one.step_seconds for one, _ in predicted_runs()}
    dense = [ratio for name, ratio in ratios.items() if "8x22b" not in name]

    assert len(ratios) == 4
    assert all(abs(ratio - 1) < 0.10 for ratio in dense)
    assert all(abs(ratio - 1) < 0.25 for ratio in ratios.values())


@pytest.mark.slow
def test_the_report_says_which_device_a_name_was_taken_for():
    """In the text and in the JSON; a name that means one device needs no word."""
    report = report_on("h100")

    assert report.problem.facts.cluster.device.name == "h100-80gb-sxm"
    assert "'h100' is taken for h100-80gb-sxm" in render(report, "table").replace("\n", " ")
    assert json.loads(render(report, "json"))["cluster"]["device_note"].startswith("'h100' is taken for")
    assert json.loads(render(report_on("h100-sxm"), "json"))["cluster"]["device_note"] is None


def test_a_job_planned_again_keeps_its_machine():
    """The job in a report reads the same network."""
    problem = load(JOB, ["cluster.device=a3-mega"])

    assert load(problem.document).facts.cluster == problem.facts.cluster
    assert problem.facts.cluster.device.networks[1].bandwidth < load(JOB).facts.cluster.device.networks[1].bandwidth
    assert load(JOB, ["cluster.device={base: a3-mega, memory_bytes: 7.0e10}"]).facts.cluster.device.name == (
        "h100-80gb-sxm, changed"
    )


@pytest.mark.parametrize("entry", ["a100", {"base": "a100", "memory_bytes": 7e10}])
def test_an_ambiguous_device_is_refused_with_its_place(entry):
    """Which of them, as a field engineer would ask."""
    job = {**JOB, "cluster": {"device": entry, "num_devices": 16}}
    with pytest.raises(
        SpecError, match=r"^cluster\.device(\.base)?: 'a100' means several devices\. Write a100-40gb-sxm"
    ):
        load(job)


def test_rows_of_measured_runs_may_use_any_name(tmp_path):
    """A table with nvidia-smi's name is the job of the catalog's; what nobody knows is what is given for it."""
    columns = "id,source,kind,usable,step_seconds,model,cluster.device,cluster.num_devices,training.global_batch_size,"
    columns += "training.sequence_length,strategy.tp,strategy.pp,strategy.mbs"
    rows = [f"r{number},own,pretrain,1,5.0,llama3-8b,{name},8,64,4096,1,1,1" for number, name in enumerate(NAMES)]
    (tmp_path / "runs.csv").write_text("\n".join((columns, *rows)) + "\n")
    known = replace(references(None), device="h200")

    found = [job_of(run, known)["cluster"]["device"] for run in read(tmp_path / "runs.csv")]

    assert found == ["NVIDIA H100 80GB HBM3", "p5.48xlarge", "h200", "h200"]


NAMES = ("NVIDIA H100 80GB HBM3", "p5.48xlarge", "a100", "somebody's own")


def test_common_names_of_devices_are_no_doubt(tmp_path):
    """'h100' is the SXM board, as is that of p5.48xlarge."""
    row = "pretrain,1,9.0,llama3-8b,{},8,64,4096,bf16,1,1,1,nemo-25.02"
    columns = "id,source,kind,usable,step_seconds,model,cluster.device,cluster.num_devices,training.global_batch_size,"
    columns += "training.sequence_length,training.precision,strategy.tp,strategy.pp,strategy.mbs,cluster.framework"
    lines = [f"{name},own,{row.format(name)}" for name in ("h100", "p5.48xlarge")]
    (tmp_path / "runs.csv").write_text("\n".join((columns, *lines)) + "\n")

    chosen, machine = predictions(read(tmp_path / "runs.csv"), references(None))

    assert chosen.run.doubts == machine.run.doubts == ()


def test_facts_of_a_sampled_profile_may_start_from_any_name():
    """'base: ND H100 v5' is the H100 with that machine's network."""
    assert change_device({"base": "ND H100 v5"}, name="mine")["num_processors"] == 132


def test_the_catalog_shows_aliases_and_answers_to_them():
    """`planner catalog aliases`, and any name for its device; one that means several is asked back."""
    assert "p5.48xlarge" in catalog_text(describe_catalog("aliases"))
    assert describe_catalog("NVIDIA H200")["name"] == "h200"
    assert describe_catalog("a3-mega")["note"].startswith("'a3-mega' is a machine of 8 h100-80gb-sxm with 25 GB/s")
    with pytest.raises(SpecError, match="Write a100-40gb-sxm"):
        describe_catalog("a100")


def test_nothing_is_exported_where_no_release_runs():
    """TPUs have software of their own, which no entry describes: its stand-in's flags would start nothing."""
    plan = report_on("tpu-v5p").plans[0]

    with pytest.raises(
        SpecError, match=r"torchtitan does not run on tpu-v5p: torchtitan-0\.3 stands for software that no"
    ):
        export(plan, "torchtitan")


@pytest.mark.parametrize(("device", "resource"), [("mi300x", "amd.com/gpu"), ("h200", "nvidia.com/gpu")])
def test_kubernetes_asks_for_the_makers_resource(device, resource):
    """A TrainJob for AMD's devices asks AMD's plugin."""
    plan = report_on(device, sharding="optimizer").plans[0]
    made = launched(plan, export(plan, "megatron-lm"), "kubernetes")

    assert f"{resource}: 8" in made.files["trainjob.yaml"]
