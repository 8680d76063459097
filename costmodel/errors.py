"""The project's own errors: what a user did wrong, said once and clearly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any


class PlanningError(Exception):
    """Base of every error that a user of the planner can cause."""


def printable(text: str) -> str:
    r"""
    A text without what a terminal would obey: messages repeat what files say.

    >>> printable("no column 'a\x1b[2J\u202e'")
    "no column 'a\\x1b[2J\\u202e'"
    """
    plain = (letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)
    return text if text.isprintable() else "".join(plain)


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
    place
        Where the entry was written, such as ``job.yaml, line 4, column 16``; empty if nobody knows.
    """

    def __init__(self, where: str, problem: str, hint: str = "", place: str = "") -> None:
        self.where = where
        self.problem = problem
        self.hint = hint
        self.place = place
        message = ": ".join(filter(None, (place, where, problem)))
        super().__init__(printable(f"{message} {hint}" if hint else message))

    def __reduce__(self) -> tuple[type[SpecError], tuple[Any, ...]]:
        """Made again from its parts in another process: errors of workers reach the user as they are."""
        return type(self), (self.where, self.problem, self.hint, self.place)


class NumberError(ValueError):
    """
    A text that is nearly a number with a unit.

    Parameters
    ----------
    problem, hint
        As of a :class:`SpecError`, a sentence each.
    """

    def __init__(self, problem: str, hint: str) -> None:
        self.problem, self.hint = problem, hint
        super().__init__(f"{problem} {hint}")


MOST_MISTAKES = 20
"""Mistakes that a message lists at most."""


class SpecErrors(SpecError):
    """
    Several mistakes in one input; where, problem and hint are those of the first.

    Parameters
    ----------
    errors
        At least two, in the order of the input.
    """

    def __init__(self, errors: Sequence[SpecError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.where, first.problem, first.hint, first.place)

    @property
    def title(self) -> str:
        """How many there are, as far as they were counted."""
        return f"{'the first ' if len(self.errors) == MOST_MISTAKES else ''}{len(self.errors)} mistakes:"

    def __str__(self) -> str:
        """All on one line, as in a table of jobs."""
        return " ".join([self.title, *(f"({number}) {error}" for number, error in enumerate(self.errors, start=1))])

    def __reduce__(self) -> tuple[type[SpecError], tuple[Any, ...]]:
        """Made again from its mistakes in another process."""
        return type(self), (self.errors,)


def mistakes_of(error: SpecError) -> tuple[SpecError, ...]:
    """The mistakes that an error speaks of."""
    return error.errors if isinstance(error, SpecErrors) else (error,)


def together(errors: Sequence[SpecError]) -> SpecError:
    """One error that says several mistakes, at most ``MOST_MISTAKES``; of one mistake that itself."""
    return errors[0] if len(errors) == 1 else SpecErrors(errors[:MOST_MISTAKES])


def optional_library(name: str, where: str, problem: str, *, extra: str) -> Any:
    """
    A library that only some need.

    Parameters
    ----------
    name
        Of the module.
    where, problem
        What the error says without it.
    extra
        Of this project, by which it is installed.

    Raises
    ------
    SpecError
        If it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise SpecError(where, problem, f"pip install 'pretraining-planner[{extra}]'") from None


MOST_LISTED = 100
"""Names that a hint lists at most."""


def alternatives(texts: Sequence[str]) -> str:
    """
    Alternatives in a sentence.

    >>> alternatives(["4"]), alternatives(["2", "4", "8"])
    ('4', '2, 4 or 8')
    """
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


LEAST_LETTERS, MOST_BEGUN = 3, 3
"""Letters that tell what a word begins; words that begin with them and are named."""


def did_you_mean(seen: object, known: Iterable[str]) -> str:
    """
    A hint that names known words: those that begin with what was seen, the nearest, or all that a reader can take in.

    >>> did_you_mean("hiden_size", ["hidden_size", "num_heads"])
    "Did you mean 'hidden_size'?"
    >>> did_you_mean("H100", ["h100-80gb-sxm", "h100-96gb-hbm2e", "h800"])
    "Did you mean 'h100-80gb-sxm' or 'h100-96gb-hbm2e'?"
    >>> did_you_mean("nemo", ["nemo-24.07", "nemo-24.07", "mofa"])  # whoever knows a name twice
    "Did you mean 'nemo-24.07'?"
    """
    names = sorted(set(known))
    word, by_word = str(seen)[:80].lower(), {name.lower(): name for name in names}
    begun = [name for name in names if len(word) >= LEAST_LETTERS and name.lower().startswith(word)]
    exact = [name for name in begun if name.lower() == word]
    nearest = [by_word[found] for found in difflib.get_close_matches(word, by_word, n=1)]
    meant = exact[:1] or begun[:MOST_BEGUN] or nearest
    if meant:
        names_meant = alternatives([f"'{name}'" for name in meant])
        return f"Did you mean {names_meant}?"
    return f"Known: {', '.join(names)}." if 0 < len(names) <= MOST_LISTED else ""
