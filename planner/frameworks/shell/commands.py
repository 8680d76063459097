"""Words of commands that set variables, or start another script."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")

READERS = {"read": "dinNptu", "mapfile": "dnOsuCc", "readarray": "dnOsuCc"}
"""Commands that set variables to what they read, with the letters of their options that take a value."""


def read_names(words: Sequence[str]) -> list[str]:
    """The variables that a command sets to what it reads, which is not known."""
    if not words or words[0] not in READERS:
        return []
    names: list[str] = []
    takes = False
    for word in words[1:]:
        if takes:
            takes = False
        elif word.startswith("-"):
            takes = len(word) > 1 and word[-1] in READERS[words[0]]
        elif re.fullmatch(r"[A-Za-z_]\w*", word):
            names.append(word)
    return names or ["REPLY" if words[0] == "read" else "MAPFILE"]


def script_place(words: Sequence[str]) -> int | None:
    """Return the position of a script's name in a command: first, or behind a shell or a queue."""
    runs = {place for place, word in enumerate(words) if word.rsplit("/", 1)[-1] in (*SHELLS, "sbatch", "srun")}
    for place, word in enumerate(words):
        if word.endswith(".sh") and (place == 0 or any(run < place for run in runs)):
            return place
    return None


REMOTE = ("ssh", "pdsh", "clush", "dsh")
"""Commands that run one on other hosts."""


def inner_script(words: Sequence[str]) -> str | None:
    """Return the argument of ``bash -c``, wherever it stands in a command, or the command of other hosts."""
    if words[0].rsplit("/", 1)[-1] in REMOTE:
        return next((word for word in words[1:] if len(word.split()) > 1), None)
    for position, word in enumerate(words):
        if word.rsplit("/", 1)[-1] in SHELLS:
            for place in range(position + 1, len(words) - 1):
                if re.fullmatch(r"-[a-z]*c", words[place]):
                    return words[place + 1]
                if not words[place].startswith("-"):
                    break
    return None
