"""The catalog: everything loads, every number has a source, the published facts are there."""

from __future__ import annotations

from dataclasses import fields
from importlib.resources import files

import pytest
import yaml

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.operators.source import operator_times

DEVICES = catalog.devices()
NVIDIA = tuple(name for name in DEVICES if not name.startswith("mofa"))
NOT_NUMBERS = {"name", "architecture", "sources", "times", "causal_attention", "tp_sums_beside_weights"}


def entry(name: str) -> dict:
    """A device as its file states it."""
    path = files("costmodel.catalog") / "devices" / f"{name}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def numeric_fields(device: dict) -> set[str]:
    """Dotted names of what a device's file states: its own fields, its networks by name, its profile's fields."""
    own = set(device) - {"profile", "networks"}
    networks = {f"networks.{network['name']}" for network in device["networks"]}
    profile = {f"profile.{field}" for field in set(device["profile"]) - NOT_NUMBERS}
    return (own - NOT_NUMBERS) | networks | profile


@pytest.mark.parametrize("name", DEVICES)
def test_every_number_of_a_device_has_a_source(name):
    """No hardware number without where it comes from, and no source without its number."""
    device = entry(name)

    assert numeric_fields(device) == set(device["sources"])
    assert all(device["sources"].values())


@pytest.mark.parametrize("name", DEVICES)
def test_device_is_named_as_its_file(name):
    """Jobs find devices by the file, reports print the name."""
    assert catalog.device(name).name == name


@pytest.mark.parametrize("name", NVIDIA)
def test_device_can_time_every_dtype_it_has(name):
    """A peak without an efficiency would only be noticed by the job that asks for it."""
    device = catalog.device(name)

    assert all(operator_times(device, dtype) for dtype in device.peak_flops)
    assert set(device.profile.matmul_efficiency) == set(device.peak_flops)


@pytest.mark.parametrize("name", NVIDIA)
def test_device_is_plausible(name):
    """A slip of a unit is a factor of 1,000 or 8; these ranges hold for every GPU from V100 to GB300."""
    device = catalog.device(name)
    scale_up, *outer = device.networks

    assert 1e14 <= min(device.peak_flops.values()) <= max(device.peak_flops.values()) <= 2e16
    assert 16e9 <= device.memory_bytes <= 310e9
    assert 9e11 <= device.memory_bandwidth <= 8.1e12
    assert 1e10 <= scale_up.bandwidth <= 9e11
    assert all(1e10 <= network.bandwidth <= 1e11 for network in outer)
    assert all(1e-6 <= network.latency <= 1e-4 for network in device.networks)
    assert 1e10 <= device.host_to_device_bandwidth <= 4.5e11
    assert 2e9 <= device.profile.runtime_bytes <= 0.15 * device.memory_bytes


@pytest.mark.parametrize("name", DEVICES)
def test_networks_go_outwards(name):
    """Each level reaches more devices than the one inside it, and the last one any cluster."""
    reach = [network.num_peers for network in catalog.device(name).networks]

    assert reach == sorted(set(reach))
    assert reach[-1] >= 100_000


@pytest.mark.parametrize(
    ("name", "dtype", "flops"),
    [
        ("a100-80gb-sxm", "bf16", 312e12),
        ("h100-80gb-sxm", "bf16", 989e12),
        ("h100-80gb-sxm", "fp8", 1979e12),
        ("b200", "nvfp4", 9000e12),
        ("gb300", "mxfp8", 4900e12),
    ],
)
def test_published_dense_peaks(name, dtype, flops):
    """NVIDIA's datasheets and the dgxc-benchmarking README, without sparsity."""
    assert catalog.device(name).peak_flops[dtype] == flops


@pytest.mark.parametrize(("name", "domain", "per_node"), [("h100-80gb-sxm", 8, 8), ("gb200", 72, 4), ("gb300", 72, 4)])
def test_scale_up_domains(name, domain, per_node):
    """DGX: 8 GPUs share NVLink and host; NVL72: 72 share NVLink, 4 a host."""
    device = catalog.device(name)

    assert (device.networks[0].num_peers, device.devices_per_node) == (domain, per_node)


@pytest.mark.parametrize(
    ("name", "total"), [("bf16", 18), ("fp16", 18), ("fp8", 20), ("mxfp8", 20.0625), ("nvfp4", 19.125), ("mofa", 20)]
)
def test_bytes_per_parameter_of_a_recipe(name, total):
    """Megatron-LM's 18 bytes; two more for the FP8 copies; MoFa's 2 + 2 + 16."""
    recipe = catalog.precision(name)

    assert recipe.weight_bytes + recipe.copy_bytes + recipe.gradient_bytes + recipe.optimizer_bytes == total


@pytest.mark.parametrize(("name", "spared"), [("fp8", 1), ("fp8_current", 1), ("mxfp8", 0), ("bf16", 0)])
def test_blackwell_needs_no_transposed_copies(name, spared):
    """One byte less of each element and weight with one scale per tensor; scales of blocks lie along one axis each."""
    recipe = catalog.precision(name)
    there = recipe.on("blackwell")

    assert (recipe.cast_bytes - there.cast_bytes, recipe.copy_bytes - there.copy_bytes) == (spared, spared)
    assert recipe.on("hopper") == recipe.on(None) == recipe
    assert there.on("blackwell") == there


def test_bytes_of_an_nvfp4_cast():
    """Three passes that read 16 bits, two copies with 8 bits of scale per 16 elements each; one is gathered forward."""
    recipe = catalog.precision("nvfp4")
    copy = 0.5 + 1 / 16

    assert recipe.cast_bytes == 3 * 2 + 2 * copy
    assert (recipe.gathered_input_bytes, recipe.gathered_gradient_bytes) == (copy, 2 * copy)


@pytest.mark.parametrize("name", catalog.precisions())
def test_every_recipe_has_a_source(name):
    """Bytes per parameter are facts of a framework."""
    assert catalog.precision_source(name)
    assert catalog.precision(name).name == name


def test_mofa_cpu_optimizer():
    """MoFa: 3.49e-10 s per parameter for two 2-byte transfers, the update and the passes over all parameters."""
    device = catalog.device("mofa-b")

    transfers = 2 / device.device_to_host_bandwidth + 2 / device.host_to_device_bandwidth
    update = 1 / device.profile.cpu_parameters_per_second + device.profile.parameter_pass_seconds
    assert transfers + update == pytest.approx(3.49e-10, abs=0.005e-10)


@pytest.mark.parametrize(
    ("look_up", "name", "expected"),
    [
        (
            catalog.device,
            "h100-80gb-smx",
            "device: 'h100-80gb-smx' is not in the catalog. Did you mean 'h100-80gb-sxm'?",
        ),
        (catalog.precision, "bf61", "precision: 'bf61' is not in the catalog. Did you mean 'bf16'?"),
        (catalog.model, "lama3-8b", "model: 'lama3-8b' is not in the catalog. Did you mean 'llama3-8b'?"),
        (catalog.device, "../models/llama3-8b", "device: '../models/llama3-8b' is not in the catalog. Known: "),
    ],
)
def test_unknown_names_are_refused(look_up, name, expected):
    """The nearest name is suggested, else all are listed; a path is no name."""
    with pytest.raises(SpecError) as raised:
        look_up(name)

    assert str(raised.value).startswith(expected)


def test_model_is_read_by_name():
    """Llama 3 8B has 32 layers of width 4,096."""
    model = catalog.model("llama3-8b")

    assert (model.num_layers, model.hidden_size) == (32, 4096)


def test_profile_fields_exist():
    """Sources name fields, so a renamed field must be renamed there too."""
    profile = {field.name for field in fields(catalog.device("h100-80gb-sxm").profile)}

    assert all(
        name.removeprefix("profile.") in profile
        for device in DEVICES
        for name in catalog.device(device).sources
        if name.startswith("profile.")
    )
