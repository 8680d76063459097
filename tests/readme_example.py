"""
What documents show is run: files, commands, Python, outputs.

``test_documents.py`` compares the outputs, ``python -m tests.readme_example`` writes them anew, of all
pages or of those that it is given. A page is one story, in
a folder of its own with the example jobs:

- below ``<!-- file: NAME -->`` a block is a file that the next commands find;
- ``sh`` blocks are run, line by line, but for commands of ``NOT_RUN``; those below ``<!-- exit code: N -->`` end so;
- ``python`` blocks that import the planner are run;
- below ``<!-- output -->`` stands what the last command or Python block printed. ``from "X"`` and ``until "Y"`` cut it
  at lines that begin so; what is cut is ``...``;
- below ``<!-- example: REASON -->`` stands an output that cannot be had here.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from planner import cli
from tests.documents import PAGES, ROOT, Block, blocks_of, read, words_of

NOT_RUN: Mapping[str, str] = {
    r"python3\.11 -m venv|\S*pip install|\S*python -m pytest": "installs or tests: .ci/run runs the README's two lines",
    r"planner sample|torchrun ": "needs torch, and measures for minutes",
    r"planner calibrate (samples|small-run|rank)": "needs the samples of that measurement",
    r".*rank\S*\.json\.gz|.*cluster\.device=\./my-cluster\.yaml": "needs a profiled or sampled machine",
    r".*small-run\.yaml": "needs runs on a cluster",
    r"sbatch |planner calibrate .* --logs ": "needs a cluster",
    r"planner catalog skill": "serves until it is stopped; prints a path of the machine",
    r".*--backend (dask|ray)": "needs a cluster",
    r"python \.github/": "needs a repository with a change; tests/test_action.py has one",
    r"planner serve": "serves until it is interrupted; tests/browser opens its page",
    r"planner calibrate benchmarks/": "fits 1,200 runs for minutes",
}
"""Beginnings of commands that are only parsed, and why."""

GIVEN: Mapping[str, str] = {
    "path/to/config.json": "benchmarks/jobs/llama-3.1-405b/config.json",
    "config.json": "benchmarks/jobs/llama-3.1-405b/config.json",
}
"""Files that a reader has, by name, and what stands for them."""

VOLATILE = (("costed", "time"),)
"""First and last lines of parts that differ from run to run."""

COLUMNS = "100"


class Story:
    """
    A page whose commands are run one after the other.

    Parameters
    ----------
    page
        Which one.
    folder
        Where; empty.
    """

    def __init__(self, page: Path, folder: Path):
        self.page, self.folder = page, folder
        folder.mkdir(exist_ok=True)
        for name in ("benchmarks", "tests"):
            (folder / name).symlink_to(ROOT / name)
        for name, of in GIVEN.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / of).read_bytes())

    def outputs(self) -> Iterator[tuple[Block, str]]:
        """Run the page; yield each output that it shows with what is printed today."""
        printed = ""
        for block in blocks_of(self.page):
            if block.mark == "file":
                (self.folder / block.said).write_text(block.text, encoding="utf-8")
            if block.mark == "output":
                yield block, cut(printed, block.said)
            elif block.language == "sh":
                code = int(block.said) if block.mark == "exit code" else 0
                for line in block.lines:
                    printed = self._run(line, code)
            elif block.language == "python" and re.search(r"^(from|import) planner", block.text, re.MULTILINE):
                printed = self._execute(block)

    def _run(self, line: str, code: int) -> str:
        words = words_of(line)
        if any(re.match(start, line) for start in NOT_RUN):
            return ""
        assert words, f"{self.page.name}: {line}: neither a command of the planner nor one of NOT_RUN"
        given = re.search(r" < (\S+)$", line)
        text = (self.folder / given[1]).read_text(encoding="utf-8") if given else ""
        out, err = io.StringIO(), io.StringIO()
        environment = patch.dict(os.environ, {"COLUMNS": COLUMNS, "NO_COLOR": "1"})
        stdin = patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        with chdir(self.folder), environment, stdin, redirect_stdout(out), redirect_stderr(err):
            found = cli.main(words)
        assert found == code, f"{self.page.name}: {line}: ended with {found}: {err.getvalue()}"
        return out.getvalue() or err.getvalue()

    def _execute(self, block: Block) -> str:
        out = io.StringIO()
        with chdir(self.folder), redirect_stdout(out):
            exec(compile(block.text, self.page.name, "exec"), {"__name__": "page"})
        return out.getvalue()


def cut(printed: str, said: str) -> str:
    """The part of an output that a page shows, what differs from run to run left out as ``...``."""
    lines = printed.strip("\n").splitlines()
    first, last = (re.search(rf'{word} "([^"]+)"', said) for word in ("from", "until"))
    begin = next(number for number, line in enumerate(lines) if line.startswith(first[1])) if first else 0
    end = len(lines)
    if last:
        end = next(number for number in range(begin + 1, end) if lines[number].startswith(last[1]))
    shown = [*["..."] * bool(begin), *lines[begin:end], *["..."] * (end < len(lines))]
    return "\n".join(_steady(shown)) + "\n"


def _steady(lines: list[str]) -> Iterator[str]:
    until = ""
    for line in lines:
        if until:
            until = "" if line.startswith(until) else until
            continue
        until = next((last for start, last in VOLATILE if line.startswith(start)), "")
        yield "..." if until else line.rstrip()


def today(page: Path, folder: Path) -> tuple[str, str]:
    """A page as it is, and with today's outputs."""
    text = new = read(page)
    for block, printed in reversed(list(Story(page, folder).outputs())):
        new = new[: block.start] + printed + new[block.end :]
    return text, new


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        with tempfile.TemporaryDirectory() as scratch:
            path.write_text(today(path, Path(scratch))[1], encoding="utf-8")
