"""A list of strategies as a rule: the strategy matches one row; a decision that the row does not give is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.limits import name_rule
from constraints.rule import Holds, Rule
from costmodel.strategy import Strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateList:
    """
    Strategies, each given by some of its decisions.

    Parameters
    ----------
    source
        Name of the list in sentences, such as the name of its file.
    rows
        Values by decision.
    places
        Name of each row in messages, such as ``line 2``.
    whole, whole_places
        Strategies that are given whole, with their stages, and their names in messages.
    """

    source: str
    rows: tuple[Mapping[str, int], ...]
    places: tuple[str, ...]
    whole: tuple[Strategy, ...] = ()
    whole_places: tuple[str, ...] = ()

    @property
    def num_strategies(self) -> int:
        """Number of entries of the list."""
        return len(self.rows) + len(self.whole)

    @property
    def names(self) -> tuple[str, ...]:
        """Decisions that at least one row gives."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def values(self, name: str) -> tuple[int, ...]:
        """Return the values that the rows give to a decision, in ascending order."""
        return tuple(sorted({row[name] for row in self.rows if name in row}))

    def gives(self, name: str) -> bool:
        """Return True if every row gives the decision."""
        return bool(self.rows) and all(name in row for row in self.rows)


def candidate_list_rules(candidate_list: CandidateList, growth: Sequence[str]) -> tuple[Rule, ...]:
    """
    Build the rule of a list: one over all its decisions, and one for each prefix of ``growth``.

    Strategies that are given whole are not part of a space of decisions: a search costs each as it is. The rules of
    prefixes follow from the first rule. They apply early, while a space grows by one decision at a time.

    >>> mine = CandidateList(source="mine.csv", rows=({"tp": 2, "pp": 4}, {"tp": 8}), places=("line 2", "line 3"))
    >>> whole, beginning = candidate_list_rules(mine, ("tp", "pp"))[:2]
    >>> whole.__doc__, bool(whole(tp=2, pp=4)), bool(whole(tp=2, pp=2)), bool(beginning(tp=4))
    ('search.candidates: the strategy is one of the 2 in mine.csv.', True, False, False)
    """
    text = (
        f"search.candidates: the strategy is one of the {candidate_list.num_strategies:,} in {candidate_list.source}."
    )
    if not candidate_list.rows:
        return (_is_listed((), tuple(growth[:1]), text),)
    beginnings = (set(growth[: length + 1]) for length in range(len(growth)))
    chosen = (tuple(name for name in candidate_list.names if name in some) for some in beginnings)
    return tuple(
        _is_listed(candidate_list.rows, names, text)
        for names in dict.fromkeys((candidate_list.names, *chosen))
        if all(any(name in row for name in names) for row in candidate_list.rows)
    )


def _is_listed(rows: Iterable[Mapping[str, int]], names: tuple[str, ...], text: str) -> Rule:
    patterns = list(_patterns(rows, names))

    def holds(**decisions: Any) -> Holds:
        answer: Any = np.zeros(np.shape(next(iter(decisions.values()))), dtype=bool)
        for known, table in patterns:
            answer = answer | _is_row(table, [np.asarray(decisions[name]) for name in known])
        return np.asarray(answer)

    return name_rule(holds, names, text)


def _patterns(
    rows: Iterable[Mapping[str, int]], names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], NDArray[np.int64]]]:
    """Group rows that give the same decisions, as one table per group."""
    tables: dict[tuple[str, ...], list[list[int]]] = {}
    for row in rows:
        known = tuple(name for name in names if name in row)
        tables.setdefault(known, []).append([int(row[name]) for name in known])
    return ((known, np.unique(np.array(table, dtype=np.int64), axis=0)) for known, table in tables.items())


def _is_row(table: NDArray[np.int64], columns: Sequence[NDArray[Any]]) -> Any:
    """Return True where the values, one array per column, are a row of the table; compares column by column."""
    listed = np.zeros(len(table), dtype=np.int64)
    asked: Any = np.zeros((), dtype=np.int64)
    known: Any = True
    for column, values in zip(columns, table.T, strict=True):
        each, code = np.unique(values, return_inverse=True)
        position = np.minimum(np.searchsorted(each, column), len(each) - 1)
        beginnings, listed = np.unique(listed * len(each) + code, return_inverse=True)
        beginning = asked * len(each) + position
        asked = np.minimum(np.searchsorted(beginnings, beginning), len(beginnings) - 1)
        known = known & (each[position] == column) & (beginnings[asked] == beginning)
    return known
