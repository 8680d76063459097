"""
Write the table of Megatron-Bridge's recipes: ``python -m benchmarks.imports.library WHEEL [WHEEL ...]``, oldest first.

The wheels are those of PyPI (``pip download --no-deps megatron-bridge==0.3.1``). They are read and not executed; equal
recipes of several releases are one row.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from planner.frameworks.imports.bridge.library import MODULES, Recipe, read_recipe
from planner.frameworks.imports.bridge.python_source import Thing, public_functions, read_module, result_of
from planner.frameworks.imports.documents import ROOM

TABLE = ROOM / "bridge" / "library.csv"
COLUMNS = ("recipe", "releases", "model", "fields")


def rows_of(wheels: Iterable[Path]) -> list[dict[str, str]]:
    """One row for each recipe and what it sets."""
    releases: dict[tuple[str, str, str], list[str]] = {}
    for wheel in wheels:
        found = re.match(r"megatron_bridge-([\w.]+?)-py3", wheel.name)
        if found is None:
            raise SystemExit(f"{wheel} is no wheel of megatron-bridge.")
        with TemporaryDirectory() as folder:
            ZipFile(wheel).extractall(folder)
            for recipe in recipes_of(Path(folder), found[1]):
                fields = " ".join(f"{name}={value}" for name, value in recipe.fields.items())
                releases.setdefault((recipe.name, recipe.model, fields), []).append(found[1])
    rows = [
        {"recipe": name, "releases": " ".join(of), "model": model, "fields": fields}
        for (name, model, fields), of in releases.items()
    ]
    return sorted(rows, key=lambda row: (row["recipe"], row["releases"]))


def recipes_of(root: Path, source: str) -> Iterator[Recipe]:
    """Yield the recipes for pretraining of a package in a folder."""
    modules: dict[Path, dict[str, Any]] = {}

    def resolver(module: str, name: str) -> Any:
        if not module.startswith(MODULES):
            return None
        path = root.joinpath(*module.split("."))
        file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if file not in modules and file.is_file():
            modules[file] = {}
            modules[file] = read_module(file.read_text(encoding="utf-8"), str(file), resolver)
        return modules.get(file, {}).get(name)

    for file in sorted(root.joinpath(*MODULES.split(".")).glob("*/*.py")):
        module = ".".join(file.relative_to(root).with_suffix("").parts)
        resolver(module, "")
        for name, function in public_functions(modules.get(file, {})).items():
            if "pretrain_config" in name and function.names is modules[file]:
                config = result_of(function, str(file), resolver)
                if isinstance(config, Thing):
                    yield read_recipe(f"{file.stem}_{name}" if name == "pretrain_config" else name, source, config)


def main(arguments: Sequence[str]) -> int:
    """Write the table anew."""
    rows = rows_of(map(Path, arguments))
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows in {TABLE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
