"""The project's own errors: what a user did wrong, said once and clearly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PlanningError(Exception):
    """Base of every error that a user of the planner can cause."""


class SpecError(PlanningError):
    """
    Wrong input.

    Parameters
    ----------
    where
        Dotted path of the entry, such as ``model.hidden_size``.
    problem
        What was seen and what is allowed, a full sentence.
    hint
        What to write instead; empty if there is nothing better to say.
    """

    def __init__(self, where: str, problem: str, hint: str = "") -> None:
        self.where = where
        self.problem = problem
        self.hint = hint
        message = f"{where}: {problem}" if where else problem
        super().__init__(f"{message} {hint}" if hint else message)

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, str, str]]:
        """Made again from its parts in another process: errors of workers reach the user as they are."""
        return type(self), (self.where, self.problem, self.hint)


MOST_LISTED = 100
"""Names that a hint lists at most."""


def did_you_mean(seen: object, known: Iterable[str]) -> str:
    """
    A hint that names the nearest known word, or else all of them where a reader can take them in.

    >>> did_you_mean("hiden_size", ["hidden_size", "num_heads"])
    "Did you mean 'hidden_size'?"
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(str(seen)[:80], names, n=1)
    if nearest:
        return f"Did you mean '{nearest[0]}'?"
    return f"Known: {', '.join(names)}." if 0 < len(names) <= MOST_LISTED else ""
