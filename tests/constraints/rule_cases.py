"""Cases of all rules, read from ``tests/data/rule_cases.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from constraints import TARGET_RULES, family
from constraints.rule import FieldValues, Rule
from constraints.rules import context, frameworks, physics, releases, targets
from constraints.rules.exports import EXPORTS
from costmodel import catalog
from costmodel.facts.calibration import MeasuredRate
from costmodel.facts.device import Cluster, EquippedDevice, Sites
from costmodel.facts.framework import OptimizerOffload, Settings
from costmodel.facts.workload import SequenceLengths, Workload
from costmodel.strategy import DECISIONS, ENUMS, GRAPH_MODULES, Recompute, StageLayout
from costmodel.tables import Facts, tabulate
from tests.builders_cluster import GB, a_cluster, a_device, a_strategy, a_workload, achieved
from tests.cases import read_table
from tests.constraints import models

ROWS = [one for target in EXPORTS.values() for row in target.fields.values() for one in row]
ASKED = (*(rule for rules in TARGET_RULES.values() for rule in rules), *targets.OPTION_RULES, *ROWS)
OWN = tuple(dict.fromkeys(rule for rule in ASKED if not isinstance(rule, FieldValues) and family(rule) == "targets"))
"""Rules of targets."""

OF_FACTS = (
    targets.early_hybrids_have_no_experts,
    targets.cores_from_0_18_compute_the_loss_themselves,
    targets.early_cores_have_the_options,
    targets.gradients_in_fp16_are_of_fp16_weights,
    targets.delayed_scaling_has_no_wide_layers,
    targets.mtp_has_no_learned_positions,
    targets.bridge_reads_fp8_attention_of_tensors,
)
"""Rules that hold of every strategy of a job, or of none: they have tests of their own."""

FAMILIES = {one.__name__.rpartition(".")[2]: one for one in (context, frameworks, physics, releases, targets)}

NO_BYTES = {"device_bytes": 0.0, "host_bytes": 0.0, "memory_headroom_bytes": 0.0}

ATTENTION_OF_4096_TOKENS = MeasuredRate(kinds=("matmul", "attention"), flops_per_second=1e14, rows=4096)

CLUSTERS = {
    "USUAL": a_cluster(),
    "TWO_SITES": replace(a_cluster(), sites=Sites(count=2, bandwidth=None)),
    "MEASURED": a_cluster(**achieved(a_device(), times="measured", measured_rates=(ATTENTION_OF_4096_TOKENS,))),
}

WORKLOADS = {
    "USUAL": a_workload(),
    "DEALT": a_workload(lengths=SequenceLengths(lengths=(1024, 4096), counts=(4.0, 1.0), rank_tokens=1024)),
    "SAMPLES": a_workload(lengths=SequenceLengths(lengths=(512,), counts=(1.0,))),
    "SMALL": a_workload(global_batch_size=64),
}

IN_EIGHTS = a_cluster(**achieved(a_device(), sharding_ranks=8))


def on(framework: str) -> Cluster:
    """The test devices under a release of the catalog."""
    return replace(a_cluster(), framework=catalog.framework(framework))


def told(**settings: Any) -> Cluster:
    """The test devices under some settings."""
    return replace(a_cluster(), settings=Settings(**settings))


def on_core(release: str, **settings: Any) -> Cluster:
    """The test devices with a release of Megatron-LM."""
    return replace(told(**settings), unknown_release=f"megatron-lm-{release}")


def in_precision(name: str) -> Workload:
    """The test workload in a precision."""
    return a_workload(precision=catalog.precision(name))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule with decisions that it allows and decisions that it refuses."""

    rule: Rule
    given: Facts
    allowed: dict[str, Any]
    refused: dict[str, Any]


def read_cases() -> list[Case]:
    """Read the file."""
    return [read_case(**row) for row in read_table("rule_cases")]


def read_case(
    rule: str,
    allowed: dict[str, Any],
    refused: dict[str, Any],
    model: str = "DENSE",
    cluster: str = "USUAL",
    workload: str = "USUAL",
    precision: str = "",
    **changes: Any,
) -> Case:
    """Read an entry: changes are those of the cluster."""
    given = Facts(
        model=getattr(models, model),
        cluster=change(CLUSTERS[cluster], **changes),
        workload=replace(WORKLOADS[workload], **({"precision": catalog.precision(precision)} if precision else {})),
    )
    return Case(rule=find_rule(rule), given=given, allowed=every(allowed), refused=every(refused))


def change(
    cluster: Cluster,
    *,
    device: Mapping[str, Any] = MappingProxyType({}),
    framework: str = "",
    release: str = "",
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Cluster:
    """Change facts or behaviour of the devices, the framework, its release or its settings."""
    if device:
        known = {one.name for one in fields(EquippedDevice)}
        facts = {name: value for name, value in device.items() if name in known}
        behaviour = {name: value for name, value in device.items() if name not in known}
        if "offload" in behaviour:
            behaviour["offload"] = OptimizerOffload(**behaviour["offload"])
        cluster = a_cluster(**facts, **achieved(a_device(), **behaviour))
    if framework:
        cluster = on(framework)
    return replace(cluster, settings=Settings(**settings), unknown_release=release)


def find_rule(name: str) -> Rule:
    """Find a rule by its family and name."""
    family, _, own = name.partition(".")
    return getattr(FAMILIES[family], own)


def named(decisions: Mapping[str, Any]) -> dict[str, Any]:
    """Decisions whose values are written by name."""
    return {name: ENUMS[name].named(value) if name in ENUMS else value for name, value in decisions.items()}


def every(changes: dict[str, Any]) -> dict[str, Any]:
    """Every decision that a rule can name, changed as an entry says."""
    pipeline = {name: value for name, value in changes.items() if name in ("pp", "vpp")}
    layout = a_layout(**changes["layout"]) if "layout" in changes else None
    return a_strategy(**pipeline).decisions() | NO_BYTES | named(changes) | {"layout": layout}


def a_layout(
    layers: Sequence[int] = (4, 4), recompute: Sequence[str] = ("none", "none"), full_layers: Sequence[int] = (0, 0)
) -> StageLayout:
    """Two stages."""
    return StageLayout(
        layers=tuple(layers),
        recompute=tuple(map(Recompute.named, recompute)),
        full_layers=tuple(full_layers),
        activation_offload=(False, False),
    )


@cache
def random_decisions(rows: int) -> dict[str, np.ndarray]:
    """Random values of every decision, most strategies forbidden."""
    rng = np.random.default_rng(7)
    degrees = {name: rng.choice([1, 2, 3, 4, 8, 12, 16], rows) for name in DECISIONS[:9]}
    enums = {name: rng.integers(0, len(kind), rows) for name, kind in ENUMS.items()}
    flags = {name: rng.random(rows) < 0.5 for name in DECISIONS[9:] if name not in enums}
    enums["cuda_graphs"] = rng.choice([0, 1, *(2 * rng.integers(1, 1 << len(GRAPH_MODULES), 8))], rows)
    return degrees | enums | flags | {name: rng.random(rows) * 300 * GB for name in NO_BYTES}


@cache
def random_rows(rows: int) -> list[dict[str, Any]]:
    """The strategies of :func:`random_decisions`, one by one."""
    table = random_decisions(rows)
    return [{name: values[row].item() for name, values in table.items()} for row in range(rows)]


def in_a_table_and_alone(rule: Rule, given: Facts, rows: int) -> tuple[list[bool], list[bool]]:
    """Answers of a rule on random strategies at once, and on one after the other."""
    answers = np.broadcast_to(tabulate(rule, given, random_decisions(rows)), rows)
    assert answers.dtype == np.bool_
    return answers.tolist(), [bool(tabulate(rule, given, one)) for one in random_rows(rows)]
