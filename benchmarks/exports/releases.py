"""The releases of Megatron-LM whose sources are at hand, and what their parsers say of exports."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from planner.frameworks.megatron.options import split_words
from planner.frameworks.megatron.releases import RELEASES
from planner.frameworks.target import Export
from planner.results import Plan

PARSER = "benchmarks.exports.parse_arguments"
CHECKOUT = Path(__file__).parents[2]

VERSION = re.compile(r"v?(?P<number>\d+\.\d+)(\.\d+)?|(?P<main>main)")
"""A release in the name of a folder or an archive: ``core_v0.18.2.tar.xz``, ``main-2026-08-22``."""


@dataclass(frozen=True)
class Answers:
    """
    Answers of a release's parser.

    Parameters
    ----------
    options
        Choices of each option of the parser.
    errors
        Its verdict on each case: empty where it takes the arguments.
    models
        Facts of the model of each case; empty where it refuses the arguments.
    """

    options: dict[str, list[str]]
    errors: list[str]
    models: list[dict[str, float]]


def find_sources(folder: Path, scratch: Path) -> dict[str, Path]:
    """
    Find the sources of releases, archives unpacked.

    Parameters
    ----------
    folder
        Holds a checkout or an archive of each release, named after it.
    scratch
        Folder to unpack into.

    Returns
    -------
    dict
        The folder that holds ``megatron/training``, by release as exports call it.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        match = VERSION.search(path.name)
        release = match["number"] or match["main"] if match else None
        if release not in RELEASES:
            continue
        if path.suffix in (".xz", ".gz", ".tgz"):
            with tarfile.open(path) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
                archive.extractall(scratch / release)
            path = scratch / release
        parsers = sorted(path.glob("**/megatron/training/arguments.py"))
        if parsers:
            found[release] = parsers[0].parents[2]
    return {release: found[release] for release in RELEASES if release in found}


def ask_parser(sources: Path, exports: Sequence[tuple[Plan, Export]], python: str) -> Answers:
    """
    Ask the parser of a release for its options and for a verdict on each export.

    Parameters
    ----------
    sources
        Folder of the release.
    exports
        Plans with their exports.
    python
        An interpreter that has torch.
    """
    cases = [
        {
            "world_size": plan.cluster.num_devices,
            "architecture": plan.cluster.device.architecture,
            "environment": dict(export.environment),
            "arguments": split_words(export.files["megatron-args.txt"])[0],
        }
        for plan, export in exports
    ]
    lines = "".join(f"{json.dumps(case)}\n" for case in cases)
    command = [python, "-m", PARSER, str(sources.resolve())]
    run = subprocess.run(command, input=lines, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"the parser in {sources} did not start:\n{run.stderr[-2000:]}")
    options, *verdicts = (json.loads(line) for line in run.stdout.splitlines())
    errors = [one["error"] for one in verdicts]
    return Answers(options=options, errors=errors, models=[one.get("model", {}) for one in verdicts])


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
