"""A configuration with what stands beside it: files that it names, entries of the command, variables."""

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
"""Folders above a file in which files that it names are looked for, and files that extend each other."""


class File(NamedTuple):
    """
    A configuration with what stands beside it.

    Parameters
    ----------
    content
        The document.
    path
        Where it lies.
    overrides
        Entries of the job as ``key=value``.
    given
        Variables that it leaves open.
    """

    content: Mapping[str, Any]
    path: Path
    overrides: Sequence[str]
    given: Mapping[str, str]

    def flat(self, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Entries by dotted name, of this document or of another one with the same variables."""
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
    The mapping that a file holds.

    Raises
    ------
    SpecError
        If it holds another thing, or is no YAML.
    """
    content = read_yaml(read_text(path), str(path))
    if not isinstance(content, dict):
        raise SpecError(str(path), f"expected a mapping, got {shown(content)}.")
    return content
