"""Rules of a problem by their inputs: rules of the project, rules of the job, and bounds of the search."""

from __future__ import annotations

import numpy as np

from constraints import (
    FRAMEWORK_RULES,
    MEGATRON_RULES,
    MEMORY_RULES,
    PHYSICS_RULES,
    PREFERENCE_RULES,
    SITE_RULES,
    TARGET_RULES,
)
from constraints.limits import bubble_rule, candidate_list_rules, devices_rule, limit_rules, nodes_rule
from constraints.rule import Flags, Holds, Ints, Rule, implies, sentence
from constraints.rules import physics
from costmodel.facts.device import Cluster
from costmodel.facts.framework import lacks
from costmodel.lowering.layer import recomputes
from costmodel.record import record
from costmodel.step.estimate import Estimate
from costmodel.strategy import (
    GRAPH_MODULES,
    CudaGraphs,
    Recompute,
    Schedule,
    Vocabulary,
    default_microbatch_group,
    is_one_of,
)
from costmodel.tables import signature
from planner.jobs.limits import SearchLimits
from planner.jobs.problem import Problem
from planner.search.domains import FEATURES, MAX_MICRO_BATCH_SIZE, default_dispatchers, job_choices
from planner.uncertainty.evidence.features import MEGATRON, line_of
from planner.uncertainty.evidence.rules import evidence_rules

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

    Elsewhere some are allowed, and no kernel gets slower by them; but where the framework's release has none.
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
