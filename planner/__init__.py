"""
Plan the pretraining of a language model: ``from planner import load, plan, estimate, explain``.

:mod:`planner.api` lists the stable names. Nothing is imported before it is used, so that ``planner --help`` answers at
once.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import *  # noqa: F403
    from planner.api import __version__ as __version__
else:

    def __getattr__(name: str) -> Any:
        """Ask for a public name in ``planner.api`` when it is first wanted."""
        api = import_module("planner.api")
        if name == "__all__":
            return list(api.SHORT)
        if name not in api.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(api, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List public names, imported or not."""
    return sorted({*globals(), *import_module("planner.api").SHORT, "__version__"})


logging.getLogger(__name__).addHandler(logging.NullHandler())
