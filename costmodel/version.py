"""Version of this distribution, defined only in ``pyproject.toml``."""

from __future__ import annotations

from functools import cache

DISTRIBUTION = "pretraining-planner"

SOURCES = "0+sources"
"""Version of sources without an installation, in the form that package managers order below all others."""


@cache
def version() -> str:
    """Return the installed version; ``SOURCES`` if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return SOURCES
