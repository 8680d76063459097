"""Outputs in the documents: ``python -m tests.readme_example`` writes them anew, ``test_documents.py`` compares."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from planner import PlanReport, load, plan, render
from planner.report.screen import Asked
from tests.documents import PAGES, ROOT, read

JOB = "benchmarks/jobs/llama3-405b-2048xh100.yaml"

SHOWN = re.compile(r"(<!-- output: (plan(?: --full)?) -->\n```text\n)(.*?)(?=```\n)", flags=re.DOTALL)
"""An output in a page: its marker with the command, its text."""

FIRST_VOLATILE, LAST_VOLATILE = "costed", "time"
"""Lines on what the search costed and how long it took differ from run to run."""


@cache
def report() -> PlanReport:
    """What the README's first command finds."""
    return plan(load(ROOT / JOB))


@cache
def output(command: str) -> str:
    """What the README's first command prints, or with ``--full``, its volatile lines left out as ``...``."""
    if command == "plan":
        return render(report(), "short", asked=Asked(command=f"planner plan {JOB}", job=JOB))
    lines = render(report()).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(FIRST_VOLATILE))
    last = next(number for number, line in enumerate(lines) if number > first and line.startswith(LAST_VOLATILE))
    return "\n".join([*lines[:first], "...", *lines[last + 1 :]]).strip() + "\n"


def outputs() -> list[tuple[Path, str, str]]:
    """What pages show: the page, the command, its text."""
    return [(path, found[2], found[3]) for path in PAGES for found in SHOWN.finditer(read(path))]


if __name__ == "__main__":
    for path in PAGES:
        text = SHOWN.sub(lambda found: found[1] + output(found[2]), read(path))
        path.write_text(text, encoding="utf-8")
