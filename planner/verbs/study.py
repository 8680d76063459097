"""The verb ``study``: one job changed in one thing, each point a proven plan."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from costmodel.errors import SpecError, did_you_mean
from costmodel.events import log_progress
from costmodel.facts.reliability import Reliability
from costmodel.models.flops import linearity_fraction
from costmodel.quantities import COUNT, RATE, SECONDS, Kind, finite
from costmodel.record import record
from costmodel.reliability import change_checkpoint, scale_reliability
from costmodel.validation import require_type, shown
from planner.jobs.checkpoints import CheckpointSchedule, schedule_checkpoints, schedule_every, schedules_around
from planner.jobs.entries import LLAMA_3_FAILURES_PER_NODE_DAY, kinds
from planner.jobs.line import PIN
from planner.jobs.problem import Problem, load
from planner.results import EXIT_CODES, LOCAL_STEPS_CAVEAT, Displayed, Plan, PlanReport
from planner.search.branch_and_bound import Status
from planner.search.domains import num_held, num_spares
from planner.verbs.plan import plan
from planner.verbs.study_names import FEATURES, STUDIES

if TYPE_CHECKING:
    from planner.verbs.study_features import Feature


Written = TypeVar("Written")
"""A plan: as it was found, or as a report writes it."""


@record(frozen=True, kw_only=True, slots=True)
class Point(Generic[Written]):
    """
    The fastest plan for one value of an entry.

    Parameters
    ----------
    value
        The value as a number, in the entry's base unit.
    text
        The value as it was written.
    status
        Status of its search: optimal and infeasible are proven.
    reason
        Reason that there is no plan, besides its status; empty for others.
    linearity_fraction
        Throughput of one device over that of the first point, MoFa equation (45); null where the scale is not studied.
    plan
        The plan; null where there is none.
    """

    value: float
    text: str
    status: Status
    reason: str = ""
    linearity_fraction: float | None = None
    plan: Written | None


@record(frozen=True, kw_only=True, slots=True)
class Series(Generic[Written]):
    """
    The points of one entry of the job.

    Parameters
    ----------
    name
        Word of the entry on the command line.
    label
        Words of the entry, with its unit.
    own
        The job's own value; null where it is not among the points.
    points
        Points in ascending order of their values.
    """

    name: str
    label: str
    own: float | None
    points: tuple[Point[Written], ...]


@record(frozen=True, kw_only=True, slots=True)
class StudyReport(Displayed):
    """
    A study of a job.

    Parameters
    ----------
    name
        Name of the study.
    problem
        The job.
    base
        Fastest plan of the job itself; None where there is none.
    status
        Status of its search.
    series
        The points of each entry that was changed.
    features
        Gains of the features of the plan, and costs of the others; empty in other studies.
    notes
        Sentences on assumptions and on parts that do not apply.
    """

    name: str
    problem: Problem
    base: Plan | None
    status: Status
    series: tuple[Series[Plan], ...] = ()
    features: tuple[Feature, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: every point is proven; 1: no point has a plan; 3: a time limit came before a proof."""
        statuses = [point.status for one in self.series for point in one.points]
        statuses += [one.status for one in self.features]
        if any(EXIT_CODES[status] == EXIT_CODES["unknown"] for status in (self.status, *statuses)):
            return EXIT_CODES["unknown"]
        found = self.features or any(point.plan for one in self.series for point in one.points)
        return 0 if found else EXIT_CODES["infeasible"]


Own: TypeAlias = Callable[[Problem, Plan | None], float | None]
"""Reader of the job's own value, which its plan may have."""


@record(frozen=True, kw_only=True, slots=True)
class Axis:
    """
    One entry of a job that a study changes.

    Parameters
    ----------
    name, label
        As in :class:`Series`.
    entry
        Dotted name of the entry, which decides on units; empty for whole numbers.
    defaults
        Values that are studied unless others are given; None: multiples of the job's own value.
    plan
        Plan of the job with a value; None: the job is searched anew.
    also
        Further entries that follow from the value, as ``key=value``.
    is_read
        True where the job is read anew with the value; False where ``plan`` alone changes.
    own
        The job's own value.
    is_scale
        True where the points are compared by their linearity.
    refusal
        Sentence on jobs to which the axis does not apply; empty for others.
    """

    name: str
    label: str
    entry: str
    own: Own
    defaults: Callable[[Problem, Plan | None], Sequence[float | str]] | None = None
    plan: Callable[[Plan, Problem, float], Plan] | None = None
    also: Callable[[Problem, float], Sequence[str]] = lambda problem, value: ()
    is_read: bool = True
    is_scale: bool = False
    refusal: Callable[[Problem, Plan | None], str] = lambda problem, plan: ""


FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiples of the job's own value that are studied."""

DOMAINS = (8, 16, 32, 64, 72, 128, 144, 256)
"""Devices of scale-up domains that are built or announced: HGX, NVL16 to NVL144, supernodes."""

MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Sequences per micro-batch that are studied."""

NUM_INTERVALS = 12
"""Checkpoint intervals that are studied, at most, besides the best one."""


def _multiply(value: float | None, kind: Kind = COUNT) -> list[float]:
    """Return multiples of a value; those of a whole number that are whole."""
    found = [(value or 0.0) * factor for factor in FACTORS]
    is_whole = isinstance(value, int) and kind not in (SECONDS, RATE)
    return [int(one) for one in found if one.is_integer() and one >= 1] if is_whole else found


def _job_value(path: str) -> Own:
    """Return the reader of a value of the job, by its dotted name."""
    read = attrgetter(path)
    return lambda problem, plan: read(problem)


def _plan_value(path: str) -> Own:
    """Return the reader of a value of the job's plan, by its dotted name; None where there is no plan."""
    read = attrgetter(path)
    return lambda problem, plan: read(plan) if plan else None


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
        own=_plan_value("strategy.vpp"),
        refusal=_no_pipeline,
    ),
    Axis(
        name="pp",
        label="PP, pipeline ranks",
        entry="search.pin.pp",
        defaults=_pp_values,
        own=_plan_value("strategy.pp"),
        refusal=_one_device,
    ),
    Axis(
        name="mbs",
        label="MBS, sequences per micro-batch",
        entry="search.pin.mbs",
        defaults=_mbs_values,
        own=_plan_value("strategy.mbs"),
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


RELIABILITY = (
    Axis(
        name="interval",
        label="steps between checkpoints",
        entry="",
        defaults=_interval_values,
        own=_plan_value("schedule.interval_steps"),
        plan=_change_interval,
        is_read=False,
        refusal=_refuse_no_failures,
    ),
    Axis(
        name="failures",
        label="failures per node and day",
        entry="reliability.failures_per_node_day",
        defaults=_failure_rates,
        own=_job_value("reliability.failures_per_node_day"),
        plan=_change_reliability,
    ),
    Axis(
        name="nodes",
        label="nodes",
        entry="",
        own=_job_value("facts.cluster.num_nodes"),
        plan=_change_nodes,
        is_read=False,
        refusal=_refuse_no_failures,
    ),
    Axis(
        name="mttr",
        label="MTTR, seconds",
        entry="reliability.mttr_seconds",
        own=_job_value("reliability.mttr_seconds"),
        plan=_change_reliability,
        also=_drop_recovery,
        refusal=_refuse_no_failures,
    ),
    Axis(
        name="checkpoint",
        label="seconds lost per checkpoint",
        entry="reliability.checkpoint_seconds",
        own=_plan_value("checkpoint_seconds"),
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
        own=_job_value("facts.cluster.scale_up_size"),
        refusal=_one_device,
    ),
)


def _nominal(level: int) -> Own:
    """Return the reader of the nominal bandwidth of a level of networks."""

    def read(problem: Problem, plan: Plan | None) -> float:
        assert problem.machine is not None, "a job that was read has its parts"
        from planner.jobs.cluster import device_of

        section = problem.machine.section
        networks = section.networks or device_of(problem.machine.device).networks
        given = (section.scale_up_bandwidth, section.internode_bandwidth)[level]
        return given or networks[level].bandwidth

    return read


NETWORK = (
    Axis(
        name="internode",
        label="bandwidth between nodes, bytes per second and device",
        entry="cluster.internode_bandwidth",
        own=_nominal(-1),
        refusal=_one_domain,
    ),
    Axis(
        name="scale_up",
        label="bandwidth inside a scale-up domain, bytes per second and device",
        entry="cluster.scale_up_bandwidth",
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
        own=_job_value("facts.workload.global_batch_size"),
    ),
)

SEQUENCE = (
    Axis(
        name="sequence",
        label="tokens per sequence",
        entry="training.sequence_length",
        own=_job_value("facts.workload.sequence_length"),
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


def _sites_value(name: str) -> Own:
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


OF_A_PLAN = (FEATURES, "schedule", "reliability")
"""Studies of a plan: without one there is nothing to study."""

Values: TypeAlias = Mapping[str, Sequence[Any]]
Texts: TypeAlias = Mapping[float, str]
"""Texts of the values of one entry, ascending."""
Asked: TypeAlias = Mapping[str, Texts]
"""Values that were asked for, by name of the entry."""


def study(
    job: Problem | str | os.PathLike[str] | Mapping[str, Any],
    name: str,
    values: Values | None = None,
    *,
    step_seconds: float | None = None,
) -> StudyReport:
    """
    Change a job in one thing at a time, and plan it each time.

    Parameters
    ----------
    job
        The job; one that is not yet read as :func:`planner.load` takes it, such as a path or a mapping.
    name
        Name of the study, one of :data:`planner.verbs.study_names.STUDIES`.
    values
        Values by name of the entry, such as ``{"vpp": [1, 2, 4]}``; only these entries are studied. Default: all
        entries of the study with usual values.
    step_seconds
        Measured step that the study of reliability counts with instead of the plan's.

    Raises
    ------
    SpecError
        If the study, an entry or a value is unknown or impossible, fewer than two values are given, or the study does
        not apply to the job.

    >>> from planner import load
    >>> job = load(
    ...     {
    ...         "model": "llama3-8b",
    ...         "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    ...         "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
    ...     }
    ... )
    >>> (series,) = study(job, "schedule", {"mbs": [1, 2]}).series
    >>> [point.plan.strategy.mbs for point in series.points]
    [1, 2]
    """
    problem = job if isinstance(job, Problem) else load(job)
    asked = _read_study(problem, name, values or {})
    _require_step(name, step_seconds)
    base = plan(problem.change_limits(simplest=False), certified=False, explained=False)
    best = base.plans[0] if base.plans else None
    if step_seconds is not None:
        best = _replace_step(problem, best, step_seconds)
    found = StudyReport(name=name, problem=problem, base=best, status=base.outcome.status)
    if best is None and name in OF_A_PLAN:
        return replace(found, notes=(NO_PLAN if found.status is Status.INFEASIBLE else NO_TIME,))
    if name == FEATURES:
        from planner.verbs.study_features import study_features

        assert best is not None, "a study of features has a plan"
        return replace(found, features=tuple(study_features(problem, best)))
    axes, notes = _choose_axes(problem, best, name, asked)
    if name == "sites":
        notes = (*notes, LOCAL_STEPS_CAVEAT)
    series = tuple(_study_axis(axis, problem, base, best, asked.get(axis.name)) for axis in axes)
    return replace(found, series=series, notes=notes)


NO_PLAN = "no strategy fits: 'planner explain' with the same job says why."
"""Note on a job for which it is proven that nothing fits."""

NO_TIME = "time ran out before a strategy was found: raise --time-limit."
"""Note on a job whose search ended without a plan and without a proof."""


def _read_study(problem: Problem, name: str, values: Values) -> Asked:
    """Read the values of each entry; refuse unknown names, and jobs that a study cannot change."""
    require_type(name, str, "study", "the name of a study")
    if name not in STUDIES:
        raise SpecError("study", f"there is no study {shown(name)}.", did_you_mean(name, STUDIES))
    known = {axis.name: axis for axis in AXES.get(name, ())}
    require_type(values, Mapping, "values", "lists of values by the names of entries")
    read = {}
    for entry in values:
        if not known:
            raise SpecError(
                f"values.{entry}", f"the study '{name}' takes no values: it reads the features of the plan."
            )
        if entry not in known:
            hint = did_you_mean(entry, known)
            raise SpecError(f"values.{entry}", f"is no entry of the study '{name}'.", hint)
        if isinstance(values[entry], str) or not isinstance(values[entry], Iterable):
            raise SpecError(f"values.{entry}", f"expected a list of values, got {shown(values[entry])}.")
        read[entry] = _read_values(known[entry], values[entry])
    listed = problem.search.candidates
    if listed is not None and (name not in (FEATURES, "reliability") or listed.source != PIN):
        raise SpecError(
            listed.source, f"names whole strategies: nothing is left that the study '{name}' could choose.", "Drop it."
        )
    return read


def _require_step(name: str, step_seconds: float | None) -> None:
    """Refuse a measured step of a study that predicts steps, and one that is none."""
    if step_seconds is None:
        return
    if name != "reliability":
        raise SpecError("step", f"the study '{name}' predicts steps; 'reliability' takes a measured one.")
    require_type(step_seconds, (int, float), "step", "a number of seconds")
    if not 0 < step_seconds < math.inf:
        raise SpecError("step", f"must be positive and finite, got {step_seconds:g}.")


def _replace_step(problem: Problem, best: Plan | None, step_seconds: float) -> Plan | None:
    """Return the plan with a measured step, and the checkpoints that follow from it."""
    if best is None:
        return None
    measured = replace(best, estimate=replace(best.estimate, step_seconds=step_seconds))
    return reschedule(measured, problem)


def _choose_axes(problem: Problem, best: Plan | None, name: str, values: Asked) -> tuple[list[Axis], tuple[str, ...]]:
    """Return the entries to change, and a note on each that does not apply to the job."""
    asked = [axis for axis in AXES[name] if not values or axis.name in values]
    refused = {axis.name: text for axis in asked if (text := axis.refusal(problem, best))}
    chosen = [axis for axis in asked if axis.name not in refused]
    if not chosen:
        raise SpecError("study", f"'{name}' does not apply to this job: {' '.join(dict.fromkeys(refused.values()))}")
    return chosen, tuple(f"{name} does not apply to this job: {text}" for name, text in refused.items())


def _study_axis(axis: Axis, problem: Problem, base: PlanReport, best: Plan | None, read: Texts | None) -> Series[Plan]:
    own = axis.own(problem, best)
    if read is None:
        usual = axis.defaults(problem, best) if axis.defaults else _multiply(own, kinds().get(axis.entry, COUNT))
        read = _read_values(axis, usual)
    points = tuple(_points(axis, problem, base, best, read))
    if axis.is_scale:
        points = tuple(_add_linearity(points))
    return Series(
        name=axis.name, label=axis.label, points=points, own=own if own in [one.value for one in points] else None
    )


def _read_values(axis: Axis, values: Iterable[Any]) -> Texts:
    """Return the texts of values by their numbers, ascending, each once."""
    kind, where = kinds().get(axis.entry, COUNT), f"values.{axis.name}"
    read = {finite(_text(value), kind, where): _text(value) for value in values}
    for value in read:
        if not axis.entry and not (value.is_integer() and value >= 1):
            raise SpecError(where, f"expected whole numbers from 1, got {value:g}.")
        if not axis.is_read and value < 0:
            raise SpecError(where, f"must be at least 0, got {value:g}.")
    if len(read) < 2:
        number = f"has one value, {next(iter(read.values()))}" if read else "has no value"
        raise SpecError(where, f"{number}; a study compares at least two.", f"Write --values {axis.name}=VALUE,VALUE.")
    return dict(sorted(read.items()))


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _words(axis: Axis, value: float, text: str) -> str:
    """Return a value as people read it: as it was given, computed ones in four digits and a common unit."""
    if not isinstance(value, float) or text != repr(value) or (value.is_integer() and value < MOST_WHOLE):
        return text
    return f"{value / 1e9:.4g} GB/s" if kinds().get(axis.entry) is RATE else f"{value:.4g}"


MOST_WHOLE = 1e6
"""Whole numbers from which on people read a unit."""


def _points(
    axis: Axis, problem: Problem, base: PlanReport, best: Plan | None, values: Mapping[float, str]
) -> Iterator[Point[Plan]]:
    for number, (value, text) in enumerate(values.items()):
        log_progress(__name__, f"{axis.name} is studied", number, len(values))
        changed = [f"{axis.entry}={text}", *axis.also(problem, value)] if axis.is_read else []
        job = load(problem.document, changed, name=problem.name) if changed else problem
        words = _words(axis, value, text)
        try:
            found, status = _plan_point(axis, job, base, best, value)
            yield Point(value=value, text=words, plan=found, status=status)
        except SpecError as error:
            if error.where.partition(".")[0] != "reliability":
                raise
            yield Point(
                value=value, text=_words(axis, value, text), plan=None, status=Status.INFEASIBLE, reason=STANDSTILL
            )


STANDSTILL = "failures outrun progress"
"""Reason of points at which no training ends."""


def _plan_point(
    axis: Axis, job: Problem, base: PlanReport, best: Plan | None, value: float
) -> tuple[Plan | None, Status]:
    """Return the plan of a point with the status of its search: the job's own where nothing was changed."""
    if axis.plan is not None:
        assert best is not None, "the study has a plan"
        return axis.plan(best, job, value), base.outcome.status
    if value == axis.own(base.problem, best):
        return best, base.outcome.status
    report = plan(job.change_limits(simplest=False), certified=False, explained=False)
    return next(iter(report.plans), None), report.outcome.status


def _add_linearity(points: Sequence[Point[Plan]]) -> Iterator[Point[Plan]]:
    """Add the linearity of each point over the first one that has a plan."""
    first = next((point.plan for point in points if point.plan), None)
    for point in points:
        if first is None or point.plan is None:
            yield point
            continue
        base, own = (replace(one.facts.cluster, num_devices=num_held(one.problem)) for one in (first, point.plan))
        yield replace(
            point,
            linearity_fraction=linearity_fraction(
                (base, first.facts.workload),
                (own, point.plan.facts.workload),
                base_step_seconds=first.step_seconds,
                step_seconds=point.plan.step_seconds,
            ),
        )
