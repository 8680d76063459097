"""Changes that may not make a step longer: each property, its change of a case, and the two steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.inputs import job_document, read_yaml
from constraints import FRAMEWORK_RULES, MEMORY_RULES, PHYSICS_RULES, find_violations
from costmodel.errors import PlanningError
from costmodel.facts.device import EquippedDevice, HostProcessors, Network
from costmodel.step.estimate import Estimate, estimate
from costmodel.strategy import OVERLAPS, Strategy
from costmodel.tables import Facts
from planner import load
from planner.jobs.problem import Problem
from planner.search.domains import FEATURES
from planner.search.space import build_space, strategy_of

DRAWN = read_yaml(__file__)

SPREAD = 0.7

"""Standard deviation of the logarithms by which a device differs from the catalog's."""

HELD = 0.5

"""Share of the jobs that keep the rules of their framework; others also have what no release has together."""

OFFLOADED = 0.6

"""Share of the strategies that offload activations where rules allow some, which they do not everywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """
    One strategy of a random job.

    Parameters
    ----------
    facts, strategy
        Model, cluster and workload; the decisions.
    framework_rules
        True if the strategy keeps the rules of its framework.
    """

    facts: Facts
    strategy: Strategy
    framework_rules: bool


def random_cases(seed: int, num_strategies: int) -> Iterator[Case]:
    """
    Strategies of one random job; none where no release runs its model on its device.

    Parameters
    ----------
    seed
        Seed of the job and of the strategies.
    num_strategies
        Number of strategies of the job.
    """
    chooser = random.Random(seed)
    problem = a_random_problem(chooser)
    if problem is None:
        return
    facts = replace(problem.facts, cluster=replace(problem.facts.cluster, device=_varied(chooser, problem.facts)))
    problem = replace(problem, facts=facts)
    space = build_space(problem)
    if not len(space.feature_class):
        return
    for _ in range(num_strategies):
        row = chooser.randrange(len(space.feature_class))
        allowed = space.allowed[space.feature_class[row]]
        offloads = np.moveaxis(np.zeros_like(allowed), FEATURES.index("activation_offload"), 0)
        offloads[1:] = True
        offloading = allowed & np.moveaxis(offloads, 0, FEATURES.index("activation_offload"))
        if chooser.random() < OFFLOADED and offloading.any():
            allowed = offloading
        chosen = np.unravel_index(chooser.choice(np.flatnonzero(allowed)), allowed.shape)
        values = {name: int(column[row]) for name, column in space.rows.items()}
        values |= {name: int(space.features[name][index]) for name, index in zip(FEATURES, chosen, strict=True)}
        yield Case(facts=facts, strategy=strategy_of(values), framework_rules=problem.search.framework_rules)


def a_random_problem(chooser: random.Random) -> Problem | None:
    """A random job of the catalog's models, devices and releases; None where they do not go together."""
    num_devices = chooser.choice(DRAWN["numbers of devices"])
    framework = chooser.choice(DRAWN["frameworks"])
    model, device = chooser.choice(DRAWN["models"]), chooser.choice(DRAWN["devices"])
    batch, length = num_devices * chooser.choice(DRAWN["micro-batches"]), chooser.choice(DRAWN["sequences"])
    search = {"framework_rules": chooser.random() < HELD, "evidence": "any"}
    job = job_document(model, device, num_devices, batch, length, framework=framework, search=search)
    try:
        return load(job)
    except PlanningError:
        return None


def _varied(chooser: random.Random, facts: Facts) -> EquippedDevice:
    """The device with other speeds: any of them may be what a step waits for."""
    device = facts.cluster.device

    def factor() -> float:
        return float(np.exp(chooser.gauss(0.0, SPREAD)))

    peak, memory, up, down = (factor() for _ in range(4))
    networks = []
    fastest = np.inf
    for network in device.networks:  # outer networks are no faster than inner ones
        fastest = min(fastest, network.bandwidth * factor())
        networks.append(replace(network, bandwidth=fastest))
    return replace(
        device,
        peak_flops={dtype: flops * peak for dtype, flops in device.peak_flops.items()},
        memory_bandwidth=device.memory_bandwidth * memory,
        host_to_device_bandwidth=device.host_to_device_bandwidth * up,
        device_to_host_bandwidth=device.device_to_host_bandwidth * down,
        networks=tuple(networks),
    )


FACTORS = (1.3, 2.0, 5.0)

TOLERANCE = 1e-9

"""Relative noise of sums in floating point."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """
    Result of one check.

    Parameters
    ----------
    name
        Name of the change.
    before, after
        Seconds of the step that may be longer, and of the one that may not.
    shown
        Seconds more of pipeline, data- and expert-parallel communication that the second one exposes.
    case, other
        The strategy before the change, and with it.
    """

    name: str
    before: float
    after: float
    shown: float
    case: Case
    other: Case

    @property
    def excess(self) -> float:
        """Lengthening of the step that is not allowed, as a fraction of it."""
        return self.after / self.before - 1


Change = Callable[[Case, float], Case | None]

"""The changed case, by a factor above 1; None where the change does not apply."""


def seen(case: Case, index: int, *, names: Sequence[str]) -> Iterable[Seen]:
    """
    Checks of one strategy.

    Parameters
    ----------
    case
        The strategy.
    index
        Number of the strategy, which decides by how much things change.
    names
        Changes to try, of :data:`FASTER` and :data:`SLOWER`, one at a time; those that do not apply are left out.
    """
    factor = FACTORS[index % len(FACTORS)]
    applied = ((name, (FASTER | SLOWER)[name](case, factor)) for name in names)
    changed = [(name, other) for name, other in applied if other is not None]
    if not changed:
        return
    own = estimate(case.facts, case.strategy)
    for name, other in changed:
        both = own, estimate(other.facts, other.strategy)
        before, after = both if name in FASTER else reversed(both)
        yield Seen(
            name=name,
            before=before.step_seconds,
            after=after.step_seconds,
            shown=_exposed(after) - _exposed(before),
            case=case,
            other=other,
        )


def _exposed(estimated: Estimate) -> float:
    """Seconds of pipeline, data- and expert-parallel communication that a step exposes."""
    return sum(part.exposed_seconds for part in estimated.breakdown if part.name in ("pp", "dp", "ep"))


def _with_device(case: Case, change: Callable[[EquippedDevice], dict[str, Any]]) -> Case:
    device = case.facts.cluster.device
    cluster = replace(case.facts.cluster, device=replace(device, **change(device)))
    return replace(case, facts=Facts(model=case.facts.model, cluster=cluster, workload=case.facts.workload))


def _with_networks(case: Case, change: Callable[[int, Network], Network]) -> Case:
    return _with_device(
        case, lambda device: {"networks": tuple(change(level, one) for level, one in enumerate(device.networks))}
    )


def faster_inside(case: Case, factor: float) -> Case:
    """Return the case with ``factor`` times the bandwidth of the scale-up network."""
    return _with_networks(
        case, lambda level, one: replace(one, bandwidth=one.bandwidth * factor) if level == 0 else one
    )


def faster_outside(case: Case, factor: float) -> Case:
    """Return the case with ``factor`` times the bandwidth between scale-up domains, at most the innermost one."""
    fastest = case.facts.cluster.device.networks[0].bandwidth

    def change(level: int, one: Network) -> Network:
        faster = max(one.bandwidth, min(one.bandwidth * factor, fastest))
        return replace(one, bandwidth=faster) if level else one

    return _with_networks(case, change)


def faster_peak(case: Case, factor: float) -> Case:
    """Return the case with ``factor`` times the peak of every number format."""
    return _with_device(
        case, lambda one: {"peak_flops": {dtype: flops * factor for dtype, flops in one.peak_flops.items()}}
    )


def faster_memory(case: Case, factor: float) -> Case:
    """Return the case with ``factor`` times the memory bandwidth."""
    return _with_device(case, lambda one: {"memory_bandwidth": one.memory_bandwidth * factor})


def faster_copies(case: Case, factor: float) -> Case:
    """Return the case with copies to and from the host ``factor`` times as fast."""
    return _with_device(
        case,
        lambda one: {
            name: getattr(one, name) * factor for name in ("host_to_device_bandwidth", "device_to_host_bandwidth")
        },
    )


def faster_host(case: Case, factor: float) -> Case:
    """Return the case with kernel launches and host memory ``factor`` times as fast."""
    return _with_device(
        case,
        lambda one: {
            "host_processors": _faster_processors(one.host_processors, factor),
            "constants": replace(one.constants, launch_overhead_seconds=one.constants.launch_overhead_seconds / factor),
        },
    )


def _faster_processors(one: HostProcessors, factor: float) -> HostProcessors:
    thread = one.thread_memory_bandwidth
    return replace(
        one,
        memory_bandwidth=one.memory_bandwidth * factor,
        thread_memory_bandwidth=None if thread is None else thread * factor,
    )


def more_processors(case: Case, factor: float) -> Case | None:
    """Return the case with ``factor`` times the processors, of which as many as before take part in communication."""
    if case.facts.cluster.device.num_processors is None:
        return None
    return _with_device(
        case,
        lambda one: {
            "num_processors": round((one.num_processors or 0) * factor),
            "constants": replace(
                one.constants, communication_sm_fraction=one.constants.communication_sm_fraction / factor
            ),
        },
    )


def larger_domain(case: Case, factor: float) -> Case | None:
    """Return the case with twice as many devices in a scale-up domain; None if none would be outside."""
    inner, *outer = case.facts.cluster.device.networks
    if inner.num_peers >= case.facts.cluster.num_devices or not outer:
        return None
    size = 2 * inner.num_peers
    return _with_networks(
        case, lambda level, one: replace(one, num_peers=size if level == 0 else max(one.num_peers, size))
    )


def lower_latency(case: Case, factor: float) -> Case:
    """Return the case with all network latencies divided by ``factor``."""

    def change(level: int, one: Network) -> Network:
        own = {
            name: getattr(one, name) / factor
            for name in ("latency", "reduce_scatter_latency", "all_reduce_latency")
            if getattr(one, name) is not None
        }
        return replace(one, **own)

    return _with_networks(case, change)


def switched_on(overlap: str) -> Change:
    """Return a change that switches an overlap on; it gives None if the overlap is on or rules forbid it."""

    def change(case: Case, factor: float) -> Case | None:
        if getattr(case.strategy, overlap):
            return None
        changed: dict[str, Any] = {overlap: True}
        strategy = replace(case.strategy, **changed)
        every = (*PHYSICS_RULES, *(FRAMEWORK_RULES if case.framework_rules else ()))
        rules = [rule for rule in every if rule not in MEMORY_RULES]
        if find_violations(case.facts, strategy.decisions(), rules=rules):
            return None
        return replace(case, strategy=strategy)

    return change


def doubled(name: str) -> Change:
    """Return a change to twice as many sequences at the same degrees, or to sequences twice as long."""

    def change(case: Case, factor: float) -> Case:
        work = case.facts.workload
        twice: dict[str, Any] = {name: 2 * getattr(work, name)}
        return replace(
            case, facts=Facts(model=case.facts.model, cluster=case.facts.cluster, workload=replace(work, **twice))
        )

    return change


FASTER: dict[str, Change] = {
    "scale-up bandwidth": faster_inside,
    "network bandwidth": faster_outside,
    "peak": faster_peak,
    "memory bandwidth": faster_memory,
    "copies to the host": faster_copies,
    "host": faster_host,
    "processors": more_processors,
    "scale-up domain": larger_domain,
    "latency": lower_latency,
    **{overlap: switched_on(overlap) for overlap in OVERLAPS},
}

"""Changes that make a step no longer."""

SLOWER: dict[str, Change] = {"batch": doubled("global_batch_size"), "sequence": doubled("sequence_length")}

"""Changes that make a step no shorter."""
