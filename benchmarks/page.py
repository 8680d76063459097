"""
``python -m benchmarks.page``: the pages of two plans on 2,048 GPUs, their sizes, how long they take to draw.

Exits with 0 if every page is below 6 MB and, where Chromium is installed, drawn within two seconds without a word on
its console. ``--screenshots`` also writes the pictures that the README shows (needs Pillow, which ``.[plots]`` brings).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.output import conclude
from planner.jobs.problem import load
from planner.report import render
from planner.verbs.plan import plan

FOLDER = Path(__file__).parent
JOBS = ("llama3-405b-2048xh100", "deepseek-v3-2048xh100")
PICTURES = FOLDER / "pages"

MOST_BYTES = 6e6
MOST_SECONDS = 2.0
SHOWN = {"llama3-405b-2048xh100": (3975, 6390), "deepseek-v3-2048xh100": (0, 2890)}
"""From where to where the pictures show each page, in pixels."""

WIDTH = 1300

COLOURS = 255
"""Colours of a picture: plots and text need no more, and files of a repository should be small."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures of each page; 0 if all hold, 1 otherwise, 2 where pictures are wanted without a browser."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--screenshots", action="store_true", help=f"write the pictures in {PICTURES.name}/ anew")
    options = parser.parse_args(arguments)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if options.screenshots and browser is None:
        print(f"pictures need one of: {', '.join(BROWSERS)}.", file=sys.stderr)
        return 2
    return conclude(_judge(browser, options.screenshots))


def _judge(browser: str | None, screenshots: bool) -> Iterator[str]:
    """Print the figures of each page; yield a sentence about each that is too large, and complaints of the console."""
    with tempfile.TemporaryDirectory() as folder:
        for job in JOBS:
            page = Path(folder) / f"{job}.html"
            began = time.perf_counter()
            report = plan(load(FOLDER / "jobs" / f"{job}.yaml"))
            planned = time.perf_counter()
            page.write_text(render(report, "html"), encoding="utf-8")
            made, num_bytes = time.perf_counter(), page.stat().st_size
            seconds, complaints = _measure_drawing(browser, page) if browser else (0.0, ())
            print(
                f"{job}: {num_bytes / 1e6:.2f} MB, planned in {planned - began:.1f} s, page made in "
                f"{made - planned:.1f} s, {f'drawn in {seconds:.2f} s' if browser else 'no Chromium to draw it'}",
                flush=True,
            )
            if num_bytes > MOST_BYTES or seconds > MOST_SECONDS:
                yield f"{job} has more than {MOST_BYTES / 1e6:g} MB, or takes longer than {MOST_SECONDS:g} s."
            yield from (f"{job}: {text}" for text in complaints)
            if screenshots and browser:
                _shoot(browser, page, PICTURES / f"{job}.png", *SHOWN[job])


def _measure_drawing(browser: str, page: Path) -> tuple[float, tuple[str, ...]]:
    """Seconds that the page itself reports once its last plot is there, and what its console says."""
    shown = _run(browser, page, "--dump-dom")
    (milliseconds,) = re.findall(r'data-drawn-milliseconds="(\d+)"', shown.stdout)
    said = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
    return int(milliseconds) / 1e3, tuple(said)


def _shoot(browser: str, page: Path, target: Path, top: int, bottom: int) -> None:
    from PIL import Image

    target.parent.mkdir(exist_ok=True)
    size = f"--window-size={WIDTH},{bottom}"
    _run(browser, page, f"--screenshot={target}", size, "--virtual-time-budget=3000")
    with Image.open(target) as picture:
        picture.convert("RGB").crop((0, top, WIDTH, bottom)).quantize(COLOURS, dither=Image.Dither.NONE).save(
            target, optimize=True
        )


def _run(browser: str, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *OPTIONS, f"--user-data-dir={profile}", *options, page.resolve().as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


if __name__ == "__main__":
    sys.exit(main())
