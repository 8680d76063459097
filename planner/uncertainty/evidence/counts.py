"""Number of measured runs with each value of each property: one count, for gaps, intervals and rules of a search."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import TypeAlias, TypeVar

from costmodel import catalog
from costmodel.catalog.files import read_rows
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


def architecture_of(model: Model) -> str:
    """Return ``dense``, ``moe`` or ``hybrid`` (with some layers without softmax attention)."""
    kinds = model.kinds
    softmax = (Attention, LatentAttention, CompressedAttention)
    if not all(isinstance(kind.attention, softmax) and kind.beside is None for kind in kinds):
        return "hybrid"
    return "moe" if any(isinstance(kind.feed_forward, Experts) for kind in kinds) else "dense"


Kind = TypeVar("Kind")


def read_stored_rows(file: str, package: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of a package, cells by column."""
    return read_rows((files(package) / file).read_text(encoding="utf-8"))


def read_stored(kind: type[Kind], file: str, package: str) -> Kind:
    """Return the record that a JSON file of a package holds."""
    text = (files(package) / file).read_text(encoding="utf-8")
    return build(kind, json.loads(text), file)


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

    def has(self, among: str) -> bool:
        """Return True if a subset has runs."""
        return any(known == among for _, known in self.by_value)

    def values(self, dimension: str, among: str = ANY) -> Counter[Value]:
        """Return the number of runs with each value of a dimension."""
        return self.by_value.get((dimension, among), Counter())

    def runs(self, dimension: str, value: Value, among: str = ANY) -> int:
        """Return the number of runs with a value."""
        return self.values(dimension, among)[value]

    def total(self, dimension: str, among: str = ANY) -> int:
        """Return the number of runs with any value."""
        return self.values(dimension, among).total()

    def reaching(self, dimension: str, number: int, among: str) -> int:
        """Return the number of runs with at least some number."""
        return sum(runs for value, runs in self.values(dimension, among).items() if int(value) >= number)

    def within(self, dimension: str, number: int, among: str) -> int:
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
    for row in read_stored_rows(TABLE, "planner.uncertainty.evidence"):
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
