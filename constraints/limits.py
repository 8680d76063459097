"""
The job's own limits as rules: ``search.pin``, ``search.allow``, ``search.limits`` and ``search.forbid``.

Each entry becomes one rule with its own signature and sentence. It is tabulated, combined and named in a conflict like
any other rule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.rule import Floats, Holds, Ints, Rule
from costmodel.errors import alternatives
from costmodel.record import record
from costmodel.strategy import DECISIONS, ENUMS, FLAGS, Strategy, decision_text

SHOWN_VALUES = 8

"""Values of a long list that a sentence names before it counts the rest."""

RELATIONS: dict[str, tuple[Callable[[Any, Any], Holds], str]] = {
    "<=": (np.less_equal, "is at most"),
    "<": (np.less, "is below"),
    ">=": (np.greater_equal, "is at least"),
    ">": (np.greater, "is above"),
    "==": (np.equal, "is"),
    "!=": (np.not_equal, "is not"),
}

"""Comparison of each relation, and its words in a sentence."""


@record(frozen=True, kw_only=True, slots=True)
class Bound:
    """
    A bound of a decision, or of a product of decisions.

    Parameters
    ----------
    names
        Decisions whose product is bounded; may include ``num_microbatches``, which follows from them.
    relation
        One of ``RELATIONS``.
    number
        Number that the product is compared with.
    """

    names: tuple[str, ...]
    relation: str
    number: int

    @property
    def text(self) -> str:
        """
        Sentence fragment that states the bound.

        >>> Bound(names=("tp", "cp"), relation="<=", number=16).text
        'tp * cp is at most 16'
        """
        number = decision_text(self.names[0], self.number) if len(self.names) == 1 else str(self.number)
        return f"{' * '.join(self.names)} {RELATIONS[self.relation][1]} {number}"

    def holds(self, decisions: Mapping[str, Any]) -> Holds:
        """Return True where decisions satisfy the bound; floats keep products of large degrees from overflowing."""
        factors = (np.asarray(decisions[name], dtype=np.float64) for name in self.names)
        return RELATIONS[self.relation][0](reduce(np.multiply, factors), self.number)


def limit_rules(
    *,
    pin: Mapping[str, int],
    allow: Mapping[str, tuple[int, ...]],
    forbid: Iterable[Mapping[str, int | Bound]],
    limits: Iterable[Bound] = (),
) -> tuple[Rule, ...]:
    """
    Build one rule per entry.

    Parameters
    ----------
    pin
        Decisions with their only value.
    allow
        Decisions with their allowed values.
    forbid
        Combinations of values and bounds that may not occur together.
    limits
        Bounds.

    >>> [rule.__doc__ for rule in limit_rules(pin={"tp": 8}, allow={"pp": (4, 8)}, forbid=[{"recompute": 2, "mbs": 1}])]
    ['search.pin: tp is 8.', 'search.allow: pp is 4 or 8.', 'search.forbid: not both recompute is full and mbs is 1.']
    """
    pins = [
        _values_rule(name, (value,), f"search.pin: {name} is {decision_text(name, value)}.")
        for name, value in pin.items()
    ]
    allows = [
        _values_rule(name, values, f"search.allow: {name} is {_choice(name, values)}.")
        for name, values in allow.items()
    ]
    bounds = [_bound_rule(bound) for bound in dict.fromkeys(limits)]
    return (*pins, *allows, *bounds, *(_exclusion_rule(combination) for combination in forbid))


def bubble_rule(fraction: float) -> Rule:
    """
    Build the rule that bounds the pipeline bubble; it needs the time of a strategy.

    >>> rule = bubble_rule(0.075)
    >>> rule.__doc__
    'search.max_bubble_fraction: the pipeline idles for at most 7.5 % of the step.'
    >>> bool(rule(bubble_seconds=0.7, step_seconds=10.0)), bool(rule(bubble_seconds=0.8, step_seconds=10.0))
    (True, False)
    """

    def holds(*, bubble_seconds: Floats, step_seconds: Floats) -> Holds:
        return bubble_seconds <= fraction * step_seconds

    holds.__doc__ = f"search.max_bubble_fraction: the pipeline idles for at most {100 * fraction:g} % of the step."
    return holds


def devices_rule(most: int) -> Rule:
    """
    Build the rule that bounds the number of devices; it replaces the rule that all devices are used.

    >>> rule = devices_rule(512)
    >>> rule.__doc__, bool(rule(tp=8, cp=1, pp=15, dp=4)), bool(rule(tp=8, cp=1, pp=15, dp=5))
    ('search.max_devices: tp * cp * pp * dp is at most 512.', True, False)
    """
    bound = Bound(names=("tp", "cp", "pp", "dp"), relation="<=", number=most)
    rule = _bound_rule(bound, "search.max_devices")
    vars(rule)["sizes"] = range(1, most + 1)
    return rule


def nodes_rule(nodes: range, devices_per_node: int) -> Rule:
    """
    Build the rule that lets a plan leave whole nodes idle; it replaces the rule that all devices are used.

    >>> rule = nodes_rule(range(40, 63), 8)
    >>> rule.__doc__, bool(rule(tp=8, cp=1, pp=14, dp=4)), bool(rule(tp=4, cp=1, pp=1, dp=81))
    ('search.idle_devices: tp * cp * pp * dp GPUs fill whole nodes of 8, 40 to 62 of them.', True, False)
    """
    fewest, most = nodes[0], nodes[-1]

    def holds(*, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Holds:
        size = tp * cp * pp * dp
        is_whole = size % devices_per_node == 0
        return is_whole & (fewest * devices_per_node <= size) & (size <= most * devices_per_node)

    holds.__doc__ = (
        f"search.idle_devices: tp * cp * pp * dp GPUs fill whole nodes of {devices_per_node}, {fewest:,} to {most:,} "
        "of them."
    )
    vars(holds)["sizes"] = range(fewest * devices_per_node, most * devices_per_node + 1, devices_per_node)
    return holds


def list_limits(
    *, pin: Mapping[str, int], allow: Mapping[str, tuple[int, ...]], limits: Iterable[Bound] = ()
) -> dict[str, tuple[int, ...]]:
    """
    Return the values that the job leaves to each decision it mentions; empty if its entries contradict.

    >>> list_limits(pin={"tp": 8}, allow={"tp": (4, 8), "pp": (4, 8)})
    {'tp': (8,), 'pp': (4, 8)}
    """
    left: dict[str, tuple[int, ...]] = {}
    for name, values in _list_entry_values(pin, allow, (bound for bound in limits if bound.relation == "==")):
        left[name] = tuple(value for value in left.get(name, values) if value in values)
    return left


def list_pins(
    *, pin: Mapping[str, int], allow: Mapping[str, tuple[int, ...]], limits: Iterable[Bound]
) -> dict[str, tuple[int, ...]]:
    """
    Return the values that the job's entries name, reachable or not; for a bound, the first value that satisfies it.

    >>> list_pins(pin={"tp": 8}, allow={"tp": (4, 8)}, limits=[Bound(names=("pp",), relation=">", number=15)])
    {'tp': (4, 8), 'pp': (16,)}
    """
    named: dict[str, set[int]] = {}
    for name, values in _list_entry_values(pin, allow, limits):
        named.setdefault(name, set()).update(values)
    return {name: tuple(sorted(values)) for name, values in named.items()}


def _list_entry_values(
    pin: Mapping[str, int], allow: Mapping[str, tuple[int, ...]], limits: Iterable[Bound]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield a decision and its values for each entry that names some."""
    yield from ((name, (value,)) for name, value in pin.items())
    yield from allow.items()
    for bound in limits:
        first = bound.number + {">": 1, "<": -1}.get(bound.relation, 0)
        name = bound.names[0]
        possible = name in (*ENUMS, *FLAGS) or (name in DECISIONS and first >= 1)
        if len(bound.names) == 1 and possible and bound.relation != "!=":
            yield name, (first,)


# --- rules -------------------------------------------------------------------------------------------------
def unless(rule: Rule, name: str, values: Iterable[int]) -> Rule:
    """
    Build a rule that certain values of one of its decisions are exempt from.

    Parameters
    ----------
    rule
        The rule to relax.
    name
        One of its decisions.
    values
        Values of that decision that are allowed regardless.

    >>> def small(*, mbs):
    ...     return mbs <= 16
    >>> [bool(unless(small, "mbs", [32])(mbs=mbs)) for mbs in (8, 32, 64)]
    [True, True, False]
    """
    regardless = np.array(list(values), dtype=np.int64)

    def holds(*facts: Any, **decisions: Any) -> Holds:
        is_regardless = np.isin(np.asarray(decisions[name], dtype=np.int64), regardless)
        return np.logical_or(rule(*facts, **decisions), is_regardless)

    holds.__signature__ = inspect.signature(rule)  # type: ignore[attr-defined]
    holds.__doc__ = rule.__doc__ or ""
    return holds


def _values_rule(name: str, values: tuple[int, ...], text: str) -> Rule:
    allowed = np.array(values, dtype=np.int64)

    def holds(**decisions: Any) -> Holds:
        return np.isin(np.asarray(decisions[name], dtype=np.int64), allowed)

    return name_rule(holds, (name,), text)


def _bound_rule(bound: Bound, entry: str = "search.limits") -> Rule:
    def holds(**decisions: Any) -> Holds:
        return bound.holds(decisions)

    return name_rule(holds, bound.names, f"{entry}: {bound.text}.")


def _exclusion_rule(combination: Mapping[str, int | Bound]) -> Rule:
    conditions = [
        value if isinstance(value, Bound) else Bound(names=(name,), relation="==", number=value)
        for name, value in combination.items()
    ]

    def holds(**decisions: Any) -> Holds:
        answer: Holds = np.logical_not(reduce(and_, (condition.holds(decisions) for condition in conditions)))
        return answer

    texts = " and ".join(condition.text for condition in conditions)
    both = "both " if len(conditions) > 1 else ""
    return name_rule(holds, tuple(combination), f"search.forbid: not {both}{texts}.")


def name_rule(holds: Callable[..., Holds], names: tuple[str, ...], text: str) -> Rule:
    """Give a function of decisions its signature and its sentence, so that it is a rule."""
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(names)]
    holds.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    holds.__doc__ = text
    return holds


def _choice(name: str, values: tuple[int, ...]) -> str:
    texts = [decision_text(name, value) for value in values[:SHOWN_VALUES]]
    if len(values) > SHOWN_VALUES:
        texts.append(f"{len(values) - SHOWN_VALUES} more")
    return alternatives(texts)


@record(frozen=True, kw_only=True, slots=True)
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
