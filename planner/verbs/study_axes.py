"""The entries of a job that each study changes, with the values that are studied unless others are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from costmodel.facts.reliability import Reliability
from costmodel.reliability import change_checkpoint, scale_reliability
from planner.jobs.checkpoints import CheckpointSchedule, schedule_checkpoints, schedule_every, schedules_around
from planner.jobs.entries import LLAMA_3_FAILURES_PER_NODE_DAY
from planner.jobs.problem import Problem
from planner.results import Plan
from planner.search.domains import num_spares
from planner.verbs.study_points import Axis

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiples of the job's own value that are studied."""

DOMAINS = (8, 16, 32, 64, 72, 128, 144, 256)
"""Devices of scale-up domains that are built or announced: HGX, NVL16 to NVL144, supernodes."""

MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Sequences per micro-batch that are studied."""

NUM_INTERVALS = 12
"""Checkpoint intervals that are studied, at most, besides the best one."""


def _multiply(value: float) -> list[float]:
    """Return multiples of a value; those of a whole number that are whole."""
    found = [value * factor for factor in FACTORS]
    return [int(one) for one in found if one.is_integer() and one >= 1] if isinstance(value, int) else found


def _doublings(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


# --- schedule ----------------------------------------------------------------------------------------------
def _vpp_values(problem: Problem, plan: Plan | None) -> Sequence[float]:
    assert plan is not None, "the study needs a plan"
    most = (problem.facts.model.num_layers + 2) // plan.strategy.pp
    return sorted({*_doublings(most), plan.strategy.vpp})


def _pp_values(problem: Problem, plan: Plan | None) -> Sequence[float]:
    assert plan is not None, "the study needs a plan"
    devices, slots = problem.facts.cluster.num_devices, problem.facts.model.num_layers + 2
    values = (one for one in _doublings(min(devices, slots)) if devices % one == 0)
    return sorted({*values, plan.strategy.pp})


def _mbs_values(problem: Problem, plan: Plan | None) -> Sequence[float]:
    batch = problem.facts.workload.global_batch_size
    return [one for one in MICRO_BATCHES if batch % one == 0]


def _one_device(problem: Problem, plan: Plan | None) -> str:
    return "the job has one device." if problem.facts.cluster.num_devices == 1 else ""


def _no_pipeline(problem: Problem, plan: Plan | None) -> str:
    return "the plan has no pipeline (PP1)." if plan is not None and plan.strategy.pp == 1 else ""


SCHEDULE = (
    Axis(
        name="vpp",
        label="VPP, model chunks per pipeline rank",
        entry="search.pin.vpp",
        defaults=_vpp_values,
        own=lambda problem, plan: plan.strategy.vpp if plan else None,
        refusal=_no_pipeline,
    ),
    Axis(
        name="pp",
        label="PP, pipeline ranks",
        entry="search.pin.pp",
        defaults=_pp_values,
        own=lambda problem, plan: plan.strategy.pp if plan else None,
        refusal=_one_device,
    ),
    Axis(
        name="mbs",
        label="MBS, sequences per micro-batch",
        entry="search.pin.mbs",
        defaults=_mbs_values,
        own=lambda problem, plan: plan.strategy.mbs if plan else None,
    ),
)


# --- reliability -------------------------------------------------------------------------------------------
def reschedule(
    plan: Plan,
    problem: Problem,
    schedule: Callable[..., CheckpointSchedule] = schedule_checkpoints,
    **others: int,
) -> Plan:
    """Return a plan with the checkpoints of a job on the plan's cluster, which its step does not depend on."""
    own = next(one for one in problem.each if one.settings == plan.problem.settings)
    reliability = scale_reliability(plan.cluster, own.reliability)
    return _schedule_with(replace(plan, problem=own), reliability, schedule, **others)


def _schedule_with(
    plan: Plan,
    reliability: Reliability,
    schedule: Callable[..., CheckpointSchedule] = schedule_checkpoints,
    **others: int,
) -> Plan:
    found = schedule(plan.cluster, plan.facts.workload, reliability, step_seconds=plan.step_seconds, **others)
    return replace(plan, schedule=found, reliability=reliability)


def _change_reliability(plan: Plan, problem: Problem, value: float) -> Plan:
    return reschedule(plan, problem)


def _change_interval(plan: Plan, problem: Problem, value: float) -> Plan:
    return reschedule(plan, problem, schedule_every, interval_steps=int(value))


def _change_checkpoint(plan: Plan, problem: Problem, value: float) -> Plan:
    return _schedule_with(plan, change_checkpoint(plan.reliability, checkpoint_seconds=value))


def _change_nodes(plan: Plan, problem: Problem, value: float) -> Plan:
    """Schedule the checkpoints on another number of nodes, whose failures the same step must survive."""
    num_devices = int(value) * plan.cluster.device.devices_per_node
    facts = replace(plan.facts, cluster=replace(plan.cluster, num_devices=num_devices))
    job = problem.change_cluster(num_devices=num_devices).change_limits(max_devices=None)  # none of them idles
    return reschedule(replace(plan, facts=facts), job)


def _interval_values(problem: Problem, plan: Plan | None) -> Sequence[float]:
    assert plan is not None, "the study needs a plan"
    around = schedules_around(
        plan.cluster, plan.facts.workload, plan.reliability, step_seconds=plan.step_seconds, best=plan.schedule
    )
    steps = [one.interval_steps for one in around]
    return sorted({*steps[:: max(1, len(steps) // NUM_INTERVALS)], plan.schedule.interval_steps})


def _failure_rates(problem: Problem, plan: Plan | None) -> Sequence[float]:
    return _multiply(float(problem.reliability.failures_per_node_day or LLAMA_3_FAILURES_PER_NODE_DAY))


def _refuse_no_failures(problem: Problem, plan: Plan | None) -> str:
    return "" if problem.reliability.failures_per_node_day else "reliability.failures_per_node_day is 0."


def _drop_recovery(problem: Problem, value: float) -> Sequence[str]:
    """Drop the ways to recover, whose mean the value replaces."""
    return ("reliability.recovery=null",) if "recovery" in (problem.document.get("reliability") or {}) else ()


def _checkpoint_seconds(problem: Problem, plan: Plan | None) -> float:
    assert plan is not None, "the study needs a plan"
    return plan.checkpoint_seconds


RELIABILITY = (
    Axis(
        name="interval",
        label="steps between checkpoints",
        entry="",
        defaults=_interval_values,
        own=lambda problem, plan: plan.schedule.interval_steps if plan else None,
        plan=_change_interval,
        is_read=False,
        refusal=_refuse_no_failures,
    ),
    Axis(
        name="failures",
        label="failures per node and day",
        entry="reliability.failures_per_node_day",
        defaults=_failure_rates,
        own=lambda problem, plan: problem.reliability.failures_per_node_day,
        plan=_change_reliability,
    ),
    Axis(
        name="nodes",
        label="nodes",
        entry="",
        defaults=lambda problem, plan: _multiply(problem.facts.cluster.num_nodes),
        own=lambda problem, plan: problem.facts.cluster.num_nodes,
        plan=_change_nodes,
        is_read=False,
        refusal=_refuse_no_failures,
    ),
    Axis(
        name="mttr",
        label="MTTR, seconds",
        entry="reliability.mttr_seconds",
        defaults=lambda problem, plan: _multiply(float(problem.reliability.mttr_seconds)),
        own=lambda problem, plan: problem.reliability.mttr_seconds,
        plan=_change_reliability,
        also=_drop_recovery,
        refusal=_refuse_no_failures,
    ),
    Axis(
        name="checkpoint",
        label="seconds lost per checkpoint",
        entry="reliability.checkpoint_seconds",
        defaults=lambda problem, plan: _multiply(_checkpoint_seconds(problem, plan)),
        own=_checkpoint_seconds,
        plan=_change_checkpoint,
        is_read=False,
        refusal=_refuse_no_failures,
    ),
)


# --- the cluster -------------------------------------------------------------------------------------------
def _sizes(problem: Problem, plan: Plan | None) -> Sequence[float]:
    """Return multiples of the devices that fill whole nodes besides the spare ones, or that fit into one node."""
    node, spares = problem.facts.cluster.device.devices_per_node, num_spares(problem)
    sizes = _multiply(int(_num_devices(problem, plan)))
    return [one for one in sizes if (one > spares if one % node == 0 else one < node and not spares)]


def _proportional_sizes(problem: Problem, plan: Plan | None) -> Sequence[float]:
    batch, devices = problem.facts.workload.global_batch_size, _num_devices(problem, plan)
    return [one for one in _sizes(problem, plan) if batch * one % devices == 0]


def _proportional_batch(problem: Problem, value: float) -> Sequence[str]:
    """Return the batch in proportion to the devices; one that is not whole is refused by its entry."""
    batch = problem.facts.workload.global_batch_size * value / _num_devices(problem, None)
    return (f"training.global_batch_size={int(batch) if batch.is_integer() else batch}",)


def _num_devices(problem: Problem, plan: Plan | None) -> float:
    """Return the devices of the job, the spare ones included."""
    return problem.facts.cluster.num_devices + num_spares(problem)


def _refuse_limits(problem: Problem, plan: Plan | None) -> str:
    return "" if problem.search.max_devices is None else "search.max_devices gives the devices of its plans."


SCALE = (
    Axis(
        name="strong",
        label="devices, the batch unchanged",
        entry="cluster.num_devices",
        defaults=_sizes,
        own=_num_devices,
        is_scale=True,
        refusal=_refuse_limits,
    ),
    Axis(
        name="weak",
        label="devices, the batch in proportion",
        entry="cluster.num_devices",
        defaults=_proportional_sizes,
        own=_num_devices,
        also=_proportional_batch,
        is_scale=True,
        refusal=_refuse_limits,
    ),
)


def _domain_values(problem: Problem, plan: Plan | None) -> Sequence[float]:
    cluster = problem.facts.cluster
    node = cluster.device.devices_per_node
    known = (one for one in DOMAINS if one % node == 0 or node % one == 0)
    return sorted({*(one for one in known if one <= cluster.num_devices), cluster.scale_up_size})


def _refuse_networks(problem: Problem, plan: Plan | None) -> str:
    is_given = problem.machine is not None and problem.machine.section.networks is not None
    return "cluster.networks gives each level its bandwidth." if is_given else _one_device(problem, plan)


def _one_domain(problem: Problem, plan: Plan | None) -> str:
    if given := _refuse_networks(problem, plan):
        return given
    cluster = problem.facts.cluster
    if len(cluster.device.networks) == 1 or cluster.num_devices <= cluster.scale_up_size:
        return f"all {cluster.num_devices:,} devices are in one scale-up domain of {cluster.scale_up_size:,}."
    return ""


NODES = (
    Axis(
        name="scale_up",
        label="devices of a scale-up domain",
        entry="cluster.scale_up_size",
        defaults=_domain_values,
        own=lambda problem, plan: problem.facts.cluster.scale_up_size,
        refusal=_one_device,
    ),
)


def _nominal(level: int) -> Callable[[Problem, Plan | None], float]:
    """Return the reader of the nominal bandwidth of a level of networks."""

    def read(problem: Problem, plan: Plan | None) -> float:
        assert problem.machine is not None, "a job that was read has its parts"
        from planner.jobs.cluster import device_of

        section = problem.machine.section
        networks = section.networks or device_of(problem.machine.device).networks
        given = (section.scale_up_bandwidth, section.internode_bandwidth)[level]
        return given or networks[level].bandwidth

    return read


def _bandwidths(level: int) -> Callable[[Problem, Plan | None], Sequence[float]]:
    return lambda problem, plan: _multiply(float(_nominal(level)(problem, plan)))


NETWORK = (
    Axis(
        name="internode",
        label="bandwidth between nodes, bytes per second and device",
        entry="cluster.internode_bandwidth",
        defaults=_bandwidths(-1),
        own=_nominal(-1),
        refusal=_one_domain,
    ),
    Axis(
        name="scale_up",
        label="bandwidth inside a scale-up domain, bytes per second and device",
        entry="cluster.scale_up_bandwidth",
        defaults=_bandwidths(0),
        own=_nominal(0),
        refusal=_refuse_networks,
    ),
)


# --- the training ------------------------------------------------------------------------------------------
BATCH = (
    Axis(
        name="batch",
        label="sequences per step",
        entry="training.global_batch_size",
        defaults=lambda problem, plan: _multiply(problem.facts.workload.global_batch_size),
        own=lambda problem, plan: problem.facts.workload.global_batch_size,
    ),
)

SEQUENCE = (
    Axis(
        name="sequence",
        label="tokens per sequence",
        entry="training.sequence_length",
        defaults=lambda problem, plan: _multiply(problem.facts.workload.sequence_length),
        own=lambda problem, plan: problem.facts.workload.sequence_length,
    ),
)


# --- several sites -----------------------------------------------------------------------------------------
LOCAL_STEPS = (1, 10, 50, 100, 500)
"""Steps between synchronizations that are studied: DiLoCo, arXiv:2311.08105, has 50 to 2,000."""


def _one_site(problem: Problem, plan: Plan | None) -> str:
    return "" if problem.facts.cluster.sites else ONE_SITE


ONE_SITE = (
    "its devices are in one site. Write cluster.sites, such as cluster.sites.count=2 cluster.sites.bandwidth=10Gbit/s "
    "cluster.sites.local_steps=100."
)
"""Refusal of a job without sites, with an example to write."""


def _site_links(problem: Problem, plan: Plan | None) -> str:
    sites = problem.facts.cluster.sites
    is_unlimited = sites is not None and sites.bandwidth is None
    return _one_site(problem, plan) or ("cluster.sites.bandwidth is unlimited." if is_unlimited else "")


def _sites_value(name: str) -> Callable[[Problem, Plan | None], float | None]:
    return lambda problem, plan: getattr(problem.facts.cluster.sites, name, None)


def _site_counts(problem: Problem, plan: Plan | None) -> Sequence[float]:
    return [one for one in range(1, 9) if problem.facts.cluster.num_devices % one == 0]


def _one_stream(problem: Problem, value: float) -> Sequence[str]:
    """Send everything at once where each step is synchronized."""
    return ("cluster.sites.streams=1",) if value == 1 else ()


def _no_sites(problem: Problem, value: float) -> Sequence[str]:
    """Drop the section where all devices are in one site, the baseline of the others."""
    return ("cluster.sites=null",) if value == 1 else ()


SITES = (
    Axis(
        name="bandwidth",
        label="bandwidth of a site to another one, bytes per second",
        entry="cluster.sites.bandwidth",
        defaults=lambda problem, plan: _multiply(_sites_value("bandwidth")(problem, plan) or 0.0),
        own=_sites_value("bandwidth"),
        refusal=_site_links,
    ),
    Axis(
        name="local_steps",
        label="steps between two synchronizations of the weights (1: gradients in every step)",
        entry="cluster.sites.local_steps",
        defaults=lambda problem, plan: LOCAL_STEPS,
        own=_sites_value("local_steps"),
        also=_one_stream,
        refusal=_one_site,
    ),
    Axis(
        name="sites",
        label="sites that share the devices",
        entry="cluster.sites.count",
        defaults=_site_counts,
        own=_sites_value("count"),
        also=_no_sites,
        refusal=_one_site,
    ),
)

AXES: Mapping[str, tuple[Axis, ...]] = {
    "schedule": SCHEDULE,
    "reliability": RELIABILITY,
    "scale": SCALE,
    "nodes": NODES,
    "network": NETWORK,
    "batch": BATCH,
    "sequence": SEQUENCE,
    "sites": SITES,
}
"""The entries that each study changes."""
