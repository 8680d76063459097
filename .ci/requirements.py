"""
``python .ci/requirements.py EXTRA ...``: what ``pyproject.toml`` asks for with these extras, for ``pip install -r``.

With ``--lowest`` the oldest versions that it allows, as constraints: ``.ci/run`` installs exactly these and runs unit
tests of what reaches them. Needs nothing but Python.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(text: str, *extras: str) -> list[str]:
    """Return each requirement of a ``pyproject.toml`` and of its extras, once."""
    project = tomllib.loads(text)["project"]
    listed = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    return [*dict.fromkeys(listed)]


def lower_bound(requirement: str) -> str:
    """Return a requirement with ``==`` in place of ``>=``."""
    name, bound = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)(?:,<[\d.]+)?", requirement).groups()
    return f"{name}=={bound}"


if __name__ == "__main__":
    extras = [word for word in sys.argv[1:] if word != "--lowest"]
    found = requirements((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"), *extras)
    print(*(map(lower_bound, found) if "--lowest" in sys.argv else found), sep="\n")
