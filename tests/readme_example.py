"""Outputs in the documents: ``python -m tests.readme_example`` writes them anew, ``test_documents.py`` compares."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from planner import load, plan, render
from tests.documents import PAGES, ROOT, read

JOB = "benchmarks/jobs/llama3-405b-2048xh100.yaml"

SHOWN = re.compile(r'(<!-- output: plan(?:, until "([^"]+)")? -->\n```text\n)(.*?)(?=```\n)', flags=re.DOTALL)
"""An output in a page: its marker, the heading before which it ends, its text."""

FIRST_VOLATILE, LAST_VOLATILE = "costed", "time"
"""Lines on what the search costed and how long it took differ from run to run."""


@cache
def example() -> str:
    """What the README's first command prints, its volatile lines left out as ``...``."""
    lines = render(plan(load(ROOT / JOB)), "table").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(FIRST_VOLATILE))
    last = next(number for number, line in enumerate(lines) if number > first and line.startswith(LAST_VOLATILE))
    return "\n".join([*lines[:first], "...", *lines[last + 1 :]]).strip() + "\n"


def until(heading: str | None) -> str:
    """The example up to a heading; without one all of it."""
    return example().partition(f"\n{heading}\n")[0] if heading else example()


def outputs() -> list[tuple[Path, str | None, str]]:
    """What pages show: the page, the heading before which it ends, its text."""
    return [(path, found[2], found[3]) for path in PAGES for found in SHOWN.finditer(read(path))]


if __name__ == "__main__":
    for path in PAGES:
        text = SHOWN.sub(lambda found: found[1] + until(found[2]), read(path))
        path.write_text(text, encoding="utf-8")
