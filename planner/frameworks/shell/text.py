"""Text of which parts are not known: a variable that nobody set stands in it by its name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

OPEN, CLOSE = "\ue000", "\ue001"
"""Around a name that has no value; of Unicode's private use, so that no script has them."""

NAMES = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")

LETTERS = {code: 0xE100 + code for code in range(128) if not chr(code).isalnum() and chr(code) != "_"}
"""Letters of names that mean something to a shell, which may read a word again (``bash -c``): others in their place."""

SHELLS = {other: code for code, other in LETTERS.items()}


def unknown(name: str) -> str:
    """What stands for the value of a variable, or of a command, that is not known."""
    return f"{OPEN}{cleaned(written(name)).translate(LETTERS)}{CLOSE}"


def unknown_names(text: str) -> list[str]:
    """Names of what is not known in a text, each once."""
    return list(dict.fromkeys(name.translate(SHELLS) for name in NAMES.findall(text)))


def known_part(text: str) -> str:
    """A text as a shell has it where nothing else is set: what is not known is empty."""
    return NAMES.sub("", text)


def written(text: str) -> str:
    """
    A text as its script writes it.

    >>> written("a" + unknown("TP") + unknown("$(nproc)"))
    'a$TP$(nproc)'
    """
    return NAMES.sub(
        lambda found: f"${found[1]}" if re.fullmatch(r"[A-Za-z_0-9]+", found[1]) else found[1].translate(SHELLS), text
    )


def cleaned(text: str) -> str:
    """A text of somebody without the two characters that mean something here."""
    return text.replace(OPEN, "").replace(CLOSE, "")


MOST_LETTERS = 100_000
"""Of a list of arguments; the time to split one word grows with the square of its length."""


def argument_words(text: str) -> list[str]:
    """
    The words of a list of arguments without variables, comments left out.

    Raises
    ------
    ValueError
        If a quotation mark is left open, or if it is longer than any list of arguments.
    """
    if len(text) > MOST_LETTERS:
        raise ValueError(f"it has {len(text):,} letters, expected {MOST_LETTERS:,} at most")
    return shlex.split(text, comments=True)


@dataclass(frozen=True, slots=True)
class Piece:
    """
    Part of a word.

    Parameters
    ----------
    text
        Its text.
    splits
        Whether blanks in it end a word: it came from an expansion outside quotation marks.
    ends
        Whether the word ends behind it: it is an element of an array.
    is_quoted
        Whether it makes a word even if it is empty.
    """

    text: str
    splits: bool = False
    ends: bool = False
    is_quoted: bool = False


def joined(pieces: Iterable[Piece]) -> str:
    """One text, as an assignment has it: elements of arrays with a blank between."""
    return "".join(piece.text + (" " if piece.ends else "") for piece in pieces)


def split(pieces: Iterable[Piece]) -> Iterator[str]:
    """
    The words that pieces make.

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
