"""Number of measured runs with each value of each property, and the gaps between a prediction and those runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Final, Literal, TypeAlias, TypeVar

from costmodel import catalog
from costmodel.catalog.files import read_rows
from costmodel.facts.device import Population
from costmodel.facts.framework import Framework, feature_of
from costmodel.facts.model import Attention, CompressedAttention, Experts, LatentAttention, Model
from costmodel.models.flops import parameters
from costmodel.record import record
from costmodel.step.layer import layer_parts
from costmodel.strategy import CudaGraphs, Strategy, TokenDispatcher, decision_text
from costmodel.tables import Facts
from costmodel.validation import build

CHANGED = ", changed"

"""Suffix of the name of an entry that a job changes."""

ANY = "any"

"""All stacks, devices or kinds together."""


def stack_of(framework: str) -> str:
    """
    Return the software of a framework's entry, without its release.

    >>> stack_of("megatron-lm-0.17")
    'megatron-lm'
    """
    return framework.rpartition("-")[0] or framework


def architecture_of(model: Model) -> Literal["dense", "moe", "hybrid"]:
    """Return ``dense``, ``moe`` or ``hybrid`` (with some layers without softmax attention)."""
    kinds = model.kinds
    softmax = (Attention, LatentAttention, CompressedAttention)
    if not all(isinstance(kind.attention, softmax) and kind.beside is None for kind in kinds):
        return "hybrid"
    return "moe" if any(isinstance(kind.feed_forward, Experts) for kind in kinds) else "dense"


Kind = TypeVar("Kind")


def read_stored_rows(file: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of this package, cells by column."""
    return read_rows((files(__package__) / file).read_text(encoding="utf-8"))


def read_stored(kind: type[Kind], file: str, package: str, name: str = "") -> Kind:
    """Return the record that a JSON file of a package holds, or the records of one of its entries."""
    document = json.loads((files(package) / file).read_text(encoding="utf-8"))
    return build(kind, document[name] if name else document, file)


TABLE, COLUMNS = "counts.csv", ("dimension", "among", "value", "runs")

Value: TypeAlias = str | int

Entry: TypeAlias = tuple[str, str, Value]

"""Dimension, subset of runs, and value."""


@record(frozen=True, slots=True)
class Counts:
    """
    Some runs, counted.

    Parameters
    ----------
    by_value
        Number of runs by dimension and subset, then by value.
    """

    by_value: Mapping[tuple[str, str], Counter[Value]]

    @classmethod
    def count(cls, entries: Iterable[Entry]) -> Counts:
        """Count entries of runs."""
        counts: dict[tuple[str, str], Counter[Value]] = {}
        for dimension, among, value in entries:
            counts.setdefault((dimension, among), Counter())[value] += 1
        return cls(counts)

    def rows(self) -> Iterator[tuple[str, str, Value, int]]:
        """Yield the rows of the table of counts, in a fixed order."""
        for (dimension, among), counter in sorted(self.by_value.items()):
            for value, runs in sorted(counter.items(), key=_number_or_text):
                yield dimension, among, value, runs

    def values(self, dimension: str, among: str = ANY) -> Counter[Value]:
        """Return the number of runs with each value of a dimension."""
        return self.by_value.get((dimension, among), Counter())

    def runs(self, dimension: str, value: Value, among: str = ANY) -> int:
        """Return the number of runs with a value."""
        return self.values(dimension, among)[value]

    def total(self, dimension: str, among: str = ANY) -> int:
        """Return the number of runs with any value."""
        return self.values(dimension, among).total()

    def count_at_least(self, dimension: str, number: int, among: str) -> int:
        """Return the number of runs with at least some number."""
        return sum(runs for value, runs in self.values(dimension, among).items() if int(value) >= number)

    def count_within(self, dimension: str, number: int, among: str) -> int:
        """Return the number of runs with at most some number."""
        return sum(runs for value, runs in self.values(dimension, among).items() if int(value) <= number)

    def largest(self, dimension: str, among: str, *, fewest: int = 1) -> int:
        """Return the largest number that at least ``fewest`` runs reach; 0 if there is none."""
        descending = sorted(self._numbers(dimension, among), reverse=True)
        return _first_with(descending, fewest)

    def smallest(self, dimension: str, among: str, *, fewest: int = 1) -> int:
        """Return the smallest number that at least ``fewest`` runs do not exceed; 0 if there is none."""
        return _first_with(sorted(self._numbers(dimension, among)), fewest)

    def _numbers(self, dimension: str, among: str) -> Iterator[tuple[int, int]]:
        """Yield each number of a dimension with its runs."""
        return ((int(value), runs) for value, runs in self.values(dimension, among).items())

    def most(self, dimension: str, among: str, number: int) -> list[tuple[Value, int]]:
        """Return the most frequent values, with their number of runs."""
        return sorted(self.values(dimension, among).items(), key=lambda one: (-one[1], str(one[0])))[:number]


def _first_with(numbers: Iterable[tuple[int, int]], fewest: int) -> int:
    """Return the first of the numbers at which so many runs are reached; 0 if there is none."""
    counted = accumulate(numbers, lambda before, one: (one[0], before[1] + one[1]))
    return next((number for number, runs in counted if runs >= fewest), 0)


def _number_or_text(item: tuple[Value, int]) -> tuple[int, str]:
    value, _ = item
    return (value, "") if isinstance(value, int) else (0, value)


@cache
def read_counts() -> Counts:
    """Return the counts of the project's measured runs."""
    counts: dict[tuple[str, str], Counter[Value]] = {}
    for row in read_stored_rows(TABLE):
        value = int(row["value"]) if row["value"].isdecimal() else row["value"]
        counts.setdefault((row["dimension"], row["among"]), Counter())[value] = int(row["runs"])
    return Counts(counts)


DEGREES = ("tp", "cp", "pp", "ep", "etp", "vpp")

"""Degrees that count as dimensions: dp follows from them and the number of devices."""

MATTERS_ABOVE: Mapping[str, str] = {
    "schedule": "pp",
    "vocabulary": "pp",
    "sharding": "dp",
    "token_dispatcher": "ep",
    "cuda_graphs": "",
    "sequence_parallel": "tp",
    "activation_offload": "",
    "optimizer_offload": "",
    "tp_overlap": "tp",
    "cp_overlap": "cp",
    "ep_overlap": "ep",
    "pp_overlap": "pp",
    "dp_overlap": "dp",
}

"""Decisions that are features of the software, and the degree above 1 without which they have no effect."""

INLINE = "inline"

"""Name of entries without a name that runs could share."""


@record(frozen=True, kw_only=True, slots=True)
class Traits:
    """
    Traits of one run.

    Parameters
    ----------
    release, software, stack
        Its framework's name, the catalog's entry that represents it, and the software without a release; empty where no
        framework is known.
    unknown_release
        Unknown release that the entry represents; empty if there is none.
    device, architecture
        Its device, and the generation of the device; ``any`` where it is unknown.
    is_own_device
        True where the device was calibrated on its own runs.
    fitted_as
        Calibration whose runs its constants were fitted to; empty if it is the device's own.
    runs_on_device
        True where the release runs on such devices; else it represents unknown software.
    related
        Stacks with evidence for its software, the nearest first: itself, those with the same targets, all.
    kind, family
        ``dense``, ``moe`` or ``hybrid``; the model's family, ``inline`` where it has none.
    precision
        Name of its recipe.
    sizes
        Numbers that are extrapolated beyond the largest measured one: tokens of a sequence, devices, millions of
        parameters.
    degrees
        Degrees above 1.
    features
        Decisions that have an effect in it, with their values as spelled in entries of frameworks.
    recompute
        Its recomputation: ``none``, ``selective``, ``full``, or modules.
    launches_beyond
        Factor by which CPU launches of overlapped all-to-all would take longer than the longest measured; 1 where they
        would not.
    is_untuned
        True if it sends tokens to experts by all-to-all, in micro-batches of one sequence and without CUDA graphs.
    """

    release: str
    software: str
    stack: str
    unknown_release: str
    device: str
    architecture: str
    is_own_device: bool
    fitted_as: str
    runs_on_device: bool
    related: tuple[tuple[str, ...], ...]
    kind: str
    family: str
    precision: str
    sizes: Mapping[str, int]
    degrees: Mapping[str, int]
    features: Mapping[str, str]
    recompute: tuple[str, ...]
    launches_beyond: float
    is_untuned: bool = False

    def entries(self) -> tuple[Entry, ...]:
        """List all entries under which the run is counted."""
        return tuple(dict.fromkeys(self._entries()))  # a device without an architecture is among any twice

    def _entries(self) -> Iterator[Entry]:
        yield "software", ANY, self.software
        yield "release", ANY, self.release
        yield "device", ANY, self.device
        yield "device", self.software, self.device
        yield "architecture", ANY, self.architecture
        for among in (ANY, self.architecture, self.stack):
            yield "kind", among, self.kind
        yield "family", self.kind, self.family
        for among in (ANY, self.architecture):
            yield "precision", among, self.precision
        yield from ((name, self.kind, number) for name, number in (*self.sizes.items(), *self.degrees.items()))
        yield "num_devices", self.kind_on_device, self.sizes["num_devices"]
        for among in (ANY, self.stack):
            yield from (("recompute", among, part) for part in self.recompute)
        for among in (ANY, self.stack, self.architecture):
            yield from ((name, among, value) for name, value in self.features.items())

    @property
    def kind_on_device(self) -> str:
        """Name of the runs of its kind on its device."""
        return f"{self.kind} on {self.device}"


def traits_of(facts: Facts, strategy: Strategy) -> Traits:
    """
    Return the traits of a strategy for some facts.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    strategy
        Strategy of the run.
    """
    cluster, model, workload = facts.cluster, facts.model, facts.workload
    release = "" if cluster.framework is None else cluster.framework.name.removesuffix(CHANGED)
    return Traits(
        release=release,
        software=catalog.framework_names().get(release, release),
        stack=stack_of(release),
        unknown_release=cluster.unknown_release,
        device=cluster.device.name.removesuffix(CHANGED),
        architecture=cluster.device.architecture or ANY,
        is_own_device=bool(cluster.device.left_out_errors),
        fitted_as=catalog.calibration_of_fit(cluster.device),
        runs_on_device=cluster.framework is None or catalog.runs_on(cluster.framework, cluster.device.architecture),
        related=tuple(list_related_stacks(cluster.framework)),
        kind=architecture_of(model),
        family=model.family,
        precision=workload.precision.name.removesuffix(CHANGED),
        sizes={
            "sequence_length": workload.sequence_length,
            "num_devices": cluster.num_devices,
            "parameters": round(parameters(model) / 1e6),
        },
        degrees={name: degree for name in DEGREES if (degree := int(getattr(strategy, name))) > 1},
        features={name: value for name in MATTERS_ABOVE if (value := value_of(strategy, name)) is not None},
        recompute=_recomputation(strategy),
        launches_beyond=float(layer_parts(facts, strategy.decisions()).launches_beyond.max()),
        is_untuned=is_untuned(facts, strategy),
    )


UNTUNED: Final = "untuned"
"""Name of the population of runs that :func:`is_untuned` finds, apart from others of their architecture."""


def population_of(facts: Facts, strategy: Strategy) -> Population:
    """Return the population of runs whose errors a run shares: its architecture, or untuned runs with experts."""
    return UNTUNED if is_untuned(facts, strategy) else architecture_of(facts.model)


def is_untuned(facts: Facts, strategy: Strategy) -> bool:
    """Return True if a run of a model with experts has none of the features with which its maker's recipes are fast."""
    is_plain = strategy.token_dispatcher == TokenDispatcher.ALLTOALL and strategy.cuda_graphs == CudaGraphs.NONE
    return facts.model.has_experts and strategy.ep > 1 and strategy.mbs == 1 and is_plain


def _recomputation(strategy: Strategy) -> tuple[str, ...]:
    """Return the recomputation of a strategy, including that of single stages."""
    layout = strategy.layout
    values = {int(strategy.recompute), *(map(int, layout.recompute) if layout else ())}
    texts = (decision_text("recompute", value) for value in sorted(values))
    return tuple(dict.fromkeys(part for text in texts for part in text.split("+")))


def value_of(strategy: Strategy, name: str) -> str | None:
    """Return a decision's value as spelled in entries of frameworks; None where it has no effect in the strategy."""
    return feature_of(name, int(getattr(strategy, name))) if _matters(strategy, name) else None


def list_related_stacks(framework: Framework | None) -> Iterator[tuple[str, ...]]:
    """Yield a framework's own stack, then all stacks with its targets, then all."""
    if framework is not None:
        yield (stack_of(framework.name),)
        kin = {stack_of(name) for target in framework.targets for name in catalog.releases_for(target)}
        yield tuple(sorted(kin))
    yield (ANY,)


def _matters(strategy: Strategy, name: str) -> bool:
    degree = MATTERS_ABOVE[name]
    return not degree or getattr(strategy, degree) > 1


FEW_RUNS = 3

"""Runs from which on a value counts as measured: one or two may be odd, and are often of one source."""

FEWEST_RUNS = 50

"""Runs from which on the absence of a value is evidence; below, related stacks count, then all."""

MOST_TOLD = 6

"""Gaps that a text report lists; the JSON has all of them."""

NEARLY = 1.1

"""Multiple of the largest measured number from which on a number counts as larger than all."""

UNTUNED_FACTOR = 2.25

"""
Step of an untuned run over that of a tuned one.

Four jobs of Qwen3 took 1.99 to 2.92 times as long in one of NVIDIA's releases as in another, in the median 2.25. They
are 30B on 16 H100 in BF16 and FP8, and on 8 B200; 235B on 256 B300. Ordinary users publish few runs.
"""

ORDER = (
    *("software", "device", "architecture", "software on device", "kind", "family", "precision"),
    *("optimizer_offload", "activation_offload", "schedule", "vocabulary", "token_dispatcher", "cuda_graphs"),
    *("sharding", "sequence_parallel", "recompute"),
    *("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap"),
    *("launches", "tuning"),
    *("num_devices", "parameters", "sequence_length", "sequence_lengths", "cp_comm_type"),
    *("ep", "cp", "pp", "tp", "etp", "vpp", "release"),
)

"""Dimensions, those first that change a step most without measurements."""

MODEL = {"dense": "dense model", "moe": "MoE model", "hybrid": "hybrid model"}

MODELS = {"dense": "dense models", "moe": "MoE models", "hybrid": "hybrid models"}

FEATURES: Mapping[str, tuple[str, str]] = {
    "optimizer_offload": ("offloads the optimizer", "an offloaded optimizer"),
    "activation_offload": ("offloads activations", "offloaded activations"),
    "schedule": ("has schedule {value}", "schedule {value}"),
    "vocabulary": ("has vocabulary {value}", "vocabulary {value}"),
    "token_dispatcher": ("dispatches tokens by {value}", "token dispatcher {value}"),
    "cuda_graphs": ("has CUDA graphs of {value}", "cuda_graphs of {value}"),
    "sharding": ("has sharding {value}", "sharding {value}"),
    "sequence_parallel": ("has sequence parallelism", "sequence parallelism"),
    "recompute": ("recomputes {value}", "recomputation of {value}"),
    **{f"{name}_overlap": (f"overlaps {name}", f"overlap of {name}") for name in ("tp", "cp", "ep", "pp", "dp")},
}

"""Verb phrase for a run with a feature, and name of the feature."""

VALUES = {
    ("cuda_graphs", "full_iteration"): "whole iterations",
    ("recompute", "full"): "whole layers",
    ("recompute", "selective"): "attention",
}

"""Values that read better in other words."""

PLAIN = ("none", "false", "1f1b", "ends", "alltoall")

"""Values that are not features: decisions as in the simplest software."""

TIMES = {1: "once", 2: "twice"}


@record(frozen=True, kw_only=True, slots=True)
class Gap:
    """
    One property with few or no measured runs.

    Parameters
    ----------
    dimension
        Name of the property: ``software``, ``device``, a decision such as ``pp``, or a size such as ``parameters``.
    value
        Its value in the prediction.
    runs
        Number of runs with it; for a degree, runs with at least that degree. A gap has fewer than three.
    sentence
        The gap in words, without a full stop.
    beyond
        Ratio to the largest measured number, where it is larger; else 1.
    """

    dimension: str
    value: str
    runs: int
    sentence: str
    beyond: float = 1.0


def list_gaps(facts: Facts, strategy: Strategy, counts: Counts | None = None) -> list[Gap]:
    """
    List the gaps between a prediction and measured runs, the most important first.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    strategy
        Strategy of the prediction.
    counts
        Counts of the measured runs; None uses the project's.
    """
    found = gaps_to_runs(traits_of(facts, strategy), read_counts() if counts is None else counts)
    return sorted([*found, *_sequences(facts, strategy)], key=_importance)


def gaps_to_runs(run: Traits, counts: Counts) -> list[Gap]:
    """List the gaps between a run and counted runs: those without any run first, then in the order of ``ORDER``."""
    parts = (_software, _device, _kind, _family, _precision, _features, _launches, _tuning, _sizes, _degrees)
    found = (gap for part in parts for gap in part(run, counts))
    return sorted(found, key=_importance)


def _importance(gap: Gap) -> tuple[bool, int]:
    return gap.runs > 0, ORDER.index(gap.dimension)


def _sequences(facts: Facts, strategy: Strategy) -> Iterator[Gap]:
    """Yield packed sequences and exchanges of context-parallel ranks, which no measured run states."""
    lengths, kind = facts.workload.lengths, facts.cluster.device.behaviour.communication.cp_comm_type
    if lengths is not None:
        sentence = "no measured run packs sequences of unequal lengths"
        yield Gap(dimension="sequence_lengths", value=str(len(lengths.lengths)), runs=0, sentence=sentence)
    if strategy.cp > 1 and kind not in (None, "p2p"):
        sentence = f"no measured run has context parallelism by {kind}"
        yield Gap(dimension="cp_comm_type", value=kind, runs=0, sentence=sentence)


# --- software, device, model --------------------------------------------------------------------------------
def _few(dimension: str, value: str, runs: int, *, none: str, what: str) -> Iterator[Gap]:
    """Yield a gap if runs are few: a sentence for none, or with their number."""
    if runs < FEW_RUNS:
        sentence = f"{what} was measured {TIMES[runs]}" if runs else none
        yield Gap(dimension=dimension, value=value, runs=runs, sentence=sentence)


def _software(run: Traits, counts: Counts) -> Iterator[Gap]:
    if not run.release:
        return
    if run.release == INLINE:
        yield Gap(dimension="software", value=INLINE, runs=0, sentence="no measured run of the job's own framework")
        return
    if not run.runs_on_device:
        sentence = f"no file knows the software of {run.architecture}, costed as {run.release}"
        yield Gap(dimension="software", value=f"{run.release} on {run.architecture}", runs=0, sentence=sentence)
    if run.unknown_release:
        sentence = f"no measured run of {run.unknown_release}, costed as {run.release}"
        yield Gap(dimension="software", value=run.unknown_release, runs=0, sentence=sentence)
    own = counts.runs("software", run.software)
    others = _count_of_stack(run, counts) - own
    beside = f" (of other releases of it: {others:,})" if others else ""
    none = f"no measured run of {run.software}{beside}"
    yield from _few("software", run.software, own, none=none, what=run.software)
    if own >= FEW_RUNS and not run.unknown_release and not counts.runs("release", run.release):
        costed = "" if run.release == run.software else f", costed as {run.software} ({own:,} runs)"
        sentence = f"no measured run of {run.release} itself{costed}"
        yield Gap(dimension="release", value=run.release, runs=0, sentence=sentence)


def _count_of_stack(run: Traits, counts: Counts) -> int:
    counter = counts.values("software")
    return sum(count for value, count in counter.items() if stack_of(str(value)) == run.stack)


def _device(run: Traits, counts: Counts) -> Iterator[Gap]:
    """Yield the gaps of a device; none if it was calibrated on its own runs."""
    if run.is_own_device:
        return
    own, alike = counts.runs("device", run.device), counts.runs("architecture", run.architecture)
    name = "the job's own device" if run.device == INLINE else run.device
    if run.architecture in (ANY, run.device):
        beside = ""
    else:
        beside = (
            f" (on others of {run.architecture}: {alike - own:,})" if alike > own else f", nor on {run.architecture}"
        )
    yield from _few("device", run.device, own, none=f"no measured run on {name}{beside}", what=name)
    if not alike and run.fitted_as not in ("", run.architecture):
        sentence = f"constants of {run.architecture} are those of {run.fitted_as} where nothing was published"
        yield Gap(dimension="architecture", value=run.architecture, runs=0, sentence=sentence)
    if own and counts.runs("software", run.software) and not counts.runs("device", run.device, run.software):
        sentence = f"no measured run of {run.software} on {run.device}"
        yield Gap(dimension="software on device", value=f"{run.software} on {run.device}", runs=0, sentence=sentence)


def _kind(run: Traits, counts: Counts) -> Iterator[Gap]:
    models = MODELS[run.kind]
    if not counts.runs("kind", run.kind):
        yield Gap(dimension="kind", value=run.kind, runs=0, sentence=f"no measured run of {models}")
        return
    if not run.is_own_device and counts.runs("architecture", run.architecture):
        runs, on = counts.runs("kind", run.kind, run.architecture), f"on {run.architecture}"
        value, none = f"{run.kind} {on}", f"no measured run of {models} {on}"
        yield from _few("kind", value, runs, none=none, what=f"a {MODEL[run.kind]} {on}")
    if _count_of_stack(run, counts):
        runs, by = counts.runs("kind", run.kind, run.stack), f"with {run.stack}"
        value, none = f"{run.kind} {by}", f"no measured run of {models} {by}"
        yield from _few("kind", value, runs, none=none, what=f"a {MODEL[run.kind]} {by}")


def _family(run: Traits, counts: Counts) -> Iterator[Gap]:
    if run.family == INLINE or not counts.runs("kind", run.kind):
        return
    known = [(name, count) for name, count in counts.most("family", run.kind, 3) if name not in (INLINE, run.family)]
    beside = ", ".join(f"{name} {count:,}" for name, count in known[:2])
    none = f"no measured run of {MODELS[run.kind]} of family {run.family}" + (f" ({beside})" if beside else "")
    runs = counts.runs("family", run.family, run.kind)
    yield from _few("family", run.family, runs, none=none, what=f"a {MODEL[run.kind]} of family {run.family}")


def _precision(run: Traits, counts: Counts) -> Iterator[Gap]:
    everywhere = counts.runs("precision", run.precision)
    if not everywhere:
        sentence = f"no measured run in {run.precision}"
        yield Gap(dimension="precision", value=run.precision, runs=0, sentence=sentence)
    elif not run.is_own_device and counts.runs("architecture", run.architecture):
        runs, on = counts.runs("precision", run.precision, run.architecture), f"{run.precision} on {run.architecture}"
        yield from _few("precision", on, runs, none=f"no measured run in {on}", what=on)


# --- decisions ----------------------------------------------------------------------------------------------
def _features(run: Traits, counts: Counts) -> Iterator[Gap]:
    """Yield features that few runs of its stack have, or of related stacks where its own has too few runs to tell."""
    known = [*run.features.items(), *(("recompute", part) for part in run.recompute)]
    for name, value in known:
        if value in PLAIN:
            continue
        stacks = next(each for each in run.related if _total(counts, name, each) >= FEWEST_RUNS or ANY in each)
        runs = sum(counts.runs(name, value, stack) for stack in stacks)
        of = "" if ANY in stacks or not counts.runs(name, value) else f" of {_stacks_text(stacks)}"
        does, called = _feature_words(name, value)
        beside = counts.runs(name, value)
        others = f" ({beside:,} of other software)" if beside > runs else ""
        what = f"{called} with {_stacks_text(stacks)}" if of else called
        few = list(_few(name, value, runs, none=f"no measured run{of} {does}{others}", what=what))
        yield from few or _feature_on(run, counts, name, value)


def _feature_on(run: Traits, counts: Counts, name: str, value: str) -> Iterator[Gap]:
    """Yield a feature that few runs on its generation of devices have, where there are enough of these."""
    if run.is_own_device or counts.total(name, run.architecture) < FEWEST_RUNS:
        return
    does, called = _feature_words(name, value)
    runs, on = counts.runs(name, value, run.architecture), f"on {run.architecture}"
    yield from _few(name, f"{value} {on}", runs, none=f"no measured run {on} {does}", what=f"{called} {on}")


def _feature_words(name: str, value: str) -> tuple[str, str]:
    """Return the verb phrase for a run with a feature, and the name of the feature."""
    does, called = FEATURES[name]
    shown = VALUES.get((name, value), value)
    return does.format(value=shown), called.format(value=shown)


def _total(counts: Counts, name: str, stacks: Sequence[str]) -> int:
    return sum(counts.total(name, stack) for stack in stacks)


def _stacks_text(stacks: Sequence[str]) -> str:
    """List stacks in words."""
    return stacks[0] if len(stacks) == 1 else f"{', '.join(stacks[:-1])} or {stacks[-1]}"


def _launches(run: Traits, _: Counts) -> Iterator[Gap]:
    """Yield CPU launches of overlapped all-to-all beyond those of measured runs, whose effect is capped."""
    if run.launches_beyond > 1:
        sentence = (
            "EP overlap with so much CPU launch overhead was never measured: costed with the longest launches that "
            f"were measured, computed ones take {run.launches_beyond:.2f} times as long"
        )
        yield Gap(
            dimension="launches",
            value=f"{run.launches_beyond:.2f} times",
            runs=0,
            sentence=sentence,
            beyond=run.launches_beyond,
        )


def _tuning(run: Traits, _: Counts) -> Iterator[Gap]:
    """Yield the lack of all features with which published runs of models with experts are fast."""
    if run.is_untuned:
        sentence = (
            "all-to-all with micro-batches of one sequence and no CUDA graphs: such runs take up to "
            f"{UNTUNED_FACTOR} times as long as tuned ones"
        )
        yield Gap(dimension="tuning", value="untuned", runs=FEW_RUNS, sentence=sentence)


# --- numbers ------------------------------------------------------------------------------------------------
def _sizes(run: Traits, counts: Counts) -> Iterator[Gap]:
    """Yield numbers beyond all measured ones of its kind; for devices, those on its device where there are any."""
    if not counts.runs("kind", run.kind):
        return
    on_device = bool(counts.total("num_devices", run.kind_on_device))
    among = {"num_devices": run.kind_on_device} if on_device else {}
    where = f" on {run.device}" if on_device else ""
    model, models = MODEL[run.kind], MODELS[run.kind]
    words = {
        "num_devices": f"the largest measured number of devices of {models}{where} is {{most:,}} (this job: {{own:,}})",
        "sequence_length": f"the longest measured sequence of {models} has {{most:,}} tokens (this job: {{own:,}})",
        "parameters": f"the largest measured {model} has {{most:,}} million parameters (this job: {{own:,}})",
    }
    for name, own in run.sizes.items():
        if name == "num_devices" and run.is_own_device:
            continue
        most = counts.largest(name, among.get(name, run.kind))
        if own >= NEARLY * most:
            sentence = words[name].format(most=most, own=own)
            yield Gap(dimension=name, value=str(own), runs=0, sentence=sentence, beyond=own / most)


def _degrees(run: Traits, counts: Counts) -> Iterator[Gap]:
    """Yield degrees that few runs reach: between two measured degrees nothing is extrapolated."""
    if not counts.runs("kind", run.kind):
        return
    models = MODELS[run.kind]
    for name, degree in run.degrees.items():
        most, beyond = counts.largest(name, run.kind), counts.count_at_least(name, degree, run.kind)
        value = f"{name} {degree:,}" if counts.runs(name, degree, run.kind) else f"{name} of {degree:,} or more"
        known = f"the largest measured {name} of {models} is {most:,} (this job: {degree:,})"
        none = known if most else f"no measured run of a {MODEL[run.kind]} has {name} above 1"
        for gap in _few(name, str(degree), beyond, none=none, what=f"{value} of {models}"):
            yield gap if beyond else replace(gap, beyond=degree / max(most, 1))
