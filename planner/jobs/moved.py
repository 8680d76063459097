"""Entries of job files that have another name now: each is refused with what it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.calibration import Constants, Measured
from costmodel.facts.framework import Behaviour
from costmodel.validation import shown

FRAMEWORKS = {
    "automodel": "automodel-26.02",
    "bigscience": "megatron-deepspeed-2022",
    "bigscience-2021": "megatron-deepspeed-2021",
    "gpt-neox": "gpt-neox-2.0",
    "internevo": "internevo-0.2",
    "llm-foundry": "llm-foundry-0.6",
    "megatron-deepspeed": "megatron-deepspeed-2023",
    "megatron-lm-0.14": "megatron-lm-0.14",
    "megatron-lm-2022": "megatron-lm-2022",
    "megatron-lm-2023": "zero-bubble-2023",
    "nemo": "megatron-bridge-26.04",
    "nemo-2024": "nemo-24.07",
    "nemo-2025": "nemo-25.07",
    "paddlenlp": "paddlenlp-2.6",
    "torchtitan": "torchtitan-0.1",
    "v-half": "v-half-2024",
    "zero-bubble": "vocabulary-parallelism-2024",
}
"""What the software stacks of 0.1 are called."""

DECISIONS = {
    "expert_dispatch": "strategy.token_dispatcher or search.pin.token_dispatcher",
    "cuda_graphs": "strategy.cuda_graphs or search.pin.cuda_graphs",
}
UPDATES = "cpu_parameters_per_second"
"""What a host updates, of which a device says its memory's bandwidth now and a framework its bytes."""

OF_DEVICE = {
    "runtime_bytes": "cluster.device.runtime_bytes",
    UPDATES: "cluster.device.host_processors.memory_bandwidth, 28 bytes for each parameter",
    "sharding_ranks": "settings.optimizer_group",
    "launches_block": "settings.launches: blocking",
    "parameter_pass_seconds": "cluster.device.calibration.parameter_pass_bytes, a count of bytes",
}
"""Entries of a device's ``profile`` that went elsewhere than into its calibration or a framework's behaviour."""

RENAMED = {
    "measured_rates": "rates",
    "measured_collectives": "collectives",
    "edge_fraction": "embedding_head_fraction",
    "head_fill_fraction": "head_pipeline_fill_fraction",
    "device_spread": "straggler_spread",
    "exposed_writes": "epilogue_store_fraction",
    "grouped_half_rows": "grouped_half_saturation_rows",
    "grouped_narrow_efficiency": "grouped_low_precision_efficiency",
    "hop_seconds": "p2p_overhead_seconds",
    "host_kernel_seconds": "launch_overhead_seconds",
    "kernel_seconds": "kernel_gap_seconds",
    "overlap_processors": "communication_sm_fraction",
    "sustained_clock": "throttled_clock",
    "launches_block": "launch_blocking",
    "rings_cross_sockets": "cross_socket_rings",
    "scatters_hops": "scatter_gather_p2p",
    "tp_sums_beside_weights": "async_tp_allreduce",
    "waits_for_collectives": "blocking_collectives",
    "eager": "unfused_kernels",
}
"""Entries of calibrations and frameworks that are called otherwise now."""


def _with_old_names(places: dict[str, str]) -> dict[str, str]:
    return places | {old: places[new] for old, new in RENAMED.items() if new in places}


CONSTANTS = _with_old_names(
    {one.name: one.name for one in fields(Constants)} | {one.name: f"measured.{one.name}" for one in fields(Measured)}
)
"""Where each constant is in a calibration, those of before among them."""

BEHAVIOUR = _with_old_names(
    {
        entry.name: f"{part.name}.{entry.name}"
        for part in fields(Behaviour)
        for entry in fields(getattr(Behaviour(), part.name))
    }
) | {"retention": "memory"}
"""Entries of a framework's behaviour that have other names or places now."""

PROFILE = (
    {name: f"Write cluster.framework.behaviour.{place}." for name, place in BEHAVIOUR.items()}
    | {name: f"Write cluster.device.calibration.{place}." for name, place in CONSTANTS.items()}
    | {name: f"Write {place}." for name, place in OF_DEVICE.items()}
    | {name: f"It is a decision: {place}." for name, place in DECISIONS.items()}
)
"""Where each entry of a device's ``profile`` is written today."""

PLACES = "Constants are in cluster.device.calibration, what software does is in cluster.framework.behaviour."


def require_todays_names(document: Mapping[str, Any]) -> None:
    """
    Refuse a job file of 0.1 whose entries have moved.

    Raises
    ------
    SpecError
        With the name of today.
    """
    cluster = document.get("cluster")
    if not isinstance(cluster, Mapping):
        return
    if "software" in cluster:
        hint = _framework(cluster["software"]) or "planner catalog frameworks lists the names."
        raise SpecError("cluster.software", "is called cluster.framework now.", hint)
    framework, device = cluster.get("framework"), cluster.get("device")
    _require_release(framework)
    require_no_profile(device)
    _require_grouped(framework, "behaviour", BEHAVIOUR, "cluster.framework")
    _require_grouped(device, "calibration", CONSTANTS, "cluster.device")


def _require_grouped(given: object, section: str, places: Mapping[str, str], where: str) -> None:
    """Refuse entries that stood directly in a section and are grouped by subject now."""
    entries = given.get(section) if isinstance(given, Mapping) else None
    for name in entries if isinstance(entries, Mapping) else ():
        place = places.get(name, name)
        if place != name:
            raise SpecError(f"{where}.{section}.{name}", f"is called {where}.{section}.{place} now.")


def _require_release(framework: object) -> None:
    """Refuse the name that a software stack had in 0.1, where nothing is called so today."""
    name = _base(framework)
    if name in FRAMEWORKS and name not in catalog.framework_names():
        where = "cluster.framework.base" if isinstance(framework, Mapping) else "cluster.framework"
        raise SpecError(where, f"{shown(name)} has another name now.", _framework(framework))


def _base(framework: object) -> object:
    """The name that an entry is, or starts from."""
    name = framework.get("base") if isinstance(framework, Mapping) else framework
    return name if isinstance(name, str) else None


def _framework(software: object) -> str:
    """What to write instead of a stack of 0.1; empty where nobody knows it."""
    name = _base(software)
    if name not in FRAMEWORKS:
        return ""
    entry = "framework.base" if isinstance(software, Mapping) else "framework"
    return f"Write {entry}: {FRAMEWORKS[str(name)]} instead of {shown(name)}."


def require_no_profile(device: object) -> None:
    """Refuse a device whose constants are in ``profile``, as in 0.1; errors as in :func:`require_todays_names`."""
    if not isinstance(device, Mapping):
        return
    if UPDATES in device:
        raise SpecError(f"cluster.device.{UPDATES}", "has another place now.", f"Write {OF_DEVICE[UPDATES]}.")
    if "profile" not in device:
        return
    profile = device["profile"]
    name = next(iter(profile), "") if isinstance(profile, Mapping) else ""
    if not name:
        raise SpecError("cluster.device.profile", "has another place now.", PLACES)
    if name in PROFILE:
        raise SpecError(f"cluster.device.profile.{name}", "has another place now.", PROFILE[name])
    nearest = did_you_mean(name, [*CONSTANTS.values(), *BEHAVIOUR])
    hint = nearest if nearest.startswith("Did") else PLACES
    raise SpecError(f"cluster.device.profile.{name}", "no such entry, neither before nor now.", hint)
