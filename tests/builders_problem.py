"""Small whole problems; a test names only what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from constraints.rule import Rule
from costmodel.facts.device import EquippedDevice, HostProcessors
from costmodel.facts.model import Model
from costmodel.facts.reliability import Reliability
from costmodel.tables import Facts, tabulate
from planner.jobs.limits import SearchLimits
from planner.jobs.problem import Problem
from tests.builders import a_model
from tests.builders_cluster import GB, a_cluster, a_device, a_workload, achieved


def a_problem(
    model: Model | None = None,
    *,
    num_devices: int = 8,
    device: EquippedDevice | None = None,
    workload: Mapping[str, Any] | None = None,
    top: int = 1,
    **limits: Any,
) -> Problem:
    """A small model on a few timed devices; ``limits`` are fields of SearchLimits."""
    cluster = a_cluster(num_devices, **_fields(device or a_timed_device()))
    return Problem(
        name="test-problem",
        facts=Facts(
            model=model or a_model(),
            cluster=cluster,
            workload=a_workload(**{"global_batch_size": 16, "sequence_length": 64, **(workload or {})}),
        ),
        reliability=Reliability(failures_per_node_day=0.01, mttr_seconds=300, checkpoint_seconds=10),
        recovery=(),
        search=limits_of(**limits),
        objective="step_time",
        top=top,
    )


def is_allowed(facts: Facts, decisions: Mapping[str, Any], rules: Iterable[Rule]) -> bool:
    """Tell if no rule forbids a strategy; most of what is drawn breaks one of the first, and is asked no more."""
    return all(tabulate(rule, facts, decisions) for rule in rules)


def limits_of(
    *,
    pin: Mapping[str, int] | None = None,
    allow: Mapping[str, tuple[int, ...]] | None = None,
    forbid: Sequence[Mapping[str, Any]] = (),
    memory_headroom_bytes: float = 0.0,
    framework_rules: bool = True,
    time_limit_seconds: float = 60.0,
    **others: Any,
) -> SearchLimits:
    """No limits but these."""
    return SearchLimits(
        pin=pin or {},
        allow=allow or {},
        forbid=tuple(forbid),
        memory_headroom_bytes=memory_headroom_bytes,
        framework_rules=framework_rules,
        time_limit_seconds=time_limit_seconds,
        **others,
    )


def a_timed_device(**changes: Any) -> EquippedDevice:
    """The test device with efficiencies, and with overlaps that slow both sides down, so that none is free."""
    profile = achieved(
        matmul_efficiency={"bf16": 0.7},
        attention_efficiency=0.5,
        memory_efficiency=0.8,
        kernel_gap_seconds=2e-6,
        overlap_slowdown_compute=1.05,
        overlap_slowdown_communication=1.2,
    )
    facts: dict[str, Any] = {
        **profile,
        "runtime_bytes": 0.1 * GB,
        "host_processors": HostProcessors(memory_bandwidth=80 * GB),
    }
    return a_device(**(facts | changes))


def _fields(device: EquippedDevice) -> dict[str, Any]:
    return {name: getattr(device, name) for name in device.__dataclass_fields__}
