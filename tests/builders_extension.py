"""A copy of the packages that a test extends as a row of CONTRIBUTING.md allows, and what commands then say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("costmodel", "constraints", "planner")

JOB = """
model: llama3-8b
cluster: {device: h100-80gb-sxm, num_devices: 8}
training: {global_batch_size: 64, sequence_length: 4096, tokens: 1e9}
search: {stages: even, pin: {tp: 2, cp: 1, pp: 1, mbs: 1, recompute: none, sharding: gradients}}
"""
"""A job whose plan takes a second."""

SCHEMAS = "-c", "import runpy; runpy.run_module('planner.schema', run_name='__main__')"
"""A command of :func:`say`: ``python -m planner.schema``."""

RUN = """
import contextlib, io, json, sys
from planner.cli import main
said = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(io.StringIO()) as told:
        code = exec(words[1]) or 0 if words[0] == "-c" else main(words)
    said.append((code, text.getvalue(), told.getvalue()))
print(json.dumps(said))
"""
"""Commands of the planner, or of Python (``-c``), one after the other in one process."""


def rows() -> dict[str, str]:
    """What each row of "Places for new things" says must be touched."""
    _, _, text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| new | touch |")
    table, _, _ = text.partition("\n\n")
    return dict(re.findall(r"^\| ([^|-][^|]*) \| ([^|]+) \|", table, flags=re.MULTILINE))


def copied(folder: Path) -> Path:
    """A copy of the packages and the job in a folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package)  # what Python compiled, too
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    return folder


Answer = tuple[int, str, str]
"""Exit code of a command, and what it printed to either stream."""


def say(folder: Path, *commands: str | Sequence[str]) -> list[Answer]:
    """Run commands in a copy, in one process."""
    words = json.dumps([shlex.split(one) if isinstance(one, str) else one for one in commands])
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", RUN, words]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    answers: list[Answer] = json.loads(ran.stdout)
    return answers


class Extended:
    """
    A copy of the packages in which only files may be touched that rows of the table name.

    Parameters
    ----------
    folder
        The copy.
    things
        Names of the rows.
    codes
        Exit codes of its commands.
    """

    def __init__(self, folder: Path, *things: str, codes: Sequence[int] = (0,)) -> None:
        self.folder, self._codes = folder, codes
        said = " ".join(rows()[thing] for thing in things)
        self._places = [word for word in re.findall(r"`([^`\s]+)`", said) if "/" in word or "." in word]
        self.has_schema = "schema" in said

    def text(self, path: str) -> str:
        """A file of the copy."""
        return (self.folder / path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        """Write a new file."""
        assert not (self.folder / path).exists(), f"{path} is there already"
        self._save(path, text)

    def like(self, path: str, known: str, **entries: str) -> None:
        """Write a new file like a known one, some of whose lines are others."""
        text = self.text(known)
        for name, value in entries.items():
            text, found = re.subn(rf"^{name}: .*$", f"{name}: {value}", text, flags=re.MULTILINE)
            assert found == 1, f"{known} has {found} lines of {name}"
        self.write(path, text)

    def edit(self, path: str, *changes: tuple[str, str]) -> None:
        """Replace each first text, which must be there once, by the second one."""
        text = self.text(path)
        for old, new in changes:
            assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        self._save(path, text)

    def add(self, path: str, *lines: tuple[str, str]) -> None:
        """Add a text behind each first one, which must be there once."""
        self.edit(path, *((known, known + new) for known, new in lines))

    def texts(self, answers: Sequence[Answer]) -> list[str]:
        """Return what commands printed that ended as they should."""
        assert {code for code, _, _ in answers} <= {*self._codes}, [told for _, _, told in answers]
        return [text for _, text, _ in answers]

    def _save(self, path: str, text: str) -> None:
        named = any(
            fnmatch(path, re.sub("<[^>]+>", "*", place))
            or (place.endswith("/") and path.startswith(place))
            or ("/" not in place and Path(path).name == place)
            for place in self._places
        )
        assert named, f"{path} is not in the row"
        (self.folder / path).write_text(text, encoding="utf-8")
