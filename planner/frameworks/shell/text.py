"""Text with unknown parts: a variable without a value is marked in it by its name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from costmodel.record import record

OPEN, CLOSE = "\ue000", "\ue001"
"""Marks around a name without a value; of Unicode's private use area, so that no script has them."""

NAMES = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")

LETTERS = {code: 0xE100 + code for code in range(128) if not chr(code).isalnum() and chr(code) != "_"}
"""Replacements of letters that are special to a shell, which may read the word again (``bash -c``)."""

SHELLS = {other: code for code, other in LETTERS.items()}


def unknown(name: str) -> str:
    """Return the mark of a variable or command whose value is unknown."""
    return f"{OPEN}{strip_marks(write_unknowns(name)).translate(LETTERS)}{CLOSE}"


def unknown_names(text: str) -> list[str]:
    """Return the names of the unknown parts of a text, each once."""
    return list(dict.fromkeys(name.translate(SHELLS) for name in NAMES.findall(text)))


def strip_unknown(text: str) -> str:
    """Remove the unknown parts of a text: an unset variable of a shell is empty."""
    return NAMES.sub("", text)


def write_unknowns(text: str) -> str:
    """
    Return a text as the script writes it.

    >>> write_unknowns("a" + unknown("TP") + unknown("$(nproc)"))
    'a$TP$(nproc)'
    """
    return NAMES.sub(
        lambda found: f"${found[1]}" if re.fullmatch(r"[A-Za-z_0-9]+", found[1]) else found[1].translate(SHELLS), text
    )


def strip_marks(text: str) -> str:
    """Remove the two characters that mark unknown names here from a given text."""
    return text.replace(OPEN, "").replace(CLOSE, "")


MOST_LETTERS = 100_000
"""Letters of a list of arguments; the time to split one word grows with the square of its length."""


def argument_words(text: str) -> list[str]:
    """
    Split a list of arguments without variables into words, and drop comments.

    Raises
    ------
    ValueError
        If a quotation mark is left open, or if it is longer than any list of arguments.
    """
    if len(text) > MOST_LETTERS:
        raise ValueError(f"it has {len(text):,} letters, expected {MOST_LETTERS:,} at most")
    return shlex.split(text, comments=True)


@record(frozen=True, slots=True)
class Piece:
    """
    Part of a word.

    Parameters
    ----------
    text
        Its text.
    splits
        True where blanks in it end a word, as in an expansion outside quotation marks.
    ends
        True where the word ends behind it, as for an element of an array.
    is_quoted
        True where it makes a word even if it is empty.
    """

    text: str
    splits: bool = False
    ends: bool = False
    is_quoted: bool = False


def join_pieces(pieces: Iterable[Piece]) -> str:
    """Join pieces to one text, as in an assignment, with a blank between the elements of an array."""
    return "".join(piece.text + (" " if piece.ends else "") for piece in pieces)


def split(pieces: Iterable[Piece]) -> Iterator[str]:
    """
    Split pieces into words.

    >>> list(split([Piece("--a="), Piece("1 --b", splits=True), Piece("2", is_quoted=True)]))
    ['--a=1', '--b2']
    """
    word, is_open = "", False
    for piece in pieces:
        parts = re.split(r"[ \t\n]+", piece.text) if piece.splits else [piece.text]
        for number, part in enumerate(parts):
            if number and is_open:
                yield word
                word, is_open = "", False
            word += part
            is_open = is_open or bool(part) or piece.is_quoted
        if piece.ends and is_open:
            yield word
            word, is_open = "", False
    if is_open:
        yield word
