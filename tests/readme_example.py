"""The README's example output: ``python -m tests.readme_example`` writes it anew, ``test_project.py`` compares it."""

from __future__ import annotations

from pathlib import Path

from planner import load, plan, render

ROOT = Path(__file__).parents[1]
PATH = ROOT / "README.md"

JOB = "benchmarks/jobs/llama3-405b-2048xh100.yaml"
BEGIN = "<!-- output: plan -->\n```text\n"
END = "```\n"

FIRST_VOLATILE, LAST_VOLATILE = "costed", "time"
"""Lines on what the search costed and how long it took differ from run to run."""


def example() -> str:
    """What the README's first command prints, its volatile lines left out as ``...``."""
    lines = render(plan(load(ROOT / JOB)), "table").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(FIRST_VOLATILE))
    last = next(number for number, line in enumerate(lines) if number > first and line.startswith(LAST_VOLATILE))
    return "\n".join([*lines[:first], "...", *lines[last + 1 :]]).strip() + "\n"


def shown() -> str:
    """What the README shows."""
    return PATH.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PATH.read_text(encoding="utf-8").partition(BEGIN)
    PATH.write_text(before + BEGIN + example() + END + rest.partition(END)[2], encoding="utf-8")
