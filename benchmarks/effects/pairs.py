"""Pairs of measured runs that differ in few facts, and the kind of what differs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import SpecError

DATA = Path(__file__).parent / "data"
GROUPS = DATA / "groups.csv"
PAIRS = DATA / "pairs.csv"

RELEASE = "container"
RELEASE_ALONE = "release alone"
"""The fact that names a run's container; the kind of pairs that differ in nothing else."""

COMPANIONS = {
    "dtype": ("fp8_param_gather", "overlap_tp", "fp8_dot_product_attention"),
    "cuda_graph": ("paged_stash", "fused_grouped_mlp", "fp8_dot_product_attention"),
    "token_dispatcher": ("dispatcher_sms",),
}
"""Facts that recipes change along with another one; they are of its kind."""

KINDS = {
    "dtype": "precision",
    "token_dispatcher": "dispatcher",
    "cuda_graph": "graphs",
    "ep_overlap": "ep overlap",
    "overlap_param_gather": "weight gather overlap",
    "recompute": "recompute",
    "optimizer_offload": "optimizer offload",
    "layout": "tp or pp",
    "dispatcher_sms": "dispatcher",
    "mtp_layers": "mtp layers",
    "precision_aware_optimizer": "optimizer states",
    "token_drop": "token drop",
    "megatron_fsdp": "sharding",
    "paged_stash": "paged stash",
}
"""A fact of the table and the kind of change that it is, in the order in which kinds are named."""

MOST_NAMED = 3
"""Kinds of change that the name of a kind joins; what changes more is ``several``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """
    Two measured runs of one job that differ in few facts.

    Parameters
    ----------
    first, second
        Ids of both runs.
    changes
        What the second one has otherwise, by fact: ``fact:from->to``, or a setting in its source's words.
    kind
        The kind of change.
    group
        Group of runs of which the first one is the base; empty for pairs of published tables.
    """

    first: str
    second: str
    changes: tuple[str, ...]
    kind: str
    group: str = ""

    @property
    def is_release_alone(self) -> bool:
        """Whether nothing but the container's release differs."""
        return self.kind == RELEASE_ALONE

    @property
    def changes_release(self) -> bool:
        """Whether the container's release differs too."""
        return any(change.startswith(f"{RELEASE}:") for change in self.changes)


def read_pairs(path: Path = PAIRS) -> list[Pair]:
    """
    Pairs of runs of published tables.

    Raises
    ------
    SpecError
        If there is no such table.
    """
    return [_pair(cells) for cells in _rows(path, ("id_a", "id_b", "changes"))]


def read_groups(path: Path = GROUPS) -> list[Pair]:
    """
    Runs of one source that differ in one setting each, with the run that they are compared to.

    Raises
    ------
    SpecError
        If there is no such table.
    """
    return [
        Pair(
            first=cells["id_a"],
            second=cells["id_b"],
            changes=(cells["setting"],),
            kind=kind_of((cells["kind"],)),
            group=cells["group"],
        )
        for cells in _rows(path, ("group", "id_a", "id_b", "kind", "setting"))
    ]


def kind_of(facts: tuple[str, ...]) -> str:
    """
    The kind of change that some facts are together, without the release beside others.

    >>> kind_of(("container", "dtype", "fp8_param_gather")), kind_of(("container",))
    ('precision', 'release alone')
    """
    changed = [fact for fact in facts if fact != RELEASE]
    if not changed:
        return RELEASE_ALONE
    along = {name for fact in changed for name in COMPANIONS.get(fact, ())}
    own = [fact for fact in changed if fact not in along]
    kinds = dict.fromkeys(kind for fact, kind in KINDS.items() if fact in own)
    unknown = [fact for fact in own if fact not in KINDS]
    named = [*kinds, *unknown]
    return " + ".join(named) if len(named) <= MOST_NAMED else "several"


def _pair(cells: Mapping[str, str]) -> Pair:
    changes = tuple(change for change in cells["changes"].split(";") if change)
    facts = tuple(change.split(":")[0] for change in changes)
    return Pair(first=cells["id_a"], second=cells["id_b"], changes=changes, kind=kind_of(facts))


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if missing := [name for name in needed if name not in (rows.fieldnames or ())]:
                raise SpecError(str(path), f"has no column '{missing[0]}'.")
            yield from rows
    except OSError as error:
        raise SpecError(str(path), f"cannot be read: {error.strerror}.") from None
