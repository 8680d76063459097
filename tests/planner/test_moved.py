"""Jobs and devices of 0.1: whatever is called otherwise now is refused with its name of today."""

from dataclasses import fields

import pytest
import yaml

from costmodel import catalog
from costmodel.facts.device import Device
from costmodel.strategy import DECISIONS as OF_STRATEGY
from planner.jobs.moved import DECISIONS, FRAMEWORKS, OF_DEVICE
from planner.jobs.problem import load
from tests.planner.test_job import a_job, message_of

CALIBRATED = """
# Written by planner calibrate 0.1: what was fitted to 12 runs, on top of the catalog's device.
base: h100-80gb-sxm
name: ours
networks:
  - {name: nvlink, num_peers: 8, bandwidth: 3.6e+11, latency: 4.0e-06}
profile:
  matmul_efficiency: {bf16: 0.71}
sources:
  profile.matmul_efficiency: fitted by planner calibrate
"""


@pytest.mark.parametrize(
    ("software", "hint"),
    [
        ("nemo", "Write framework: megatron-bridge-26.04 instead of 'nemo'."),
        ("bigscience", "Write framework: megatron-deepspeed-2022 instead of 'bigscience'."),
        ({"base": "nemo"}, "Write framework.base: megatron-bridge-26.04 instead of 'nemo'."),
        ("magic", "planner catalog frameworks lists the names."),
        ({"base": 3}, "planner catalog frameworks lists the names."),
        (None, "planner catalog frameworks lists the names."),
    ],
)
def test_software_is_a_framework_now(software, hint):
    """With the release that a stack has become."""
    message = message_of(a_job(cluster__software=software))

    assert message == f"cluster.software: is called cluster.framework now. {hint}"


def test_overrides_are_told_too():
    """On the command line as in the file."""
    assert message_of(a_job(), ["cluster.software=torchtitan"]).endswith(
        "Write framework: torchtitan-0.1 instead of 'torchtitan'."
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_stack_has_become_a_release(name):
    """What the hint says can be written."""
    job = a_job(cluster__device="a100-80gb-sxm", cluster__framework=FRAMEWORKS[name])

    assert load(job).facts.cluster.framework.name == FRAMEWORKS[name]


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("kernel_seconds", "Write cluster.device.calibration.kernel_gap_seconds."),
        ("matmul_efficiency", "Write cluster.device.calibration.matmul_efficiency."),
        ("runtime_bytes", "Write cluster.device.runtime_bytes."),
        (
            "cpu_parameters_per_second",
            "Write cluster.device.host_processors.memory_bandwidth, 28 bytes for each parameter.",
        ),
        ("parameter_pass_seconds", "Write cluster.device.calibration.parameter_pass_bytes, a count of bytes."),
        ("sharding_ranks", "Write settings.optimizer_group."),
        ("launches_block", "Write settings.launches: blocking."),
        ("expert_dispatch", "It is a decision: strategy.token_dispatcher or search.pin.token_dispatcher."),
        ("cuda_graphs", "It is a decision: strategy.cuda_graphs or search.pin.cuda_graphs."),
        ("fused_attention", "Write cluster.framework.behaviour.kernels.fused_attention."),
        ("causal_attention", "Write cluster.framework.behaviour.kernels.causal_attention."),
        ("retention", "Write cluster.framework.behaviour.memory."),
    ],
)
def test_entries_of_a_profile_have_other_places(field, hint):
    """Each with its own: constants, the device, settings, decisions and what software does."""
    message = message_of(a_job(cluster__device={"base": "h100-80gb-sxm", "profile": {field: 1}}))

    assert message.startswith(f"cluster.device.profile.{field}: has another place now. ")
    assert message.endswith(hint)


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("kernel_second", "Did you mean 'kernel_gap_seconds'?"),
        ("foo", "what software does is in cluster.framework.beha"),
    ],
)
def test_what_no_profile_ever_had_has_no_other_place(field, hint):
    """A misspelt entry is one, in the words of today where one is near."""
    message = message_of(a_job(cluster__device={"base": "h100-80gb-sxm", "profile": {field: 1}}))

    assert message.startswith(f"cluster.device.profile.{field}: no such entry")
    assert hint in message


@pytest.mark.parametrize("name", ["nemo", "torchtitan", "zero-bubble"])
def test_stacks_of_old_are_told_their_release_under_the_new_key_too(name):
    """Alone and as what an inline framework starts from."""
    alone, inline = (message_of(a_job(cluster__framework=given)) for given in (name, {"base": name}))

    assert alone == (
        f"cluster.framework: '{name}' has another name now. Write framework: {FRAMEWORKS[name]} instead of '{name}'."
    )
    assert inline.startswith(f"cluster.framework.base: '{name}' has another name now. Write framework.base: ")


def test_a_release_that_was_a_stack_keeps_its_name():
    """Megatron-LM 0.14 is called so in both."""
    job = a_job(cluster__device="a100-80gb-sxm", cluster__framework="megatron-lm-0.14")

    assert load(job).facts.cluster.framework.name == "megatron-lm-0.14"


@pytest.mark.parametrize("profile", [None, {}, []])
def test_a_profile_without_entries_is_told_where_they_would_be(profile):
    """Its name alone is refused."""
    message = message_of(a_job(cluster__device={"base": "h100-80gb-sxm", "profile": profile}))

    assert message.startswith(
        "cluster.device.profile: has another place now. Constants are in cluster.device.calibration"
    )


def test_the_places_exist():
    """What the hints name is there to be written."""
    device = {field.name for field in fields(Device)}

    assert set(DECISIONS) - set(OF_STRATEGY) == {"expert_dispatch"}
    assert OF_DEVICE["runtime_bytes"] == "cluster.device.runtime_bytes"
    assert {"runtime_bytes", "host_processors"} <= device
    changed = {"base": "h100-80gb-sxm", "runtime_bytes": 1e9, "calibration": {"parameter_pass_bytes": 4.0}}
    job = a_job(cluster__device=changed, settings={"optimizer_group": 8, "launches": "blocking"})
    cluster = load(job).facts.cluster
    assert cluster.device.runtime_bytes == 1e9
    assert cluster.device.constants.parameter_pass_bytes == 4
    assert (cluster.device.behaviour.optimizer.sharding_ranks, cluster.device.behaviour.host.launch_blocking) == (
        8,
        True,
    )


def test_a_file_that_calibrate_wrote_in_0_1_is_refused(tmp_path):
    """It is read as a part of the job, and its entries are named alike."""
    (tmp_path / "ours.yaml").write_text(CALIBRATED)

    message = message_of(a_job(cluster__device=str(tmp_path / "ours.yaml")))

    assert message.startswith("cluster.device.profile.matmul_efficiency: has another place now.")
    assert message.endswith("Write cluster.device.calibration.matmul_efficiency.")


def test_the_same_file_is_read_with_todays_names(tmp_path):
    """Its constants in ``calibration``: one word, and the sources of its own."""
    path = tmp_path / "ours.yaml"
    entry = yaml.safe_load(CALIBRATED)
    entry["calibration"] = entry.pop("profile")
    entry.pop("sources")
    path.write_text(yaml.safe_dump(entry))

    device = load(a_job(cluster__device=str(path))).facts.cluster.device

    known = catalog.device("h100-80gb-sxm").calibration.constants.matmul_efficiency
    assert device.calibration.constants.matmul_efficiency == {**known, "bf16": 0.71}
    assert device.name == "ours"
