"""Evidence for features and pairs of them, and rules of a search that leave out those with too few measured runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, reduce
from itertools import combinations
from math import gcd
from operator import or_
from typing import Any

import numpy as np

from constraints.rule import Holds, Ints, Rule
from costmodel.facts.device import Cluster
from costmodel.facts.framework import Framework
from costmodel.facts.model import Experts, Model
from costmodel.facts.workload import Precision, Workload
from costmodel.record import record
from costmodel.strategy import (
    ENUMS,
    CudaGraphs,
    Schedule,
    Sharding,
    Strategy,
    TokenDispatcher,
    Vocabulary,
    decision_text,
)
from costmodel.tables import Facts
from planner.uncertainty.counts import ANY, CHANGED, Entry, architecture_of, read_counts, stack_of

FEWEST_RUNS = 3
"""Fewest measured runs of a feature, or pair of features, in a default plan."""

MEGATRON = "megatron"
"""The stack line of software whose layers are Megatron Core's."""

LINES: Mapping[str, str] = {"megatron-lm": MEGATRON, "megatron-bridge": MEGATRON}
"""Stack lines of frameworks by the target of their plans: both run Megatron Core's layers."""


@record(frozen=True, kw_only=True, slots=True)
class Axis:
    """
    A feature of a strategy, or a degree that is paired with features.

    Parameters
    ----------
    name
        The decision, or a separate name where several decisions determine it.
    decisions
        Decisions that determine it.
    usual
        Values that need no evidence.
    values
        Function that returns the values, from the devices of a scale-up domain and the decisions, each a number or an
        array.
    words
        Phrase for a value, with ``{value}`` as its place.
    meets
        Degrees that form pairs with it.
    """

    name: str
    decisions: tuple[str, ...]
    usual: tuple[int, ...]
    words: str
    values: Callable[..., Any]
    meets: tuple[str, ...] = ()

    def read_values(self, scale_up_size: int, decisions: Mapping[str, Any]) -> Any:
        """Return values of the axis for decisions by name, and the number of devices of a scale-up domain."""
        return self.values(scale_up_size, **{name: np.asarray(decisions[name]) for name in self.decisions})

    def token(self, value: int) -> str:
        """Return the name of a value in the table."""
        if self.name == "bits":
            return f"{self.name}={value}"
        return self.name if self.is_flag else f"{self.name}={decision_text(self.name, value)}"

    def value_of(self, token: str) -> int:
        """Return the value that a name in the table stands for."""
        return 1 if self.is_flag else int(ENUMS[self.name].named(token.partition("=")[2]))

    def text(self, value: int) -> str:
        """Return a value in words."""
        return CALLED.get((self.name, value)) or self.words.format(value=decision_text(self.name, value))

    @property
    def is_flag(self) -> bool:
        """True where it is on or off."""
        return self.name not in ENUMS


CALLED: Mapping[tuple[str, int], str] = {
    ("sharding", Sharding.GRADIENTS): "ZeRO 2",
    ("sharding", Sharding.WEIGHTS): "FSDP (ZeRO 3)",
    ("token_dispatcher", TokenDispatcher.DEEPEP): "DeepEP",
    ("token_dispatcher", TokenDispatcher.HYBRIDEP): "HybridEP",
    ("cuda_graphs", CudaGraphs.FULL_ITERATION): "one CUDA graph of the whole iteration",
}
"""Names of values that users know better than ours."""


def _own(name: str) -> Callable[..., Any]:
    return lambda _, **decisions: decisions[name]


def _choice(name: str, usual: Iterable[int], words: str, meets: tuple[str, ...] = ()) -> Axis:
    return Axis(name=name, decisions=(name,), usual=tuple(usual), words=words, values=_own(name), meets=meets)


def _is_above_one(name: str, words: str) -> Axis:
    return Axis(name=name, decisions=(name,), usual=(0,), words=words, values=lambda _, **given: given[name] > 1)


FEATURES: tuple[Axis, ...] = (
    _choice("sharding", (Sharding.NONE, Sharding.OPTIMIZER), "sharding {value}", ("tp", "cp", "pp", "ep")),
    _choice("token_dispatcher", (TokenDispatcher.ALLTOALL,), "dispatcher {value}"),
    _choice("cuda_graphs", (CudaGraphs.NONE,), "CUDA graphs of {value}", ("tp", "cp", "pp")),
    _choice("schedule", (Schedule.ONE_F_ONE_B,), "schedule {value}"),
    _choice("vocabulary", (Vocabulary.ENDS,), "vocabulary {value}"),
    _choice("tp_overlap", (0,), "TP overlap by user buffers"),
    _choice("ep_overlap", (0,), "EP overlap", ("tp", "cp", "pp")),
    _choice("activation_offload", (0,), "activation offload", ("tp", "cp", "pp")),
    _choice("optimizer_offload", (0,), "optimizer offload", ("tp", "cp", "pp")),
    _is_above_one("etp", "tp inside experts"),
    Axis(
        name="wide_ep",
        decisions=("ep", "etp"),
        usual=(0,),
        words="experts beyond one scale-up domain",
        values=lambda size, ep, etp: ep * etp > size,
    ),
)
"""Features that a default plan has only with evidence from runs; degrees, ZeRO-1 and recomputation need none."""

DEGREES: tuple[Axis, ...] = tuple(_is_above_one(name, name) for name in ("tp", "cp", "pp", "ep"))
"""Degrees that are paired with features that reach beyond a layer; other features act inside of one layer."""

DEEP = Axis(name="vpp", decisions=("vpp",), usual=(), words="vpp of {value} or more", values=lambda _, vpp: vpp)
"""Virtual stages per rank beyond those of measured runs."""

NARROW = Axis(name="ep", decisions=("ep",), usual=(), words="ep of {value} or less", values=lambda _, ep: ep)
"""Experts over fewer ranks than in runs: more memory of experts, and rows per expert that no kernel was timed with."""

WIDE = Axis(name="ep", decisions=("ep",), usual=(), words="ep of {value} or more", values=lambda _, ep: ep)
"""Experts over more ranks than in runs: all-to-all over networks that no run has measured with as many peers."""

SHORT = Axis(
    name="cp", decisions=("cp",), usual=(), words="cp with {value} tokens per rank or less", values=lambda _, cp: cp
)
"""Context parallelism that leaves a rank fewer tokens than in runs, so that its attention hides less communication."""

AXES: Mapping[str, Axis] = {axis.name: axis for axis in (*FEATURES, *DEGREES)}

WITH = " with "
"""Separator between the names of a pair."""

INHERITED = ("sharding",)
"""Features that devices without measured runs share with related devices; all others need their own evidence."""


PRECISION = Axis(
    name="bits", decisions=(), usual=(16,), words="operands of {value} bits", values=lambda _: 16, meets=()
)
"""Bits of the operands of matmuls, which the job sets: FSDP gathers and shards weights in them."""


def num_bits(precision: Precision) -> int:
    """Bits of the operands of a precision recipe's matmuls."""
    return BITS.get(precision.compute, 16)


BITS = {"fp8": 8, "mxfp8": 8, "nvfp4": 4}
"""Bits by the dtype that matmuls compute in; 16 for all others."""


def makes_pair(one: Axis, value: int, other: Axis) -> bool:
    """Return True if a feature's value and another axis are a pair that needs evidence."""
    if other in FEATURES:
        return True
    of_modules = one.name == "cuda_graphs" and value != CudaGraphs.FULL_ITERATION
    return other.name in one.meets and not of_modules


@record(frozen=True, kw_only=True, slots=True)
class Unproven:
    """
    A feature, or a pair of features, with too few measured runs.

    Parameters
    ----------
    names
        The decisions, one or two.
    text
        Feature or pair in words.
    runs
        Number of measured runs with it.
    among
        Number of runs of the same generation, family and stack line.
    where
        These runs in words.
    """

    names: tuple[str, ...]
    text: str
    runs: int
    among: int
    where: str


# --- the table ----------------------------------------------------------------------------------------------


def tokens_of(cluster: Cluster, strategy: Strategy) -> list[tuple[Axis, int]]:
    """Return the features of a strategy that need evidence, and the degrees above 1 that may be paired with them."""
    decisions = strategy.decisions()
    values = ((axis, int(axis.read_values(cluster.scale_up_size, decisions))) for axis in AXES.values())
    matters = {"token_dispatcher": strategy.ep > 1, "sharding": strategy.dp * strategy.cp > 1}
    return [(axis, value) for axis, value in values if value not in axis.usual and matters.get(axis.name, True)]


def pairs_of(tokens: Iterable[tuple[Axis, int]]) -> Iterator[tuple[tuple[Axis, int], tuple[Axis, int]]]:
    """Find the pairs of features that need evidence together."""
    for one, other in combinations(tokens, 2):
        if one[0] in FEATURES and makes_pair(*one, other[0]):
            yield one, other


def _pairs_with_bits(tokens: Iterable[tuple[Axis, int]], bits: int) -> Iterator[tuple[tuple[Axis, int], ...]]:
    """
    Yield pairs of features with a precision.

    FSDP pairs with fewer than 16 bits, in which it gathers. A graph of the whole iteration pairs with every precision:
    each has its own captured casts, scales and losses.
    """
    for one in tokens:
        is_whole = one == (AXES["cuda_graphs"], CudaGraphs.FULL_ITERATION)
        if is_whole or (one[0].name == "sharding" and bits not in PRECISION.usual):
            yield one, (PRECISION, bits)


def name_of(*tokens: tuple[Axis, int]) -> str:
    """Return the name of a feature, or of a pair of them, in the table."""
    return WITH.join(axis.token(value) for axis, value in tokens)


def feature_entries(facts: Facts, strategy: Strategy) -> Iterator[Entry]:
    """
    Yield the entries of a run's features and degrees by stack line, generation of devices and family.

    Dimensions are ``feature`` (features, and pairs of them joined by `` with ``), ``vpp``, ``ep`` and ``cp_tokens``.
    The last two are given where ep and cp are above 1; ``cp_tokens`` are the tokens of a sequence per rank.
    """
    line, generation, family = key_of(facts.model, facts.cluster)
    own: dict[str, Iterable[int | str]] = {
        "feature": list(_names_of(facts, strategy)),
        "vpp": [strategy.vpp],
        "ep": [strategy.ep] if strategy.ep > 1 else [],
        "cp_tokens": [facts.workload.sequence_length // strategy.cp] if strategy.cp > 1 else [],
    }
    for key in {(one, *rest) for one in (line, ANY) for rest in ((generation, family), (ANY, family), (ANY, ANY))}:
        yield from ((name, subset_name(key), value) for name, values in own.items() for value in values)


def subset_name(key: tuple[str, str, str]) -> str:
    """Return the name of runs of a stack line, generation and family in the table."""
    return " ".join(key)


def _names_of(facts: Facts, strategy: Strategy) -> Iterator[str]:
    """Yield the names of a run's features and of their pairs."""
    tokens = tokens_of(facts.cluster, strategy)
    yield from (name_of(one) for one in tokens if one[0] in FEATURES)
    pairs = (*pairs_of(tokens), *_pairs_with_bits(tokens, num_bits(facts.workload.precision)))
    yield from (name_of(*pair) for pair in pairs)


def line_of(framework: Framework | None) -> str:
    """
    Return the stack line of a framework: software that shares evidence.

    Frameworks whose plans go to Megatron-LM or Megatron-Bridge are one line, others have their target or name.
    """
    if framework is None:
        return ANY
    first = next(iter(framework.targets), stack_of(framework.name.removesuffix(CHANGED)))
    return LINES.get(first, first)


def key_of(model: Model, cluster: Cluster) -> tuple[str, str, str]:
    """Return stack line, generation and family of a job."""
    return line_of(cluster.framework), cluster.device.architecture or ANY, architecture_of(model)


# --- a job's evidence ---------------------------------------------------------------------------------------


@record(frozen=True, kw_only=True, slots=True)
class Evidence:
    """
    Evidence of the measured runs that are comparable with a job.

    Parameters
    ----------
    key
        Stack line, generation and family of the job.
    own
        Name of the runs of these in the table; None where there are none.
    related
        Name of the runs of its stack line on any devices, for ZeRO of a job without runs of its own; None where there
        are none.
    where
        Its own runs in words.
    bits
        Bits of the operands of its matmuls.
    """

    key: tuple[str, str, str]
    own: str | None
    related: str | None
    where: str
    bits: int = 16

    @classmethod
    def read(cls, key: tuple[str, str, str], where: str, bits: int = 16) -> Evidence:
        """Return the evidence of runs of a stack line, generation and family."""
        line, generation, family = key
        related = _first_with_runs((line, ANY, family), (line, ANY, ANY))
        own = None if generation == ANY else _first_with_runs(key)
        return cls(key=key, own=own, related=related, where=where, bits=bits)

    @property
    def grounds(self) -> str:
        """Clause with the reason that a value is left out."""
        if self.own is None:
            return f"no run of {self.where} was measured"
        return f"fewer than {FEWEST_RUNS} of {_num_runs(self.own):,} measured runs of {self.where} have it"

    def runs(self, *tokens: tuple[Axis, int]) -> int:
        """Return the number of runs with a feature, or a pair of features."""
        (axis, value), *others = tokens
        counts = read_counts()
        if axis in (DEEP, WIDE, NARROW, SHORT):
            count = counts.count_at_least if axis in (DEEP, WIDE) else counts.count_within
            return count("cp_tokens" if axis is SHORT else axis.name, value, self.own) if self.own else 0
        among = self.own
        if among is None and axis.name in INHERITED and not any(other in FEATURES for other, _ in others):
            among = self.related
        return counts.runs("feature", name_of(*tokens), among) if among else 0

    def shows(self, *tokens: tuple[Axis, int]) -> bool:
        """Return True if enough runs have a feature, or a pair of features."""
        return self._is_free(tokens[0][0]) or self.runs(*tokens) >= FEWEST_RUNS

    def _is_free(self, axis: Axis) -> bool:
        """Return True if a feature needs no evidence, since there are no runs of the stack line."""
        return self.own is None and self.related is None and axis.name in INHERITED

    @property
    def most_vpp(self) -> int | None:
        """Largest number of virtual stages per rank with enough runs; None where it is unknown."""
        among = self.own or self.related
        return max(1, read_counts().largest("vpp", among, fewest=FEWEST_RUNS)) if among else None

    def ep_range(self, most: int) -> tuple[int, int] | None:
        """The smallest and the largest degree above 1 of enough runs, as far as the job allows; None: nobody knows."""
        among, counts = self.own or self.related, read_counts()
        largest = counts.largest("ep", among, fewest=FEWEST_RUNS) if among else 0
        return (min(counts.smallest("ep", among, fewest=FEWEST_RUNS), most), largest) if among and largest else None

    @property
    def least_cp_tokens(self) -> int:
        """The fewest tokens of a sequence per context-parallel rank that enough runs have; 0 where nobody knows."""
        among, counts = (one for one in (self.own, self.related) if one), read_counts()
        return next(filter(None, (counts.smallest("cp_tokens", one, fewest=FEWEST_RUNS) for one in among)), 0)

    def proven(self, axis: Axis) -> frozenset[int]:
        """Return the values of a feature, beyond the usual ones, that enough runs have."""
        if self._is_free(axis):
            return frozenset(int(value) for value in Sharding if value not in axis.usual)
        among = self.own or self.related
        names = (str(name) for name in read_counts().values("feature", among)) if among else ()
        own = [axis.value_of(name) for name in names if WITH not in name and name.partition("=")[0] == axis.name]
        found = (value for value in own if self.shows((axis, value)))
        return frozenset(value for value in found if self.shows_precision(axis, value))

    def shows_precision(self, axis: Axis, value: int) -> bool:
        """Return True if enough runs have a feature in the job's precision, or the precision does not matter."""
        return all(self.shows(*pair) for pair in _pairs_with_bits([(axis, value)], self.bits))

    def unproven(self, *tokens: tuple[Axis, int]) -> Unproven:
        """Describe a feature or pair with too few runs."""
        return Unproven(
            names=tuple(axis.name for axis, _ in tokens),
            text=WITH.join(axis.text(value) for axis, value in tokens),
            runs=self.runs(*tokens),
            among=_num_runs(self.own) if self.own else 0,
            where=self.where,
        )


def _num_runs(among: str) -> int:
    """Count the runs of a subset by their vpp, which every run has."""
    return read_counts().total("vpp", among)


def _first_with_runs(*keys: tuple[str, str, str]) -> str | None:
    """Return the name of the first subset that has runs."""
    return next((name for name in map(subset_name, keys) if _num_runs(name)), None)


SOFTWARE = {ANY: "any software", MEGATRON: "Megatron"}

GENERATIONS = {"blackwell-rtx": "Blackwell RTX", "cdna3": "CDNA 3", "cdna4": "CDNA 4", "tpu": "TPU"}

FAMILIES = {"dense": "dense models", "moe": "MoE models", "hybrid": "hybrid models"}


def evidence_for(model: Model, cluster: Cluster, workload: Workload) -> Evidence:
    """Return the evidence for a job's stack line, generation of devices and family of models."""
    line, generation, family = key_of(model, cluster)
    software = SOFTWARE.get(line, line)
    device = cluster.device.name.removesuffix(CHANGED)
    devices = device if generation == ANY else GENERATIONS.get(generation, generation.capitalize())
    where = f"{software} on {devices} with {FAMILIES[family]}"
    return Evidence.read((line, generation, family), where, num_bits(workload.precision))


def unproven_of(facts: Facts, strategy: Strategy) -> tuple[Unproven, ...]:
    """
    Find the features of a strategy, and pairs of features, with too few measured runs.

    Parameters
    ----------
    facts
        Model, cluster and workload, which determine the comparable runs.
    strategy
        Strategy to check.

    Returns
    -------
    tuple
        Single features first, then pairs.
    """
    known = evidence_for(facts.model, facts.cluster, facts.workload)
    tokens = tokens_of(facts.cluster, strategy)
    alone = [one for one in tokens if one[0] in FEATURES and not known.shows(one)]
    every = [*pairs_of(tokens), *_pairs_with_bits(tokens, known.bits)]
    pairs = [pair for pair in every if not known.shows(*pair)]
    found = [known.unproven(*one) for one in (*((one,) for one in alone), *pairs)]
    most = known.most_vpp
    if most is not None and strategy.vpp > most:
        found.append(known.unproven((DEEP, strategy.vpp)))
    if strategy.ep > 1 and (degrees := known.ep_range(most_ep(facts.model, facts.cluster))) is not None:
        if strategy.ep < degrees[0]:
            found.append(known.unproven((NARROW, strategy.ep)))
        if strategy.ep > degrees[1]:
            found.append(known.unproven((WIDE, strategy.ep)))
    tokens_of_rank = facts.workload.sequence_length // strategy.cp
    if strategy.cp > 1 and tokens_of_rank < known.least_cp_tokens:
        found.append(known.unproven((SHORT, tokens_of_rank)))
    return tuple(found)


def most_ep(model: Model, cluster: Cluster) -> int:
    """The largest expert-parallel degree that divides a model's experts and the devices."""
    blocks = (kind.feed_forward for kind in model.kinds)
    return gcd(cluster.num_devices, *(block.num_experts for block in blocks if isinstance(block, Experts)))


def evidence_rules(facts: Facts, asked: Iterable[str]) -> tuple[Rule, ...]:
    """
    Make the rules that exclude features and pairs of features that too few measured runs have.

    Parameters
    ----------
    facts
        Facts of the job, which decide the runs that count.
    asked
        Decisions whose values the job names: their features are allowed, and pairs of two of them, or with one that
        is unproven anyway.

    Returns
    -------
    tuple
        A rule for each feature and each pair of them that some value breaks.
    """
    known, size = evidence_for(facts.model, facts.cluster, facts.workload), facts.cluster.scale_up_size
    named = frozenset(axis.name for axis in (*AXES.values(), DEEP) if set(axis.decisions) & set(asked))
    rules = _rules(known.key, known.where, known.bits, size, named)
    degrees, tokens = known.ep_range(most_ep(facts.model, facts.cluster)), known.least_cp_tokens
    ranks = () if "ep" in named or degrees is None else (_usual_ranks(known, *degrees),)
    parts = () if "cp" in named or not tokens else (_long_parts(known, tokens, facts.workload.sequence_length),)
    return (*rules, *ranks, *parts)


@lru_cache(maxsize=16)
def _rules(
    key: tuple[str, str, str], where: str, bits: int, scale_up_size: int, asked: frozenset[str]
) -> tuple[Rule, ...]:
    known = Evidence.read(key, where, bits)
    proven = {axis.name: known.proven(axis) for axis in FEATURES}
    alone = (_alone(known, axis, proven[axis.name], scale_up_size) for axis in FEATURES if axis.name not in asked)
    pairs = (
        _pair(known, (one, proven[one.name]), (other, proven.get(other.name, frozenset({1}))), scale_up_size)
        for one, other in combinations(AXES.values(), 2)
        if one in FEATURES and not {one.name, other.name} <= asked
    )
    deep = None if "vpp" in asked else _few_stages(known)
    return tuple(rule for rule in (*alone, *pairs, deep) if rule is not None)


def _few_stages(known: Evidence) -> Rule | None:
    """Make the rule that virtual stages per rank are no more than runs reach; None where nobody knows."""
    most = known.most_vpp
    if most is None:
        return None

    def holds(*, vpp: Ints) -> Holds:
        return vpp <= most

    return _rule(holds, ("vpp",), f"The search uses vpp up to {most}: of more, {known.grounds} ({LIFTED}).")


def _usual_ranks(known: Evidence, least: int, most: int) -> Rule:
    """Make the rule that experts are divided over as many ranks as in runs."""

    def holds(*, ep: Ints) -> Holds:
        return (ep == 1) | ((ep >= least) & (ep <= most))

    text = f"The search uses ep 1, or from {least} to {most}: of others, {known.grounds}"
    return _rule(holds, ("ep",), f"{text} ({LIFTED}).")


def _long_parts(known: Evidence, tokens: int, sequence_length: int) -> Rule:
    """Make the rule that context parallelism leaves a rank no fewer tokens than in runs."""
    most = max(1, sequence_length // tokens)

    def holds(*, cp: Ints) -> Holds:
        return cp <= most

    text = f"The search uses cp up to {most}, {tokens:,} tokens of a sequence per rank: of less, {known.grounds}"
    return _rule(holds, ("cp",), f"{text} ({LIFTED}).")


def _alone(known: Evidence, axis: Axis, proven: frozenset[int], scale_up_size: int) -> Rule | None:
    """Make the rule of one feature; None where runs have shown all its values."""
    if axis.is_flag and proven:
        return None
    allowed = {int(value) for value in (*axis.usual, *proven)}

    def holds(**decisions: Any) -> Holds:
        values = np.asarray(axis.read_values(scale_up_size, decisions))
        answer: Holds = reduce(or_, (values == one for one in sorted(allowed)))
        return answer

    few = axis.text(1) if axis.is_flag else f"{axis.words.partition(' {')[0]} {_values(axis, allowed)}"
    text = f"leaves {few} out" if axis.is_flag else f"has {few} alone"
    return _rule(holds, axis.decisions, f"The search {text}: {known.grounds} ({LIFTED}).")


def _values(axis: Axis, values: Iterable[int]) -> str:
    return " or ".join(decision_text(axis.name, value) for value in sorted(values))


def _pair(
    known: Evidence, one: tuple[Axis, frozenset[int]], other: tuple[Axis, frozenset[int]], scale_up_size: int
) -> Rule | None:
    """Make the rule of a pair of features, each proven alone; None where runs have shown all their values together."""
    (first, left), (second, right) = one, other
    apart = [
        (a, b)
        for a in sorted(left)
        for b in sorted(right)
        if makes_pair(first, a, second) and not known.shows((first, a), (second, b))
    ]
    if not apart:
        return None

    def holds(**decisions: Any) -> Holds:
        have, meet = (np.asarray(axis.read_values(scale_up_size, decisions)) for axis in (first, second))
        together = reduce(or_, ((have == a) & (meet == b) for a, b in apart))
        answer: Holds = np.logical_not(together)
        return answer

    words = "; ".join(f"{first.text(a)} with {second.text(b)}" for a, b in apart)
    names = tuple(dict.fromkeys((*first.decisions, *second.decisions)))
    return _rule(holds, names, f"The search leaves {words} out: {known.grounds} ({LIFTED}).")


LIFTED = "search.evidence: any"
"""Entry of a job that lifts these rules."""


def _rule(holds: Callable[..., Holds], decisions: Iterable[str], text: str) -> Rule:
    """Return a function as a rule about some decisions, with its sentence."""
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in decisions]
    holds.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    holds.__doc__ = text
    return holds
