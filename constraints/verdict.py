"""Which rules a strategy breaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from constraints import RULES
from constraints.rule import Rule
from costmodel.tables import Facts, tabulate


def violated(facts: Facts, decisions: Mapping[str, Any], *, rules: Iterable[Rule] = RULES) -> tuple[Rule, ...]:
    """
    The rules that forbid one strategy, in the order of the table of contents.

    Parameters
    ----------
    facts
        What is given.
    decisions
        One value per decision that the rules name: the fields of a strategy and, for the memory rules,
        ``device_bytes``, ``host_bytes`` and ``memory_headroom_bytes``.
    rules
        Which rules to ask.
    """
    return tuple(rule for rule in rules if not tabulate(rule, facts, decisions))
