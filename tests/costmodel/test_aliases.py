"""Names of devices: what tools, people and clouds say is found, what means several is refused, slips are near."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodel import catalog
from costmodel.catalog.aliases import _ambiguous, find_device, find_unique_device, hint, plain_name, spellings
from costmodel.catalog.files import read
from costmodel.errors import SpecError
from tests.cases import in_one_case, read_table

COLLECTED = Path(__file__).parents[2] / "benchmarks" / "measured_runs" / "collected"
ALIASES = read("aliases.yaml")
TABLE = read_table("devices")


@in_one_case(("name", "device"), TABLE["means"].items())
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


@in_one_case(("name", "message"), TABLE["refused"].items())
def test_what_means_several_or_none_is_refused(name, message):
    """With the devices that it may mean: of the same maker, nearest in number."""
    with pytest.raises(SpecError) as raised:
        find_device(name, "cluster.device")

    assert str(raised.value) == f"cluster.device: {message}"


@in_one_case("name", ["", "gpu", "xyz9", "../models/llama3-8b", "é" * 300, "a" * 10_000, "- - -", "99"])
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


@in_one_case(
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


@in_one_case("name", TABLE["datasheets"])
def test_datasheets(name):
    """Dense TFLOP/s in BF16, GB, TB/s and watts as the datasheets print them; of memory a tenth may be kept back."""
    peak, gigabytes, bandwidth, watts = TABLE["datasheets"][name]
    device = catalog.device(name)

    assert device.peak_flops["bf16"] == pytest.approx(peak * 1e12, rel=0.03)
    assert 0.9 * gigabytes * 1e9 <= device.memory_bytes <= gigabytes * 2**30
    assert device.memory_bandwidth == pytest.approx(bandwidth * 1e12, rel=0.01)
    assert device.power_watts == watts
    assert "power_watts" in device.sources
