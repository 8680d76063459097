"""Values of each decision that a search tries: the job's own, or else all useful ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.limits import list_limits, list_pins
from constraints.rule import Holds, Ints, Rule
from constraints.rules.features import graph_modules
from constraints.rules.frameworks import hybridep_runs_since_ampere, recomputable_modules
from costmodel.facts.device import Cluster
from costmodel.facts.framework import Framework, lacks
from costmodel.facts.model import CompressedAttention, Experts, LatentAttention, Model
from costmodel.step.step import least_layer_device_seconds, least_layers_seconds
from costmodel.strategy import (
    DECISIONS,
    FLAGS,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    TokenDispatcher,
    Vocabulary,
)
from costmodel.tables import Facts, distinct
from planner.jobs.problem import Problem
from planner.uncertainty.evidence.features import FEATURES as PROVABLE
from planner.uncertainty.evidence.features import evidence_for

Columns = dict[str, NDArray[Any]]

MAX_MICRO_BATCH_SIZE = 16

"""Largest micro-batch that the search tries; the job may say otherwise."""

ROW_DECISIONS = (
    "tp",
    "cp",
    "pp",
    "dp",
    "ep",
    "etp",
    "vpp",
    "group",
    "mbs",
    "sequence_parallel",
    "schedule",
    "vocabulary",
)

FEATURES = DECISIONS[len(ROW_DECISIONS) :]


def row_domains(problem: Problem) -> Columns:
    """Return the values of each degree: the job's own, or else all useful ones. ``dp`` follows from the others."""
    chosen = job_choices(problem)
    domains = default_domains(problem.facts, problem.search.max_devices, most_tp=most_tp(problem))
    united = {name: _unite(values, _candidate_values(problem, name)) for name, values in domains.items()}
    columns = {name: column(name, chosen.get(name, values)) for name, values in united.items()}
    given = _unite(chosen.get("group", ()), _candidate_values(problem, "group"))
    return columns | ({"group": column("group", given)} if given else default_microbatch_groups(columns["pp"]))


def default_microbatch_groups(pp: NDArray[np.int64]) -> Columns:
    """Return the values of ``group`` that the job does not limit: the number of pipeline ranks, or 1."""
    return {"group": distinct([1, *pp.tolist()])}


def free_replicas(problem: Problem) -> tuple[int, ...]:
    """Return other values of ``dp`` than the one that uses all devices: none, or divisors of the batch."""
    most = problem.search.max_devices
    batch = divisors(problem.facts.workload.global_batch_size)
    return tuple(value for value in batch if most is not None and value <= most)


def all_replicas(problem: Problem, degrees: Columns) -> NDArray[np.int64]:
    """Return every value of ``dp`` for some degrees, before any rule."""
    tp, cp, pp = (degrees[name] for name in ("tp", "cp", "pp"))
    following = problem.facts.cluster.num_devices // np.multiply.outer(np.multiply.outer(tp, cp), pp)
    return distinct([*distinct(np.maximum(following, 1)), *free_replicas(problem)]).astype(np.int64)


def all_values(problem: Problem) -> dict[str, NDArray[np.int64]]:
    """Return every value of each decision that the job leaves open, before any rule."""
    degrees = row_domains(problem)
    every = degrees | {"dp": all_replicas(problem, degrees)} | feature_values(problem)
    return {name: distinct(values).astype(np.int64) for name, values in every.items()}


def most_tp(problem: Problem) -> int | None:
    """Return the largest tp that a search tries: devices of the scale-up domain; None: all devices."""
    return problem.facts.cluster.scale_up_size if problem.search.preferences else None


def default_domains(
    facts: Facts, max_devices: int | None = None, *, most_tp: int | None = None
) -> dict[str, tuple[int, ...]]:
    """
    Return the values of each degree that the job does not limit.

    tp: divisors of the devices up to ``most_tp`` (None: all). cp, pp: all divisors. etp: 1 or a value of tp. ep:
    divisors of the experts. vpp: up to one chunk per layer, embedding and head. mbs: small divisors of the batch.
    Schedule and vocabulary: the usual ones. With ``max_devices`` tp is any number up to it, cp a divisor of the
    sequence, pp up to one rank per layer, embedding and head.
    """
    devices = divisors(facts.cluster.num_devices)
    largest = most_tp or facts.cluster.num_devices
    tp = tuple(value for value in devices if value <= largest)
    cp = pp = devices
    if max_devices is not None:
        tp = tuple(range(1, min(largest, max_devices) + 1))
        cp = tuple(value for value in divisors(facts.workload.sequence_length) if value <= max_devices)
        pp = tuple(range(1, min(facts.model.num_layers + 2, max_devices) + 1))
    batch = divisors(facts.workload.global_batch_size)
    experts = gcd(*(k.feed_forward.num_experts for k in facts.model.kinds if isinstance(k.feed_forward, Experts)))
    return {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": divisors(experts) if experts else (1,),
        "etp": tp if experts else (1,),
        "vpp": tuple(range(1, facts.model.num_layers + 3)),
        "group": devices,
        "mbs": tuple(value for value in batch if value <= MAX_MICRO_BATCH_SIZE),
        "sequence_parallel": (0, 1),
        "schedule": (Schedule.ONE_F_ONE_B,),
        "vocabulary": (Vocabulary.ENDS,),
    }


def feature_values(problem: Problem) -> Columns:
    """Return the values of each feature: the job's own, or else all."""
    chosen = job_choices(problem)
    usual = default_features(problem.facts)
    if problem.search.needs_evidence:
        usual |= proven_features(problem.facts, usual)
    defaults = {name: _unite(values, _candidate_values(problem, name)) for name, values in usual.items()}
    return {name: column(name, chosen.get(name, defaults[name])) for name in FEATURES}


def default_features(facts: Facts) -> dict[str, tuple[int, ...]]:
    """
    Return the values of each feature that the job does not limit.

    CUDA graphs: none, the whole iteration, and all modules that may be captured together with every other feature.
    """
    model = facts.model
    values: dict[str, tuple[int, ...]] = dict.fromkeys(FEATURES, (0, 1))
    graphs = (CudaGraphs.NONE, CudaGraphs.FULL_ITERATION, default_graphs(model))
    framework = facts.cluster.framework
    return values | {
        "sharding": tuple(Sharding),
        "recompute": default_recompute(model, framework),
        "token_dispatcher": default_dispatchers(facts.cluster) if model.has_experts else (TokenDispatcher.ALLTOALL,),
        "cuda_graphs": tuple(
            one for one in graphs if framework is None or not lacks(framework, "cuda_graphs", int(one))
        ),
    }


def proven_features(facts: Facts, usual: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """
    Return the values of features that enough measured runs have.

    CUDA graphs: the sets of modules that runs have used, and no other sets.

    Parameters
    ----------
    facts
        Facts that decide which runs count.
    usual
        Values of each feature that software has.
    """
    known, found = evidence_for(facts.model, facts.cluster, facts.workload), {}
    for axis in PROVABLE:
        allowed = {int(value) for value in (*axis.usual, *known.proven(axis))}
        found[axis.name] = tuple(value for value in usual.get(axis.name, ()) if value in allowed)
        if axis.name == "cuda_graphs":
            framework = facts.cluster.framework
            found[axis.name] = tuple(
                value for value in sorted(allowed) if framework is None or not lacks(framework, axis.name, value)
            )
    return {name: values for name, values in found.items() if name in usual}


def default_recompute(model: Model, framework: Framework | None) -> tuple[Recompute, ...]:
    """
    Return no and full recomputation, and every set of modules that the framework's release can recompute alone.

    Modules are those that Megatron-LM names. For a release that recomputes certain sets alone, those sets are returned.
    """
    modules = [name for name in recomputable_modules(model) if name != "shared_experts" or _has_shared_experts(model)]
    some = chain.from_iterable(combinations(modules, number) for number in range(1, len(modules) + 1))
    sets = {Recompute.of(*chosen) for chosen in some}
    if framework is not None and any(lacks(framework, "recompute", int(one)) for one in sets):
        sets = _own_sets(framework)
    return tuple(sorted((Recompute.NONE, *sets, Recompute.FULL)))


def cheap_recompute(model: Model, framework: Framework | None) -> tuple[Recompute, ...]:
    """
    Return no and full recomputation, and the modules that are cheap to compute again.

    Cheap modules are attention core, norms, the up-projections of latent attention and the activation of experts.

    References
    ----------
    Megatron-LM, ``README.md`` of ``megatron/core/transformer/moe``: ``--recompute-modules mla_up_proj moe_act
    layernorm``, and ``core_attn``, the default of its selective recomputation.
    """
    latent = any(isinstance(kind.attention, LatentAttention | CompressedAttention) for kind in model.kinds)
    cheap = (
        "core_attention",
        "norms",
        *(["qkv"] if latent else []),
        *(["expert_activation"] if model.has_experts else []),
    )
    of_modules = {Recompute.of(*cheap)}
    if framework is not None and lacks(framework, "recompute", int(*of_modules)):
        of_modules = _own_sets(framework)
    return tuple(sorted((Recompute.NONE, *of_modules, Recompute.FULL)))


def _own_sets(framework: Framework) -> set[Recompute]:
    """Return the sets of modules that a release names."""
    members = {member.text for member in Recompute}
    return {Recompute.named(text) for text in framework.features["recompute"] if text not in members}


def _has_shared_experts(model: Model) -> bool:
    """Tell whether some layers have experts that every token visits."""
    experts = (kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, Experts))
    return any(one.shared_ffn_hidden_size for one in experts)


def default_dispatchers(cluster: Cluster) -> tuple[TokenDispatcher, ...]:
    """Return all-to-all, and on devices that run HybridEP all dispatchers of the framework."""
    framework = cluster.framework
    if not hybridep_runs_since_ampere(cluster, token_dispatcher=TokenDispatcher.HYBRIDEP):
        return (TokenDispatcher.ALLTOALL,)
    return tuple(
        one for one in TokenDispatcher if framework is None or not lacks(framework, "token_dispatcher", int(one))
    )


def default_graphs(model: Model) -> CudaGraphs:
    """
    Return the modules that CUDA graphs capture together with every other feature.

    ``moe`` is left out: its tokens would have to be dropped and padded. In MoE models dense feed-forwards are left out
    as well, since they exclude overlapped expert-parallel communication. They are few layers of such models
    (Megatron-Bridge's recipes leave them out, too).
    """
    left_out = ("moe", "mlp") if model.has_experts else ("moe",)
    return CudaGraphs.of(*(name for name in graph_modules(model) if name not in left_out))


def job_choices(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Return the job's own values of each decision that it limits."""
    search = problem.search
    own = list_limits(pin=search.pin, allow=search.allow, limits=search.limits)
    given = [name for name in DECISIONS if search.candidates and search.candidates.gives(name)]
    listed = {name: _candidate_values(problem, name) for name in given}
    return {n: tuple(v for v in own.get(n, listed.get(n, ())) if v in listed.get(n, (v,))) for n in own | listed}


def job_values(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Return every value that an entry of the job names, also where another entry excludes it."""
    search = problem.search
    own = list_pins(pin=search.pin, allow=search.allow, limits=search.limits)
    return {name: _unite(own.get(name, ()), _candidate_values(problem, name)) for name in DECISIONS}


def _candidate_values(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the values that the job's candidates give to a decision."""
    return problem.search.candidates.values(name) if problem.search.candidates else ()


def _unite(values: Iterable[int], more: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*values, *more)))


def column(name: str, values: Sequence[int]) -> NDArray[Any]:
    """Convert the values of a decision to the type that formulas and rules expect."""
    return np.array(values, dtype=bool if name in FLAGS else np.int64)


def divisors(number: int) -> tuple[int, ...]:
    """
    Return all divisors in ascending order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    candidates = np.arange(1, int(number**0.5) + 2)
    small = candidates[number % candidates == 0]
    return tuple(sorted({*small.tolist(), *(number // small).tolist()}))


def may_leave_idle(problem: Problem) -> bool:
    """
    Tell whether plans may leave whole nodes idle.

    They may not where the job gives the number of devices itself, nor over several sites, which hold equal shares.
    """
    is_free = problem.search.idle_devices and not says_how_many(problem) and problem.facts.cluster.sites is None
    return is_free and smaller_nodes(problem) > 0


def says_how_many(problem: Problem) -> bool:
    """Tell whether a job gives the number of devices of its plans; each row of a candidate list needs one."""
    candidate_list = problem.search.candidates
    return problem.search.max_devices is not None or (candidate_list is not None and bool(candidate_list.rows))


def num_held(problem: Problem) -> int:
    """Return the number of devices reserved for a job's plans: the most that one plan may use."""
    search, given = problem.search, problem.facts.cluster.num_devices
    if search.max_devices is None or search.num_nodes is not None:  # with numbers of nodes it is not the job's own
        return given
    return search.max_devices


def num_spares(problem: Problem) -> int:
    """Return the number of devices of spare nodes."""
    spare_nodes = problem.machine.section.spare_nodes if problem.machine else 0
    return spare_nodes * problem.facts.cluster.device.devices_per_node


def allow_idle_nodes(problem: Problem, num_devices: int) -> Problem:
    """Return the job that judges a strategy on so many devices: with idle nodes allowed, a job on fewer nodes."""
    node = problem.facts.cluster.device.devices_per_node
    is_smaller = num_devices < problem.facts.cluster.num_devices and num_devices % node == 0
    return limit_nodes(problem, 1, smaller_nodes(problem)) if is_smaller and may_leave_idle(problem) else problem


def smaller_nodes(problem: Problem) -> int:
    """Return the largest number of whole nodes with fewer devices than the job has."""
    cluster = problem.facts.cluster
    return (cluster.num_devices - 1) // cluster.device.devices_per_node


def limit_nodes(problem: Problem, fewest: int, most: int) -> Problem:
    """Return the job on a number of whole nodes between two."""
    node = problem.facts.cluster.device.devices_per_node
    return problem.change_limits(num_nodes=range(fewest, most + 1), max_devices=most * node)


def least_nodes(problem: Problem, seconds: float) -> int:
    """Return a lower bound of the nodes for a step of some seconds, from the time of all layers on one device."""
    return max(1, math.floor(least_device_seconds(problem) / seconds / problem.facts.cluster.device.devices_per_node))


def least_device_seconds(problem: Problem) -> float:
    """
    Return a lower bound of devices times seconds of a step, over all strategies on any number of devices.

    Derivation: the layers of a batch on one device (:func:`costmodel.step.step.least_layers_seconds`). 0 where measured
    times lack some.
    """
    one_device = {name: np.ones(1, dtype=np.int64) for name in ("tp", "cp", "pp", "dp")}
    return min(_least_seconds(one, one_device).item() for one in problem.each)


def fast_enough(problem: Problem) -> tuple[Rule, ...]:
    """Make the rule that the layers of a rank take no longer than a known step; no rule where none is known."""
    limit = problem.search.faster_than_seconds
    if limit is None or math.isinf(limit):
        return ()

    def holds(*, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Holds:
        """The layers of a rank take no longer than the known step."""
        degrees = {"tp": np.asarray(tp), "cp": np.asarray(cp), "pp": np.asarray(pp), "dp": np.asarray(dp)}
        return np.asarray(_least_seconds(problem, degrees) <= limit)

    return (holds,)


def _least_seconds(problem: Problem, degrees: Columns) -> NDArray[np.float64]:
    """Return a lower bound of the steps with some degrees, by their layers; 0 where measured times lack some."""
    domains = row_domains(problem)
    (tp, cp), where = np.unique(np.stack([degrees["tp"], degrees["cp"]]), axis=1, return_inverse=True)
    mbs, ep = int(domains["mbs"].max()), domains["ep"].tolist()
    known = problem.facts.compute_once((least_layer_device_seconds, mbs, *ep), dict[tuple[int, int], Any])
    pairs = list(zip(tp.tolist(), cp.tolist(), strict=True))
    new = [pair for pair in pairs if pair not in known]
    if new:
        each = np.array(new, dtype=np.float64)
        of_new = least_layer_device_seconds(problem.facts, tp=each[:, 0], cp=each[:, 1], ep=ep, mbs=mbs)
        known.update(zip(new, np.nan_to_num(of_new, posinf=0.0), strict=True))
    if not pairs:
        return np.zeros(len(where))
    of_layer = np.array([known[pair] for pair in pairs])
    return np.asarray(least_layers_seconds(problem.facts, of_layer[where], degrees))
