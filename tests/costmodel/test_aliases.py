"""Names of devices: what tools, people and clouds say is found, what means several is refused, slips are near."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodel import catalog
from costmodel.catalog.aliases import _ambiguous, find_device, find_unique_device, hint, plain_name, spellings
from costmodel.catalog.files import read
from costmodel.errors import SpecError
from tests.cases import in_one_case

COLLECTED = Path(__file__).parents[2] / "benchmarks" / "measured_runs" / "collected"
ALIASES = read("aliases.yaml")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("H100-80GB-SXM", "h100-80gb-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-sxm"),
        ("NVIDIA H100 PCIe", "h100-80gb-pcie"),
        ("NVIDIA H100 NVL", "h100-94gb-nvl"),
        ("H100-SXM", "h100-80gb-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("AMD Instinct MI300X", "mi300x"),
        ("HL-325L", "gaudi3"),
        ("Ascend910B", "ascend-910b"),
        ("TPU v6e", "tpu-v6e"),
        ("Ironwood", "tpu-7x"),
        ("tpu7x", "tpu-7x"),
        ("tpu-v7x", "tpu-7x"),
        ("trn3", "trainium3"),
        ("MI350X", "mi350x"),
        ("AMD Instinct MI455X", "mi455x"),
        ("R100", "r100"),
        ("AMD Instinct MI350X OAM", "mi350x"),
        ("VR200", "vr200"),
        ("Vera Rubin", "vr200"),
        ("a3-mega", "h100-80gb-sxm"),
        ("p5.48xlarge", "h100-80gb-sxm"),
        ("ND H100 v5", "h100-80gb-sxm"),
        ("Standard_ND96isr_MI300X_v5", None),
        ("ND96isr_MI300X_v5", "mi300x"),
        ("b300", "b300"),
    ],
)
def test_names_mean_devices(name, device):
    """What nvidia-smi, rocm-smi, hl-smi, people and clouds call them."""
    found = find_unique_device(name)

    assert (found.device if found else None) == device


def test_every_name_means_one_device():
    """No two names that differ in spelling alone mean different devices, and none that is ambiguous means one."""
    meant: dict[str, set[str]] = {}
    for spelled, found in spellings():
        meant.setdefault(plain_name(spelled), set()).add(found.device)
    for device in catalog.devices():
        meant.setdefault(plain_name(device), set()).add(device)

    assert {name: devices for name, devices in meant.items() if len(devices) > 1 or not name} == {}
    assert not set(_ambiguous()) & set(meant)


def test_aliases_are_of_devices_that_there_are():
    """Each device of the file is in the catalog, machines say where their network comes from."""
    several = [device for kind in ("common", "ambiguous") for devices in ALIASES[kind].values() for device in devices]
    machines = ALIASES["machines"].values()

    assert set(ALIASES["devices"]) | set(several) | {machine["device"] for machine in machines} <= set(
        catalog.devices()
    )
    assert all(machine["source"] and set(machine) <= set(MACHINE) for machine in machines)


MACHINE = ("device", "devices", "names", "internode_bandwidth", "source")


def test_devices_of_the_measured_runs_are_found():
    """As their sources write them; those of the paper have names of their own."""
    names = {row["gpu"] for path in COLLECTED.glob("*.csv") for row in csv.DictReader(path.open()) if row.get("gpu")}

    assert names
    assert [name for name in names if find_unique_device(name) is None and not name.startswith("mofa")] == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a100",
            "'a100' means several devices. Write a100-40gb-sxm, a100-80gb-sxm, a100-40gb-pcie or a100-80gb-pcie.",
        ),
        ("NVIDIA V100", "'NVIDIA V100' means several devices. Write v100-16gb-sxm or v100-32gb-sxm."),
        ("gh200", "'gh200' means several devices. Write gh200-96gb or gh200-144gb."),
        ("mi300z", "'mi300z' is not in the catalog. Did you mean 'mi300x'?"),
        ("mi360x", "'mi360x' is not in the catalog. Did you mean 'mi355x', 'mi350x' or 'mi325x'?"),
        ("mi455", "'mi455' is not in the catalog. Did you mean 'mi455x'?"),
        ("tpu", "'tpu' means several devices. Write tpu-v5p, tpu-v6e or tpu-7x."),
        ("h100-80gb-smx", "'h100-80gb-smx' is not in the catalog. Did you mean 'h100-80gb-sxm'?"),
        ("b100", "'b100' is not in the catalog. Did you mean 'b200' or 'b300'?"),
        ("gaudi 2", "'gaudi 2' is not in the catalog. Did you mean 'gaudi3'?"),
    ],
)
def test_what_means_several_or_none_is_refused(name, message):
    """With the devices that it may mean: of the same maker, nearest in number."""
    with pytest.raises(SpecError) as raised:
        find_device(name, "cluster.device")

    assert str(raised.value) == f"cluster.device: {message}"


@pytest.mark.parametrize("name", ["", "gpu", "xyz9", "../models/llama3-8b", "é" * 300, "a" * 10_000, "- - -", "99"])
def test_names_of_nothing_list_all_devices(name):
    """Nothing near: the reader sees what there is."""
    with pytest.raises(SpecError, match="is not in the catalog"):
        find_device(name)

    assert hint(name).startswith("Known: ")


def test_no_hint_crosses_makers():
    """Letters in front of the number say the series: a slip in the number never leads to another maker."""
    makers = {name: catalog.device(name).silicon.maker for name in catalog.devices()}
    for name in ("mi300", "mi310x", "mi400x"):
        assert {makers[meant] for meant in makers if f"'{meant}'" in hint(name)} == {"AMD"}
    for name in ("h10", "b30", "rtx 3090", "a10", "l40"):
        assert {makers[meant] for meant in makers if f"'{meant}'" in hint(name)} <= {"NVIDIA"}


def test_the_common_device_is_taken_and_said():
    """'h100' is the SXM board, which clusters have; the note names the others."""
    found = find_device("H100")

    assert found.device == "h100-80gb-sxm"
    assert found.note.startswith("'h100' is taken for h100-80gb-sxm, the common one; there are also h100-80gb-pcie")


def test_a_machine_brings_its_network():
    """A3 Mega: eight adapters of 200 Gbit/s for eight devices, 25 GB/s each; inside it is the device's own."""
    own, there = catalog.device("h100-80gb-sxm"), catalog.device("a3-mega")

    assert there.name == own.name
    assert [level.bandwidth for level in there.networks] == [own.networks[0].bandwidth, 25e9, 25e9]
    assert "a3-mega" in there.sources["networks.rail"]
    assert catalog.device("p5.48xlarge").networks == own.networks


@pytest.mark.parametrize(
    ("machine", "device", "count"),
    [
        ("VR200 NVL72", "vr200", 72),
        ("Vera Rubin NVL144", "vr200", 72),
        ("HGX B300 NVL16", "b300", 8),
        ("GB300 NVL72", "gb300", 72),
    ],
)
def test_racks_count_packages_not_dies(machine: str, device: str, count: int):
    """NVL144 and NVL16 count two dies for each GPU: the same machines are sold as NVL72 and NVL8."""
    found = find_device(machine)

    assert (found.device, found.num_devices) == (device, count)
    assert f"a machine of {count} {device}" in found.note


@in_one_case("name", catalog.devices())
def test_extended_devices_are_whole(name):
    """A device that extends another is whole, and its sources are of its own networks."""
    known = catalog.device_entry(name)

    assert "extends" not in known
    assert known["name"] == name
    assert {level["name"] for level in known["networks"]} == {
        key.partition(".")[2] for key in known["sources"] if key.startswith("networks.")
    }


PEAKS = {
    "mi300x": (1307.4, 192, 5.3, 750),
    "mi325x": (1307.4, 256, 6.0, 1000),
    "mi350x": (2306.9, 288, 8.0, 1000),
    "mi355x": (2516.6, 288, 8.0, 1400),
    "h20": (148, 96, 4.0, 400),
    "h100-80gb-pcie": (756, 80, 2.0, 350),
    "h100-94gb-nvl": (835, 94, 3.9, 400),
    "l40s": (362, 48, 0.864, 350),
    "rtx-pro-6000": (503.8, 96, 1.792, 600),
    "rtx-4090": (165.2, 24, 1.008, 450),
    "rtx-5090": (209.5, 32, 1.792, 575),
    "gh200-144gb": (989, 144, 4.9, 1000),
    "gaudi3": (1678, 128, 3.67, 900),
    "ascend-910b": (313, 64, 1.6, None),
    "ascend-910c": (752, 128, 3.2, None),
    "tpu-v5p": (459, 95, 2.765, None),
    "tpu-v6e": (918, 32, 1.64, None),
    "tpu-7x": (2307, 192, 7.38, None),
    "trainium2": (667, 96, 2.9, None),
    "trainium3": (671, 144, 4.9, None),
    "vr200": (4000, 288, 22, None),
    "r100": (4000, 288, 22, None),
    "mi455x": (10000, 432, 19.6, None),
    "h100-80gb-sxm": (989, 80, 3.35, 700),
    "a100-80gb-pcie": (312, 80, 1.935, 300),
    "gb300": (2500, 288, 8.0, 1400),
}


@pytest.mark.parametrize("name", PEAKS)
def test_datasheets(name):
    """Dense TFLOP/s in BF16, GB, TB/s and watts as the datasheets print them; of memory a tenth may be kept back."""
    peak, gigabytes, bandwidth, watts = PEAKS[name]
    device = catalog.device(name)

    assert device.peak_flops["bf16"] == pytest.approx(peak * 1e12, rel=0.03)
    assert 0.9 * gigabytes * 1e9 <= device.memory_bytes <= gigabytes * 2**30
    assert device.memory_bandwidth == pytest.approx(bandwidth * 1e12, rel=0.01)
    assert device.power_watts == watts
    assert "power_watts" in device.sources
