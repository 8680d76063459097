"""
Figures of the house that may only fall: how much code there is, how it is worded, and how much of it a plan needs.

``python -m tests.ratchet`` lowers the figures of ``data/house.yaml`` that fell, and ends with 1 if one grew.
``python -m tests.ratchet --grow`` writes all of them as they are today: for code that moved between rooms, and for a
feature that is worth its lines. The change of the file shows it to whoever reads the commit.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml

from tests.sources import PACKAGES, ROOMS, ROOT, code_lines, docstrings, label, nodes, python_files, sentences

FILE = ROOT / "tests" / "data" / "house.yaml"

Figures = Mapping[str, float]

QUESTIONS = re.compile(r"(What|Whether|Which|Whose|Who|Where|Why|How|Of)\b")
"""Words that begin a clause without a subject; no sentence of a docstring begins with one."""

OPENERS = re.compile(rf"{QUESTIONS.pattern}|(Those|That|The same|Each of whom)\b")
"""The same and words that point back; no docstring begins with one."""

WORDED = (*PACKAGES, "benchmarks", "docs")
"""Folders whose docstrings are read for openers: the wheel, and code that a reader of the house meets beside it."""

PREPOSITION = re.compile(
    "above|across|after|against|along|among|apart|as|at|before|behind|below|besides?|between|beyond|by|for|from|in|into|"
    "like|near|of|off|on|out|over|per|since|through|to|under|until|up|via|with|within|without"
)
PARTICIPLE = re.compile(
    r"begun|bought|broken|brought|built|caught|chosen|dealt|done|drawn|driven|found|given|gone|grown|heard|held|hidden|"
    r"kept|known|laid|led|left|lent|lost|made|meant|met|paid|said|seen|sent|shown|sold|spent|stood|taken|told|"
    r"understood|written|(?!(deepspeed|embed|exceed|feed|need|seed|shed|speed)$)\w+ed"
)
"""First words of names; of verbs such as ``read`` and ``split`` the imperative is the same."""

UNITS = ("_bytes", "_count", "_flops", "_fraction", "_parameters", "_ranks", "_seconds", "_share", "_tokens")
"""Last words of quantities, whose names may begin with a participle, such as ``exposed_seconds``."""

PLANS = ("llama3-8b-8xh100", "mixtral-8x7b-64xa100", "llama3-405b-2048xh100")
"""Jobs of ``benchmarks/jobs`` that are planned for the figures."""


def room_of(path: Path) -> str:
    """Return the folder below a package, or the package of a file that lies in no such folder."""
    parts = label(path).split("/")
    return "/".join(parts[:2] if len(parts) > 2 else parts[:1])


def count_lines() -> Figures:
    """Count lines of code by room."""
    lines: Counter[str] = Counter()
    for path in python_files(*ROOMS):
        lines[room_of(path)] += len(code_lines(path))
    return lines


def count_files() -> Figures:
    """Count Python files by package."""
    return Counter(label(path).split("/")[0] for path in python_files(*ROOMS))


def count_classes() -> Figures:
    """Count classes by package, those inside functions and classes too."""
    classes: Counter[str] = Counter()
    for path in python_files(*ROOMS):
        classes[label(path).split("/")[0]] += sum(isinstance(node, ast.ClassDef) for node in nodes(path))
    return classes


def function_names() -> Iterator[str]:
    """Yield names of the packages' functions and methods, without the underscores before them."""
    for path in python_files(*PACKAGES):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
                yield node.name.lstrip("_")


def is_participle(name: str) -> bool:
    """Tell whether a name begins with a participle and ends in no unit."""
    return bool(PARTICIPLE.fullmatch(name.partition("_")[0])) and not name.endswith(UNITS)


def openers() -> Iterator[str]:
    """Yield sentences of docstrings that open with a word without a subject, field descriptions included."""
    for path in python_files(*WORDED):
        for one in docstrings(path):
            for number, said in enumerate(sentences(one.value)):
                if (QUESTIONS if number else OPENERS).match(said):
                    yield f"{label(path)}:{one.lineno}: {said}"


def count_words() -> Figures:
    """Count docstrings and names that style forbids, in the packages; openers in the benchmarks too."""
    texts = [one.value.strip() for path in python_files(*PACKAGES) for one in docstrings(path)]
    words = re.findall(r"[A-Za-z]+", " ".join(texts).lower())
    names = list(function_names())
    return {
        "docstring openers": len(list(openers())),
        "what in 1,000 words of docstrings": round(1000 * words.count("what") / len(words), 1),
        "names that begin with a participle": sum(map(is_participle, names)),
        "names that begin with a preposition": sum(
            bool(PREPOSITION.fullmatch(name.partition("_")[0])) for name in names
        ),
    }


@cache
def _run() -> Mapping[str, Figures]:
    """Plan jobs in a new process, which has loaded nothing yet, and read its figures."""
    command = [sys.executable, "-m", "tests.planned", *(f"benchmarks/jobs/{job}.yaml" for job in PLANS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    figures: Mapping[str, Figures] = json.loads(done.stdout)
    return figures


def count_modules() -> Figures:
    """Count modules and files of ours that ``planner plan`` of llama3-8b on 8 needs."""
    return _run()["modules"]


def count_arrays() -> Figures:
    """Count arrays that NumPy allocates for each of ``PLANS``."""
    return _run()["arrays"]


FIGURES: Mapping[str, tuple[Callable[[], Figures], int, float]] = {
    "lines of code": (count_lines, 20, 0.01),
    "files": (count_files, 2, 0.01),
    "classes": (count_classes, 2, 0.01),
    "words": (count_words, 0, 0.0),
    "planner plan of llama3-8b on 8": (count_modules, 0, 0.0),
    "arrays of NumPy": (count_arrays, 0, 0.02),
}
"""
Each group of figures: who counts it, and by how much it may be exceeded: a number and a share, the larger.

Branches that grow a little side by side can be merged then without anyone writing the file. NumPy's allocations
differ a little between its releases.
"""

CASES = "test cases"
"""The group that pytest counts, when it has collected the whole suite."""

MOST_CASES = 0.01


def limits(group: str) -> dict[str, float]:
    """Read the highest figures of a group that are allowed."""
    stored: dict[str, float] = yaml.safe_load(FILE.read_text(encoding="utf-8"))[group]
    _, number, share = FIGURES.get(group, (None, 0, MOST_CASES))
    return {name: figure + max(number, share * figure) for name, figure in stored.items()}


def grown(group: str, figures: Figures) -> list[str]:
    """List the figures of a group that are higher than allowed; one that the file lacks may not be there at all."""
    most = limits(group)
    return [
        f"{group}: {name} {figure:,}, at most {most.get(name, 0):,.10g}"
        for name, figure in figures.items()
        if figure > most.get(name, 0)
    ]


def count_cases() -> Figures:
    """Count the test cases that pytest collects where optional packages are missing or not."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", "-m", ""]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {"collected": sum(map(int, re.findall(r": (\d+)$", said, flags=re.MULTILINE)))}


def write(*, grow: bool) -> list[str]:
    """Write figures that fell, or all of them; return those that grew and were not written."""
    stored = yaml.safe_load(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    today = {group: dict(count()) for group, (count, _, _) in FIGURES.items()} | {CASES: dict(count_cases())}
    above = []
    for group, figures in today.items():
        for name, figure in figures.items():
            before = stored.get(group, {}).get(name, 0)
            if figure > before and not grow:
                above.append(f"{group}: {name} {figure:,}, was {before:,}")
                figures[name] = before
    head = "# Written by python -m tests.ratchet: figures that may only fall.\n"
    FILE.write_text(head + yaml.safe_dump(today, sort_keys=True), encoding="utf-8")
    return above


def main() -> int:
    """Run the command that the module's text describes."""
    parser = argparse.ArgumentParser(description="Lower the figures of the house to those of today.")
    parser.add_argument("--grow", action="store_true", help="write figures that grew as well")
    above = write(grow=parser.parse_args().grow)
    print("\n".join(above) or f"{label(FILE)} has the figures of today.")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
