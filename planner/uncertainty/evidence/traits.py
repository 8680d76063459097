"""Traits of a run that other runs may lack, and the number of runs with each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

from pydantic.dataclasses import dataclass as validated

from costmodel import catalog
from costmodel.facts.fields import STRICT
from costmodel.models.parameters import parameters
from costmodel.step.layer import layer_parts
from costmodel.strategy import Strategy, decision_text
from costmodel.tables import Facts
from planner.uncertainty.evidence.kinds import ANY, CHANGED, architecture_of, stack_of
from planner.uncertainty.evidence.shown import MATTERS_ABOVE, related_stacks, shown_features, value_of
from planner.uncertainty.evidence.stored import stored

TABLE = "ground.yaml"

Value: TypeAlias = str | int

Entry: TypeAlias = tuple[str, str, Value]
"""Dimension, subset of runs, and value."""

DEGREES = ("tp", "cp", "pp", "ep", "etp", "vpp")
"""Degrees that count as dimensions: dp follows from them and the number of devices."""

INLINE = "inline"
"""Name of entries without a name that runs could share."""


@dataclass(frozen=True, kw_only=True, slots=True)
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

    def entries(self) -> tuple[Entry, ...]:
        """List all entries under which the run is counted, without the features of its stack."""
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
        for name, size in self.sizes.items():
            yield name, self.kind, size
        yield "num_devices", self.kind_on_device, self.sizes["num_devices"]
        for name, degree in self.degrees.items():
            yield name, self.kind, degree
        for part in self.recompute:
            yield "recompute", ANY, part
            yield "recompute", self.stack, part
        if self.architecture != ANY:
            for name, value in self.features.items():
                yield name, self.architecture, value

    def feature_entries(self) -> Iterator[Entry]:
        """Yield the features of its stack under which it is counted."""
        for name, value in self.features.items():
            yield name, ANY, value
            yield name, self.stack, value

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
        fitted_as=catalog.fitted_as(cluster.device),
        runs_on_device=cluster.framework is None or catalog.runs_on(cluster.framework, cluster.device.architecture),
        related=tuple(related_stacks(cluster.framework)),
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
    )


def _recomputation(strategy: Strategy) -> tuple[str, ...]:
    """Return the recomputation of a strategy, including that of single stages."""
    layout = strategy.layout
    values = {int(strategy.recompute), *(map(int, layout.recompute) if layout else ())}
    texts = (decision_text("recompute", value) for value in sorted(values))
    return tuple(dict.fromkeys(part for text in texts for part in text.split("+")))


# --- how many runs have shown it ----------------------------------------------------------------------------


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class Tally:
    """
    Number of runs with each value.

    Parameters
    ----------
    dimension
        Dimension of the values.
    among
        Subset of runs; ``any`` for all of them.
    runs
        Number of runs by value.
    """

    dimension: str
    among: str
    runs: Mapping[int | str, int]


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class GroundTable:
    """
    Traits of the measured runs.

    Parameters
    ----------
    source
        Source of the runs.
    tallies
        Counts by dimension; those of features by stack are in their own table.
    """

    source: str
    tallies: tuple[Tally, ...]


@dataclass(frozen=True, slots=True)
class Ground:
    """
    Traits of some runs, counted.

    Parameters
    ----------
    counts
        Number of runs by dimension and subset, then by value.
    """

    counts: Mapping[tuple[str, str], Counter[Value]] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Iterable[Traits]) -> Ground:
        """Count the traits of runs."""
        counts: dict[tuple[str, str], Counter[Value]] = {}
        for run in runs:
            for dimension, among, value in (*run.entries(), *run.feature_entries()):
                counts.setdefault((dimension, among), Counter())[value] += 1
        return cls(counts)

    def of_values(self, dimension: str, among: str = ANY) -> Counter[Value]:
        """Return the number of runs with each value of a dimension."""
        return self.counts.get((dimension, among), Counter())

    def runs(self, dimension: str, value: Value, among: str = ANY) -> int:
        """Return the number of runs with a value."""
        return self.of_values(dimension, among)[value]

    def total(self, dimension: str, among: str = ANY) -> int:
        """Return the number of runs with any value."""
        return self.of_values(dimension, among).total()

    def largest(self, dimension: str, among: str) -> int:
        """Return the largest number of any run; 0 if there are no runs."""
        counter = self.of_values(dimension, among)
        return max((int(value) for value, count in counter.items() if count > 0), default=0)

    def reaching(self, dimension: str, number: int, among: str) -> int:
        """Return the number of runs with at least some number."""
        return sum(count for value, count in self.of_values(dimension, among).items() if int(value) >= number)

    def most(self, dimension: str, among: str, number: int) -> list[tuple[Value, int]]:
        """Return the most frequent values, with their number of runs."""
        found = [(value, count) for value, count in self.of_values(dimension, among).items() if count > 0]
        return sorted(found, key=lambda one: (-one[1], str(one[0])))[:number]


def tallies_of(runs: Iterable[Traits]) -> list[Tally]:
    """Count the traits of runs for the planner's file, without features."""
    counts: dict[tuple[str, str], Counter[Value]] = {}
    for run in runs:
        for dimension, among, value in run.entries():
            counts.setdefault((dimension, among), Counter())[value] += 1
    return [
        Tally(dimension=dimension, among=among, runs=dict(sorted(counter.items(), key=_number_or_text)))
        for (dimension, among), counter in sorted(counts.items())
    ]


def _number_or_text(item: tuple[Value, int]) -> tuple[int, str]:
    value, _ = item
    return (value, "") if isinstance(value, int) else (0, value)


@cache
def measured_ground() -> Ground:
    """Return the traits of the project's measured runs."""
    counts: dict[tuple[str, str], Counter[Value]] = {
        (one.dimension, one.among): Counter(one.runs)
        for one in stored(GroundTable, TABLE, "planner.uncertainty.evidence").tallies
    }
    for stack, features in shown_features().items():
        counts |= {(name, stack): Counter(runs) for name, runs in features.runs.items()}
    return Ground(counts)
