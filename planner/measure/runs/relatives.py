"""Unknown words of a row: each is replaced by the nearest known one, with a doubt."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodel.catalog import find_unique_device
from costmodel.catalog.releases import stands_in
from costmodel.facts.cluster import Cluster
from costmodel.facts.features import lacks
from costmodel.strategy import TokenDispatcher
from costmodel.validation import shown
from planner.jobs.run_table import Run

DISPATCHER = "token_dispatcher"

SPELLED: Mapping[str, TokenDispatcher] = {
    "alltoall": TokenDispatcher.ALLTOALL,
    "a2a": TokenDispatcher.ALLTOALL,
    "allgather": TokenDispatcher.ALLTOALL,
    "deepep": TokenDispatcher.DEEPEP,
    "hybridep": TokenDispatcher.HYBRIDEP,
}
"""Letters in names of dispatchers, and the dispatcher that moves tokens in the same way."""

LIKE = 0.75
"""Least share of letters that a name has in common with a dispatcher's."""


def replace_unknown_names(run: Run, cluster: Cluster) -> Run:
    """
    Return a row with known names in place of unknown ones, and its doubts.

    Parameters
    ----------
    run
        The row.
    cluster
        Its cluster, with the nearest release of its framework.
    """
    doubts: list[str] = []
    if cluster.framework is not None and cluster.unknown_release:
        doubts.append(stands_in(cluster.unknown_release, cluster.framework.name))
    doubts += _device_doubt(run.entries["cluster"].get("device"))
    strategy = dict(run.entries.get("strategy", {}))
    asked = strategy.get(DISPATCHER)
    if isinstance(asked, str) and asked not in {one.text for one in TokenDispatcher}:
        doubts += _resolve_dispatcher(strategy, asked, cluster)
    if not doubts and asked == strategy.get(DISPATCHER):
        return run
    return replace(run, entries={**run.entries, "strategy": strategy}, doubts=(*run.doubts, *doubts))


def _device_doubt(name: object) -> list[str]:
    """Return a sentence on a device's name that is ambiguous; [] if it is not."""
    found = find_unique_device(name) if isinstance(name, str) else None
    return [found.note] if found and found.others else []


def _resolve_dispatcher(strategy: dict[str, Any], asked: str, cluster: Cluster) -> list[str]:
    """Put the nearest dispatcher of the framework into a strategy, or none for its default; return the doubt."""
    letters = "".join(one for one in asked.lower() if one.isascii() and one.isalnum())
    nearest = nearest_dispatcher(letters)
    framework = cluster.framework
    if nearest is None or (framework is not None and lacks(framework, DISPATCHER, int(nearest))):
        strategy.pop(DISPATCHER)
        return [f"token dispatcher {shown(asked)} is not known: costed as the framework's default"]
    strategy[DISPATCHER] = nearest.text
    if letters == nearest.text:
        return []
    return [f"token dispatcher {shown(asked)} is not known: costed as {nearest.text}, its nearest relative"]


def nearest_dispatcher(letters: str) -> TokenDispatcher | None:
    """
    Return the dispatcher whose letters are in a name, or nearly; None if none matches.

    >>> nearest_dispatcher("deepepv2"), nearest_dispatcher("hybirdep"), nearest_dispatcher("mori")
    (<TokenDispatcher.DEEPEP: 1>, <TokenDispatcher.HYBRIDEP: 2>, None)
    """
    spelled = next((one for part, one in SPELLED.items() if part in letters), None)
    if spelled is not None:
        return spelled
    near = difflib.get_close_matches(letters[:80], SPELLED, n=1, cutoff=LIKE)
    return SPELLED[near[0]] if near else None
