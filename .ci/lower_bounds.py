"""
``python .ci/lower_bounds.py``: the oldest versions that ``pyproject.toml`` allows, as constraints for pip.

``.ci/run`` installs exactly these and runs unit tests of what reaches them. Needs nothing but Python.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

EXTRAS = ("test", "fit", "parquet", "dask", "agents")
"""Extras of that environment; the others need torch, a cluster, Chromium or Sphinx."""


def lower_bounds(text: str, *extras: str) -> Iterator[str]:
    """Yield each requirement of a ``pyproject.toml`` and of its extras with ``==`` in place of ``>=``, once."""
    project = tomllib.loads(text)["project"]
    listed = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    for requirement in dict.fromkeys(listed):
        name, bound = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)(?:,<[\d.]+)?", requirement).groups()
        yield f"{name}=={bound}"


if __name__ == "__main__":
    print(*lower_bounds((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"), *EXTRAS), sep="\n")
