"""What a command line answers, and where two answers differ."""

from __future__ import annotations

import io
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from difflib import unified_diff
from itertools import permutations
from pathlib import Path
from typing import Any

from benchmarks.behaviour.cases import JOB, Question
from planner.cli import main as planner

DIGITS = 9
"""To which two figures are the same."""

CLOCKED = frozenset({"build_seconds", "solve_seconds", "certificate"})
"""Entries that a clock measured, or that are about the time that was left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """
    What came back.

    Parameters
    ----------
    code
        Exit code.
    output
        JSON where that was asked for, else the lines of the output that are not comments.
    place
        What the complaint names: the message up to its first colon; empty if there is none.
    """

    code: int
    output: Any
    place: str


def ask(question: Question) -> Answer:
    """Run a command line in a folder of its own, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path.cwd()
        os.chdir(folder)
        try:
            Path(JOB).write_text(question.job, encoding="utf-8")
            if question.before:
                _run(question.before)
            return _run(question.arguments)
        finally:
            os.chdir(home)


def _run(arguments: tuple[str, ...]) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = planner(arguments)
    wrong = code == 2
    complaint = err.getvalue().removeprefix("planner: ").partition(": ")[0].strip() if wrong else ""
    return Answer(code=code, output=_plain(out.getvalue()), place=complaint.splitlines()[0] if complaint else "")


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return [line for line in text.splitlines() if not line.lstrip().startswith(("#", '"""'))]


# --- differences -----------------------------------------------------------------------------------------------


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two outputs differ: entries, figures to nine digits, and words; sentences may be said otherwise."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            if name in CLOCKED:
                continue
            if name not in after:
                yield f"{path}.{name}: is gone"
            elif name not in before:
                yield f"{path}.{name}: is new"
            else:
                yield from differences(before[name], after[name], f"{path}.{name}")
    elif is_report(before) and is_report(after):
        gone, new = (list((one - other).elements()) for one, other in permutations((figures(before), figures(after))))
        if gone or new:
            yield f"{path}: figures {new} instead of {gone}"
    elif not path and is_file(before):
        yield from (
            f"{path}: {line}" for line in unified_diff(before, after, n=0, lineterm="") if line[:3] not in MARKS
        )
    elif is_prose(before) and is_prose(after):
        if sorted(map(sizes, before)) != sorted(map(sizes, after)) or figures(said(before)) != figures(said(after)):
            yield f"{path}: {after!r} instead of {before!r}"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(after)} entries instead of {len(before)}"
        for number, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differences(old, new, f"{path}.{number}")
    elif not same(before, after):
        yield f"{path}: {after!r} instead of {before!r}"


def is_report(output: Any) -> bool:
    """
    Whether an output is a report for people: a title underlined, then sections.

    >>> is_report(["A job", "-----", "answer  1.2 s"]), is_report(["--tp", "8"]), is_report({"plans": []})
    (True, False, False)
    """
    if not isinstance(output, list) or len(output) < 2 or not isinstance(output[0], str):
        return False
    return bool(output[0]) and output[1] == "-" * len(output[0])


def is_prose(value: Any) -> bool:
    """
    Whether a list holds sentences, or lists of them: these are in the order of their words, which may change.

    >>> is_prose([["One rule holds.", "So does another."], ["A third does."]]), is_prose(["bf16", "fp8"]), is_prose([])
    (True, False, False)
    """
    inner = isinstance(value, list) and bool(value)
    return inner and all(is_prose(one) or (isinstance(one, str) and " " in one) for one in value)


def said(value: Any) -> Iterator[str]:
    """The sentences of a list, of lists in it too."""
    for one in value:
        yield from said(one) if isinstance(one, list) else (one,)


def sizes(value: Any) -> int:
    """How many sentences an entry of a list holds."""
    return len(list(said(value))) if isinstance(value, list) else 1


def is_file(output: Any) -> bool:
    """
    Whether an output is a file of a framework, of which every word counts: lines, where JSON is a mapping.

    >>> is_file(["--tensor-model-parallel-size 8"]), is_file({"plans": []}), is_file([])
    (True, False, False)
    """
    return isinstance(output, list) and bool(output) and all(isinstance(line, str) for line in output)


MARKS = ("---", "+++", "@@ ")
"""Lines of a difference that are of neither side."""


def figures(lines: Iterable[str]) -> Counter[str]:
    """
    The numbers of a report for people, without those that a clock measured; its words and lines may change.

    >>> sorted(figures(["answer  1.2 s per step, 1,024 GPUs", "time    0.3 s"]))
    ['1,024', '1.2']
    """
    return Counter(figure for line in lines if not line.startswith("time ") for figure in FIGURE.findall(line))


FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def same(before: Any, after: Any) -> bool:
    """
    Whether two values are the same to a user.

    >>> same(1.0, 1.0 + 1e-12), same(1.0, 1.001), same("bf16", "fp16")
    (True, False, False)
    >>> same("A sentence of 4 words", "It is said otherwise, with 4."), same("peak of 4 GiB", "peak of 5 GiB")
    (True, False)
    """
    if isinstance(before, str) and isinstance(after, str):
        return before == after or (" " in before and " " in after and figures([before]) == figures([after]))
    if isinstance(before, bool) or isinstance(after, bool) or before is None or after is None:
        return before is after
    if isinstance(before, int | float) and isinstance(after, int | float):
        return math.isclose(before, after, rel_tol=10**-DIGITS, abs_tol=1e-12)
    return bool(before == after)
