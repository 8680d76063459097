"""Small valid facts and decisions; a test names only what it is about."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from costmodel.facts.calibration import Calibration, Constants, Measured
from costmodel.facts.device import Cluster, EquippedDevice, HostProcessors, Network
from costmodel.facts.framework import Behaviour
from costmodel.facts.model import Model
from costmodel.facts.workload import Precision, Workload
from costmodel.strategy import (
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    Strategy,
    TokenDispatcher,
    Vocabulary,
    default_microbatch_group,
)
from costmodel.tables import Facts

GB = 10**9


def a_device(**changes: Any) -> EquippedDevice:
    """Eight devices of 80 GB per node, NVLink inside it, 50 GB/s outside."""
    constants: dict[str, Any] = {"attention_efficiency": 0.5, "memory_efficiency": 0.8}
    facts: dict[str, Any] = {
        "name": "test-device",
        "peak_flops": {"bf16": 1e15},
        "memory_bytes": 80 * GB,
        "memory_bandwidth": 3000 * GB,
        "devices_per_node": 8,
        "networks": (
            Network(name="nvlink", num_peers=8, bandwidth=400 * GB, latency=1e-6),
            Network(name="node", num_peers=10**6, bandwidth=50 * GB, latency=1e-5),
        ),
        "host_memory_bytes": 200 * GB,
        "host_to_device_bandwidth": 32 * GB,
        "device_to_host_bandwidth": 32 * GB,
        "disk_write_bandwidth": 2 * GB,
        "disk_read_bandwidth": 2 * GB,
        "runtime_bytes": 1 * GB,
        "host_processors": HostProcessors(memory_bandwidth=320 * GB),
        "calibration": Calibration(name="test-calibration", constants=Constants(**constants)),
        **achieved(**constants),
    }
    return EquippedDevice(**(facts | changes))


OLD_NAMES = {"measured_rates": "rates", "measured_collectives": "collectives"}


def achieved(device: EquippedDevice | None = None, **entries: Any) -> dict[str, Any]:
    """
    Constants and behaviour of a device, by the names of their entries wherever they stand.

    A test writes ``a_device(**achieved(kernel_gap_seconds=2e-6, scatter_gather_p2p=True))``, or starts from a device.
    """
    behaviour = device.behaviour if device else Behaviour()
    records = {one.name: getattr(behaviour, one.name) for one in fields(Behaviour)}
    known = device.constants if device else None
    measured = known.measured if known else Measured()
    own: dict[str, Any] = {}
    for name, value in entries.items():
        name = OLD_NAMES.get(name, name)
        places = [key for key, record in records.items() if hasattr(record, name)]
        if name in records:
            records[name] = value
        elif name == "measured":
            measured = value
        elif hasattr(measured, name):
            measured = replace(measured, **{name: value})
        elif places:
            records[places[0]] = replace(records[places[0]], **{name: value})
        else:
            own[name] = value
    constants = replace(known, **own, measured=measured) if known else Constants(**own, measured=measured)
    return {"constants": constants, "behaviour": Behaviour(**records)}


def a_cluster(num_devices: int = 64, **device: Any) -> Cluster:
    """Test devices, 64 of them unless told otherwise."""
    return Cluster(device=a_device(**device), num_devices=num_devices)


def a_workload(**changes: Any) -> Workload:
    """128 sequences of 4,096 tokens per step, a billion tokens in all."""
    precision = Precision(
        name="bf16",
        compute="bf16",
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
        parameter_gather_bytes=2,
    )
    facts: dict[str, Any] = {
        "global_batch_size": 128,
        "sequence_length": 4096,
        "tokens": 1e9,
        "precision": precision,
    }
    return Workload(**(facts | changes))


def facts(model: Model, *, cluster: Cluster | None = None, workload: Workload | None = None) -> Facts:
    """The model on the test cluster with the test workload."""
    return Facts(model=model, cluster=cluster or a_cluster(), workload=workload or a_workload())


def a_strategy(**changes: Any) -> Strategy:
    """Everything is 1, off or none, but for the changes; groups are as usual."""
    decisions: dict[str, Any] = {
        "tp": 1,
        "cp": 1,
        "pp": 1,
        "dp": 1,
        "ep": 1,
        "etp": 1,
        "vpp": 1,
        "group": int(default_microbatch_group(pp=changes.get("pp", 1), vpp=changes.get("vpp", 1))),
        "mbs": 1,
        "sequence_parallel": False,
        "schedule": Schedule.ONE_F_ONE_B,
        "vocabulary": Vocabulary.ENDS,
        "sharding": Sharding.NONE,
        "recompute": Recompute.NONE,
        "activation_offload": False,
        "optimizer_offload": False,
        "token_dispatcher": TokenDispatcher.ALLTOALL,
        "cuda_graphs": CudaGraphs.NONE,
        "tp_overlap": False,
        "cp_overlap": False,
        "ep_overlap": False,
        "pp_overlap": False,
        "dp_overlap": False,
    }
    return Strategy(**(decisions | changes))
