"""Stand-ins for packages that only devices can run: modules that have anything."""

from __future__ import annotations

from collections.abc import Collection
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast


class Anything(type):
    """A class that has any attribute, base and argument."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *arguments: Any, **_: Any) -> Any:
        """As a decorator it returns what it decorates."""
        function = arguments[0] if arguments else None
        return function if callable(function) and not isinstance(function, type) else cast(Any, object).__new__(cls)

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:
        return cls

    __ror__ = __or__


class StandIn(ModuleType):
    """A module that has anything."""

    __path__: list[str] = []  # noqa: RUF012  # as ModuleType declares it
    __version__ = "2.12.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = Anything(name, (), {"__call__": _decorated})
        setattr(self, name, found)
        return found


class Finder(MetaPathFinder, Loader):
    """
    Finder of stand-ins for packages that are not installed.

    Parameters
    ----------
    packages
        Their names.
    """

    def __init__(self, packages: Collection[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find any module of the packages."""
        is_missing = any(name == one or name.startswith(f"{one}.") for one in self.packages)
        return ModuleSpec(name, self, is_package=True) if is_missing else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create one that has anything."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing."""


def _decorated(_: object, function: Any = None, *__: Any, **___: Any) -> Any:
    """Return what an object decorates: what is called with arguments may be a decorator."""
    return function
