"""Links from a page to a file of the repository that is no page: the site takes the file along."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Look at each page before it is parsed."""
    app.connect("source-read", _take_along)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _take_along(app: Sphinx, name: str, source: list[str]) -> None:
    home = Path(app.srcdir)
    folder = (home / name).parent

    def link(found: re.Match[str]) -> str:
        path = (folder / found[2]).resolve()
        if path.is_relative_to(home):
            return found[0]
        text = found[1].replace("`", "")
        return f"{{download}}`{text} <{found[2]}>`"

    source[0] = LINK.sub(link, source[0])
