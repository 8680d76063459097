"""The catalog: everything loads, every number has a source, the published facts are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

import pytest

from costmodel import catalog
from costmodel.catalog import files
from costmodel.errors import SpecError
from costmodel.facts.calibration import Constants, Measured
from costmodel.facts.device import Silicon
from costmodel.timing.source import operator_times
from planner.measure.calibrate.constants import constants, read
from tests.cases import in_one_case

DEVICES = catalog.devices()
CALIBRATIONS = catalog.calibrations()
FRAMEWORKS = catalog.frameworks()
SOLD = tuple(name for name in DEVICES if not name.startswith("mofa"))
NAMES = {"name", "extends", "architecture", "calibration", "framework", "sources"}
"""Of a device: what it is called, and by which names others know what it has."""

ABOUT = {"name", "description", "extends", "releases", "since", "architectures", "measured_on", "is_default", "targets"}
"""Of a framework: what it is and where it runs, which its description says."""

FITTED = {"kernels_of", "factors"}
"""Of a framework: fitted by ``benchmarks.accuracy.fit``, whose table says with what priors and within which bounds."""


def entry(name: str, folder: str = "devices") -> Mapping[str, Any]:
    """An entry of the catalog as its file states it."""
    return files.entry(folder, name)


def numeric_fields(device: dict) -> set[str]:
    """Dotted names of what a device's file states: its own fields and its networks by name."""
    networks = {f"networks.{network['name']}" for network in device.get("networks", ())}
    return (set(device) - NAMES - {"networks"}) | networks


@in_one_case("name", DEVICES)
def test_every_number_of_a_device_has_a_source(name):
    """No hardware number without where it comes from, and no source without its number."""
    device, whole = entry(name), catalog.device_entry(name)

    assert numeric_fields(device) == set(device["sources"])
    assert numeric_fields(whole) == set(whole["sources"])
    assert all(device["sources"].values())


def extended(name: str, folder: str) -> list[dict]:
    """An entry and those that it extends, itself first; one that extends itself would not end."""
    found, seen = [entry(name, folder)], [name]
    while "extends" in found[-1]:
        seen.append(found[-1]["extends"])
        assert len(set(seen)) == len(seen), f"{seen} is a circle"
        found.append(entry(seen[-1], folder))
    return found


@pytest.mark.parametrize("folder", ["calibrations", "frameworks"])
def test_entries_extend_entries_that_exist_and_never_themselves(folder):
    """Whatever is followed ends at an entry that extends nothing."""
    for name in catalog.calibrations() if folder == "calibrations" else catalog.frameworks():
        assert "extends" not in extended(name, folder)[-1]
        assert entry(name, folder)["name"] == name


@in_one_case("name", CALIBRATIONS)
def test_every_constant_of_a_calibration_has_a_source(name):
    """What an entry states it gives a source for, and no source is of something that it does not state."""
    own = entry(name, "calibrations")

    measured = {f"measured.{name}" for name in own["constants"].get("measured", {})}
    assert set(own["constants"]) - {"times", "measured"} | measured == set(own["sources"])
    assert all(own["sources"].values())
    assert own["description"]


def stated(framework: dict) -> set[str]:
    """Dotted names of what a framework's file states about its code, its settings and its recipes."""
    nested = {f"{name}.{key}" for name in ("settings", "features") for key in framework.get(name) or ()}
    nested |= set(leaves(framework.get("behaviour") or {}, "behaviour"))
    others = set(framework) - ABOUT - FITTED - {"sources", "behaviour", "settings", "features"}
    return nested | {name for name in others if framework[name]}


def covered(name: str, sources: Iterable[str]) -> bool:
    """Whether an entry, or a group that it is in, has a source."""
    return any(f"{name}.".startswith(f"{key}.") for key in sources)


@in_one_case("name", FRAMEWORKS)
def test_every_entry_of_a_framework_has_a_source(name):
    """Its own, or that of the entry from which it has what it says; of one entry, or of all of their kind at once."""
    sources = catalog.framework(name).sources
    said = stated(entry(name, "frameworks"))

    assert not {key for key in said if not covered(key, sources) and not any(covered(one, [key]) for one in sources)}
    assert entry(name, "frameworks")["description"]
    assert all(sources.values())


def leaves(said: object, path: str = "") -> dict[str, object]:
    """What is said, by dotted name."""
    if not isinstance(said, dict):
        return {path: list(said) if isinstance(said, tuple) else said}
    return {
        key: value for name, one in said.items() for key, value in leaves(one, f"{path}.{name}".lstrip(".")).items()
    }


@in_one_case("name", [name for name in FRAMEWORKS if "extends" in entry(name, "frameworks")])
def test_what_an_entry_says_otherwise_has_a_source_of_its_own(name):
    """That of the entry which it extends is of something else."""
    own = entry(name, "frameworks")
    before = leaves(asdict(catalog.framework(own["extends"])))
    said = {key: own[key] for key in own if key not in ABOUT | FITTED | {"sources"}}
    otherwise = {key for key, value in leaves(said).items() if key not in before or before[key] != value}

    assert not {key for key in otherwise if not covered(key, own.get("sources") or ())}


@in_one_case("name", FRAMEWORKS)
def test_sources_of_a_framework_name_what_there_is(name):
    """Sources name entries, so a renamed entry must be renamed there too; of factors those that it has."""
    known = catalog.framework(name)
    for key in known.sources:
        value: object = known
        *sections, last = key.split(".", 1) if key.startswith("factors.") else key.split(".")
        for part in (*sections, last):
            value = value[part] if isinstance(value, dict) else getattr(value, part)


def test_sources_are_not_inherited_beside_what_they_are_of():
    """torchtitan deals stages otherwise than Megatron-Core and has not its factors; the rest keeps its source."""
    core, other = catalog.framework("megatron-core-0.14"), catalog.framework("torchtitan-0.1")
    kernels = catalog.framework("nemo-25.07")
    factor = "factors.matmul_efficiency@blackwell"

    assert other.sources["stages"] != core.sources["stages"]
    assert other.sources["behaviour.kernels.causal_attention"] == core.sources["behaviour.kernels.causal_attention"]
    assert "behaviour.memory" not in other.sources
    assert other.sources["behaviour.memory.offload_keeps_inputs"] == core.sources["behaviour.memory"]
    assert factor not in other.sources
    assert kernels.sources[factor] == core.sources[factor]  # its kernels are those


def test_releases_are_of_one_entry():
    """A name that a job may write means one entry, which none of them is beside."""
    releases = [release for name in FRAMEWORKS for release in entry(name, "frameworks").get("releases") or ()]

    assert len(set(releases)) == len(releases)
    assert not set(releases) & set(FRAMEWORKS)


@in_one_case("name", DEVICES)
def test_every_device_has_a_calibration(name):
    """It is one that exists, and what is achieved of nominal bandwidths is no more than all of them."""
    efficiency = catalog.device(name).calibration.constants.link_efficiency

    assert catalog.device_entry(name)["calibration"] in CALIBRATIONS
    assert all(0 < share <= 1 for share in efficiency.values())


@in_one_case("name", CALIBRATIONS)
def test_levels_of_interconnect_are_those_of_devices(name):
    """An efficiency by a name that no device with this calibration has would never be used."""
    own = entry(name, "calibrations")["constants"].get("link_efficiency") or {}
    devices = [one for one in DEVICES if name in catalog.calibration_chain(catalog.device_entry(one)["calibration"])]

    assert devices
    assert set(own) <= {network.name for one in devices for network in catalog.device(one).networks}


@in_one_case("constant", constants(frameworks=True), ids=lambda constant: constant.name)
def test_every_fitted_constant_is_within_its_bounds(constant):
    """Bounds of physics (``planner/measure/calibrate/constants.yaml``): for the catalog's number and its prior."""
    if constant.framework:
        factors = catalog.framework(constant.framework).factors
        numbers = [factors.get(field, 1.0) for field in constant.fields]
    else:
        known = catalog.calibration(constant.calibration).constants
        numbers = [number for field in constant.fields if (number := read(known, field)) is not None]

    assert numbers
    assert all(constant.lower <= number <= constant.upper for number in (*numbers, constant.prior))


@in_one_case("name", FRAMEWORKS)
def test_kernels_are_fitted_once(name):
    """Releases with the kernels of another entry have its factors, and none of their own."""
    kernels = catalog.framework(name).kernels_of

    assert kernels in FRAMEWORKS
    assert kernels == name or "factors" not in entry(name, "frameworks")
    assert catalog.framework(name).factors == (entry(kernels, "frameworks").get("factors") or {})


@in_one_case("name", DEVICES)
def test_device_is_named_as_its_file(name):
    """Jobs find devices by the file, reports print the name."""
    assert catalog.device(name).name == name


@in_one_case("name", SOLD)
def test_device_can_time_every_dtype_it_has(name):
    """A peak without an efficiency would only be noticed by the job that asks for it."""
    device = catalog.equip_device(name)

    assert all(operator_times(device, dtype) for dtype in device.peak_flops)
    assert set(device.constants.matmul_efficiency) >= set(device.peak_flops)


@in_one_case("name", SOLD)
def test_device_is_plausible(name):
    """A slip of a unit is a factor of 1,000 or 8; these ranges hold for all from V100 to VR200, MI455X and TPU7x."""
    device = catalog.device(name)
    scale_up, *outer = device.networks

    assert 1e14 <= min(device.peak_flops.values()) <= max(device.peak_flops.values()) <= 3.5e16
    assert 1.6e10 <= device.memory_bytes <= 470e9
    assert 8e11 <= device.memory_bandwidth <= 2.2e13
    assert 1e10 <= scale_up.bandwidth <= 1.8e12
    assert all(3e9 <= network.bandwidth <= 3e11 for network in outer)
    assert all(1e-6 <= network.latency <= 1e-4 for network in device.networks)
    assert 1e10 <= device.host_to_device_bandwidth <= 4.5e11
    assert 2e9 <= device.runtime_bytes <= 0.15 * device.memory_bytes


@in_one_case("name", DEVICES)
def test_networks_go_outwards(name):
    """Each level reaches more devices than the one inside it, and the last one any cluster."""
    reach = [network.num_peers for network in catalog.device(name).networks]

    assert reach == sorted(set(reach))
    assert reach[-1] >= 100_000


@in_one_case(
    ("name", "dtype", "flops"),
    [
        ("a100-80gb-sxm", "bf16", 312e12),
        ("h100-80gb-sxm", "bf16", 989e12),
        ("h100-80gb-sxm", "fp8", 1979e12),
        ("b200", "nvfp4", 9000e12),
        ("gb300", "mxfp8", 4900e12),
        ("vr200", "mxfp8", 17500e12),
        ("vr200", "nvfp4", 35000e12),
        ("mi350x", "fp8", 4613.7e12),
        ("tpu-7x", "fp8", 4614e12),
        ("trainium3", "mxfp8", 2517e12),
    ],
)
def test_published_dense_peaks(name, dtype, flops):
    """NVIDIA's datasheets and the dgxc-benchmarking README, without sparsity."""
    assert catalog.device(name).peak_flops[dtype] == flops


@in_one_case(
    ("name", "domain", "per_node"), [("h100-80gb-sxm", 8, 8), ("gb200", 72, 4), ("gb300", 72, 4), ("vr200", 72, 4)]
)
def test_scale_up_domains(name, domain, per_node):
    """DGX: 8 GPUs share NVLink and host; NVL72: 72 share NVLink, 4 a host."""
    device = catalog.device(name)

    assert (device.networks[0].num_peers, device.devices_per_node) == (domain, per_node)


@in_one_case(
    ("name", "total"), [("bf16", 18), ("fp16", 18), ("fp8", 20), ("mxfp8", 20.0625), ("nvfp4", 19.125), ("mofa", 20)]
)
def test_bytes_per_parameter_of_a_recipe(name, total):
    """Megatron-LM's 18 bytes; two more for the FP8 copies; MoFa's 2 + 2 + 16."""
    recipe = catalog.precision(name)

    assert recipe.weight_bytes + recipe.copy_bytes + recipe.gradient_bytes + recipe.optimizer_bytes == total


@in_one_case(("name", "spared"), [("fp8", 1), ("fp8_current", 1), ("mxfp8", 0), ("bf16", 0)])
def test_blackwell_needs_no_transposed_copies(name, spared):
    """One byte less of each element and weight with one scale per tensor; scales of blocks lie along one axis each."""
    recipe = catalog.precision(name)
    there = recipe.adapt_to(catalog.device("b200").silicon)

    assert (recipe.cast_bytes - there.cast_bytes, recipe.copy_bytes - there.copy_bytes) == (spared, spared)
    assert recipe.adapt_to(catalog.device("h100-80gb-sxm").silicon) == recipe.adapt_to(Silicon()) == recipe
    assert there.adapt_to(catalog.device("b200").silicon) == there


def test_bytes_of_an_nvfp4_cast():
    """Three passes that read 16 bits, two copies with 8 bits of scale per 16 elements each; one is gathered forward."""
    recipe = catalog.precision("nvfp4")
    copy = 0.5 + 1 / 16

    assert recipe.cast_bytes == 3 * 2 + 2 * copy
    assert (recipe.gathered_input_bytes, recipe.gathered_gradient_bytes) == (copy, 2 * copy)


@in_one_case(
    ("name", "casts"),
    [("bf16", (0, 0)), ("fp8", (1, 1)), ("fp8_current", (2, 2)), ("mxfp8", (3, 5)), ("nvfp4", (4, 6))],
)
def test_kernels_that_cast_one_group(name, casts):
    """A cast in front of each pass; scales of two operands forward, of four backward; magnitudes first where needed."""
    assert catalog.precision(name).casts_per_group == casts


@in_one_case("name", catalog.precisions())
def test_every_recipe_has_a_source(name):
    """Bytes per parameter are facts of a framework."""
    assert catalog.precision_source(name)
    assert catalog.precision(name).name == name


def test_mofa_cpu_optimizer():
    """MoFa: 3.49e-10 s per parameter for two 2-byte transfers, the update and the passes over all parameters."""
    device = catalog.equip_device("mofa-b")

    transfers = 2 / device.device_to_host_bandwidth + 2 / device.host_to_device_bandwidth
    passes = device.constants.parameter_pass_bytes / device.achieved_memory_bandwidth
    update = 28 / device.host_stream_bandwidth + passes
    assert transfers + update == pytest.approx(3.49e-10, abs=0.005e-10)


@in_one_case(
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


def test_sources_of_calibrations_name_constants():
    """Sources name fields, so a renamed field must be renamed there too."""
    known = {field.name for field in fields(Constants)} | {f"measured.{field.name}" for field in fields(Measured)}

    assert all(set(catalog.calibration(name).sources) <= known for name in CALIBRATIONS)
