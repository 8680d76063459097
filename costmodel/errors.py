"""Errors of the project: mistakes in the input, each as one clear message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from costmodel.record import cut_line


class PlanningError(Exception):
    """Base of every error that a user of the planner can cause."""

    def __repr__(self) -> str:
        """Return one line, as records do."""
        return cut_line(super().__repr__())


def printable(text: str) -> str:
    r"""
    Escape characters that would control a terminal, since messages repeat the content of files.

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
        Value seen and values allowed, a full sentence.
    hint
        Value to write instead; empty if there is no better one.
    place
        Place of the entry, such as ``job.yaml, line 4, column 16``; empty if it is not known.
    """

    def __init__(self, where: str, problem: str, hint: str = "", place: str = "") -> None:
        self.where = where
        self.problem = problem
        self.hint = hint
        self.place = place
        message = ": ".join(filter(None, (place, where, problem)))
        super().__init__(printable(f"{message} {hint}" if hint else message))

    def __reduce__(self) -> tuple[type[SpecError], tuple[Any, ...]]:
        """Rebuild the error from its parts in another process, so that errors of workers reach the user unchanged."""
        return type(self), (self.where, self.problem, self.hint, self.place)


class NumberError(ValueError):
    """
    A text that is nearly a number with a unit.

    Parameters
    ----------
    problem, hint
        As in :class:`SpecError`, a sentence each.
    """

    def __init__(self, problem: str, hint: str) -> None:
        self.problem, self.hint = problem, hint
        super().__init__(f"{problem} {hint}")


MOST_MISTAKES = 20
"""Largest number of mistakes that a message lists."""


class SpecErrors(SpecError):
    """
    Several mistakes in one input; its place, problem and hint are those of the first.

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
        """Number of mistakes, as far as they were counted."""
        return f"{'the first ' if len(self.errors) == MOST_MISTAKES else ''}{len(self.errors)} mistakes:"

    def __str__(self) -> str:
        """Return all mistakes on one line, as in a table of jobs."""
        return " ".join([self.title, *(f"({number}) {error}" for number, error in enumerate(self.errors, start=1))])

    def __reduce__(self) -> tuple[type[SpecError], tuple[Any, ...]]:
        """Rebuild the error from its mistakes in another process."""
        return type(self), (self.errors,)


def mistakes_of(error: SpecError) -> tuple[SpecError, ...]:
    """Return the mistakes in an error."""
    return error.errors if isinstance(error, SpecErrors) else (error,)


def together(errors: Sequence[SpecError]) -> SpecError:
    """Combine mistakes into one error, at most ``MOST_MISTAKES`` of them; a single mistake is returned itself."""
    return errors[0] if len(errors) == 1 else SpecErrors(errors[:MOST_MISTAKES])


def optional_library(name: str, where: str, problem: str, *, extra: str) -> Any:
    """
    Import an optional library.

    Parameters
    ----------
    name
        Name of the module.
    where, problem
        Place and problem of the error if it is not installed.
    extra
        Extra of this project that installs it.

    Raises
    ------
    SpecError
        If it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise SpecError(where, problem, install_hint(extra)) from None


def install_hint(extra: str) -> str:
    """Return the command that installs an extra; no public registry has the project, so others may take its name."""
    return f"In the project's checkout: pip install '.[{extra}]'."


MOST_LISTED = 100
"""Largest number of names in a hint."""


def alternatives(texts: Sequence[str]) -> str:
    """
    Join alternatives for a sentence.

    >>> alternatives(["4"]), alternatives(["2", "4", "8"])
    ('4', '2, 4 or 8')
    """
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


LEAST_LETTERS, MOST_BEGUN = 3, 3
"""Fewest letters that count as the beginning of a word; most words with that beginning in a hint."""


def did_you_mean(seen: object, known: Iterable[str]) -> str:
    """
    Return a hint with known words: those that begin with the seen word, else the nearest, else all if they are few.

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
