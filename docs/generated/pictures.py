"""
Pictures of the documents: plots cut out of the planner's own page, each a file with the page's style.

``python -m docs.generated.pictures`` plans, draws the page in Chromium and cuts; ``tests/test_site.py`` compares.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from planner import load, plan, render
from planner.report import html

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parents[1] / "pictures"
JOB = ROOT / "benchmarks" / "jobs" / "llama3-405b-2048xh100.yaml"

PATIENT = ["search.time_limit_seconds=10min"]
"""A page says what there was no time for; on a busy machine, too, there is."""

PICTURES: Mapping[str, str] = {
    "memory_by_rank": "memory 1",
    "time_against_memory": "front",
    "ettr_against_interval": "ettr 1",
}
"""Charts of the page by the name of their file."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=900,3000", "--virtual-time-budget=5000")

NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
DIGITS = re.compile(r"(\d+\.\d)\d+")


def browser() -> str | None:
    """Return the installed program that draws; None: there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def pictures(chromium: str) -> dict[str, str]:
    """Each picture as it is drawn today, by the name of its file."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        page.write_text(render(plan(load(JOB, PATIENT)), "html"), encoding="utf-8")
        command = [chromium, *OPTIONS, "--dump-dom", page.as_uri()]
        drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    style = (Path(html.__file__).parent / "page.css").read_text(encoding="utf-8")
    return {name: _cut(drawn, chart, style) for name, chart in PICTURES.items()}


def _cut(drawn: str, chart: str, style: str) -> str:
    """The plot of a chart as a file of its own: the page's colours, the page's place in the tree."""
    figure = drawn[drawn.index(f'data-chart="{chart}"') :]
    plot = re.search(r'<svg width="(\d+)" height="(\d+)".*?</svg>', figure, flags=re.DOTALL)
    assert plot, chart
    size = f'width="{plot[1]}" height="{plot[2]}"'
    inside = DIGITS.sub(r"\1", plot[0]).replace("&nbsp;", "\u00a0")
    return f'<svg {NAMESPACE} {size} class="plot"><style>{escape(_used(style, inside))}</style>{inside}</svg>\n'


def _used(style: str, plot: str) -> str:
    """Return the part of the page's style that a plot needs: its colours, and the rules of its classes."""
    plain = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    classes = {word for words in re.findall(r'class="([^"]+)"', plot) for word in words.split()}
    colours = re.findall(r":root \{.*?\}|@media \(prefers-color-scheme: dark\) \{.*?\}\s*\}", plain, flags=re.DOTALL)
    rules = re.findall(r"^([^@{}\n][^{}]*)\{([^{}]*)\}", plain, flags=re.MULTILINE)
    named = [
        f"{selector.strip()} {{{body.strip()}}}"
        for selector, body in rules
        if classes & set(re.findall(r"\.([\w-]+)", selector)) or re.search(r"\b(svg|text)\b", selector)
    ]
    font = "svg { font-family: system-ui, sans-serif; }"
    return "\n".join([*colours, font, *named])


def main() -> int:
    """Write the pictures; 2 without a browser."""
    chromium = browser()
    if chromium is None:
        print(f"pictures need one of: {', '.join(BROWSERS)}.", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures(chromium).items():
        (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
