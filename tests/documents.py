"""The documents: README, the pages of ``docs/``, their code blocks and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
"""What people read, in the order in which tests name it."""

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A code block of a page: its language, its text, and the line that it begins on."""

    page: Path
    language: str
    text: str
    line: int


def read(page: Path) -> str:
    """The text of a page."""
    return page.read_text(encoding="utf-8")


def page(name: str) -> str:
    """The text of a page of ``docs/`` by its name, such as ``guides/traces``."""
    return read(ROOT / "docs" / f"{name}.md")


def blocks(*languages: str) -> Iterator[Block]:
    """Code blocks of all pages in one of these languages."""
    for path in PAGES:
        text = read(path)
        for found in FENCE.finditer(text):
            if found[1] in languages:
                yield Block(page=path, language=found[1], text=found[2], line=text[: found.start()].count("\n") + 1)


def commands() -> list[list[str]]:
    """Words of each ``planner ...`` in the shell blocks, without ``planner`` and what the shell does with files."""
    texts = [block.text.replace("\\\n", " ") for block in blocks("sh")]
    lines = [part.strip() for text in texts for line in text.splitlines() for part in line.split("&&")]
    found = [shlex.split(re.sub(r" [<>] \S+$", "", line)) for line in lines if re.match(r"(\S*/)?planner ", line)]
    return [words[1:] for words in found]
