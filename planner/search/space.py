"""
The space of a problem: every combination of degrees (a row) and features that the rules allow.

Rows grow one degree at a time, and each rule is asked as soon as its decisions are known. Rules that mix degrees and
features sort the rows into few classes, each with one table of the features that it allows. The memory rules need the
cost of a strategy and are left to the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints import FRAMEWORK_RULES, MEMORY_RULES, PHYSICS_RULES
from constraints.classes import Classes
from constraints.limits import bubble_rule, devices_rule, insisted, limit_rules, limited
from constraints.listing import listing_rules
from constraints.rule import Flags, Holds, Ints, Rule, implies, sentence
from constraints.rules import topology
from constraints.rules.features import graph_modules
from costmodel.axes import present
from costmodel.facts.cluster import Cluster
from costmodel.facts.features import lacks
from costmodel.facts.framework import Framework
from costmodel.facts.model import Experts, LatentAttention, Model
from costmodel.lowering.recompute import recomputes
from costmodel.strategy import (
    DECISIONS,
    ENUMS,
    FLAGS,
    OVERLAPS,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    Strategy,
    TokenDispatcher,
    Vocabulary,
    is_one_of,
    usual_group,
)
from costmodel.tables import Facts, signature, tabulate
from planner.jobs.problem import Problem

Columns = dict[str, NDArray[Any]]

MAX_MICRO_BATCH_SIZE = 16
"""Largest micro-batch that the search tries unless the job says otherwise."""

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

GROWTH = ("pp", "schedule", "vocabulary", "vpp", "group", "tp", "sequence_parallel", "etp", "cp", "dp", "mbs", "ep")
"""Rows grow in this order: what the rules cut most comes first."""

IN_TIME_ALONE = ("token_dispatcher", "cuda_graphs", *OVERLAPS)
"""Features that change nothing but time where the memory has no axis for them."""

WORLD = frozenset({"tp", "cp", "pp", "dp"})


def usual_features(facts: Facts) -> dict[str, tuple[int, ...]]:
    """
    Values of each feature that the job does not limit.

    Of CUDA graphs: none, one of the whole iteration, and all modules that may be captured beside every other feature.
    """
    model = facts.model
    values: dict[str, tuple[int, ...]] = dict.fromkeys(FEATURES, (0, 1))
    graphs = (CudaGraphs.NONE, CudaGraphs.FULL_ITERATION, usual_graphs(model))
    framework = facts.cluster.framework
    return values | {
        "sharding": tuple(Sharding),
        "recompute": usual_recompute(model, framework),
        "token_dispatcher": usual_dispatchers(facts.cluster) if model.has_experts else (TokenDispatcher.ALLTOALL,),
        "cuda_graphs": tuple(
            one for one in graphs if framework is None or not lacks(framework, "cuda_graphs", int(one))
        ),
    }


def usual_recompute(model: Model, framework: Framework | None) -> tuple[Recompute, ...]:
    """
    Nothing, everything, and the modules that are cheap to compute again for what they keep.

    Those are attention core and norms, the up-projections of latent attention, the activation of experts (Megatron-LM,
    ``README.md`` of ``megatron/core/transformer/moe``: ``--recompute-modules mla_up_proj moe_act layernorm``, and
    ``core_attn``, the default of its selective recomputation). Of a release that recomputes certain sets of modules
    alone, those sets instead.
    """
    latent = any(isinstance(kind.attention, LatentAttention) for kind in model.kinds)
    cheap = (
        "core_attention",
        "norms",
        *(["qkv"] if latent else []),
        *(["expert_activation"] if model.has_experts else []),
    )
    of_modules = {Recompute.of(*cheap)}
    if framework is not None and lacks(framework, "recompute", int(*of_modules)):
        members = {member.text for member in Recompute}
        of_modules = {Recompute.named(text) for text in framework.features["recompute"] if text not in members}
    return tuple(sorted((Recompute.NONE, *of_modules, Recompute.FULL)))


def usual_dispatchers(cluster: Cluster) -> tuple[TokenDispatcher, ...]:
    """An all-to-all, and on devices that the other two have kernels for those that the framework has."""
    framework = cluster.framework
    if cluster.device.architecture not in ("ampere", "hopper", "blackwell"):
        return (TokenDispatcher.ALLTOALL,)
    return tuple(
        one for one in TokenDispatcher if framework is None or not lacks(framework, "token_dispatcher", int(one))
    )


def usual_graphs(model: Model) -> CudaGraphs:
    """
    Modules that CUDA graphs hold beside every other feature.

    Not ``moe``, whose tokens would have to be dropped and padded; nor, beside experts, dense feed-forwards, which
    overlapped expert-parallel communication excludes: few layers of such models (Megatron-Bridge's recipes leave them
    out, too).
    """
    left_out = ("moe", "mlp") if model.has_experts else ("moe",)
    return CudaGraphs.of(*(name for name in graph_modules(model) if name not in left_out))


def micro_batches_are_small(*, mbs: Ints) -> Holds:
    """The search tries micro-batches of at most 16 sequences (search.allow.mbs changes that)."""
    return mbs <= MAX_MICRO_BATCH_SIZE


def sequence_is_split_where_it_can_be(cluster: Cluster, *, tp: Ints, sequence_parallel: Flags) -> Holds:
    """
    The search uses sequence parallelism exactly where tp is above 1 (search.pin.sequence_parallel changes that).

    Where the framework's release has none, it is never used.
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
    """Groups of micro-batches are as many as pipeline ranks (search.allow.group changes that)."""
    answer: Holds = np.equal(group, usual_group(pp=pp, vpp=vpp))
    return answer


def dispatchers_are_the_framework_s_own(cluster: Cluster, *, token_dispatcher: Ints) -> Holds:
    """Tokens go by any dispatcher of the framework, alltoall before Ampere (search.allow.token_dispatcher adds)."""
    return is_one_of(token_dispatcher, usual_dispatchers(cluster))


def graphs_are_used_where_they_can_be(*, recompute: Ints, activation_offload: Flags, cuda_graphs: Ints) -> Holds:
    """
    CUDA graphs are used unless layers or experts are recomputed or offloaded (search.allow.cuda_graphs changes that).

    Elsewhere some are allowed, and no kernel gets slower by them.
    """
    without = (recompute == int(Recompute.FULL)) | recomputes("experts", recompute=recompute)
    return implies(np.equal(cuda_graphs, int(CudaGraphs.NONE)), without | activation_offload)


USES_ALL = topology.degrees_multiply_to_the_devices
"""What a job's own number of devices replaces."""

SEARCH_BOUNDS: dict[str, Rule] = {
    "mbs": micro_batches_are_small,
    "sequence_parallel": sequence_is_split_where_it_can_be,
    "schedule": pipelines_run_1f1b,
    "vocabulary": vocabulary_is_at_the_ends,
    "group": groups_are_as_many_as_ranks,
    "token_dispatcher": dispatchers_are_the_framework_s_own,
    "cuda_graphs": graphs_are_used_where_they_can_be,
}
"""What the search leaves out by default, by the decision whose pin or allow lifts the bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """
    The rules of a problem, by what they need.

    Parameters
    ----------
    rows
        Rules of degrees alone; the search's own bounds are among them.
    mixed
        Rules of degrees and features, or of features alone.
    memory
        Rules of the bytes that a strategy takes.
    timed
        Rules of its time.
    limits
        Those of the others that the job's pin, allow, limits and forbid made.
    bounds
        Those of the others that are the search's own.
    listing
        Those of the others that say that the strategy is one of the job's candidates.
    """

    rows: tuple[Rule, ...]
    mixed: tuple[Rule, ...]
    memory: tuple[Rule, ...]
    limits: tuple[Rule, ...]
    bounds: tuple[Rule, ...]
    listing: tuple[Rule, ...] = ()
    timed: tuple[Rule, ...] = ()

    @property
    def bound_sentences(self) -> tuple[str, ...]:
        """What the search leaves out by itself, in words."""
        return tuple(sentence(bound) for bound in self.bounds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """
    Rows of degrees, and the features that each may have.

    Parameters
    ----------
    facts
        What is given.
    rules
        What made it.
    rows
        One value per row for each of ``ROW_DECISIONS``; rows are in ascending order of them.
    features
        Values of each feature, one axis each.
    feature_class
        For each row the index of its table in ``allowed``.
    allowed
        Which features rows of a class may have; the classes on the first axis, then the features' axes in order.
    raw_size
        Strategies before any rule, the number of devices and usual groups apart: the product of the domains.
    """

    facts: Facts
    rules: Rules
    rows: Columns
    features: Columns
    feature_class: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    raw_size: int

    @property
    def num_rows(self) -> int:
        """Rows that have at least one allowed combination of features."""
        return len(self.feature_class)

    @property
    def size(self) -> int:
        """Complete strategies that satisfy every rule but those of memory."""
        return int(self.row_sizes.sum())

    @property
    def row_sizes(self) -> NDArray[np.int64]:
        """The same for each row."""
        per_class = self.allowed.sum(axis=tuple(range(1, self.allowed.ndim)), dtype=np.int64)
        return np.asarray(per_class[self.feature_class], dtype=np.int64)

    def degrees(self, rows: Any) -> Columns:
        """The decisions of some rows, one axis."""
        return {name: values[rows] for name, values in self.rows.items()}

    def box(self, rows: NDArray[np.int64]) -> Box:
        """Some rows with all the features that any of them may have."""
        classes, class_of_row = np.unique(self.feature_class[rows], return_inverse=True)
        allowed, features = self.allowed[classes], dict(self.features)
        for axis, where in enumerate(np.nonzero(allowed.any(axis=0).reshape(allowed.shape[1:]))):
            used, name = present(where), list(features)[axis]
            if len(used) < len(features[name]):
                allowed, features[name] = allowed.take(used, axis=1 + axis), features[name][used]
        return Box(degrees=self.degrees(rows), features=features, of_class=allowed, class_of_row=class_of_row)


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """
    Some rows, and the smallest table of features around what they may have.

    Parameters
    ----------
    degrees
        One value per row of each decision that is not a feature.
    features
        Values of each feature.
    of_class
        Which features rows of a class may have; the classes on the first axis, then the features' axes in order.
    class_of_row
        The class of each row.
    """

    degrees: Columns
    features: Columns
    of_class: NDArray[np.bool_]
    class_of_row: NDArray[np.int64]

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Which features each row may have, rows on the first axis: made anew each time."""
        return self.of_class[self.class_of_row]

    @property
    def width(self) -> int:
        """Combinations of features, allowed or not."""
        return prod(len(values) for values in self.features.values())

    def take(self, which: slice) -> Box:
        """Some of the rows."""
        degrees = {name: values[which] for name, values in self.degrees.items()}
        return replace(self, degrees=degrees, class_of_row=self.class_of_row[which])

    @property
    def furthest_sharding(self) -> NDArray[np.int64]:
        """Of each row the largest that it may have."""
        axis = 1 + list(self.features).index("sharding")
        others = tuple(other for other in range(1, self.of_class.ndim) if other != axis)
        allowed = np.asarray(self.of_class.any(axis=others))
        furthest: NDArray[np.int64] = self.features["sharding"][allowed.shape[1] - 1 - allowed[:, ::-1].argmax(axis=1)]
        return furthest[self.class_of_row]

    def split(self, chosen: NDArray[np.bool_], names: Sequence[str]) -> tuple[Box, NDArray[np.int64]]:
        """
        Some combinations of features as rows of their own, and the row of each.

        Parameters
        ----------
        chosen
            Rows on the first axis, then the features of ``names``.
        names
            Features that become columns; the others keep their axes.
        """
        others = {name: values for name, values in self.features.items() if name not in names}
        order = [1 + list(self.features).index(name) for name in (*names, *others)]
        row, mode = np.divmod(np.flatnonzero(chosen), chosen[0].size)
        where = zip(names, np.unravel_index(mode, chosen.shape[1:]), strict=True)
        return Box(
            degrees={name: values[row] for name, values in self.degrees.items()}
            | {name: self.features[name][at] for name, at in where},
            features=others,
            of_class=self.of_class.transpose(0, *order).reshape(-1, *(len(values) for values in others.values())),
            class_of_row=self.class_of_row[row] * chosen[0].size + mode,
        ), row

    @property
    def decisions(self) -> dict[str, Any]:
        """Every decision: degrees on the first axis, each feature on an axis of its own."""
        return spread(self.degrees, self.features)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """
    The features in two parts: modes, which change memory, and overlaps (and alike) that change time alone.

    Parameters
    ----------
    features, overlaps
        All of them in the order of their axes; those of the second part.
    """

    features: tuple[str, ...]
    overlaps: tuple[str, ...]

    @classmethod
    def of(cls, features: Iterable[str], *memory: Any) -> Fold:
        """The fold of memory tables with rows on the first axis: an overlap without an axis of its own is folded."""
        names = tuple(features)
        shape = np.broadcast_shapes(*(np.shape(table) for table in memory), (1,) * (1 + len(names)))
        axes = dict(zip(names, shape[1:], strict=True))
        return cls(features=names, overlaps=tuple(name for name in IN_TIME_ALONE if axes.get(name) == 1))

    @property
    def modes(self) -> tuple[str, ...]:
        """Features of the first part."""
        return tuple(name for name in self.features if name not in self.overlaps)

    def flat(self, table: NDArray[Any]) -> NDArray[Any]:
        """A table with rows and each feature on an axis of its own as (rows, modes, overlaps)."""
        order = [1 + self.features.index(name) for name in (*self.modes, *self.overlaps)]
        moved = table.transpose(0, *order)
        sizes = moved.shape[1 : 1 + len(self.modes)]
        return moved.reshape(moved.shape[0], prod(sizes), prod(moved.shape[1 + len(self.modes) :]))

    def chosen(self, features: Columns, mode: Any, overlaps: Any) -> Columns:
        """Values of the features from flat indices of modes and overlaps."""
        columns: Columns = {}
        for names, flat in ((self.modes, mode), (self.overlaps, overlaps)):
            indices = np.unravel_index(flat, tuple(len(features[name]) for name in names)) if names else ()
            columns |= {name: features[name][index] for name, index in zip(names, indices, strict=True)}
        return columns


def strategy_of(values: Mapping[str, int]) -> Strategy:
    """A strategy from one number per decision."""
    kinds: dict[str, Callable[[int], Any]] = {**ENUMS, **dict.fromkeys(FLAGS, bool)}
    return Strategy(**{name: kinds.get(name, int)(values[name]) for name in DECISIONS})


def build_space(problem: Problem) -> Space:
    """Everything that the problem's rules allow, memory apart."""
    rules = problem_rules(problem)
    domains = row_domains(problem)
    replicas = free_replicas(problem)
    rows, _ = grow(problem.facts, domains, rules.rows, tolerate=(), replicas=replicas)
    features = feature_values(problem)
    raw_size = _raw_size(problem, domains, features) * max(1, len(replicas))
    return space_of(problem.facts, rules, _ascending(rows), features, raw_size=raw_size)


def space_of(facts: Facts, rules: Rules, rows: Columns, features: Columns, *, raw_size: int) -> Space:
    """Some rows with the features that the rules allow them; rows that may have none are left out."""
    classes, allowed = allowed_features(facts, rows, features, rules.mixed)
    useful = np.logical_or.reduce(allowed, axis=tuple(range(1, allowed.ndim)))[classes]
    if not useful.all():
        rows, classes = {name: values[useful] for name, values in rows.items()}, classes[useful]
    return Space(
        facts=facts,
        rules=rules,
        rows=rows,
        features=features,
        feature_class=classes,
        allowed=allowed,
        raw_size=raw_size,
    )


def problem_rules(problem: Problem) -> Rules:
    """The rules of a problem: physics, frameworks if the job wants them, its own limits, the search's bounds."""
    search = problem.search
    limits = limit_rules(pin=search.pin, allow=search.allow, forbid=search.forbid, limits=search.limits)
    listing = listing_rules(search.candidates, GROWTH) if search.candidates else ()
    lifted = {*chosen_values(problem), *(search.candidates.names if search.candidates else ())}
    lifted |= {"cuda_graphs"} if any("cuda_graphs" in one for one in search.forbid) else set()
    bounds = tuple(bound for name, bound in SEARCH_BOUNDS.items() if name not in lifted)
    if search.max_devices is not None:
        limits = (*limits, devices_rule(search.max_devices))
    physics = [rule for rule in PHYSICS_RULES if search.max_devices is None or rule is not USES_ALL]
    rules = [*limits, *listing, *physics, *(FRAMEWORK_RULES if search.framework_rules else ()), *bounds]
    others = [rule for rule in rules if rule not in MEMORY_RULES]
    return Rules(
        rows=tuple(rule for rule in others if not needs(rule) & set(FEATURES)),
        mixed=tuple(rule for rule in others if needs(rule) & set(FEATURES)),
        memory=tuple(rule for rule in rules if rule in MEMORY_RULES),
        limits=limits,
        bounds=bounds,
        listing=listing,
        timed=() if search.max_bubble_fraction is None else (bubble_rule(search.max_bubble_fraction),),
    )


def chosen_values(problem: Problem) -> dict[str, tuple[int, ...]]:
    """The job's own values of each decision whose values it names."""
    search = problem.search
    own = limited(pin=search.pin, allow=search.allow, limits=search.limits)
    given = [name for name in DECISIONS if search.candidates and search.candidates.gives(name)]
    listed = {name: _listed_values(problem, name) for name in given}
    return {n: tuple(v for v in own.get(n, listed.get(n, ())) if v in listed.get(n, (v,))) for n in own | listed}


def insisted_values(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Every value that an entry of the job names, also where another entry excludes it."""
    search = problem.search
    own = insisted(pin=search.pin, allow=search.allow, limits=search.limits)
    return {name: _united(own.get(name, ()), _listed_values(problem, name)) for name in DECISIONS}


def _listed_values(problem: Problem, name: str) -> tuple[int, ...]:
    """Values that the job's candidates give to a decision."""
    return problem.search.candidates.values(name) if problem.search.candidates else ()


def _united(values: Iterable[int], more: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*values, *more)))


def needs(rule: Rule) -> set[str]:
    """The decisions that a rule is about."""
    names = set(signature(rule)[1])
    return names - {"num_microbatches"} | {"dp", "mbs"} if "num_microbatches" in names else names


def spread(degrees: Mapping[str, Any], features: Columns) -> dict[str, Any]:
    """Degrees on the first axis, each feature on an axis of its own."""
    axes = len(features)
    spread_degrees = {name: np.reshape(values, (-1, *(1,) * axes)) for name, values in degrees.items()}
    spread_features = {
        name: np.reshape(values, (1,) * (1 + axis) + (-1,) + (1,) * (axes - 1 - axis))
        for axis, (name, values) in enumerate(features.items())
    }
    return spread_degrees | spread_features


# --- domains -----------------------------------------------------------------------------------------------


def row_domains(problem: Problem) -> Columns:
    """Values of each degree: the job's own, or else all that could make sense. ``dp`` follows from the others."""
    chosen = chosen_values(problem)
    domains = default_domains(problem.facts, problem.search.max_devices)
    united = {name: _united(values, _listed_values(problem, name)) for name, values in domains.items()}
    columns = {name: column(name, chosen.get(name, values)) for name, values in united.items()}
    given = _united(chosen.get("group", ()), _listed_values(problem, "group"))
    return columns | ({"group": column("group", given)} if given else usual_groups(columns["pp"]))


def usual_groups(pp: NDArray[np.int64]) -> Columns:
    """Values of ``group`` that the job does not limit: as many as ranks, or 1."""
    return {"group": np.unique([1, *pp.tolist()])}


def free_replicas(problem: Problem) -> tuple[int, ...]:
    """Values of ``dp`` beside the one that uses all devices: none, or whatever the batch divides by."""
    most = problem.search.max_devices
    batch = divisors(problem.facts.workload.global_batch_size)
    return tuple(value for value in batch if most is not None and value <= most)


def default_domains(facts: Facts, max_devices: int | None = None) -> dict[str, tuple[int, ...]]:
    """
    Values of each degree that the job does not limit.

    tp: divisors of the devices up to the scale-up domain; cp, pp: all divisors; etp: 1 or a value of tp; ep: divisors
    of the experts; vpp: up to one chunk per layer, embedding and head; mbs: small divisors of the global batch;
    schedule and vocabulary: today's usual one. Where not all devices must be used, up to ``max_devices``: tp is any
    number, cp a divisor of the sequence, pp up to one rank per layer, embedding and head.
    """
    devices = divisors(facts.cluster.num_devices)
    tp = tuple(value for value in devices if value <= facts.cluster.scale_up_size)
    cp = pp = devices
    if max_devices is not None:
        tp = tuple(range(1, min(facts.cluster.scale_up_size, max_devices) + 1))
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
    """Values of each feature: the job's own, or else all."""
    chosen = chosen_values(problem)
    usual = {
        name: _united(values, _listed_values(problem, name)) for name, values in usual_features(problem.facts).items()
    }
    return {name: column(name, chosen.get(name, usual[name])) for name in FEATURES}


def column(name: str, values: Sequence[int]) -> NDArray[Any]:
    """Values of a decision in the type that formulas and rules expect."""
    return np.array(values, dtype=bool if name in FLAGS else np.int64)


def divisors(number: int) -> tuple[int, ...]:
    """
    All divisors in ascending order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    candidates = np.arange(1, int(number**0.5) + 2)
    small = candidates[number % candidates == 0]
    return tuple(sorted({*small.tolist(), *(number // small).tolist()}))


def _raw_size(problem: Problem, domains: Mapping[str, NDArray[Any]], features: Columns) -> int:
    """Combinations before any rule; ``dp`` follows from the others, and ``group`` where the job says nothing of it."""
    counted = [values for name, values in domains.items() if name != "group" or name in chosen_values(problem)]
    return prod(len(values) for values in (*counted, *features.values()))


# --- rows --------------------------------------------------------------------------------------------------


def grow(
    facts: Facts,
    domains: Mapping[str, NDArray[Any]],
    rules: Sequence[Rule],
    *,
    tolerate: Iterable[Rule],
    replicas: Iterable[int] = (),
) -> tuple[Columns, Classes]:
    """
    Rows of degrees, grown one degree at a time.

    Parameters
    ----------
    facts
        What is given.
    domains
        Values of each degree but ``dp``.
    rules
        Rules of degrees alone, each asked as soon as it can be.
    tolerate
        Rules that a row may break; it then belongs to the class of the rules that it breaks. Rows that break another
        rule are dropped.
    replicas
        Values of ``dp`` beside the one that follows from the other degrees.

    Returns
    -------
    tuple
        The rows, and which of the tolerated rules each breaks.
    """
    tolerated = set(tolerate)
    columns: Columns = {}
    classes = Classes.one(1)
    waiting = list(rules)
    for name in GROWTH:
        left, values = _next_column(facts, columns, name, domains, replicas, classes.size)
        known = {*columns, name}
        asked = sorted((r for r in waiting if needs(r) <= known), key=lambda rule: rule in tolerated)
        waiting = [rule for rule in waiting if rule not in asked]
        classes = classes.take(left)
        for rule in asked:
            holds = _ask(rule, facts, columns, left, name, values)
            if rule in tolerated:
                classes = classes.refine(~holds, rule)
            else:
                left, values, classes = left[holds], values[holds], classes.take(holds)
        columns = {known_name: column[left] for known_name, column in columns.items()} | {name: values}
    assert not waiting, f"rules that no column serves: {waiting}"
    return columns, classes


def _next_column(
    facts: Facts,
    columns: Columns,
    name: str,
    domains: Mapping[str, NDArray[Any]],
    replicas: Iterable[int],
    size: int,
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The cross product of the rows so far with one more column: index of the row, value of the column."""
    if name != "dp":
        values = domains[name]
        return np.repeat(np.arange(size), len(values)), np.tile(values, size)
    following = facts.cluster.num_devices // columns["tp"] // columns["cp"] // columns["pp"]
    others = np.array(list(replicas), dtype=np.int64)
    table = np.column_stack([np.maximum(following, 1), np.tile(others, (size, 1))])
    keep = np.column_stack([np.ones(size, dtype=bool), table[:, 1:] != table[:, :1]])
    return np.repeat(np.arange(size), keep.sum(axis=1)), table[keep]


def _ask(
    rule: Rule, facts: Facts, columns: Columns, left: NDArray[np.int64], name: str, values: NDArray[Any]
) -> NDArray[np.bool_]:
    decisions = {known: columns[known][left] for known in needs(rule) if known in columns}
    holds = np.asarray(tabulate(rule, facts, decisions | {name: values}))
    return holds if holds.shape == values.shape else np.broadcast_to(holds, values.shape)


def _ascending(rows: Columns) -> Columns:
    order = np.lexsort([rows[name] for name in reversed(ROW_DECISIONS)])
    return {name: rows[name][order] for name in ROW_DECISIONS}


# --- features ----------------------------------------------------------------------------------------------


def allowed_features(
    facts: Facts, rows: Columns, features: Columns, rules: Sequence[Rule]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each row the class of features that it allows, and the table of each class."""
    shape = tuple(len(values) for values in features.values())
    if not len(rows["tp"]):
        return np.zeros(0, dtype=np.int64), np.zeros((0, *shape), dtype=bool)
    classes = classify_features(facts, rows, features, rules)
    representatives = {name: values[classes.first] for name, values in rows.items()}
    decisions = spread(representatives, features)
    allowed = np.ones((classes.count, *shape), dtype=bool)
    for rule in rules:
        allowed &= tabulate(rule, facts, decisions)
    return classes.index, allowed


def classify_features(
    facts: Facts, rows: Columns, features: Columns, rules: Sequence[Rule], classes: Classes | None = None
) -> Classes:
    """Rows that no rule tells apart, whatever the features, are one class; ``classes`` are split further."""
    classes = Classes.one(len(rows["tp"])) if classes is None else classes
    for rule in rules:
        own = {name: values for name, values in features.items() if name in needs(rule)}
        if needs(rule) <= set(own):
            continue
        degrees = {name: rows[name] for name in needs(rule) - set(own)}
        holds = tabulate(rule, facts, spread(degrees, own))
        shape = tuple(len(values) for values in own.values())
        table = np.broadcast_to(np.asarray(holds), (classes.size, *shape))
        answers = {cell.tobytes(): cell for cell in np.ascontiguousarray(table.reshape(classes.size, prod(shape)).T)}
        for cell in answers.values():
            if cell.any() and not cell.all():  # else it tells none apart
                classes = classes.refine(cell, None)
    return classes
