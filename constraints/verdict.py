"""Find the rules that a strategy breaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from constraints import RULES
from constraints.rule import Rule
from costmodel.strategy import Recompute, Strategy
from costmodel.tables import Facts, tabulate


def find_violations(facts: Facts, decisions: Mapping[str, Any], *, rules: Iterable[Rule] = RULES) -> tuple[Rule, ...]:
    """
    Return the rules that forbid one strategy, in the order of the table of contents.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    decisions
        One value per decision that the rules name: the fields of a strategy and, for the memory rules,
        ``device_bytes``, ``host_bytes`` and ``memory_headroom_bytes``.
    rules
        Rules to check.
    """
    return tuple(rule for rule in rules if not tabulate(rule, facts, decisions))


def violated_by_ranks(facts: Facts, strategy: Strategy, *, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """
    Return the rules that some pipeline rank of a strategy breaks, given that rank's recomputation and offloading.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    strategy
        The strategy, whose layout may give each rank its own values.
    rules
        Rules to check, none of them about memory.
    """
    ranks = list(_rank_decisions(strategy))
    return tuple(rule for rule in rules if not all(tabulate(rule, facts, one) for one in ranks))


def _rank_decisions(strategy: Strategy) -> Iterator[dict[str, Any]]:
    """Yield the decisions of the whole pipeline, then those of ranks with other recomputation or offloading."""
    yield strategy.decisions()
    layout = strategy.layout
    if layout is None:
        return
    own = set(zip(layout.recompute, layout.activation_offload, strict=True))
    if any(layout.full_layers):
        own |= {(Recompute.FULL, offload) for _, offload in own}
    for recompute, offload in sorted(own):
        yield strategy.decisions() | {"recompute": recompute, "activation_offload": offload}
