"""Values of each decision that a search tries, the job's own or all useful ones, and the rules of the problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints import (
    FRAMEWORK_RULES,
    MEGATRON_RULES,
    MEMORY_RULES,
    PHYSICS_RULES,
    PREFERENCE_RULES,
    SITE_RULES,
    TARGET_RULES,
)
from constraints.limits import (
    bubble_rule,
    candidate_list_rules,
    devices_rule,
    limit_rules,
    list_limits,
    list_pins,
    nodes_rule,
)
from constraints.rule import Flags, Holds, Ints, Rule, implies, sentence
from constraints.rules import physics
from constraints.rules.frameworks import hybridep_runs_since_ampere, recomputable_modules
from constraints.rules.physics import graph_modules
from costmodel.facts.device import Cluster
from costmodel.facts.framework import Framework, lacks
from costmodel.facts.model import CompressedAttention, Experts, LatentAttention, Model
from costmodel.lowering.layer import recomputes
from costmodel.record import record
from costmodel.step.estimate import Estimate
from costmodel.step.step import least_layer_device_seconds, least_layers_seconds
from costmodel.strategy import (
    DECISIONS,
    FLAGS,
    GRAPH_MODULES,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    TokenDispatcher,
    Vocabulary,
    default_microbatch_group,
    is_one_of,
)
from costmodel.tables import Facts, distinct, signature
from planner.jobs.limits import SearchLimits
from planner.jobs.problem import Problem
from planner.uncertainty.features import FEATURES as PROVABLE
from planner.uncertainty.features import MEGATRON, evidence_for, evidence_rules, line_of

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
    chosen, facts, is_proven = job_choices(problem), problem.facts, problem.search.needs_evidence
    usual = facts.compute_once((usual_features, is_proven), lambda: usual_features(facts, is_proven=is_proven))
    defaults = {name: _unite(values, _candidate_values(problem, name)) for name, values in usual.items()}
    return {name: column(name, chosen.get(name, defaults[name])) for name in FEATURES}


def usual_features(facts: Facts, *, is_proven: bool) -> dict[str, tuple[int, ...]]:
    """Return the values of each feature that software has, or those of them that enough measured runs have."""
    usual = default_features(facts)
    return usual | proven_features(facts, usual) if is_proven else usual


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
    Return no and full recomputation, and every set of modules that the framework's release can recompute by itself.

    Modules are those that Megatron-LM names. For a release with fixed sets only those are returned.
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


GROWTH = ("pp", "schedule", "vocabulary", "vpp", "group", "tp", "sequence_parallel", "etp", "cp", "dp", "mbs", "ep")
"""Order in which rows grow: degrees that rules cut most come first."""


def micro_batches_are_small(*, mbs: Ints) -> Holds:
    """The search tries micro-batches of at most 16 sequences (search.allow.mbs changes that)."""
    return mbs <= MAX_MICRO_BATCH_SIZE


def sequence_is_split_where_it_can_be(cluster: Cluster, *, tp: Ints, sequence_parallel: Flags) -> Holds:
    """
    The search uses sequence parallelism exactly where tp is above 1 (search.pin.sequence_parallel changes that).

    It is never used if the framework's release lacks it.
    """
    has_it = cluster.framework is None or not lacks(cluster.framework, "sequence_parallel", 1)
    answer: Holds = np.equal(np.asarray(sequence_parallel), (np.asarray(tp) > 1) & has_it)
    return answer


def pipelines_run_1f1b(*, schedule: Ints) -> Holds:
    """The search uses the 1F1B schedule, plain or interleaved (search.allow.schedule changes that)."""
    return schedule == Schedule.ONE_F_ONE_B


def vocabulary_is_at_the_ends(*, vocabulary: Ints) -> Holds:
    """The search keeps embedding and head on the first and last rank (search.allow.vocabulary changes that)."""
    return vocabulary == Vocabulary.ENDS


def groups_are_as_many_as_ranks(*, pp: Ints, vpp: Ints, group: Ints) -> Holds:
    """A group has as many micro-batches as there are pipeline ranks (search.allow.group changes that)."""
    answer: Holds = np.equal(group, default_microbatch_group(pp=pp, vpp=vpp))
    return answer


def dispatchers_are_the_framework_s_own(cluster: Cluster, *, token_dispatcher: Ints) -> Holds:
    """Token dispatchers are the framework's, alltoall before Ampere (search.allow.token_dispatcher changes that)."""
    return is_one_of(token_dispatcher, default_dispatchers(cluster))


def graphs_are_used_where_they_can_be(
    cluster: Cluster, *, recompute: Ints, activation_offload: Flags, cuda_graphs: Ints
) -> Holds:
    """
    CUDA graphs are used unless layers or experts are recomputed or offloaded (search.allow.cuda_graphs changes that).

    Elsewhere a strategy has some, as they slow no kernel. A release without CUDA graphs is exempt.
    """
    framework = cluster.framework
    if framework is not None and all(lacks(framework, "cuda_graphs", int(one)) for one in SOME_GRAPHS):
        return np.ones(np.shape(cuda_graphs), dtype=bool)
    without = (recompute == int(Recompute.FULL)) | recomputes("experts", recompute=recompute)
    return implies(np.equal(cuda_graphs, int(CudaGraphs.NONE)), without | activation_offload)


SOME_GRAPHS = (CudaGraphs.FULL_ITERATION, CudaGraphs.of(*GRAPH_MODULES))
"""CUDA graphs of the whole iteration, and of modules; a release has both kinds or none."""

USES_ALL = physics.degrees_multiply_to_the_devices
"""The rule that ``max_devices`` replaces."""

SEARCH_BOUNDS: dict[str, Rule] = {
    "mbs": micro_batches_are_small,
    "sequence_parallel": sequence_is_split_where_it_can_be,
    "schedule": pipelines_run_1f1b,
    "vocabulary": vocabulary_is_at_the_ends,
    "group": groups_are_as_many_as_ranks,
    "token_dispatcher": dispatchers_are_the_framework_s_own,
    "cuda_graphs": graphs_are_used_where_they_can_be,
}
"""Bounds that the search adds by default, by the decision whose pin or allow lifts the bound."""


@record(frozen=True, kw_only=True, slots=True)
class Rules:
    """
    Rules of a problem, by their inputs.

    Parameters
    ----------
    rows
        Rules of degrees alone, with the search's own bounds.
    mixed
        Rules of degrees and features, or of features alone.
    memory
        Rules of the bytes that a strategy takes.
    timed
        Rules of its time.
    limits
        Rules among the others that follow from the job's pin, allow, limits and forbid.
    bounds
        Rules among the others that are the search's own bounds.
    preferences
        Rules among the others that the search prefers, though software runs without them.
    frameworks
        Rules among the others of frameworks, or of the job's target.
    candidate_list
        Rules among the others that restrict strategies to the job's candidates.
    """

    rows: tuple[Rule, ...]
    mixed: tuple[Rule, ...]
    memory: tuple[Rule, ...]
    limits: tuple[Rule, ...]
    bounds: tuple[Rule, ...]
    preferences: tuple[Rule, ...] = ()
    frameworks: tuple[Rule, ...] = ()
    candidate_list: tuple[Rule, ...] = ()
    timed: tuple[Rule, ...] = ()

    @property
    def every(self) -> tuple[Rule, ...]:
        """All rules."""
        return (*self.rows, *self.mixed, *self.memory, *self.timed)

    @property
    def bound_sentences(self) -> tuple[str, ...]:
        """Sentences of the search's own bounds."""
        return tuple(sentence(bound) for bound in self.bounds)


def problem_rules(problem: Problem) -> Rules:
    """Collect the rules of physics, of the job and of the search, and those of frameworks if the job wants them."""
    search = problem.search
    limits = limit_rules(pin=search.pin, allow=search.allow, forbid=search.forbid, limits=search.limits)
    candidate_list = candidate_list_rules(search.candidates, GROWTH) if search.candidates else ()
    lifted = {*job_choices(problem), *(search.candidates.names if search.candidates else ())}
    lifted |= {"cuda_graphs"} if any("cuda_graphs" in one for one in search.forbid) else set()
    lifted |= {"cuda_graphs"} if search.needs_evidence else set()
    bounds = tuple(bound for name, bound in SEARCH_BOUNDS.items() if name not in lifted)
    if search.num_nodes is not None:
        limits = (*limits, nodes_rule(search.num_nodes, problem.facts.cluster.device.devices_per_node))
    elif search.max_devices is not None:
        limits = (*limits, devices_rule(search.max_devices))
    of_sites = SITE_RULES if problem.facts.cluster.sites else ()
    physics = [*of_sites, *(rule for rule in PHYSICS_RULES if search.max_devices is None or rule is not USES_ALL)]
    preferences = (*(PREFERENCE_RULES if search.preferences else ()), *_evidence_rules(problem))
    frameworks = framework_rules(search, problem.facts.cluster)
    rules = [*limits, *candidate_list, *physics, *preferences, *frameworks, *bounds]
    others = [rule for rule in rules if rule not in MEMORY_RULES]
    return Rules(
        rows=tuple(rule for rule in others if not needs(rule) & set(FEATURES)),
        mixed=tuple(rule for rule in others if needs(rule) & set(FEATURES)),
        memory=tuple(rule for rule in rules if rule in MEMORY_RULES),
        limits=limits,
        bounds=bounds,
        preferences=preferences,
        frameworks=frameworks,
        candidate_list=candidate_list,
        timed=() if search.max_bubble_fraction is None else (bubble_rule(search.max_bubble_fraction),),
    )


def _evidence_rules(problem: Problem) -> tuple[Rule, ...]:
    """Make rules of evidence: enough measured runs; none where the job says otherwise or lists strategies."""
    if not problem.search.needs_evidence:
        return ()
    return evidence_rules(problem.facts, job_choices(problem))


def framework_rules(search: SearchLimits, cluster: Cluster) -> tuple[Rule, ...]:
    """
    Return the rules of the job's target, else those of any framework; none where the job switches them off.

    Plans without unproven features can be exported: for frameworks with Megatron Core its rules are added.
    """
    if not search.framework_rules:
        return ()
    if search.target is not None:
        return TARGET_RULES[search.target]
    is_megatron = line_of(cluster.framework) == MEGATRON
    return MEGATRON_RULES if is_megatron and search.needs_evidence else FRAMEWORK_RULES


def needs(rule: Rule) -> frozenset[str]:
    """Return the decisions that a rule depends on; they are collected once, and kept by the rule."""
    known: frozenset[str] | None = getattr(rule, "known_needs", None)
    if known is None:
        names = frozenset(signature(rule)[1])
        known = names - {"num_microbatches"} | {"dp", "mbs"} if "num_microbatches" in names else names
        vars(rule)["known_needs"] = known
    return known


def resources_of(estimated: Estimate, memory_headroom_bytes: float) -> dict[str, float]:
    """Return the figures of an estimated strategy that rules of memory and time depend on."""
    return {
        "device_bytes": estimated.device_bytes,
        "host_bytes": estimated.host_bytes,
        "memory_headroom_bytes": memory_headroom_bytes,
        "step_seconds": estimated.step_seconds,
        "bubble_seconds": sum(part.exposed_seconds for part in estimated.breakdown if part.name == "bubble"),
    }
