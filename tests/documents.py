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

FENCE = re.compile(
    r"(?:^<!-- ([a-z]+(?: code)?)(?:: ([^\n]*?))? -->\n)?^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
"""A code block, and the comment right above it that says what it is."""

PLANNER = re.compile(r"(\S*/)?planner (?!.*\.\.\.)|.* -m planner ")


@dataclass(frozen=True, kw_only=True)
class Block:
    """
    A code block of a page.

    Parameters
    ----------
    page, start, end
        Where its text is.
    mark, said
        What the comment right above it says it is, such as ``output``, and of which; empty: there is none.
    language, text
        What it is in, and what it says.
    """

    page: Path
    start: int
    end: int
    mark: str
    said: str
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Commands of a shell's block: parts of lines that ``&&`` joins, without comments."""
        joined = self.text.replace("\\\n", " ")
        parts = [part.strip() for line in joined.splitlines() for part in line.split(" && ")]
        return [part for part in parts if part and not part.startswith("#")]


def read(page: Path) -> str:
    """The text of a page."""
    return page.read_text(encoding="utf-8")


def page(name: str) -> str:
    """The text of a page of ``docs/`` by its name, such as ``guides/traces``."""
    return read(ROOT / "docs" / f"{name}.md")


def blocks_of(path: Path) -> Iterator[Block]:
    """Code blocks of a page, from top to bottom."""
    for found in FENCE.finditer(read(path)):
        mark, said, language, text = (part or "" for part in found.groups())
        yield Block(
            page=path, start=found.start(4), end=found.end(4), mark=mark, said=said, language=language, text=text
        )


def prose_of(path: Path) -> Iterator[str]:
    """Yield the sentences of a page: code, headings and generated parts have none, a cell of a table lists its own."""
    no_prose = r"^<!-- generated: ([\w-]+) -->.*?^<!-- end: \1 -->|^```.*?^```$|<!--.*?-->|^#+ .*?$|\$\$.*?\$\$"
    text = re.sub(no_prose, "\n\n", read(path), flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?= *\|)|\n\s*(?:[-*]|\d+\.) ", text):
        ends = r"(?<=[.?!;:])\s+|\s\|\s" if "| " in paragraph else r"(?<=[.?!:])\s+|(?<=[.?!]\*\*)\s+"
        yield from re.split(ends, " ".join(paragraph.split()))


def blocks(*languages: str) -> Iterator[Block]:
    """Code blocks of all pages in one of these languages."""
    for path in PAGES:
        yield from (block for block in blocks_of(path) if block.language in languages)


def words_of(line: str) -> list[str]:
    """Words of a command after ``planner``, without what the shell does with files; empty: it is another command."""
    if not PLANNER.match(line):
        return []
    words = shlex.split(re.sub(r" [<>] \S+$", "", line), comments=True)
    first = next(number for number, word in enumerate(words) if word.rpartition("/")[2] == "planner")
    return words[first + 1 :]


def commands() -> list[list[str]]:
    """Words of each ``planner ...`` in the shell blocks."""
    return [words for block in blocks("sh") for line in block.lines if (words := words_of(line))]
