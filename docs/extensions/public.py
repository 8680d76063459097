"""The directive ``public-names``: what the tables of ``python_api.md`` list, by autodoc."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DOORS = ("planner.api", "costmodel.catalog")
"""The modules whose names stay."""

ROW = re.compile(r"^\| `(\w+)` \| `([\w.]+)` \|")


class PublicNames(SphinxDirective):
    """A section for each table, an entry for each row."""

    def run(self) -> list[nodes.Node]:
        """Leave it to autodoc."""
        page = Path(self.env.srcdir) / "python_api.md"
        self.env.note_dependency(str(page))
        return self.parse_text_to_nodes("\n".join(_sections(page)), allow_section_headings=True)


def _sections(page: Path) -> Iterator[str]:
    title = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        row = ROW.match(line)
        if row and title:
            yield from ("", title, "-" * len(title), "")
            title = ""
        if row:
            yield from _entry(*row.groups())


def _entry(name: str, home: str) -> list[str]:
    thing = getattr(import_module(home), name)
    module = _door(name, thing, home)
    kind = "exception" if inspect.isclass(thing) and issubclass(thing, Exception) else "class"
    if not inspect.isclass(thing):
        return ["", f".. autofunction:: {module}.{name}", ""]
    return ["", f".. auto{kind}:: {module}.{name}", "   :members:", ""]


def _door(name: str, thing: object, home: str) -> str:
    """The module to import a name from: that which promises it, else its own."""
    promised = (module for module in DOORS if getattr(import_module(module), name, None) is thing)
    return next(promised, home)


def setup(app: Sphinx) -> dict[str, Any]:
    """Name the directive."""
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
