"""Number of measured runs for each value of a decision, by stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from pydantic.dataclasses import dataclass as validated

from costmodel import catalog
from costmodel.facts.features import feature_of
from costmodel.facts.fields import STRICT
from costmodel.facts.framework import Framework
from costmodel.strategy import Strategy
from planner.uncertainty.evidence.kinds import ANY, stack_of
from planner.uncertainty.evidence.stored import stored

TABLE = "shown.yaml"

FEWEST_RUNS = 50
"""Runs from which on the absence of a value is evidence; below, related stacks count, then all."""

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


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class ShownFeatures:
    """
    Features of the runs of a stack.

    Parameters
    ----------
    stack
        Software without its release; ``any`` for all software.
    runs
        Number of runs by decision and value, spelled as in entries of frameworks, where the decision has an effect.
    """

    stack: str
    runs: Mapping[str, Mapping[str, int]]


@validated(frozen=True, kw_only=True, slots=True, config=STRICT)
class ShownTable:
    """
    Features of all runs.

    Parameters
    ----------
    source
        Source of the runs.
    stacks
        Entry for each stack, and one for ``any``.
    """

    source: str
    stacks: tuple[ShownFeatures, ...]


@cache
def shown_features() -> Mapping[str, ShownFeatures]:
    """Return the features of the project's runs, by stack."""
    return {one.stack: one for one in stored(ShownTable, TABLE, "planner.uncertainty.evidence").stacks}


def value_of(strategy: Strategy, name: str) -> str | None:
    """Return a decision's value as spelled in entries of frameworks; None where it has no effect in the strategy."""
    return feature_of(name, int(getattr(strategy, name))) if _matters(strategy, name) else None


def related_stacks(framework: Framework | None) -> Iterator[tuple[str, ...]]:
    """Yield a framework's own stack, then all stacks with its targets, then all."""
    if framework is not None:
        yield (stack_of(framework.name),)
        kin = {stack_of(name) for target in framework.targets for name in catalog.releases_for(target)}
        yield tuple(sorted(kin))
    yield (ANY,)


def _matters(strategy: Strategy, name: str) -> bool:
    degree = MATTERS_ABOVE[name]
    return not degree or getattr(strategy, degree) > 1


def features_of_runs(runs: Iterable[tuple[str, Strategy]]) -> list[ShownFeatures]:
    """
    Count the features of runs.

    Parameters
    ----------
    runs
        Stack and strategy of each run.
    """
    by_stack: dict[str, list[Strategy]] = {}
    for stack, strategy in runs:
        by_stack.setdefault(stack, []).append(strategy)
    every = [strategy for own in by_stack.values() for strategy in own]
    return [
        ShownFeatures(stack=stack, runs=_count_values(own)) for stack, own in (*sorted(by_stack.items()), (ANY, every))
    ]


def _count_values(strategies: Iterable[Strategy]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {name: Counter() for name in MATTERS_ABOVE}
    for strategy in strategies:
        for name, count in counts.items():
            if (value := value_of(strategy, name)) is not None:
                count[value] += 1
    return {name: dict(sorted(count.items())) for name, count in counts.items()}
