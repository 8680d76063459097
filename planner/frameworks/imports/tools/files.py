"""Configuration file with the files that it names, the command's entries and given variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.documents import read_yaml
from planner.frameworks.imports.tools.references import flat_entries
from planner.jobs.document import read_text

MOST_FOLDERS = 8
"""Most folders above a file in which files that it names are searched, and most files that extend each other."""


class File(NamedTuple):
    """
    Configuration with the values that complete it.

    Parameters
    ----------
    content
        Document of the file.
    path
        Path of the file.
    overrides
        Entries of the job as ``key=value``.
    given
        Values of variables that it uses.
    """

    content: Mapping[str, Any]
    path: Path
    overrides: Sequence[str]
    given: Mapping[str, str]

    def flat(self, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return entries by dotted name, of this document or of another one with the same variables."""
        return flat_entries(self.content if content is None else content, self.given)

    def says(self, name: str) -> str | None:
        """Return the value that the command has for an entry; None: none."""
        return next((entry.partition("=")[2] for entry in self.overrides if entry.partition("=")[0] == name), None)

    def named(self, name: str, under: Sequence[str] = ("",)) -> Path | None:
        """Return a file that this one names, beside it or under a folder above it; None: there is none."""
        plain = Path(os.path.normpath(name))
        folders = list(self.path.resolve().parents)[:MOST_FOLDERS] if ".." not in plain.parts else []
        places = (folder / start / plain for folder in folders for start in under)
        return next((place for place in places if os.path.isfile(place)), None)


def read_mapping(path: Path) -> dict[str, Any]:
    """
    Read the mapping in a file.

    Raises
    ------
    SpecError
        If the file is not YAML, or has no mapping.
    """
    content = read_yaml(read_text(path), str(path))
    if not isinstance(content, dict):
        raise SpecError(str(path), f"expected a mapping, got {shown(content)}.")
    return content
