"""The version of this distribution, which ``pyproject.toml`` alone states."""

from __future__ import annotations

from functools import cache

DISTRIBUTION = "pretraining-planner"

SOURCES = "0+sources"
"""The version of sources that nobody installed, in the form that package managers order below all others."""


@cache
def version() -> str:
    """The version as it was installed; ``SOURCES`` where it was not."""
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return SOURCES
